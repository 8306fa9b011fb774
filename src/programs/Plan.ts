/**
 * The flight plan of a run: its rows, how its prompts look, what it may cost and how long it may take, before anything is sent. Without a database and without a call. What the store
 * already has is not looked at; it makes a run cheaper.
 *
 * @example
 * import { Effect, Schema } from "effect"
 * import { Agent, Enrichment, Plan, Rows } from "longhaul"
 * const agent = Agent.make({
 *   name: "assessor",
 *   model: "gpt-4o-mini",
 *   prompt: (vendor: { readonly id: number; readonly name: string }) => vendor.name,
 *   output: Schema.Struct({ summary: Schema.String })
 * })
 * const row = Schema.Struct({ id: Schema.Int, name: Schema.String })
 * const source = Rows.fromIterable([{ id: 1, name: "Acme" }])
 * const job = Enrichment.make({ name: "vendors", agent, row, id: (vendor) => vendor.id, source })
 * const largest = Effect.map(Plan.plan(job, { concurrency: 8 }), ({ largest }) => largest.spend)
 *
 * @since 0.1.0
 */
import { Clock, Effect, Option, Schedule } from "effect"
import { InputError, RunRefused } from "../services/Errors.ts"
import * as Forecast from "../services/Forecast.ts"
import * as LeastAnswer from "../services/LeastAnswer.ts"
import { type ChatRequest, type LLMShape, type Message, noTokens } from "../services/LLM.ts"
import * as OutputAdapter from "../services/OutputAdapter.ts"
import * as Price from "../services/Price.ts"
import * as Tokenizer from "../services/Tokenizer.ts"
import { Usd } from "../services/Usd.ts"
import * as Invoker from "./Invoker.ts"
import type { Job } from "./Job.ts"
import * as PlanRows from "./PlanRows.ts"

/**
 * `sample`: how many rows' tokens are counted, spread over the lengths of all (default 200). `provider`: what is known of the server that the run will ask; its `outputMode` and
 * prices go into the plan. The limits a minute are the run's or the provider's.
 *
 * @since 0.1.0
 */
export interface PlanOptions {
  readonly concurrency: number
  readonly sample?: number | undefined
  readonly requestsPerMinute?: number | undefined
  readonly tokensPerMinute?: number | undefined
  readonly provider?: Pick<LLMShape, "outputMode" | "priceFactor" | "standardTier"> | undefined
}

/** A row's prompt as it would be sent, with its input tokens by the tokenizer in force. @since 0.1.0 */
export interface Prompt {
  readonly id: string
  readonly line: number
  readonly tokens: number
  readonly messages: ReadonlyArray<Message>
}

/** From the least to the most. @since 0.1.0 */
export interface Range<N extends number = number> {
  readonly low: N
  readonly high: N
}

/**
 * `filtered`: left out by the job's `where`. `bad`: rows that do not fit, or whose id comes twice: with any of them a run refuses the source with the first of these errors; `badRows`: how
 * many there are (`bad` has the first twenty). `unasked`: rows whose prompt cannot be rendered: they fail without a call.
 *
 * `inputTokens`: of all rows. An answer has between `leastOutput` tokens (the shortest JSON that fits the output schema) and `outputLimit`.
 *
 * `cost` and `ms` suppose one call a row. The input side is known, as far as the tokenizer is right; the output side is not before a call is made: `low` is for the shortest
 * answers and `high` for answers of the whole output limit. A discount for cached input is not in it. `ms` rests on `assumed` speeds besides.
 *
 * @since 0.1.0
 */
export interface Plan {
  readonly job: string
  readonly model: string
  readonly source: string
  readonly rows: number
  readonly filtered: number
  readonly bad: ReadonlyArray<InputError>
  readonly badRows: number
  readonly unasked: { readonly rows: number; readonly first: string | undefined }
  readonly prompts: { readonly short: Prompt; readonly median: Prompt; readonly long: Prompt } | undefined
  readonly sampled: number
  readonly inputTokens: Range
  readonly leastOutput: number
  readonly outputLimit: number
  readonly cost: Range<Usd>
  readonly ms: Range
  readonly largest: Largest
}

/**
 * What a run of one process can be billed at most, or count as uncertain: every row takes all its `turns` (the question and each repair), every turn all its `tries` by the job's retry
 * policy and on each of the job's models, and each of these calls costs its whole hold. `call`: the largest hold of a row's first call. A repair is taken to show an answer of the whole output
 * limit, at six bytes a token, and to say as much again of what does not fit.
 *
 * It bounds no more than that: while all calls fail together a turn is tried up to 20 times, an outage and a kill add calls that may have been billed, and so does each resume that runs rows again.
 * The budget bounds them all. The price of a fallback at another provider is that of the table.
 *
 * @since 0.1.0
 */
export interface Largest {
  readonly call: Usd
  readonly turns: number
  readonly tries: number
  readonly models: number
  readonly spend: Usd
}

/** How fast an answer is supposed to come: the wait for its first token, and tokens a second. Slow ones are queued or reason. @since 0.1.0 */
export const assumed = { fast: { firstMs: 300, perSecond: 200 }, slow: { firstMs: 3_000, perSecond: 20 } }

/**
 * The plan of a run. Fails as the run would where the source cannot be read or a model has no price; rows that do not fit are listed in the plan. Reads the source once, and holds the
 * lengths and ids of all rows and the requests of some.
 *
 * @since 0.1.0
 */
export const plan = <Row, A, I>(
  asked: Job<Row, A, I>,
  options: PlanOptions
): Effect.Effect<Plan, InputError | RunRefused> =>
  Effect.gen(function* () {
    const { sample = 200 } = options
    yield* atLeastOne("concurrency", options.concurrency)
    yield* atLeastOne("sample", sample)
    const { outputMode } = options.provider ?? {}
    const job = outputMode === undefined ? asked : { ...asked, agent: asked.agent.forMode(outputMode) }
    const now = yield* Clock.currentTimeMillis
    const tokenizer = yield* Tokenizer.Tokenizer
    const tokensOf = (request: ChatRequest): number => {
      const estimate = tokenizer.estimate(request)
      return Number.isFinite(estimate) && estimate >= 0 ? estimate : Price.inputBound(request)
    }
    const routes = yield* routesOf(job, yield* Price.Price, now, options.provider?.priceFactor ?? 1)
    const tries = yield* triesOf(job, now)
    const seen = yield* PlanRows.readAll(job, now, {
      capacity: 4 * sample,
      standardTier: options.provider?.standardTier,
      routes,
      tries
    })
    const chosen = PlanRows.sampleOf(seen, sample)
    const [first] = chosen
    const outputLimit = first?.request.maxOutputTokens ?? 0
    const leastOutput = first === undefined ? 0 : Math.min(outputLimit, leastTokens(job, first.request, tokenizer))
    const { lengths } = seen
    const counted = chosen.map((one) => ({ ...one, tokens: tokensOf(one.request) }))
    const [price] = routes
    const over = (amount: (one: (typeof counted)[number]) => number) =>
      Forecast.total({ lengths, sample: counted.map((one) => ({ row: one.row, amount: amount(one) })) })
    const costAt = (outputTokens: number) =>
      over(({ request, tokens }) =>
        price === undefined
          ? 0
          : Price.cost(price.price, { ...noTokens, inputTokens: Math.ceil(tokens), outputTokens }, request.tier)
      )
    const timeAt = (outputTokens: number, speed: typeof assumed.fast) =>
      Forecast.time({
        lengths,
        sample: counted.map(({ row, tokens }) => ({
          row,
          latencyMs: speed.firstMs + (outputTokens / speed.perSecond) * 1_000,
          calls: 1,
          tokens: tokens + outputTokens
        })),
        ahead: true,
        concurrency: options.concurrency,
        requestsPerMinute: options.requestsPerMinute,
        tokensPerMinute: options.tokensPerMinute
      })
    const cost = rangeOf(
      Option.map(costAt(leastOutput), ({ total }) => total),
      Option.map(costAt(outputLimit), ({ total }) => total)
    )
    const inputTokens = Option.map(
      over(({ tokens }) => tokens),
      ({ total }) => total
    )
    const promptOf = ({ id, line, request }: PlanRows.Candidate): Prompt => ({
      id,
      line,
      tokens: Math.ceil(tokensOf(request)),
      messages: request.messages
    })
    return {
      job: job.name,
      model: job.agent.model,
      source: job.source.location,
      rows: seen.rows,
      filtered: seen.filtered,
      bad: seen.bad,
      badRows: seen.badRows,
      unasked: seen.unasked,
      prompts: Option.getOrUndefined(
        Option.map(PlanRows.threeOf(seen), ([short, median, long]) => ({
          short: promptOf(short),
          median: promptOf(median),
          long: promptOf(long)
        }))
      ),
      sampled: chosen.length,
      inputTokens: rangeOf(inputTokens, inputTokens),
      leastOutput,
      outputLimit,
      cost: { low: usd(cost.low, Math.floor), high: usd(cost.high, Math.ceil) },
      ms: rangeOf(timeAt(leastOutput, assumed.fast), timeAt(outputLimit, assumed.slow)),
      largest: {
        call: seen.call,
        turns: seen.turns,
        tries,
        models: routes.length,
        spend: usd(seen.spend, Math.ceil)
      }
    }
  })

const atLeastOne = (name: string, n: number): Effect.Effect<void, InputError> =>
  Number.isInteger(n) && n >= 1
    ? Effect.void
    : new InputError({ reason: "bad_option", message: `${name} must be a whole number from 1, not ${n}` })

const usd = (nano: number, rounded: (n: number) => number): Usd =>
  Usd.nano(Math.min(Number.MAX_SAFE_INTEGER, Math.max(0, rounded(nano))))

const rangeOf = (low: Option.Option<Forecast.Interval>, high: Option.Option<Forecast.Interval>): Range => ({
  low: Option.match(low, { onNone: () => 0, onSome: (one) => one.low }),
  high: Option.match(high, { onNone: () => 0, onSome: (one) => one.high })
})

/** A run under a cap is refused without these, for the same reasons. */
const routesOf = <Row, A, I>(
  { agent, fallback }: Job<Row, A, I>,
  prices: ReadonlyArray<Price.PriceRow>,
  now: number,
  factor: number
): Effect.Effect<ReadonlyArray<PlanRows.Route>, RunRefused> => {
  const models = [
    { model: agent.model, isOwn: true },
    ...fallback.map(({ model, provider }) => ({ model, isOwn: provider === undefined }))
  ]
  return Effect.forEach(models, ({ isOwn, model }) => {
    const row = Option.getOrUndefined(Price.find(prices, model, now))
    const problem =
      row === undefined ? Invoker.unpriced(model) : (Price.problem(row) ?? Price.tierProblem(row, agent.tier))
    return row === undefined || problem !== undefined
      ? new RunRefused({ reason: "unpriced", message: problem ?? Invoker.unpriced(model) })
      : Effect.succeed({ model, price: isOwn && factor !== 1 ? Price.times(row, factor) : row, ownTier: isOwn })
  })
}

/** A turn fails no more often in one process. */
const MOST_TRIES = 20

/** How often the policy has a call tried that times out each time, which may be billed. */
const triesOf = <Row, A, I>({ retry }: Job<Row, A, I>, now: number): Effect.Effect<number> =>
  Effect.map(
    Schedule.run(
      retry.schedule,
      now,
      Array.from({ length: MOST_TRIES }, () => PlanRows.timedOut)
    ),
    // One output a step, the last one included, with which the policy gives up.
    (steps) => Math.min(MOST_TRIES, Math.max(1, steps.length))
  )

/** The tokens of the shortest answer, without the frame of a message. */
const leastTokens = <Row, A, I>(
  { agent }: Job<Row, A, I>,
  request: ChatRequest,
  tokenizer: Tokenizer.TokenizerShape
): number => {
  const schema =
    request.format.mode === "json_schema" ? request.format.schema : OutputAdapter.toJsonSchema(agent.output)
  const said = (content: string): number =>
    tokenizer.estimate({ ...request, messages: [{ role: "assistant", content }], format: { mode: "text" } })
  const tokens = Math.ceil(said(LeastAnswer.text(schema)) - said(""))
  return Number.isFinite(tokens) ? Math.max(1, tokens) : 1
}
