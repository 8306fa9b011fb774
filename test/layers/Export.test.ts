import {
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync
} from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, beforeEach, describe, it } from "@effect/vitest"
import { Chunk, Deferred, Effect, FastCheck, Fiber, Stream } from "effect"
import { afterEach } from "vitest"
import * as Export from "../../src/layers/Export.ts"
import * as Rows from "../../src/layers/Rows.ts"

let dir = ""
let path = ""
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "longhaul-export-"))
  path = join(dir, "out.csv")
})
afterEach(() => rmSync(dir, { recursive: true }))

const text = () => readFileSync(path, "utf8")
const writeCells = (cells: ReadonlyArray<unknown>, options?: Export.CsvOptions) =>
  Effect.map(
    Export.writeCsv(
      path,
      ["a"],
      Stream.map(Stream.fromIterable(cells), (a) => ({ a })),
      options
    ),
    () => text().slice(2)
  )

describe("writeCsv", () => {
  it.effect("writes the columns in order, RFC 4180 quotes, JSON for nested values, and gives the rows' number", () =>
    Effect.gen(function* () {
      const rows = [
        { id: "1", note: 'a "b", c', extra: "left out" },
        { note: "two\nlines", id: 2, tags: ["x", { y: null }], at: new Date(0) },
        { id: null, note: undefined, tags: true }
      ]
      assert.strictEqual(yield* Export.writeCsv(path, ["id", "note", "tags", "at"], Stream.fromIterable(rows)), 3)
      assert.strictEqual(
        text(),
        'id,note,tags,at\n1,"a ""b"", c",,\n2,"two\nlines","[""x"",{""y"":null}]",1970-01-01T00:00:00.000Z\n,,true,\n'
      )
    })
  )

  it.effect("makes text that begins like a formula safe, header names too; numbers stay numbers", () =>
    Effect.gen(function* () {
      const hostile = [
        "=1+1",
        "+1",
        "-1+1",
        "@SUM(1)",
        "\t=1",
        "\rx",
        "\nx",
        " =1",
        "＝1",
        "＋1",
        "－1",
        "＠x",
        '=A("x")'
      ]
      const safe = hostile.map((cell) => `"'${cell.replaceAll('"', '""')}"\n`).join("")
      assert.strictEqual(yield* writeCells(hostile), safe)
      assert.strictEqual(yield* writeCells([-5, -1e-7, 7n, "-12.50"]), "-5\n-1e-7\n7\n-12.50\n")
      yield* Export.writeCsv(path, ["=x", "b"], Stream.empty)
      assert.strictEqual(text(), `"'=x",b\n`)
    })
  )

  it.effect("writes ordinary ids byte for byte, and all text so with raw", () =>
    Effect.gen(function* () {
      const ids = [
        "NA",
        "NAN",
        "TRUE",
        "007",
        "1E5",
        "  7",
        "4.20",
        "null",
        "'x",
        "a=b",
        "9007199254740993",
        "cafe\u0301"
      ]
      assert.strictEqual(yield* writeCells(ids), ids.map((id) => `${id}\n`).join(""))
      assert.strictEqual(yield* writeCells(["=1+1", "@x"], { raw: true }), "=1+1\n@x\n")
    })
  )

  it.effect("quotes what a reader would take for a byte-order mark", () =>
    Effect.gen(function* () {
      yield* Export.writeCsv(path, ["\ufeffa"], Stream.empty)
      assert.strictEqual(text(), '"\ufeffa"\n')
    })
  )

  it.effect("takes own properties only", () =>
    Effect.gen(function* () {
      yield* Export.writeCsv(path, ["id", "toString", "constructor"], Stream.make({ id: 1 }))
      assert.strictEqual(text(), "id,toString,constructor\n1,,\n")
    })
  )

  it.effect.prop(
    "what it writes raw, Rows.csv reads back",
    [
      FastCheck.uniqueArray(FastCheck.fullUnicodeString(), { minLength: 1, maxLength: 4 }),
      FastCheck.array(FastCheck.array(special(), { minLength: 4, maxLength: 4 }), { maxLength: 6 }),
      FastCheck.constantFrom(",", ";", "\t")
    ],
    ([columns, table, delimiter]) =>
      Effect.gen(function* () {
        const rows = table.map((cells) => columns.map((column, i) => [column, cells[i] ?? ""] as const))
        const stream = Stream.map(Stream.fromIterable(rows), (row) => Object.fromEntries(row))
        yield* Export.writeCsv(path, columns, stream, { raw: true, delimiter })
        const back = yield* Stream.runCollect(Rows.csv(path, { delimiter }).rows)
        // Through the entries of an object on both sides: it moves names such as "0" to the front.
        assert.deepStrictEqual(
          Chunk.toReadonlyArray(back).map((row) => Object.entries(Object(row.value))),
          rows.map((row) => Object.entries(Object.fromEntries(row)))
        )
      }),
    { timeout: 30_000, fastCheck: { numRuns: 100 } }
  )
})

/** Strings dense in what CSV treats specially. */
function special() {
  const char = FastCheck.constantFrom(
    '"',
    ",",
    ";",
    "\t",
    "\r",
    "\n",
    " ",
    "'",
    "=",
    "\ufeff",
    "\u2028",
    "a",
    "é",
    "😀"
  )
  return FastCheck.oneof(FastCheck.stringOf(char, { maxLength: 5 }), FastCheck.fullUnicodeString())
}

describe("writeJsonl", () => {
  it.effect("writes exact texts, one line a row; U+2028 and lone surrogates are escaped", () =>
    Effect.gen(function* () {
      const rows = [
        { id: "=1+1", n: 1, at: new Date(0), u: "a\u2028b\u2029" },
        { id: "\ud83d", skip: undefined }
      ]
      assert.strictEqual(yield* Export.writeJsonl(path, Stream.fromIterable(rows)), 2)
      assert.strictEqual(
        text(),
        '{"id":"=1+1","n":1,"at":"1970-01-01T00:00:00.000Z","u":"a\\u2028b\\u2029"}\n{"id":"\\ud83d"}\n'
      )
    })
  )

  it.effect("refuses a row without a JSON form by its number, and leaves nothing", () =>
    Effect.gen(function* () {
      const rows = Stream.concat(
        Stream.map(Stream.range(1, 300), (id) => ({ id })),
        Stream.make({ id: 1n })
      )
      const error = yield* Effect.flip(Export.writeJsonl(path, rows))
      assert.strictEqual(error.reason, "bad_row")
      assert.include(error.message, "row 301")
      assert.deepStrictEqual(readdirSync(dir), [])
    })
  )
})

describe("any export", () => {
  const one = Stream.make({ a: 1 })

  it.effect("replaces the older file in one step, with mode 0600", () =>
    Effect.gen(function* () {
      writeFileSync(path, "old", { mode: 0o644 })
      const rows = Stream.tap(one, () => Effect.sync(() => assert.strictEqual(text(), "old")))
      yield* Export.writeCsv(path, ["a"], rows)
      assert.strictEqual(text(), "a\n1\n")
      assert.strictEqual(statSync(path).mode & 0o777, 0o600)
      assert.deepStrictEqual(readdirSync(dir), ["out.csv"])
    })
  )

  it.effect("leaves the older file alone when the rows fail, and passes their error on", () =>
    Effect.gen(function* () {
      writeFileSync(path, "old")
      const rows = Stream.concat(one, Stream.fail("boom"))
      assert.strictEqual(yield* Effect.flip(Export.writeCsv(path, ["a"], rows)), "boom")
      assert.strictEqual(text(), "old")
      assert.deepStrictEqual(readdirSync(dir), ["out.csv"])
    })
  )

  it.effect("leaves nothing when it is interrupted", () =>
    Effect.gen(function* () {
      const started = yield* Deferred.make<void>()
      const rows = Stream.concat(
        one,
        Stream.fromEffect(Effect.zipRight(Deferred.succeed(started, undefined), Effect.never))
      )
      const fiber = yield* Effect.fork(Export.writeCsv(path, ["a"], rows))
      yield* Deferred.await(started)
      assert.match(readdirSync(dir).join(), /^\.out\.csv\.[0-9a-f]{12}\.tmp$/)
      yield* Fiber.interrupt(fiber)
      assert.deepStrictEqual(readdirSync(dir), [])
    })
  )

  it.effect("refuses a symlink, a directory and a missing directory, and leaves nothing", () =>
    Effect.gen(function* () {
      writeFileSync(join(dir, "target"), "old")
      symlinkSync(join(dir, "target"), path)
      const refusal = yield* Effect.flip(Export.writeCsv(path, ["a"], one))
      assert.strictEqual(refusal.reason, "unreadable")
      assert.include(refusal.message, `${path} cannot be written: it is a symbolic link`)
      assert.strictEqual(readFileSync(join(dir, "target"), "utf8"), "old")
      mkdirSync(join(dir, "d.csv"))
      assert.strictEqual((yield* Effect.flip(Export.writeCsv(join(dir, "d.csv"), ["a"], one))).reason, "unreadable")
      assert.strictEqual((yield* Effect.flip(Export.writeCsv(join(dir, "no/x.csv"), ["a"], one))).reason, "unreadable")
      assert.deepStrictEqual(readdirSync(dir).sort(), ["d.csv", "out.csv", "target"])
    })
  )

  it.effect("takes its form from the extension", () =>
    Effect.gen(function* () {
      for (const [name, expected] of [
        ["x.csv", "a\n1\n"],
        ["x.TSV", "a\n1\n"],
        ["x.jsonl", '{"a":1}\n'],
        ["x.ndjson", '{"a":1}\n']
      ] as const) {
        path = join(dir, name)
        yield* Export.write(path, ["a"], one)
        assert.strictEqual(text(), expected)
      }
      assert.strictEqual((yield* Effect.flip(Export.write("x.xlsx", ["a"], one))).reason, "bad_option")
    })
  )

  it.effect("writes a few rows at a time, whatever the stream's chunks", () =>
    Effect.gen(function* () {
      const onDisk = () => readdirSync(dir).reduce((sum, name) => sum + statSync(join(dir, name)).size, 0)
      const ahead: Array<number> = []
      // Asked when the row is encoded: how many rows are not yet written?
      const row = (n: number) => ({ n: { toJSON: () => ahead.push(n - onDisk() / 12) && 10_000 } })
      assert.strictEqual(yield* Export.writeJsonl(path, Stream.fromChunk(Chunk.makeBy(1000, row))), 1000)
      assert.strictEqual(statSync(path).size, 1000 * '{"n":10000}\n'.length)
      assert.isAtMost(Math.max(...ahead), 16)
    })
  )
})
