/** One run that is killed several times and resumed each time, with every check after each kill and at the end. */
import { createHash } from "node:crypto"
import { mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import type { Bill, FakeProvider } from "../support/startFakeProvider.ts"
import { type Book, brokenIn, get, isOver, isShort, read } from "./book.ts"
import type { Order, Plant } from "./order.ts"
import type { Point } from "./points.ts"
import { killAfter, type Life, startChild, startCommand, wasKilled } from "./process.ts"

/** How a run is killed: at random instants of the light child or of the command, or at a labelled point. */
export type Kind = "random" | "command" | Point

export interface Plan {
  readonly index: number
  readonly kind: Kind
  readonly rows: number
  readonly concurrency: number
  /** In dollars; `roomy`: it covers whatever the kills cost, so that every row must end. */
  readonly budget: number
  readonly roomy: boolean
  readonly kills: number
  readonly plant: Plant | undefined
  /** Every run has the same rows, so that their exports can be compared. */
  readonly alike: boolean
}

export interface Lane {
  readonly directory: string
  readonly provider: FakeProvider
  readonly bundle: string
  /** A number from 0 to 1. */
  readonly random: () => number
}

export interface Report {
  readonly kind: Kind
  kills: number
  overshoots: number
  short: number
  lost: number
  mostUncertain: number
  readonly seconds: number
  readonly broken: ReadonlyArray<string>
  /** The book, for the sums at the end. */
  readonly rows: number
  readonly code: number | null
  /** Of the exported file, if the run is complete. */
  readonly sha256: string | undefined
}

/** How long after its work began a process is killed, at most. The command says so early: when the run is claimed. */
const LONGEST_MS = { random: 250, command: 1_000 } as const
/** How often a point is passed, at most, before the kill: some 20 of a run's 300 rows. */
const passes = { a: 4, b0: 4, b: 20, c: 20, d: 4, e: 3, f: 3 } as const

/** Long enough that an answer costs about half of what was held for it. */
const nameOf = (plan: Plan, id: number) =>
  `row ${id} of run ${plan.alike ? 0 : plan.index} ${"abcdefghi ".repeat(16).trim()}`
export const rowsOf = (plan: Plan): string =>
  ["id,name", ...Array.from({ length: plan.rows }, (_, i) => `${i + 1},${nameOf(plan, i + 1)}`)].join("\n")

export const sweepOne = async (lane: Lane, plan: Plan): Promise<Report> => {
  const began = performance.now()
  const directory = join(lane.directory, `run-${plan.index}`)
  mkdirSync(directory)
  writeFileSync(join(directory, "rows.csv"), rowsOf(plan))
  await lane.provider.reset()
  const life = livesOf(lane, plan, directory)
  const { broken, note, report } = notesOf(plan)

  let crashes = 0
  const look = async (when: string): Promise<readonly [Book, Bill]> => {
    // A request that is on its way is billed although its sender is dead.
    await sleep(20)
    const book = await read(join(directory, "book.db"))
    const bill = await lane.provider.bill()
    note(when, brokenIn(book, bill, plan.budget * 1e9, plan.concurrency))
    if (isOver(book, bill, plan.budget * 1e9)) report.overshoots++
    if (isShort(book, bill)) report.short++
    const now = get(book.calls, "crashes") + get(book.holds, "n")
    report.mostUncertain = Math.max(report.mostUncertain, now - crashes)
    crashes = now
    return [book, bill]
  }

  while (report.kills < plan.kills) {
    if (!(await life.killed())) break
    report.kills++
    await look(`kill ${report.kills}`)
  }
  const last = await life.last()
  const [book, bill] = await look("end")
  note("end", brokenAtEnd(plan, book, bill, last, report))
  const out = join(directory, "out.csv")
  const exported = last.process.exitCode === 0 ? ownAnswers(out, plan) : plan.rows
  const sha256 = last.process.exitCode === 0 ? createHash("sha256").update(readFileSync(out)).digest("hex") : undefined
  report.lost = plan.roomy ? plan.rows - Math.min(exported, get(book.outcomes, "n")) : 0
  note("end", report.lost === 0 ? [] : [`${report.lost} rows are lost`])
  rmSync(directory, { recursive: true, force: true })
  const rows = get(book.outcomes, "n")
  const seconds = (performance.now() - began) / 1000
  return { ...report, broken, rows, code: last.process.exitCode, sha256, seconds }
}

const notesOf = (plan: Plan) => {
  const broken: Array<string> = []
  const note = (when: string, what: ReadonlyArray<string>) =>
    broken.push(...what.map((law) => `run ${plan.index} (${plan.kind}), ${when}: ${law}`))
  const report = { kind: plan.kind, kills: 0, overshoots: 0, short: 0, lost: 0, mostUncertain: 0 }
  return { broken, note, report }
}

const livesOf = (lane: Lane, plan: Plan, directory: string) => {
  const { kind } = plan
  const order = (point?: Point): Order => ({
    runId: "crash",
    db: join(directory, "book.db"),
    source: join(directory, "rows.csv"),
    out: join(directory, "out.csv"),
    provider: lane.provider.url,
    budget: plan.budget,
    concurrency: plan.concurrency,
    timeoutMs: 1_000,
    point,
    nth: point === undefined ? 0 : 1 + Math.floor(lane.random() * passes[point]),
    ready: lane.random() < 0.25 ? "commit" : "hold",
    plant: plan.plant
  })
  const start = (given: Order) => (kind === "command" ? startCommand(directory, given) : startChild(lane.bundle, given))
  return {
    /** A life that is to be killed; false: the run was over before. */
    killed: async (): Promise<boolean> => {
      if (kind === "random" || kind === "command") {
        return killAfter(start(order()), 2 + lane.random() * (LONGEST_MS[kind] - 2))
      }
      const life = start(order(kind))
      await life.ended
      return wasKilled(life)
    },
    last: async (): Promise<Life> => {
      const life = start(order())
      await life.ended
      return life
    }
  }
}

const brokenAtEnd = (plan: Plan, book: Book, bill: Bill, last: Life, { kills }: Pick<Report, "kills">) => {
  const code = last.process.exitCode
  const isRight = code === 0 || (code === 4 && !plan.roomy)
  const crashes = get(book.calls, "crashes")
  // Answers that were billed more than once: only what was in flight at a kill, or not answered in time, is asked again.
  const twice = Object.values(bill.byHash).reduce((sum, times) => sum + Math.max(0, times - 1), 0)
  const again = crashes + get(book.calls, "timeouts")
  const laws: ReadonlyArray<readonly [what: string, held: boolean]> = [
    [`it ended with code ${code}: ${last.said()}`, isRight],
    ["held is 0", get(book.run, "held") === 0],
    [`answers paid twice ${twice} <= calls without an answer ${again}`, twice <= again],
    [`calls that the kills made uncertain ${crashes} <= kills x concurrency`, crashes <= kills * plan.concurrency]
  ]
  return laws.flatMap(([what, held]) => (held ? [] : [what]))
}

/** How many rows of the export are in their place and have their own answer. */
const ownAnswers = (file: string, plan: Plan): number => {
  const lines = readFileSync(file, "utf8").trim().split("\n").slice(1)
  if (lines.length > plan.rows) return 0
  return lines.filter((line, i) => {
    const id = i + 1
    return line.startsWith(`${id},${nameOf(plan, id)},${id},echo: ${id} ${nameOf(plan, id)},done,`)
  }).length
}
