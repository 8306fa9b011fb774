/**
 * What is kept of a run outside its database, so that a database which lost its last commits (a deleted or damaged write-ahead log, an old copy put back) is not taken for the
 * truth: quantities that only ever grow, and what the run had counted.
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import type { Book } from "./Book.ts"
import { Usd } from "./Usd.ts"

/** `calls`: the highest number of a closed call of `worker`. `counted` is spent + uncertain + held when it was written, in nano-dollars. @since 0.1.0 */
export const Anchor = Schema.Struct({
  runId: Schema.String,
  worker: Schema.Int,
  calls: Schema.optionalWith(Schema.Int, { default: () => 0 }),
  commitSeq: Schema.Int,
  spent: Usd,
  counted: Usd
})
/** @since 0.1.0 */
export type Anchor = typeof Anchor.Type

/**
 * The anchor of a book. `worker`: the latest one, `calls`: the highest number of its closed calls.
 *
 * @since 0.1.0
 */
export const of = ({ commitSeq, held, runId, spent, uncertain }: Book, worker: number, calls: number): Anchor => ({
  runId,
  worker,
  calls,
  commitSeq,
  spent,
  counted: Usd.nano(spent + uncertain + held)
})

/** What a database has lost. `missing`: money that it does not count any more. @since 0.1.0 */
export interface Regression {
  readonly message: string
  readonly missing: Usd
}

/** What a database has of a run's workers: the highest, and the highest number of a closed call of the anchor's. @since 0.1.0 */
export interface Reach {
  readonly worker: number
  readonly calls: number
}

/**
 * What a run's book lacks of what its anchor says; `undefined`: nothing.
 *
 * @since 0.1.0
 */
export const regression = (anchor: Anchor, book: Book | undefined, reach: Reach): Regression | undefined => {
  // A run that was given up before it counted anything has nothing to lose.
  if (book === undefined && anchor.commitSeq === 0 && anchor.counted === 0) return undefined
  const { commitSeq = 0, spent = Usd.zero, uncertain = Usd.zero, held = Usd.zero } = book ?? {}
  const isWhole = reach.worker >= anchor.worker && reach.calls >= anchor.calls
  if (isWhole && commitSeq >= anchor.commitSeq && spent >= anchor.spent) return undefined
  const rows = Math.max(0, anchor.commitSeq - commitSeq)
  const missing = Usd.nano(Math.max(0, anchor.counted - spent - uncertain - held))
  return {
    message: `the database lost commits of run ${anchor.runId}: ${rows} results and ${Usd.format(missing)} are missing`,
    missing
  }
}
