/**
 * The commands that say what a run paid for: `receipt`, and `failures` with what each kind of them cost. Internal to the command line.
 *
 * @since 0.1.0
 */
import { Command, Options } from "@effect/cli"
import { Console, Effect, Either, Option, Schema, Stream } from "effect"
import type { OrderRecord } from "../services/Book.ts"
import { Usd } from "../services/Usd.ts"
import { asOf, db } from "./CliFlags.ts"
import { chosen, runIdArg, withDb } from "./CliShared.ts"
import * as ExitCode from "./ExitCode.ts"
import * as FailureGroups from "./FailureGroups.ts"
import { count, money, oneLine } from "./ProgressLine.ts"
import * as Receipt from "./Receipt.ts"
import * as Report from "./Report.ts"

const json = Options.boolean("json").pipe(Options.withDescription("JSON, money in nano-dollars"))

/** What a run cost. @since 0.1.0 */
export const receiptCommand = Command.make(
  "receipt",
  {
    runId: runIdArg,
    db,
    json,
    row: Options.text("row").pipe(Options.withDescription("The calls of one row, by its id"), Options.optional)
  },
  ({ db, json, row, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        if (Option.isSome(row)) {
          const calls = yield* Receipt.rowCalls(id, row.value)
          yield* Console.log(json ? JSON.stringify(calls.map(rowCallJson), null, 2) : calls.map(callText).join("\n"))
        } else {
          const receipt = yield* Receipt.receipt(id)
          yield* Console.log(json ? JSON.stringify(receipt, null, 2) : receiptText(receipt))
        }
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("What a run paid for, at which prices, with one digest"))

const rowCallJson = (call: Receipt.RowCall) => ({ ...call, requestId: Option.getOrNull(call.requestId) })

const callText = ({
  at,
  attempt,
  epoch,
  held,
  model,
  reason,
  requestId,
  state,
  turn,
  usage
}: Receipt.RowCall): string =>
  [
    new Date(at).toISOString(),
    `pass ${epoch + 1} turn ${turn + 1} try ${attempt + 1}`,
    oneLine(model),
    state === "uncertain" ? `uncertain, counted at ${Usd.format(held)}` : `${state} ${Usd.format(usage.cost)}`,
    `${count(usage.inputTokens)} in, ${count(usage.outputTokens)} out`,
    ...(reason === "" ? [] : [oneLine(reason)]),
    Option.match(requestId, { onNone: () => "no request id", onSome: oneLine })
  ].join(" · ")

const receiptText = (receipt: Receipt.Receipt): string => {
  const { cacheSaved, cap, held, models, orders, prices, released, repaired, retried, runId, settled } = receipt
  const { digest, job, status, storeHits, storeSaved, unknown } = receipt
  return [
    `receipt of run ${runId}, job ${job}: ${status}`,
    `spent      ${Usd.format(settled.cost)} for ${count(settled.calls)} calls${cap === null ? ", no cap" : `, cap ${Usd.format(cap)}`}`,
    `uncertain  ${Usd.format(unknown.cost)} for ${count(unknown.calls)} calls whose end is not known${held > 0 ? `; ${Usd.format(held)} held for calls in flight` : ""}`,
    `released   ${count(released.calls)} calls that were surely not billed`,
    `of these   ${Usd.format(retried.cost)} for ${count(retried.calls)} retries, ${Usd.format(repaired.cost)} for ${count(repaired.calls)} repairs`,
    `saved      ${Usd.format(cacheSaved)} by cached input, about ${Usd.format(storeSaved)} by ${count(storeHits)} rows from the store`,
    ...models.map(modelText),
    ...prices.map(
      ({ calls, cost, price }) => `price      ${oneLine(price)}: ${count(calls)} calls, ${Usd.format(cost)}`
    ),
    ...orders.map((record) => `order      ${orderText(record)}`),
    `digest     ${digest}`
  ].join("\n")
}

const modelText = ({ calls, model, uncertain, usage }: Receipt.ModelBill): string => {
  const cached = usage.cachedTokens > 0 ? ` (${count(usage.cachedTokens)} cached)` : ""
  const unsure = uncertain > 0 ? `, ${Usd.format(uncertain)} uncertain` : ""
  return `model      ${oneLine(model) || "lost with the database"}: ${count(calls)} calls, ${count(usage.inputTokens)} tokens in${cached}, ${count(usage.outputTokens)} out, ${Usd.format(usage.cost)}${unsure}`
}

/**
 * An order, as one line.
 *
 * @since 0.1.0
 */
export const orderText = ({ at, by, order }: OrderRecord): string =>
  `${new Date(at).toISOString()} ${oneLine(by)}: ${whatOf(order)}`

const whatOf = (order: OrderRecord["order"]): string => {
  switch (order._tag) {
    case "Pause":
      return oneLine(order.message)
    case "Set": {
      const { _tag, cap, ...counts } = order
      const parts = Object.entries(counts).map(([name, value]) => `${name} ${value ?? "none"}`)
      if (cap !== undefined) parts.unshift(cap === null ? "no cap" : `cap ${Usd.format(cap)}`)
      return `set ${parts.join(", ")}`
    }
    case "Requeue":
      return `requeued ${count(order.rows.length)} rows`
    default:
      return order._tag.toLowerCase()
  }
}

/** What went wrong in a run. @since 0.1.0 */
export const failuresCommand = Command.make(
  "failures",
  {
    runId: runIdArg,
    db,
    asOf,
    json,
    rows: Options.boolean("rows").pipe(Options.withDescription("Each row on a line of its own, tab-separated"))
  },
  ({ asOf, db, json, rows, runId }) =>
    withDb(
      db,
      false,
      Effect.gen(function* () {
        const id = yield* chosen(runId)
        const options = { asOf: Option.getOrUndefined(asOf) }
        if (rows)
          yield* Stream.runForEach(
            Stream.filterMap(failedRows(id, options), (line) => line),
            Console.log
          )
        else {
          const groups = yield* FailureGroups.groups(id, options)
          yield* Console.log(json ? JSON.stringify(groups, null, 2) : groupsText(groups, id, db))
        }
        return ExitCode.DONE
      })
    )
).pipe(Command.withDescription("What went wrong, by kind: rows, money burnt, and what to do about it"))

const failedRows = (runId: string, options: Report.ResultsOptions) =>
  Stream.map(Report.results(runId, Schema.Unknown, options), ({ id, outcome }) =>
    Option.flatMap(outcome, (end) => failureLine(id, end))
  )

const failureLine = (
  id: string,
  outcome: Option.Option.Value<Report.ReportedRow<unknown>["outcome"]>
): Option.Option<string> =>
  Either.match(outcome, {
    onLeft: ({ category, message, reason, source }) =>
      Option.some(`${oneLine(id)}\t${source}\t${reason}\t${category}\t${oneLine(message)}`),
    onRight: ({ output, partial }) =>
      partial ? Option.some(`${oneLine(id)}\tagent\tpartial\tPERMANENT\t${oneLine(output)}`) : Option.none()
  })

const groupsText = (groups: ReadonlyArray<FailureGroups.Group>, runId: string, db: string): string =>
  groups.length === 0
    ? "no row failed"
    : groups
        .map(({ burnt, category, count: n, kind, message, reason, remedy, rows, source }) =>
          [
            `${count(n)} ${n === 1 ? "row" : "rows"} ${kind} · ${source} ${reason}, ${category} · ${money(burnt)} burnt`,
            `  ${oneLine(message)}`,
            `  rows ${rows.map(oneLine).join(", ")}${n > rows.length ? ", …" : ""}`,
            `  ${remedy.text}: ${remedy.command.replace("<run>", runId)} --db ${db} (${remedy.expectedCost === 0 ? "costs nothing" : `about ${money(remedy.expectedCost)}`})`
          ].join("\n")
        )
        .join("\n")
