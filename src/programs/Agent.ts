/**
 * One typed question to a model per row: a prompt, an output schema, and at most `maxRepairs` further turns that show the model what did not fit.
 *
 * @example
 * import { Schema } from "effect"
 * import { Agent } from "longhaul"
 * const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })
 * const enricher = Agent.make({
 *   name: "enricher",
 *   model: "gpt-6-luna",
 *   promptVersion: "enricher-v1",
 *   prompt: (vendor: { readonly name: string }) => `Assess ${vendor.name}.`,
 *   output: Enriched
 * })
 *
 * @since 0.1.0
 */
import { Effect, Either, identity, ParseResult, Schema } from "effect"
import type { OutcomeFacts } from "../services/Book.ts"
import type { LLMError, RunStopped, StorageError } from "../services/Errors.ts"
import { deepFreeze } from "../services/Freeze.ts"
import * as Identity from "../services/Identity.ts"
import {
  type ChatRequest,
  type Effort,
  type Message,
  request as makeRequest,
  type ResponseFormat
} from "../services/LLM.ts"
import type { AgentResult } from "../services/Outcome.ts"
import * as OutputAdapter from "../services/OutputAdapter.ts"
import * as Usage from "../services/Usage.ts"
import { eitherLLMError, Invoker, type Reply } from "./Invoker.ts"
import { judge } from "./Judge.ts"

/**
 * `promptVersion` is a word of the author's that goes into every row's key, besides the rendered request itself. `maxOutputTokens` (default 1,024, reasoning
 * included) bounds what a call can cost. `maxRepairs` defaults to 1. `tier`: the service tier to ask for. `adapter`: how the output is asked for, where it is not to
 * be the provider's own best way.
 *
 * @since 0.1.0
 */
export interface AgentOptions<Row, A, I> {
  readonly name: string
  readonly model: string
  readonly prompt: (row: Row) => string
  readonly output: Schema.Schema<A, I>
  readonly system?: string
  readonly promptVersion?: string
  readonly maxRepairs?: number
  readonly maxOutputTokens?: number
  readonly temperature?: number
  readonly effort?: Effort
  readonly tier?: string
  readonly adapter?: OutputAdapter.OutputAdapter
}

/** Which row, and which pass over it, an agent works on. @since 0.1.0 */
export interface Place {
  readonly seq: number
  readonly epoch: number
}

/** What can end an agent's work without a result. @since 0.1.0 */
export type AgentError = LLMError | RunStopped | StorageError

/**
 * An agent for rows of type `Row`, with results of type `A`.
 *
 * @since 0.1.0
 */
export interface Agent<Row, A, I = unknown> {
  readonly name: string
  readonly model: string
  readonly tier: string | undefined
  readonly promptVersion: string
  readonly output: Schema.Schema<A, I>
  /** The first request for a row, as it is sent. */
  readonly request: (row: Row) => ChatRequest
  /** What a result depends on besides the request: part of every key. */
  readonly decoder: string
  /** The decode side of the output schema, as a digest. */
  readonly reading: string
  /** The typed value of an answer's text, or what does not fit, a line each. */
  readonly read: (text: string) => Either.Either<A, ReadonlyArray<string>>
  /** Asks for one row. A text that cannot be read after all repairs is a `partial` result, not an error. */
  readonly run: (row: Row, place?: Place) => Effect.Effect<AgentResult<A>, AgentError, Invoker>
  /** The same for a request already rendered, with what the run's counters need; `check` says what else is wrong with a result. Internal. */
  readonly work: (
    request: ChatRequest,
    place: Place,
    check?: (value: A) => string | undefined
  ) => Effect.Effect<
    readonly [Either.Either<AgentResult<A>, LLMError>, OutcomeFacts],
    RunStopped | StorageError,
    Invoker
  >
  /** The same agent with another model. */
  readonly withModel: (model: string) => Agent<Row, A, I>
  /** The same agent for a provider that is best asked in this mode; an agent with an adapter of its own keeps it. */
  readonly forMode: (mode: ResponseFormat["mode"]) => Agent<Row, A, I>
}

/**
 * An agent. Throws an `InputError` where the output schema cannot be asked for: it names the field and the fix.
 *
 * @since 0.1.0
 */
export const make = <Row, A, I>(options: AgentOptions<Row, A, I>): Agent<Row, A, I> => {
  const adapter = options.adapter ?? OutputAdapter.jsonSchema
  const schema = deepFreeze(Either.getOrThrowWith(adapter.schema(options.name, options.output), identity))
  const system = [options.system, adapter.instructions(schema)].filter((part) => part !== undefined).join("\n\n")
  const format = adapter.format(options.name, schema)
  const read = reader(adapter, options.output)
  const maxRepairs = options.maxRepairs ?? 1
  const promptVersion = options.promptVersion ?? ""

  const request = (row: Row): ChatRequest => {
    const user: Message = { role: "user", content: options.prompt(row) }
    return makeRequest({
      model: options.model,
      messages: system === "" ? [user] : [{ role: "system", content: system }, user],
      maxOutputTokens: options.maxOutputTokens ?? 1024,
      format,
      ...(options.temperature === undefined ? {} : { temperature: options.temperature }),
      ...(options.effort === undefined ? {} : { effort: options.effort }),
      ...(options.tier === undefined ? {} : { tier: options.tier })
    })
  }

  const work: Agent<Row, A, I>["work"] = Effect.fnUntraced(function* (first, place, check) {
    const invoker = yield* Invoker
    const replies: Array<Reply> = []
    let asked = first
    for (let turn = 0; ; turn++) {
      const tried = yield* eitherLLMError(invoker.ask(asked, { turn, ...place }))
      if (Either.isLeft(tried)) return [Either.left(tried.left), factsOf(replies)]
      const reply = tried.right
      replies.push(reply)
      const bad = judge(reply.answer, asked)
      if (bad !== undefined) return [Either.left(bad), factsOf(replies)]
      const value = Either.flatMap(read(reply.answer.text), (value) => {
        const problem = check?.(value)
        return problem === undefined ? Either.right(value) : Either.left([problem])
      })
      if (Either.isRight(value) || turn >= maxRepairs) {
        return [Either.right(resultOf(replies, Either.getOrUndefined(value), promptVersion)), factsOf(replies)]
      }
      asked = repair(asked, reply.answer.text, value.left)
    }
  })

  const agent: Agent<Row, A, I> = {
    name: options.name,
    model: options.model,
    tier: options.tier,
    promptVersion,
    output: options.output,
    request,
    decoder: decoderOf(options.output, promptVersion),
    reading: digestOf([options.output.ast]),
    read,
    run: (row, place = { seq: 0, epoch: 0 }) =>
      Effect.flatMap(
        Effect.suspend(() => work(request(row), place)),
        ([result]) => result
      ),
    work,
    withModel: (model) => make({ ...options, model }),
    forMode: (mode) =>
      options.adapter !== undefined || mode === adapter.mode
        ? agent
        : make({ ...options, adapter: OutputAdapter.of(mode) })
  }
  return agent
}

/** The typed value of an answer, or what is wrong with it, a line each. */
const reader = <A, I>(adapter: OutputAdapter.OutputAdapter, schema: Schema.Schema<A, I>) => {
  const decode = Schema.decodeUnknownEither(schema, { errors: "all" })
  return (text: string): Either.Either<A, ReadonlyArray<string>> =>
    Either.mapLeft(adapter.read(text), (problem) => [problem]).pipe(
      Either.flatMap((value) => Either.mapLeft(decode(value), problemsOf))
    )
}

const problemsOf = (error: ParseResult.ParseError): ReadonlyArray<string> =>
  ParseResult.ArrayFormatter.formatErrorSync(error).map(({ message, path }) =>
    path.length === 0 ? message : `${path.map(String).join(".")}: ${message}`
  )

const repair = (request: ChatRequest, bad: string, problems: ReadonlyArray<string>): ChatRequest =>
  makeRequest({
    ...request,
    messages: [
      ...request.messages,
      { role: "assistant", content: bad },
      {
        role: "user",
        content: `That answer does not fit:\n${problems.join("\n")}\nAnswer again with the corrected JSON only.`
      }
    ]
  })

const resultOf = <A>(replies: ReadonlyArray<Reply>, parsed: A | undefined, promptVersion: string): AgentResult<A> =>
  Object.freeze({
    output: replies.at(-1)?.answer.text ?? "",
    parsed: deepFreeze(parsed),
    usage: Usage.sum(replies.map((reply) => reply.usage)),
    partial: parsed === undefined,
    promptVersion
  })

const factsOf = (replies: ReadonlyArray<Reply>): OutcomeFacts => ({
  storeHit: false,
  memoHits: replies.filter((reply) => reply.source === "memo").length,
  replays: replies.filter((reply) => reply.source === "replay").length,
  freeRepairs: replies.slice(1).filter((reply) => reply.source !== "call").length,
  unasked: false,
  fallback: replies.some((reply) => reply.fallback)
})

/** The decode side of the schema and the author's version: a change in either makes other results of the same answer. */
const decoderOf = <A, I>(schema: Schema.Schema<A, I>, promptVersion: string): string =>
  digestOf([promptVersion, String(schema.ast), schema.ast])

const digestOf = (parts: ReadonlyArray<unknown>): string => Identity.sha256(JSON.stringify(parts)).slice(0, 16)
