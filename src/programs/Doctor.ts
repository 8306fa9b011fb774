/**
 * The self-check: whether what the promises rest on is so, here and now. Reads only.
 *
 * @since 0.1.0
 */
import { Effect, Either, Stream } from "effect"
import type { Book } from "../services/Book.ts"
import type { StorageError } from "../services/Errors.ts"
import { type Finding, failed, fine, warning } from "../services/Finding.ts"
import { Journal, type JournalShape } from "../services/Journal.ts"
import * as Pages from "../services/Pages.ts"
import * as Price from "../services/Price.ts"
import * as Report from "./Report.ts"
import * as Soundness from "./Soundness.ts"

/**
 * Looks at the database and every run in it: pages, the book against its records, each stored text against its checksum, the anchor.
 *
 * @since 0.1.0
 */
export const database: Effect.Effect<ReadonlyArray<Finding>, never, Journal> = Effect.gen(function* () {
  const journal = yield* Journal
  const pages = yield* found("pages", journal.check, "the database's own check passed")
  const books = yield* Effect.either(journal.reads.books)
  if (Either.isLeft(books)) return [pages, failed("runs", books.left.message)]
  const runs = yield* Effect.forEach(books.right, (book) => runFinding(journal, book))
  return [pages, ...runs]
})

const found = (name: string, check: Effect.Effect<void, StorageError>, detail: string): Effect.Effect<Finding> =>
  Effect.match(check, { onFailure: (error) => failed(name, error.message), onSuccess: () => fine(name, detail) })

const runFinding = (journal: JournalShape, { runId }: Book): Effect.Effect<Finding> =>
  Effect.gen(function* () {
    const audit = yield* journal.reads.audit(runId)
    if (audit === undefined) return fine(`run ${runId}`, "it was given up just now")
    const { book } = audit
    const shared = book.pool === null ? [] : yield* Soundness.poolDifferences(journal, book.pool)
    const lines = [...Soundness.differences(audit), ...shared]
    const lost = yield* Soundness.regression(journal, runId, book)
    if (lost !== undefined) lines.push(lost.message)
    const rows = yield* readAll(journal, book.runId)
    const { status } = Report.totals(book)
    const name = `run ${book.runId}`
    return lines.length > 0
      ? failed(name, lines.join("; "))
      : fine(name, `${status}, ${rows} rows, the book is the sum of its records`)
  }).pipe(Effect.catchAll((error) => Effect.succeed(failed(`run ${runId}`, error.message))))

/** Reads every row, result and call once, which compares each with its checksum; gives the number of rows. */
const readAll = ({ reads }: JournalShape, runId: string) =>
  Effect.zipLeft(
    Stream.runFold(Pages.results(reads, runId, { size: PAGE }), 0, (rows, page) => rows + page.length),
    Stream.runDrain(Pages.calls(reads, runId))
  )

const PAGE = 500

/**
 * How old the price table is, by its newest row and the day on which it was read.
 *
 * @since 0.1.0
 */
export const prices = (now: number): Finding => {
  const days = Math.floor((now - Date.parse(Price.readOn)) / 86_400_000)
  const detail = `the built-in prices are those of ${Price.readOn}, ${days} days ago`
  if (days < 0)
    return failed("clock", `it is ${new Date(now).toISOString()}, before the price table was made: set the clock`)
  return days > 120
    ? warning("prices", `${detail}: compare them with your provider's, or give your own`)
    : fine("prices", detail)
}
