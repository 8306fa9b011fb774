/** What the rule of the book says of a group of operations, on facts that are written out. */
import {
  type Book,
  callId,
  decide,
  type Facts,
  type HoldRecord,
  type Op,
  type Pool,
  type Verdict,
  type Writes
} from "../../src/services/Book.ts"
import type { Usd } from "../../src/services/Usd.ts"

export const ok: Verdict = { _tag: "Ok" }
export const fenced: Verdict = { _tag: "Fenced" }
export const refused = (reason: Extract<Verdict, { _tag: "Refused" }>["reason"]): Verdict => ({
  _tag: "Refused",
  reason
})

interface Known {
  readonly books?: ReadonlyArray<Book>
  /** The live workers of every book; default: 1. */
  readonly live?: ReadonlyArray<number>
  readonly versions?: Readonly<Record<string, number>>
  readonly holds?: ReadonlyArray<HoldRecord>
  readonly workers?: Readonly<Record<string, number>>
  readonly uncertain?: ReadonlyArray<readonly [call: HoldRecord, counted: Usd]>
  /** The present epochs of rows of the first book, by `seq`. */
  readonly epochs?: Readonly<Record<number, number>>
  readonly pools?: ReadonlyArray<Pool>
}

export const factsOf = ({
  books = [],
  live = [1],
  versions = {},
  holds = [],
  workers = {},
  uncertain = [],
  epochs = {},
  pools = []
}: Known): Facts => ({
  books: new Map(books.map((book) => [book.runId, book])),
  pools: new Map(pools.map((pool) => [pool.id, pool])),
  live: new Map(books.map((book) => [book.runId, new Set(live)])),
  versions: new Map(Object.entries(versions)),
  holds: new Map(books.map((book) => [book.runId, holds.filter((hold) => hold.runId === book.runId)])),
  workers: new Map(Object.entries(workers)),
  uncertain: new Map(uncertain.map(([call, counted]) => [callId(call), counted])),
  epochs: new Map(Object.entries(epochs).map(([seq, epoch]) => [`${books[0]?.runId}/${seq}`, epoch]))
})

/** All that a group writes: nothing but the parts. */
export const writesOf = (parts: Partial<Writes> = {}): Writes => ({
  books: new Map(),
  created: new Set(),
  pools: new Map(),
  workers: [],
  beats: [],
  unloads: [],
  rows: [],
  changed: [],
  removed: [],
  epochs: [],
  orders: [],
  holds: new Map(),
  closed: [],
  calls: [],
  corrections: [],
  outcomes: [],
  checkpoints: [],
  prunes: [],
  puts: [],
  ...parts
})

export const decided = (ops: ReadonlyArray<Op>, known: Known) => decide(ops, factsOf(known))

/** A book, by its run, as the writes hold it. */
export const booksOf = (...books: ReadonlyArray<Book>): Writes["books"] =>
  new Map(books.map((book) => [book.runId, book]))
export const holdsOf = (...holds: ReadonlyArray<HoldRecord>): Writes["holds"] =>
  new Map(holds.map((hold) => [callId(hold), hold]))
