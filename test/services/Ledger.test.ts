/** How money moves: for each operation, the whole of what is written. */
import { assert, describe, it } from "@effect/vitest"
import type { Book, CallRecord, CorrectionRecord, HoldRecord, Op, Settled } from "../../src/services/Book.ts"
import { Usd } from "../../src/services/Usd.ts"
import { booksOf, decided, fenced, holdsOf, ok, refused, writesOf } from "../support/decided.ts"
import { bookOf, buriedOf, holdOf, workerOf } from "../support/records.ts"

const usage = { inputTokens: 3, cachedTokens: 1, cacheWriteTokens: 4, outputTokens: 2, reasoningTokens: 5 }
const noTokens = { inputTokens: 0, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 0, reasoningTokens: 0 }
/** A book in which every figure is another one, so that none can stand for another. */
const some: Partial<Book> = {
  spent: Usd.nano(100),
  uncertain: Usd.nano(50),
  held: Usd.nano(200),
  calls: 40,
  retries: 7,
  repairs: 5,
  inputTokens: 1_000,
  cachedTokens: 200,
  cacheWriteTokens: 300,
  outputTokens: 500,
  reasoningTokens: 600
}
const book = bookOf("run", some)
const tokensAfter = {
  inputTokens: 1_003,
  cachedTokens: 201,
  cacheWriteTokens: 304,
  outputTokens: 502,
  reasoningTokens: 605
}

const close: Settled = {
  usage,
  cost: Usd.nano(60),
  answer: "{}",
  finish: "stop",
  requestId: "req",
  reason: "why",
  at: 9
}
const hold = (record: HoldRecord): Op => ({ _tag: "Hold", hold: record })
const release = (record: HoldRecord, sent: boolean): Op => ({
  _tag: "Release",
  hold: record,
  reason: "refused",
  sent,
  at: 9
})
const closedAs = (
  record: HoldRecord,
  state: CallRecord["state"],
  cost: number,
  parts: Partial<CallRecord>
): CallRecord => ({
  ...record,
  ...noTokens,
  state,
  cost: Usd.nano(cost),
  reason: "",
  answer: null,
  finish: null,
  requestId: null,
  closedAt: 9,
  ...parts
})

describe("A hold", () => {
  const room = 1_000 - 350
  it("I10: fits up to the cap and not one nano-dollar above it: spent, uncertain and held all count", () => {
    const record = holdOf("run", 0, room)
    assert.deepStrictEqual(decided([hold(record)], { books: [book] }), {
      verdicts: [ok],
      writes: writesOf({
        holds: holdsOf(record),
        books: booksOf({ ...book, held: Usd.nano(200 + room), calls: 41 })
      })
    })
    assert.deepStrictEqual(decided([hold(holdOf("run", 0, room + 1))], { books: [book] }), {
      verdicts: [refused("cap")],
      writes: writesOf()
    })
  })

  it("I10: of two in one group the second counts the first", () => {
    const [one, two] = [holdOf("run", 0, room), holdOf("run", 1, 1)]
    assert.deepStrictEqual(decided([hold(one), hold(two)], { books: [book] }).verdicts, [ok, refused("cap")])
  })

  it("I10: without a cap there is room for anything", () => {
    const free = { ...book, cap: null }
    assert.deepStrictEqual(decided([hold(holdOf("run", 0, 1e9))], { books: [free] }).verdicts, [ok])
  })

  it("is refused when the calls are used up, and not one call before", () => {
    const last = { ...book, maxCalls: 41 }
    const [one, two] = [holdOf("run", 0, 1), holdOf("run", 1, 1)]
    assert.deepStrictEqual(decided([hold(one), hold(two)], { books: [last] }).verdicts, [ok, refused("max_calls")])
  })

  it("of a worker that is not live is fenced and writes nothing", () => {
    assert.deepStrictEqual(decided([hold(holdOf("run", 0, 1, { worker: 2 }))], { books: [book] }), {
      verdicts: [fenced],
      writes: writesOf()
    })
  })

  for (const [what, parts, counts] of [
    ["a first try of a first turn is neither a retry nor a repair", { turn: 0, attempt: 0 }, [7, 5]],
    ["a second try is a retry", { turn: 0, attempt: 1 }, [8, 5]],
    ["the first try of a second turn is a repair", { turn: 1, attempt: 0 }, [7, 6]],
    ["a second try of a second turn is a retry and no second repair", { turn: 1, attempt: 1 }, [8, 5]]
  ] as const) {
    it(`I22: ${what}; released unsent, it is as if it had never been`, () => {
      const record = holdOf("run", 0, 10, parts)
      const held = decided([hold(record)], { books: [book] }).writes.books.get("run") ?? book
      assert.deepStrictEqual([held.retries, held.repairs], [...counts])
      assert.deepStrictEqual(decided([release(record, false)], { books: [held], holds: [record] }), {
        verdicts: [ok],
        writes: writesOf({ books: booksOf(book), closed: [record] })
      })
    })
  }
})

describe("A hold is closed", () => {
  const record = holdOf("run", 0, 80)
  const totals = (parts: Partial<Book>) => booksOf({ ...book, held: Usd.nano(120), ...parts })

  it("settled: at what was reported, with its tokens, its answer, its end and its request id", () => {
    assert.deepStrictEqual(decided([{ _tag: "Settle", hold: record, close }], { books: [book], holds: [record] }), {
      verdicts: [ok],
      writes: writesOf({
        closed: [record],
        calls: [
          closedAs(record, "settled", 60, { ...usage, reason: "why", answer: "{}", finish: "stop", requestId: "req" })
        ],
        books: totals({ spent: Usd.nano(160), ...tokensAfter })
      })
    })
  })

  it("uncertain: at all of it, with what there is of the answer", () => {
    const op: Op = { _tag: "Uncertain", hold: record, reason: "timeout", answer: "half", requestId: "req", at: 9 }
    assert.deepStrictEqual(decided([op], { books: [book], holds: [record] }), {
      verdicts: [ok],
      writes: writesOf({
        closed: [record],
        calls: [closedAs(record, "uncertain", 80, { reason: "timeout", answer: "half", requestId: "req" })],
        books: totals({ uncertain: Usd.nano(130) })
      })
    })
  })

  it("released after it was sent: at nothing, but it stays a call", () => {
    assert.deepStrictEqual(decided([release(record, true)], { books: [book], holds: [record] }), {
      verdicts: [ok],
      writes: writesOf({
        closed: [record],
        calls: [closedAs(record, "released", 0, { reason: "refused" })],
        books: totals({})
      })
    })
  })

  it("in the group that opened it: nothing is left to delete", () => {
    const { verdicts, writes } = decided([hold(record), { _tag: "Settle", hold: record, close }], { books: [book] })
    assert.deepStrictEqual(verdicts, [ok, ok])
    assert.deepStrictEqual([writes.holds.size, writes.closed.length, writes.calls.length], [0, 0, 1])
    assert.strictEqual(writes.books.get("run")?.held, 200)
  })

  it("by a worker that was taken over: nothing is written", () => {
    const stale = holdOf("run", 0, 80, { worker: 2 })
    const ops: ReadonlyArray<Op> = [{ _tag: "Settle", hold: stale, close }, release(stale, false)]
    assert.deepStrictEqual(decided(ops, { books: [book] }), { verdicts: [fenced, fenced], writes: writesOf() })
  })
})

describe("A claim", () => {
  const claim = (worker: number, dead: ReadonlyArray<number>, lost = Usd.zero): Op => ({
    _tag: "Claim",
    worker: workerOf("run", worker),
    dead,
    lost
  })
  const buried = (worker: number) => buriedOf("run", worker)
  const crashed = (record: HoldRecord) => closedAs(record, "uncertain", record.amount, { reason: "crash", closedAt: 7 })

  it("I10: makes uncertain what the dead held, and what one that is long gone held, at its full amount; the living keep theirs", () => {
    const gone = holdOf("run", 0, 10, { worker: 1 })
    const dead = holdOf("run", 1, 20, { worker: 2 })
    const alive = holdOf("run", 2, 40, { worker: 3 })
    const holds = [gone, dead, alive]
    assert.deepStrictEqual(decided([claim(4, [2])], { books: [book], live: [2, 3], holds, workers: { run: 3 } }), {
      verdicts: [ok],
      writes: writesOf({
        closed: [gone, dead],
        calls: [crashed(gone), crashed(dead)],
        books: booksOf({ ...book, held: Usd.nano(170), uncertain: Usd.nano(80) }),
        workers: [buried(2), workerOf("run", 4)]
      })
    })
  })

  it("counts money without a record as uncertain, in the same commit, as call 0 of the worker that found it missing", () => {
    const record = holdOf("run", 0, 70, { worker: 4, seq: -1, request: "", model: "", at: 7 })
    const { verdicts, writes } = decided([claim(4, [], Usd.nano(70))], { books: [book], workers: { run: 3 } })
    assert.deepStrictEqual(verdicts, [ok])
    assert.deepStrictEqual(writes.calls, [closedAs(record, "uncertain", 70, { reason: "lost", closedAt: 7 })])
    assert.strictEqual(writes.books.get("run")?.uncertain, book.uncertain + 70)
  })

  it("counts what the same group wrote before it: a hold it opened is taken over, one it closed is not", () => {
    const [settled, opened, other] = [holdOf("run", 0, 10), holdOf("run", 1, 20), holdOf("other", 1, 40)]
    const { verdicts, writes } = decided(
      [{ _tag: "Settle", hold: settled, close }, hold(opened), hold(other), claim(2, [1])],
      { books: [book, bookOf("other")], holds: [settled], workers: { run: 1 } }
    )
    assert.deepStrictEqual(verdicts, [ok, ok, ok, ok])
    assert.deepStrictEqual(
      writes.calls.map(({ n, runId, state }) => [runId, n, state]),
      [
        ["run", 0, "settled"],
        ["run", 1, "uncertain"]
      ]
    )
    assert.deepStrictEqual([...writes.holds.values()], [other])
    assert.deepStrictEqual(writes.books.get("run")?.uncertain, Usd.nano(70))
  })

  it("fences the dead at once, lets the living write, and the new worker", () => {
    const writers = [2, 3, 4].map((worker) => hold(holdOf("run", worker, 1, { worker })))
    const { verdicts } = decided([claim(4, [2]), ...writers], { books: [book], live: [2, 3], workers: { run: 3 } })
    assert.deepStrictEqual(verdicts, [ok, fenced, ok, ok])
  })

  it("comes too late if its number is taken, in the database or in the same group, or a number before it is missing", () => {
    const late = (ops: ReadonlyArray<Op>, workers = { run: 3 }) => decided(ops, { books: [book], workers }).verdicts
    assert.deepStrictEqual(late([claim(3, [])]), [refused("claimed")])
    assert.deepStrictEqual(late([claim(5, [])]), [refused("claimed")])
    assert.deepStrictEqual(late([claim(4, []), claim(4, [])]), [ok, refused("claimed")])
    assert.deepStrictEqual(late([claim(4, []), claim(5, [4])]), [ok, ok])
    assert.deepStrictEqual(decided([claim(1, [])], { books: [book] }).verdicts, [ok], "the first of a run")
    assert.deepStrictEqual(decided([claim(1, [])], {}), { verdicts: [refused("claimed")], writes: writesOf() })
  })

  it("of a run that the same group creates: there is nothing to take over", () => {
    const { verdicts, writes } = decided([{ _tag: "Create", book }, claim(1, [])], {})
    assert.deepStrictEqual(verdicts, [ok, ok])
    assert.deepStrictEqual([writes.closed, writes.calls, writes.workers], [[], [], [workerOf("run", 1)]])
    const group = [{ _tag: "Create", book }, claim(1, []), hold(holdOf("run", 0, 1))] as const
    assert.deepStrictEqual(decided(group, {}).verdicts, [ok, ok, ok])
  })

  it("of a run that nobody lives in: only the new worker is live", () => {
    const known = { books: [book], live: [], workers: { run: 1 } }
    const writers = [1, 2].map((worker) => hold(holdOf("run", worker, 1, { worker })))
    assert.deepStrictEqual(decided([claim(2, []), ...writers], known).verdicts, [ok, fenced, ok])
  })
})

describe("What becomes known later", () => {
  const call = holdOf("run", 0, 30)
  const known = { books: [book], uncertain: [[call, Usd.nano(30)]] } as const
  const correction = (source: CorrectionRecord["source"], cost: number): CorrectionRecord => ({
    runId: "run",
    worker: 1,
    n: 0,
    source,
    cost: Usd.nano(cost),
    ...usage,
    answer: null,
    note: "note",
    at: 9
  })
  const correct = (one: CorrectionRecord): Op => ({ _tag: "Correct", correction: one })

  for (const [source, cost] of [
    ["late", 30],
    ["late", 12],
    ["report", 45],
    ["lookup", 45]
  ] as const) {
    it(`${source} at ${cost} of 30: uncertain at its hold becomes spent at its cost`, () => {
      const one = correction(source, cost)
      assert.deepStrictEqual(decided([correct(one)], known), {
        verdicts: [ok],
        writes: writesOf({
          corrections: [one],
          books: booksOf({ ...book, uncertain: Usd.nano(20), spent: Usd.nano(100 + cost), ...tokensAfter })
        })
      })
    })
  }

  it("a stale worker may not raise the bill", () => {
    assert.deepStrictEqual(decided([correct(correction("late", 31))], known), {
      verdicts: [refused("above_hold")],
      writes: writesOf()
    })
  })

  it("counts once, and only for a call that is uncertain, in a run that is known", () => {
    const one = correct(correction("report", 12))
    assert.deepStrictEqual(decided([one, one], known).verdicts, [ok, refused("not_uncertain")])
    assert.deepStrictEqual(decided([one], { books: [book] }), {
      verdicts: [refused("not_uncertain")],
      writes: writesOf()
    })
    const nowhere = { uncertain: known.uncertain }
    assert.deepStrictEqual(decided([one], nowhere), { verdicts: [refused("not_uncertain")], writes: writesOf() })
  })
})
