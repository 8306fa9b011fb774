/**
 * A run's rows and its source, compared: the rows were listed once, when the run began, and the source may have changed since.
 *
 * @since 0.1.0
 */
import { Chunk, Clock, Effect, Either, Stream } from "effect"
import type { Book, Changes, Ended, Limits, RowRecord } from "../services/Book.ts"
import { InputError, RunRefused, type StorageError } from "../services/Errors.ts"
import { Journal, type JournalShape, type RowResult } from "../services/Journal.ts"
import * as Pages from "../services/Pages.ts"
import type { Job } from "./Job.ts"
import * as Manifest from "./Manifest.ts"
import * as Report from "./Report.ts"
import * as RowLoop from "./RowLoop.ts"
import * as RunRecord from "./RunRecord.ts"

/**
 * What changed in the source, as ids in its order. `changed`: rows that ended and would be asked differently now; `updated`: rows whose new content asks the same, or that are still
 * pending. `removed`: rows that are gone and were never asked; `kept`: rows that are gone and have a result, which stays; `unended`: rows that are gone, were asked before and
 * have not ended, which are asked all the same. `moved`: rows that stand in another order; the run keeps its own.
 *
 * @since 0.1.0
 */
export interface Difference {
  readonly added: ReadonlyArray<string>
  readonly changed: ReadonlyArray<string>
  readonly updated: ReadonlyArray<string>
  readonly removed: ReadonlyArray<string>
  readonly kept: ReadonlyArray<string>
  readonly unended: ReadonlyArray<string>
  readonly moved: number
  readonly same: number
}

/**
 * Compares a run with its job's source; with `apply` the run follows it: new rows are added at its end, changed ones are pending again in a new epoch, rows that are
 * gone and were never asked are dropped. Nothing is sent; a resume does the work. A row of the source that does not fit, or an id that comes twice, refuses the whole.
 *
 * @since 0.1.0
 */
export const refresh = <Row, A, I>(
  job: Job<Row, A, I>,
  options: { readonly runId: string; readonly apply: boolean }
): Effect.Effect<Difference, InputError | RunRefused | StorageError, Journal> =>
  Effect.scoped(
    Effect.gen(function* () {
      const { apply, runId } = options
      const journal = yield* Journal
      const book = yield* Report.bookOf(runId)
      if (book.job !== job.name) return yield* wrongJob(book, job.name)
      if (book.status === "loading") return yield* notLoaded(runId)
      if (RunRecord.isText(book) !== job.source.text) return yield* otherKind(job.source.location)
      if (!apply) return (yield* compare(journal, job, book)).difference
      const fresh = { ...book, job: job.name }
      const limits: Limits = {}
      const { fence } = yield* RunRecord.open(journal, { fresh, limits })
      while (true) {
        const { orders: heard } = yield* Report.bookOf(runId)
        const { changes, difference } = yield* compare(journal, job, book)
        const verdict = yield* journal.commit({ _tag: "Refresh", fence, changes, heard })
        yield* Manifest.written(Effect.succeed(verdict), fence)
        // Refused: rows may have been queued again since they were compared.
        if (verdict._tag !== "Refused") return difference
      }
    })
  )

const wrongJob = ({ job, runId }: Book, name: string) =>
  new RunRefused({ reason: "wrong_job", message: `run ${runId} belongs to job ${job}, not to ${name}` })

/** Text cells and JSON values of one row are not equal. */
const otherKind = (location: string) =>
  new InputError({
    reason: "bad_option",
    file: location,
    message: `${location} is another kind of source than the one that the run's rows came from`,
    fix: "give the source in the same format"
  })

const notLoaded = (runId: string) =>
  new RunRefused({ reason: "not_found", message: `run ${runId} has not read its rows yet: resume it first` })

interface Compared {
  readonly difference: Difference
  readonly changes: Changes
}

const compare = <Row, A, I>(journal: JournalShape, job: Job<Row, A, I>, book: Book) =>
  Effect.gen(function* () {
    const before = yield* manifestOf(journal, book.runId)
    let last = -1
    for (const { row } of before.values()) last = Math.max(last, row.seq)
    const source = yield* sourceRows(job, book.runId)
    const now = new Set(source.map(({ id }) => id))
    const added: Array<RowRecord> = []
    const touched: Array<Touched> = []
    let place = -1
    let moved = 0
    for (const row of source) {
      const known = before.get(row.id)
      if (known === undefined) {
        added.push({ ...row, seq: last + 1 + added.length })
        continue
      }
      if (known.row.seq < place) moved++
      place = Math.max(place, known.row.seq)
      if (known.row.value === row.value && known.row.version === row.version) continue
      touched.push(yield* touch(job, book, known, row))
    }
    const gone = [...before.values()].filter(({ row }) => !now.has(row.id))
    const dropped = gone.filter(({ outcome }) => outcome === undefined).map(({ row }) => row)
    const asked = new Set((yield* journal.reads.openCalls(book.runId)).map(({ seq }) => seq))
    const removed = dropped.filter(({ seq }) => !asked.has(seq))
    const removedIds = new Set(removed.map(({ id }) => id))
    const again = touched.flatMap(({ again }) => again)
    const rerun = new Set(again.map(({ seq }) => seq))
    const hasEnded = ({ outcome, row }: RowResult) => outcome !== undefined && outcome.epoch === row.epoch
    const idsOf = (rows: ReadonlyArray<RowRecord>) => rows.map(({ id }) => id)
    const rows = touched.map(({ row }) => row)
    const compared: Compared = {
      changes: { added, changed: rows, again, removed, source: yield* RunRecord.sourceText(job.source) },
      difference: {
        added: idsOf(added),
        changed: idsOf(rows.filter(({ seq }) => rerun.has(seq))),
        updated: idsOf(rows.filter(({ seq }) => !rerun.has(seq))),
        removed: idsOf(removed),
        kept: idsOf(gone.filter(hasEnded).map(({ row }) => row)),
        unended: idsOf(gone.filter((one) => !hasEnded(one)).map(({ row }) => row)).filter((id) => !removedIds.has(id)),
        moved,
        same: source.length - added.length - touched.length
      }
    }
    return compared
  })

interface Touched {
  /** With its new content, in its new epoch if it is to be run again. */
  readonly row: RowRecord
  /** How it ended, if it is to be run again. */
  readonly again: ReadonlyArray<Ended>
}

/** A row with a new content is run again only if it ended and would be asked differently now: a column that the prompt does not show changes nothing. */
const touch = <Row, A, I>(job: Job<Row, A, I>, book: Book, { outcome, row }: RowResult, now: RowRecord) =>
  Effect.gen(function* () {
    const same: RowRecord = { ...now, seq: row.seq, epoch: row.epoch }
    const untouched: Touched = { row: same, again: [] }
    if (outcome === undefined || outcome.epoch !== row.epoch) return untouched
    // Old and new content under the same job: what changed in the job itself is drift, and the operator's choice at the resume.
    const text = RunRecord.isText(book)
    const [was, asked] = [yield* RowLoop.prepare(job, row, text), yield* RowLoop.prepare(job, same, text)]
    if (Either.isRight(was) && Either.isRight(asked) && was.right.key === asked.right.key) return untouched
    const touched: Touched = { row: { ...same, epoch: row.epoch + 1 }, again: [outcome] }
    return touched
  })

const PAGE = 500

const manifestOf = ({ reads }: JournalShape, runId: string) =>
  Stream.runFold(Pages.results(reads, runId, { size: PAGE }), new Map<string, RowResult>(), (rows, page) => {
    for (const one of page) rows.set(one.row.id, one)
    return rows
  })

const sourceRows = <Row, A, I>(job: Job<Row, A, I>, runId: string) =>
  Effect.gen(function* () {
    const now = new Date(yield* Clock.currentTimeMillis)
    const pages = Manifest.pages(job, runId, now)
    return Chunk.toReadonlyArray(yield* Stream.runCollect(pages)).flatMap(({ rows }) => rows)
  })
