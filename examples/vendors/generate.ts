/**
 * Invented vendors as CSV, the same for the same seed:
 *
 *   node --import tsx examples/vendors/generate.ts --rows 10000 --seed 1 --out vendors.csv [--now 2026-11-29] [--stale 0.3]
 *
 * Every row was updated within the last 6 days, so that a "last 7 days" filter keeps all; `--stale 0.3` makes about 30 % older than 30 days.
 */
import { pathToFileURL } from "node:url"
import { parseArgs } from "node:util"
import { Console, Effect, Stream } from "effect"
import * as Export from "../../src/layers/Export.ts"

export type Vendor = {
  readonly id: number
  readonly name: string
  readonly description: string
  readonly updatedAt: string
}

export interface VendorOptions {
  readonly rows: number
  readonly seed: number
  readonly now: Date
  readonly stale?: number
}

const FIRST = [
  "Nordlicht",
  "Pampas",
  "Quill & Anvil",
  "Blue Heron",
  "Café Müller",
  "Sakura 桜",
  "Łódź",
  "Ironbark",
  "São Bento"
]
const LAST = ["Fasteners", "Paper", "Logistics", "Analytics", "Textiles", "Foods", "Robotics", "Coatings", "Staffing"]
const FORM = ["GmbH", "SA", "Ltd.", "Inc.", "AB", "Co., Ltd.", "S.p.A.", "LLC"]
const REGION = [
  "the Baltic states",
  "Minas Gerais",
  "the Midlands, UK",
  "Kansai",
  "Nova Scotia",
  "Andalusia",
  "Gujarat"
]
const TRADE = [
  ["makes stainless bolts, nuts and washers for shipyards", "ISO 9001 certified; two recalls since 2019"],
  ['recycles paper and board into "kraft" packaging', "One customer makes 60 % of its sales"],
  ["runs refrigerated trucks and a small bonded warehouse", "Its fleet is leased, its drivers subcontracted"],
  ["sells demand forecasts to grocery chains", "Customer data are kept in the EU"],
  ["weaves technical textiles for filters and airbags", "The mill was idle for a month after a fire"],
  ["cans tomatoes and legumes under private labels", "Audited twice a year, no findings"],
  ["builds pick-and-place robots", "Spare parts come from a single foundry"],
  ["provides seasonal staff to wineries", "Wages were paid late last spring"]
] as const

/** Marsaglia's xorshift32: enough for test data, and the same everywhere. */
const random = (seed: number) => {
  let state = Math.imul(seed + 1, 0x9e3779b1) | 1
  return () => {
    state ^= state << 13
    state ^= state >>> 17
    state ^= state << 5
    return (state >>> 0) / 2 ** 32
  }
}

/** The vendors 1 to `rows`. Row n is the same whatever `rows` is. */
export function* vendors({ rows, seed, now, stale = 0 }: VendorOptions): Generator<Vendor> {
  const next = random(seed)
  const pick = <A>(from: readonly [A, ...Array<A>] | ReadonlyArray<A>) => from[Math.floor(next() * from.length)]
  const hour = 3_600_000
  for (let id = 1; id <= rows; id++) {
    const [does, note] = pick(TRADE) ?? TRADE[0]
    const size = Math.round(5 * 400 ** next())
    const name = `${pick(FIRST)} ${pick(LAST)} ${pick(FORM)}`
    const about = `${name} of ${pick(REGION)} ${does}, with about ${size} people.`
    const description = next() < 0.5 ? about : `${about}${next() < 0.2 ? "\n" : " "}${note}.`
    const age = next() < stale ? (30 + next() * 300) * 24 * hour : next() * 6 * 24 * hour
    yield { id, name, description, updatedAt: new Date(now.getTime() - age).toISOString() }
  }
}

const main = Effect.gen(function* () {
  const text = { type: "string" } as const
  const { values } = parseArgs({
    options: { rows: text, seed: text, out: text, now: text, stale: text, recent: { type: "boolean" } }
  })
  const out = values.out ?? "vendors.csv"
  const options: VendorOptions = {
    rows: Number(values.rows ?? 10_000),
    seed: Number(values.seed ?? 1),
    now: values.now === undefined ? new Date() : new Date(values.now),
    stale: Number(values.stale ?? 0)
  }
  const rows = Stream.fromIterable(vendors(options))
  const count = yield* Export.writeCsv(out, ["id", "name", "description", "updatedAt"], rows)
  yield* Console.log(`${out}: ${count} vendors`)
})

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  const report = Effect.catchAll(main, (error) => {
    process.exitCode = 1
    return Console.error(`${error.message}\n${error.fix ?? ""}`)
  })
  Effect.runPromise(report)
}
