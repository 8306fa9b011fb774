/** The book of the money against a model of a dozen lines: whatever the commands, and however they are grouped into commits, both say the same. */
import { assert, describe, it } from "@effect/vitest"
import { Effect, Runtime } from "effect"
import fc from "fast-check"
import type { Book, HoldRecord, Op, Verdict } from "../../src/services/Book.ts"
import { Journal, type JournalShape } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"
import { backends, bookOf, holdOf, workerOf } from "./backends.ts"

const ok: Verdict = { _tag: "Ok" }
const fenced: Verdict = { _tag: "Fenced" }
const overCap: Verdict = { _tag: "Refused", reason: "cap" }

const tokens = { inputTokens: 3, cachedTokens: 1, cacheWriteTokens: 0, outputTokens: 2, reasoningTokens: 1 }
const settle = (hold: HoldRecord, cost: number): Op => ({
  _tag: "Settle",
  hold,
  close: { usage: tokens, cost: Usd.nano(cost), answer: "{}", finish: "stop", requestId: null, reason: "", at: 9 }
})
const uncertain = (hold: HoldRecord): Op => ({
  _tag: "Uncertain",
  hold,
  reason: "timeout",
  answer: null,
  requestId: null,
  at: 9
})
const release = (hold: HoldRecord, sent: boolean): Op => ({ _tag: "Release", hold, reason: "refused", sent, at: 9 })

/** `joined`: in one turn of the event loop with the command before it, so in one commit where the backend groups. */
type Command = { readonly joined: boolean } & (
  | { readonly _tag: "hold"; readonly amount: number }
  | { readonly _tag: "settle"; readonly pick: number; readonly part: number }
  | { readonly _tag: "uncertain"; readonly pick: number }
  | { readonly _tag: "release"; readonly pick: number; readonly sent: boolean }
  | { readonly _tag: "crash" }
  | { readonly _tag: "late"; readonly pick: number; readonly how: "settle" | "uncertain" | "release" | "hold" }
  | { readonly _tag: "cap"; readonly by: number }
)

/** What the book must say. A bill above its hold (`part` above 1) is the truth and is written all the same. */
class Model {
  cap = 500
  spent = 0
  uncertain = 0
  calls = 0
  worker = 1
  n = 0
  readonly open: Array<HoldRecord> = []
  readonly lost: Array<HoldRecord> = []
  readonly runId: string
  constructor(runId: string) {
    this.runId = runId
  }
  get held() {
    return this.open.reduce((sum, record) => sum + record.amount, 0)
  }
  get counted() {
    return this.spent + this.uncertain + this.held
  }

  /** The operation that a command is now, and its verdict; `undefined`: the command means nothing now. */
  apply(command: Command): readonly [Op, Verdict] | undefined {
    switch (command._tag) {
      case "cap": {
        this.cap = Math.max(0, this.cap + command.by)
        const fence = { runId: this.runId, worker: this.worker }
        return [{ _tag: "Limits", fence, limits: { cap: Usd.nano(this.cap) } }, ok]
      }
      case "hold": {
        const hold = holdOf(this.runId, this.n++, command.amount, { worker: this.worker, seq: 0 })
        if (this.counted + command.amount > this.cap) return [{ _tag: "Hold", hold }, overCap]
        this.calls++
        this.open.push(hold)
        return [{ _tag: "Hold", hold }, ok]
      }
      case "crash":
        this.uncertain += this.held
        this.lost.push(...this.open.splice(0))
        this.worker++
        return [
          { _tag: "Claim", worker: workerOf(this.runId, this.worker), dead: [this.worker - 1], lost: Usd.zero },
          ok
        ]
      case "late":
        return this.late(command)
      default:
        return this.close(command)
    }
  }

  private close(command: Extract<Command, { readonly _tag: "settle" | "uncertain" | "release" }>) {
    const [hold] = this.open.splice(command.pick % Math.max(1, this.open.length), 1)
    if (hold === undefined) return undefined
    switch (command._tag) {
      case "settle": {
        const cost = Math.floor(hold.amount * command.part)
        this.spent += cost
        return [settle(hold, cost), ok] as const
      }
      case "uncertain":
        this.uncertain += hold.amount
        return [uncertain(hold), ok] as const
      case "release":
        if (!command.sent) this.calls--
        return [release(hold, command.sent), ok] as const
    }
  }

  /** What a worker writes that was taken for dead. */
  private late({ how, pick }: Extract<Command, { readonly _tag: "late" }>) {
    const hold = this.lost[pick % Math.max(1, this.lost.length)]
    if (hold === undefined) return undefined
    const ops = { settle: settle(hold, 1), uncertain: uncertain(hold), release: release(hold, false) }
    const again: Op = { _tag: "Hold", hold: { ...hold, n: hold.n + 1_000 } }
    return [how === "hold" ? again : ops[how], fenced] as const
  }
}

const pick = fc.nat(20)
const joined = fc.boolean()
const weighted = (weight: number, arbitrary: fc.Arbitrary<Command>) => ({ arbitrary, weight })
const part = fc.oneof(
  { arbitrary: fc.double({ min: 0, max: 1, noNaN: true }), weight: 9 },
  { arbitrary: fc.double({ min: 1, max: 3, noNaN: true }), weight: 1 }
)
const how = fc.constantFrom("settle" as const, "uncertain" as const, "release" as const, "hold" as const)
const command: fc.Arbitrary<Command> = fc.oneof(
  weighted(7, fc.record({ _tag: fc.constant("hold"), joined, amount: fc.integer({ min: 0, max: 200 }) })),
  weighted(4, fc.record({ _tag: fc.constant("settle"), joined, pick, part })),
  weighted(1, fc.record({ _tag: fc.constant("uncertain"), joined, pick })),
  weighted(2, fc.record({ _tag: fc.constant("release"), joined, pick, sent: fc.boolean() })),
  weighted(1, fc.record({ _tag: fc.constant("crash"), joined })),
  weighted(1, fc.record({ _tag: fc.constant("late"), joined, pick, how })),
  weighted(2, fc.record({ _tag: fc.constant("cap"), joined, by: fc.integer({ min: -100, max: 300 }) }))
)

const groups = (commands: ReadonlyArray<Command>): ReadonlyArray<ReadonlyArray<Command>> => {
  const all: Array<Array<Command>> = []
  for (const one of commands) {
    const last = all.at(-1)
    if (one.joined && last !== undefined) last.push(one)
    else all.push([one])
  }
  return all
}

const together = (journal: JournalShape, ops: ReadonlyArray<Op>) =>
  Effect.all(
    ops.map((op) => journal.commit(op)),
    { concurrency: "unbounded" }
  )

/** A run with one row, on which all calls are, and one worker. */
const begin = (journal: JournalShape, runId: string, cap: number) =>
  together(journal, [
    { _tag: "Create", book: bookOf(runId, { cap: Usd.nano(cap) }) },
    { _tag: "Claim", worker: workerOf(runId, 1), dead: [], lost: Usd.zero },
    {
      _tag: "Load",
      fence: { runId, worker: 1 },
      rows: [{ runId, seq: 0, id: "0", version: "", line: 1, value: "{}", epoch: 0 }],
      filtered: 0,
      last: true
    }
  ])

const bookIn = (journal: JournalShape, runId: string) =>
  Effect.flatMap(journal.reads.book(runId), (book) =>
    book === undefined ? Effect.dieMessage(`no book ${runId}`) : Effect.succeed(book)
  )
const money = ({
  calls,
  cap,
  held,
  spent,
  uncertain
}: Pick<Book, "calls" | "cap" | "held" | "spent" | "uncertain">) => ({
  cap: Number(cap),
  spent: Number(spent),
  uncertain: Number(uncertain),
  held: Number(held),
  calls
})

/** One run: every verdict, the totals after every group, and the closed calls, whose sum they are and which never change. */
const holds = (journal: JournalShape, runId: string, commands: ReadonlyArray<Command>) =>
  Effect.gen(function* () {
    const model = new Model(runId)
    yield* begin(journal, runId, model.cap)
    let before = yield* journal.reads.openCalls(runId)
    const all = groups(commands)
    for (const [i, group] of all.entries()) {
      const steps = group.flatMap((one) => {
        const step = model.apply(one)
        return step === undefined ? [] : [step]
      })
      const verdicts = yield* together(
        journal,
        steps.map(([op]) => op)
      )
      assert.deepStrictEqual(
        verdicts,
        steps.map(([, verdict]) => verdict)
      )
      const { calls, cap, held, spent, uncertain } = model
      assert.deepStrictEqual(money(yield* bookIn(journal, runId)), { calls, cap, held, spent, uncertain })
      // Now and then: to compare all calls costs more than all else.
      if (i % 8 !== 0 && i !== all.length - 1) continue
      const closed = yield* journal.reads.openCalls(runId)
      const now = new Map(closed.map((call) => [`${call.worker}/${call.n}`, call]))
      for (const call of before) assert.deepStrictEqual(now.get(`${call.worker}/${call.n}`), call)
      const sum = (state: string) => closed.reduce((total, call) => total + (call.state === state ? call.cost : 0), 0)
      assert.deepStrictEqual([sum("settled"), sum("uncertain"), sum("released")], [spent, uncertain, 0])
      before = closed
    }
  })

for (const backend of backends) {
  describe(`The ledger on ${backend.name}`, () => {
    // A commit to disk takes its time: fewer there.
    const numRuns = backend.groups ? 40 : 300
    it.effect(
      `I10: concurrent charges and holds serialise; spend never passes the cap (model: ${numRuns} runs of any commands, any grouping)`,
      () =>
        Effect.gen(function* () {
          const journal = yield* Journal
          const runtime = yield* Effect.runtime<never>()
          let runs = 0
          const commands = fc.array(command, { minLength: 60, maxLength: 60, size: "max" })
          const property = fc.asyncProperty(commands, (given) =>
            Runtime.runPromise(runtime, holds(journal, `run-${runs++}`, given))
          )
          yield* Effect.promise(() => fc.assert(property, { numRuns }))
        }).pipe(Effect.provide(backend.layer())),
      60_000
    )
  })
}
