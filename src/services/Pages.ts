/**
 * What a journal holds of a run, read a page at a time: a run may have more than fits in memory. Internal.
 *
 * @since 0.1.0
 */
import { Effect, Option, Stream } from "effect"
import type { CallId, CallRecord } from "./Book.ts"
import type { StorageError } from "./Errors.ts"
import type { Reads, RowResult } from "./Journal.ts"

const paged = <A, C>(
  first: C,
  size: number,
  read: (after: C) => Effect.Effect<ReadonlyArray<A>, StorageError>,
  place: (last: A) => C
): Stream.Stream<ReadonlyArray<A>, StorageError> =>
  Stream.paginateEffect(first, (after) =>
    Effect.map(read(after), (page) => {
      const last = page.at(-1)
      return [page, page.length < size || last === undefined ? Option.none() : Option.some(place(last))] as const
    })
  )

/**
 * All rows with their latest outcomes, in order. `size`: rows a page, few where each may have megabytes; `upto`: as of this `commitSeq`; `after`: only rows after this `seq`.
 *
 * @since 0.1.0
 */
export const results = (
  reads: Reads,
  runId: string,
  {
    after = -1,
    size,
    upto
  }: { readonly after?: number | undefined; readonly size: number; readonly upto?: number | undefined }
): Stream.Stream<ReadonlyArray<RowResult>, StorageError> =>
  paged(
    after,
    size,
    (after) => reads.results(runId, after, size, upto),
    ({ row }) => row.seq
  )

const CALLS = 500

/**
 * All closed calls, as they are known now.
 *
 * @since 0.1.0
 */
export const calls = (reads: Reads, runId: string): Stream.Stream<ReadonlyArray<CallRecord>, StorageError> =>
  paged<CallRecord, Pick<CallId, "worker" | "n">>(
    { worker: 0, n: 0 },
    CALLS,
    (after) => reads.calls(runId, after, CALLS),
    (last) => last
  )
