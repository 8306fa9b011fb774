import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Rows from "../../src/layers/Rows.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { askedOf, assessing, bytesOf, enrich, fileOf, inputJob, refusedBy, rowsOf } from "./inputs.ts"
import { assertSound, resultsOf } from "./vendors.ts"

/** The fixture with some of its bytes changed, as a file of its own. */
const changed = (name: string, change: (bytes: Buffer) => Buffer) =>
  Effect.map(tempDir, (dir) => {
    const path = join(dir, "vendors.csv")
    writeFileSync(path, change(bytesOf(name)))
    return Rows.csv(path)
  })

describe("csv input", () => {
  it.scopedLive("B19 bom: a byte-order mark is in no header, id, prompt or key", () =>
    Effect.gen(function* () {
      const name = "B19-bom-vendors.csv"
      const llm = assessing()
      const result = yield* enrich(inputJob(rowsOf(name)), llm)
      assertSound(result, llm.calls())
      assertIncludes(result, { status: "done", rows: 2, done: 2 })
      const rows = yield* resultsOf
      assert.deepStrictEqual(
        rows.map(({ id, record }) => [id, Object.keys(record)]),
        ["V-001", "V-002"].map((id) => [id, ["id", "name", "description", "updated_at"]])
      )
      assert.notInclude(JSON.stringify([askedOf(llm), rows]), "\ufeff")

      const without = yield* changed(name, (bytes) => bytes.subarray(3))
      const again = yield* enrich(inputJob(without), llm, { run: { runId: "without" } })
      assertIncludes(again, { status: "done", done: 2, calls: 0, storeHits: 2 })
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B38 ragged: a row with other cells than the header is refused by line and counts, none is shifted",
    () =>
      Effect.gen(function* () {
        const name = "B38-ragged-vendors.csv"
        const more = yield* refusedBy(inputJob(rowsOf(name)))
        assertIncludes(more, { reason: "malformed", line: 3 })
        assert.strictEqual(more.message, `${fileOf(name)}, line 3: the header has 4 columns, this row has 5`)
        const mended = yield* changed(name, (bytes) => Buffer.from(bytes.toString().replace(/^V-002.*\n/m, "")))
        const fewer = yield* refusedBy(inputJob(mended))
        assert.strictEqual(fewer.message, `${mended.location}, line 3: the header has 4 columns, this row has 3`)
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B60 dup-headers: a column that comes twice is refused by its places", () =>
    Effect.gen(function* () {
      const error = yield* refusedBy(inputJob(rowsOf("B60-dup-headers-vendors.csv")))
      assertIncludes(error, { reason: "malformed", line: 1, field: "id" })
      assert.include(error.message, '"id" heads two columns (columns 1 and 3)')
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B61 unclosed-quote: a quote that is never closed is refused by the line that opens it", () =>
    Effect.gen(function* () {
      const error = yield* refusedBy(inputJob(rowsOf("B61-unclosed-quote-vendors.csv")))
      assertIncludes(error, { reason: "malformed", line: 3 })
      assert.include(error.message, "line 3: the quote opened here is never closed")
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B109 win1252: a byte that is not UTF-8 is refused by line, column and value", () =>
    Effect.gen(function* () {
      const name = "B109-win1252-vendors.csv"
      const error = yield* refusedBy(inputJob(rowsOf(name)))
      assertIncludes(error, { reason: "malformed", line: 2, fix: "save the file as UTF-8" })
      // The é of `V-001,Café`, in its tenth place.
      assert.include(error.message, "line 2: column 10: the byte 0xE9 is not UTF-8")

      // What the fix leads to.
      const saved = yield* changed(name, (bytes) => Buffer.from(bytes.toString("latin1")))
      const llm = assessing()
      assertIncludes(yield* enrich(inputJob(saved), llm), { status: "done", done: 2 })
      const [first] = askedOf(llm)
      assert.strictEqual(first?.name, "Caf\u00e9 M\u00f6ller")
      assert.strictEqual(first?.description, "Sells 40 m\u00b2 tents.")
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B138 dup-headers-suffix: a header that comes twice is refused, and nothing gets a suffix", () =>
    Effect.gen(function* () {
      const name = "B138-dup-headers-suffix-vendors.csv"
      const error = yield* refusedBy(inputJob(rowsOf(name)))
      assertIncludes(error, { reason: "malformed", line: 1, field: "name" })
      assert.include(error.message, '"name" heads two columns (columns 2 and 3)')

      // The operator's own names: all six values are there.
      const renamed = yield* changed(name, (bytes) => Buffer.from(bytes.toString().replace("name,name", "name,name_2")))
      assertIncludes(yield* enrich(inputJob(renamed), assessing()), { status: "done", done: 1 })
      const [row] = yield* resultsOf
      assert.deepStrictEqual(Object.entries(row?.record ?? {}), [
        ["id", "V-001"],
        ["name", "a"],
        ["name_2", "a"],
        ["name_1", "b"],
        ["description", "Makes things."],
        ["updated_at", "2026-09-28T10:00:00Z"]
      ])
    }).pipe(Effect.provide(Memory.layer))
  )
})
