import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Either, Option, Stream } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Rows from "../../src/layers/Rows.ts"
import * as RowsSqlite from "../../src/layers/RowsSqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as Refresh from "../../src/programs/Refresh.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { askedOf, assessing, bytesOf, enrich, fileOf, hearing, inputJob, refusedBy, rowsOf } from "./inputs.ts"
import { connected, execute } from "./tables.ts"
import { assertSound, resultsOf, runId } from "./vendors.ts"

describe("a source that changes", () => {
  it.scopedLive(
    "B20 dup-ids: an id that comes twice is refused by both lines, alike or not; a space makes another id",
    () =>
      Effect.gen(function* () {
        const name = "B20-dup-ids-vendors.csv"
        const path = join(yield* tempDir, "vendors.csv")
        const alike = yield* refusedBy(inputJob(rowsOf(name)))
        assert.strictEqual(alike.message, `${fileOf(name)}: id "V-001" stands on line 2 and again on line 3`)
        const lines = bytesOf(name).toString().split("\n")
        const without = (...numbers: ReadonlyArray<number>) => {
          writeFileSync(path, lines.filter((_, i) => !numbers.includes(i + 1)).join("\n"))
          return inputJob(Rows.csv(path))
        }
        const unlike = yield* refusedBy(without(3))
        assert.strictEqual(unlike.message, `${path}: id "V-002" stands on line 3 and again on line 4`)
        const llm = assessing()
        const result = yield* enrich(without(3, 5), llm)
        assertSound(result, llm.calls())
        assertIncludes(result, { status: "done", rows: 4, done: 4, calls: 4 })
        assert.deepStrictEqual(
          (yield* resultsOf).map(({ id }) => id),
          ["V-001", "V-002", "V-003", "V-003 "]
        )
      }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive("B40 offset-paging: rows that come and go before the reader neither hide nor double another one", () =>
    Effect.gen(function* () {
      const path = join(yield* tempDir, "crm.db")
      const crm = yield* connected(path)
      execute(crm, "create table vendors (id text, description text)", "begin")
      const insert = crm.prepare("insert into vendors (rowid, id, description) values (?, ?, 'Makes things.')")
      const ids = Array.from({ length: 3_000 }, (_, i) => `V-${i + 1}`)
      for (const [i, id] of ids.entries()) insert.run(i + 1, id)
      execute(crm, "commit")
      const table = RowsSqlite.table(path, "vendors")
      // A page has a thousand rows. What was read is deleted, and what is new stands before the reader.
      const change = (line: number) => {
        if (line % 1_000 !== 0) return
        crm.prepare("delete from vendors where rowid between ? and ?").run(line - 999, line - 995)
        for (let i = 1; i <= 5; i++) insert.run(-line - i, `new-${line}-${i}`)
      }
      const rows = Stream.tap(table.rows, ({ line }) => Effect.sync(() => change(line)))
      const llm = assessing()
      const begun = yield* enrich(inputJob({ ...table, rows }), llm, { budget: { maxCalls: 5, maxConcurrency: 1 } })
      assertIncludes(begun, { rows: 3_000, done: 5, pending: 2_995, calls: 5 })
      assert.deepStrictEqual(
        (yield* resultsOf).map(({ id }) => id),
        ids
      )
      // The plan stays; what changed since is told on demand.
      const { added, kept, removed, same } = yield* Refresh.refresh(inputJob(table), { runId, apply: false })
      assert.strictEqual(added.length, 15)
      assert.deepStrictEqual(kept, ids.slice(0, 5))
      assert.deepStrictEqual(removed, [...ids.slice(1_000, 1_005), ...ids.slice(2_000, 2_005)])
      assert.strictEqual(same, 2_985)
      assert.strictEqual((yield* Enrichment.status(runId)).rows, 3_000)
    }).pipe(Effect.provide(Memory.layer))
  )

  const filtered = "select id, name, description from vendors where updated_at >= '2026-09-28'"
  const read = "select id, name, description, updated_at from vendors"
  for (const [how, query, version] of [
    ["chosen by the query", filtered, undefined],
    ["read by a job that says what its version is", read, () => "1"]
  ] as const) {
    it.scopedLive(`B63 write-back-loop: rows whose timestamp our own write moved are not asked again, ${how}`, () =>
      Effect.gen(function* () {
        const path = join(yield* tempDir, "crm.db")
        const crm = yield* connected(path)
        execute(
          crm,
          "create table vendors (id text primary key, name text, description text, summary text, updated_at text)",
          `create trigger touched after update of summary on vendors begin
             update vendors set updated_at = '2026-10-05T10:00:00Z' where id = new.id; end`,
          `insert into vendors values ('V-001', 'Acme', 'Anvils.', null, '2026-09-28T10:00:00Z'),
             ('V-002', 'Pampas', 'Paper.', null, '2026-09-28T10:00:00Z')`
        )
        const llm = assessing()
        const job = inputJob(RowsSqlite.query(path, query), version === undefined ? {} : { version })
        assertIncludes(yield* enrich(job, llm), { status: "done", rows: 2, done: 2, calls: 2 })
        for (const { id, outcome } of yield* resultsOf) {
          const { output } = Option.getOrThrow(Option.flatMap(outcome, Either.getRight))
          crm.prepare("update vendors set summary = ? where id = ?").run(output, id)
        }
        assert.deepStrictEqual(crm.prepare("select distinct updated_at as at from vendors").all(), [
          { at: "2026-10-05T10:00:00Z" }
        ])
        const next = yield* enrich(job, llm, { run: { runId: "next" } })
        assertIncludes(next, { status: "done", rows: 2, done: 2, calls: 0, storeHits: 2, spent: 0 })
      }).pipe(Effect.provide(Memory.layer))
    )
  }

  it.scopedLive("B110 row-changed-between: a resume works on the rows as they were, a refresh asks what changed", () =>
    Effect.gen(function* () {
      const path = join(yield* tempDir, "vendors.csv")
      const write = (rows: ReadonlyArray<readonly [n: number, text: string]>) =>
        writeFileSync(path, ["id,description", ...rows.map(([n, text]) => `V-${n},${text}`), ""].join("\n"))
      const all = Array.from({ length: 10 }, (_, i) => [i + 1, "old"] as const)
      write(all)
      const job = inputJob(Rows.csv(path))
      const one = { maxConcurrency: 1 }
      const begun = yield* enrich(job, assessing(), { budget: { ...one, maxCalls: 6 } })
      assertIncludes(begun, { status: "suspended", done: 6, pending: 4 })

      const left = all.filter(([n]) => n !== 2 && n !== 9)
      write([...left.map(([n]) => [n, n === 3 || n === 8 ? "edited" : "old"] as const), [11, "new"]])
      const said: Array<string> = []
      const planned = assessing()
      const ended = yield* enrich(job, planned, { budget: { ...one, maxCalls: 100 } }).pipe(hearing(said))
      assertIncludes(ended, { status: "done", rows: 10, done: 10, calls: 10 })
      assert.deepStrictEqual(
        [...planned.asked.keys()].map((prompt) => prompt),
        [7, 8, 9, 10].map((n) => JSON.stringify({ id: `V-${n}`, description: "old" }))
      )
      assert.lengthOf(said, 1)
      assert.include(said[0], `${path} changed since run ${runId} listed its rows, which stay as they were`)

      const found = yield* Refresh.refresh(job, { runId, apply: true })
      assertIncludes(found, {
        kept: ["V-2", "V-9"],
        unended: [],
        changed: ["V-3", "V-8"],
        added: ["V-11"],
        removed: [],
        same: 6
      })
      const again = assessing()
      const last = yield* enrich(job, again, { budget: one })
      assertSound(last, 13)
      assertIncludes(last, { status: "done", rows: 11, done: 11, calls: 13 })
      assert.deepStrictEqual(askedOf(again), [
        { id: "V-11", description: "new" },
        { id: "V-3", description: "edited" },
        { id: "V-8", description: "edited" }
      ])
    }).pipe(Effect.provide(Memory.layer))
  )
})
