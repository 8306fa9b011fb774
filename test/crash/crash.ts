/**
 * Kills the real command at random instants, with SIGKILL, while a provider in another process keeps its own bill; resumes it; and checks the book against the bill
 * after every kill and at the end.
 *
 *   npm run crash -- --kills 10 --rows 2000 [--concurrency 8] [--budget 50] [--seed 1] [--clean]
 *
 * `--clean`: a provider without faults. Exit 0 only if every check held.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect, Random } from "effect"
import { type Bill, startFakeProvider } from "../support/startFakeProvider.ts"

const number = (text: string | undefined, otherwise: number) => (text === undefined ? otherwise : Number(text))
const text = { type: "string" } as const
const { values: flags } = parseArgs({
  options: { kills: text, rows: text, concurrency: text, budget: text, seed: text, clean: { type: "boolean" } }
})
const kills = number(flags.kills, 10)
const rows = number(flags.rows, 2000)
const concurrency = number(flags.concurrency, 8)
const budget = number(flags.budget, 50)
const seed = number(flags.seed, 1)
// A life between two kills is 0.75 s of work on average; the whole job is to last longer than all of them.
const latency = Math.max(5, Math.ceil((kills * 1500 * concurrency) / rows))

const directory = mkdtempSync(join(tmpdir(), "longhaul-crash-"))
const db = join(directory, "crash.db")
const out = join(directory, "out.csv")
writeFileSync(
  join(directory, "rows.csv"),
  ["id,name", ...Array.from({ length: rows }, (_, i) => `${i + 1},row ${i + 1}`)].join("\n")
)

const faults = flags.clean === true ? {} : { rate429: 0.03, billed500: 0.02, billedReset: 0.01 }
const provider = await startFakeProvider({ latency, seed, ...faults })
const main = fileURLToPath(new URL("../../dist/programs/main.js", import.meta.url))
const job = fileURLToPath(new URL("./job.ts", import.meta.url))

/** The command, in a process of its own. */
const start = () => {
  const args = ["run", job, "--run-id", "crash", "--db", db, "--source", join(directory, "rows.csv"), "--out", out]
  const limits = ["--budget", String(budget), "--concurrency", String(concurrency)]
  return spawn(process.execPath, [main, ...args, ...limits], {
    // Not the project's own directory, so that the job finds the library as an installed one does.
    cwd: directory,
    stdio: ["ignore", "ignore", "pipe"],
    env: { ...process.env, OPENAI_API_KEY: "sk-crash", OPENAI_BASE_URL: provider.url }
  })
}

/** What the database says, read from outside. */
const read = (): Promise<Book> =>
  Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    const one = (statement: string) => Effect.map(sql.unsafe<Record<string, number>>(statement), ([row]) => row ?? {})
    const run = yield* one("select * from run")
    const calls = yield* one(
      `select coalesce(sum(case when state = 'settled' then cost else 0 end), 0) settled,
        coalesce(sum(case when state = 'uncertain' then cost else 0 end), 0) uncertain,
        sum(reason = 'crash') crashes from call`
    )
    const holds = yield* one("select count(*) n, coalesce(sum(amount), 0) amount from hold")
    const twice = yield* one(
      `select count(*) n from (select 1 from call where answer is not null and state = 'settled'
        group by seq, epoch, turn, request having count(*) > 1)`
    )
    const outcomes = yield* one("select count(*) n, count(distinct seq) seqs from outcome")
    const versions = yield* one("select count(*) n, coalesce(max(version), 0) last from checkpoint")
    return { run, calls, holds, twice, outcomes, versions }
  }).pipe(Effect.provide(SqliteClient.layer({ filename: db, readonly: true, disableWAL: true })), Effect.runPromise)

type Part = Readonly<Record<string, number>>
type Book = Readonly<Record<"run" | "calls" | "holds" | "twice" | "outcomes" | "versions", Part>>

const broken: Array<string> = []
const check = (when: string, what: string, held: boolean) => {
  if (!held) broken.push(`${when}: ${what}`)
}
const get = (part: Part, name: string) => part[name] ?? 0

/** Design §6.1, 2, 3 and 5, on the book and the provider's bill. */
const verify = (when: string, book: Book, bill: Bill) => {
  const [spent, uncertain, held] = [get(book.run, "spent"), get(book.run, "uncertain"), get(book.run, "held")]
  check(
    when,
    `bill ${bill.billedNano} <= counted ${spent + uncertain + held}`,
    bill.billedNano <= spent + uncertain + held
  )
  check(when, "counted <= cap", spent + uncertain + held <= get(book.run, "cap"))
  check(when, "spent = sum of settled calls", spent === get(book.calls, "settled"))
  check(when, "uncertain = sum of uncertain calls", uncertain === get(book.calls, "uncertain"))
  check(when, "held = sum of open holds", held === get(book.holds, "amount"))
  check(when, `open holds ${get(book.holds, "n")} <= concurrency`, get(book.holds, "n") <= concurrency)
  const ended = get(book.run, "done") + get(book.run, "partial") + get(book.run, "failed")
  check(when, "one outcome a row", get(book.outcomes, "n") === ended && get(book.outcomes, "seqs") === ended)
  check(when, "no answer in the book was paid for again", get(book.twice, "n") === 0)
  check(when, "versions 1..n without a gap", get(book.versions, "n") === get(book.versions, "last"))
}

/** Answers that were billed more than once. */
const paidTwice = (bill: Bill) => Object.values(bill.byHash).reduce((sum, times) => sum + Math.max(0, times - 1), 0)

const random = await Effect.runPromise(
  Effect.withRandom(Effect.replicateEffect(Random.nextRange(50, 1450), kills), Random.make(seed))
)

let killed = 0
for (const wait of random) {
  const child = start()
  const ended = once(child, "exit")
  // The clock starts when the run is claimed, so that kills fall into work and not into the start of node.
  await Promise.race([once(child.stderr, "data"), ended])
  await Promise.race([sleep(wait), ended])
  if (child.exitCode !== null) break
  child.kill("SIGKILL")
  await ended
  killed++
  await sleep(20)
  const book = await read()
  verify(`kill ${killed}`, book, await provider.bill())
  const ms = Math.round(wait)
  console.log(`kill ${killed} after ${ms} ms: ${get(book.outcomes, "n")} rows, ${get(book.holds, "n")} calls open`)
}

const last = start()
last.stderr.resume()
const [code] = await once(last, "exit")
const [book, bill] = [await read(), await provider.bill()]
verify("end", book, bill)
await provider.stop()

const crashes = get(book.calls, "crashes")
const twice = paidTwice(bill)
const exported = code === 0 || code === 3 ? readFileSync(out, "utf8").trim().split("\n").slice(1) : []
check("end", `killed ${killed} times, ${kills} wanted`, killed === kills)
check("end", `the last run ended with code ${code}`, code === 0 || code === 4)
check("end", "held is 0", get(book.run, "held") === 0)
check("end", `answers paid twice ${twice} <= calls in flight at the kills ${crashes}`, twice <= crashes)
if (code === 0) {
  check("end", "every row has ended", get(book.outcomes, "n") === rows)
  const inOrder =
    exported.length === rows && exported.every((line, i) => line.startsWith(`${i + 1},row ${i + 1},${i + 1},`))
  check("end", "the export has every row, in order, with its own answer", inOrder)
}

const usd = (nano: number) => `$${(nano / 1e9).toFixed(6)}`
console.log(`kills        ${killed}`)
console.log(`bill         ${usd(bill.billedNano)} for ${bill.requests} requests`)
console.log(`spent        ${usd(get(book.run, "spent"))} for ${get(book.run, "calls")} calls`)
console.log(`uncertain    ${usd(get(book.run, "uncertain"))}, ${crashes} calls by the kills`)
console.log(`held         ${usd(get(book.run, "held"))}`)
console.log(`paid twice   ${twice}`)
console.log(`versions     1..${get(book.versions, "last")}`)
console.log(`rows         ${get(book.outcomes, "n")} of ${rows}`)
for (const line of broken) console.log(`BROKEN       ${line}`)
rmSync(directory, { recursive: true, force: true })
process.exitCode = broken.length === 0 ? 0 : 1
