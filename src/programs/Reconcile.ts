/**
 * Turns uncertain charges into exact ones: by the operator's figures from the provider's own records, or by asking the provider. Each change is a record of its own beside the
 * call, which stays as it was; the bill can be audited.
 *
 * @example
 * import { Effect } from "effect"
 * import { Reconcile, Usd } from "longhaul"
 * const program = Effect.gen(function* () {
 *   const [call] = yield* Reconcile.uncertain("enrich-2026-07-03-abc")
 *   if (call === undefined) return
 *   yield* Reconcile.reconcile("enrich-2026-07-03-abc", [{ call: call.call, cost: Usd.fromDollars(0.0021) }])
 * })
 *
 * @since 0.1.0
 */
import { Clock, Effect, Either, Option, Schema } from "effect"
import type { CallRecord, CorrectionRecord } from "../services/Book.ts"
import { InputError, type RunRefused, type StorageError } from "../services/Errors.ts"
import { Journal } from "../services/Journal.ts"
import { noTokens, type TokenUsage } from "../services/LLM.ts"
import * as Price from "../services/Price.ts"
import { Usd } from "../services/Usd.ts"
import * as Report from "./Report.ts"

/**
 * A call whose end is unknown. `call` names it within its run, `counted` is what it counts at, `at` when it was sent, in milliseconds since 1970. `seq`: the row's place in the run, -1
 * for money of which a damaged database lost the record.
 *
 * @since 0.1.0
 */
export interface UncertainCall {
  readonly call: string
  readonly seq: number
  readonly model: string
  readonly at: number
  readonly counted: Usd
  readonly reason: string
  readonly requestId: Option.Option<string>
}

/**
 * What an uncertain call cost in truth, found by the name of the call or by the provider's request id. `cost` in nano-dollars; without it the tokens are priced as the call was, at its dearest tier.
 *
 * @since 0.1.0
 */
export interface Finding {
  readonly call?: string | undefined
  readonly requestId?: string | undefined
  readonly cost?: Usd | undefined
  readonly usage?: TokenUsage | undefined
  readonly note?: string | undefined
}

/** How many calls became exact, and by how much the run counts less, in nano-dollars. @since 0.1.0 */
export interface Reconciled {
  readonly calls: number
  readonly released: number
}

/**
 * The uncertain calls of a run, in the order in which they were sent.
 *
 * @since 0.1.0
 */
export const uncertain = (
  runId: string
): Effect.Effect<ReadonlyArray<UncertainCall>, RunRefused | StorageError, Journal> =>
  Effect.zipRight(
    Report.bookOf(runId),
    Effect.flatMap(Journal, (journal) =>
      Effect.map(journal.reads.uncertain(runId), (calls) => calls.map(viewOf).sort((a, b) => a.at - b.at))
    )
  )

const viewOf = (call: CallRecord): UncertainCall => ({
  call: nameOf(call),
  seq: call.seq,
  model: call.model,
  at: call.at,
  counted: call.cost,
  reason: call.reason,
  requestId: Option.fromNullable(call.requestId)
})

const nameOf = ({ n, worker }: CallRecord): string => `${worker}-${n}`

/**
 * Records what was found out. All findings are checked before any is written: each must name one call that is uncertain. A cost above what the call counts at is the truth
 * and is recorded, though the run may pass its cap by it. May be done while the run goes on; the process that works on it counts the old charge until its end.
 *
 * @since 0.1.0
 */
export const reconcile = (
  runId: string,
  findings: ReadonlyArray<Finding>,
  source: Exclude<CorrectionRecord["source"], "late"> = "report"
): Effect.Effect<Reconciled, InputError | RunRefused | StorageError, Journal> =>
  Effect.gen(function* () {
    yield* Report.bookOf(runId)
    const journal = yield* Journal
    const calls = yield* journal.reads.uncertain(runId)
    const at = yield* Clock.currentTimeMillis
    const corrections = yield* Effect.forEach(findings, (finding) => correctionOf(calls, finding, source, at))
    yield* unique(corrections)
    let reconciled: Reconciled = { calls: 0, released: 0 }
    // In one turn, so that they stand in one commit.
    for (const { correction, counted } of corrections) {
      journal.append({ _tag: "Correct", correction }, (verdict) => {
        // Somebody else was faster: the charge is exact already.
        if (verdict._tag !== "Ok") return
        reconciled = { calls: reconciled.calls + 1, released: reconciled.released + counted - correction.cost }
      })
    }
    yield* journal.flush
    return reconciled
  })

/**
 * Asks for each uncertain call what the provider knows of it; what it does not know stays uncertain.
 *
 * @since 0.1.0
 */
export const lookUp = <E, R>(
  runId: string,
  ask: (call: UncertainCall) => Effect.Effect<Option.Option<Omit<Finding, "call" | "requestId">>, E, R>
): Effect.Effect<Reconciled, E | InputError | RunRefused | StorageError, R | Journal> =>
  Effect.gen(function* () {
    const findings: Array<Finding> = []
    for (const call of yield* uncertain(runId)) {
      const found = yield* ask(call)
      if (Option.isSome(found)) findings.push({ ...found.value, call: call.call })
    }
    return yield* reconcile(runId, findings, "lookup")
  })

interface Checked {
  readonly correction: CorrectionRecord
  readonly counted: Usd
}

const correctionOf = (
  calls: ReadonlyArray<CallRecord>,
  finding: Finding,
  source: CorrectionRecord["source"],
  at: number
): Either.Either<Checked, InputError> =>
  Either.gen(function* () {
    const call = yield* callOf(calls, finding)
    const cost = yield* costOf(call, finding)
    const { n, runId, worker } = call
    const tokens = finding.usage ?? noTokens
    const note = finding.note ?? ""
    return { correction: { runId, worker, n, source, note, at, answer: null, ...tokens, cost }, counted: call.cost }
  })

const callOf = (
  calls: ReadonlyArray<CallRecord>,
  { call, requestId }: Finding
): Either.Either<CallRecord, InputError> => {
  const found = calls.filter((one) => (call !== undefined ? nameOf(one) === call : one.requestId === requestId))
  const [only] = found
  if (only !== undefined && found.length === 1) return Either.right(only)
  const name = call === undefined ? `request id ${JSON.stringify(requestId ?? "")}` : `call ${JSON.stringify(call)}`
  return Either.left(
    bad(found.length === 0 ? `${name} is not an uncertain call of this run` : `${name} names ${found.length} calls`)
  )
}

const costOf = (call: CallRecord, { cost, usage }: Finding): Either.Either<Usd, InputError> => {
  if (cost !== undefined) return Either.right(cost)
  if (usage === undefined) return Either.left(bad(`call ${nameOf(call)}: neither a cost nor tokens are given`))
  if (!Price.isSound(usage)) {
    return Either.left(
      bad(`call ${nameOf(call)}: these tokens cannot be right: whole numbers, the cached ones a part of the input`)
    )
  }
  return Either.mapBoth(Schema.decodeEither(Price.PriceRowJson)(call.price), {
    onLeft: () => bad(`call ${nameOf(call)} has no price: give its cost`),
    onRight: (price) => dearest(price, usage)
  })
}

/** The tier that served it is not known: the dearest one, as its hold was. */
const dearest = (price: Price.PriceRow, usage: TokenUsage): Usd => {
  const tiers = [undefined, ...Object.keys(price.tiers ?? {})]
  return Usd.nano(Math.max(...tiers.map((tier) => Price.cost(price, usage, tier))))
}

const unique = (corrections: ReadonlyArray<Checked>): Effect.Effect<void, InputError> => {
  const seen = new Set<string>()
  for (const { correction } of corrections) {
    const name = `${correction.worker}-${correction.n}`
    if (seen.has(name)) return bad(`call ${name} is named twice`)
    seen.add(name)
  }
  return Effect.void
}

const bad = (message: string) =>
  new InputError({
    reason: "bad_row",
    message,
    fix: "longhaul reconcile <runId> lists the uncertain calls with their names"
  })
