import { execFile } from "node:child_process"
import { fileURLToPath } from "node:url"
import { promisify } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import { Duration, Effect, Fiber, JSONSchema, type Layer, Schema, TestClock } from "effect"
import * as LLMSimulated from "../../src/layers/LLMSimulated.ts"
import { type ChatRequest, LLM, request } from "../../src/services/LLM.ts"

const Output = Schema.Struct({
  summary: Schema.String.pipe(Schema.maxLength(200)),
  risk: Schema.Literal("low", "medium", "high"),
  score: Schema.Int.pipe(Schema.between(1, 10)),
  seen: Schema.Date
})

const ask = (i: number, parts: Partial<ChatRequest> = {}) =>
  request({
    model: "simulated",
    messages: [{ role: "user", content: `Vendor ${i} sells paint and brushes to careful painters` }],
    maxOutputTokens: 500,
    format: { mode: "json_schema", name: "out", schema: JSONSchema.make(Output), strict: true },
    ...parts
  })
const asks = Array.from({ length: 100 }, (_, i) => ask(i))

/** Each end as one comparable value, in order. */
const ends = (layer: Layer.Layer<LLM>, requests: ReadonlyArray<ChatRequest> = asks) =>
  Effect.flatMap(LLM, (llm) => Effect.forEach(requests, (asked) => Effect.either(llm.generate(asked)))).pipe(
    Effect.provide(layer)
  )
const texts = (layer: Layer.Layer<LLM>, requests?: ReadonlyArray<ChatRequest>) =>
  Effect.map(ends(layer, requests), (all) =>
    all.map((end) => (end._tag === "Right" ? end.right.text || `refused: ${end.right.refusal}` : end.left.reason))
  )

const rough = { rate429: 0.1, rate5xx: 0.1, rateTimeout: 0.1, rateBadJson: 0.1, rateRefusal: 0.1 }

describe("LLMSimulated", () => {
  it.effect("the same seed and request give the same end; another seed or request another", () =>
    Effect.gen(function* () {
      const first = yield* texts(LLMSimulated.layer(rough))
      assert.deepStrictEqual(yield* texts(LLMSimulated.layer(rough)), first)
      assert.deepStrictEqual((yield* texts(LLMSimulated.layer(rough), [...asks].reverse())).reverse(), first)
      assert.notDeepEqual(yield* texts(LLMSimulated.layer({ ...rough, seed: 1 })), first)
      assert.isAbove(new Set(first).size, 50)
    })
  )

  it.live(
    "the same in another process, made up or from a Schema",
    () =>
      Effect.gen(function* () {
        const code = `
        const { layer } = await import("./src/layers/LLMSimulated.ts")
        const { LLM } = await import("./src/services/LLM.ts")
        const { Effect, Schema } = await import("effect")
        const output = Schema.Struct({ name: Schema.String, score: Schema.Number, when: Schema.Date })
        const schema = { additionalProperties: false, properties: { n: { maximum: 9, type: "integer" }, s: { type: "string" } }, type: "object" }
        const asks = ["a vendor of paint", "another one"].map((content) => ({
          maxOutputTokens: 500, format: { schema, name: "x", mode: "json_schema", strict: true }, messages: [{ content, role: "user" }], model: "m"
        }))
        const run = (l) => Effect.runPromise(Effect.provide(Effect.flatMap(LLM, (llm) => Effect.forEach(asks, llm.generate)), l))
        console.log(JSON.stringify((await run(layer())).concat(await run(layer({ output })))))`
        const cwd = fileURLToPath(new URL("../..", import.meta.url))
        const args = ["--import", "tsx", "--input-type=module", "-e", code]
        const child = yield* Effect.promise(() => promisify(execFile)(process.execPath, args, { cwd }))
        // Here the keys stand in another order.
        const schema = { type: "object", properties: { n: { type: "integer", maximum: 9 }, s: { type: "string" } } }
        const here = ["a vendor of paint", "another one"].map((content) =>
          request({
            model: "m",
            messages: [{ role: "user", content }],
            maxOutputTokens: 500,
            format: { mode: "json_schema", name: "x", schema: { ...schema, additionalProperties: false }, strict: true }
          })
        )
        const output = Schema.Struct({ name: Schema.String, score: Schema.Number, when: Schema.Date })
        const run = (layer: Layer.Layer<LLM>) =>
          Effect.provide(
            Effect.flatMap(LLM, (llm) => Effect.forEach(here, llm.generate)),
            layer
          )
        const all = [...(yield* run(LLMSimulated.layer())), ...(yield* run(LLMSimulated.layer({ output })))]
        assert.deepStrictEqual(JSON.parse(child.stdout), JSON.parse(JSON.stringify(all)))
      }),
    30_000
  )

  it.effect("made-up output fits the JSON schema, in the words of the prompt", () =>
    Effect.gen(function* () {
      for (const text of yield* texts(LLMSimulated.layer())) {
        const made = JSON.parse(text)
        const fits = Schema.is(Schema.Struct({ ...Output.fields, seen: Schema.String }))
        assert.isTrue(fits(made), text)
        assert.match(made.summary, /paint|brushes|careful|sells|Vendor/)
      }
    })
  )

  it.effect("made-up output ends for recursive schemas and keeps to bounds", () =>
    Effect.gen(function* () {
      interface Tree {
        readonly name: string
        readonly next: Tree | null
        readonly children: ReadonlyArray<Tree>
      }
      const Tree: Schema.Schema<Tree> = Schema.Struct({
        name: Schema.String,
        next: Schema.NullOr(Schema.suspend(() => Tree)),
        children: Schema.Array(Schema.suspend(() => Tree))
      }).annotations({ identifier: "Tree" })
      const Bounded = Schema.Struct({
        below: Schema.Number.pipe(Schema.lessThanOrEqualTo(-5)),
        above: Schema.Number.pipe(Schema.greaterThan(1000)),
        pair: Schema.Tuple(Schema.Int, Schema.Boolean),
        some: Schema.Array(Schema.Int).pipe(Schema.minItems(2), Schema.maxItems(3))
      })
      const schemas: ReadonlyArray<Schema.Schema.AnyNoContext> = [Tree, Bounded]
      for (const schema of schemas) {
        const requests = Array.from({ length: 50 }, (_, i) =>
          ask(i, {
            maxOutputTokens: 1_000_000,
            format: { mode: "json_schema", name: "x", schema: JSONSchema.make(schema), strict: true }
          })
        )
        const fits = Schema.is(schema)
        for (const text of yield* texts(LLMSimulated.layer(), requests)) assert.isTrue(fits(JSON.parse(text)), text)
      }
    })
  )

  it.effect("output from the job's Schema decodes by it, and varies", () =>
    Effect.gen(function* () {
      const all = yield* texts(LLMSimulated.layer({ output: Output }))
      yield* Effect.forEach(all, (text) => Schema.decodeUnknown(Schema.parseJson(Output))(text))
      assert.isAbove(new Set(all).size, 50)
    })
  )

  it.effect("respond decides alone", () =>
    Effect.gen(function* () {
      const respond = (asked: ChatRequest) => ({ said: asked.messages.length })
      assert.deepStrictEqual(yield* texts(LLMSimulated.layer({ respond, output: Output }), [ask(1)]), ['{"said":1}'])
      assert.deepStrictEqual(yield* texts(LLMSimulated.layer({ respond: () => "as it is" }), [ask(1)]), ["as it is"])
    })
  )

  it.effect("faults come at their rates, with the right charge", () =>
    Effect.gen(function* () {
      const many = Array.from({ length: 1000 }, (_, i) => ask(i, { format: { mode: "json_object" } }))
      const all = yield* ends(LLMSimulated.layer({ ...rough, retryAfterMs: 700 }), many)
      const counts: Record<string, number> = {}
      for (const end of all) {
        const error = end._tag === "Left" ? end.left : undefined
        const name =
          error !== undefined
            ? `${error.reason} ${error.category} ${error.charge} ${error.status} ${error.retryAfterMs}`
            : end._tag === "Right" && end.right.refusal !== undefined
              ? "refusal"
              : end._tag === "Right" && !end.right.text.endsWith("}")
                ? "bad json"
                : "good"
        counts[name] = (counts[name] ?? 0) + 1
      }
      // The last two are of those that are answered at all: 0.7 of them, and 0.7 x 0.9.
      const expected = {
        "rate_limited TRANSIENT none 429 700": 100,
        "server_error TRANSIENT uncertain 500 undefined": 100,
        "timeout TRANSIENT uncertain undefined undefined": 100,
        refusal: 70,
        "bad json": 63,
        good: 567
      }
      assert.deepStrictEqual(Object.keys(counts).sort(), Object.keys(expected).sort())
      for (const [name, count] of Object.entries(expected)) {
        assert.approximately(counts[name] ?? 0, count, 50, name)
      }
    })
  )

  it.effect("a retry draws anew, so it can succeed; an answered request begins anew", () =>
    Effect.gen(function* () {
      const llm = yield* Effect.provide(LLM, LLMSimulated.layer({ rate5xx: 0.5 }))
      const attempts = Effect.fnUntraced(function* (i: number) {
        for (let n = 1; n <= 50; n++) {
          if ((yield* Effect.either(llm.generate(ask(i))))._tag === "Right") return n
        }
        return Number.POSITIVE_INFINITY
      })
      const first = yield* Effect.forEach(asks, (_, i) => attempts(i))
      assert.isAbove(Math.max(...first), 3)
      assert.isBelow(Math.max(...first), 50)
      assert.deepStrictEqual(yield* Effect.forEach(asks, (_, i) => attempts(i)), first)
    })
  )

  it.effect("usage is by the bytes, and the output limit is kept to", () =>
    Effect.gen(function* () {
      const asked = ask(1, { maxOutputTokens: 3, messages: [{ role: "user", content: "é".repeat(9) }] })
      const llm = yield* Effect.provide(LLM, LLMSimulated.layer({ respond: () => "x".repeat(100) }))
      const answer = yield* llm.generate(asked)
      assert.deepStrictEqual([answer.text, answer.finish], ["x".repeat(12), "length"])
      assert.deepStrictEqual([answer.usage?.inputTokens, answer.usage?.outputTokens], [5, 3])
    })
  )

  it.effect("latency is slept on Effect's clock: TestClock drives it", () =>
    Effect.gen(function* () {
      const fiber = yield* Effect.fork(ends(LLMSimulated.layer({ latencyMs: 1000 }), [ask(1)]))
      yield* TestClock.adjust("999 millis")
      assert.isNull(fiber.unsafePoll())
      yield* TestClock.adjust("1 millis")
      yield* Fiber.join(fiber)
    })
  )

  it.effect("latency by median and 99th percentile", () =>
    Effect.gen(function* () {
      const latencyMs = { p50: 400, p99: 3000 }
      const one = (asked: ChatRequest) => Effect.timed(ends(LLMSimulated.layer({ latencyMs }), [asked]))
      const many = Array.from({ length: 100 }, (_, i) => ask(i, { format: { mode: "text" } }))
      const fiber = yield* Effect.fork(Effect.forEach(many, one, { concurrency: "unbounded" }))
      yield* TestClock.adjust("1 hour")
      const waits = (yield* Fiber.join(fiber)).map(([waited]) => Duration.toMillis(waited)).sort((a, b) => a - b)
      assert.approximately(waits[50] ?? 0, 400, 120)
      assert.isTrue((waits[0] ?? 0) < 150 && (waits[99] ?? 0) > 1500)
    })
  )
})
