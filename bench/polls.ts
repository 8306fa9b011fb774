/**
 * Whether who looks on slows a run down: how long a free permit waits for its next call (admission, the hold's commit, and the settle before it), at 8 calls at once on a SQLite file with
 * FULL commits, alone and while another process looks at the run 1,000 times.
 *
 *   npm run bench:polls [-- --rows 3000 --reps 5 --polls 1000 --c 8 --latency 25]
 *
 * A permit is taken from outside: the call that begins as the n-th needs the one that ended as the (n - c)-th. Alone and polled alternate, each in fresh processes, and the ratio is the
 * median of the pairs' ratios. Exit code 1 if the poller saw an error, such as a busy database; the goal is shown, never asserted.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { mkdirSync, mkdtempSync, rmSync } from "node:fs"
import { loadavg } from "node:os"
import { join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { parseArgs } from "node:util"
import { Cause, Effect, Exit, Layer, Schema, Stream } from "effect"
import { Agent, Budget, Enrichment, LLM, Rows, Watch } from "../src/index.ts"
import * as Sqlite from "../src/layers/Sqlite.ts"
import { after, model, promptOf, system, type Vendor, vendorOf } from "./work.ts"

const text = { type: "string" } as const
const { values: flags } = parseArgs({
  options: { rows: text, reps: text, polls: text, c: text, latency: text, role: text, db: text }
})
const rows = Number(flags.rows ?? 3_000)
const reps = Number(flags.reps ?? 5)
const polls = Number(flags.polls ?? 1_000)
const concurrency = Number(flags.c ?? 8)
const latency = Number(flags.latency ?? 25)
const runId = "polls"

/** What a run says at its end: the waits of its permits, in milliseconds. */
const Ran = Schema.parseJson(Schema.Struct({ ms: Schema.Number, waits: Schema.Array(Schema.Number) }))
/** `before`: looks that saw the run before its end. */
const Polled = Schema.parseJson(
  Schema.Struct({ before: Schema.Int, p95: Schema.Number, errors: Schema.Array(Schema.String) })
)

const job = Enrichment.make({
  name: "polls",
  row: Schema.Struct({ id: Schema.Int, name: Schema.String, description: Schema.String }),
  id: (vendor) => vendor.id,
  version: () => "1",
  source: Rows.fromIterable(Array.from({ length: rows }, (_, seq) => vendorOf(seq))),
  agent: Agent.make({
    name: "enricher",
    model,
    system,
    maxOutputTokens: 400,
    prompt: (vendor: Vendor) => promptOf(vendor),
    output: Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })
  })
})

const percentile = (values: ReadonlyArray<number>, share: number): number =>
  [...values].sort((a, b) => a - b)[Math.min(values.length - 1, Math.floor(share * values.length))] ?? Number.NaN
const median = (values: ReadonlyArray<number>): number => percentile(values, 0.5)

/** The run, in this process; says `started` when its rows are listed. */
const running = (filename: string) =>
  Effect.gen(function* () {
    const begun: Array<number> = []
    const ended: Array<number> = []
    const provider = after(Array.from({ length: rows }, () => latency))
    const llm = Layer.succeed(LLM.LLM, {
      provider: "bench",
      generate: ({ messages, model }) =>
        Effect.async((resume) => {
          begun.push(performance.now())
          provider(messages.at(-1)?.content ?? "", (answer) => {
            ended.push(performance.now())
            resume(Effect.succeed(LLM.answer({ ...answer, model })))
          })
        })
    })
    const from = performance.now()
    yield* Stream.runForEach(Enrichment.events(job, { runId }), (event) =>
      Effect.sync(() => void (event._tag === "Started" && console.log("started")))
    ).pipe(
      Effect.provide([llm, Budget.layer({ maxCostUsd: 50, maxConcurrency: concurrency })]),
      Effect.provide(Sqlite.layer({ filename }))
    )
    const waits = begun.slice(concurrency).map((at, i) => at - (ended[i] ?? Number.NaN))
    console.log(yield* Schema.encode(Ran)({ ms: performance.now() - from, waits }))
  })

/** The looks, in this process: as many, spread over four fifths of what the run takes at least. */
const polling = (filename: string) =>
  Effect.gen(function* () {
    const every = (0.8 * (rows / concurrency) * latency) / polls
    const errors: Array<string> = []
    const took: Array<number> = []
    let before = 0
    const begun = performance.now()
    for (let n = 0; n < polls; n++) {
      yield* Effect.sleep(Math.max(0, begun + n * every - performance.now()))
      const from = performance.now()
      const looked = yield* Effect.exit(Watch.look(runId))
      took.push(performance.now() - from)
      if (Exit.isFailure(looked)) errors.push(Cause.pretty(looked.cause))
      else if (looked.value.status === "running") before++
    }
    console.log(yield* Schema.encode(Polled)({ before, p95: percentile(took, 0.95), errors }))
  }).pipe(Effect.provide(Sqlite.layer({ filename, create: false })))

const self = fileURLToPath(import.meta.url)
/** A process in one of the roles; `lines` are what it says, in order. */
const start = (role: string, db: string) => {
  const child = spawn(
    process.execPath,
    ["--import", "tsx", self, ...process.argv.slice(2), "--role", role, "--db", db],
    {
      stdio: ["pipe", "pipe", "inherit"]
    }
  )
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const next = async (): Promise<string> => {
    const { done, value } = await lines.next()
    if (done === true) throw new Error(`the ${role} ended early`)
    return value
  }
  return { next, go: () => child.stdin.end("go\n") }
}

// On the disk of this directory: /tmp may be memory.
const parent = fileURLToPath(new URL("../node_modules/.cache", import.meta.url))

const round = async (polled: boolean) => {
  mkdirSync(parent, { recursive: true })
  const directory = mkdtempSync(join(parent, "longhaul-polls-"))
  try {
    const db = join(directory, "polls.db")
    // It waits until it is told, so that its own start is not in the way.
    const poller = polled ? start("poller", db) : undefined
    await poller?.next()
    const runner = start("runner", db)
    await runner.next()
    poller?.go()
    const [ran, looks] = await Promise.all([runner.next(), poller?.next()])
    const { ms, waits } = Schema.decodeSync(Ran)(ran)
    return {
      ms,
      p95: percentile(waits, 0.95),
      looks: looks === undefined ? undefined : Schema.decodeSync(Polled)(looks)
    }
  } finally {
    rmSync(directory, { recursive: true })
  }
}

const bench = async () => {
  const load = loadavg().map((average) => average.toFixed(2))
  console.log(
    `${rows} rows of ${latency} ms, ${concurrency} at once, ${polls} looks, ${reps} pairs, node ${process.version}, load ${load.join(" ")}`
  )
  const pairs: Array<{ readonly alone: number; readonly polled: number }> = []
  let errors = 0
  for (let n = 1; n <= reps; n++) {
    // Who goes first alternates too.
    const first = await round(n % 2 === 0)
    const second = await round(n % 2 !== 0)
    const [alone, polled] = n % 2 === 0 ? [second, first] : [first, second]
    pairs.push({ alone: alone.p95, polled: polled.p95 })
    for (const error of polled.looks?.errors ?? []) console.error(error)
    errors += polled.looks?.errors.length ?? 0
    console.log(
      `pair ${n}: p95 ${alone.p95.toFixed(2)} ms alone, ${polled.p95.toFixed(2)} ms polled; run ${(alone.ms / 1000).toFixed(1)} s, ${(polled.ms / 1000).toFixed(1)} s; ${polled.looks?.before} looks while it ran, p95 ${polled.looks?.p95.toFixed(2)} ms`
    )
  }
  const ratio = median(pairs.map(({ alone, polled }) => polled / alone))
  console.log(`p95 of a permit's wait, median: ${median(pairs.map(({ alone }) => alone)).toFixed(2)} ms alone`)
  console.log(`                                ${median(pairs.map(({ polled }) => polled)).toFixed(2)} ms polled`)
  console.log(`ratio                           ${ratio.toFixed(2)}, goal <= 1.2: ${ratio <= 1.2 ? "met" : "missed"}`)
  console.log(`errors that the poller saw      ${errors}`)
  process.exitCode = errors === 0 ? 0 : 1
}

switch (flags.role) {
  case "runner":
    await Effect.runPromise(running(flags.db ?? ""))
    break
  case "poller":
    console.log("ready")
    await once(process.stdin, "data")
    await Effect.runPromise(polling(flags.db ?? ""))
    break
  default:
    await bench()
}
