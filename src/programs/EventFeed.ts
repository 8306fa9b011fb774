/**
 * What happens in a run, for any number of listeners that come, go and come back: the last thousand events are kept with their numbers, and each listener reads at its own pace. One that falls behind,
 * or comes back too late, is told that there is a gap; nothing is buffered for anybody.
 *
 * @since 0.1.0
 */
import { Deferred, Effect, FiberId, Option, Stream } from "effect"

/** An event as one line of JSON; `n` numbers them from 1. @since 0.1.0 */
export interface Entry {
  readonly n: number
  readonly name: string
  readonly data: string
}

/** @since 0.1.0 */
export interface EventFeed {
  /** The n-th event's id for a listener: it tells this feed's events from those of a feed before, of the same run. */
  readonly idOf: (n: number) => string
  /** The number behind an id; below 0: it is no event of this feed, and `after` begins with a gap. */
  readonly numberOf: (id: string) => number
  readonly append: (name: string, data: string) => void
  /** No event comes any more. */
  readonly end: () => void
  /** The number of the latest event; 0: there is none yet. */
  readonly latest: () => number
  /** Events after the n-th, until the end. `gap` makes what stands for those up to the n-th, which are kept no more. */
  readonly after: <E, R>(n: number, gap: (n: number) => Effect.Effect<Entry, E, R>) => Stream.Stream<Entry, E, R>
}

const KEPT = 1_000

/**
 * An empty feed. `name`: no other feed of the run has it.
 *
 * @since 0.1.0
 */
export const make = (name: string, kept = KEPT): EventFeed => {
  const ring: Array<Entry> = []
  let latest = 0
  let ended = false
  let news = Deferred.unsafeMake<void>(FiberId.none)

  const wake = (): void => {
    Deferred.unsafeDone(news, Effect.void)
    news = Deferred.unsafeMake<void>(FiberId.none)
  }

  return {
    idOf: (n) => `${name}-${n}`,
    numberOf: (id) => {
      const n = id.startsWith(`${name}-`) ? Number(id.slice(name.length + 1)) : -1
      return Number.isSafeInteger(n) ? n : -1
    },
    append: (name, data) => {
      ring.push({ n: ++latest, name, data })
      if (ring.length > kept) ring.shift()
      wake()
    },
    end: () => {
      ended = true
      wake()
    },
    latest: () => latest,
    after: (n, gap) => {
      const next = (
        seen: number
      ): Effect.Effect<
        Option.Option<readonly [ReadonlyArray<Entry>, number]>,
        Effect.Effect.Error<ReturnType<typeof gap>>,
        Effect.Effect.Context<ReturnType<typeof gap>>
      > =>
        Effect.suspend(() => {
          const oldest = ring[0]?.n ?? latest + 1
          if (seen + 1 < oldest || seen > latest) {
            // What comes while it is made follows it.
            const last = latest
            return Effect.map(gap(last), (entry) => Option.some([[entry], last] as const))
          }
          if (seen < latest) return Effect.succeedSome([ring.slice(seen + 1 - oldest), latest] as const)
          if (ended) return Effect.succeedNone
          return Effect.flatMap(Deferred.await(news), () => next(seen))
        })
      return Stream.flattenIterables(Stream.unfoldEffect(n, next))
    }
  }
}
