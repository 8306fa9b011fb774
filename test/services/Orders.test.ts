/** What each order does to the book: the whole of what is written, and when it is refused. */
import { assert, describe, it } from "@effect/vitest"
import { Either, Schema } from "effect"
import type { Book, Op, Order } from "../../src/services/Book.ts"
import { needs } from "../../src/services/Book.ts"
import * as Orders from "../../src/services/Orders.ts"
import { Usd } from "../../src/services/Usd.ts"
import { booksOf, decided, ok, refused, writesOf } from "../support/decided.ts"
import { bookOf, holdOf } from "../support/records.ts"

const book = bookOf("run", {
  orders: 4,
  rows: 10,
  done: 3,
  partial: 2,
  failed: 1,
  reruns: 7,
  cap: Usd.nano(1_000),
  maxCalls: 50,
  maxConcurrency: 8,
  requestsPerMinute: 60,
  tokensPerMinute: 900,
  spent: Usd.nano(300),
  uncertain: Usd.nano(20),
  held: Usd.nano(5)
})
const op = (order: Order): Op => ({ _tag: "Order", runId: "run", by: "ada", order, at: 9 })
const epochs = { 1: 0, 2: 3, 3: 0 }

const numbered = (version: number) => ({ _tag: "Version", version }) as const

/** An order changes these parts of the book and is written down with the next number; nothing else. */
const changes = (order: Order, parts: Partial<Book>, from: Book = book) =>
  assert.deepStrictEqual(decided([op(order)], { books: [from], epochs }), {
    verdicts: [numbered(from.orders + 1)],
    writes: writesOf({
      books: booksOf({ ...from, ...parts, orders: from.orders + 1 }),
      orders: [{ runId: "run", n: from.orders + 1, by: "ada", order, at: 9 }]
    })
  })
const refuses = (order: Order, reason: Parameters<typeof refused>[0], from: Book = book) =>
  assert.deepStrictEqual(decided([op(order)], { books: [from], epochs }), {
    verdicts: [refused(reason)],
    writes: writesOf()
  })

const pause = (by: "operator" | "canary" | "detector"): Order => ({ _tag: "Pause", by, message: "why" })
const pausedBy = (by: "operator" | "canary" | "detector"): Book => ({ ...book, paused: { by, message: "why" } })
const done: Book = { ...book, status: "done" }
const cancelled: Book = { ...book, status: "cancelled" }
const canary = { rows: 5, over: false }
const all: ReadonlyArray<Order> = [
  pause("operator"),
  { _tag: "Unpause" },
  { _tag: "Drain" },
  { _tag: "Cancel" },
  { _tag: "Approve" },
  { _tag: "Set", maxConcurrency: 1 },
  { _tag: "Requeue", rows: [] }
]

describe("An order", () => {
  it("needs the run, and of rows that run again their present epochs", () => {
    const nothing = {
      pools: new Set<string>(),
      checkpoints: new Set<string>(),
      claims: new Set<string>(),
      uncertain: []
    }
    assert.deepStrictEqual(needs([op({ _tag: "Drain" })]), { ...nothing, runs: new Set(["run"]), rows: [] })
    const rows = [{ seq: 1, epoch: 0, kind: "done" } as const]
    assert.deepStrictEqual(needs([op({ _tag: "Requeue", rows })]), {
      ...nothing,
      runs: new Set(["run"]),
      rows: [{ runId: "run", seq: 1 }]
    })
  })

  it("is refused where there is no such run, and where it was given up", () => {
    for (const order of all) {
      assert.deepStrictEqual(decided([op(order)], {}), { verdicts: [refused("not_found")], writes: writesOf() })
      refuses(order, "cancelled", cancelled)
    }
  })

  it("numbers itself after those before it, also in one group", () => {
    const { writes } = decided([op({ _tag: "Drain" }), op({ _tag: "Unpause" })], { books: [book] })
    assert.deepStrictEqual(
      writes.orders.map(({ n }) => n),
      [5, 6]
    )
    assert.strictEqual(writes.books.get("run")?.orders, 6)
  })

  it("pauses with its reason, whoever paused before; not a run that is done", () => {
    for (const by of ["operator", "canary", "detector"] as const) {
      changes(pause(by), { paused: { by, message: "why" } })
      changes(pause(by), { paused: { by, message: "why" } }, pausedBy("operator"))
    }
    refuses(pause("operator"), "done", done)
  })

  it("unpauses, whoever paused; a canary that kept the run waiting is passed by it", () => {
    const waiting = (by: "operator" | "canary") => ({ ...pausedBy(by), canary })
    changes({ _tag: "Unpause" }, { paused: null }, pausedBy("detector"))
    changes({ _tag: "Unpause" }, { paused: null })
    changes({ _tag: "Unpause" }, { paused: null }, waiting("operator"))
    changes({ _tag: "Unpause" }, { paused: null, canary: { rows: 5, over: true } }, waiting("canary"))
  })

  it("approves the canary and what a detector found, and leaves the operator's own pause", () => {
    const over = { rows: 5, over: true }
    changes({ _tag: "Approve" }, { paused: null, canary: over }, { ...pausedBy("canary"), canary })
    changes({ _tag: "Approve" }, { paused: null, canary: over }, { ...pausedBy("detector"), canary: over })
    changes({ _tag: "Approve" }, { canary: over }, { ...pausedBy("operator"), canary })
    changes({ _tag: "Approve" }, { paused: null }, pausedBy("detector"))
  })

  it("drains: the book says no more than that it was ordered", () => {
    changes({ _tag: "Drain" }, {})
    changes({ _tag: "Drain" }, {}, done)
  })

  it("cancels for good, and says who did; not what is done", () => {
    const reason = { kind: "cancelled", message: "cancelled by ada" } as const
    changes({ _tag: "Cancel" }, { status: "cancelled", paused: null, reason }, pausedBy("operator"))
    refuses({ _tag: "Cancel" }, "done", done)
  })

  it("sets limits: what is left out stays, null is none", () => {
    changes({ _tag: "Set" }, {})
    changes({ _tag: "Set", cap: Usd.nano(2_000) }, { cap: Usd.nano(2_000) })
    changes({ _tag: "Set", cap: null }, { cap: null })
    changes(
      { _tag: "Set", maxCalls: null, requestsPerMinute: null, tokensPerMinute: null },
      {
        maxCalls: null,
        requestsPerMinute: null,
        tokensPerMinute: null
      }
    )
    const limits = { maxCalls: 9, maxConcurrency: 2, requestsPerMinute: 3, tokensPerMinute: 4 }
    changes({ _tag: "Set", ...limits }, limits)
  })

  it("keeps the cap above what is counted: just that much is allowed", () => {
    changes({ _tag: "Set", cap: Usd.nano(325) }, { cap: Usd.nano(325) })
    refuses({ _tag: "Set", cap: Usd.nano(324) }, "below_counted")
  })

  it("queues rows again that are as they were read; a run that was done waits for a resume", () => {
    const rows = [
      { seq: 1, epoch: 0, kind: "done" },
      { seq: 2, epoch: 3, kind: "failed" },
      { seq: 3, epoch: 1, kind: "partial" }
    ] as const
    const order: Order = { _tag: "Requeue", rows }
    const counts = { done: 2, failed: 0, reruns: 9 }
    const rerun = [
      { runId: "run", seq: 1, epoch: 1 },
      { runId: "run", seq: 2, epoch: 4 }
    ]
    for (const [from, parts] of [
      [book, {}],
      [done, { status: "suspended", reason: { kind: "operator", message: "rows were queued again" } }]
    ] as const) {
      const { verdicts, writes } = decided([op(order)], { books: [from], epochs })
      assert.deepStrictEqual([verdicts, writes.epochs], [[numbered(5)], rerun])
      // Written as it was carried out: row 3 was in another epoch by then.
      assert.deepStrictEqual(writes.orders[0]?.order, { ...order, rows: rows.slice(0, 2) })
      assert.deepStrictEqual(writes.books, booksOf({ ...from, ...counts, ...parts, orders: 5 }))
    }
  })
})

describe("A run", () => {
  it("that was done stays so where nothing was queued", () => {
    const rows = [{ seq: 3, epoch: 1, kind: "partial" }] as const
    const { writes } = decided([op({ _tag: "Requeue", rows })], { books: [done], epochs })
    assert.strictEqual(writes.books.get("run")?.status, "done")
  })

  it("that was given up stays so, whatever its worker writes", () => {
    const given = { ...cancelled, reason: { kind: "cancelled", message: "cancelled by ada" } } as const
    const fence = { runId: "run", worker: 1 }
    const changes = { added: [], changed: [], again: [], removed: [], source: "{}" }
    const snapshot = { _tag: "RunSnapshot", fence, keep: "all", at: 1 } as const
    const ops: ReadonlyArray<Op> = [
      { _tag: "Reopen", fence, rows: [{ seq: 1, epoch: 0, kind: "done" }] },
      { _tag: "Unload", fence, discard: false },
      { _tag: "Load", fence, rows: [], filtered: 0, last: true },
      { _tag: "Status", fence, status: "running", reason: null },
      { _tag: "Refresh", fence, changes },
      { ...snapshot, status: "SUSPENDED" }
    ]
    for (const one of ops) {
      const after = decided([one], { books: [given], epochs }).writes.books.get("run")
      assert.deepStrictEqual([after?.status, after?.reason], ["cancelled", given.reason], one._tag)
    }
  })

  it("whose orders are not all heard takes no limits and no changes of its source", () => {
    const fence = { runId: "run", worker: 1 }
    const changes = { added: [], changed: [], again: [], removed: [], source: "{}" }
    for (const one of [
      { _tag: "Limits", fence, limits: { maxCalls: 1 } },
      { _tag: "Refresh", fence, changes }
    ] as const) {
      const verdict = (heard: number) => decided([{ ...one, heard }], { books: [book] }).verdicts
      assert.deepStrictEqual(verdict(3), [refused("unheard")])
      assert.deepStrictEqual(verdict(4), [ok])
    }
  })
})

describe("A hold", () => {
  const hold: Op = { _tag: "Hold", hold: holdOf("run", 1, 1) }

  it("is refused while the run is paused, whoever paused it, and once it was given up", () => {
    for (const by of ["operator", "canary", "detector"] as const) {
      const { verdicts, writes } = decided([hold], { books: [pausedBy(by)] })
      assert.deepStrictEqual([verdicts, writes], [[refused("paused")], writesOf()])
    }
    assert.deepStrictEqual(decided([hold], { books: [cancelled] }).verdicts, [refused("cancelled")])
    assert.deepStrictEqual(decided([hold], { books: [book] }).verdicts, [ok])
  })

  it("obeys an order of the same group that came before it", () => {
    const orders = [hold, op(pause("operator")), { ...hold, hold: holdOf("run", 2, 1) }] as const
    assert.deepStrictEqual(decided(orders, { books: [book] }).verdicts, [ok, numbered(5), refused("paused")])
  })
})

describe("As they are kept", () => {
  it("orders, pauses and canaries are read as they were written; what is none of them is an error", () => {
    const orders: ReadonlyArray<Order> = [
      ...all,
      { _tag: "Set", cap: Usd.nano(5), maxCalls: 1, maxConcurrency: 2, requestsPerMinute: 3, tokensPerMinute: 4 },
      { _tag: "Set", cap: null, maxCalls: null, requestsPerMinute: null, tokensPerMinute: null },
      { _tag: "Requeue", rows: [{ seq: 1, epoch: 2, kind: "partial" }] }
    ]
    const read = Schema.decodeUnknownEither(Schema.parseJson(Orders.Order))
    for (const order of orders) assert.deepStrictEqual(read(JSON.stringify(order)), Either.right(order))
    const [isPause, isCanary] = [Schema.is(Orders.Pause), Schema.is(Orders.Canary)]
    assert.deepStrictEqual(
      [isPause({ by: "canary", message: "why" }), isPause({ by: "nobody", message: "why" }), isPause({})],
      [true, false, false]
    )
    assert.deepStrictEqual([isCanary({ rows: 5, over: true }), isCanary({ rows: 5 })], [true, false])
    for (const bad of [
      { _tag: "Set", cap: -1 },
      { _tag: "Requeue", rows: [{ seq: 1 }] },
      { _tag: "Pause", by: "operator" }
    ])
      assert.isTrue(Either.isLeft(read(JSON.stringify(bad))))
  })
})
