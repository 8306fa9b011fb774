import { mkdtempSync, readdirSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Effect, Random, Schedule, Stream } from "effect"
import { Retry, RowSource } from "../../src/index.ts"
import { Verify } from "../../src/programs/Testing.ts"
import { command } from "../support/command.ts"
import { plants } from "./plants.ts"
import { jobOf, shapes } from "./shapes.ts"

const said = ({ violations }: Pick<Verify.Report, "violations">) =>
  violations.map(({ seed, what }) => `seed ${seed}: ${what}`)

describe("Verify.job", () => {
  for (const [name, job] of Object.entries(shapes)) {
    it.effect(`finds nothing in a healthy job: ${name}`, () =>
      Effect.gen(function* () {
        const report = yield* Verify.job(job, { seeds: 8, rows: 25 })
        assert.deepStrictEqual(said(report), [])
        assert.deepStrictEqual([report.seeds, report.lives, report.rows], [8, 8, 200])
        assert.isAbove(report.crashes, 0)
      })
    )
  }

  it.effect("gives the same trace hash for the same seeds, and another one for others", () =>
    Effect.gen(function* () {
      const options = { seeds: 3, rows: 10 }
      const first = yield* Verify.job(shapes.memo, options)
      assert.deepStrictEqual(yield* Verify.job(shapes.memo, options), first)
      const other = yield* Verify.job(shapes.memo, { ...options, firstSeed: 4 })
      assert.notStrictEqual(other.traceHash, first.traceHash)
    })
  )

  it.effect(
    "I22: a turn that was called before a crash, and is answered from the memo after it, counts as a call",
    () =>
      Effect.gen(function* () {
        const job = jobOf({ memo: 5, nameOf: (id) => `Vendor ${id % 2}` })
        assert.deepStrictEqual(said(yield* Verify.job(job, { firstSeed: 5, seeds: 10, rows: 6, concurrency: 4 })), [])
      })
  )

  it.effect("survives a crash before and after each commit", () =>
    Effect.gen(function* () {
      const report = yield* Verify.job(jobOf({ chunkSize: 4 }), { seeds: 2, firstSeed: 5, rows: 10, exhaustive: true })
      assert.deepStrictEqual(said(report), [])
      // Each of the two seeds lives once unharmed, and then each life has its one crash.
      assert.strictEqual(report.lives, 2 + report.crashes)
      assert.isAbove(report.crashes, 2 * 10)
    })
  )

  it.effect("reads the source once and only as many rows as it is asked for", () =>
    Effect.gen(function* () {
      let reads = 0
      const endless = Stream.iterate(1, (id) => id + 1).pipe(
        Stream.tap(() => Effect.sync(() => reads++)),
        Stream.map((id) => ({ id, name: `Vendor ${id}` })),
        Stream.rechunk(1)
      )
      const job = { ...jobOf(), source: RowSource.fromStream(endless) }
      const report = yield* Verify.job(job, { seeds: 3, rows: 6 })
      assert.deepStrictEqual(said(report), [])
      assert.deepStrictEqual([report.rows, reads], [18, 6])
    })
  )
})

describe("a bug that loses money is found", () => {
  const expected = new Map([
    ["1", /spent \+ uncertain \+ held is \d+, above the cap of \d+/],
    ["2", /a request was billed \d+ nano-dollars, and its calls count only \d+/],
    ["3", /a call was billed (\d+) nano-dollars and counts only \d+/]
  ])
  for (const [name, plant] of plants) {
    it.effect(`plant ${name}`, () =>
      Effect.gen(function* () {
        const report = yield* Verify.job(shapes.plain, { seeds: 15, wrap: plant })
        assert.isTrue(
          report.violations.some(({ what }) => expected.get(name)?.test(what)),
          said(report).join("\n")
        )
        const [first] = report.violations
        assert.isDefined(first)
        const trace = yield* Verify.replay(shapes.plain, first?.seed ?? 0, { wrap: plant })
        assert.deepStrictEqual(trace.violations, [first])
        assert.include(trace.lines.at(-1) ?? "", first?.what)
      })
    )
  }
})

describe("a job that is left to chance is found", () => {
  it.effect("a prompt that is another one each time", () =>
    Effect.gen(function* () {
      let n = 0
      const report = yield* Verify.job(
        jobOf({}, ({ name }) => `${name}, request ${++n}`),
        { seeds: 1, rows: 5 }
      )
      assert.match(said(report).join("\n"), /the prompt of row 1 is another one when it is rendered again/)
    })
  )

  it.effect("a prompt that changes with time, and not from one line to the next", () =>
    Effect.gen(function* () {
      let n = 0
      // The rows are rendered twice before the run, ten calls: then a day begins.
      const report = yield* Verify.job(
        jobOf({}, ({ name }) => `${name} on day ${Math.floor(n++ / 10)}`),
        { seeds: 1, rows: 5 }
      )
      assert.match(
        said(report).join("\n"),
        /a prompt is not what it was when it was first rendered: "Vendor \d on day \d+"/
      )
    })
  )

  it.effect("a retry policy with a counter of its own, where Effect's Random is fine", () =>
    Effect.gen(function* () {
      let n = 0
      const policy = (ms: Effect.Effect<number>) =>
        Retry.make(
          Schedule.recurs(5).pipe(Schedule.addDelayEffect(() => Effect.map(ms, (delay) => `${delay} millis` as const)))
        )
      const options = { seeds: 1, firstSeed: 2, rows: 20 }
      const counting = yield* Verify.job(jobOf({ retry: policy(Effect.sync(() => ++n)) }), options)
      assert.match(said(counting).join("\n"), /the same seed lived another life/)
      const random = yield* Verify.job(jobOf({ retry: policy(Random.nextIntBetween(1, 1_000)) }), options)
      assert.deepStrictEqual(said(random), [])
    })
  )
})

describe("Verify.replay", () => {
  it.effect("tells the same life twice, with its crash", () =>
    Effect.gen(function* () {
      const options = { rows: 10, crash: { commit: 9, before: false } }
      const first = yield* Verify.replay(shapes.plain, 5, options)
      assert.deepStrictEqual(yield* Verify.replay(shapes.plain, 5, options), first)
      const lines = first.lines.filter((line) => !line.includes("the clock is set"))
      const at = lines.findIndex((line) => line.endsWith("killed"))
      assert.match(lines[at - 1] ?? "", /commit 9: /)
      assert.match(lines[at + 1] ?? "", /process 2 begins/)
      assert.match(lines.at(-1) ?? "", /ends: /)
    })
  )
})

describe("longhaul verify", () => {
  const limit = { timeout: 120_000 }
  const file = (name: string) => fileURLToPath(new URL(`./cli/${name}.ts`, import.meta.url))
  let cwd: string
  beforeAll(() => {
    cwd = mkdtempSync(join(tmpdir(), "longhaul-verify-"))
  })
  afterAll(() => rmSync(cwd, { recursive: true, force: true }))
  const verify = (...args: ReadonlyArray<string>) => command(["verify", ...args], { cwd }).ended

  it("says what it did, and leaves nothing behind", limit, async () => {
    const { code, stderr, stdout } = await verify(file("steady"), "--seeds", "5", "--rows", "12")
    assert.strictEqual(code, 0, stderr)
    assert.match(stdout, /^5 seeds · 60 rows · \d+ crash(es)? · 0 violations\n$/)
    assert.deepStrictEqual(readdirSync(cwd), [])
  })

  it("takes another source, and tells one seed line by line", limit, async () => {
    writeFileSync(
      join(cwd, "three.jsonl"),
      [1, 2, 3].map((id) => JSON.stringify({ id, name: `Firm ${id}` })).join("\n")
    )
    const args = [file("steady"), "--source", "three.jsonl", "--concurrency", "2", "--seed", "3"]
    const [first, again] = [await verify(...args), await verify(...args)]
    assert.strictEqual(first.code, 0, first.stderr)
    assert.match(
      first.stdout,
      /^\d+ \d+ ms {2}process 1 begins\n[\s\S]*: 0 holds 3 rows;[\s\S]*\ntrace hash [0-9a-f]{13}\n$/
    )
    assert.strictEqual(again.stdout, first.stdout)
  })

  it("ends with 1 on a violation and says how to see it again", limit, async () => {
    const found = await verify(file("unsteady"), "--seeds", "2", "--rows", "5")
    assert.strictEqual(found.code, 1, found.stderr)
    assert.match(found.stdout, /^2 seeds · 10 rows · \d+ crash(es)? · [1-9]\d* violations\n/)
    assert.match(found.stdout, /violation, seed 1: a prompt is not what it was when it was first rendered/)
    const replay = /replay with: longhaul (verify .*unsteady\.ts --rows 5 --seed 1)\n/.exec(found.stdout)?.[1]
    assert.isDefined(replay)
    const { code, stdout } = await command((replay ?? "").split(" "), { cwd }).ended
    assert.strictEqual(code, 1)
    assert.match(stdout, /VIOLATION a prompt is not what it was/)
  })

  it("refuses what it cannot use, with exit 2", limit, async () => {
    const { code, stderr } = await verify(file("steady"), "--rows", "0")
    assert.strictEqual(code, 2)
    assert.match(stderr, /--rows must be a whole number from 1, not 0/)
  })
})
