/**
 * One pass over a job's source for its plan: what a run's load would make of it, how long each request is and what it can cost. Internal to Plan.
 *
 * @since 0.1.0
 */
import { Chunk, Effect, Either, Option, Stream, Utils } from "effect"
import { type InputError, LLMError } from "../services/Errors.ts"
import { answer, type ChatRequest, type Message } from "../services/LLM.ts"
import * as Price from "../services/Price.ts"
import type { SourceRow } from "../services/RowSource.ts"
import * as Sample from "../services/Sample.ts"
import * as Usage from "../services/Usage.ts"
import { Usd } from "../services/Usd.ts"
import * as Invoker from "./Invoker.ts"
import type { Job } from "./Job.ts"
import * as Manifest from "./Manifest.ts"

/** One of the job's models, and what it costs. `ownTier`: at the job's own provider. @since 0.1.0 */
export interface Route {
  readonly model: string
  readonly price: Price.PriceRow
  readonly ownTier: boolean
}

/** A call that may have been billed and gave no answer. @since 0.1.0 */
export const timedOut = new LLMError({
  reason: "timeout",
  category: "TRANSIENT",
  scope: "row",
  charge: "uncertain",
  message: "no answer in time"
})

/** A row that may be shown or counted. `row`: its place in `lengths`. @since 0.1.0 */
export interface Candidate {
  readonly row: number
  readonly id: string
  readonly line: number
  readonly length: number
  readonly request: ChatRequest
}

/** How many requests are kept, and what prices them. @since 0.1.0 */
export interface ReadOptions {
  readonly capacity: number
  readonly standardTier: string | undefined
  readonly routes: ReadonlyArray<Route>
  readonly tries: number
}

/**
 * What one pass over the source leaves behind. `lengths`: bytes of each request, in order. `kept`: requests of rows drawn at random, all where there are few. `call`: the largest
 * hold of a first call; `spend`: of all calls that each row can take, in nano-dollars.
 *
 * @since 0.1.0
 */
export interface Seen {
  rows: number
  filtered: number
  badRows: number
  readonly bad: Array<InputError>
  unasked: { readonly rows: number; readonly first: string | undefined }
  readonly lengths: Array<number>
  readonly kept: Array<Candidate>
  shortest: Candidate | undefined
  longest: Candidate | undefined
  call: Usd
  turns: number
  spend: number
}

const PAGE = 500
const MOST_SHOWN = 20
const SEED = 1

/**
 * Reads the source once. What does not fit is counted, and the first errors are kept: they are those of a run's own load.
 *
 * @since 0.1.0
 */
export const readAll = <Row, A, I>(
  job: Job<Row, A, I>,
  at: number,
  options: ReadOptions
): Effect.Effect<Seen, InputError> =>
  Effect.gen(function* () {
    const seen: Seen = {
      rows: 0,
      filtered: 0,
      badRows: 0,
      bad: [],
      unasked: { rows: 0, first: undefined },
      lengths: [],
      kept: [],
      shortest: undefined,
      longest: undefined,
      call: Usd.zero,
      turns: 0,
      spend: 0
    }
    const now = new Date(at)
    const random = new Utils.PCGRandom(SEED)
    const lines = new Map<string, number>()
    let added: ReadonlyArray<ReadonlyArray<Message>> | undefined
    const refuse = (error: InputError) => {
      seen.badRows++
      if (seen.bad.length < MOST_SHOWN) seen.bad.push(error)
    }

    const take = (record: Loaded) =>
      Effect.gen(function* () {
        seen.rows++
        const request = Either.flatMap(job.decode(JSON.parse(record.value), job.source.text), (row) =>
          Either.try(() => job.agent.request(row))
        )
        if (Either.isLeft(request)) {
          const first = seen.unasked.first ?? `line ${record.line}: ${messageOf(request.left)}`
          seen.unasked = { rows: seen.unasked.rows + 1, first }
          return
        }
        added ??= yield* repairsOf(job, request.right)
        seen.turns = added.length
        price(request.right, added)
        keep({
          row: seen.lengths.length,
          id: record.id,
          line: record.line,
          length: Price.inputBound(request.right),
          request: request.right
        })
      })

    const price = (request: ChatRequest, added: ReadonlyArray<ReadonlyArray<Message>>) => {
      for (const [r, { model, ownTier, price }] of options.routes.entries()) {
        const { tier: _, ...rest } = request
        const put: ChatRequest = { ...(ownTier ? request : rest), model }
        for (const [turn, more] of added.entries()) {
          const messages = more.length === 0 ? put.messages : [...put.messages, ...more]
          const tier = put.tier ?? (ownTier ? options.standardTier : undefined)
          const hold = Price.hold(price, { ...put, messages }, tier)
          if (r === 0 && turn === 0 && hold > seen.call) seen.call = hold
          seen.spend += hold * options.tries
        }
      }
    }

    /** Each row is kept with the same probability (J. S. Vitter, ACM Transactions on Mathematical Software 11, 1985, algorithm R). */
    const keep = (one: Candidate) => {
      seen.lengths.push(one.length)
      if (seen.shortest === undefined || one.length < seen.shortest.length) seen.shortest = one
      if (seen.longest === undefined || one.length >= seen.longest.length) seen.longest = one
      if (seen.kept.length < options.capacity) seen.kept.push(one)
      else {
        const place = random.integer(seen.lengths.length)
        if (place < options.capacity) seen.kept[place] = one
      }
    }

    /** A run's own load, over a part of the source. */
    const loaded = (rows: ReadonlyArray<SourceRow>) =>
      Effect.either(
        Effect.map(
          Stream.runCollect(
            Manifest.pages({ ...job, source: { ...job.source, rows: Stream.fromIterable(rows) } }, "plan", now)
          ),
          (pages) => Chunk.toReadonlyArray(pages).flatMap((page) => page.rows)
        )
      )

    const takePage = (rows: ReadonlyArray<SourceRow>): Effect.Effect<void> =>
      Effect.gen(function* () {
        const page = yield* loaded(rows)
        if (Either.isRight(page) && page.right.every(({ id }) => !lines.has(id))) {
          seen.filtered += rows.length - page.right.length
          for (const record of page.right) {
            lines.set(record.id, record.line)
            yield* take(record)
          }
        } else if (rows.length > 1) {
          yield* Effect.forEach(rows, (row) => takePage([row]), { discard: true })
        } else if (Either.isLeft(page)) refuse(page.left)
        else yield* refuseTwin(rows, page.right)
      })

    /** The row beside one of the same id, on the line where that was, is what the load would have met. */
    const refuseTwin = (rows: ReadonlyArray<SourceRow>, records: ReadonlyArray<Loaded>) =>
      Effect.gen(function* () {
        const twins = rows.flatMap((row) => records.map(({ id }) => ({ ...row, line: lines.get(id) ?? row.line })))
        const met = yield* loaded([...twins, ...rows])
        if (Either.isLeft(met)) refuse(met.left)
      })

    yield* Stream.runForEach(Stream.chunks(Stream.rechunk(job.source.rows, PAGE)), (page) =>
      takePage(Chunk.toReadonlyArray(page))
    )
    return seen
  })

type Loaded = Manifest.Page["rows"][number]

const messageOf = (problem: unknown): string => {
  if (problem instanceof Error) return problem.message
  return typeof problem === "object" && problem !== null && "message" in problem
    ? String(problem.message)
    : String(problem)
}

/** An answer that cannot be read, as long as it may be: letters for a token, and the same again for what a repair says of it. */
const BYTES_A_TOKEN = 6
/** An agent that repairs more often is taken for one that repairs so often. */
const MOST_TURNS = 50

/** What each turn of a row adds to its first request, at the most: the agent itself is asked, and a model that never gets it right is made up. */
const repairsOf = <Row, A, I>(
  { agent }: Job<Row, A, I>,
  request: ChatRequest
): Effect.Effect<ReadonlyArray<ReadonlyArray<Message>>> =>
  Effect.suspend(() => {
    const turns: Array<ReadonlyArray<Message>> = []
    const text = "x".repeat(2 * BYTES_A_TOKEN * request.maxOutputTokens)
    const reply: Invoker.Reply = {
      answer: answer({ text, model: request.model, usage: undefined }),
      usage: Usage.zero,
      source: "call",
      fallback: false
    }
    const ask: Invoker.InvokerShape["ask"] = ({ messages }) =>
      Effect.suspend((): Effect.Effect<Invoker.Reply, LLMError> => {
        turns.push(messages.slice(request.messages.length))
        return turns.length < MOST_TURNS ? Effect.succeed(reply) : timedOut
      })
    return agent
      .work(request, { seq: 0, epoch: 0 }, () => "it is not what was asked for")
      .pipe(Effect.provideService(Invoker.Invoker, { ask }), Effect.orDie, Effect.as(turns))
  })

/** The shortest and the longest row are there besides those drawn. */
const candidatesOf = ({ kept, longest, shortest }: Seen): ReadonlyArray<Candidate> => {
  const rows = new Map(kept.map((one) => [one.row, one]))
  for (const end of [shortest, longest]) if (end !== undefined) rows.set(end.row, end)
  return [...rows.values()].sort((a, b) => a.row - b.row)
}

/** Rows to count, spread over the lengths. @since 0.1.0 */
export const sampleOf = (seen: Seen, n: number): ReadonlyArray<Candidate> => {
  const candidates = candidatesOf(seen)
  const picked = new Set(
    Sample.pick(
      candidates.map(({ length }) => length),
      n
    )
  )
  return candidates.filter((_, i) => picked.has(i))
}

/** The shortest, a middle one and the longest. @since 0.1.0 */
export const threeOf = (seen: Seen): Option.Option<readonly [Candidate, Candidate, Candidate]> => {
  const { longest, shortest } = seen
  if (shortest === undefined || longest === undefined) return Option.none()
  const median = Float64Array.from(seen.lengths).sort()[seen.lengths.length >> 1] ?? 0
  const off = ({ length }: Candidate) => Math.abs(length - median)
  const middle = candidatesOf(seen).reduce((best, one) => (off(one) < off(best) ? one : best), shortest)
  return Option.some([shortest, middle, longest])
}
