import { createHash } from "node:crypto"
import { mkdtempSync, readdirSync, readFileSync, rmSync, statSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { assert, beforeEach, describe, it } from "@effect/vitest"
import { Chunk, Deferred, Effect, FastCheck, Fiber, Schema, Stream } from "effect"
import { asyncBufferFromFile, parquetMetadataAsync, parquetRead } from "hyparquet"
import { afterEach } from "vitest"
import * as Parquet from "../../src/layers/Parquet.ts"
import * as Column from "../../src/services/Column.ts"

let dir = ""
let path = ""
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), "longhaul-parquet-"))
  path = join(dir, "out.parquet")
})
afterEach(() => rmSync(dir, { recursive: true }))

const column = (name: string, kind: Column.Kind): Column.Column => ({ name, kind })
const metadata = Effect.promise(async () => parquetMetadataAsync(await asyncBufferFromFile(path)))
/** Each row as an array, in the order of the columns. */
const read = Effect.promise(async () => {
  const rows: Array<ReadonlyArray<unknown>> = []
  const file = await asyncBufferFromFile(path)
  await parquetRead({ file, onComplete: (all) => rows.push(...all.map((row) => Object.values(row))) })
  return rows
})
const hash = () => createHash("sha256").update(readFileSync(path)).digest("hex")

const columns = [
  column("id", "text"),
  column("n", "integer"),
  column("x", "number"),
  column("ok", "boolean"),
  column("tags", "json")
]

describe("Parquet", () => {
  it.effect("gives every column its type, each cell its value, and null where there is none", () =>
    Effect.gen(function* () {
      const rows = [
        { id: "007", n: 2 ** 53 - 1, x: -0.1, ok: true, tags: ["a", { b: null }], extra: "left out" },
        { id: "", n: -(2 ** 53) + 1, x: 5, ok: false, tags: "text" },
        { id: "=1\u2028é😀\u0000", tags: null },
        { id: null, n: 0, x: 1e300, ok: undefined, tags: 7 }
      ]
      assert.strictEqual(yield* Parquet.write(path, columns, Stream.fromIterable(rows)), 4)
      assert.deepStrictEqual(yield* read, [
        ["007", 9007199254740991n, -0.1, true, '["a",{"b":null}]'],
        ["", -9007199254740991n, 5, false, '"text"'],
        ["=1\u2028é😀\u0000", null, null, null, null],
        [null, 0n, 1e300, null, "7"]
      ])
      const { created_by: by, key_value_metadata: extra, schema } = yield* metadata
      assert.deepStrictEqual(
        schema
          .slice(1)
          .map(({ converted_type, name, repetition_type, type }) => [name, type, converted_type, repetition_type]),
        [
          ["id", "BYTE_ARRAY", "UTF8", "OPTIONAL"],
          ["n", "INT64", undefined, "OPTIONAL"],
          ["x", "DOUBLE", undefined, "OPTIONAL"],
          ["ok", "BOOLEAN", undefined, "OPTIONAL"],
          ["tags", "BYTE_ARRAY", "UTF8", "OPTIONAL"]
        ]
      )
      assert.deepStrictEqual([by, extra], ["longhaul version 1", undefined])
    })
  )

  it.effect.prop(
    "what it writes is read back, whatever the names and values",
    [
      FastCheck.uniqueArray(FastCheck.oneof(FastCheck.fullUnicodeString(), FastCheck.constantFrom("a.b", "toString")), {
        minLength: 5,
        maxLength: 5
      }),
      FastCheck.array(
        FastCheck.tuple(
          FastCheck.option(FastCheck.fullUnicodeString()),
          FastCheck.option(FastCheck.maxSafeInteger()),
          FastCheck.option(FastCheck.double({ noNaN: true })),
          FastCheck.option(FastCheck.boolean()),
          FastCheck.option(FastCheck.jsonValue())
        ),
        { maxLength: 40 }
      )
    ],
    ([names, rows]) =>
      Effect.gen(function* () {
        const kinds = ["text", "integer", "number", "boolean", "json"] as const
        const typed = kinds.map((kind, i) => column(names[i] ?? "", kind))
        const stream = Stream.map(Stream.fromIterable(rows), (row) =>
          Object.fromEntries(row.map((value, i) => [names[i] ?? "", value]))
        )
        assert.strictEqual(yield* Parquet.write(path, typed, stream), rows.length)
        const { schema } = yield* metadata
        assert.deepStrictEqual(
          schema.slice(1).map(({ name }) => name),
          names
        )
        const expected = rows.map(([text, integer, number, boolean, json]) => [
          text,
          integer === null ? null : BigInt(integer),
          number,
          boolean,
          json === null ? null : JSON.stringify(json)
        ])
        const found = (yield* Effect.promise(async () => {
          const all: Array<ReadonlyArray<unknown>> = []
          const file = await asyncBufferFromFile(path)
          // By column: rows as objects would put names such as "0" first.
          for (const name of names) {
            const cells: Array<unknown> = []
            await parquetRead({
              file,
              columns: [name],
              onChunk: ({ columnData }) => void cells.push(...Array.from(columnData))
            })
            all.push(cells.map((cell) => cell ?? null))
          }
          return all
        })) satisfies ReadonlyArray<ReadonlyArray<unknown>>
        assert.deepStrictEqual(
          found,
          names.map((_, i) => expected.map((row) => row[i]))
        )
      }),
    { timeout: 60_000, fastCheck: { numRuns: 60 } }
  )

  it.effect("is read from disk group by group: 10,000 rows each, in order, and each is written before the next", () =>
    Effect.gen(function* () {
      const onDisk: Array<number> = []
      const size = () => readdirSync(dir).reduce((sum, name) => sum + statSync(join(dir, name)).size, 0)
      const rows = Stream.tap(
        Stream.map(Stream.range(0, 24_999), (n) => ({ id: `row ${n}`, n })),
        ({ n }) => Effect.sync(() => (n % 10_000 === 4_000 ? onDisk.push(size()) : 0))
      )
      yield* Parquet.write(path, [column("id", "text"), column("n", "integer")], rows)
      const { num_rows, row_groups } = yield* metadata
      assert.strictEqual(num_rows, 25_000n)
      assert.deepStrictEqual(
        row_groups.map((group) => group.num_rows),
        [10_000n, 10_000n, 5_000n]
      )
      const [first = 0, second = 0, third = 0] = onDisk
      assert.isTrue(first === 0 && second > 0 && third > second, `${onDisk}`)
      const all = yield* read
      assert.strictEqual(all.length, 25_000)
      assert.isTrue(all.every(([id, n], i) => id === `row ${i}` && n === BigInt(i)))
    })
  )

  it.effect("ends a group early where rows are long, so that a group fits into memory", () =>
    Effect.gen(function* () {
      const long = "x".repeat(5 * 2 ** 20)
      const rows = Stream.map(Stream.range(0, 15), (n) => ({ id: `${n}${long}` }))
      yield* Parquet.write(path, [column("id", "text")], rows)
      assert.deepStrictEqual(
        (yield* metadata).row_groups.map((group) => group.num_rows),
        // Seven of them are the first over 32 MiB.
        [7n, 7n, 2n]
      )
    })
  )

  it.effect("the same rows give the same bytes, however the stream is cut", () =>
    Effect.gen(function* () {
      const all = Chunk.makeBy(12_345, (n) => ({ id: `${n % 97}`, n, x: n / 7, ok: n % 2 === 0, tags: [n % 5] }))
      const hashes = new Set<string>()
      for (const size of [1, 63, 5_000]) {
        yield* Parquet.write(path, columns, Stream.rechunk(Stream.fromChunk(all), size))
        hashes.add(hash())
      }
      assert.strictEqual(hashes.size, 1)
    })
  )

  it.effect("a run without rows is a file with its columns", () =>
    Effect.gen(function* () {
      assert.strictEqual(yield* Parquet.write(path, columns, Stream.empty), 0)
      const { num_rows, schema } = yield* metadata
      assert.deepStrictEqual([num_rows, schema.length], [0n, 6])
      assert.deepStrictEqual(yield* read, [])
    })
  )

  it.effect("a value that its column cannot hold is refused by row and column, and nothing is left", () =>
    Effect.gen(function* () {
      const rows = Stream.map(Stream.range(1, 200), (n) => ({ n: n === 150 ? 0.5 : n }))
      const error = yield* Effect.flip(Parquet.write(path, [column("n", "integer")], rows))
      assert.deepInclude(error, { reason: "bad_row", file: path, field: "n" })
      assert.include(error.message, "row 150")
      assert.deepStrictEqual(readdirSync(dir), [])
    })
  )

  it.effect("replaces the older file in one step; a failure, an interruption or a symlink leaves it alone", () =>
    Effect.gen(function* () {
      writeFileSync(path, "old", { mode: 0o644 })
      const one = Stream.make({ id: "a" })
      const ids = [column("id", "text")]
      assert.strictEqual(yield* Effect.flip(Parquet.write(path, ids, Stream.concat(one, Stream.fail("boom")))), "boom")
      const started = yield* Deferred.make<void>()
      const never = Stream.fromEffect(Effect.zipRight(Deferred.succeed(started, undefined), Effect.never))
      const fiber = yield* Effect.fork(Parquet.write(path, ids, Stream.concat(one, never)))
      yield* Deferred.await(started)
      assert.strictEqual(readdirSync(dir).length, 2)
      yield* Fiber.interrupt(fiber)
      symlinkSync(path, join(dir, "link.parquet"))
      assert.strictEqual((yield* Effect.flip(Parquet.write(join(dir, "link.parquet"), ids, one))).reason, "unreadable")
      assert.strictEqual(readFileSync(path, "utf8"), "old")
      yield* Parquet.write(
        path,
        ids,
        Stream.tap(one, () => Effect.sync(() => assert.strictEqual(readFileSync(path, "utf8"), "old")))
      )
      assert.deepStrictEqual(yield* read, [["a"]])
      assert.strictEqual(statSync(path).mode & 0o777, 0o600)
      assert.deepStrictEqual(readdirSync(dir).sort(), ["link.parquet", "out.parquet"])
    })
  )
})

describe("the kind of a column", () => {
  const seen = (...values: ReadonlyArray<unknown>) =>
    values.reduce((kind: Column.Kind | undefined, value) => Column.widen(kind, value), undefined)

  it("is that of all its values: one that differs makes it text, whatever the order", () => {
    assert.strictEqual(seen(true, null, false), "boolean")
    assert.strictEqual(seen(1, undefined, -2), "integer")
    assert.strictEqual(seen(1, 0.5), "number")
    assert.strictEqual(seen(0.5, 1, 2 ** 60), "number")
    assert.strictEqual(seen(1, true), "text")
    assert.strictEqual(seen(1, "1"), "text")
    assert.strictEqual(seen({}, 1), "text")
    assert.isUndefined(seen(null, undefined))
  })

  it.effect.prop("does not depend on the order of the values", [FastCheck.array(FastCheck.jsonValue())], ([values]) =>
    Effect.sync(() => assert.strictEqual(seen(...values), seen(...values.toReversed())))
  )

  it("is what the output's schema declares, on its encoded side", () => {
    const kinds: ReadonlyArray<readonly [Schema.Schema.All, Column.Kind]> = [
      [Schema.String, "text"],
      [Schema.NonEmptyString, "text"],
      [Schema.Literal("low", "high", null), "text"],
      [Schema.Date, "text"],
      [Schema.NumberFromString, "text"],
      [Schema.Int, "integer"],
      [Schema.Int.pipe(Schema.between(1, 5)), "integer"],
      [Schema.NonNegativeInt, "integer"],
      [Schema.NullOr(Schema.Int), "integer"],
      [Schema.Literal(1, 2), "integer"],
      [Schema.Number, "number"],
      [Schema.Union(Schema.Int, Schema.Number), "number"],
      [Schema.Literal(1, 0.5), "number"],
      [Schema.Boolean, "boolean"],
      [Schema.Union(Schema.Literal(true), Schema.Undefined), "boolean"],
      [Schema.Union(Schema.String, Schema.Number), "json"],
      [Schema.Array(Schema.String), "json"],
      [Schema.Struct({ a: Schema.Int }), "json"],
      [Schema.Unknown, "json"],
      [Schema.Null, "json"]
    ]
    assert.deepStrictEqual(
      kinds.map(([schema]) => Column.declared(schema.ast)),
      kinds.map(([, kind]) => kind)
    )
  })
})
