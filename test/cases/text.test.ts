import { readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Rows from "../../src/layers/Rows.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { countingLlm, promptOf } from "../support/countingLlm.ts"
import { tempDir } from "../support/mortalProcess.ts"
import {
  askedOf,
  assessing,
  bytesOf,
  enrich,
  exportTo,
  fileOf,
  type Input,
  inputJob,
  refusedBy,
  rowsOf
} from "./inputs.ts"
import { assertSound, enriched, idOf, resultsOf } from "./vendors.ts"

const decodeLine = Schema.decodeSync(Schema.parseJson(Schema.Struct({ id: Schema.String, vendor_id: Schema.String })))
const cellsBeforeComma = (text: string): ReadonlyArray<string> =>
  text
    .trimEnd()
    .split("\n")
    .slice(1)
    .map((line) => line.split(",")[0] ?? "")

describe("ids and numbers", () => {
  it.scopedLive("B05 leading-zeros: ids that look like numbers are twelve texts, in prompt, book and exports", () =>
    Effect.gen(function* () {
      const name = "B05-leading-zeros-vendors.csv"
      const dir = yield* tempDir
      const ids = cellsBeforeComma(bytesOf(name).toString())
      assert.strictEqual(new Set(ids).size, 12)
      const llm = assessing()
      const job = inputJob(rowsOf(name))
      const result = yield* enrich(job, llm)
      assertSound(result, llm.calls())
      assertIncludes(result, { status: "done", rows: 12, done: 12, calls: 12 })
      assert.deepStrictEqual(
        askedOf(llm).map(({ id }) => id),
        [...ids].sort()
      )
      assert.deepStrictEqual(
        (yield* resultsOf).map(({ id }) => id),
        ids
      )
      for (const raw of [false, true]) {
        yield* exportTo(job, join(dir, "out.csv"), { raw })
        assert.deepStrictEqual(cellsBeforeComma(readFileSync(join(dir, "out.csv"), "utf8")), ids)
      }
      yield* exportTo(job, join(dir, "out.jsonl"))
      const lines = readFileSync(join(dir, "out.jsonl"), "utf8").trimEnd().split("\n")
      assert.deepStrictEqual(
        lines.map((line) => decodeLine(line)),
        ids.map((id) => ({ id, vendor_id: id }))
      )
    }).pipe(Effect.provide(Memory.layer))
  )
})

describe("jsonl input", () => {
  it.scopedLive("B89 u2028: a U+2028 in a text ends no line, reaches the prompt, and is escaped in our own files", () =>
    Effect.gen(function* () {
      const dir = yield* tempDir
      const llm = assessing()
      const job = inputJob(rowsOf("B89-u2028-vendors.jsonl"))
      assertIncludes(yield* enrich(job, llm), { status: "done", rows: 3, done: 3, calls: 3 })
      assert.strictEqual(askedOf(llm)[1]?.description, "Makes paper.\u2028Also card.")
      yield* exportTo(job, join(dir, "out.jsonl"))
      const text = readFileSync(join(dir, "out.jsonl"), "utf8")
      assert.notInclude(text, "\u2028")
      assert.include(text, "Makes paper.\\u2028Also card.")
      assert.lengthOf(text.trimEnd().split("\n"), 3)
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B145 blank-crlf-nonobject: blank lines are none, and a line that is no object is refused by number",
    () =>
      Effect.gen(function* () {
        const name = "B145-blank-crlf-nonobject-vendors.jsonl"
        const dir = yield* tempDir
        const lines = bytesOf(name).toString().split("\n")
        const without = (...numbers: ReadonlyArray<number>) => {
          const path = join(dir, "vendors.jsonl")
          writeFileSync(path, lines.filter((_, i) => !numbers.includes(i + 1)).join("\n"))
          return inputJob(Rows.jsonl(path))
        }
        const array = yield* refusedBy(inputJob(rowsOf(name)))
        assert.strictEqual(array.message, `${fileOf(name)}, line 4: the line is not a JSON object`)
        // Each time the line before is gone, so the next one is the fourth.
        assert.include((yield* refusedBy(without(4))).message, "line 4: the line is not a JSON object")
        assert.include((yield* refusedBy(without(4, 5))).message, "line 4: the line is not valid JSON")

        const llm = assessing()
        assertIncludes(yield* enrich(without(4, 5, 6), llm), { status: "done", rows: 2, done: 2, calls: 2 })
        const rows = yield* resultsOf
        assert.deepStrictEqual(
          rows.map(({ id, line }) => [id, line]),
          [
            ["V-001", 1],
            ["V-003", 4]
          ]
        )
        assert.notInclude(JSON.stringify(rows), "\\r")
      }).pipe(Effect.provide(Memory.layer))
  )
})

describe("unicode text", () => {
  it.scopedLive("B90 lone-surrogate: half a character is sent as U+FFFD, the row is paid once, its key is stable", () =>
    Effect.gen(function* () {
      const layer = Sqlite.layer({ filename: join(yield* tempDir, "run.db") })
      // The prompt's own cut at 200 units falls within the emoji of the first row.
      const prompt = ({ description, id }: Pick<Input, "id" | "description">) => `${id}: ${description.slice(0, 200)}`
      const job = inputJob(rowsOf("B90-lone-surrogate-vendors.jsonl"), { prompt })
      const llm = countingLlm((request) => JSON.stringify(enriched(idOf({ said: promptOf(request) }))))
      const result = yield* Effect.provide(enrich(job, llm), layer)
      assertSound(result, llm.calls())
      assertIncludes(result, { status: "done", rows: 3, done: 3, calls: 3, uncertain: 0 })
      const asked = [...llm.asked.keys()].sort()
      for (const text of asked) assert.notMatch(text, /\p{Surrogate}/u)
      assert.match(asked[0] ?? "", /^V-001: Acme x+\ufffd$/)
      assert.deepStrictEqual(asked.slice(1), [
        "V-002: broken \ufffd emoji",
        "V-003: family \u{1f468}\u200d\u{1f469}\u200d\u{1f467} flags \u{1f1f3}\u{1f1f4}"
      ])
      const again = yield* Effect.provide(enrich(job, llm, { run: { runId: "again" } }), layer)
      assertIncludes(again, { status: "done", done: 3, calls: 0, storeHits: 3 })
    })
  )

  it.scopedLive("B90 lone-surrogate: an id that holds half a character is refused, as no database gives it back", () =>
    Effect.gen(function* () {
      const rows = [
        { id: "V-001", description: "x" },
        { id: "V-\ud83d", description: "x" }
      ]
      const error = yield* refusedBy(inputJob(fromIterable(rows)))
      assertIncludes(error, { reason: "bad_row", line: 2, field: "id" })
    }).pipe(Effect.provide(Sqlite.layer({ filename: ":memory:" })))
  )

  it.scopedLive(
    "B131 nfc-nfd: ids that look alike are rows of their own, byte for byte, each with its own result",
    () =>
      Effect.gen(function* () {
        const llm = assessing()
        const result = yield* enrich(inputJob(rowsOf("B131-nfc-nfd-vendors.csv")), llm)
        assertSound(result, llm.calls())
        assertIncludes(result, { status: "done", rows: 4, done: 4, calls: 4 })
        const ids = ["caf\u00e9-1", "cafe\u0301-1", "\u212b-2", "\u00c5-2"]
        assert.deepStrictEqual(
          (yield* resultsOf).map(({ id }) => id),
          ids
        )
        assert.lengthOf(new Set(ids.map((id) => id.normalize())), 2)
        // Named by its own form, only that row is asked again.
        const again = assessing()
        yield* enrich(inputJob(rowsOf("B131-nfc-nfd-vendors.csv")), again, {
          run: { retry: { rows: ["cafe\u0301-1"] } }
        })
        assert.deepStrictEqual(
          askedOf(again).map(({ id }) => id),
          ["cafe\u0301-1"]
        )
      }).pipe(Effect.provide(Memory.layer))
  )
})

describe("empty input", () => {
  it.scopedLive(
    "B111 empty: a file without a header is refused, and one without rows ends at once with nothing asked",
    () =>
      Effect.gen(function* () {
        const bytes = yield* refusedBy(inputJob(rowsOf("B111-empty-zero-bytes.csv")))
        assertIncludes(bytes, { reason: "empty" })
        assert.include(bytes.message, "the file has no bytes")
        const dir = yield* tempDir
        for (const [name, runId] of [
          ["B111-empty-header-only.csv", "header"],
          ["B111-empty-blank-lines.csv", "blank"]
        ] as const) {
          const llm = assessing()
          const job = inputJob(rowsOf(name))
          const result = yield* enrich(job, llm, { run: { runId } })
          assertIncludes(result, { status: "done", rows: 0, filtered: 0, calls: 0, spent: 0, pending: 0 })
          assert.strictEqual(llm.calls(), 0)
          assert.strictEqual(ExitCode.ofResult(result), 0)
          const out = join(dir, `${runId}.csv`)
          assert.strictEqual(yield* exportTo(job, out, { runId }), 0)
          assert.strictEqual(readFileSync(out, "utf8"), "vendor_id,summary,risk,longhaul_status,longhaul_error\n")
        }
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B111 empty: a filter that leaves no row says how many it left out", () =>
    Effect.gen(function* () {
      const llm = assessing()
      const result = yield* enrich(inputJob(rowsOf("B19-bom-vendors.csv"), { where: () => false }), llm)
      assertIncludes(result, { status: "done", rows: 0, filtered: 2, calls: 0 })
      assert.strictEqual(llm.calls(), 0)
    }).pipe(Effect.provide(Memory.layer))
  )
})
