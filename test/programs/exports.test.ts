import { existsSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { Reactivity } from "@effect/experimental"
import { SqliteClient } from "@effect/sql-sqlite-node"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Effect, Either, Option, Schema } from "effect"
import { asyncBufferFromFile, parquetReadObjects } from "hyparquet"
import type { ReportedRow } from "../../src/programs/Report.ts"
import * as ResultRows from "../../src/programs/ResultRows.ts"
import * as Usage from "../../src/services/Usage.ts"
import { command, type Ended } from "../support/command.ts"
import { type FakeProvider, startFakeProvider } from "../support/startFakeProvider.ts"

const typedJob = fileURLToPath(new URL("./cli/typedJob.ts", import.meta.url))
const job = fileURLToPath(new URL("./cli/job.ts", import.meta.url))
const limit = { timeout: 120_000 }

let cwd: string
let provider: FakeProvider
beforeAll(async () => {
  cwd = mkdtempSync(join(tmpdir(), "longhaul-exports-"))
  provider = await startFakeProvider({ latency: 300 })
}, 60_000)
afterAll(async () => {
  await provider.stop()
  rmSync(cwd, { recursive: true, force: true })
})

const longhaul = (...args: ReadonlyArray<string>): Promise<Ended> => command(args, { cwd }).ended
const fine = async (...args: ReadonlyArray<string>): Promise<string> => {
  const { code, stderr, stdout } = await longhaul(...args)
  assert.strictEqual(code, 0, stderr)
  return stdout
}
const sql = (file: string, ...statements: ReadonlyArray<string>) =>
  SqliteClient.make({ filename: join(cwd, file), disableWAL: true }).pipe(
    Effect.flatMap((client) =>
      Effect.forEach(statements, (text) => client.unsafe<Readonly<Record<string, unknown>>>(text))
    ),
    Effect.scoped,
    Effect.provide(Reactivity.layer),
    Effect.runPromise
  )
const table = async (file: string, name: string) =>
  ((await sql(file, `select * from ${name} order by rowid`))[0] ?? []).map((row) => ({ ...row }))
const parquet = async (name: string) => parquetReadObjects({ file: await asyncBufferFromFile(join(cwd, name)) })
const jsonl = (name: string): ReadonlyArray<Readonly<Record<string, unknown>>> =>
  readFileSync(join(cwd, name), "utf8")
    .trimEnd()
    .split("\n")
    .map((line) => JSON.parse(line))

const columns = [
  "id",
  "name",
  "weight",
  "note",
  "result_name",
  "risk",
  "score",
  "share",
  "listed",
  "tags",
  "longhaul_status",
  "longhaul_error"
]

describe("longhaul export", () => {
  it("writes the same cells to Parquet, a table and JSON Lines, each by its column's type", limit, async () => {
    await sql(
      "crm.db",
      "create table vendors (id integer, name text, weight real, note)",
      "insert into vendors values (1, 'acme', 0.5, null), (2, 'unreadable', 2, 7), (3, 'späti', null, 'mixed')",
      "with recursive i(n) as (select 4 union all select n + 1 from i where n < 250) insert into vendors select n, 'v' || n, n, '' from i"
    )
    const run = ["run", typedJob, "--llm", "simulated", "--budget", "1", "--run-id", "typed"]
    const out = await longhaul(...run, "--source", "sqlite:crm.db#vendors", "--out", "out.parquet")
    assert.strictEqual(out.code, 3, out.stderr)
    assert.include(out.stdout, `results: ${join(cwd, "out.parquet")}`)
    assert.include(await fine("export", "typed", "--out", "sqlite:crm.db#rated"), "250 rows: sqlite:crm.db#rated")
    await fine("export", "typed", "--out", "out.jsonl")

    const expected = jsonl("out.jsonl")
    assert.strictEqual(expected.length, 250)
    assert.deepStrictEqual(
      expected.map((row) => row.id),
      Array.from(expected, (_, i) => i + 1)
    )
    const cell = (row: Readonly<Record<string, unknown>>, name: string) => {
      const value = row[name] ?? null
      if (name === "tags" && value !== null) return JSON.stringify(value)
      if (name === "note" && value !== null) return String(value)
      return name === "longhaul_error" && value === "" ? null : value
    }
    const typed = expected.map((row) => Object.fromEntries(columns.map((name) => [name, cell(row, name)])))
    const big = (value: unknown) => (typeof value === "number" ? BigInt(value) : value)
    assert.deepStrictEqual(
      await parquet("out.parquet"),
      typed.map((row) => ({ ...row, id: big(row.id), score: big(row.score) }))
    )
    assert.deepStrictEqual(
      await table("crm.db", "rated"),
      typed.map((row) => ({ ...row, listed: row.listed === null ? null : Number(row.listed) }))
    )
    assert.deepInclude(typed[1], { result_name: null, score: null, longhaul_status: "partial", note: "7" })
    assert.deepInclude(typed[3], { weight: 4, result_name: "V4", score: 4, share: 0.5, listed: true, risk: "low" })

    // The table is the source of another run, whose export has one status column.
    await fine("export", "typed", "--out", "again.parquet")
    assert.isTrue(readFileSync(join(cwd, "out.parquet")).equals(readFileSync(join(cwd, "again.parquet"))))
    const next = ["--db", "next.db", "--source", "sqlite:crm.db#rated", "--out", "next.parquet", "--run-id", "next"]
    await longhaul("run", typedJob, "--llm", "simulated", "--budget", "1", ...next)
    const [first = {}] = await parquet("next.parquet")
    assert.deepStrictEqual(
      Object.keys(first).filter((name) => /name|longhaul/.test(name)),
      ["name", "result_name", "result_result_name", "longhaul_status", "longhaul_error"]
    )

    // As it was at the first checkpoint: some rows had not ended.
    await fine("export", "typed", "--as-of", "1", "--out", "sqlite:crm.db#rated")
    const early = await table("crm.db", "rated")
    assert.strictEqual(early.length, 250)
    const pending = early.filter((row) => row.longhaul_status === "pending")
    assert.isAbove(pending.length, 0)
    assert.isTrue(pending.every((row) => row.score === null && row.longhaul_error === null && row.name !== null))
  })

  it("never writes over the rows that it was made from, by whatever name", limit, async () => {
    const rows = "id,name\n1,acme\n2,initech\n"
    writeFileSync(join(cwd, "own.csv"), rows)
    const run = ["run", job, "--llm", "simulated", "--budget", "1", "--source", "own.csv", "--db", "own.db"]
    const refused = await longhaul(...run, "--run-id", "own", "--out", join(cwd, ".", "own.csv"))
    assert.strictEqual(refused.code, 2, refused.stderr)
    assert.include(refused.stderr, "the results would be written over the source")
    assert.include(refused.stderr, "fix: name another file with --out")
    assert.strictEqual((await longhaul("status", "own", "--db", "own.db")).code, 2)
    // Its own name would be the source's.
    assert.include(await fine(...run, "--run-id", "own"), "own-results.csv")
    assert.match(readFileSync(join(cwd, "own-results.csv"), "utf8"), /^id,name,/)
    symlinkSync(join(cwd, "own.csv"), join(cwd, "alias.csv"))
    for (const out of ["own.csv", "alias.csv"]) {
      assert.include((await longhaul("export", "own", "--db", "own.db", "--out", out)).stderr, "over the source")
    }
    assert.strictEqual(readFileSync(join(cwd, "own.csv"), "utf8"), rows)
  })

  it("refuses what it cannot write before anything is sent, and never a table of another's", limit, async () => {
    await sql("mine.db", "create table vendors (id integer, name text)", "insert into vendors values (1, 'mine')")
    const run = ["run", typedJob, "--llm", "simulated", "--budget", "1", "--db", "refused.db", "--run-id", "refused"]
    const source = ["--source", "sqlite:mine.db#vendors"]
    const mistakes: ReadonlyArray<readonly [string, RegExp]> = [
      [
        "out.xlsx",
        /not known by its extension\nfix: the name must end in \.csv, .*\.parquet, or sqlite:<file>#<table>/
      ],
      ["sqlite:mine.db", /it names no table/],
      ["sqlite:mine.db#", /it names no table/],
      ["sqlite:no/such/dir.db#x", /its directory does not exist/],
      ["sqlite:mine.db#Vendors", /there is a table "Vendors" that no export made.*\nfix: name another table/],
      ["sqlite:mine.db#sqlite_master", /SQLite's own/],
      ["sqlite:refused.db#outcome", /there is a table "outcome" that no export made/]
    ]
    for (const [out, message] of mistakes) {
      const { code, stderr } = await longhaul(...run, ...source, "--out", out)
      assert.match(stderr, message, out)
      assert.strictEqual(code, 2, out)
    }
    assert.strictEqual((await longhaul("status", "refused", "--db", "refused.db")).code, 2)
    assert.deepStrictEqual(await table("mine.db", "vendors"), [{ id: 1, name: "mine" }])
  })

  it("works from another process while the run goes on, into the run's own database too", limit, async () => {
    writeFileSync(
      join(cwd, "busy.csv"),
      `id,name\n${Array.from({ length: 400 }, (_, i) => `v${i},n ${i}`).join("\n")}\n`
    )
    const args = ["--budget", "1", "--source", "busy.csv", "--db", "busy.db", "--run-id", "busy", "--scope", "busy"]
    const env = { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: provider.url }
    const running = command(["run", job, ...args, "--out", "sqlite:busy.db#results"], { cwd, env })
    await running.shows("run busy")
    while ((await provider.bill()).requests < 30) await new Promise((resolve) => setTimeout(resolve, 20))
    await fine("export", "busy", "--db", "busy.db", "--out", "sqlite:busy.db#results")
    await fine("export", "busy", "--db", "busy.db", "--out", "busy.parquet")
    assert.isNull(running.child.exitCode)
    for (const rows of [await table("busy.db", "results"), await parquet("busy.parquet")]) {
      assert.deepStrictEqual(
        rows.map((row) => row.id),
        Array.from({ length: 400 }, (_, i) => `v${i}`)
      )
      const done = rows.filter((row) => row.longhaul_status === "done").length
      assert.isTrue(done > 0 && done < 400, `${done}`)
    }
    running.child.kill("SIGTERM")
    assert.strictEqual((await running.ended).code, 130)
    // The run keeps its target; a resume may name another.
    assert.isFalse(existsSync(join(cwd, "rest.parquet")))
    const resumed = await command(["resume", "busy", "--db", "busy.db", "--out", "rest.parquet", "-c", "64"], {
      cwd,
      env
    }).ended
    assert.strictEqual(resumed.code, 0, resumed.stderr)
    assert.isTrue((await parquet("rest.parquet")).every((row) => row.longhaul_status === "done"))
  })
})

describe("the typed columns of a run", () => {
  const output = Schema.Struct({ id: Schema.Int, score: Schema.Int, result_id: Schema.Boolean })
  const row = (record: Readonly<Record<string, unknown>>, parsed?: unknown): ReportedRow<unknown> => ({
    seq: 0,
    id: "a",
    version: "1",
    line: 1,
    record,
    outcome:
      parsed === undefined
        ? Option.none()
        : Option.some(Either.right({ output: "", parsed, usage: Usage.zero, partial: false, promptVersion: "1" }))
  })
  const surveyed = (...rows: ReadonlyArray<ReportedRow<unknown>>) => {
    const survey = ResultRows.survey(output)
    for (const one of rows) survey.see(one)
    return survey.layout()
  }
  const kinds = ({ typed }: ReturnType<typeof surveyed>) => typed.map(({ kind, name }) => `${name} ${kind}`)

  it("are the source's by their values and the output's by its schema, each under a name of its own", () => {
    const source = { id: "x", longhaul_status: "done", n: 1, longhaul_error: "" }
    const layout = surveyed(row({ ...source, late: true }, { id: 7, score: 1, result_id: true }), row(source))
    assert.deepStrictEqual(kinds(layout), [
      "id text",
      "n integer",
      "late boolean",
      "result_id integer",
      "score integer",
      "result_result_id boolean",
      "longhaul_status text",
      "longhaul_error text"
    ])
    assert.deepStrictEqual(
      layout.columns,
      layout.typed.map(({ name }) => name)
    )
    assert.deepInclude(layout.typedRow(row(source, { id: 7, score: 1, result_id: true })), {
      id: "x",
      result_id: 7,
      result_result_id: true,
      longhaul_status: "done",
      longhaul_error: null
    })
    assert.deepInclude(layout.typedRow(row(source)), { longhaul_status: "pending", longhaul_error: null })
    assert.deepInclude(layout.row(row(source)), { longhaul_status: "pending", longhaul_error: "" })
  })

  it("are text where a row that was kept from another schema does not fit", () => {
    const layout = surveyed(row({}, { id: 1, score: "high", result_id: null }), row({}, { id: 2, score: 3 }))
    assert.deepStrictEqual(kinds(layout).slice(0, 3), ["id integer", "score text", "result_id boolean"])
  })
})
