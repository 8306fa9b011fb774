/**
 * T11: the clock is set anew in mid-run, by an hour, an hour back, a day back, and on the days when summer time begins and ends. The date changes and the time that
 * passes does not: a run asks what it would have asked, when it would have asked it.
 */
import { join } from "node:path"
import { pathToFileURL } from "node:url"
import { Clock, Effect, Layer, Random } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ProgressLine from "../../src/programs/ProgressLine.ts"
import * as MonotonicTime from "../../src/services/MonotonicTime.ts"
import * as Retry from "../../src/services/Retry.ts"
import { jobOf, rowsOf } from "../support/scriptedJob.ts"
import { fail, good, prices, type Script, scripted } from "../support/scriptedLlm.ts"
import { inVirtualTime } from "../support/virtualClock.ts"
import { type Fault, makeChecks } from "./fault.ts"
import { asked, bookOf, endOf, isPlain, placeOf, providerOf, resume, run } from "./runs.ts"

const ROWS = 200
const WIDTH = 8
const CALL_MS = 100
const LONGEST_MS = 1_000
const COOL_MS = 1_500
const HOUR = 3_600_000
const DAY = 24 * HOUR

/** At which call the clock is set, and how far off it then is. */
type Jumps = ReadonlyArray<readonly [call: number, offset: number]>

interface Trial {
  readonly start: string
  readonly jumps: Jumps
  /** Whether what waits goes by the date too: what we do not do. */
  readonly byDate?: boolean
  readonly maxCostUsd?: number
}

/** Every tenth call fails in passing, every fiftieth is one too many. */
const script =
  (hear: (n: number, row: string, at: number) => void): Script =>
  ({ n, nth, row }) =>
    Effect.flatMap(MonotonicTime.now, (at) => {
      hear(n, row, at)
      if (n % 50 === 0) {
        return fail({ reason: "rate_limited", status: 429, retryAfterMs: COOL_MS, message: "too many" })
      }
      return n % 10 === 0 || (n % 33 === 0 && nth < 3) ? fail() : good()
    })

/** The clock in force, with a date of its own. */
const dated = <A, E, R>(effect: Effect.Effect<A, E, R>, offset: () => number, byDate: boolean) =>
  Effect.flatMap(Effect.clock, (clock) => {
    const millis = () => clock.unsafeCurrentTimeMillis() + offset()
    const nanos = () => clock.unsafeCurrentTimeNanos() + (byDate ? BigInt(offset()) * 1_000_000n : 0n)
    const jumping: Clock.Clock = {
      [Clock.ClockTypeId]: Clock.ClockTypeId,
      unsafeCurrentTimeMillis: millis,
      unsafeCurrentTimeNanos: nanos,
      currentTimeMillis: Effect.sync(millis),
      currentTimeNanos: Effect.sync(nanos),
      sleep: (duration) => clock.sleep(duration)
    }
    return Effect.withClock(effect, jumping)
  })

/** The lines an operator would see, by the time that passes and by the date. */
const watching = (handle: Enrichment.Handle<unknown>, lines: Array<string>) =>
  Effect.gen(function* () {
    const mark = (at: number) =>
      Effect.map(handle.progress, ({ done, failed, partial }) => ({ at, ended: done + failed + partial }))
    const times = Effect.all([MonotonicTime.now, Clock.currentTimeMillis])
    const begun = yield* Effect.flatMap(times, Effect.forEach(mark))
    const draw = Effect.gen(function* () {
      const now = yield* Effect.flatMap(times, Effect.forEach(mark))
      const snapshot = yield* handle.progress
      for (const [i, from] of begun.entries()) {
        const to = now[i] ?? from
        lines.push(ProgressLine.render(snapshot, ProgressLine.rate(from, to)))
      }
    })
    return yield* Effect.forever(Effect.zipRight(draw, Effect.sleep(250)))
  })

/** One run in virtual time, in memory. */
const tried = ({ byDate = false, jumps, maxCostUsd = 1, start }: Trial) => {
  let offset = 0
  const times = new Map<string, Array<number>>()
  const lines: Array<string> = []
  const llm = scripted(
    script((n, row, at) => {
      times.set(row, [...(times.get(row) ?? []), at])
      for (const [call, by] of jumps) if (call === n) offset = by
    }),
    Effect.sleep(CALL_MS)
  )
  const job = jobOf({
    rows: rowsOf(ROWS),
    retry: Retry.policy({ attempts: 8, base: "100 millis", longest: LONGEST_MS })
  })
  const work = Effect.scoped(
    Effect.gen(function* () {
      const begun = yield* MonotonicTime.now
      const handle = yield* Enrichment.start(job, { runId: "clock" })
      yield* Effect.forkScoped(watching(handle, lines))
      const result = yield* handle.await
      return { result, ms: Math.round((yield* MonotonicTime.now) - begun) }
    })
  ).pipe(
    Effect.provide([
      Budget.layer({ maxCostUsd, maxConcurrency: WIDTH, adaptive: false }),
      Memory.layer,
      llm.layer,
      Layer.provideMerge(prices, Layer.empty)
    ]),
    Effect.withRandom(Random.make("clock")),
    (effect) => dated(effect, () => offset, byDate)
  )
  return Effect.map(
    Effect.promise(() => inVirtualTime(work, Date.parse(start))),
    ({ ms, result }) => ({ ms, result, times, lines, counts: llm.counts })
  )
}
type Tried = Effect.Effect.Success<ReturnType<typeof tried>>

/** The longest wait between two tries of one row. */
const longestWait = ({ times }: Tried): number =>
  Math.max(...[...times.values()].flatMap((at) => at.slice(1).map((time, i) => time - CALL_MS - (at[i] ?? time))))

const callsOf = ({ times }: Tried) => new Map([...times].map(([row, at]) => [row, at.length]))

const isSound = (line: string): boolean => !/NaN|Infinity|-\d/.test(line)

/** The library in virtual time. */
export const inVirtual = Effect.suspend(() => inBerlin(trials))

const trials = Effect.gen(function* () {
  const { broken, check } = makeChecks()
  const start = "2026-03-28T12:00:00Z"
  const jumps: Jumps = [
    [40, HOUR],
    [90, -HOUR],
    [120, -DAY],
    [160, 0]
  ]
  const calm = yield* tried({ start, jumps: [] })
  const all: ReadonlyArray<readonly [string, Trial]> = [
    ["jumps", { start, jumps }],
    ["summer time begins", { start: "2026-03-29T00:59:58Z", jumps: [] }],
    ["summer time ends", { start: "2026-10-25T00:59:58Z", jumps: [] }],
    ["summer time begins, jumps", { start: "2026-03-29T00:59:58Z", jumps }]
  ]
  for (const [name, trial] of all) {
    const one = yield* tried(trial)
    const { result } = one
    check(`${name}: ${result.done} of ${ROWS} done`, result.done === ROWS)
    const counted = result.spent + result.uncertain
    check(`${name}: bill ${one.counts.bill} <= counted ${counted} <= cap`, one.counts.bill <= counted && counted <= 1e9)
    const calmCalls = callsOf(calm)
    const extra = Math.max(...[...callsOf(one)].map(([row, n]) => n - (calmCalls.get(row) ?? 0)))
    check(`${name}: ${extra} calls a row more than without`, extra <= 1)
    check(`${name}: it took ${one.ms} ms, ${calm.ms} without`, Math.abs(one.ms - calm.ms) <= LONGEST_MS + COOL_MS)
    // At most 2 x 8 rows are alive, so one that may go again waits for two rounds of calls.
    const wait = longestWait(one)
    check(`${name}: a row waited for ${wait} ms`, wait <= LONGEST_MS + COOL_MS + 2 * CALL_MS)
    const bad = one.lines.filter((line) => !isSound(line))
    check(`${name}: ${one.lines.length} lines, unsound: ${bad[0]}`, one.lines.length > 20 && bad.length === 0)
  }
  const cap = (0.6 * calm.counts.bill) / 1e9
  const capped = yield* tried({ start, jumps, maxCostUsd: cap })
  check(`at the cap: ${capped.result.stopReason}`, capped.result.stopReason === "suspended")
  check(`at the cap: bill ${capped.counts.bill} <= ${cap * 1e9}`, capped.counts.bill <= cap * 1e9)
  const control = yield* tried({ start, jumps, byDate: true })
  // Rows that wait pass their deadline of fifteen minutes by a jump of an hour.
  check(`control: waits by the date, ${control.result.done} done`, control.result.done < ROWS)
  return {
    figure: `${all.length} runs as long as without (${calm.ms} ms), longest wait ${Math.round(longestWait(calm))} ms`,
    control: `waits by the date: ${ROWS - control.result.done} of ${ROWS} rows fail`,
    broken
  }
})

const setClock = (ms: number, later: boolean) => ({
  NODE_OPTIONS: `--import ${pathToFileURL(join(import.meta.dirname, "setClock.mjs")).href}`,
  SET_CLOCK: String(ms),
  ...(later ? { SET_CLOCK_LATER: "1" } : {})
})

/** The real command, whose clock is set a day back in mid-run: what it prints. */
export const commandSetBack = Effect.gen(function* () {
  const { broken, check } = makeChecks()
  const provider = yield* providerOf({ latency: 30 })
  const dir = yield* placeOf(ROWS)
  const place = { dir, db: join(dir, "book.db"), url: provider.url }
  const running = yield* run(place, [], { env: setClock(-DAY, true) })
  yield* asked(provider, ROWS / 4, running)
  running.child.kill("SIGUSR2")
  const ended = yield* endOf(running)
  check(`command set back: exit ${ended.code}: ${ended.stderr}`, ended.code === 0 && isPlain(ended))
  const said = `${ended.stdout}\n${ended.stderr}`.split("\n").filter((line) => /rows (in|\/)|rows\/s/.test(line))
  for (const line of said) check(`command set back says: ${line}`, isSound(line) && !/ 0\.0 rows\/s/.test(line))
  check(`command set back: ${said.length} lines`, said.length >= 2)
  const book = yield* bookOf(place.db)
  const bill = yield* Effect.promise(provider.bill)
  check(`command set back: ${bill.requests} requests, ${book.done} done`, bill.requests === ROWS && book.done === ROWS)
  return broken
})

/** A live run whose date was another when it began: it is not taken for dead. */
export const commandAlive = Effect.gen(function* () {
  const { broken, check } = makeChecks()
  const provider = yield* providerOf({ latency: 300 })
  const dir = yield* placeOf(ROWS)
  const place = { dir, db: join(dir, "book.db"), url: provider.url }
  const running = yield* run(place, [], { env: setClock(-DAY, false) })
  yield* asked(provider, WIDTH, running)
  const other = yield* Effect.flatMap(resume(place), endOf)
  check(`live run, clock set since: resume exits ${other.code}, 75 wanted: ${other.stderr}`, other.code === 75)
  running.child.kill("SIGKILL")
  yield* endOf(running)
  return broken
})

export const clockJumps: Fault = {
  id: "T11",
  name: "clock jumps",
  run: Effect.gen(function* () {
    const virtual = yield* inVirtual
    const more = yield* Effect.forEach([commandSetBack, commandAlive], (one) => Effect.scoped(one))
    return {
      ...virtual,
      figure: `${virtual.figure}; the command a day back: sound lines, still alive to others`,
      broken: [...virtual.broken, ...more.flat()]
    }
  })
}

/** Where summer time begins and ends. */
const inBerlin = <A, E, R>(effect: Effect.Effect<A, E, R>) =>
  Effect.acquireUseRelease(
    Effect.sync(() => {
      const before = process.env.TZ
      process.env.TZ = "Europe/Berlin"
      return before
    }),
    () => effect,
    (before) =>
      Effect.sync(() => {
        if (before === undefined) delete process.env.TZ
        else process.env.TZ = before
      })
  )
