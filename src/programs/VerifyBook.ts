/**
 * What must hold of a run's book at every commit, and at its end, next to the provider's own bill. It keeps a count of its own, by what is written. Internal to Verify.
 *
 * @since 0.1.0
 */
import type { Book, CallRecord, HoldRecord, OutcomeRecord, WorkerRecord, Writes } from "../services/Book.ts"
import { callId } from "../services/Book.ts"
import type { Usd } from "../services/Usd.ts"

/** What the provider billed, in pico-dollars. @since 0.1.0 */
export interface Bill {
  readonly bill: () => number
  readonly sent: () => number
  readonly billOf: (requestId: string) => number | undefined
}

/** @since 0.1.0 */
export interface BookChecks {
  /** Called with all that is written, before the next operation is decided. */
  readonly committed: (writes: Writes) => void
  /** Called when a call was sent: so many are in flight now. `request`: its hash; `cost`: what it is billed, in pico-dollars. */
  readonly sent: (live: number, request: string, cost: number) => void
  /** Called when a process ended by itself. */
  readonly quiet: () => void
  /** Called when the run is done. */
  readonly done: () => void
  readonly book: () => Book | undefined
  readonly versions: () => number
}

/**
 * The checks of one run. `broken` is told each thing that does not hold.
 *
 * @since 0.1.0
 */
export const make = (provider: Bill, concurrency: number, broken: (what: string) => void): BookChecks => {
  let book: Book | undefined
  const holds = new Map<string, HoldRecord>()
  const sums = { held: 0, settled: 0, uncertain: 0 }
  const answers = new Set<string>()
  /** By request: what its calls count, in nano-dollars, and what they were billed, in pico-dollars. */
  const counts = new Map<string, number>()
  const bills = new Map<string, number>()
  const epochs = new Map<number, number>()
  const ended = new Map<number, number>()
  let commitSeq = 0
  let version = 0
  let reach = 0

  const check = (held: boolean, what: () => string) => {
    if (!held) broken(what())
  }

  const count = (of: HoldRecord, nanos: number): void => {
    const request = plain(of.request)
    counts.set(request, (counts.get(request) ?? 0) + nanos)
  }
  const covered = (request: string): void => {
    const [bill, counted] = [bills.get(request) ?? 0, counts.get(request) ?? 0]
    check(bill <= counted * 1000, () => `a request was billed ${nano(bill)}, and its calls count only ${counted}`)
  }

  const called = (call: CallRecord): void => {
    count(call, call.cost)
    if (call.state === "settled") sums.settled += call.cost
    if (call.state === "uncertain") sums.uncertain += call.cost
    const billed = call.requestId === null ? undefined : provider.billOf(call.requestId)
    if (billed !== undefined) {
      check(
        billed <= call.cost * 1000,
        () => `a call was billed ${nano(billed)} and counts only ${call.cost} nano-dollars (${placeOf(call)})`
      )
    }
    if (call.answer === null || call.state === "released") return
    const key = `${call.seq}/${call.epoch}/${call.turn}/${call.request}`
    check(!answers.has(key), () => `an answer that is in the book was paid for again (${placeOf(call)})`)
    answers.add(key)
  }

  const ends = (outcome: OutcomeRecord): void => {
    const { epoch, seq } = outcome
    check(ended.get(seq) !== epoch, () => `row ${seq} got a second outcome in epoch ${epoch}`)
    check(epoch === (epochs.get(seq) ?? 0), () => `row ${seq} got an outcome in epoch ${epoch}, which is not its own`)
    check(outcome.commitSeq === ++commitSeq, () => `outcome ${outcome.commitSeq} follows outcome ${commitSeq - 1}`)
    ended.set(seq, epoch)
  }

  const money = (now: Book): void => {
    const counted = now.spent + now.uncertain + now.held
    check(now.held === sums.held, () => `held is ${now.held}, and the open holds are ${sums.held}`)
    check(now.spent === sums.settled, () => `spent is ${now.spent}, and the settled calls cost ${sums.settled}`)
    check(now.uncertain === sums.uncertain, () => `uncertain is ${now.uncertain}, and such calls ${sums.uncertain}`)
    check(
      now.cap === null || counted <= now.cap,
      () => `spent + uncertain + held is ${counted}, above the cap of ${now.cap}`
    )
    billed(now)
  }
  const billed = (now: Book): void => {
    const counted = now.spent + now.uncertain + now.held
    check(
      provider.bill() <= counted * 1000,
      () => `the bill is ${nano(provider.bill())}, and spent + uncertain + held only ${counted} nano-dollars`
    )
  }

  return {
    committed: (writes) => {
      for (const [, written] of writes.books) book = written
      for (const { discard } of writes.unloads) if (discard) book = undefined
      for (const { epoch, seq } of writes.epochs) epochs.set(seq, epoch)
      for (const [id, record] of writes.holds) {
        holds.set(id, record)
        sums.held += record.amount
        count(record, record.amount)
      }
      for (const record of writes.closed) {
        check(holds.delete(callId(record)), () => `a hold was closed that was not open (${placeOf(record)})`)
        sums.held -= record.amount
        count(record, -record.amount)
      }
      for (const call of writes.calls) called(call)
      for (const { request } of [...writes.closed, ...writes.calls]) covered(plain(request))
      for (const outcome of writes.outcomes) ends(outcome)
      for (const checkpoint of writes.checkpoints) {
        check(checkpoint.version === ++version, () => `version ${checkpoint.version} follows version ${version - 1}`)
        check(checkpoint.uptoCommitSeq >= reach, () => `version ${version} covers less than the one before`)
        reach = checkpoint.uptoCommitSeq
      }
      check(writes.workers.filter(isLive).length <= 1, () => "two workers were given one claim")
      check(holds.size <= concurrency, () => `${holds.size} holds are open, and ${concurrency} calls may be in flight`)
      if (book === undefined) return
      money(book)
      const now = book
      const rows = [...ended].filter(([seq, epoch]) => epoch === (epochs.get(seq) ?? 0)).length
      check(rows === endedOf(now), () => `${endedOf(now)} rows have ended by the book, and ${rows} by their outcomes`)
    },
    sent: (live, request, cost) => {
      bills.set(request, (bills.get(request) ?? 0) + cost)
      covered(request)
      check(live <= concurrency, () => `${live} calls are in flight, and ${concurrency} are allowed`)
      check(live <= holds.size, () => `${live} calls are in flight over ${holds.size} holds`)
      if (book === undefined) broken("a call was sent before there was a run")
      else billed(book)
    },
    quiet: () => {
      check(holds.size === 0 && (book?.held ?? 0) === 0, () => `the run stopped, and ${book?.held ?? 0} is held`)
    },
    done: () => {
      if (book === undefined) return broken("the run is done and not in the book")
      const now = book
      check(endedOf(now) === now.rows, () => `the run is done, and ${now.rows - endedOf(now)} rows are pending`)
      check(now.calls === equation(now), () => `${now.calls} calls were counted, and they add up to ${equation(now)}`)
      check(
        provider.sent() <= now.calls,
        () => `the provider got ${provider.sent()} calls, and ${now.calls} were counted`
      )
    },
    book: () => book,
    versions: () => version
  }
}

const endedOf = ({ done, failed, partial }: Book): number => done + partial + failed

/** See Report.Totals. */
const equation = (book: Book): number =>
  book.rows + book.reruns - book.unasked - book.storeHits - book.memoHits - book.replays + book.retries + book.repairs

/** A fallback's calls are its row's too. */
const plain = (request: string): string => request.split("@")[0] ?? request
const isLive = ({ live }: WorkerRecord): boolean => live
const nano = (pico: number): string => `${pico / 1000} nano-dollars`
const placeOf = (call: {
  readonly seq: number
  readonly turn: number
  readonly attempt: number
  readonly amount: Usd
}) => `row ${call.seq}, turn ${call.turn}, attempt ${call.attempt}, hold ${call.amount}`
