/** Whatever bytes a file has: rows, or an InputError that says where and how to mend it. What was written well comes back byte for byte. */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { Cause, Chunk, Effect, Exit, Option, Stream } from "effect"
import fc from "fast-check"
import * as Rows from "../../src/layers/Rows.ts"
import { InputError } from "../../src/services/Errors.ts"
import type { RowSource, SourceRow } from "../../src/services/RowSource.ts"
import { runs } from "./fuzz.ts"

const dir = mkdtempSync(join(tmpdir(), "longhaul-fuzz-"))
afterAll(() => rmSync(dir, { recursive: true }))
const file = join(dir, "rows")

const read = (source: RowSource): Promise<Exit.Exit<ReadonlyArray<SourceRow>, InputError>> =>
  Effect.runPromiseExit(Effect.map(Stream.runCollect(source.rows), Chunk.toReadonlyArray))

/** The rows, or nothing where the file was refused as it should be. */
const rowsOf = async (bytes: Uint8Array, source: RowSource): Promise<ReadonlyArray<SourceRow> | undefined> => {
  writeFileSync(file, bytes)
  const exit = await read(source)
  if (Exit.isSuccess(exit)) return exit.value
  const error = Option.getOrUndefined(Cause.failureOption(exit.cause))
  if (error === undefined) return assert.fail(Cause.pretty(exit.cause))
  assert.instanceOf(error, InputError)
  assert.strictEqual(error.file, file)
  assert.isString(error.fix)
  assert.notInclude(error.message, "\n")
  return undefined
}

/** Line by line and within the file; where lone carriage returns and line feeds are mixed, nobody agrees on what a line is. */
const checkLines = (rows: ReadonlyArray<SourceRow>, bytes: Uint8Array) => {
  const text = Buffer.from(bytes).toString("latin1")
  if (/\r(?!\n)/.test(text)) return
  const lines = text.split("\n").length
  let last = 0
  for (const { line } of rows) {
    assert.isAbove(line, last)
    assert.isAtMost(line, lines)
    last = line
  }
}

const piece = fc.oneof(
  {
    weight: 8,
    arbitrary: fc.constantFrom(
      '"',
      ",",
      "\n",
      "\r\n",
      "\r",
      '""',
      "\t",
      ";",
      "a",
      "id",
      "1",
      " ",
      "{",
      "}",
      ":",
      "[",
      "]"
    )
  },
  {
    weight: 2,
    arbitrary: fc.constantFrom(
      "\u0000",
      "\ufeff",
      "\u2028",
      "é",
      "😀",
      "__proto__",
      "null",
      "1e999",
      "9007199254740993",
      "\\u0000",
      '{"a":1}',
      '{"__proto__":1}'
    )
  },
  { weight: 1, arbitrary: fc.string({ unit: "binary", maxLength: 5 }) }
)
const bytes = fc.oneof(
  { weight: 6, arbitrary: fc.array(piece, { maxLength: 20 }).map((pieces) => Buffer.from(pieces.join(""))) },
  {
    weight: 2,
    arbitrary: fc
      .array(
        fc.oneof(
          piece.map((text) => Buffer.from(text)),
          fc.uint8Array({ maxLength: 3 })
        ),
        { maxLength: 12 }
      )
      .map((parts) => Buffer.concat(parts))
  },
  {
    weight: 1,
    arbitrary: fc
      .tuple(piece, fc.integer({ min: 1, max: 7_000 }))
      .map(([text, times]) => Buffer.from(text.repeat(times)))
  }
)

const cell = fc.oneof(
  fc.string({ maxLength: 8 }),
  fc.constantFrom("", " ", '"', ",", "\n", "\r\n", "007", "é\u0000", "\ufeff", "a\rb")
)
const table = fc
  .tuple(
    fc.uniqueArray(
      cell.filter((name) => name !== "" && !name.startsWith("\ufeff")),
      { minLength: 2, maxLength: 4 }
    ),
    fc.array(fc.array(cell, { minLength: 4, maxLength: 4 }), { maxLength: 4 })
  )
  .map(([header, rows]) => ({ header, rows: rows.map((row) => row.slice(0, header.length)) }))
const quoted = (text: string) => `"${text.replaceAll('"', '""')}"`
const written = (records: ReadonlyArray<ReadonlyArray<string>>, end: string, mark: string) =>
  Buffer.from(`${mark}${records.map((record) => record.map(quoted).join(",")).join(end)}${end}`)

/** JSON has no -0 and no own `__proto__` that a literal could make. */
const plain = fc.dictionary(fc.string(), fc.jsonValue({ maxDepth: 1 }), { maxKeys: 4, noNullPrototype: true })

describe("Rows of any bytes", () => {
  it("a CSV file is rows as wide as their header, or refused with its place and its fix", () =>
    fc.assert(
      fc.asyncProperty(bytes, fc.constantFrom(",", ";", "\t"), async (given, delimiter) => {
        const rows = await rowsOf(given, Rows.csv(file, { delimiter }))
        if (rows === undefined) return
        checkLines(rows, given)
        const widths = rows.map(({ value }) => Object.keys(Object(value)).length)
        assert.isAtMost(new Set(widths).size, 1)
        for (const { value } of rows) for (const text of Object.values(Object(value))) assert.isString(text)
      }),
      runs(1_500)
    ))

  it("a JSONL file is objects, or refused with its place and its fix", () =>
    fc.assert(
      fc.asyncProperty(bytes, async (given) => {
        const rows = await rowsOf(given, Rows.jsonl(file))
        if (rows === undefined) return
        checkLines(rows, given)
        for (const { value } of rows) assert.isNull(Object.getPrototypeOf(value))
      }),
      runs(1_500)
    ))

  it("a CSV file that was written by the rules gives back every cell, byte for byte", () =>
    fc.assert(
      fc.asyncProperty(
        table,
        fc.constantFrom("\n", "\r\n"),
        fc.constantFrom("", "\ufeff"),
        async ({ header, rows }, end, mark) => {
          const found = await rowsOf(written([header, ...rows], end, mark), Rows.csv(file))
          assert.deepStrictEqual(
            found?.map(({ value }) => Object.entries(Object(value))),
            rows.map((row) => Object.entries(Object.fromEntries(header.map((name, i) => [name, row[i] ?? ""]))))
          )
        }
      ),
      runs(1_000)
    ))

  it("a JSONL file that was written by the rules gives back every value", () =>
    fc.assert(
      fc.asyncProperty(
        fc.array(plain, { minLength: 1, maxLength: 5 }),
        fc.constantFrom("\n", "\r\n", "\n\n"),
        async (values, end) => {
          const texts = values.map((value) => JSON.stringify(value))
          // An integer that JSON would round is refused, see Rows.jsonl.
          fc.pre(!texts.some((text) => /\d{16}/.test(text)))
          const found = await rowsOf(Buffer.from(texts.join(end)), Rows.jsonl(file))
          assert.deepStrictEqual(
            found?.map(({ value }) => JSON.stringify(value)),
            texts
          )
        }
      ),
      runs(1_000)
    ))

  it("a number of any length takes no longer than its letters", async () => {
    // From each digit on, 120 seconds were spent on this one.
    const digits = "1".repeat(200_000)
    const rows = await rowsOf(Buffer.from(`{"a":${digits}.5}`), Rows.jsonl(file))
    assert.lengthOf(rows ?? [], 1)
    assert.isUndefined(await rowsOf(Buffer.from(`{"a":${digits}}`), Rows.jsonl(file)))
  })

  it("a line, a quoted cell or a file without a line end is refused when it passes 16 MiB, not read on", async () => {
    for (const start of ["", "id\n", 'id\n"', '{"a":"']) {
      const long = Buffer.concat([Buffer.from(start), Buffer.alloc(17 * 1024 * 1024, "x")])
      assert.isUndefined(await rowsOf(long, Rows.csv(file)))
      assert.isUndefined(await rowsOf(long, Rows.jsonl(file)))
    }
  })
})
