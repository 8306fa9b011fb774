import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { afterAll, assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Either, Stream } from "effect"
import * as Rows from "../../src/layers/Rows.ts"
import type { InputError } from "../../src/services/Errors.ts"
import type { RowSource } from "../../src/services/RowSource.ts"

const dir = mkdtempSync(join(tmpdir(), "longhaul-rows-"))
afterAll(() => rmSync(dir, { recursive: true }))

let files = 0
const file = (content: string | Buffer, extension = "csv") => {
  const path = join(dir, `${files++}.${extension}`)
  writeFileSync(path, content)
  return path
}
const read = (source: RowSource) => Effect.map(Stream.runCollect(source.rows), Chunk.toReadonlyArray)
/** As entries: they show the order, and own properties only. */
const readCsv = (content: string | Buffer, delimiter = ",") =>
  Effect.map(read(Rows.csv(file(content), { delimiter })), (rows) =>
    rows.map(({ line, value }) => [line, Object.entries(Object(value))] as const)
  )
const failure = (source: RowSource) => Effect.flip(read(source))
const names = (line: number, error: InputError, reason: string) => {
  assert.strictEqual(error.reason, reason)
  assert.strictEqual(error.line, line)
  assert.include(error.message, `, line ${line}: `)
  assert.isString(error.file)
  assert.isString(error.fix)
}

describe("csv", () => {
  it.effect("gives each row with the line at which it begins: quoted line ends and blank lines count", () =>
    Effect.gen(function* () {
      for (const eol of ["\n", "\r\n"]) {
        const lines = ["", "id,text", "1,plain", "", '2,"two', 'lines, ""quoted"""', "  ", "3,last"]
        assert.deepStrictEqual(yield* readCsv(lines.join(eol)), [
          [3, [["id", "1"], ["text", "plain"]]], // biome-ignore format: a table
          [5, [["id", "2"], ["text", `two${eol}lines, "quoted"`]]], // biome-ignore format: a table
          [8, [["id", "3"], ["text", "last"]]] // biome-ignore format: a table
        ])
      }
    })
  )

  it.effect("keeps the line across blocks, and every row of a file of many blocks", () =>
    Effect.gen(function* () {
      const records = Array.from({ length: 20_000 }, (_, i) => `${i},"a ""quoted""\r\n${"é".repeat(i % 50)}"`)
      const rows = yield* readCsv(`id,text\r\n${records.join("\r\n")}`)
      assert.strictEqual(rows.length, 20_000)
      for (const [i, [line, cells]] of rows.entries()) {
        assert.strictEqual(line, 2 + 2 * i)
        assert.strictEqual(cells[0]?.[1], String(i))
      }
    })
  )

  it.effect("never trims or interprets a cell", () =>
    Effect.gen(function* () {
      const ids = [
        "00042",
        "42",
        "1E5",
        "0x1A",
        "4.20",
        "  7",
        "9007199254740993",
        "NA",
        "NAN",
        "TRUE",
        "null",
        "-",
        "'x"
      ]
      const rows = yield* readCsv(`id,b\n${ids.map((id) => `${id},\n`).join("")}`)
      assert.deepStrictEqual(
        rows.map(([, [id]]) => id?.[1]),
        ids
      )
    })
  )

  it.effect("keeps composed and decomposed forms apart", () =>
    Effect.gen(function* () {
      const rows = yield* readCsv("id\ncaf\u00e9\ncafe\u0301\n")
      assert.deepStrictEqual(
        rows.map(([, [id]]) => id?.[1]),
        ["caf\u00e9", "cafe\u0301"]
      )
    })
  )

  it.effect("drops the byte-order mark, also before a quoted header", () =>
    Effect.gen(function* () {
      for (const header of ["id", '"id"']) {
        assert.deepStrictEqual(yield* readCsv(`\ufeff${header},b\n1,\ufeff2\n`), [
          [
            2,
            [
              ["id", "1"],
              ["b", "\ufeff2"]
            ]
          ]
        ])
      }
    })
  )

  it.effect("takes columns named like an object's members as plain columns", () =>
    Effect.gen(function* () {
      const rows = yield* read(Rows.csv(file("id,__proto__,constructor,toString\nV-001,polluted,x,y\n")))
      const value = Object(rows[0]?.value)
      assert.isNull(Object.getPrototypeOf(value))
      assert.deepStrictEqual(Object.entries(value), [
        ["id", "V-001"],
        ["__proto__", "polluted"],
        ["constructor", "x"],
        ["toString", "y"]
      ])
    })
  )

  it.effect("takes another delimiter, old line ends, and a quoted empty cell as a row", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* readCsv("a;b\r1;2,3\r", ";"), [
        [
          2,
          [
            ["a", "1"],
            ["b", "2,3"]
          ]
        ]
      ])
      assert.deepStrictEqual(yield* readCsv('a\n""\n\nx'), [
        [2, [["a", ""]]],
        [4, [["a", "x"]]]
      ])
      const tabs = yield* Rows.fromPath(file("a\tb\n1\t2\n", "TSV"))
      assert.strictEqual((yield* read(tabs)).length, 1)
    })
  )

  it.effect("refuses a ragged row by its line, expected and found columns", () =>
    Effect.gen(function* () {
      const more = yield* failure(Rows.csv(file('id,name\n1,"a\nb"\n\nV-002,Pampas, Paper\n')))
      names(5, more, "malformed")
      assert.include(more.message, "the header has 2 columns, this row has 3")
      names(2, yield* failure(Rows.csv(file("id,name\n1\n2,b\n"))), "malformed")
    })
  )

  it.effect("refuses two columns of one name", () =>
    Effect.gen(function* () {
      const error = yield* failure(Rows.csv(file("id,name,id\n1,a,77\n")))
      names(1, error, "malformed")
      assert.include(error.message, '"id" heads two columns (columns 1 and 3)')
      assert.strictEqual(error.field, "id")
    })
  )

  it.effect("names the line at which an unclosed quote opened", () =>
    Effect.gen(function* () {
      const good = 'id,a,b\n1,"x\ny",z\n'
      names(4, yield* failure(Rows.csv(file(`${good}2,"open,z\n3,x,y\n4,x,y\n`))), "malformed")
      names(5, yield* failure(Rows.csv(file(`${good}2,"""a""\nb","open\n3,x,y`))), "malformed")
      names(4, yield* failure(Rows.csv(file(`${good}2,"open\n""inner"",\n3,x,y\n`))), "malformed")
      // The quote of a later cell closes it by chance: the record's first line is named.
      names(4, yield* failure(Rows.csv(file(`${good}2,"open,z\n3,"x",y\n`))), "malformed")
      names(4, yield* failure(Rows.csv(file(`${good}2,5" pipe,z\n`))), "malformed")
      names(4, yield* failure(Rows.csv(file(`${good}2,"${"x".repeat(17 * 1024 * 1024)}`))), "malformed")
    })
  )

  it.effect("refuses what is not UTF-8 by line, column and byte", () =>
    Effect.gen(function* () {
      const error = yield* failure(
        Rows.csv(file(Buffer.from("id,name\n1,é\n2,Café Müller\n".replace("é", "e"), "latin1")))
      )
      names(3, error, "malformed")
      assert.include(error.message, "column 6: the byte 0xE9")
      assert.include(error.fix, "UTF-8")
      names(1, yield* failure(Rows.csv(file(Buffer.from("\ufeffid,name\n", "utf16le")))), "malformed")
    })
  )

  it.effect("tells a file without a header from one without rows", () =>
    Effect.gen(function* () {
      for (const content of ["", "\ufeff", "\n\n"]) {
        assert.strictEqual((yield* failure(Rows.csv(file(content)))).reason, "empty")
      }
      for (const content of ["id,name", "id,name\n", "id,name\n\n\n   \n"]) {
        assert.deepStrictEqual(yield* readCsv(content), [])
      }
    })
  )
})

describe("jsonl", () => {
  const readJsonl = (content: string | Buffer) => read(Rows.jsonl(file(content, "jsonl")))
  const fails = (content: string | Buffer) => failure(Rows.jsonl(file(content, "jsonl")))

  it.effect("tolerates blank lines, CRLF, a mark and a missing last line end; U+2028 is no line end", () =>
    Effect.gen(function* () {
      const rows = yield* readJsonl('\ufeff{"id":"a"}\r\n\r\n   \r\n{"id":"b\u2028c","n":1.5}\n{"id":"d"}')
      assert.deepStrictEqual(
        rows.map(({ line, value }) => [line, { ...Object(value) }]),
        [
          [1, { id: "a" }],
          [4, { id: "b\u2028c", n: 1.5 }],
          [5, { id: "d" }]
        ]
      )
    })
  )

  it.effect("refuses by its line what is not an object, not JSON, or torn", () =>
    Effect.gen(function* () {
      for (const line of ["[]", "42", "null", '"x"']) {
        names(2, yield* fails(`{"id":1}\r\n${line}\r\n{"id":2}`), "malformed")
      }
      const broken = yield* fails('{"id":1}\n{"id":\n{"id":2}\n')
      names(2, broken, "malformed")
      assert.include(broken.message, "not valid JSON")
      const torn = yield* fails('{"id":1}\n\n{"id":"V-0')
      names(3, torn, "malformed")
      assert.include(torn.message, "cut off")
      const inside = yield* fails(Buffer.concat([Buffer.from('{"id":1}\n{"id":"'), Buffer.from([0xc3])]))
      names(2, inside, "malformed")
      assert.include(inside.fix, "cut off")
    })
  )

  it.effect("refuses an integer that JSON would round, and no other number", () =>
    Effect.gen(function* () {
      const error = yield* fails('{"id":1}\n{"id":9007199254740993}\n')
      names(2, error, "malformed")
      assert.strictEqual(error.field, "id")
      const fine = '{"a":"9007199254740993","b":0.12345678901234567,"c":9007199254740991,"d":1e300}\n'
      assert.strictEqual((yield* readJsonl(fine)).length, 1)
    })
  )

  it.effect("takes a key __proto__ as a plain key", () =>
    Effect.gen(function* () {
      const value = Object((yield* readJsonl('{"id":"1","__proto__":{"risk":"low"}}'))[0]?.value)
      assert.isNull(Object.getPrototypeOf(value))
      assert.deepStrictEqual(Object.keys(value), ["id", "__proto__"])
      assert.isUndefined(value.risk)
    })
  )

  it.effect("refuses a line above 16 MiB, and takes a long one below", () =>
    Effect.gen(function* () {
      const long = (mebibytes: number) => `{"id":1}\n{"id":"${"x".repeat(mebibytes * 1024 * 1024)}"}\n{"id":3}\n`
      names(2, yield* fails(long(17)), "malformed")
      assert.strictEqual((yield* readJsonl(long(2))).length, 3)
    })
  )

  it.effect("takes blank lines as no rows, and refuses a file without a byte", () =>
    Effect.gen(function* () {
      assert.deepStrictEqual(yield* readJsonl("\n\n"), [])
      assert.strictEqual((yield* fails("")).reason, "empty")
    })
  )
})

describe("any file", () => {
  it.effect("is opened when the stream runs, each time anew", () =>
    Effect.gen(function* () {
      const path = join(dir, "later.csv")
      const source = Rows.csv(path)
      assert.strictEqual((yield* failure(source)).reason, "not_found")
      writeFileSync(path, "id\n1\n")
      assert.strictEqual((yield* read(source)).length, 1)
      assert.strictEqual((yield* read(source)).length, 1)
    })
  )

  it.effect("that is missing, a directory or of an unknown kind is a typed error that names it", () =>
    Effect.gen(function* () {
      for (const source of [Rows.csv, Rows.jsonl]) {
        const missing = yield* failure(source(join(dir, "none")))
        assert.strictEqual(missing.reason, "not_found")
        assert.include(missing.message, join(dir, "none"))
        assert.strictEqual((yield* failure(source(dir))).reason, "unreadable")
      }
      const unknown = Either.flip(Rows.fromPath("vendors.xlsx"))
      assert.strictEqual((yield* unknown).reason, "bad_option")
      assert.strictEqual((yield* failure(Rows.csv(file("a\n"), { delimiter: '"' }))).reason, "bad_option")
      assert.strictEqual((yield* Rows.fromPath("x.ndjson")).kind, "jsonl")
    })
  )

  it.effect("is closed after the first row when no more is asked for", () =>
    Effect.gen(function* () {
      const source = Rows.csv(file(`id\n${"1\n".repeat(1_000_000)}`))
      const first = yield* Stream.runCollect(Stream.take(source.rows, 1))
      assert.strictEqual(Chunk.size(first), 1)
    })
  )
})
