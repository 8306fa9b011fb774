/**
 * The fixed list of a run's rows: read once from the source, all or nothing.
 *
 * @since 0.1.0
 */
import { Chunk, Clock, Effect, Either, Stream } from "effect"
import type { Fence, RowRecord } from "../services/Book.ts"
import { InputError, RunRefused, type StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"
import type { SourceRow } from "../services/RowSource.ts"
import type { Job } from "./Job.ts"

/** Rows a commit. */
const PAGE = 500

/**
 * Reads the job's source into the run's manifest. A row that does not fit the job's schema, or an id that comes twice, refuses the whole source and leaves no run
 * behind. A load that was cut short by a crash begins anew.
 *
 * @since 0.1.0
 */
export const load = <Row, A, I>(
  journal: JournalShape,
  fence: Fence,
  job: Job<Row, A, I>
): Effect.Effect<void, InputError | RunRefused | StorageError> =>
  Effect.gen(function* () {
    yield* written(journal.commit({ _tag: "Unload", fence, discard: false }), fence)
    const now = new Date(yield* Clock.currentTimeMillis)
    yield* Stream.runForEach(pages(job, fence.runId, now), ({ filtered, rows }) =>
      written(journal.commit({ _tag: "Load", fence, rows, filtered, last: false }), fence)
    )
    yield* written(journal.commit({ _tag: "Load", fence, rows: [], filtered: 0, last: true }), fence)
  }).pipe(
    Effect.tapErrorTag("InputError", () => Effect.ignore(journal.commit({ _tag: "Unload", fence, discard: true })))
  )

/** Rows of a source that fit, and how many of the page the job's `where` left out. @since 0.1.0 */
export interface Page {
  readonly rows: ReadonlyArray<RowRecord>
  readonly filtered: number
}

/**
 * A job's source, page by page, as rows of a manifest.
 *
 * @since 0.1.0
 */
export const pages = <Row, A, I>(job: Job<Row, A, I>, runId: string, now: Date): Stream.Stream<Page, InputError> =>
  Stream.suspend(() => {
    const lines = new Map<string, number>()
    let seq = 0
    return Stream.mapEffect(Stream.chunks(Stream.rechunk(job.source.rows, PAGE)), (page) =>
      Effect.map(pageOf(job, runId, Chunk.toReadonlyArray(page), seq, now, lines), (rows): Page => {
        seq += rows.length
        return { rows, filtered: page.length - rows.length }
      })
    )
  })

const pageOf = <Row, A, I>(
  job: Job<Row, A, I>,
  runId: string,
  page: ReadonlyArray<SourceRow>,
  seq: number,
  now: Date,
  lines: Map<string, number>
): Effect.Effect<Array<RowRecord>, InputError> =>
  Effect.gen(function* () {
    const rows: Array<RowRecord> = []
    for (const { line, value } of page) {
      const row = job.decode(value, job.source.text)
      if (Either.isLeft(row)) return yield* misfit(job.source.location, line, row.left.field, row.left.message)
      const identified = yield* Effect.try({
        try: () => job.identify(row.right, now),
        catch: (error) => misfit(job.source.location, line, "id", String(error))
      })
      if (!identified.kept) continue
      const { id, version } = identified
      const first = lines.get(id)
      if (first !== undefined) return yield* duplicate(job.source.location, id, first, line)
      lines.set(id, line)
      rows.push({ runId, seq: seq + rows.length, id, version, line, value: JSON.stringify(value), epoch: 0 })
    }
    return rows
  })

const misfit = (file: string, line: number, field: string, problem: string) =>
  new InputError({
    reason: "bad_row",
    file,
    line,
    field,
    message: `${file}, line ${line}, field "${field}": ${problem}`,
    fix: "mend the row, or the job's row schema"
  })

const duplicate = (file: string, id: string, first: number, line: number) =>
  new InputError({
    reason: "duplicate_id",
    file,
    line,
    field: "id",
    message: `${file}: id "${id}" stands on line ${first} and again on line ${line}`,
    fix: "remove one of the two, or give the job an id that is unique"
  })

/** A write that must not have been fenced off. @since 0.1.0 */
export const written = <E>(
  commit: Effect.Effect<{ readonly _tag: string }, E>,
  fence: Fence
): Effect.Effect<void, E | RunRefused> =>
  Effect.flatMap(commit, (verdict) =>
    verdict._tag === "Fenced"
      ? new RunRefused({ reason: "busy", message: `another process took run ${fence.runId} over` })
      : Effect.void
  )
