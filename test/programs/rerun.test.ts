import { assert, describe, it } from "@effect/vitest"
import { Chunk, Effect, Either, Option, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, Errors, type Journal, Reconcile, Refresh, Rows, Usd } from "../../src/index.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { backends, type Database, processOn } from "../support/mortalProcess.ts"
import { idOf, Output, Row, rowsOf } from "../support/scriptedJob.ts"
import {
  good,
  model,
  permanent,
  prices,
  type Script,
  scripted,
  silent,
  tokens,
  unreadable
} from "../support/scriptedLlm.ts"

interface Shape {
  readonly rows?: ReadonlyArray<Row>
  readonly prompt?: (row: Row) => string
  readonly system?: string
  readonly promptVersion?: string
  readonly maxOutputTokens?: number
  readonly model?: string
  readonly maxRepairs?: number
  readonly output?: Schema.Schema<{ readonly summary: string }, { readonly summary: string }>
}

const jobOf = ({ rows = rowsOf(6), ...shape }: Shape = {}) =>
  Enrichment.make({
    name: "job",
    agent: Agent.make({
      name: "agent",
      model: shape.model ?? model,
      system: shape.system ?? "You are a test.",
      promptVersion: shape.promptVersion ?? "v1",
      prompt: shape.prompt ?? ((row) => row.text),
      output: shape.output ?? Output,
      maxRepairs: shape.maxRepairs ?? 0,
      maxOutputTokens: shape.maxOutputTokens ?? 100
    }),
    row: Row,
    id: (row) => row.id,
    source: Rows.fromIterable(rows),
    chunkSize: 2
  })

const both = Effect.provide([prices, Budget.layer({ maxCostUsd: 1, maxConcurrency: 1, maxCalls: 1_000 })])

const session = (
  database: Database,
  script: Script,
  shape: Shape = {},
  options: Partial<Enrichment.RunOptions> = {}
) => {
  const llm = scripted(script)
  return Enrichment.run(jobOf(shape), { runId: "r1", ...options }).pipe(
    both,
    Effect.provide([processOn(database), llm.layer]),
    Effect.map((result) => ({ result, calls: llm.counts.calls, asked: [...llm.counts.byRow.keys()] }))
  )
}

const within = <A, E>(database: Database, effect: Effect.Effect<A, E, Journal.Journal>) =>
  Effect.provide(effect, processOn(database))

const outcomes = (database: Database, asOf?: number) =>
  within(
    database,
    Effect.map(Stream.runCollect(Enrichment.results("r1", Output, { asOf })), (rows) =>
      Chunk.toReadonlyArray(rows).map(({ id, outcome }) =>
        Option.match(outcome, {
          onNone: () => `${id} pending`,
          onSome: Either.match({
            onLeft: ({ reason }) => `${id} ${reason}`,
            onRight: ({ parsed, partial }) => `${id} ${partial ? "partial" : parsed?.summary}`
          })
        })
      )
    )
  )

const refused = <A, E>(effect: Effect.Effect<A, E>) =>
  Effect.map(Effect.flip(effect), (error) =>
    error instanceof Errors.RunRefused ? error : assert.fail(`a refusal was expected, not ${error}`)
  )

for (const [backend, open] of Object.entries(backends)) {
  describe(`drift on resume (${backend})`, () => {
    const changes: ReadonlyArray<readonly [part: Errors.Part, shape: Shape]> = [
      ["prompt", { prompt: (row) => `${row.text}!` }],
      ["prompt", { system: "You are another." }],
      ["model", { model: "other" }],
      ["parameters", { maxOutputTokens: 50 }],
      ["schema", { output: Schema.Struct({ summary: Schema.String.pipe(Schema.maxLength(9)) }) }]
    ]
    it.scopedLive("rows are counted by the part that changed, priced, and nothing is sent without a choice", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, () => good())
        for (const [part, shape] of changes) {
          const script: Script = () => assert.fail("nothing may be sent")
          const priced = shape.model === undefined ? shape : { ...shape, model: "gpt-4o-mini" }
          const { drift } = yield* refused(session(database, script, priced))
          assert.deepStrictEqual([drift?.rows, drift?.parts], [6, { [part]: 6 }], part)
          // Six rows at what a row cost so far: 10 tokens at 150 and 5 at 600.
          assert.strictEqual(drift?.expectedCost, 6 * 4_500)
          assert.isAbove(drift?.atMost ?? 0, 6 * 4_500)
        }
        const several = { prompt: (row: Row) => (row.id < 2 ? `${row.text}!` : row.text), maxOutputTokens: 50 }
        const { drift } = yield* refused(session(database, () => good(), several))
        assert.deepStrictEqual([drift?.rows, drift?.parts], [6, { prompt: 2, parameters: 6 }])
      })
    )

    it.scopedLive("keep: the results stay, the run says how many it mixes, and a re-run ends that", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, () => good())
        const changed = { prompt: (row: Row) => (row.id < 2 ? `${row.text}!` : row.text) }
        const kept = yield* session(database, () => good(), changed, { onDrift: "keep" })
        assertIncludes(kept.result, { kept: 2, done: 6, calls: 6 })
        const rerun = yield* session(database, () => good(), changed, { onDrift: "rerun" })
        assertIncludes(rerun.result, { kept: 0, done: 6, calls: 8, reruns: 2 })
        assert.deepStrictEqual(rerun.asked.sort(), ["row 0!", "row 1!"])
      })
    )
  })

  describe(`running rows again (${backend})`, () => {
    it.scopedLive("named rows and only they get a new epoch; older checkpoints stay true", () =>
      Effect.gen(function* () {
        const database = yield* open
        const first = yield* session(database, ({ row }) => (idOf(row) === 3 ? permanent : good()))
        assertIncludes(first.result, { done: 5, failed: 1 })
        const before = yield* outcomes(database)
        const again = yield* session(database, () => good(), {}, { retry: { rows: ["1", "3"] } })
        assert.deepStrictEqual(again.asked.sort(), ["row 1", "row 3"])
        assertIncludes(again.result, { done: 6, failed: 0, reruns: 2, calls: 8 })
        assert.deepStrictEqual(yield* outcomes(database, 3), before)
        assert.include(before, "3 bad_request")
        assert.include(yield* outcomes(database), "3 fine")
        // As of the first snapshot two rows had ended.
        assert.strictEqual((yield* outcomes(database, 1)).filter((line) => line.endsWith("pending")).length, 4)
      })
    )

    it.scopedLive("a row that is not there is an error that names it, and nothing is run", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, () => good())
        const error = yield* Effect.flip(session(database, () => good(), {}, { retry: { rows: ["1", "x"] } }))
        assert.strictEqual(error.message, 'run r1 has no row with the id "x"')
        assert.strictEqual((yield* session(database, () => good())).result.reruns, 0)
      })
    )

    it.scopedLive("failed and partial choose by kind", () =>
      Effect.gen(function* () {
        const database = yield* open
        const script: Script = ({ row }) => [permanent, unreadable()][idOf(row)] ?? good()
        assertIncludes((yield* session(database, script)).result, { done: 4, failed: 1, partial: 1 })
        const failed = yield* session(database, () => good(), {}, { retry: "failed" })
        assert.deepStrictEqual(failed.asked, ["row 0"])
        const partial = yield* session(database, () => good(), {}, { retry: "partial" })
        assert.deepStrictEqual(partial.asked, ["row 1"])
        assertIncludes(partial.result, { done: 6, failed: 0, partial: 0 })
      })
    )
  })

  describe(`reading paid answers again (${backend})`, () => {
    const wide = { output: Schema.Struct({ summary: Schema.String }) }
    const narrow = { output: Schema.Struct({ summary: Schema.String.pipe(Schema.maxLength(3)) }) }

    it.scopedLive("a schema that takes more reads partial rows from the book, without a call; the rest stays", () =>
      Effect.gen(function* () {
        const database = yield* open
        // "fine" has four letters; row 5 says nothing that any schema takes.
        const first = yield* session(database, ({ row }) => (idOf(row) === 5 ? unreadable() : good()), narrow)
        assertIncludes(first.result, { done: 0, partial: 6, calls: 6 })
        const script: Script = () => assert.fail("nothing may be sent")
        const read = yield* session(database, script, wide, { reread: true, onDrift: "keep", retry: "none" })
        assertIncludes(read.result, { done: 5, partial: 1, calls: 6, reruns: 5, replays: 5, spent: 6 * 4_500 })
        assert.deepStrictEqual(yield* outcomes(database), [...[0, 1, 2, 3, 4].map((id) => `${id} fine`), "5 partial"])
        // What was read is the store's too: the same job in another run asks nothing but the row that failed.
        const next = yield* session(database, () => good(), wide, { runId: "r2" })
        assert.deepStrictEqual([next.asked, next.result.storeHits], [["row 5"], 5])
      })
    )

    it.scopedLive("an answer to another question is no answer to this one: a changed prompt or model asks anew", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, () => good())
        for (const shape of [{ prompt: (row: Row) => `${row.text}?` }, { maxOutputTokens: 60 }]) {
          const { result } = yield* session(database, () => good(), shape, { reread: true, onDrift: "keep" })
          assertIncludes(result, { kept: 6, reruns: 0, replays: 0 })
        }
        const named = yield* session(database, () => good(), {}, { reread: true, retry: { rows: ["1"] } })
        assert.deepStrictEqual(named.asked, ["row 1"])
      })
    )

    it.scopedLive("a resume that is refused for drift has read nothing again", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, ({ row }) => (idOf(row) === 5 ? unreadable() : good()), narrow)
        const before = yield* within(database, Enrichment.status("r1"))
        const both = { ...wide, prompt: (row: Row) => (row.id === 0 ? "other" : row.text) }
        yield* refused(session(database, () => good(), both, { reread: true, retry: "none" }))
        assert.deepStrictEqual(yield* within(database, Enrichment.status("r1")), before)
      })
    )

    it.scopedLive("without a change nothing is read again, and a partial row stays as it is", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, () => unreadable(), {})
        const { result } = yield* session(database, () => good(), {}, { reread: true, retry: "none" })
        assertIncludes(result, { partial: 6, reruns: 0, calls: 6 })
      })
    )
  })

  describe(`a source that changed (${backend})`, () => {
    const edited = [
      { id: 0, text: "row 0" },
      { id: 3, text: "edited 3" },
      // A column that no prompt shows.
      Object.assign({ id: 2, text: "row 2" }, { note: "new" }),
      { id: 9, text: "row 9" },
      { id: 5, text: "edited 5" }
    ]
    /** Rows 0 to 3 are done, 4 and 5 pending. */
    const begun = (database: Database) => session(database, () => good(), {}, {}).pipe(Effect.asVoid)
    const stopped = (database: Database) =>
      Enrichment.run(jobOf(), { runId: "r1" }).pipe(
        Effect.provide([prices, Budget.layer({ maxCostUsd: 1, maxConcurrency: 1, maxCalls: 4 })]),
        Effect.provide([processOn(database), scripted(() => good()).layer])
      )
    const refresh = (database: Database, apply: boolean) =>
      within(database, Refresh.refresh(jobOf({ rows: edited }), { runId: "r1", apply }))

    it.scopedLive("shows added, changed, updated, removed, kept and moved rows, and changes nothing", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* stopped(database)
        assert.deepStrictEqual(yield* refresh(database, false), {
          added: ["9"],
          changed: ["3"],
          updated: ["2", "5"],
          removed: ["4"],
          kept: ["1"],
          unended: [],
          moved: 1,
          same: 1
        })
        const end = yield* session(database, () => good(), {}, {})
        assertIncludes(end.result, { rows: 6, done: 6, calls: 6 })
      })
    )

    it.scopedLive(
      "applied: a resume asks the new and the changed rows and those that were pending, and nothing else",
      () =>
        Effect.gen(function* () {
          const database = yield* open
          yield* stopped(database)
          yield* refresh(database, true)
          const end = yield* session(database, () => good(), { rows: edited }, {})
          assert.deepStrictEqual(end.asked.sort(), ["edited 3", "edited 5", "row 9"])
          assertIncludes(end.result, { status: "done", rows: 6, done: 6, calls: 7, reruns: 1 })
          assert.deepStrictEqual(
            (yield* outcomes(database)).map((line) => line.split(" ")[0]),
            ["0", "1", "2", "3", "5", "9"]
          )
          assert.deepStrictEqual((yield* refresh(database, true)).changed, [])
        })
    )

    it.scopedLive("a run that is done goes on with the new rows; an id that comes twice refuses the whole", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* begun(database)
        const twice = jobOf({ rows: [...rowsOf(6), { id: 2, text: "again" }] })
        const error = yield* Effect.flip(within(database, Refresh.refresh(twice, { runId: "r1", apply: true })))
        assert.include(error.message, 'id "2"')
        const { added } = yield* within(
          database,
          Refresh.refresh(jobOf({ rows: rowsOf(8) }), { runId: "r1", apply: true })
        )
        assert.deepStrictEqual(added, ["6", "7"])
        const end = yield* session(database, () => good(), { rows: rowsOf(8) })
        assertIncludes(end.result, { status: "done", rows: 8, done: 8, calls: 8 })
      })
    )
  })

  describe(`reconciliation (${backend})`, () => {
    it.scopedLive("an operator's figures and the provider's turn uncertain into exact, once each", () =>
      Effect.gen(function* () {
        const database = yield* open
        const { result } = yield* session(database, ({ row }) => (idOf(row) < 3 ? silent : good()))
        const calls = yield* within(database, Reconcile.uncertain("r1"))
        assert.deepStrictEqual([calls.length, result.spent], [3, 3 * 4_500])
        const [first, second, third] = calls.map(({ call }) => call)
        const counted = calls[0]?.counted ?? Usd.zero
        assert.strictEqual(result.uncertain, 3 * counted)

        const cost = Usd.nano(7_000)
        const done = yield* within(database, Reconcile.reconcile("r1", [{ call: first, cost, note: "invoice" }]))
        assert.deepStrictEqual(done, { calls: 1, released: counted - 7_000 })
        // By tokens, at the price of the call: 20 at 150 and 1 at 600.
        yield* within(database, Reconcile.reconcile("r1", [{ call: second, usage: tokens(20, 1) }]))
        yield* within(
          database,
          Reconcile.lookUp("r1", () => Effect.succeedSome({ cost: Usd.nano(counted + 1_000_000) }))
        )
        const end = yield* within(database, Enrichment.status("r1"))
        // What the provider says is the truth, even above the hold.
        assertIncludes(end, { uncertain: 0, spent: 3 * 4_500 + 7_000 + 3_600 + counted + 1_000_000, held: 0 })
        const again = yield* Effect.flip(within(database, Reconcile.reconcile("r1", [{ call: third, cost }])))
        assert.strictEqual(again.message, `call "${third}" is not an uncertain call of this run`)
        // The book is still the sum of its records.
        assertIncludes((yield* session(database, () => good())).result, { status: "done" })
      })
    )

    it.scopedLive("a finding that names no call, or one twice, refuses them all", () =>
      Effect.gen(function* () {
        const database = yield* open
        yield* session(database, ({ row }) => (idOf(row) < 2 ? silent : good()))
        const before = yield* within(database, Enrichment.status("r1"))
        const [first] = yield* within(database, Reconcile.uncertain("r1"))
        const cost = Usd.nano(1)
        for (const findings of [
          [
            { call: first?.call, cost },
            { call: "9-9", cost }
          ],
          [
            { call: first?.call, cost },
            { call: first?.call, cost }
          ],
          [{ call: first?.call }]
        ]) {
          assert.instanceOf(
            yield* Effect.flip(within(database, Reconcile.reconcile("r1", findings))),
            Errors.InputError
          )
        }
        assert.deepStrictEqual(yield* within(database, Enrichment.status("r1")), before)
      })
    )
  })
}
