import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import { jsonObject, jsonSchema, text } from "../../src/services/OutputAdapter.ts"
import * as Price from "../../src/services/Price.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { type Fixture, play, repliesOf, type Script } from "../support/fixtureServer.ts"
import {
  assertSound,
  BILL,
  completion,
  EnrichedVendor,
  failureOf,
  fixture,
  good,
  idOf,
  jobFor,
  jobOf,
  price,
  resultOf,
  run,
  thenGood,
  tokens,
  vendors
} from "./vendors.ts"

/** The content that a fixture's nth reply holds. */
const contentOf = (of: Fixture, nth = 0): string => {
  const decode = Schema.decodeUnknownSync(
    Schema.Struct({
      choices: Schema.NonEmptyArray(Schema.Struct({ message: Schema.Struct({ content: Schema.String }) }))
    })
  )
  return decode(repliesOf(of)[nth]?.body).choices[0].message.content
}

/** The same reply to each request about the row, a good one to all others. */
const always =
  (id: string, of: Fixture): Script =>
  (seen) => {
    const [reply] = repliesOf(of)
    return idOf(seen) === id && reply !== undefined ? reply : good(seen)
  }

describe("model output", () => {
  it.scopedLive(
    "B08 truncated-repaired: an answer that was cut is not closed up, its row fails as truncated, billed in full",
    () =>
      Effect.gen(function* () {
        const cut = fixture("B08-truncated-repaired-http")
        // What a lenient reader would have made of it.
        assert.strictEqual(Schema.decodeUnknownSync(EnrichedVendor)(JSON.parse(`${contentOf(cut)}"}`)).risk, "low")
        const server = yield* play(always("V-001", cut))
        const result = yield* run(jobOf(), server)
        assertSound(result, server.requests.length)
        const bill = Price.cost(price, tokens(820, 400))
        assertIncludes(result, { failed: 1, done: 0, calls: 1, spent: bill, uncertain: 0 })
        const failure = yield* failureOf("V-001")
        assertIncludes(failure, { reason: "truncated", category: "PERMANENT" })
        assert.match(failure.message, /output limit.*maxOutputTokens/)
      }).pipe(Effect.provide(Memory.layer))
  )

  for (const name of ["B09-wrong-id-http", "B09-wrong-id-http-typo"]) {
    it.scopedLive(
      `B09 wrong-id: an answer that names another row is repaired once, then kept as text only (${name})`,
      () =>
        Effect.gen(function* () {
          const wrong = fixture(name)
          const server = yield* play(always("V-001", wrong))
          const job = jobOf({ rows: vendors(2) })
          const result = yield* run(job, server)
          assertSound(result, server.requests.length)
          assertIncludes(result, {
            done: 1,
            partial: 1,
            failed: 0,
            calls: 3,
            repairs: 1,
            spent: 3 * BILL,
            uncertain: 0
          })
          assertIncludes(yield* resultOf("V-001"), { partial: true, parsed: undefined, output: contentOf(wrong) })
          assertIncludes(yield* resultOf("V-002"), {
            parsed: { vendor_id: "V-002", summary: "Makes fasteners.", risk: "low" }
          })
          // Nothing of it became a stored result: a later run asks for V-001 only.
          assert.include(server.requests.find(({ said, n }) => n > 1 && said.startsWith("V-001"))?.body ?? "", "V-001")
          const before = server.requests.length
          const later = yield* run(job, server, { run: { runId: "later" } })
          assertIncludes(later, { done: 1, partial: 1, storeHits: 1, calls: 2 })
          assert.isTrue(server.requests.slice(before).every((seen) => idOf(seen) === "V-001"))
        }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive(
    "B70 enum-drift: a word outside the list costs one repair and this row alone, and is mapped to nothing",
    () =>
      Effect.gen(function* () {
        const drift = fixture("B70-enum-drift-http-seq")
        const said = new Map<string, number>()
        const server = yield* play((seen) => {
          const nth = said.get(idOf(seen)) ?? 0
          said.set(idOf(seen), nth + 1)
          return idOf(seen) === "V-001" ? (repliesOf(drift)[nth] ?? good(seen)) : good(seen)
        })
        const result = yield* run(jobOf({ rows: vendors(5) }), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { done: 4, partial: 1, failed: 0, calls: 6, repairs: 1, spent: 6 * BILL })
        const row = yield* resultOf("V-001")
        assertIncludes(row, { partial: true, parsed: undefined, output: contentOf(drift, 1) })
        assert.strictEqual(row.usage.cost, 2 * BILL)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B104 refusal-null: a refusal is one billed call and a failed row, and its words are kept", () =>
    Effect.gen(function* () {
      const server = yield* play(always("V-001", fixture("B104-refusal-null-http")))
      const result = yield* run(jobOf(), server)
      assertSound(result, server.requests.length)
      assertIncludes(result, { failed: 1, calls: 1, repairs: 0, retries: 0, spent: BILL, uncertain: 0 })
      const failure = yield* failureOf("V-001")
      assertIncludes(failure, { reason: "refusal", category: "PERMANENT" })
      assert.include([failure.message, ...failure.cause].join("\n"), "I'm sorry, I can't assist with that.")
    }).pipe(Effect.provide(Memory.layer))
  )

  for (const [mode, adapter] of Object.entries({ jsonSchema, jsonObject, text })) {
    it.scopedLive(`B118 fenced: right JSON in a fence is accepted on the first call (${mode})`, () =>
      Effect.gen(function* () {
        const server = yield* play(thenGood(fixture("B118-fenced-http")))
        const result = yield* run(jobOf({ adapter }), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { done: 1, calls: 1, repairs: 0, spent: BILL })
        assert.deepStrictEqual((yield* resultOf("V-001")).parsed, {
          vendor_id: "V-001",
          summary: "Makes galvanised fasteners for timber frames.",
          risk: "low"
        })
      }).pipe(Effect.provide(Memory.layer))
    )
  }

  for (const name of ["B124-wrapper-key-http-a", "B124-wrapper-key-http-b"]) {
    it.scopedLive(
      `B124 wrapper-key: an answer inside another object is repaired; the schema's keys alone are stored (${name})`,
      () =>
        Effect.gen(function* () {
          const server = yield* play(thenGood(fixture(name)))
          const result = yield* run(jobOf(), server)
          assertSound(result, server.requests.length)
          assertIncludes(result, { done: 1, partial: 0, calls: 2, repairs: 1, spent: 2 * BILL })
          assert.deepStrictEqual((yield* resultOf("V-001")).parsed, {
            vendor_id: "V-001",
            summary: "Makes fasteners.",
            risk: "low"
          })
        }).pipe(Effect.provide(Memory.layer))
    )
  }

  for (const [mode, adapter] of Object.entries({ jsonSchema, jsonObject, text })) {
    it.scopedLive(`B143 sloppy-json A: prose around the object does not cost another call (${mode})`, () =>
      Effect.gen(function* () {
        const server = yield* play(thenGood(fixture("B143-sloppy-json-http-a")))
        const result = yield* run(jobOf({ adapter }), server)
        assertSound(result, server.requests.length)
        assertIncludes(result, { done: 1, calls: 1, repairs: 0, spent: BILL })
      }).pipe(Effect.provide(Memory.layer))
    )

    for (const [name, what] of [
      ["B143-sloppy-json-http-b", "B: a trailing comma"],
      ["B143-sloppy-json-http-c", "C: two objects in one answer"]
    ] as const) {
      it.scopedLive(`B143 sloppy-json ${what} is settled by one repair, and both calls are billed (${mode})`, () =>
        Effect.gen(function* () {
          const server = yield* play(thenGood(fixture(name)))
          const result = yield* run(jobOf({ adapter }), server)
          assertSound(result, server.requests.length)
          assertIncludes(result, { done: 1, partial: 0, calls: 2, repairs: 1, spent: 2 * BILL })
          assertIncludes(yield* resultOf("V-001"), {
            parsed: { vendor_id: "V-001", summary: "Makes fasteners.", risk: "low" }
          })
        }).pipe(Effect.provide(Memory.layer))
      )
    }
  }

  it.scopedLive(
    "B144 string-typed-number: a number as text and a list as text are not taken for what they are not",
    () =>
      Effect.gen(function* () {
        const Scored = Schema.Struct({
          ...EnrichedVendor.fields,
          risk_score: Schema.Number.pipe(Schema.between(0, 1)),
          tags: Schema.Array(Schema.String)
        })
        const typed = fixture("B144-string-typed-number-http")
        const row = { vendor_id: "V-001", summary: "Fasteners.", risk: "low", risk_score: 0.7, tags: ["steel"] }
        const mended = yield* play(({ n }) => answerOf(n, typed, row))
        const done = yield* run(jobFor(Scored, {}), mended)
        assertSound(done, mended.requests.length)
        assertIncludes(done, { done: 1, calls: 2, repairs: 1, spent: 2 * BILL })
        assert.deepStrictEqual((yield* resultOf("V-001")).parsed, row)

        const stubborn = yield* play(always("V-001", typed))
        const other = yield* run(jobFor(Scored, { rows: vendors(1, 900) }), stubborn, { run: { runId: "stubborn" } })
        assertIncludes(other, { done: 0, partial: 1, calls: 2, spent: 2 * BILL })
      }).pipe(Effect.provide(Memory.layer))
  )
})

/** The fixture first, then the answer as it should be. */
const answerOf = (n: number, first: Fixture, row: object) => {
  const [reply] = repliesOf(first)
  return n === 1 && reply !== undefined ? reply : completion(JSON.stringify(row))
}
