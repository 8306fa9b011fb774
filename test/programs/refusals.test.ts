import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Either, Option, Stream } from "effect"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { classify, type Input } from "../../src/services/Classify.ts"
import type { LLMShape } from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"
import { profiles } from "../../src/services/Profile.ts"
import * as Retry from "../../src/services/Retry.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { idOf, textOf } from "../support/scriptedJob.ts"
import { model, type Script, tokens } from "../support/scriptedLlm.ts"
import { endOf, eventsOf, from, inMemory, jobOf, named, runId } from "../support/twoProviders.ts"

const failing = (input: Input) => Effect.fail(classify(input))
/** As a server names no param and no code: what is wrong stands in no table. */
const refused = failing({ status: 400, body: { error: { message: "I do not like this request" } } })
const page = {
  text: "<html>Sorry, you have been blocked</html>",
  headers: new Headers({ "content-type": "text/html" })
}
const blocked = failing({ status: 403, ...page })
const unfit = failing({
  status: 400,
  profile: profiles.groq,
  body: { error: { code: "json_validate_failed", message: "Failed to generate JSON", failed_generation: "{" } }
})

/** Calls of a second, four at once, five tries a row. */
const play = (script: Script, rows: number, shape: Partial<LLMShape> = {}) =>
  Effect.gen(function* () {
    const llm = named("a", (call) => Effect.zipRight(Effect.sleep("1 second"), script(call)), shape)
    const events = yield* eventsOf(jobOf(rows, { retry: Retry.standard }), llm.layer)
    return { end: endOf(events), events, counts: llm.counts }
  })
const mostOf = ({ byRow }: { readonly byRow: ReadonlyMap<string, number> }) => Math.max(...byRow.values())
/** A row's hold, with a number of one digit. */
const hold = Price.hold(
  { model, from: "1970-01-01", input: 0.15, output: 0.6 },
  jobOf(1).agent.request({ id: 0, text: textOf(0) })
)

describe("a job that is wrong", () => {
  const faults: ReadonlyArray<readonly [string, Input]> = [
    [
      "a wrong Gemini key",
      { status: 400, profile: profiles.gemini, body: [{ error: { code: 400, message: "API key not valid." } }] }
    ],
    [
      "an argument that OpenAI does not know",
      { status: 400, body: { error: { message: "Unrecognized request argument supplied: x", param: null } } }
    ]
  ]
  for (const [name, input] of faults) {
    it(`${name}: the run stops with the first calls, no row fails, nothing is paid`, () =>
      inMemory(
        Effect.gen(function* () {
          const { counts, end } = yield* play(() => failing(input), 200)
          assertIncludes(end, { status: "suspended", failed: 0, pending: 200, uncertain: 0, spent: 0 })
          assert.strictEqual(end.reason?.kind, "provider")
          assert.strictEqual(counts.calls, 4)
        })
      ))
  }

  it("an argument that Azure does not know: the first calls may be billed, no more", () =>
    inMemory(
      Effect.gen(function* () {
        const body = { error: { message: "Unrecognized request argument supplied: x", param: null, code: null } }
        const { end } = yield* play(() => failing({ status: 400, profile: profiles.azure, body }), 200)
        assertIncludes(end, { status: "suspended", failed: 0, calls: 4, uncertain: 4 * hold })
      })
    ))

  it("and refused in words that nobody knows: the run stops after ten refusals, as the provider's", () =>
    inMemory(
      Effect.gen(function* () {
        const { counts, end } = yield* play(() => refused, 200)
        assertIncludes(end, { status: "suspended", done: 0, held: 0, spent: 0 })
        assert.strictEqual(end.reason?.kind, "provider")
        assert.include(end.reason?.message ?? "", "I do not like this request")
        // The tenth, and three that were under way.
        assert.isAtMost(counts.calls, 10 + 3)
        assert.isAtMost(end.failed, 10 + 3)
      })
    ))

  it("is not what it is once one row was answered: then the rows are wrong", () =>
    inMemory(
      Effect.gen(function* () {
        const { counts, end } = yield* play(({ row }) => (idOf(row) === 2 ? from(model) : refused), 60)
        assertIncludes(end, { status: "done", done: 1, failed: 59 })
        assert.strictEqual(counts.calls, 60)
      })
    ))
})

describe("a row that a firewall refuses", () => {
  it("fails alone", () =>
    inMemory(
      Effect.gen(function* () {
        const { counts, end } = yield* play(({ row }) => (idOf(row) === 5 ? blocked : from(model)), 40)
        assertIncludes(end, { status: "done", done: 39, failed: 1, reason: null })
        assert.strictEqual(counts.byRow.get(textOf(5)), 1)
      })
    ))
})

describe("a model that does not keep the schema (json_validate_failed)", () => {
  for (const [name, bad] of [
    ["all rows", () => true],
    ["eight rows of ten", (id: number) => id % 10 < 8]
  ] as const) {
    it(`${name}: each is asked twice, the breaker stays closed`, () =>
      inMemory(
        Effect.gen(function* () {
          const { counts, end, events } = yield* play(({ row }) => (bad(idOf(row)) ? unfit : from(model)), 60)
          const failed = Array.from({ length: 60 }, (_, id) => id).filter((id) => bad(id)).length
          assertIncludes(end, { status: "done", failed, done: 60 - failed, calls: 60 + failed, held: 0 })
          assert.strictEqual(mostOf(counts), 2)
          assert.isFalse(events.some(({ event }) => event._tag === "ProviderDown"))
        })
      ))
  }
})

describe("an answer that says nothing", () => {
  const billed = 10 * 150 + 5 * 600

  for (const [name, parts] of [
    ["empty", { text: " \n" }],
    ["broken off by the server", { text: '{"summary":', finish: "error" }]
  ] as const) {
    it(`${name}: is bought once more and not again, each time at its price`, () =>
      inMemory(
        Effect.gen(function* () {
          const { counts, end, events } = yield* play(() => from(model, parts), 20)
          assertIncludes(end, { status: "done", failed: 20, calls: 40, spent: 40 * billed, uncertain: 0 })
          assert.strictEqual(mostOf(counts), 2)
          assert.isFalse(events.some(({ event }) => event._tag === "ProviderDown"))
        })
      ))
  }

  it("empty once: the second one counts", () =>
    inMemory(
      Effect.gen(function* () {
        const { end } = yield* play(({ nth }) => from(model, nth === 1 ? { text: "" } : {}), 20)
        assertIncludes(end, { status: "done", done: 20, calls: 40, spent: 40 * billed })
      })
    ))

  it("all reasoning: is truncated, and not bought again", () =>
    inMemory(
      Effect.gen(function* () {
        const usage = { ...tokens(10, 90), reasoningTokens: 90 }
        const { counts, end } = yield* play(() => from(model, { text: "", usage }), 20)
        assertIncludes(end, { status: "done", failed: 20, calls: 20, spent: 20 * (10 * 150 + 90 * 600) })
        assert.strictEqual(mostOf(counts), 1)
        const rows = yield* Stream.runCollect(Enrichment.results(runId, jobOf(20).agent.output))
        for (const { outcome } of Chunk.toReadonlyArray(rows)) {
          const failure = Option.getOrUndefined(Option.flatMap(outcome, Either.getLeft))
          assert.strictEqual(failure?.reason, "truncated")
          assert.include(failure?.message ?? "", "all 90 output tokens went into reasoning")
        }
      })
    ))
})

describe("a server that costs more than the table says", () => {
  it("holds and bills by its factor", () =>
    inMemory(
      Effect.gen(function* () {
        const { end } = yield* play(({ n }) => from(model, n === 1 ? { usage: undefined } : {}), 5, {
          priceFactor: profiles.openaiRegional.priceFactor
        })
        // Four calls at a tenth more, and one whose usage is not known at its hold, which is a tenth more too.
        assertIncludes(end, { done: 5, spent: 4 * 4_950 })
        assert.closeTo(end.uncertain, hold * 1.1, 1)
      })
    ))
})
