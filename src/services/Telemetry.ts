/**
 * What a run tells an observer: metrics and the attributes of spans, by OpenTelemetry's conventions for generative AI (https://opentelemetry.io/docs/specs/semconv/gen-ai/) where they have a word for it. No text of
 * a row, a prompt or an answer is in them. Effect's own `Metric` and `Tracer` carry them: whoever wants them elsewhere provides an exporter.
 *
 * @since 0.1.0
 */
import { Cause, Exit, Metric, MetricBoundaries, MetricLabel, Option } from "effect"
import type { LLMError } from "./Errors.ts"
import type { ChatAnswer, ChatRequest, LLMShape } from "./LLM.ts"
import type { Usd } from "./Usd.ts"

/** Seconds that one physical request took. Buckets as the conventions advise. @since 0.1.0 */
export const duration = Metric.histogram(
  "gen_ai.client.operation.duration",
  MetricBoundaries.fromIterable([
    0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92
  ]),
  "Seconds that one request to a provider took"
)

/** Tokens of one answer, by `gen_ai.token.type`. @since 0.1.0 */
export const tokens = Metric.histogram(
  "gen_ai.client.token.usage",
  MetricBoundaries.fromIterable([1, 4, 16, 64, 256, 1024, 4096, 16_384, 65_536, 262_144, 1_048_576]),
  "Tokens of one answer, as the provider counts them"
)

/** Nano-dollars that settled calls cost. @since 0.1.0 */
export const cost = Metric.counter("longhaul.cost", {
  description: "Nano-dollars that settled calls cost",
  incremental: true
})

/** Rows that ended, by `longhaul.row.end`. @since 0.1.0 */
export const rows = Metric.counter("longhaul.rows", { description: "Rows that ended", incremental: true })

/**
 * The name of a call's span, and what is known of it before it is sent.
 *
 * @since 0.1.0
 */
export const callSpan = (llm: LLMShape, request: ChatRequest) => ({
  name: `chat ${request.model}`,
  options: {
    kind: "client" as const,
    captureStackTrace: false as const,
    attributes: {
      "gen_ai.operation.name": "chat",
      "gen_ai.provider.name": llm.provider,
      "gen_ai.request.model": request.model,
      "gen_ai.request.max_tokens": request.maxOutputTokens,
      "gen_ai.output.type": request.format.mode === "text" ? "text" : "json"
    }
  }
})

/**
 * What an answer adds to its call's span.
 *
 * @since 0.1.0
 */
export const answered = ({ finish, model, requestId, usage }: ChatAnswer): Record<string, unknown> => ({
  "gen_ai.response.model": model,
  "gen_ai.response.finish_reasons": [finish],
  ...(requestId === undefined ? {} : { "gen_ai.response.id": requestId }),
  ...(usage === undefined
    ? {}
    : { "gen_ai.usage.input_tokens": usage.inputTokens, "gen_ai.usage.output_tokens": usage.outputTokens })
})

/**
 * Counts a physical call that took `ms` milliseconds, however it ended.
 *
 * @since 0.1.0
 */
export const called = (llm: LLMShape, model: string, ms: number, exit: Exit.Exit<ChatAnswer, LLMError>): void => {
  const labels = labelsOf(llm.provider, model)
  if (Exit.isSuccess(exit)) {
    duration.unsafeUpdate(ms / 1000, labels.call)
    const { usage } = exit.value
    if (usage === undefined) return
    tokens.unsafeUpdate(usage.inputTokens, labels.input)
    tokens.unsafeUpdate(usage.outputTokens, labels.output)
    return
  }
  const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
  duration.unsafeUpdate(ms / 1000, [...labels.call, MetricLabel.make("error.type", error?.reason ?? "interrupted")])
}

/**
 * Counts what a settled call cost.
 *
 * @since 0.1.0
 */
export const paid = (llm: LLMShape, model: string, amount: Usd): void =>
  cost.unsafeUpdate(amount, labelsOf(llm.provider, model).call)

/**
 * Counts a row that ended.
 *
 * @since 0.1.0
 */
export const rowEnded = (job: string, end: "done" | "partial" | "failed"): void =>
  rows.unsafeUpdate(1, [MetricLabel.make("longhaul.job", job), MetricLabel.make("longhaul.row.end", end)])

type Labels = ReadonlyArray<MetricLabel.MetricLabel>
interface CallLabels {
  readonly call: Labels
  readonly input: Labels
  readonly output: Labels
}

/** Providers and models are few. */
const known = new Map<string, CallLabels>()
const labelsOf = (provider: string, model: string): CallLabels => {
  const key = `${provider} ${model}`
  const found = known.get(key)
  if (found !== undefined) return found
  const call = [
    MetricLabel.make("gen_ai.operation.name", "chat"),
    MetricLabel.make("gen_ai.provider.name", provider),
    MetricLabel.make("gen_ai.request.model", model)
  ]
  const made: CallLabels = {
    call,
    input: [...call, MetricLabel.make("gen_ai.token.type", "input")],
    output: [...call, MetricLabel.make("gen_ai.token.type", "output")]
  }
  known.set(key, made)
  return made
}
