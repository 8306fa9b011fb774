import { assert, describe, it } from "@effect/vitest"
import { Effect, Option, Schema } from "effect"
import fc from "fast-check"
import * as Workflow from "../../src/programs/Workflow.ts"
import { type Book, decide, type Facts, type Op } from "../../src/services/Book.ts"
import { Checkpointer } from "../../src/services/Checkpointer.ts"
import { Journal } from "../../src/services/Journal.ts"
import * as ToolCall from "../../src/services/ToolCall.ts"
import * as Usage from "../../src/services/Usage.ts"
import { Usd } from "../../src/services/Usd.ts"
import { atTheGo, backends, bookOf, counted, holdOf, start, tempFile, url, workerOf } from "./backends.ts"

/** A state that the program may change in place, as batch programs do. */
const Live = Schema.Struct({
  doneIds: Schema.mutable(Schema.Array(Schema.Int)),
  last: Schema.mutable(Schema.Struct({ id: Schema.Int, tags: Schema.mutable(Schema.Array(Schema.String)) })),
  notes: Schema.Map({ key: Schema.String, value: Schema.mutable(Schema.Array(Schema.Int)) })
})
const live = () => ({ doneIds: [1, 2], last: { id: 2, tags: ["a"] }, notes: new Map([["x", [1]]]) })

/** Every change in place that the types allow, one by one: what is frozen may refuse. */
const spoil = (state: typeof Live.Type) =>
  Effect.forEach(
    [
      () => state.doneIds.push(3),
      () => {
        state.last.id = 99
      },
      () => state.last.tags.push("b"),
      () => state.notes.set("y", [9]),
      () => state.notes.get("x")?.push(9)
    ],
    (change) => Effect.ignore(Effect.try(change))
  )

const Payload = Schema.Struct({
  call: ToolCall.ToolCall,
  vendors: Schema.Map({ key: Schema.Int, value: Schema.Struct({ name: Schema.String, seen: Schema.Date }) }),
  at: Schema.Date,
  grid: Schema.Array(Schema.Array(Schema.Number)),
  pair: Schema.Tuple(Schema.String, Schema.BigInt),
  tags: Schema.Set(Schema.String),
  bytes: Schema.Uint8ArrayFromBase64,
  maybe: Schema.optional(Schema.String),
  hint: Schema.OptionFromNullOr(Schema.String),
  usage: Usage.Usage
})
const payload: typeof Payload.Type = {
  call: {
    id: "call_1",
    name: "approve",
    arguments: { to: ["a", { deep: [1, null, true, { "ключ\u0000": "\u2028" }] }] }
  },
  vendors: new Map([
    [2, { name: "Zürich AG", seen: new Date(0) }],
    [1, { name: "Acme", seen: new Date("2026-07-03T10:00:00.123Z") }]
  ]),
  at: new Date("2026-07-03T00:00:00Z"),
  grid: [[1, 0.1], [], [1e21, -5]],
  pair: ["n", 2n ** 80n],
  tags: new Set(["b", "a"]),
  bytes: new Uint8Array([0, 255]),
  hint: Option.some("x"),
  usage: Usage.make({ inputTokens: 3, cost: Usd.nano(7) })
}

const cycle = () => {
  const self: { self?: unknown } = {}
  self.self = self
  return self
}

/** What would come back as something else, or not at all. */
const unencodable: ReadonlyArray<readonly [name: string, state: unknown]> = [
  ["NaN", { n: Number.NaN }],
  ["Infinity", { n: Number.POSITIVE_INFINITY }],
  ["a function", { f: () => 1 }],
  ["a symbol", { s: Symbol("s") }],
  ["a Map without a schema", { deep: [{ m: new Map([["a", 1]]) }] }],
  ["a Set without a schema", { s: new Set([1]) }],
  ["a Date without a schema", { at: new Date(0) }],
  ["bytes without a schema", { b: new Uint8Array([1]) }],
  ["a bigint without a schema", { n: 1n }],
  ["a class instance without a schema", { e: new Error("lost") }],
  ["undefined in an array", [1, undefined]],
  ["a hole in an array", Array(2)],
  ["a cycle", cycle()],
  ["undefined as the root", undefined],
  ["a function as the root", () => 1]
]

for (const backend of backends) {
  const law = <E>(title: string, test: Effect.Effect<void, E, Checkpointer | Journal>) =>
    it.effect(title, () => Effect.provide(test, backend.layer()))

  describe(`Checkpointer laws on ${backend.name}`, () => {
    law(
      "I1: a snapshot isolates state and metadata from later mutation of the live objects",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const state = live()
        const metadata: Record<string, string | number> = { note: "first" }
        const first = yield* Effect.fork(checkpointer.snapshot("run", Live, state, { metadata }))
        yield* Effect.yieldNow()
        // The commit may still be under way: what counts is the state when the snapshot was asked for.
        yield* spoil(state)
        metadata.note = "later"
        assert.strictEqual(yield* first, 1)
        assert.strictEqual(yield* checkpointer.snapshot("run", Live, state, { metadata }), 2)
        const old = yield* Effect.flatten(checkpointer.get("run", 1, Live))
        assert.deepStrictEqual(old.state, live())
        assert.deepStrictEqual(old.metadata, { note: "first" })
        const latest = yield* Effect.flatten(checkpointer.resume("run", Live))
        assert.deepStrictEqual(latest.state, state)
        assert.deepStrictEqual(latest.metadata, { note: "later" })
      })
    )

    law(
      "I1: what a resume gives back can be mutated without reaching the snapshot or a second resume",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        yield* checkpointer.snapshot("run", Live, live(), { metadata: { note: "first" } })
        const first = yield* Effect.flatten(checkpointer.resume("run", Live))
        yield* spoil(first.state)
        Reflect.set(first.metadata, "note", "later")
        const second = yield* Effect.flatten(checkpointer.resume("run", Live))
        assert.deepStrictEqual(second.state, live())
        assert.deepStrictEqual(second.metadata, { note: "first" })
        assert.deepStrictEqual((yield* Effect.flatten(checkpointer.get("run", 1, Live))).state, live())
      })
    )

    law(
      "I4: what a resume gives back is frozen, its state and metadata too",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        yield* checkpointer.snapshot("run", Live, live(), { metadata: { note: "first" } })
        const found = yield* Effect.flatten(checkpointer.resume("run", Live))
        for (const part of [found, found.metadata, found.state, found.state.doneIds, found.state.last.tags])
          assert.isTrue(Object.isFrozen(part))
      })
    )

    law(
      "I2: nested payloads (tool-call arguments, maps, sets, dates, bigints, readonly arrays) survive snapshot and resume, equal by value",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        yield* checkpointer.snapshot("run", Payload, payload, { status: "SUSPENDED", metadata: { rows: 3, by: "me" } })
        const found = yield* Effect.flatten(checkpointer.resume("run", Payload))
        assert.deepStrictEqual(found.state, payload)
        assert.deepStrictEqual([...found.state.vendors.keys()], [2, 1])
        assert.instanceOf(found.state.at, Date)
        assert.deepStrictEqual(found.metadata, { rows: 3, by: "me" })
        assert.deepStrictEqual([found.version, found.status], [1, "SUSPENDED"])
      })
    )

    law(
      "I2: any tool-call arguments that are JSON survive, equal by value (property)",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const Calls = Schema.Array(ToolCall.ToolCall)
        const key = fc.string().filter((text) => text !== "__proto__")
        const json = fc.letrec<{ json: ToolCall.Json }>((tie) => ({
          json: fc.oneof(
            { maxDepth: 4 },
            fc.constant(null),
            fc.boolean(),
            fc.string(),
            fc.double({ noNaN: true, noDefaultInfinity: true }).map((n) => n + 0),
            fc.array(tie("json")),
            fc.dictionary(key, tie("json"), { noNullPrototype: true })
          )
        })).json
        const calls = fc.array(
          fc.record({
            id: fc.string(),
            name: fc.string(),
            arguments: fc.dictionary(key, json, { noNullPrototype: true })
          })
        )
        for (const [index, state] of fc.sample(calls, { numRuns: 60, seed: 42 }).entries()) {
          yield* checkpointer.snapshot(`run-${index}`, Calls, state)
          const found = yield* Effect.flatten(checkpointer.resume(`run-${index}`, Calls))
          assert.deepStrictEqual(found.state, state)
        }
      })
    )

    for (const [name, state] of unencodable) {
      law(
        `I2: ${name} is a typed CheckpointError at snapshot, and nothing is written`,
        Effect.gen(function* () {
          const checkpointer = yield* Checkpointer
          const error = yield* Effect.flip(checkpointer.snapshot("run", Schema.Unknown, state))
          if (error._tag !== "CheckpointError") return assert.fail(error._tag)
          assert.strictEqual(error.reason, "encode")
          assert.include(error.message, "run")
          assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [])
        })
      )
    }

    law(
      "I2: a state or metadata outside its schema is a typed CheckpointError at snapshot, and nothing is written",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const tries = [
          checkpointer.snapshot("run", Schema.Struct({ n: Schema.Int }), { n: 1.5 }),
          checkpointer.snapshot("run", Schema.Date, new Date(Number.NaN)),
          checkpointer.snapshot("run", ToolCall.ToolCall, { id: "a", name: "b", arguments: { n: Number.NaN } }),
          checkpointer.snapshot("run", Schema.Int, 1, { metadata: { n: Number.NaN } })
        ]
        for (const attempt of tries) {
          const error = yield* Effect.flip(attempt)
          if (error._tag !== "CheckpointError") return assert.fail(error._tag)
          assert.strictEqual(error.reason, "encode")
        }
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [])
      })
    )

    law(
      "I2: a stored state that the schema of today refuses is a typed CheckpointError at resume",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        yield* checkpointer.snapshot("run", Schema.Struct({ n: Schema.Int }), { n: 1 })
        const error = yield* Effect.flip(checkpointer.resume("run", Schema.Struct({ n: Schema.String })))
        if (error._tag !== "CheckpointError") return assert.fail(error._tag)
        assert.strictEqual(error.reason, "decode")
        assert.include(error.message, "version 1 of run")
      })
    )

    law(
      "I9: concurrent snapshots of one id get distinct, gap-free versions (50 in one process, beside those of another id)",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const of = (id: string) => (n: number) => checkpointer.snapshot(id, Schema.Int, n)
        const numbers = Array.from({ length: 50 }, (_, n) => n)
        const both = [...numbers.map(of("a")), ...numbers.map(of("b"))]
        const versions = yield* Effect.all(both, { concurrency: "unbounded" })
        const expected = numbers.map((n) => n + 1)
        assert.deepStrictEqual(
          versions.slice(0, 50).sort((x, y) => x - y),
          expected
        )
        assert.deepStrictEqual(yield* checkpointer.listVersions("a"), expected)
        assert.deepStrictEqual(yield* checkpointer.listVersions("b"), expected)
        // Each version holds the state of the caller that was given it.
        for (const [n, version] of versions.slice(0, 50).entries()) {
          const found = yield* Effect.flatten(checkpointer.get("a", version, Schema.Int))
          assert.strictEqual(found.state, n)
        }
      })
    )

    law(
      "I17: a Suspended value survives the checkpoint, equal by value and deeply frozen",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const args = { to: ["a"], limits: { max: 3 } }
        const { suspended } = Workflow.suspend({
          reason: "approve the vendors",
          pending: [{ id: "call_1", name: "send", arguments: args }]
        })
        // The caller's own arguments stay the caller's: a retry that writes into them changes no stored decision.
        args.to.push("before")
        yield* checkpointer.snapshot("run", Workflow.Suspended, suspended, { status: "SUSPENDED" })
        args.limits.max = 99
        const found = yield* Effect.flatten(checkpointer.resume("run", Workflow.Suspended))
        assert.strictEqual(found.status, "SUSPENDED")
        assert.deepStrictEqual(found.state, {
          _tag: "Suspended",
          reason: "approve the vendors",
          pending: [{ id: "call_1", name: "send", arguments: { to: ["a"], limits: { max: 3 } } }]
        })
        const [call] = found.state.pending
        const parts = [found.state, found.state.pending, call, call?.arguments, call?.arguments.to]
        for (const part of parts) assert.isTrue(Object.isFrozen(part))
        assert.throws(() => Reflect.apply(Array.prototype.push, found.state.pending, ["x"]))
      })
    )

    law(
      "I24: delete reclaims: no versions, resume and get give None, another id stays, and the next version is 1",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        for (const n of [1, 2, 3]) yield* checkpointer.snapshot("run", Schema.Int, n)
        yield* checkpointer.snapshot("run", Schema.Int, 4, { status: "DONE" })
        yield* checkpointer.snapshot("run2", Schema.Int, 1)
        yield* checkpointer.delete("run")
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [])
        assert.isTrue(Option.isNone(yield* checkpointer.resume("run", Schema.Int)))
        assert.isTrue(Option.isNone(yield* checkpointer.get("run", 4, Schema.Int)))
        assert.deepStrictEqual(yield* checkpointer.listVersions("run2"), [1])
        assert.strictEqual(yield* checkpointer.snapshot("run", Schema.Int, 5), 1)
      })
    )

    law(
      "I24: a snapshot asked for right after a delete, in the same commit, survives it; one asked for before does not",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        yield* checkpointer.snapshot("run", Schema.Int, 1)
        const [, , version] = yield* Effect.all(
          [
            checkpointer.snapshot("run", Schema.Int, 2),
            checkpointer.delete("run"),
            checkpointer.snapshot("run", Schema.Int, 3)
          ],
          { concurrency: "unbounded" }
        )
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [version])
        assert.strictEqual((yield* Effect.flatten(checkpointer.resume("run", Schema.Int))).state, 3)
      })
    )

    law(
      "I24: pruning keeps the latest n and every DONE version, and versions go on counting",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        for (const n of [1, 2]) yield* checkpointer.snapshot("run", Schema.Int, n)
        yield* checkpointer.snapshot("run", Schema.Int, 3, { status: "DONE" })
        for (const n of [4, 5, 6]) yield* checkpointer.snapshot("run", Schema.Int, n)
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [1, 2, 3, 4, 5, 6])
        yield* checkpointer.snapshot("run", Schema.Int, 7, { keep: 2 })
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [3, 6, 7])
        yield* checkpointer.snapshot("run", Schema.Int, 8, { keep: 1, status: "DONE" })
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [3, 8])
        assert.strictEqual(yield* checkpointer.snapshot("run", Schema.Int, 9, { keep: 1 }), 9)
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [3, 8, 9])
        assert.strictEqual((yield* Effect.flatten(checkpointer.resume("run", Schema.Int))).state, 9)
      })
    )

    law(
      "I24: the money book, its calls and its open holds are never reclaimed with the checkpoints",
      Effect.gen(function* () {
        const checkpointer = yield* Checkpointer
        const journal = yield* Journal
        const fence = { runId: "run", worker: 1 }
        const ops: ReadonlyArray<Op> = [
          { _tag: "Create", book: bookOf("run", { rows: 2 }) },
          { _tag: "Claim", worker: workerOf("run"), dead: [], lost: Usd.zero },
          {
            _tag: "Load",
            fence,
            rows: [{ runId: "run", seq: 0, id: "0", version: "", line: 1, value: "{}", epoch: 0 }],
            filtered: 0,
            last: true
          },
          { _tag: "Hold", hold: holdOf("run", 0, 100) },
          { _tag: "Hold", hold: holdOf("run", 1, 50) },
          { _tag: "Uncertain", hold: holdOf("run", 0, 100), reason: "timeout", answer: null, requestId: null, at: 2 },
          { _tag: "RunSnapshot", fence, status: "RUNNING", keep: "all", at: 3 }
        ]
        for (const op of ops) yield* journal.commit(op)
        const before = yield* journal.reads.book("run")
        const calls = yield* journal.reads.openCalls("run")
        assert.strictEqual(calls.length, 1)
        yield* checkpointer.delete("run")
        assert.deepStrictEqual(yield* checkpointer.listVersions("run"), [])
        assert.deepStrictEqual(yield* journal.reads.book("run"), before)
        assert.deepStrictEqual(yield* journal.reads.openCalls("run"), calls)
        assert.deepStrictEqual(
          yield* journal.commit({
            _tag: "Release",
            hold: holdOf("run", 1, 50),
            reason: "refused",
            sent: true,
            at: 4
          }),
          { _tag: "Ok" }
        )
        assert.strictEqual((yield* journal.reads.book("run"))?.held, 0)
      })
    )
  })
}

describe("Checkpointer on one SQLite file", () => {
  it.scopedLive(
    "I9: concurrent snapshots of one id from 4 processes, 25 each at once on one new file, get versions 1..100 with no gap",
    () =>
      Effect.gen(function* () {
        const filename = yield* tempFile
        const script = `
          import { Effect, Schema } from "effect"
          import { layer } from ${url("src/layers/Sqlite.ts")}
          import { Checkpointer } from ${url("src/services/Checkpointer.ts")}
          ${atTheGo}
          const all = Effect.flatMap(Checkpointer, (checkpointer) => Effect.all(
            Array.from({ length: 25 }, (_, n) => Effect.delay(checkpointer.snapshot("run", Schema.Int, n), n % 5 * 4)),
            { concurrency: "unbounded" }))
          const file = { filename: ${JSON.stringify(filename)} }
          console.log(JSON.stringify(await Effect.runPromise(Effect.provide(all, layer(file)))))
          process.exit(0)`
        const children = yield* Effect.all([start(script), start(script), start(script), start(script)])
        for (const child of children) assert.strictEqual(yield* child.line, "ready")
        for (const child of children) yield* child.say("go")
        const printed = yield* Effect.forEach(children, (child) => child.line, { concurrency: "unbounded" })
        const versions = printed.flatMap((line) => Schema.decodeSync(Schema.parseJson(Schema.Array(Schema.Int)))(line))
        assert.deepStrictEqual(
          [...versions].sort((a, b) => a - b),
          Array.from({ length: 100 }, (_, n) => n + 1)
        )
      }),
    60_000
  )
})

describe("The snapshot of a run", () => {
  const fence = { runId: "run", worker: 1 }
  const op: Op = { _tag: "RunSnapshot", fence, status: "RUNNING", keep: 3, at: 1_700_000_000_000 }
  const bookAt = (row: number): Book =>
    bookOf("run", { rows: 100_000, done: row - 2, partial: 1, failed: 1, commitSeq: row, spent: Usd.nano(row * 100) })
  const factsAt = (row: number): Facts => ({
    books: new Map([["run", bookAt(row)]]),
    pools: new Map(),
    live: new Map([["run", new Set([1])]]),
    versions: new Map([["run", row / 25]]),
    holds: new Map(),
    workers: new Map(),
    uncertain: new Map(),
    epochs: new Map()
  })
  /** Digits grow with the row; nothing else may. */
  const shape = (value: unknown) =>
    JSON.stringify(value, (_, item: unknown) =>
      item instanceof Map || item instanceof Set ? [...item] : item
    ).replaceAll(/\d+/g, "0")

  it("I20: the writes of a run's snapshot are the same at row 1,000 and at row 100,000, but for digits", () => {
    const early = decide([op], factsAt(1_000)).writes
    const late = decide([op], factsAt(100_000)).writes
    assert.strictEqual(shape(late), shape(early))
    assert.strictEqual(late.checkpoints.length, 1)
    assert.strictEqual(late.prunes.length, 1)
    assert.isBelow(JSON.stringify(late.checkpoints).length, 500)
  })

  it.scopedLive(
    "I20: the statements, bytes and changed rows of a run's snapshot are the same at row 1,000 and at row 100,000 (SQLite)",
    () =>
      Effect.gen(function* () {
        const { driver, seen, sql } = yield* counted(yield* tempFile)
        const write = (one: Op, facts: (read: Facts) => Facts = (read) => read) =>
          driver.transact(
            {
              runs: new Set(["run"]),
              pools: new Set(),
              checkpoints: new Set(one._tag === "RunSnapshot" ? ["run"] : []),
              claims: new Set(["run"]),
              uncertain: [],
              rows: []
            },
            (read) => decide([one], facts(read)).writes
          )
        yield* write({ _tag: "Create", book: bookAt(2) })
        yield* write({ _tag: "Claim", worker: workerOf("run"), dead: [], lost: Usd.zero })
        const fill = (from: number, to: number) =>
          Effect.gen(function* () {
            const rows = `with recursive i(n) as (select ${from} union all select n + 1 from i where n < ${to - 1})`
            yield* sql.unsafe(
              `${rows} insert into manifest (run_id, seq, id, version, line, value, epoch) select 'run', n, 'id-' || n, '', n, '{}', 0 from i`
            )
            yield* sql.unsafe(
              `${rows} insert into outcome (run_id, seq, epoch, commit_seq, kind, category, key, fallback, value) select 'run', n, 0, n + 1, 'done', '', 'k' || n, 0, '{}' from i`
            )
            yield* sql.unsafe(`update run set done = ${to}, partial = 0, failed = 0, commit_seq = ${to}`)
            for (let n = 0; n < 4; n++) yield* write(op)
          })
        const measured = Effect.gen(function* () {
          const changes = Effect.map(sql<{ n: number }>`select total_changes() as n`, (rows) => rows[0]?.n ?? 0)
          const before = yield* changes
          seen.length = 0
          yield* write(op)
          const statements = seen.map((one) => one.text)
          const bytes = seen.reduce((sum, one) => sum + one.bytes, 0)
          return { statements, bytes, changes: (yield* changes) - before }
        })
        yield* fill(0, 1_000)
        const early = yield* measured
        yield* fill(1_000, 100_000)
        const late = yield* measured
        assert.deepStrictEqual(late.statements, early.statements)
        assert.strictEqual(late.changes, early.changes)
        // 13 numbers of at most two digits more.
        assert.isAtMost(late.bytes - early.bytes, 26)
        assert.isBelow(late.bytes, 1_000)
      }),
    30_000
  )
})
