/** The rule of the book, but for the money (see Ledger.test.ts): for each operation, what must be read, and the whole of what is written. */
import { assert, describe, it } from "@effect/vitest"
import {
  type Book,
  type CallId,
  callId,
  needs,
  type Op,
  type OutcomeFacts,
  type OutcomeRecord,
  type RowId,
  type RowRecord,
  withLimits
} from "../../src/services/Book.ts"
import { Usd } from "../../src/services/Usd.ts"
import { booksOf, decided, fenced, ok, refused, writesOf } from "../support/decided.ts"
import { bookOf, buriedOf, holdOf, workerOf } from "../support/records.ts"

const fence = { runId: "run", worker: 1 }
const sign = { phase: "cooling", allowed: 3 } as const
const book = bookOf("run", {
  rows: 60,
  filtered: 3,
  done: 20,
  partial: 10,
  failed: 5,
  reruns: 2,
  commitSeq: 37,
  storeHits: 11,
  memoHits: 12,
  replays: 13,
  repairs: 14,
  unasked: 15,
  chunkSize: 10,
  spent: Usd.nano(100),
  uncertain: Usd.nano(50),
  calls: 40
})
const rowOf = (seq: number): RowRecord => ({
  runId: "run",
  seq,
  id: `id-${seq}`,
  version: "",
  line: seq + 1,
  value: "{}",
  epoch: 0
})
const outcomeOf = (seq: number, kind: OutcomeRecord["kind"], epoch = 0): OutcomeRecord => ({
  runId: "run",
  seq,
  epoch,
  commitSeq: seq,
  kind,
  category: "",
  key: `key-${seq}`,
  fallback: false,
  made: "",
  value: "{}"
})
/** The present epochs of the rows that are run again below. */
const epochs = { 1: 0, 2: 3, 3: 0, 4: 0 }
const writes = (op: Op, parts: Parameters<typeof writesOf>[0], from: Book = book) =>
  assert.deepStrictEqual(decided([op], { books: [from], epochs }), { verdicts: [ok], writes: writesOf(parts) })
const changed = (parts: Partial<Book>, from: Book = book) => ({ books: booksOf({ ...from, ...parts }) })

const hold = holdOf("held", 3, 10)
const correction = {
  ...fence,
  runId: "corrected",
  n: 3,
  source: "report",
  cost: Usd.nano(1),
  answer: null,
  note: "",
  at: 9,
  inputTokens: 0,
  cachedTokens: 0,
  cacheWriteTokens: 0,
  outputTokens: 0,
  reasoningTokens: 0
} as const
const facts: OutcomeFacts = {
  storeHit: false,
  memoHits: 0,
  replays: 0,
  freeRepairs: 0,
  unasked: false,
  fallback: false
}
const usage = { inputTokens: 0, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 0, reasoningTokens: 0 }
const close = { usage, cost: Usd.zero, answer: null, finish: null, requestId: null, reason: "", at: 9 }
const snapshot = { status: "RUNNING", state: `{"a":1}`, metadata: `{"m":1}`, keep: "all", at: 9 } as const
const runSnapshot: Extract<Op, { _tag: "RunSnapshot" }> = {
  _tag: "RunSnapshot",
  fence,
  status: "RUNNING",
  keep: "all",
  at: 9
}

describe("What must be read", () => {
  const read = (
    op: Op,
    runs: ReadonlyArray<string>,
    parts: {
      readonly checkpoints?: ReadonlyArray<string>
      readonly claims?: ReadonlyArray<string>
      readonly uncertain?: ReadonlyArray<CallId>
      readonly rows?: ReadonlyArray<RowId>
      readonly pools?: ReadonlyArray<string>
    } = {}
  ) =>
    assert.deepStrictEqual(
      needs([op]),
      {
        runs: new Set(runs),
        pools: new Set(parts.pools),
        checkpoints: new Set(parts.checkpoints),
        claims: new Set(parts.claims),
        uncertain: [...(parts.uncertain ?? [])],
        rows: [...(parts.rows ?? [])]
      },
      op._tag
    )

  it("the run of every operation that writes to one, the workers and holds only of a run that is claimed", () => {
    read({ _tag: "Create", book: bookOf("created") }, ["created"])
    read({ _tag: "Claim", worker: workerOf("claimed"), dead: [], lost: Usd.zero }, ["claimed"], { claims: ["claimed"] })
    read({ _tag: "Hold", hold }, ["held"])
    read({ _tag: "Settle", hold, close }, ["held"])
    read({ _tag: "Uncertain", hold, reason: "", answer: null, requestId: null, at: 9 }, ["held"])
    read({ _tag: "Release", hold, reason: "", sent: true, at: 9 }, ["held"])
    read({ _tag: "Correct", correction }, ["corrected"], { uncertain: [correction] })
    read({ _tag: "Beat", fence, at: 9, sign }, ["run"])
    read({ _tag: "Outcome", fence, outcome: outcomeOf(1, "done"), facts }, ["run"])
  })

  it("the latest version of what is snapshot or dropped; nothing for the store and for a barrier", () => {
    read(runSnapshot, ["run"], { checkpoints: ["run"] })
    read({ _tag: "Snapshot", id: "own", ...snapshot }, [], { checkpoints: ["own"] })
    read({ _tag: "DropCheckpoints", id: "own" }, [], { checkpoints: ["own"] })
    read({ _tag: "Put", entries: [["key", "1"]], replace: false }, [])
    read({ _tag: "Barrier" }, [])
  })
})

describe("A run", () => {
  it("is created once: not over one in the database, not twice in a group", () => {
    const op: Op = { _tag: "Create", book }
    assert.deepStrictEqual(decided([op, op], {}), {
      verdicts: [ok, refused("exists")],
      writes: writesOf({ created: new Set(["run"]), ...changed({}) })
    })
    assert.deepStrictEqual(decided([op], { books: [book] }), { verdicts: [refused("exists")], writes: writesOf() })
  })

  it("is loaded in parts: it runs when the last one is there", () => {
    const rows = [rowOf(60), rowOf(61)]
    const load = (last: boolean): Op => ({ _tag: "Load", fence, rows, filtered: 4, last })
    writes(load(false), { rows, ...changed({ rows: 62, filtered: 7, status: "loading" }) })
    writes(load(true), { rows, ...changed({ rows: 62, filtered: 7, status: "running" }) })
  })

  it("is unloaded, to be loaded anew; one that counts money is not discarded", () => {
    for (const discard of [true, false]) {
      const parts = changed({ rows: 0, filtered: 0, status: "loading" })
      writes({ _tag: "Unload", fence, discard }, { unloads: [{ runId: "run", discard: false }], ...parts })
    }
  })

  it("hears that its worker lives, and that it goes", () => {
    writes({ _tag: "Beat", fence, at: 9, sign }, { beats: [{ ...fence, at: 9, sign }] })
    writes({ _tag: "Quit", fence }, { workers: [buriedOf("run")] })
  })

  it("gets a status and a reason; what was kept is counted", () => {
    const reason = { kind: "operator", message: "asked" } as const
    writes({ _tag: "Status", fence, status: "suspended", reason }, changed({ status: "suspended", reason }))
    writes({ _tag: "Kept", fence, rows: 6 }, changed({ kept: 6 }))
  })

  it("gets new limits: null lifts one, and what is not said stays", () => {
    const old = bookOf("run", { cap: Usd.nano(5), maxCalls: 6, maxConcurrency: 7, settings: "old" })
    assert.deepStrictEqual(withLimits(old, {}), old)
    const none = { cap: null, maxCalls: null }
    assert.deepStrictEqual(withLimits(old, none), { ...old, ...none })
    const limits = { cap: Usd.nano(1), maxCalls: 2, maxConcurrency: 3, settings: "new" }
    assert.deepStrictEqual(withLimits(old, limits), { ...old, ...limits })
    writes({ _tag: "Limits", fence, limits }, changed(limits))
  })

  it("hears nothing from a worker that is not live", () => {
    const stale = { runId: "run", worker: 2 }
    const ops: ReadonlyArray<Op> = [
      { _tag: "Load", fence: stale, rows: [rowOf(60)], filtered: 0, last: true },
      { _tag: "Outcome", fence: stale, outcome: outcomeOf(1, "done"), facts },
      { ...runSnapshot, fence: stale }
    ]
    assert.deepStrictEqual(decided(ops, { books: [book] }), {
      verdicts: [fenced, fenced, fenced],
      writes: writesOf()
    })
    assert.deepStrictEqual(
      decided([{ _tag: "Beat", fence, at: 9, sign }], {}).verdicts,
      [fenced],
      "a run that is not there"
    )
  })
})

describe("An outcome", () => {
  it("is numbered, and counted by its kind", () => {
    for (const [kind, counted] of [
      ["done", { done: 21 }],
      ["partial", { partial: 11 }],
      ["failed", { failed: 6 }]
    ] as const) {
      const { commitSeq: _, ...outcome } = outcomeOf(1, kind)
      writes(
        { _tag: "Outcome", fence, outcome, facts },
        { outcomes: [{ ...outcome, commitSeq: 38 }], ...changed({ commitSeq: 38, ...counted }) }
      )
    }
  })

  it("I22: says what it cost no call: store, memo, replays, repairs that were free, a row that was not asked", () => {
    const free = { storeHit: true, memoHits: 2, replays: 3, freeRepairs: 4, unasked: true, fallback: false }
    const { books } = decided([{ _tag: "Outcome", fence, outcome: outcomeOf(1, "done"), facts: free }], {
      books: [book]
    }).writes
    const counts = { storeHits: 12, memoHits: 14, replays: 16, repairs: 18, unasked: 16 }
    assert.deepStrictEqual(books, booksOf({ ...book, done: 21, commitSeq: 38, ...counts }))
  })

  it("two in one group get two numbers", () => {
    const op = (seq: number): Op => ({ _tag: "Outcome", fence, outcome: outcomeOf(seq, "done"), facts })
    const { writes } = decided([op(1), op(2)], { books: [book] })
    // The writer's own number counts, whatever the record that comes in says.
    assert.strictEqual(writes.books.get("run")?.commitSeq, 39)
    assert.strictEqual(writes.books.get("run")?.done, 22)
  })
})

describe("Rows are run again", () => {
  const again = [outcomeOf(1, "done"), outcomeOf(2, "failed", 3), outcomeOf(3, "failed"), outcomeOf(4, "partial")]

  it("reopened: each in an epoch of its own, no longer counted by its kind, and the run runs", () => {
    writes(
      { _tag: "Reopen", fence, rows: again },
      {
        epochs: [
          { runId: "run", seq: 1, epoch: 1 },
          { runId: "run", seq: 2, epoch: 4 },
          { runId: "run", seq: 3, epoch: 1 },
          { runId: "run", seq: 4, epoch: 1 }
        ],
        ...changed({ done: 19, failed: 3, partial: 9, reruns: 6, status: "running", reason: null })
      },
      { ...book, status: "done", reason: { kind: "operator", message: "asked" } }
    )
  })

  it("not where somebody else was first: the row is in another epoch by now, or another one of this group took it", () => {
    const known = { books: [book], epochs: { ...epochs, 2: 4 } }
    const op: Op = { _tag: "Reopen", fence, rows: again }
    const { writes } = decided([op, op], known)
    assert.deepStrictEqual(
      writes.epochs.map(({ epoch, seq }) => [seq, epoch]),
      [
        [1, 1],
        [3, 1],
        [4, 1]
      ]
    )
    const after = writes.books.get("run")
    assert.deepInclude(after, { done: 19, failed: 4, partial: 9, reruns: 5 })
  })

  it("refreshed: rows come, change and go, and the run is suspended until they are done", () => {
    const ended = { ...book, status: "done" } as const
    const changes = {
      added: [rowOf(60), rowOf(61), rowOf(62)],
      changed: [rowOf(1)],
      removed: [rowOf(40)],
      again,
      source: "new"
    }
    writes(
      { _tag: "Refresh", fence, changes },
      {
        rows: changes.added,
        changed: changes.changed,
        removed: changes.removed,
        ...changed(
          {
            done: 19,
            failed: 3,
            partial: 9,
            reruns: 6,
            rows: 62,
            source: "new",
            status: "suspended",
            reason: { kind: "operator", message: "rows were added or changed" }
          },
          ended
        )
      },
      ended
    )
  })

  it("refreshed without a row left to do: its status stays", () => {
    const reason = { kind: "operator", message: "asked" } as const
    const whole = { ...book, rows: 36, status: "done", reason } as const
    const changes = { added: [], changed: [], removed: [rowOf(40)], again: [], source: "new" }
    writes(
      { _tag: "Refresh", fence, changes },
      { removed: changes.removed, ...changed({ rows: 35, source: "new" }, whole) },
      whole
    )
  })
})

describe("A snapshot", () => {
  const record = {
    id: "own",
    version: 8,
    uptoCommitSeq: 0,
    status: "RUNNING",
    state: `{"a":1}`,
    metadata: `{"m":1}`,
    at: 9
  } as const
  const known = { books: [book], versions: { own: 7, run: 7 } }
  const version = (n: number) => ({ _tag: "Version", version: n }) as const
  const own: Op = { _tag: "Snapshot", id: "own", ...snapshot }

  it("I9: gets the next version; two of one group get two, the first of an id is 1", () => {
    assert.deepStrictEqual(decided([own, own], known), {
      verdicts: [version(8), version(9)],
      writes: writesOf({ checkpoints: [record, { ...record, version: 9 }] })
    })
    assert.deepStrictEqual(decided([own], {}).verdicts, [version(1)])
  })

  it("I24: prunes what is older than the latest n; at least itself stays", () => {
    const pruned = (keep: number, op: Op = { _tag: "Snapshot", id: "own", ...snapshot, keep }) =>
      decided([op], known).writes.prunes
    assert.deepStrictEqual(pruned(3), [{ id: "own", upto: 5, all: false }])
    assert.deepStrictEqual(pruned(1), [{ id: "own", upto: 7, all: false }])
    assert.deepStrictEqual(pruned(0), [{ id: "own", upto: 7, all: false }])
  })

  it("I24: dropping takes what is there by now, also what this group wrote before, and not what it writes after", () => {
    const drop: Op = { _tag: "DropCheckpoints", id: "own" }
    const { verdicts, writes } = decided([own, drop, own], known)
    assert.deepStrictEqual(verdicts, [version(8), ok, version(9)])
    assert.deepStrictEqual(writes.prunes, [{ id: "own", upto: 8, all: true }])
    assert.deepStrictEqual(decided([drop], {}).writes.prunes, [{ id: "own", upto: 0, all: true }])
  })

  const progress = { nextChunk: 4, rows: 60, done: 20, partial: 10, failed: 5, spent: 100, uncertain: 50, calls: 40 }
  const ofRun = { ...record, id: "run", uptoCommitSeq: 37, state: JSON.stringify(progress), metadata: "{}" }

  it("of a run holds its counts and its reach, and leaves its status", () => {
    assert.deepStrictEqual(decided([runSnapshot], known), {
      verdicts: [version(8)],
      writes: writesOf({ checkpoints: [ofRun] })
    })
  })

  it("of a run that ends is its end: done without a reason, suspended with one if there is one", () => {
    const reason = { kind: "operator", message: "asked" } as const
    const before = { ...book, rows: 35, reason: { kind: "budget", message: "the cap" } } as const
    for (const [op, parts] of [
      [
        { ...runSnapshot, status: "DONE", reason },
        { status: "done", reason: null }
      ],
      [
        { ...runSnapshot, status: "SUSPENDED", reason },
        { status: "suspended", reason }
      ],
      [
        { ...runSnapshot, status: "SUSPENDED" },
        { status: "suspended", reason: null }
      ]
    ] as const) {
      assert.deepStrictEqual(decided([op], { ...known, books: [before] }), {
        verdicts: [version(8)],
        writes: writesOf({
          checkpoints: [{ ...ofRun, state: ofRun.state.replace('"rows":60', '"rows":35'), status: op.status }],
          ...changed(parts, before)
        })
      })
    }
  })

  describe("The end of a run", () => {
    const status = (op: Op, from: Book) => {
      const { verdicts, writes } = decided([op], { ...known, books: [from] })
      return [verdicts[0], writes.books.get("run")?.status] as const
    }
    const isRefused = (reason: "pending" | "unheard") => [{ _tag: "Refused", reason }, undefined] as const

    it("is no end where rows are pending", () => {
      assert.deepStrictEqual(status({ ...runSnapshot, status: "DONE" }, { ...book, rows: 36 }), isRefused("pending"))
    })

    it("waits for an order that its worker has not heard", () => {
      const from = { ...book, rows: 35, orders: 2 }
      const suspended: Op = { ...runSnapshot, status: "SUSPENDED" }
      assert.deepStrictEqual(status({ ...suspended, heard: 1 }, from), isRefused("unheard"))
      assert.deepStrictEqual(status({ ...suspended, heard: 2 }, from), [version(8), "suspended"])
      assert.deepStrictEqual(status(suspended, from), [version(8), "suspended"])
    })

    it("ends a pause with it", () => {
      const paused = { ...book, rows: 35, paused: { by: "operator", message: "lunch" } } as const
      const { writes } = decided([{ ...runSnapshot, status: "DONE" }], { ...known, books: [paused] })
      assert.deepInclude(writes.books.get("run"), { status: "done", paused: null })
    })
  })
})

describe("What belongs to no run", () => {
  it("the store's entries are written as they are; a barrier writes nothing", () => {
    const put: Extract<Op, { _tag: "Put" }> = { _tag: "Put", entries: [["key", "1"]], replace: true }
    assert.deepStrictEqual(decided([put, { _tag: "Barrier" }], {}), {
      verdicts: [ok, ok],
      writes: writesOf({ puts: [put] })
    })
  })

  it("a call's text tells calls apart by run, worker and number", () => {
    const ids = [
      { runId: "run", worker: 1, n: 12 },
      { runId: "run", worker: 11, n: 2 },
      { runId: "run1", worker: 1, n: 2 }
    ]
    assert.strictEqual(new Set(ids.map(callId)).size, 3)
  })
})
