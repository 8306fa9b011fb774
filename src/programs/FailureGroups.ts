/**
 * The rows of a run that did not come out, by what went wrong: how many, what they cost, and what can be done about it at which price.
 *
 * @example
 * import { Effect } from "effect"
 * import { FailureGroups, Memory } from "longhaul"
 * const worst = FailureGroups.groups("vendors-2026-07-03-abc").pipe(
 *   Effect.map(([first]) => first?.remedy.text),
 *   Effect.provide(Memory.layer) // Sqlite.layer({ filename: "vendors.db" })
 * )
 *
 * @since 0.1.0
 */
import { Effect, Schema, Stream } from "effect"
import { type Category, type RunRefused, StorageError } from "../services/Errors.ts"
import * as Failure from "../services/Failure.ts"
import { Journal } from "../services/Journal.ts"
import { AgentResult } from "../services/Outcome.ts"
import * as Pages from "../services/Pages.ts"
import { Usd } from "../services/Usd.ts"
import * as Report from "./Report.ts"

/** What may be done, and what it costs by what a row cost so far, in nano-dollars. `command` takes the run's id. @since 0.1.0 */
export interface Remedy {
  readonly text: string
  readonly command: string
  readonly expectedCost: Usd
}

/**
 * Rows that failed for one reason with one kind of message: numbers and quoted parts aside. `burnt`: what their last pass cost, in nano-dollars, uncertain calls included. `rows`: the ids of the first five.
 *
 * @since 0.1.0
 */
export interface Group {
  readonly kind: "failed" | "partial"
  readonly source: string
  readonly reason: string
  readonly category: Category
  readonly message: string
  readonly count: number
  readonly burnt: Usd
  readonly rows: ReadonlyArray<string>
  readonly remedy: Remedy
}

/**
 * The groups, the largest first.
 *
 * @since 0.1.0
 */
export const groups = (
  runId: string,
  options: Report.ResultsOptions = {}
): Effect.Effect<ReadonlyArray<Group>, RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    const { reads } = yield* Journal
    const { done, failed, partial, spent } = yield* Report.status(runId)
    const found = new Map<string, Draft>()
    const bySeq = new Map<number, { readonly epoch: number; readonly draft: Draft }>()
    yield* Stream.runForEach(Report.ends(runId, options), ({ outcome, row }) =>
      Effect.gen(function* () {
        if (outcome === undefined || outcome.kind === "done") return
        const ended = yield* Effect.mapError(decode(outcome.value), (cause) => unreadable(row.id, cause))
        const what = whatOf(ended)
        const key = JSON.stringify([outcome.kind, what.source, what.reason, what.category, pattern(what.message)])
        const draft = found.get(key) ?? { ...what, kind: outcome.kind, count: 0, burnt: 0, rows: [] }
        found.set(key, draft)
        draft.count++
        if (draft.rows.length < SHOWN) draft.rows.push(row.id)
        bySeq.set(row.seq, { epoch: outcome.epoch, draft })
      })
    )
    yield* Stream.runForEach(Pages.calls(reads, runId), (page) =>
      Effect.sync(() => {
        for (const { cost, epoch, seq } of page) {
          const one = bySeq.get(seq)
          if (one?.epoch === epoch) one.draft.burnt += cost
        }
      })
    )
    const mean = spent / Math.max(1, done + partial + failed)
    return [...found.values()]
      .sort((a, b) => b.count - a.count || b.burnt - a.burnt)
      .map(({ burnt, ...draft }) => ({ ...draft, burnt: Usd.nano(burnt), remedy: remedyOf(draft, mean * draft.count) }))
  })

const SHOWN = 5

type What = Pick<Group, "source" | "reason" | "category" | "message">

interface Draft extends What {
  readonly kind: Group["kind"]
  count: number
  burnt: number
  readonly rows: Array<string>
}

const decode = Schema.decode(Schema.parseJson(Schema.Union(Failure.Failure, AgentResult(Schema.Unknown))))

const whatOf = (ended: Schema.Schema.Type<typeof Failure.Failure> | AgentResult<unknown>): What =>
  Failure.is(ended)
    ? ended
    : { source: "agent", reason: "partial", category: "PERMANENT", message: "the answer could not be read" }

/** Messages of one kind differ in their numbers and in what they quote. */
const pattern = (message: string): string =>
  message.replace(/"[^"]*"|'[^']*'|`[^`]*`/g, "…").replace(/\b[0-9a-f]{8,}\b|\d+/gi, "#")

const unreadable = (id: string, cause: unknown) =>
  new StorageError({ reason: "corrupt", message: `the outcome of row ${id} cannot be read`, cause })

const again = "longhaul requeue <run> --failed"

const remedyOf = ({ category, kind, reason }: Omit<Draft, "burnt">, cost: number): Remedy => {
  const expectedCost = Usd.nano(Math.ceil(cost))
  if (kind === "partial") {
    return {
      text: "mend the schema or the parser and read the paid answers again, for nothing; or ask again",
      command: "longhaul resume <run> --reread",
      expectedCost: Usd.zero
    }
  }
  switch (reason) {
    case "truncated":
      return { text: "raise maxOutputTokens, then ask again", command: again, expectedCost }
    case "context_length":
      return {
        text: "shorten the prompt or take a model with a larger window, then ask again",
        command: again,
        expectedCost
      }
    case "refusal":
    case "content_filter":
      return {
        text: "say in the prompt why it is asked, or leave these rows as they are",
        command: again,
        expectedCost
      }
    case "bad_row":
      return {
        text: "mend these rows in the source, then take them over",
        command: "longhaul refresh <run> --apply",
        expectedCost
      }
    case "bad_request":
      return {
        text: "read what the provider says is wrong, mend the job, then ask again",
        command: again,
        expectedCost
      }
    default:
      return category === "PERMANENT"
        ? { text: "find out why before they are asked again", command: again, expectedCost }
        : { text: "it may pass: ask again", command: "longhaul resume <run>", expectedCost }
  }
}
