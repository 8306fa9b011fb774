import { assert, describe, it } from "@effect/vitest"
import { Chunk, Clock, Effect, Layer, Stream } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as CircuitBreaker from "../../src/services/CircuitBreaker.ts"
import { classify } from "../../src/services/Classify.ts"
import type { LLMError } from "../../src/services/Errors.ts"
import { answer, type ChatAnswer, LLM } from "../../src/services/LLM.ts"
import * as Price from "../../src/services/Price.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { jobOf, rowsOf } from "../support/scriptedJob.ts"
import { fail, good, model, prices, type Scripted, scripted } from "../support/scriptedLlm.ts"
import { inVirtualTime } from "../support/virtualClock.ts"

const width = 8
const runId = "r"
const job = (rows: number) => jobOf({ rows: rowsOf(rows), chunkSize: 100 })

/** The run's events in order, with the time of each; it begins at 0. */
const eventsOf = (llm: Scripted, rows: number, budget: Budget.BudgetOptions = {}) =>
  Stream.runCollect(
    Stream.mapEffect(Enrichment.events(job(rows), { runId }), (event) =>
      Effect.map(Clock.currentTimeMillis, (at) => ({ at, event }))
    )
  ).pipe(
    Effect.map(Chunk.toReadonlyArray),
    Effect.provide(Budget.layer({ noCap: true, maxConcurrency: width, ...budget })),
    Effect.provide([llm.layer, prices, Memory.layer])
  )

type Events = Effect.Effect.Success<ReturnType<typeof eventsOf>>
const resultOf = (events: Events) => {
  const last = events.at(-1)?.event
  assert.strictEqual(last?._tag, "Finished")
  if (last?._tag !== "Finished") throw new Error("unreachable")
  return last.result
}

/** One random number a call, the same in each run. */
const dice = (seed: number) => () => {
  seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31
  return seed / 2 ** 31
}

describe("T13", () => {
  const outageFrom = 500
  const outageMs = 60_000

  it("T13 outage: 60 s after row 500 of 5,000: the breaker opens after at most threshold + C calls, one probe a cool-down, no row fails, the run goes on by itself", async () => {
    let from = Number.POSITIVE_INFINITY
    const failedAt: Array<number> = []
    const llm = scripted(
      ({ n }) =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          if (n > outageFrom) from = Math.min(from, now)
          if (now < from || now >= from + outageMs) return good()
          failedAt.push(now)
          return fail({ charge: "uncertain", message: `outage, call ${failedAt.length}` })
        }),
      Effect.sleep(800)
    )
    const events = await inVirtualTime(eventsOf(llm, 5_000))
    const result = resultOf(events)
    assertIncludes(result, { status: "done", done: 5_000, failed: 0, held: 0 })

    const { threshold } = CircuitBreaker.defaults
    const down = events.find(({ event }) => event._tag === "ProviderDown")
    assert.isDefined(down)
    const before = failedAt.filter((at) => at <= (down?.at ?? 0)).length
    assert.isAtMost(before, threshold + width)
    if (down?.event._tag === "ProviderDown") {
      assert.strictEqual(down.event.error?.cause.message, `outage, call ${threshold}`)
    }
    // After the calls that were under way came back: one at a time, each after a cool-down of 5 s, then 10, 20, 40.
    const probes = failedAt.filter((at) => at > (down?.at ?? 0) + 800)
    assert.isAbove(probes.length, 1)
    let [last, wait] = [down?.at ?? 0, CircuitBreaker.defaults.coolMs]
    for (const at of probes) {
      assert.isAtLeast(at - last, wait)
      ;[last, wait] = [at, 2 * wait]
    }
    // What the outage cost: each of its calls is counted, and there are few of them.
    assert.strictEqual(result.calls, 5_000 + failedAt.length)
    assert.isAtMost(failedAt.length, threshold + width + probes.length)
    assert.isAtMost(result.calls / 5_000, 1.1)
    const up = events.find(({ event }) => event._tag === "ProviderUp")
    assert.isDefined(up)
    // The capacity left over: all but the outage, and at most one cool-down more.
    const idle = (up?.at ?? 0) - from
    const ended = events.at(-1)?.at ?? 0
    assert.isAtLeast((5_000 * 800) / width / (ended - idle), 0.9)
  }, 60_000)
})

/** The forms in which a wait of two seconds is said, or nothing is. */
const forms = (now: number): ReadonlyArray<Record<string, string>> => [
  { "retry-after": "2" },
  { "retry-after-ms": "2000" },
  { "retry-after": new Date(now + 2_000).toUTCString(), date: new Date(now).toUTCString() },
  { "retry-after": "soon" },
  {}
]
const limited = (headers: Record<string, string>, now: number): LLMError =>
  classify({ status: 429, headers: new Headers(headers), now, message: "Rate limit reached" })

/** How many calls began in each time between a wish to wait and its end; a call that was under way is none of them. */
const tooEarly = (llm: Scripted, wishes: ReadonlyArray<readonly [at: number, until: number]>) =>
  llm.counts.begunAt.filter((begun) => wishes.some(([at, until]) => begun > at && begun < until)).length

describe("T14", () => {
  it("T14 429 storm: half of all calls for a minute, Retry-After in every form: no call before its end, amplification at most 1.1, every row done, nothing charged", async () => {
    const roll = dice(7)
    const wishes: Array<readonly [number, number]> = []
    const llm = scripted(
      ({ n }) =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          if (now < 100_000 || now >= 160_000 || roll() < 0.5) return good()
          const error = limited(forms(now)[n % 5] ?? {}, now)
          if (error.retryAfterMs !== undefined) wishes.push([now, now + error.retryAfterMs])
          return Effect.fail(error)
        }),
      Effect.sleep(800)
    )
    const result = resultOf(await inVirtualTime(eventsOf(llm, 5_000)))
    assertIncludes(result, { status: "done", done: 5_000, failed: 0, uncertain: 0, held: 0 })
    assert.isAbove(wishes.length, 5)
    assert.strictEqual(tooEarly(llm, wishes), 0)
    assert.isAtMost(llm.counts.most, width)
    assert.strictEqual(llm.counts.calls, 5_000 + llm.counts.failed)
    assert.isAtMost(llm.counts.calls / 5_000, 1.1)
  }, 60_000)

  /** A bucket of `bursts` calls that fills by 240 a minute; what finds it empty is a 429. */
  const bucket = (bursts: number, answered: Effect.Effect<ChatAnswer>) => {
    let [level, at] = [bursts, 0]
    return scripted(
      () =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          level = Math.min(bursts, level + ((now - at) * 240) / 60_000)
          at = now
          if (level < 1) return Effect.fail(limited({ "retry-after": "1" }, now))
          level--
          return Effect.delay(answered, 800)
        }),
      Effect.void
    )
  }
  const told = Effect.map(good(), (answered) => answer({ ...answered, limits: { requestsPerMinute: 240 } }))
  const buckets: ReadonlyArray<readonly [string, () => Scripted, Budget.BudgetOptions]> = [
    ["in bursts of 10", () => bucket(10, good()), {}],
    ["strictly one by one, and says so in its headers", () => bucket(1, told), {}],
    ["strictly one by one, and the operator says so", () => bucket(1, good()), { requestsPerMinute: 240 }]
  ]
  for (const [name, make, budget] of buckets) {
    it(`T14 a provider that takes 240 calls a minute ${name}: at least 90 % of that is used, amplification at most 1.1`, async () => {
      const llm = make()
      const events = await inVirtualTime(eventsOf(llm, 3_000, budget))
      assertIncludes(resultOf(events), { status: "done", done: 3_000, failed: 0, uncertain: 0 })
      const minutes = (events.at(-1)?.at ?? 0) / 60_000
      assert.isAtLeast(3_000 / minutes / 240, 0.9)
      assert.isAtMost(llm.counts.calls / 3_000, 1.1)
    }, 60_000)
  }

  it("T14 a provider that takes 5 calls at once and says 429 beyond: at least 90 % of that is used, amplification at most 1.1", async () => {
    const llm: Scripted = scripted(
      () =>
        Effect.flatMap(Clock.currentTimeMillis, (now) =>
          llm.counts.live > 5 ? Effect.fail(limited({ "retry-after": "1" }, now)) : Effect.delay(good(), 800)
        ),
      Effect.void
    )
    const events = await inVirtualTime(eventsOf(llm, 3_000))
    assertIncludes(resultOf(events), { status: "done", done: 3_000, failed: 0, uncertain: 0 })
    const best = (3_000 * 800) / 5
    assert.isAtLeast(best / (events.at(-1)?.at ?? 0), 0.9)
    assert.isAtMost(llm.counts.calls / 3_000, 1.1)
  }, 60_000)

  it("T14 a provider that refuses one call in twenty, whatever is sent: at least four fifths of its capacity are used all the same", async () => {
    const roll = dice(5)
    const llm = scripted(() =>
      Effect.suspend(() =>
        roll() < 0.05 ? fail({ reason: "rate_limited", status: 429, retryAfterMs: 50 }) : Effect.delay(good(), 800)
      )
    )
    const events = await inVirtualTime(eventsOf(llm, 3_000))
    assertIncludes(resultOf(events), { status: "done", done: 3_000, failed: 0, uncertain: 0 })
    assert.isAtLeast((3_000 * 800) / width / (events.at(-1)?.at ?? 0), 0.8)
  }, 60_000)

  it("T14 a wait of 30 years suspends the run and names the time; no row failed, and a resume finishes it", async () => {
    const llm = scripted(({ n }) => (n === 100 ? Effect.fail(limited({ "retry-after": "1000000000" }, 0)) : good()))
    const twice = Effect.gen(function* () {
      const run = Enrichment.run(job(500), { runId }).pipe(
        Effect.provide(Budget.layer({ noCap: true, maxConcurrency: width }))
      )
      const first = yield* run
      assertIncludes(first, { status: "suspended", failed: 0, uncertain: 0 })
      assert.strictEqual(first.reason?.kind, "outage")
      assert.include(first.reason?.message ?? "", "asks to wait until 1971-01-02")
      assert.isAtMost(llm.counts.calls, 100 + width)
      assertIncludes(yield* run, { status: "done", done: 500, failed: 0 })
    })
    await inVirtualTime(Effect.provide(twice, [llm.layer, prices, Memory.layer]))
  })

  it("a run begins without a saved-up burst: at 60 calls a minute no minute begins more than 61", async () => {
    const llm = scripted(() => Effect.delay(good(), 300))
    const result = resultOf(await inVirtualTime(eventsOf(llm, 300, { requestsPerMinute: 60 })))
    assert.strictEqual(result.done, 300)
    const { begunAt } = llm.counts
    for (const from of begunAt) {
      assert.isAtMost(begunAt.filter((at) => at >= from && at < from + 60_000).length, 61)
    }
    assert.strictEqual(begunAt.filter((at) => at < 60_000).length, 60)
  })

  it("tokens a minute where only what is used counts: what was set aside and not used comes back", async () => {
    // 15 tokens a call, where 100 and the input were set aside; 600 a minute are 40 calls.
    const llm = scripted(() => Effect.delay(good(), 500))
    await inVirtualTime(eventsOf(llm, 400, { tokensPerMinute: 600 }))
    const minutes = (llm.counts.begunAt.at(-1) ?? 0) / 60_000
    assert.isAtLeast(minutes, (400 - 2) / 40)
    assert.isAtMost(minutes, 400 / 40 / 0.9)
  })

  it("tokens a minute: the calls that begin in any minute stay within the limit, up to one call", async () => {
    const perMinute = 60_000
    const plain = scripted(() => good())
    const llm = { ...plain, layer: Layer.succeed(LLM, { ...plain.shape, countsOutputLimit: true }) }
    await inVirtualTime(eventsOf(llm, 1_000, { tokensPerMinute: perMinute }))
    // The output limit of 100, or what Tokenizer's default counts: three bytes a token and the frame.
    const weights = llm.counts.requests.map(({ format, maxOutputTokens, messages }) =>
      Math.max(
        maxOutputTokens,
        3 +
          messages.reduce((sum, { content }) => sum + 3 + Math.ceil(Buffer.byteLength(content) / 3), 0) +
          (format.mode === "json_schema" ? Math.ceil(JSON.stringify(format.schema).length / 3) : 0)
      )
    )
    const heaviest = Math.max(...weights)
    const { begunAt } = llm.counts
    for (let from = 0; from < begunAt.length; from += 25) {
      const start = begunAt[from] ?? 0
      const sum = weights.reduce((sum, weight, i) => {
        const at = begunAt[i] ?? 0
        return at >= start && at < start + 60_000 ? sum + weight : sum
      }, 0)
      assert.isAtMost(sum, perMinute + heaviest + heaviest / 10)
    }
    assert.isAtLeast(begunAt.at(-1) ?? 0, ((weights.reduce((a, b) => a + b) - heaviest) / perMinute) * 60_000 - 250)
  })
})

describe("the budget of retries", () => {
  it("half of all calls fail for two minutes: what fails is tried again one by one, so that the bad time does not multiply calls: amplification at most 1.1", async () => {
    const roll = dice(3)
    const llm = scripted(
      () =>
        Effect.flatMap(Clock.currentTimeMillis, (now) => {
          const bad = now >= 60_000 && now < 180_000
          return bad && roll() < 0.5 ? fail({ reason: "server_error", charge: "uncertain" }) : good()
        }),
      Effect.sleep(800)
    )
    const result = resultOf(await inVirtualTime(eventsOf(llm, 3_000)))
    assertIncludes(result, { status: "done", held: 0, pending: 0 })
    assert.isAbove(llm.counts.failed, 50)
    assert.isAtMost(llm.counts.calls / 3_000, 1.1)
  }, 60_000)
})

describe("T16", () => {
  it("T16 latency tail: p99 is thirty times the median and 1 % never answers: the run ends, what timed out is uncertain, at least 90 % of the capacity is used", async () => {
    const timeoutMs = 30_000
    const roll = dice(11)
    let worked = 0
    let timeouts = 0
    let held = 0
    const llm = scripted(({ request }) =>
      Effect.suspend(() => {
        const never = roll() < 0.01
        const normal = Math.sqrt(-2 * Math.log(1 - roll())) * Math.cos(2 * Math.PI * roll())
        // Log-normal: the median 400 ms, the 99th percentile thirty times that.
        const ms = never ? timeoutMs : Math.min(timeoutMs, 400 * Math.exp((Math.log(30) / 2.3263) * normal))
        worked += ms
        if (ms < timeoutMs) return Effect.delay(good(), ms)
        timeouts++
        held += Price.hold({ model, from: "", input: 0.15, output: 0.6 }, request)
        return Effect.delay(fail({ reason: "timeout", charge: "uncertain" }), ms)
      })
    )
    const events = await inVirtualTime(eventsOf(llm, 5_000))
    const result = resultOf(events)
    assertIncludes(result, { status: "done", failed: 0, done: 5_000, held: 0 })
    assert.isAbove(timeouts, 30)
    assert.strictEqual(result.calls, 5_000 + timeouts)
    assert.strictEqual(result.uncertain, held)
    assert.isAtMost(result.calls / 5_000, 1.1)
    const ended = events.at(-1)?.at ?? 0
    assert.isAtLeast(worked / width / ended, 0.9)
  }, 60_000)
})
