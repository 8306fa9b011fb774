import { mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Effect, Either, Schedule, Schema } from "effect"
import { Agent, Budget, Enrichment, LLMSimulated, Memory, Plan, Price, Retry, Rows, Tokenizer } from "longhaul"
import { command } from "../support/command.ts"

const Row = Schema.Struct({ id: Schema.Int, name: Schema.String })
const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })
const rowsOf = (n: number) => Array.from({ length: n }, (_, i) => ({ id: i + 1, name: "word ".repeat(1 + (i % 40)) }))

const jobOf = (
  records: Iterable<unknown>,
  more: { maxRepairs?: number; retry?: Retry.RetryPolicy; model?: string } = {}
) =>
  Enrichment.make({
    name: "planned",
    agent: Agent.make({
      name: "planner",
      model: more.model ?? "simulated",
      maxOutputTokens: 100,
      prompt: ({ name }: typeof Row.Type) => {
        if (name === "unspeakable") throw new Error("no words for it")
        return name
      },
      output: Enriched,
      ...(more.maxRepairs === undefined ? {} : { maxRepairs: more.maxRepairs })
    }),
    row: Row,
    id: (row) => row.id,
    where: (row) => row.name !== "left out",
    source: Rows.fromIterable(records),
    ...(more.retry === undefined ? {} : { retry: more.retry })
  })

const once = Retry.make(Schedule.stop)
const eight = { concurrency: 8 }

describe("Plan.plan", () => {
  it.effect("counts rows, rows left out, rows that cannot be asked, and bad rows with the errors of a run's load", () =>
    Effect.gen(function* () {
      const odd = [
        { id: 1, name: "again" },
        { id: "x", name: "bad" },
        { id: 7, name: "left out" },
        { id: 8, name: "unspeakable" }
      ]
      const records = [...rowsOf(5), ...odd]
      const plan = yield* Plan.plan(jobOf(records), eight)
      assert.deepStrictEqual([plan.rows, plan.filtered, plan.badRows, plan.unasked.rows], [6, 1, 2, 1])
      assert.include(plan.unasked.first, "no words for it")
      const load = (of: ReadonlyArray<unknown>) =>
        Effect.flip(
          Enrichment.run(jobOf(of)).pipe(
            Effect.provide(Budget.layer({ maxCostUsd: 1 })),
            Effect.provide([Memory.layer, LLMSimulated.layer()])
          )
        )
      const [twin, misfit] = plan.bad
      assert.deepStrictEqual(twin?.message, (yield* load(records)).message)
      const { message } = yield* load([...rowsOf(5), { id: 9, name: "fine" }, ...odd.slice(1)])
      assert.deepStrictEqual(misfit?.message, message)
    })
  )

  it.effect("has no figures but zeros for a source without rows", () =>
    Effect.map(Plan.plan(jobOf([]), eight), ({ cost, largest, ms, prompts, rows }) => {
      assert.deepStrictEqual([rows, cost.low, cost.high, ms.low, ms.high, largest.spend], [0, 0, 0, 0, 0, 0])
      assert.isUndefined(prompts)
    })
  )

  it.effect("shows the shortest, the median and the longest prompt, as they are sent", () =>
    Effect.map(Plan.plan(jobOf(rowsOf(40)), eight), ({ prompts }) => {
      const words = (prompt: Plan.Prompt | undefined) => prompt?.messages.at(-1)?.content.trim().split(" ").length
      assert.deepStrictEqual([words(prompts?.short), words(prompts?.median), words(prompts?.long)], [1, 21, 40])
    })
  )

  it.effect("counts exactly with a sample of all rows, and its cost is that of the tokens", () =>
    Effect.gen(function* () {
      const plan = yield* Plan.plan(jobOf(rowsOf(10)), { ...eight, sample: 10 })
      assert.strictEqual(plan.inputTokens.low, plan.inputTokens.high)
      // 0.15 and 0.6 dollars a million tokens are 150 and 600 nano-dollars each; a tokenizer of one token a text.
      const tokens = plan.inputTokens.low
      assert.strictEqual(plan.cost.low, tokens * 150 + 10 * plan.leastOutput * 600)
      assert.strictEqual(plan.cost.high, tokens * 150 + 10 * 100 * 600)
    }).pipe(Effect.provide(Tokenizer.layer((text) => (text === "" ? 0 : 1))))
  )

  it.effect("takes turns and tries from the job, and its largest spend is their product with the hold", () =>
    Effect.gen(function* () {
      const largest = (more: Parameters<typeof jobOf>[1]) =>
        Effect.map(Plan.plan(jobOf(rowsOf(1), more), eight), ({ largest }) => largest)
      const least = yield* largest({ maxRepairs: 0, retry: once })
      assert.deepStrictEqual([least.turns, least.tries, least.spend], [1, 1, least.call])
      const retried = yield* largest({ maxRepairs: 0 })
      assert.deepStrictEqual([retried.tries, retried.spend], [5, 5 * least.call])
      const repaired = yield* largest({ maxRepairs: 2, retry: once })
      assert.strictEqual(repaired.turns, 3)
      assert.isAbove(repaired.spend, 3 * least.call)
    })
  )

  it.live(
    "its largest spend is not passed by a run in which no answer can be read, and the run's spend is within the estimate where all can",
    () =>
      Effect.gen(function* () {
        const run = (rateBadJson: number) =>
          Enrichment.run(jobOf(rowsOf(60))).pipe(
            Effect.provide(Budget.layer({ maxCostUsd: 1 })),
            Effect.provide([Memory.layer, LLMSimulated.layer({ rateBadJson })])
          )
        const { cost, largest } = yield* Plan.plan(jobOf(rowsOf(60)), eight)
        const bad = yield* run(1)
        assert.strictEqual(bad.partial, 60)
        assert.isAtMost(bad.spent, largest.spend)
        assert.isAtMost((yield* run(0)).spent, cost.high)
      })
  )

  it.effect("refuses what a run refuses: a model without a price, and options that make no sense", () =>
    Effect.gen(function* () {
      const refused = yield* Effect.flip(Plan.plan(jobOf(rowsOf(1), { model: "nobody-knows" }), eight))
      assert.deepInclude(refused, { _tag: "RunRefused", reason: "unpriced" })
      const wrong = Price.layer([{ model: "simulated", from: "0000-01-01", input: 0.0000001, output: 1 }])
      const odd = yield* Effect.flip(Effect.provide(Plan.plan(jobOf(rowsOf(1)), eight), wrong))
      assert.include(odd.message, "cannot be right")
      for (const options of [{ concurrency: 0 }, { concurrency: 8, sample: 0 }]) {
        const bad = yield* Effect.either(Plan.plan(jobOf(rowsOf(1)), options))
        assert.deepInclude(Either.isLeft(bad) ? bad.left : {}, { _tag: "InputError", reason: "bad_option" })
      }
    })
  )

  it.effect("is the same each time, and larger sources are sampled", () =>
    Effect.gen(function* () {
      const planned = Plan.plan(jobOf(rowsOf(2_000)), { ...eight, sample: 50, requestsPerMinute: 100 })
      const plan = yield* planned
      assert.deepStrictEqual(yield* planned, plan)
      assert.strictEqual(plan.sampled, 50)
      // 2,000 calls at 100 a minute.
      assert.isAtLeast(plan.ms.low, 20 * 60_000)
    })
  )
})

describe("longhaul plan", () => {
  const job = fileURLToPath(new URL("./cli/job.ts", import.meta.url))
  let cwd: string
  beforeAll(() => {
    cwd = mkdtempSync(join(tmpdir(), "longhaul-plan-"))
  })
  afterAll(() => rmSync(cwd, { recursive: true, force: true }))
  const plan = (lines: ReadonlyArray<string>, ...args: ReadonlyArray<string>) => {
    writeFileSync(join(cwd, "rows.csv"), `id,name\n${lines.join("\n")}\n`)
    return command(["plan", job, ...args], { cwd }).ended
  }
  const limit = { timeout: 60_000 }

  it("needs no key and says what a budget covers; nothing of a row reaches the terminal raw", limit, async () => {
    const rows = ["1,\u001b[31mred\u202e", "2,plain"]
    const { cost, largest } = JSON.parse((await plan(rows, "--json")).stdout)
    const told = async (nano: number) => (await plan(rows, "--budget", (nano / 1e9).toFixed(9))).stdout
    const text = await told(cost.high)
    assert.match(text, /covers the estimate, not the largest possible spend/)
    assert.notMatch(text.replaceAll("\n", ""), /[\p{Cc}\p{Cf}]/u)
    assert.match(await told(largest.spend), /covers the largest possible spend/)
    assert.match(await told(cost.high - 1), /may not cover the estimate/)
    assert.match(await told(cost.low - 1), /does not cover the estimate/)
  })

  it("names bad rows with exit code 2, and a model without a price", limit, async () => {
    const twice = await plan(["1,a", "1,b"])
    assert.strictEqual(twice.code, 2)
    assert.include(twice.stdout, 'id "1" stands on line 2 and again on line 3')
    const unpriced = await plan(["1,a"], "--model", "nobody-knows")
    assert.deepStrictEqual([unpriced.code, unpriced.stdout], [2, ""])
    assert.include(unpriced.stderr, "has no price")
  })
})
