/** A job over rows as an operator keeps them, in files and tables. A row is asked about as JSON, so that none of its texts can be taken for another part. */
import { readFileSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { assert } from "@effect/vitest"
import { Clock, Effect, Logger, Option, Schema, Stream } from "effect"
import * as Export from "../../src/layers/Export.ts"
import * as Rows from "../../src/layers/Rows.ts"
import * as Agent from "../../src/programs/Agent.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import * as ResultRows from "../../src/programs/ResultRows.ts"
import * as Budget from "../../src/services/Budget.ts"
import { InputError, RunRefused } from "../../src/services/Errors.ts"
import * as Price from "../../src/services/Price.ts"
import type { RowSource } from "../../src/services/RowSource.ts"
import { type CountingLlm, countingLlm, promptOf } from "../support/countingLlm.ts"
import { EnrichedVendor, enriched, price, runId } from "./vendors.ts"

export const fileOf = (name: string): string => fileURLToPath(new URL(`./fixtures/${name}`, import.meta.url))
export const bytesOf = (name: string): Buffer => readFileSync(fileOf(name))
export const rowsOf = (name: string): RowSource =>
  name.endsWith(".csv") ? Rows.csv(fileOf(name)) : Rows.jsonl(fileOf(name))

export const Input = Schema.Struct({
  id: Schema.String,
  name: Schema.optional(Schema.String),
  description: Schema.String,
  updated_at: Schema.optional(Schema.String)
})
export type Input = typeof Input.Type

type Question = Pick<Input, "id" | "name" | "description">
const asJson = ({ description, id, name }: Question): string => JSON.stringify({ id, name, description })

export interface AssessorParts {
  readonly system?: string
  readonly model?: string
  readonly prompt?: (row: Question) => string
}

export const assessorWith = <A, I>(
  output: Schema.Schema<A, I>,
  { model = price.model, prompt = asJson, system = "" }: AssessorParts = {}
) =>
  Agent.make({
    name: "assessor",
    model,
    // Long enough that the bill of 820 tokens stays below its hold.
    system: `${"You assess vendors. ".repeat(50)}${system}`,
    prompt,
    output,
    maxOutputTokens: 400
  })

export interface InputParts<A, I> extends AssessorParts {
  readonly output: Schema.Schema<A, I>
  readonly version?: (row: Input) => string
  readonly where?: (row: Input) => boolean
  readonly chunkSize?: number
}

export const inputJobFor = <A extends { readonly vendor_id: string }, I>(
  source: RowSource,
  { chunkSize = 100, output, version, where, ...parts }: InputParts<A, I>
) =>
  Enrichment.make({
    name: "inputs",
    agent: assessorWith(output, parts),
    row: Input,
    id: (row) => row.id,
    outputId: (answer: A) => answer.vendor_id,
    source,
    chunkSize,
    ...(version === undefined ? {} : { version }),
    ...(where === undefined ? {} : { where })
  })

type Omitted = Omit<InputParts<EnrichedVendor, EnrichedVendor>, "output">
export const inputJob = (source: RowSource, parts: Omitted = {}) =>
  inputJobFor(source, { output: EnrichedVendor, ...parts })

/** Rows in memory: V-001 and so on. */
export const inputs = (n: number): ReadonlyArray<Input> =>
  Array.from({ length: n }, (_, i) => ({ id: `V-${String(i + 1).padStart(3, "0")}`, description: "Makes things." }))

const Asked = Schema.parseJson(
  Schema.Struct({ id: Schema.String, name: Schema.optional(Schema.String), description: Schema.String })
)
export const readAsked = Schema.decodeSync(Asked)

/** Answers about whatever row it is asked. */
export const assessing = (wait?: Parameters<typeof countingLlm>[1]): CountingLlm =>
  countingLlm((request) => JSON.stringify(enriched(readAsked(promptOf(request)).id)), wait)

/** What was asked, as the model read it, in the order of the ids. */
export const askedOf = (llm: CountingLlm) =>
  [...llm.asked.keys()].map((prompt) => readAsked(prompt)).sort((a, b) => (a.id < b.id ? -1 : 1))

const prices = Price.layer([price, { ...price, model: "mock-mega" }])

export interface Parts {
  readonly budget?: Budget.BudgetOptions
  readonly run?: Enrichment.RunOptions
}

/** A run with that provider: a dollar, eight calls at once, unless it is said otherwise. */
export const enrich = <Row, A, I>(
  job: Enrichment.Job<Row, A, I>,
  llm: Pick<CountingLlm, "layer">,
  { budget, run }: Parts = {}
) =>
  Enrichment.run(job, { runId, ...run }).pipe(
    Effect.provide(Budget.layer({ maxCostUsd: 1, maxConcurrency: 8, ...budget })),
    Effect.provide([llm.layer, prices])
  )

/** The source is refused before anything is sent, with the code of a bad input, and leaves no run behind. */
export const refusedBy = <Row, A, I>(job: Enrichment.Job<Row, A, I>) =>
  Effect.gen(function* () {
    const llm = assessing()
    const error = yield* Effect.flip(enrich(job, llm))
    if (!(error instanceof InputError)) return assert.fail(`an InputError was expected, not ${error}`)
    assert.strictEqual(ExitCode.ofError(error), 2)
    assert.strictEqual(llm.calls(), 0)
    assert.deepStrictEqual(yield* Enrichment.runs, [])
    return error
  })

export const refusal = <A, E, R>(run: Effect.Effect<A, E, R>) =>
  Effect.map(Effect.flip(run), (error) =>
    error instanceof RunRefused ? error : assert.fail(`a refusal was expected, not ${error}`)
  )

/** A run's rows to a file, as the command writes them. */
export const exportTo = <Row, A, I>(
  { agent }: Enrichment.Job<Row, A, I>,
  out: string,
  { raw = false, runId: id = runId }: { readonly raw?: boolean; readonly runId?: string } = {}
) =>
  Effect.gen(function* () {
    const rows = Enrichment.results(id, Schema.Unknown)
    const columns = Option.match(yield* Stream.runHead(rows), {
      onNone: () => [],
      onSome: ({ record }) => Object.keys(record)
    })
    const layout = ResultRows.layout(agent.output, columns)
    return yield* Export.write(out, layout.columns, Stream.map(rows, layout.row), { raw })
  })

/** Collects what is logged in the effect, into the list. */
export const hearing = (said: Array<string>) =>
  Effect.provide(
    Logger.replace(
      Logger.defaultLogger,
      Logger.make(({ message }) => void said.push(String(message)))
    )
  )

/** The clock in force, with a date of its own; the time that passes is the same. */
export const dated = <A, E, R>(effect: Effect.Effect<A, E, R>, date: () => number) =>
  Effect.flatMap(Effect.clock, (clock) =>
    Effect.withClock(effect, {
      [Clock.ClockTypeId]: Clock.ClockTypeId,
      unsafeCurrentTimeMillis: date,
      unsafeCurrentTimeNanos: () => clock.unsafeCurrentTimeNanos(),
      currentTimeMillis: Effect.sync(date),
      currentTimeNanos: clock.currentTimeNanos,
      sleep: (duration) => clock.sleep(duration)
    })
  )
