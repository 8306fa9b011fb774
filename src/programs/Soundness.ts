/**
 * Whether a run's records can be trusted: asked before a run goes on, as going on with a damaged or older database would pay again for what was paid.
 *
 * @since 0.1.0
 */
import { Effect } from "effect"
import * as Anchor from "../services/Anchor.ts"
import type { Book } from "../services/Book.ts"
import { StorageError } from "../services/Errors.ts"
import type { Audit, Backend } from "../services/Journal.ts"
import { Usd } from "../services/Usd.ts"

/**
 * Fails where the database is damaged, where the book is not the sum of its records, or where commits are missing; with `acceptLoss` the last is no error, and the money that
 * the database does not count any more is given.
 *
 * @since 0.1.0
 */
export const verify = (
  backend: Backend,
  runId: string,
  book: Book | undefined,
  acceptLoss: boolean
): Effect.Effect<Usd, StorageError> =>
  Effect.gen(function* () {
    if (book !== undefined) {
      yield* backend.check
      const audit = yield* backend.reads.audit(runId)
      const [difference] = audit === undefined ? [] : differences(audit)
      if (difference !== undefined) return yield* unequal(backend.location, difference)
      const [shared] = book.pool === null ? [] : yield* poolDifferences(backend, book.pool)
      if (shared !== undefined) return yield* unequal(backend.location, shared)
    }
    const lost = yield* regression(backend, runId, book)
    if (lost === undefined) return Usd.zero
    return acceptLoss ? lost.missing : yield* regressed(backend.location, lost)
  })

/**
 * What a run lacks of what is known of it from outside its database.
 *
 * @since 0.1.0
 */
export const regression = (
  backend: Backend,
  runId: string,
  book: Book | undefined
): Effect.Effect<Anchor.Regression | undefined, StorageError> =>
  Effect.gen(function* () {
    const anchor = yield* backend.anchor(runId)
    if (anchor === undefined) return undefined
    const workers = yield* backend.reads.workers(runId)
    const calls = yield* backend.reads.lastCall(anchor)
    return Anchor.regression(anchor, book, { calls, worker: Math.max(0, ...workers.map(({ worker }) => worker)) })
  })

/**
 * Where a book is not the sum of its records, a line each.
 *
 * @since 0.1.0
 */
export const differences = ({ book, sums }: Audit): ReadonlyArray<string> => {
  const pairs: ReadonlyArray<Pair> = [
    ...moneyOf(book, sums),
    ["rows", book.rows, sums.rows],
    ["rows that have ended", book.done + book.partial + book.failed, sums.ended]
  ]
  return unequalOf(pairs).map(
    ([what, said, found]) => `run ${book.runId} says ${said} ${what}, its records say ${found}`
  )
}

/**
 * Where a pool is not the sum of its runs, a line each.
 *
 * @since 0.1.0
 */
export const poolDifferences = (backend: Backend, id: string): Effect.Effect<ReadonlyArray<string>, StorageError> =>
  Effect.map(backend.reads.pool(id), (audit) =>
    audit === undefined
      ? [`there is no pool ${id}, and runs are in it`]
      : unequalOf(moneyOf(audit.pool, audit.sums)).map(
          ([what, said, found]) => `pool ${id} says ${said} ${what}, its runs say ${found}`
        )
  )

type Pair = readonly [what: string, said: number, found: number]
type Money = Readonly<Record<"spent" | "uncertain" | "held", number>>
const moneyOf = (said: Money, found: Money): ReadonlyArray<Pair> => [
  ["nano-dollars spent", said.spent, found.spent],
  ["nano-dollars uncertain", said.uncertain, found.uncertain],
  ["nano-dollars held", said.held, found.held]
]
const unequalOf = (pairs: ReadonlyArray<Pair>) => pairs.filter(([, said, found]) => said !== found)

const unequal = (location: string, difference: string) =>
  new StorageError({
    reason: "corrupt",
    path: location,
    message: `${location} is damaged: ${difference}; put its last copy back, or see longhaul doctor --db ${location}`
  })

const regressed = (location: string, { message }: Anchor.Regression) =>
  new StorageError({
    reason: "regressed",
    path: location,
    message: `${message}. Was ${location}-wal deleted, or an older copy put back? Put the newest files back, or go on and count the money as uncertain: --accept-loss (acceptLoss: true)`
  })
