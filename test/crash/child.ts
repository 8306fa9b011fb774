/**
 * The process that is killed, made of the library's own parts. It starts in a fraction of the time of the command, which has the same parts; and it can kill itself at a
 * labelled point.
 *
 * Its one argument is the JSON of `Order`. It prints a line when its work has begun, and ends with the command's exit codes.
 */
import { Effect, Layer, Logger, LogLevel, Redacted, Schema, Stream } from "effect"
import { write } from "../../src/layers/Export.ts"
import { layerWith } from "../../src/layers/LLMOpenAI.ts"
import * as Rows from "../../src/layers/Rows.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import * as ExitCode from "../../src/programs/ExitCode.ts"
import * as ResultRows from "../../src/programs/ResultRows.ts"
import type { HoldRecord, Op } from "../../src/services/Book.ts"
import * as Checkpointer from "../../src/services/Checkpointer.ts"
import { type Driver, Journal, type JournalShape, make } from "../../src/services/Journal.ts"
import { LLM } from "../../src/services/LLM.ts"
import * as Store from "../../src/services/Store.ts"
import { Usd } from "../../src/services/Usd.ts"
import crashJob from "./job.ts"
import { Order, type Plant } from "./order.ts"
import { dyingDriver, dyingLlm } from "./points.ts"

const order = Schema.decodeSync(Schema.parseJson(Order))(process.argv[2] ?? "")
const spot = { point: order.point, nth: order.nth }

/** The seed's design: nothing is set aside for a call before it is sent, so nothing remains of it if the process dies. */
const unheld = (journal: JournalShape): JournalShape => ({
  ...journal,
  append: (op, heard) => journal.append(withoutHold(op), heard),
  commit: (op) => journal.commit(withoutHold(op))
})
const withoutHold = (op: Op): Op => ("hold" in op ? { ...op, hold: nothing(op.hold) } : op)
const nothing = (hold: HoldRecord): HoldRecord => ({ ...hold, amount: Usd.zero })

let ready = false
/** Says when its first commit is done, or the first one with a hold. */
const telling = (driver: Driver): Driver => ({
  ...driver,
  transact: (needs, decide) => {
    let begun = order.ready === "commit"
    const watched = driver.transact(needs, (facts) => {
      const writes = decide(facts)
      begun ||= writes.holds.size > 0
      return writes
    })
    return Effect.tap(watched, () => {
      if (begun && !ready) console.log("ready")
      ready ||= begun
    })
  }
})

const journalOf = (driver: Driver, plant: Plant | undefined) =>
  Effect.map(make(driver), (journal) => (plant === "check-then-charge" ? unheld(journal) : journal))

const durable = Layer.merge(Store.layer, Checkpointer.layer).pipe(
  Layer.provideMerge(
    Layer.scoped(
      Journal,
      Effect.flatMap(Sqlite.open({ filename: order.db }), (driver) =>
        journalOf(telling(dyingDriver(driver, spot)), order.plant)
      )
    )
  )
)

const Seen = Schema.decodeUnknownSync(Schema.Struct({ requests: Schema.Int }))
const requests = Effect.promise(
  async () => Seen(await (await fetch(new URL("/_bill", order.provider))).json()).requests
)
const provider = Layer.effect(
  LLM,
  Effect.gen(function* () {
    const before = yield* requests
    const arrived = Effect.map(requests, (now) => now - before)
    return dyingLlm(yield* LLM, spot, arrived)
  })
).pipe(
  Layer.provide(
    layerWith({ apiKey: Redacted.make("sk-crash"), baseUrl: order.provider, timeoutMs: order.timeoutMs, name: "fake" })
  )
)

const job = Enrichment.withOverrides(crashJob, { source: Rows.csv(order.source) })
const budget = Budget.layer({ maxCostUsd: order.budget, maxConcurrency: order.concurrency })

Effect.gen(function* () {
  const result = yield* Enrichment.run(job, { runId: order.runId })
  const { columns, row } = ResultRows.layout(job.agent.output, ["id", "name"])
  const rows = Enrichment.results(order.runId, Schema.Unknown)
  yield* write(order.out, columns, Stream.map(rows, row), { raw: false })
  return ExitCode.ofResult(result)
})
  .pipe(
    Effect.provide([budget, provider, durable]),
    Effect.catchAll((error) => {
      console.error(error.message)
      return Effect.succeed(ExitCode.ofError(error))
    }),
    // Its one line of output is the sign that work has begun.
    Logger.withMinimumLogLevel(LogLevel.None),
    Effect.runPromise
  )
  .then(
    (code) => process.exit(code),
    (defect) => {
      console.error(defect)
      process.exit(1)
    }
  )
