/** What a run's database says, read from outside, and what must be true of it and the provider's bill, whenever the process was killed. */
import { existsSync } from "node:fs"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect } from "effect"
import type { Bill } from "../support/startFakeProvider.ts"

type Part = Readonly<Record<string, number>>
type Parts = Readonly<Record<"run" | "calls" | "holds" | "twice" | "outcomes" | "versions", Part>>

/** `sound`: what SQLite's own check says; "ok" if the file is whole. */
export interface Book extends Parts {
  readonly sound: string
}

const none: Book = { run: {}, calls: {}, holds: {}, twice: {}, outcomes: {}, versions: {}, sound: "ok" }

/** `reason` of a call says how it became uncertain: by the kill, or because no answer came in time. */
const statements = {
  run: "select * from run",
  calls: `select coalesce(sum(case when state = 'settled' then cost else 0 end), 0) settled,
    coalesce(sum(case when state = 'uncertain' then cost else 0 end), 0) uncertain,
    coalesce(sum(reason = 'crash'), 0) crashes, coalesce(sum(reason = 'timeout'), 0) timeouts from call`,
  holds: "select count(*) n, coalesce(sum(amount), 0) amount from hold",
  twice: `select count(*) n from (select 1 from call where answer is not null and state = 'settled'
    group by seq, epoch, turn, request having count(*) > 1)`,
  outcomes: "select count(*) n, count(distinct seq) seqs from outcome",
  versions: "select count(*) n, coalesce(max(version), 0) last from checkpoint"
} as const

/** Empty if the process was killed before it made the database or its tables. */
export const read = (db: string): Promise<Book> =>
  !existsSync(db)
    ? Promise.resolve(none)
    : Effect.gen(function* () {
        const sql = yield* SqliteClient.SqliteClient
        const [check] = yield* sql.unsafe<{ readonly integrity_check: string }>("pragma integrity_check")
        const sound = check?.integrity_check ?? "no answer"
        const made = yield* sql.unsafe("select 1 from sqlite_master where name = 'store'")
        if (made.length === 0) return { ...none, sound }
        const one = (statement: string) =>
          Effect.map(sql.unsafe<Record<string, number>>(statement), ([row]) => row ?? {})
        return { ...(yield* Effect.all({ ...mapped(one) })), sound }
      }).pipe(Effect.provide(SqliteClient.layer({ filename: db, readonly: true, disableWAL: true })), Effect.runPromise)

const mapped = <A>(one: (statement: string) => A): Readonly<Record<keyof typeof statements, A>> => ({
  run: one(statements.run),
  calls: one(statements.calls),
  holds: one(statements.holds),
  twice: one(statements.twice),
  outcomes: one(statements.outcomes),
  versions: one(statements.versions)
})

export const get = (part: Part, name: string): number => part[name] ?? 0

/** What the book counts against the cap. */
export const counted = ({ run }: Book): number => get(run, "spent") + get(run, "uncertain") + get(run, "held")
export const isOver = (book: Book, bill: Bill, cap: number): boolean =>
  bill.billedNano > cap || counted(book) > get(book.run, "cap")
export const isShort = (book: Book, bill: Bill): boolean => bill.billedNano > counted(book)

/** What does not hold. */
export const brokenIn = (book: Book, bill: Bill, cap: number, concurrency: number): ReadonlyArray<string> => {
  const { calls, holds, outcomes, run, versions } = book
  const [spent, uncertain, held] = [get(run, "spent"), get(run, "uncertain"), get(run, "held")]
  const ended = get(run, "done") + get(run, "partial") + get(run, "failed")
  const laws: ReadonlyArray<readonly [what: string, held: boolean]> = [
    [`SQLite's own check says: ${book.sound}`, book.sound === "ok"],
    [`bill ${bill.billedNano} <= counted ${counted(book)}`, !isShort(book, bill)],
    [`bill ${bill.billedNano} and counted ${counted(book)} <= cap ${cap}`, !isOver(book, bill, cap)],
    ["spent = sum of settled calls", spent === get(calls, "settled")],
    ["uncertain = sum of uncertain calls", uncertain === get(calls, "uncertain")],
    ["held = sum of open holds", held === get(holds, "amount")],
    [`open holds ${get(holds, "n")} <= concurrency`, get(holds, "n") <= concurrency],
    ["one outcome a row", get(outcomes, "n") === ended && get(outcomes, "seqs") === ended],
    ["no answer in the book was paid for again", get(book.twice, "n") === 0],
    ["versions 1..n without a gap", get(versions, "n") === get(versions, "last")]
  ]
  return laws.flatMap(([what, held]) => (held ? [] : [what]))
}
