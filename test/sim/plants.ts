/** Bugs that lose money, planted between the journal and its database: what was decided is changed before it is applied. */
import { Effect } from "effect"
import type { Book, CallRecord, Facts, Writes } from "../../src/services/Book.ts"
import type { Driver } from "../../src/services/Journal.ts"
import { Usd } from "../../src/services/Usd.ts"

const withBooks = (facts: Facts, change: (book: Book) => Book): Facts => ({
  ...facts,
  books: new Map([...facts.books].map(([id, book]) => [id, change(book)]))
})

/** The calls of a group, changed, and its book changed by what they cost less. */
const withCalls = (writes: Writes, change: (call: CallRecord) => CallRecord | undefined): Writes => {
  const calls = writes.calls.flatMap((call) => change(call) ?? [])
  const lost = (state: CallRecord["state"]) => costOf(writes.calls, state) - costOf(calls, state)
  const less = (book: Book): Book => ({
    ...book,
    spent: Usd.nano(book.spent - lost("settled")),
    uncertain: Usd.nano(book.uncertain - lost("uncertain"))
  })
  return { ...writes, calls, books: new Map([...writes.books].map(([id, book]) => [id, less(book)])) }
}

const costOf = (calls: ReadonlyArray<CallRecord>, state: CallRecord["state"]): number =>
  calls.reduce((sum, call) => sum + (call.state === state ? call.cost : 0), 0)

const changing =
  (change: (call: CallRecord) => CallRecord | undefined) =>
  (driver: Driver): Driver => ({
    ...driver,
    transact: (needs, decide) => driver.transact(needs, (facts) => withCalls(decide(facts), change))
  })

const NO_CAP = 2 ** 50

/**
 * The cap is compared with what is spent, as a guard before the call would. Admission, which holds the cap too, is led by a book that names none: so it is seen from the
 * second process on.
 */
const guardOnly = (driver: Driver): Driver => ({
  ...driver,
  reads: {
    ...driver.reads,
    book: (id) =>
      Effect.map(driver.reads.book(id), (book) => (book === undefined ? book : { ...book, cap: Usd.nano(NO_CAP) }))
  },
  transact: (needs, decide) =>
    driver.transact(needs, (facts) => {
      const isOpen = (book: Book | undefined) => book !== undefined && book.cap !== null && book.spent < book.cap
      const raised = withBooks(facts, (book) => (isOpen(book) ? { ...book, cap: Usd.nano(NO_CAP) } : book))
      const writes = decide(raised)
      const kept = (book: Book): Book =>
        book.cap === NO_CAP ? { ...book, cap: facts.books.get(book.runId)?.cap ?? null } : book
      return { ...writes, books: new Map([...writes.books].map(([id, book]) => [id, kept(book)])) }
    })
})

/** A dead worker's calls are forgotten when its run is taken over. */
const forgotten = changing((call) => (call.reason === "crash" ? undefined : call))

/** Each answer costs a nano-dollar less than it should. */
const undercharged = changing((call) =>
  call.state === "settled" && call.cost > 0 ? { ...call, cost: Usd.nano(call.cost - 1) } : call
)

export const plants: ReadonlyMap<string, (driver: Driver) => Driver> = new Map([
  ["1", guardOnly],
  ["2", forgotten],
  ["3", undercharged]
])
