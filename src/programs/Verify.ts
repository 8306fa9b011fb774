/**
 * A job's own rows, prompts, schema, repairs, retries and fallback, run many times against a provider that is made up and fails in every way, killed at any step and
 * around any commit, with clocks that jump: each time in virtual time, in an order that a seed decides, so that what goes wrong once can be looked at again.
 *
 * What must hold is checked at every commit: the bill never passes what the book counts, nor that the cap; every row has one outcome; no answer is paid for twice; no
 * more calls are in flight than allowed. Nothing is sent and nothing is written.
 *
 * @example
 * import { Effect, Schema } from "effect"
 * import { Agent, Enrichment, Rows } from "longhaul"
 * import { Verify } from "longhaul/testing"
 * const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
 * const agent = Agent.make({
 *   name: "assessor",
 *   model: "simulated",
 *   prompt: (vendor: typeof Vendor.Type) => vendor.name,
 *   output: Schema.Struct({ summary: Schema.String })
 * })
 * const source = Rows.fromIterable([{ id: 1, name: "Acme" }])
 * const job = Enrichment.make({ name: "vendors", agent, row: Vendor, id: (vendor) => vendor.id, source })
 * const program = Effect.map(Verify.job(job, { seeds: 20 }), ({ violations }) => violations.length === 0)
 *
 * @since 0.1.0
 */
import { Chunk, Effect, Either, Option, Schema, Stream } from "effect"
import * as LLMSimulated from "../layers/LLMSimulated.ts"
import { InputError } from "../services/Errors.ts"
import type { Driver } from "../services/Journal.ts"
import type { ChatRequest } from "../services/LLM.ts"
import * as OutputAdapter from "../services/OutputAdapter.ts"
import * as Price from "../services/Price.ts"
import type { SourceRow } from "../services/RowSource.ts"
import type { Job } from "./Job.ts"
import * as Simulation from "./Simulation.ts"

/**
 * `seeds`: how many, default 200, from `firstSeed` (default 1) on. `rows`: how many of the source's first rows, default 50. `concurrency`: default drawn anew for
 * each seed. `exhaustive`: for each seed not one life but one for each of its commits, killed just before it and just after it. `answer`: what a good
 * answer to a request is, where one that is made up from the output schema does not do. `startAt`: the date when the simulation begins, in
 * milliseconds since 1970. `wrap`: another database, to see that a bug in it is found.
 *
 * @since 0.1.0
 */
export interface Options {
  readonly seeds?: number | undefined
  readonly firstSeed?: number | undefined
  readonly rows?: number | undefined
  readonly concurrency?: number | undefined
  readonly exhaustive?: boolean
  readonly answer?: (request: ChatRequest) => unknown
  readonly startAt?: number
  readonly wrap?: (driver: Driver) => Driver
}

/**
 * Something that must hold and did not. `step`: at which step of that seed's life; 0: it was seen before anything ran. `crash`: with `exhaustive`, the commit around
 * which the run was killed.
 *
 * @since 0.1.0
 */
export class Violation extends Schema.TaggedClass<Violation>()("Violation", {
  seed: Schema.Int,
  step: Schema.Int,
  what: Schema.String,
  crash: Schema.optionalWith(Schema.Struct({ commit: Schema.Int, before: Schema.Boolean }), { exact: true })
}) {}

/**
 * What came of it. `lives`: the runs, one a seed unless `exhaustive`; `rows`: of all of them. `traceHash`: the same for the same job and options, or something in it is
 * left to chance.
 *
 * @since 0.1.0
 */
export interface Report {
  readonly seeds: number
  readonly lives: number
  readonly rows: number
  readonly crashes: number
  readonly commits: number
  readonly violations: ReadonlyArray<Violation>
  readonly stepsTotal: number
  readonly traceHash: string
}

/** One life, line by line: its step, its time, what happened. @since 0.1.0 */
export interface Trace {
  readonly lines: ReadonlyArray<string>
  readonly violations: ReadonlyArray<Violation>
  readonly traceHash: string
}

/**
 * Verifies a job. Fails only where its rows cannot be read; what does not hold is in `violations`, at most one a life.
 *
 * @since 0.1.0
 */
export const job = <Row, A, I>(tested: Job<Row, A, I>, options: Options = {}): Effect.Effect<Report, InputError> =>
  Effect.gen(function* () {
    const { findings, setup } = yield* prepare(tested, options)
    const { firstSeed = 1, seeds = 200 } = options
    const total = { lives: 0, crashes: 0, commits: 0, steps: 0, hash: 0 }
    const violations = [...findings]
    const add = (seed: number, seen: Simulation.Seen, crash?: Violation["crash"]): void => {
      total.lives++
      total.crashes += seen.crashes
      total.commits += seen.commits
      total.steps += seen.steps
      total.hash = mixed(total.hash, seen.hash)
      if (seen.violation !== undefined) violations.push(violationOf(seed, seen.violation, crash))
    }
    for (let seed = firstSeed; seed < firstSeed + seeds; seed++) {
      // An interruption gets through, and a progress line is drawn.
      yield* Effect.yieldNow()
      const whole = Simulation.live(setup, seed, options.exhaustive === true ? { crashes: false } : {})
      add(seed, whole)
      if (
        seed === firstSeed &&
        Simulation.live(setup, seed, options.exhaustive === true ? { crashes: false } : {}).hash !== whole.hash
      ) {
        violations.push(violationOf(seed, { step: 0, what: undetermined }))
      }
      if (options.exhaustive !== true) continue
      for (let commit = 1; commit <= whole.commits; commit++) {
        yield* Effect.yieldNow()
        for (const before of [true, false]) {
          const crash = { commit, before }
          add(seed, Simulation.live(setup, seed, { crash }), crash)
        }
      }
    }
    return {
      seeds,
      lives: total.lives,
      rows: total.lives * setup.rows,
      crashes: total.crashes,
      commits: total.commits,
      violations,
      stepsTotal: total.steps,
      traceHash: hashText(total.hash)
    }
  })

/**
 * The life of one seed, as a list of short lines. `crash`: as a violation of `exhaustive` has it.
 *
 * @since 0.1.0
 */
export const replay = <Row, A, I>(
  tested: Job<Row, A, I>,
  seed: number,
  options: Options & { readonly crash?: Violation["crash"] } = {}
): Effect.Effect<Trace, InputError> =>
  Effect.map(prepare(tested, options), ({ findings, setup }) => {
    const seen = Simulation.live(setup, seed, {
      trace: true,
      ...(options.exhaustive === true ? { crashes: false } : {}),
      ...(options.crash === undefined ? {} : { crash: options.crash })
    })
    const found = seen.violation === undefined ? [] : [violationOf(seed, seen.violation, options.crash)]
    return { lines: seen.lines, violations: [...findings, ...found], traceHash: hashText(seen.hash) }
  })

const undetermined =
  "the same seed lived another life: the job reads a clock, a random number or a counter that is not Effect's (in its prompt, schema, retry policy or row)"

const violationOf = (
  seed: number,
  { step, what }: { readonly step: number; readonly what: string },
  crash?: Violation["crash"]
) => new Violation({ seed, step, what, ...(crash === undefined ? {} : { crash }) })

const mixed = (a: number, b: number): number => (a * 31 + b) % 2 ** 47
const hashText = (hash: number): string => hash.toString(16).padStart(13, "0")

/** Noon of a winter's day, so that an hour more or less is the same day. */
const START = Date.UTC(2027, 0, 15, 12)

/** Reads the rows once, for real, and renders their requests. */
const prepare = <Row, A, I>(tested: Job<Row, A, I>, options: Options) =>
  Effect.gen(function* () {
    const read = yield* Stream.runCollect(Stream.take(tested.source.rows, options.rows ?? 50))
    const records = Chunk.toReadonlyArray(read)
    const { location, rows, text } = { ...tested.source, rows: records }
    if (rows.length === 0) return yield* noRows(location)
    const simulated = { ...tested, source: { ...tested.source, rows: Stream.fromChunk(read) } }
    const startAt = options.startAt ?? START
    const listed = yield* Price.Price
    const models = [tested.agent.model, ...tested.fallback.map(({ model }) => model)]
    const prices = [...listed, ...unlisted(models, tested.agent.tier, listed, startAt)]
    const priceOf = (model: string) => Option.getOrUndefined(Price.find(prices, model, startAt))
    const first = requestsOf(simulated, records, text)
    const again = requestsOf(simulated, records, text)
    const answers = new Map<string, string>()
    const answer = answerer(tested, options.answer)
    for (const { id, request } of first) answers.set(promptOf(request), answer(request, id))
    const price = priceOf(tested.agent.model)
    const worst = first.reduce((sum, { request }) => sum + (price === undefined ? 0 : Price.hold(price, request)), 0)
    const setup: Simulation.Setup<Row, A, I> = {
      job: simulated,
      rows: records.length,
      prices,
      priceOf,
      textOf: (request) => answers.get(promptOf(request)),
      worst,
      concurrency: options.concurrency,
      startAt,
      wrap: options.wrap ?? ((driver) => driver)
    }
    const changed = first.find(({ request }, i) => JSON.stringify(request) !== JSON.stringify(again[i]?.request))
    const findings = changed === undefined ? [] : [violationOf(0, { step: 0, what: unsteady(changed.id) })]
    return { setup, findings }
  })

const noRows = (location: string) =>
  new InputError({ reason: "empty", message: `${location} has no rows, so there is nothing to verify` })

const unsteady = (id: string): string =>
  `the prompt of row ${id} is another one when it is rendered again: each resume would pay for such rows anew`

/** A model without a price gets one: what is looked at is not its price. */
const unlisted = (
  models: ReadonlyArray<string>,
  tier: string | undefined,
  prices: ReadonlyArray<Price.PriceRow>,
  now: number
) =>
  models.flatMap((model) =>
    Option.isSome(Price.find(prices, model, now))
      ? []
      : [{ model, from: "0000-01-01", input: 1, output: 4, ...(tier === undefined ? {} : { tiers: { [tier]: 1 } }) }]
  )

interface Rendered {
  readonly id: string
  readonly request: ChatRequest
}

/** Rows that do not fit, or whose prompt throws, are the run's to tell. */
const requestsOf = <Row, A, I>(
  { agent, decode, identify }: Job<Row, A, I>,
  records: ReadonlyArray<SourceRow>,
  text: boolean
): ReadonlyArray<Rendered> =>
  records.flatMap(({ value }) => {
    const row = decode(value, text)
    if (Either.isLeft(row)) return []
    const rendered = Either.try(() => ({
      id: identify(row.right, new Date(START)).id,
      request: agent.request(row.right)
    }))
    return Either.isRight(rendered) ? [rendered.right] : []
  })

/** The row's own words: no repair and no fallback changes them. */
const promptOf = ({ messages }: ChatRequest): string => messages.find(({ role }) => role === "user")?.content ?? ""

/** A text that fits the output schema, and is about its row where the job checks that. */
const answerer = <Row, A, I>({ agent, outputId }: Job<Row, A, I>, own: Options["answer"]) => {
  const decode = Schema.decodeUnknownOption(agent.output)
  const read = (text: string): Option.Option<A> =>
    Option.flatMap(Either.getRight(OutputAdapter.jsonSchema.read(text)), decode)
  return (request: ChatRequest, id: string): string => {
    if (own !== undefined) return LLMSimulated.textFor(request, { respond: own })
    const plain = LLMSimulated.textFor(request)
    const made = Option.isSome(read(plain))
      ? plain
      : Either.getOrElse(
          Either.try(() => LLMSimulated.textFor(request, { output: agent.output })),
          () => plain
        )
    if (outputId === undefined) return made
    const isAbout = (text: string) => Option.exists(read(text), (value) => String(outputId(value)) === id)
    return withId(made, id).find(isAbout) ?? made
  }
}

/** The text with the id in each of its fields in turn. */
const withId = (text: string, id: string): ReadonlyArray<string> => {
  const value = Option.getOrUndefined(decodeFields(text))
  return Object.keys(value ?? {}).flatMap((name) =>
    [id, Number(id)].map((said) => JSON.stringify({ ...value, [name]: said }))
  )
}
const decodeFields = Schema.decodeOption(Schema.parseJson(Schema.Record({ key: Schema.String, value: Schema.Unknown })))
