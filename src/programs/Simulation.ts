/**
 * One simulated life of a run: as many processes as it takes, each of which may be killed at any step or around any commit, over one database in memory. Internal to
 * Verify.
 *
 * @since 0.1.0
 */
import { Cause, Context, Effect, Exit, FiberId, Layer, Logger, LogLevel, Random } from "effect"
import * as JournalMemory from "../layers/JournalMemory.ts"
import * as LLMScripted from "../layers/LLMScripted.ts"
import type { Book, Writes } from "../services/Book.ts"
import * as Budget from "../services/Budget.ts"
import * as Checkpointer from "../services/Checkpointer.ts"
import { StorageError } from "../services/Errors.ts"
import { type Driver, Journal, make as makeJournal } from "../services/Journal.ts"
import { type ChatRequest, LLM } from "../services/LLM.ts"
import { Price, type PriceRow } from "../services/Price.ts"
import * as Sim from "../services/SimScheduler.ts"
import * as Store from "../services/Store.ts"
import * as Enrichment from "./Enrichment.ts"
import { requestHash } from "./Invoker.ts"
import type { Job } from "./Job.ts"
import * as VerifyBook from "./VerifyBook.ts"

/** What is the same for all seeds. @since 0.1.0 */
export interface Setup<Row, A, I> {
  readonly job: Job<Row, A, I>
  readonly rows: number
  readonly prices: ReadonlyArray<PriceRow>
  readonly priceOf: (model: string) => PriceRow | undefined
  readonly textOf: (request: ChatRequest) => string | undefined
  /** The sum of the holds of one call a row, in nano-dollars: what caps are drawn by. */
  readonly worst: number
  readonly concurrency: number | undefined
  readonly startAt: number
  /** Changes what a process is given as its database. */
  readonly wrap: (driver: Driver) => Driver
}

/** @since 0.1.0 */
export interface Mode {
  /** Keeps the trace's lines. */
  readonly trace?: boolean
  /** One crash, around this commit of the run, and no other one. */
  readonly crash?: { readonly commit: number; readonly before: boolean }
  readonly crashes?: boolean
}

/** What was seen of one seed. @since 0.1.0 */
export interface Seen {
  readonly violation: { readonly step: number; readonly what: string } | undefined
  readonly steps: number
  readonly commits: number
  readonly processes: number
  readonly crashes: number
  readonly hash: number
  readonly lines: ReadonlyArray<string>
}

/** A process is killed at a step, or before or after a commit, counted from its own beginning. */
interface Fate {
  readonly crashStep: number
  readonly crashCommit: number
  readonly before: boolean
  readonly signalStep: number
  readonly jumpStep: number
  readonly diskCommit: number
}

const RUN = "verified"
const NEVER = Number.POSITIVE_INFINITY
const HOUR = 3_600_000
/** Nothing but signs of life for so long: nobody waits for anything that will come. */
const STUCK = 24 * HOUR
/** How long an operator looks at a call that is not answered. */
const PATIENCE = HOUR / 2
/** From this process on nothing fails any more, and by that one it must be over. */
const CALM_FROM = 12
const LAST = 40
const MOST_STEPS = 2_000_000
const MOST_GHOST = 20_000

/**
 * Lives through one seed.
 *
 * @since 0.1.0
 */
export const live = <Row, A, I>(setup: Setup<Row, A, I>, seed: number, mode: Mode = {}): Seen => {
  const dice = Sim.dice(seed)
  const world: Sim.World = { dice, now: 0, wall: setup.startAt, steps: 0 }
  const trace = tracer(mode.trace === true)
  const plan = planOf(dice, setup)
  let violation: Seen["violation"]
  let progress = 0
  let commits = 0
  let crashes = 0
  let lost = 0
  let weather = plan.weather

  const broken = (what: string): void => {
    if (violation !== undefined) return
    violation = { step: world.steps, what }
    note(`VIOLATION ${what}`)
  }
  const note = (what: string): void => trace.note(`${world.steps} ${Math.round(world.now)} ms  ${what}`)
  const provider = LLMScripted.make({
    world,
    weather: () => weather,
    priceOf: setup.priceOf,
    textOf: setup.textOf,
    heard: (event) => {
      progress = world.now
      if (event._tag === "Unknown")
        return broken(
          `a prompt is not what it was when it was first rendered: ${JSON.stringify(event.prompt.slice(0, 200))}`
        )
      if (event._tag === "Ended") return note(`call ${event.n} ended`)
      if (event.fate === "lost") lost++
      note(`call ${event.n} is sent, and its fate is ${event.fate}`)
      checks.sent(event.live, Effect.runSync(requestHash(event.request)), event.cost)
    }
  })
  const checks = VerifyBook.make(provider, plan.concurrency, broken)
  const base = JournalMemory.makeDriver()

  /** Runs one process to its end; `undefined`: it was killed. */
  const process = (n: number, options: Enrichment.RunOptions, limits: Budget.BudgetOptions) => {
    const turns = Sim.turns(world)
    const fate = n >= CALM_FROM ? calmFate : fateOf(dice, setup.rows, mode)
    let own = 0
    let dead = false
    let disk = false
    let claimed = false
    const die = () => {
      dead = true
      return Effect.fail(killed)
    }
    const driver: Driver = {
      durable: true,
      location: `simulated ${seed}/${n}`,
      reads: base.reads,
      // A process that was thrown away keeps no lock.
      lock: () => Effect.succeed(true),
      check: base.check,
      anchor: base.anchor,
      later: turns.later,
      scheduler: turns.scheduler,
      // Some writes take a turn of their own, so that others are asked for meanwhile.
      transact: (needs, decide) =>
        Effect.zipRight(
          !dead && dice.chance(0.3) ? turn : Effect.void,
          Effect.suspend(() => (dead ? Effect.fail(killed) : written(needs, decide)))
        )
    }
    const turn = Effect.async<void>((resume) => turns.later(() => resume(Effect.void)))
    const written: Driver["transact"] = (needs, decide) => {
      own++
      const at = mode.crash === undefined ? own : commits + 1
      const isLast = at === (mode.crash?.commit ?? fate.crashCommit) && (mode.crash === undefined || crashes === 0)
      if (isLast && (mode.crash ?? fate).before) return die()
      if (own === fate.diskCommit) {
        disk = true
        note("the disk is full")
        return Effect.fail(full)
      }
      const write = base.transact(needs, (facts) => committed(decide(facts)))
      return isLast ? Effect.flatMap(write, die) : write
    }
    const committed = (writes: Writes): Writes => {
      commits++
      if (!isBeat(writes)) progress = world.now
      note(`commit ${commits}: ${textOf(writes)}`)
      claimed ||= writes.workers.some((worker) => worker.live)
      checks.committed(writes)
      return writes
    }

    note(`process ${n} begins`)
    const llm = provider.connect(plan.providers, () => dead)
    const journal = Layer.scoped(Journal, makeJournal(setup.wrap(driver)))
    const layers = Store.layer.pipe(Layer.provideMerge(Checkpointer.layer), Layer.provideMerge(journal))
    const context = Context.make(LLM, llm).pipe(
      Context.add(Budget.Budget, Budget.make(limits)),
      Context.add(Price, setup.prices)
    )
    const program = Enrichment.run(setup.job, { runId: RUN, ...options }).pipe(
      Effect.provide(layers),
      Effect.provide(context),
      Effect.withClock(turns.clock),
      Effect.withRandom(Random.make(dice.below(2 ** 31))),
      Effect.withTracerEnabled(false),
      Logger.withMinimumLogLevel(LogLevel.None)
    )
    const fiber = Effect.runFork(program, { scheduler: turns.scheduler })
    let end: Exit.Exit<Enrichment.RunResult<A>, Enrichment.RunError> | undefined
    fiber.addObserver((exit) => {
      end = exit
    })

    let signalled = false
    const signal = () => {
      signalled = true
      note("the operator interrupts")
      fiber.unsafeInterruptAsFork(FiberId.none)
    }
    progress = world.now
    const begun = world.steps
    for (let step = 1; end === undefined && !dead && violation === undefined; step++) {
      if (step === fate.crashStep) dead = true
      if (step === fate.signalStep) signal()
      if (step === fate.jumpStep) jump()
      if (dead) break
      if (!signalled && lost > 0 && world.now - progress > PATIENCE) signal()
      if (!turns.step()) {
        // A call that is never answered is all that is left: no timer ends it, but an operator does.
        if (!signalled && lost > 0) signal()
        else broken("nothing is left to do or to wait for, and the run is not over")
      }
      if (world.now - progress > STUCK) broken("nothing happened for a day, and the run is not over")
      if (world.steps - begun > MOST_STEPS) broken(`the run is not over after ${MOST_STEPS} steps`)
    }
    lost = 0
    if (end === undefined) {
      if (dead) crashes++
      if (dead) note("killed")
      dead = true
      turns.detach()
      // Its fibers would be kept for ever; nothing that they do reaches the world any more.
      fiber.unsafeInterruptAsFork(FiberId.none)
      for (let step = 0; end === undefined && step < MOST_GHOST && turns.step(); step++);
      return undefined
    }
    note(`process ${n} ends: ${endText(end)}`)
    // Holds of a dead process stay open until the run is claimed.
    if (claimed && !disk) checks.quiet()
    return end
  }

  const jump = () => {
    world.wall += dice.pick(HOUR, -HOUR)
    note(`the clock is set to ${new Date(world.now + world.wall).toISOString()}`)
  }

  let raises = plan.raises
  const again = [...plan.again]
  let options: Enrichment.RunOptions = { graceMs: plan.graceMs }
  let limits: Budget.BudgetOptions = { ...plan.limits, maxConcurrency: plan.concurrency }
  let processes = 0
  let over = false
  while (!over && violation === undefined) {
    if (++processes > LAST) {
      broken(`the run is not over after ${LAST} processes`)
      break
    }
    if (processes >= CALM_FROM) weather = calm
    const end = process(processes, options, limits)
    if (violation !== undefined) break
    options = { graceMs: plan.graceMs }
    // Killed before there was a run: it begins anew, and must be told its limits.
    if (checks.book() !== undefined) limits = {}
    if (end !== undefined && Exit.isFailure(end)) {
      const reason = refusalOf(end.cause)
      if (reason !== undefined) broken(reason)
    }
    const kind = end !== undefined && Exit.isSuccess(end) ? (end.value.reason?.kind ?? "complete") : "other"
    if (end !== undefined && Exit.isSuccess(end) && end.value.stopReason === "complete") {
      checks.done()
      const retry = again.shift()
      if (retry === undefined) over = true
      else options = { ...options, retry }
    } else if (kind === "budget" || kind === "max_calls") {
      if (raises-- <= 0) over = true
      else limits = raised(checks.book())
    }
    world.now += dice.below(120_000)
    if (dice.chance(0.1)) jump()
  }
  if (violation === undefined) for (const what of atEnd(base, setup.rows)) broken(what)
  return { violation, steps: world.steps, commits, processes, crashes, hash: trace.hash(), lines: trace.lines }
}

const killed = new StorageError({ reason: "broken", message: "the process was killed" })
const full = new StorageError({ reason: "full", message: "the disk is full" })

/** The operator doubles what was in the way. */
const raised = (book: Book | undefined): Budget.BudgetOptions => ({
  ...(typeof book?.cap === "number" ? { maxCostUsd: (book.cap * 2) / 1e9 } : {}),
  ...(typeof book?.maxCalls === "number" ? { maxCalls: book.maxCalls * 2 } : {})
})

/** What ends a process and is nobody's fault; else what is wrong. */
const refusalOf = (cause: Cause.Cause<Enrichment.RunError>): string | undefined => {
  if (Cause.isInterruptedOnly(cause)) return undefined
  const failure = Cause.failureOption(cause)
  if (failure._tag === "Some" && failure.value._tag === "StorageError") return undefined
  return failure._tag === "Some" ? `the run was refused: ${failure.value.message}` : `a defect: ${Cause.pretty(cause)}`
}

const endText = (end: Exit.Exit<Enrichment.RunResult<unknown>, Enrichment.RunError>): string => {
  if (Exit.isSuccess(end))
    return `${end.value.stopReason}${end.value.reason === null ? "" : ` (${end.value.reason.message})`}`
  return Cause.isInterruptedOnly(end.cause) ? "interrupted" : String(Cause.squash(end.cause))
}

const isBeat = ({ beats, books }: Writes): boolean => beats.length > 0 && books.size === 0

const textOf = (writes: Writes): string => {
  const { calls, checkpoints, closed, epochs, holds, outcomes, puts, rows, workers } = writes
  const parts = { rows, workers, epochs, closed, calls, outcomes, checkpoints, puts }
  const counts = Object.entries(parts).map(([name, list]) => (list.length === 0 ? "" : ` ${list.length} ${name}`))
  const [book] = writes.books.values()
  const money = book === undefined ? "" : `; ${book.spent} spent, ${book.uncertain} uncertain, ${book.held} held`
  return `${holds.size} holds${counts.join("")}${money}`
}

/** Every row, in order, with an outcome, as a reader gets them. */
const atEnd = (base: Driver, rows: number): ReadonlyArray<string> => {
  const book = Effect.runSync(base.reads.book(RUN))
  if (book === undefined) return ["there is no run in the end"]
  const last = Effect.runSync(base.reads.checkpoint(RUN))
  const results = Effect.runSync(base.reads.results(RUN, -1, rows + 1))
  const wrong: Array<string> = []
  if (results.some(({ row }, i) => row.seq !== i) || results.length !== book.rows)
    wrong.push("the rows are not in order")
  if (book.status !== "done") return wrong
  if (results.some(({ outcome, row }) => outcome?.epoch !== row.epoch)) wrong.push("a row has no outcome in its epoch")
  const { calls, done, failed, partial, spent, uncertain } = book
  const said = (last?.state ?? "").replace(/"nextChunk":\d+/, '"nextChunk":0')
  const truth = JSON.stringify({ nextChunk: 0, rows: book.rows, done, partial, failed, spent, uncertain, calls })
  if (last?.status !== "DONE" || said !== truth) wrong.push(`the last checkpoint says ${said}, and the book ${truth}`)
  return wrong
}

const calm: LLMScripted.Weather = { rates: new Map(), longest: 1_000, outages: [] }
const calmFate: Fate = {
  crashStep: NEVER,
  crashCommit: NEVER,
  before: false,
  signalStep: NEVER,
  jumpStep: NEVER,
  diskCommit: NEVER
}

/** What happens to one process. All is drawn whatever the mode, so that a seed is the same life in each. */
const fateOf = (dice: Sim.Dice, rows: number, mode: Mode): Fate => {
  const steps = () => 1 + Math.floor(dice.next() ** 2 * (rows + 4) * 60)
  const commit = 1 + Math.floor(dice.next() ** 1.5 * (rows + 6) * 2)
  const how = dice.next()
  const [crashStep, signalStep, jumpStep] = [steps(), steps(), steps()]
  const before = dice.chance(0.5)
  const [signals, jumps, fills] = [dice.chance(0.12), dice.chance(0.15), dice.chance(0.04)]
  const diskCommit = 1 + dice.below(2 * rows + 10)
  const crashes = mode.crashes !== false && mode.crash === undefined
  return {
    crashStep: crashes && how < 0.2 ? crashStep : NEVER,
    crashCommit: crashes && how >= 0.2 && how < 0.55 ? commit : NEVER,
    before,
    signalStep: signals ? signalStep : NEVER,
    jumpStep: jumps ? jumpStep : NEVER,
    diskCommit: fills ? diskCommit : NEVER
  }
}

interface Plan {
  readonly concurrency: number
  readonly limits: Budget.BudgetOptions
  readonly raises: number
  readonly again: ReadonlyArray<NonNullable<Enrichment.RunOptions["retry"]>>
  readonly graceMs: number
  readonly weather: LLMScripted.Weather
  readonly providers: ReadonlyArray<string>
}

/** What holds for the whole life. */
const planOf = <Row, A, I>(dice: Sim.Dice, setup: Setup<Row, A, I>): Plan => {
  const drawn = dice.pick(1, 2, 4, 8, 8, 16)
  const factor = dice.pick(0.05, 0.3, 0.6, 1, 2, 10, 10)
  const cap = Math.max(1, Math.ceil(setup.worst * factor))
  const [noCap, fewCalls] = [dice.chance(0.08), dice.chance(0.08)]
  const maxCalls = 1 + dice.below(setup.rows + 1)
  return {
    concurrency: setup.concurrency ?? drawn,
    limits: { ...(noCap ? { noCap: true } : { maxCostUsd: cap / 1e9 }), ...(fewCalls ? { maxCalls } : {}) },
    raises: dice.below(4),
    again: dice.pick<Plan["again"]>([], [], [], [], ["failed"], ["partial", "failed"], ["all"]),
    graceMs: dice.pick(0, 1_000, 10_000, 60_000),
    weather: weatherOf(dice),
    providers: setup.job.fallback.flatMap(({ provider }) => provider ?? [])
  }
}

const weatherOf = (dice: Sim.Dice): LLMScripted.Weather => {
  const rough = dice.pick(0, 0.3, 1, 1, 2, 4)
  const rates = new Map(
    LLMScripted.faults.map((fault) => {
      const most = fault === "lost" ? 0.003 : 0.03
      return [fault, dice.chance(0.6) ? dice.next() * most * rough : 0] as const
    })
  )
  const from = dice.below(60_000)
  const outage = { from, until: from + Math.floor(dice.next() ** 2 * 900_000) }
  const isOut = dice.chance(0.1)
  return { rates, longest: dice.pick(1, 200, 3_000, 60_000), outages: isOut ? [outage] : [] }
}

/** A line for each thing that happened, and their hash. */
const tracer = (keeps: boolean) => {
  const lines: Array<string> = []
  let a = 0x811c9dc5
  let b = 0x9dc5811c
  return {
    lines,
    note: (line: string): void => {
      for (let i = 0; i < line.length; i++) {
        const code = line.charCodeAt(i)
        a = Math.imul(a ^ code, 0x01000193)
        b = Math.imul(b ^ code, 0x85ebca6b)
      }
      if (keeps) lines.push(line)
    },
    hash: () => (a >>> 0) * 2 ** 20 + ((b >>> 0) % 2 ** 20)
  }
}
