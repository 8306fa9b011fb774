/**
 * The fixed list of a run's rows: read once from the source, all or nothing.
 *
 * @since 0.1.0
 */
import { Chunk, Clock, Effect, Either, Stream } from "effect"
import type { Fence, RowRecord } from "../services/Book.ts"
import { InputError, RunRefused, type StorageError } from "../services/Errors.ts"
import type { JournalShape } from "../services/Journal.ts"
import type { RowSource, SourceRow } from "../services/RowSource.ts"
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
      const lost = lossOf(job.source, value)
      if (lost !== undefined) return yield* misfit(job.source.location, line, lost, "JSON cannot hold this value")
      const kept = JSON.stringify(value)
      const row = job.decode(isPlain(job.source) ? value : JSON.parse(kept), job.source.text)
      if (Either.isLeft(row)) return yield* misfit(job.source.location, line, row.left.field, row.left.message)
      const identified = yield* Effect.try({
        try: () => job.identify(row.right, now),
        catch: (error) => misfit(job.source.location, line, "id", String(error))
      })
      if (!identified.kept) continue
      const { id, version } = identified
      if (half.test(id + version)) {
        return yield* misfit(job.source.location, line, "id", "a text cut within a character cannot name a row")
      }
      const first = lines.get(id)
      if (first !== undefined) return yield* duplicate(job.source.location, id, first, line)
      lines.set(id, line)
      rows.push({ runId, seq: seq + rows.length, id, version, line, value: kept, epoch: 0 })
    }
    return rows
  })

/** Half of a surrogate pair: a database gives it back as something else, and the row would never be found again. */
const half = /\p{Surrogate}/u

/** Files hold text or JSON, so what is read of them is what the manifest keeps. */
const isPlain = ({ kind }: RowSource): boolean => kind === "csv" || kind === "jsonl"

/** Where a record holds what JSON drops or empties without a word, such as a Map or a NaN. What has a JSON form of its own, as a Date, is kept as that. */
const lossOf = (source: RowSource, value: unknown): string | undefined =>
  isPlain(source) ? undefined : lossIn(value, [])?.join(".")

const lossIn = (value: unknown, path: ReadonlyArray<string>): ReadonlyArray<string> | undefined => {
  if (value === null || typeof value !== "object") {
    const isLost = typeof value === "number" ? !Number.isFinite(value) : unwritable.has(typeof value)
    return isLost ? path : undefined
  }
  if (value instanceof Map || value instanceof Set || (value instanceof Date && Number.isNaN(value.getTime()))) {
    return path
  }
  if ("toJSON" in value && typeof value.toJSON === "function") return undefined
  for (const [name, part] of Object.entries(value)) {
    const lost = lossIn(part, [...path, name])
    if (lost !== undefined) return lost
  }
  return undefined
}

const unwritable: ReadonlySet<string> = new Set(["bigint", "function", "symbol"])

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
    message: `${file}: id ${JSON.stringify(id)} stands on line ${first} and again on line ${line}`,
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
