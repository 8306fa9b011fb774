/**
 * What looks wrong in rows that ended: too many failures, fields that came out the same everywhere (`review`, over a sample), and rows that are no longer like those of the
 * sample (`make`, `add`, `verdict`, one row at a time in constant space). Pure.
 *
 * Drift is looked for by charts with a known bound of false alarms, see Charts: one for each rate, for cost and output a row against what their input length lets expect,
 * and for each value of a field that has few. What they suppose is that rows come in no order: a source that is sorted by what the answer depends on does drift.
 *
 * @since 0.1.0
 */
import { Option, type Schema, SchemaAST } from "effect"
import * as Charts from "./Charts.ts"
import * as Identity from "./Identity.ts"

/**
 * An ended row. `cost` in nano-dollars, 0 where nothing was asked. `outputTokens` and `fields` (see `fieldsOf`) of the answer, 0 and empty without one.
 *
 * @since 0.1.0
 */
export interface Observation {
  readonly seq: number
  readonly kind: "done" | "partial" | "failed"
  readonly refusal: boolean
  readonly cost: number
  readonly outputTokens: number
  readonly inputLength: number
  readonly fields: Readonly<Record<string, string>>
}

/**
 * What looks wrong. `before` and `now`: the two shares, or how many times as large (1 before). `field` and `value` where a field of the output is meant; the value is a
 * model's, so that it must not reach a terminal as it is. The message holds none.
 *
 * @since 0.1.0
 */
export interface Alarm {
  readonly kind: "failed" | "partial" | "refused" | "degenerate" | "distribution" | "cost" | "output"
  readonly field: string | undefined
  readonly value: string | undefined
  readonly before: number
  readonly now: number
  readonly message: string
}

/** The longest value that is compared as it is; of a longer one its hash. */
const LONGEST_VALUE = 64

/**
 * The fields of a typed output as short texts: a text as it is, all else as JSON, `null` for what is not there. An output that is no object has none.
 *
 * @since 0.1.0
 */
export const fieldsOf = (output: unknown): Readonly<Record<string, string>> => {
  if (typeof output !== "object" || output === null || Array.isArray(output)) return {}
  return Object.fromEntries(Object.entries(output).map(([name, value]) => [name, shortOf(value)]))
}

const shortOf = (value: unknown): string => {
  const text = typeof value === "string" ? value : (JSON.stringify(value) ?? "null")
  return text.length <= LONGEST_VALUE ? text : Identity.sha256(text).slice(0, 16)
}

/**
 * The fields that can have one value only, by the output's schema: nothing is to be concluded from them.
 *
 * @since 0.1.0
 */
export const constantFields = (schema: Schema.Schema.All): ReadonlySet<string> =>
  new Set(
    SchemaAST.getPropertySignatures(SchemaAST.typeAST(schema.ast))
      .filter(({ type }) => type._tag === "Literal" || type._tag === "UndefinedKeyword")
      .map(({ name }) => String(name))
  )

/** Rows that failed, were refused (failed by the model's own "no"), or are partial, as shares of all. @since 0.1.0 */
export interface Rates {
  readonly rows: number
  readonly failed: number
  readonly refused: number
  readonly partial: number
}

/** The rates of rows; all 0 for none. @since 0.1.0 */
export const rates = (rows: ReadonlyArray<Observation>): Rates => {
  const shareOf = (is: (row: Observation) => boolean) => rows.filter(is).length / Math.max(1, rows.length)
  return {
    rows: rows.length,
    failed: shareOf(tests.failed),
    refused: shareOf(tests.refused),
    partial: shareOf(tests.partial)
  }
}

const tests = {
  failed: (row: Observation) => row.kind === "failed",
  refused: (row: Observation) => row.refusal,
  partial: (row: Observation) => row.kind === "partial"
}
type Rate = keyof typeof tests
const rateNames: ReadonlyArray<Rate> = ["failed", "refused", "partial"]
const words: Readonly<Record<Rate, string>> = { failed: "failed", refused: "were refused", partial: "are partial" }

/**
 * `limits`: shares above which a rate is an alarm, where at least two rows are to blame (defaults 0.05, 0.05, 0.1). `least`: how many rows a field needs (default 20); `degenerate`: on which
 * share of them one value is an alarm (default above 0.9). `ignored`: see `constantFields`.
 *
 * @since 0.1.0
 */
export interface ReviewOptions {
  readonly limits?: Partial<Record<Rate, number>>
  readonly least?: number
  readonly degenerate?: number
  readonly ignored?: ReadonlySet<string>
}

const DEGENERATE = 0.9
const LEAST_ROWS = 20
const LIMITS: Readonly<Record<Rate, number>> = { failed: 0.05, refused: 0.05, partial: 0.1 }

/**
 * What looks wrong in a sample of ended rows.
 *
 * @since 0.1.0
 */
export const review = (rows: ReadonlyArray<Observation>, options: ReviewOptions = {}): ReadonlyArray<Alarm> => {
  const { degenerate = DEGENERATE, ignored = new Set(), least = LEAST_ROWS, limits = {} } = options
  const all = rates(rows)
  const bad = rateNames.flatMap((kind): ReadonlyArray<Alarm> => {
    const limit = limits[kind] ?? LIMITS[kind]
    const count = Math.round(all[kind] * all.rows)
    if (count < 2 || all[kind] <= limit) return []
    const message = `${count} of ${all.rows} rows ${words[kind]} (${percent(all[kind])}, above ${percent(limit)})`
    return [{ kind, field: undefined, value: undefined, before: limit, now: all[kind], message }]
  })
  const same = [...valuesOf(rows, ignored)].flatMap(([field, values]): ReadonlyArray<Alarm> => {
    const total = totalOf(values)
    const [top] = byCount(values)
    if (top === undefined || total < least || top[1] / total <= degenerate) return []
    const message = `field ${shown(field)} has one value on ${top[1]} of ${total} rows (${percent(top[1] / total)})`
    return [{ kind: "degenerate", field, value: top[0], before: degenerate, now: top[1] / total, message }]
  })
  return [...bad, ...same]
}

/** How often each value of each field came, over the rows that have an answer. */
const valuesOf = (
  rows: ReadonlyArray<Observation>,
  ignored: ReadonlySet<string>
): ReadonlyMap<string, ReadonlyMap<string, number>> => {
  const fields = new Map<string, Map<string, number>>()
  for (const { fields: given, kind } of rows) {
    if (kind !== "done") continue
    for (const [field, value] of Object.entries(given)) {
      if (ignored.has(field)) continue
      const values = fields.get(field) ?? new Map<string, number>()
      fields.set(field, values.set(value, (values.get(value) ?? 0) + 1))
    }
  }
  return fields
}

const totalOf = (values: ReadonlyMap<string, number>): number => [...values.values()].reduce((a, b) => a + b, 0)
const byCount = (values: ReadonlyMap<string, number>) => [...values].sort(([, a], [, b]) => b - a)

/**
 * `ignored`: see `constantFields`. `rows`: how many rows will be looked at (default 10,000). `falseAlarm`: how probable one is over all of them, at most (default 0.02; it
 * is a bound, and what is measured is far below).
 *
 * @since 0.1.0
 */
export interface DriftOptions {
  readonly ignored?: ReadonlySet<string>
  readonly rows?: number
  readonly falseAlarm?: number
}

/**
 * A field that is watched. `known`: its values where they are few, the most frequent first: each has a chart, all others have one together, and then the first `frequent` have
 * one of the rows without them. Else there is one chart, of repetitions.
 */
interface Field {
  readonly name: string
  readonly known: ReadonlyArray<string> | undefined
  readonly frequent: number
}

/** What does not change: the fields, what cost and output are expected by input length, and where a chart raises an alarm. */
interface Watch {
  readonly fields: ReadonlyArray<Field>
  readonly cost: Line
  readonly output: Line
  readonly height: number
}

/** What has been seen, in a size that does not grow with the rows. @since 0.1.0 */
export interface State {
  readonly watch: Watch
  readonly rows: number
  readonly rates: Readonly<Record<Rate, Charts.Share>>
  readonly cost: Charts.Ranks | undefined
  readonly output: Charts.Ranks | undefined
  /** In the order of the fields: for each its charts, and its last value. */
  readonly values: ReadonlyArray<ReadonlyArray<Charts.Share>>
  readonly last: ReadonlyArray<string>
  readonly alarm: Option.Option<Alarm>
}

/** More values than these are not few; more fields are not watched. */
const FEW = 12
const MOST_FIELDS = 50
/** A value on fewer rows than this share can fall away without much being lost. */
const FREQUENT = 0.2

/**
 * The state after the sample that all later rows are compared with; they widen it as long as they are like it.
 *
 * For example:
 * const state = rows.reduce(add, make(sample))
 * const alarm = verdict(state)
 *
 * @since 0.1.0
 */
export const make = (sample: ReadonlyArray<Observation>, options: DriftOptions = {}): State => {
  const { falseAlarm = 0.02, ignored = new Set(), rows = 10_000 } = options
  const found = [...valuesOf(sample, ignored)].slice(0, MOST_FIELDS).map(([name, values]) => fieldOf(name, values))
  const watched = found.filter(({ seen }) => totalOf(seen) >= LEAST_ROWS)
  const priced = sample.filter(isPriced)
  const costs = lineOf(priced, ({ cost }) => cost)
  const outputs = lineOf(priced, ({ outputTokens }) => outputTokens)
  const ranksOf = (line: Line, amount: (row: Observation) => number) =>
    priced.length < LEAST_ROWS ? undefined : Charts.ranks(priced.map((row) => relative(line, row, amount(row))))
  const values = watched.map(({ charts }) => charts)
  const rate = (kind: Rate) => Charts.share(sample.filter(tests[kind]).length, sample.length)
  const charts = rateNames.length + 4 + values.reduce((sum, own) => sum + own.length, 0)
  return {
    watch: {
      fields: watched.map(({ field }) => field),
      cost: costs,
      output: outputs,
      height: Charts.height(charts, rows, falseAlarm)
    },
    rows: 0,
    rates: { failed: rate("failed"), refused: rate("refused"), partial: rate("partial") },
    cost: ranksOf(costs, ({ cost }) => cost),
    output: ranksOf(outputs, ({ outputTokens }) => outputTokens),
    values,
    last: watched.map(() => ""),
    alarm: Option.none()
  }
}

const fieldOf = (name: string, seen: ReadonlyMap<string, number>) => {
  const total = totalOf(seen)
  const counts = byCount(seen)
  if (counts.length <= FEW && counts.length <= total / 2) {
    const frequent = counts.filter(([, count]) => count / total >= FREQUENT)
    const hits = [...counts.map(([, count]) => count), 0, ...frequent.map(([, count]) => total - count)]
    const field: Field = { name, known: counts.map(([value]) => value), frequent: frequent.length }
    return { field, seen, charts: hits.map((hit) => Charts.share(hit, total)) }
  }
  // How probable it is that two rows have the same value.
  const pairs = counts.reduce((sum, [, count]) => sum + count * (count - 1), 0) / Math.max(1, total - 1)
  const field: Field = { name, known: undefined, frequent: 0 }
  return { field, seen, charts: [Charts.share(pairs, total)] }
}

/** A row that was asked and answered: what came from the store, or failed, says nothing of what an answer costs. */
const isPriced = ({ cost, kind }: Observation): boolean => kind !== "failed" && cost > 0

/** An amount by input length: `base + slope * length`. */
interface Line {
  readonly base: number
  readonly slope: number
}

/** Least squares, neither part below 0. */
const lineOf = (rows: ReadonlyArray<Observation>, amount: (row: Observation) => number): Line => {
  const n = Math.max(1, rows.length)
  const x = rows.reduce((sum, { inputLength }) => sum + inputLength, 0) / n
  const y = rows.reduce((sum, row) => sum + amount(row), 0) / n
  const spread = rows.reduce((sum, { inputLength }) => sum + (inputLength - x) ** 2, 0)
  const both = rows.reduce((sum, row) => sum + (row.inputLength - x) * (amount(row) - y), 0)
  const slope = spread > 0 ? Math.max(0, both / spread) : 0
  return slope * x > y ? { base: 0, slope: y / x } : { base: y - slope * x, slope }
}

const relative = ({ base, slope }: Line, { inputLength }: Observation, amount: number): number => {
  const expected = base + slope * inputLength
  return expected > 0 ? amount / expected : amount
}

/**
 * The state after one more row. The first alarm stays.
 *
 * @since 0.1.0
 */
export const add = (state: State, row: Observation): State => {
  if (Option.isSome(state.alarm)) return state
  const { watch } = state
  const isDone = row.kind === "done"
  const rate = (kind: Rate) => Charts.addShare(state.rates[kind], tests[kind](row), row.seq)
  const ranksOf = (chart: Charts.Ranks | undefined, line: Line, amount: number) =>
    chart !== undefined && isPriced(row) ? Charts.addRank(chart, relative(line, row, amount), row.seq) : chart
  const values = isDone
    ? state.values.map((charts, i) => valued(watch.fields[i], charts, state.last[i], row))
    : state.values
  const next: State = {
    watch,
    rows: state.rows + 1,
    rates: { failed: rate("failed"), refused: rate("refused"), partial: rate("partial") },
    cost: ranksOf(state.cost, watch.cost, row.cost),
    output: ranksOf(state.output, watch.output, row.outputTokens),
    values,
    last: isDone ? watch.fields.map(({ name }, i) => valueOf(row, name) ?? state.last[i] ?? "") : state.last,
    alarm: state.alarm
  }
  return { ...next, alarm: alarmOf(next) }
}

const valueOf = ({ fields }: Observation, name: string): string | undefined =>
  Object.hasOwn(fields, name) ? fields[name] : undefined

const valued = (
  field: Field | undefined,
  charts: ReadonlyArray<Charts.Share>,
  last: string | undefined,
  row: Observation
): ReadonlyArray<Charts.Share> => {
  const value = field === undefined ? undefined : valueOf(row, field.name)
  if (field === undefined || value === undefined) return charts
  const { known } = field
  const place = known === undefined ? (value === last ? 0 : -1) : placeOf(known, value)
  const absences = known === undefined ? Number.POSITIVE_INFINITY : known.length + 1
  return charts.map((chart, i) => Charts.addShare(chart, i < absences ? i === place : i - absences !== place, row.seq))
}

/** Behind the last one stand all others. */
const placeOf = (known: ReadonlyArray<string>, value: string): number => {
  const place = known.indexOf(value)
  return place < 0 ? known.length : place
}

/**
 * The first thing that looked wrong, if any did.
 *
 * @since 0.1.0
 */
export const verdict = (state: State): Option.Option<Alarm> => state.alarm

const alarmOf = (state: State): Option.Option<Alarm> => {
  const { height } = state.watch
  for (const kind of rateNames) {
    const chart = state.rates[kind]
    if (chart.sum < height) continue
    const message = `since about row ${chart.since} ${percent(nowOf(chart))} of the rows ${words[kind]}, before ${percent(beforeOf(chart))}`
    return Option.some({
      kind,
      field: undefined,
      value: undefined,
      before: beforeOf(chart),
      now: nowOf(chart),
      message
    })
  }
  for (const [i, charts] of state.values.entries()) {
    const place = charts.findIndex((chart) => chart.sum >= height)
    const [chart, field] = [charts[place], state.watch.fields[i]]
    if (chart !== undefined && field !== undefined) return Option.some(fieldAlarm(field, place, chart))
  }
  return Option.orElse(ranksAlarm("cost", state.cost, height), () => ranksAlarm("output", state.output, height))
}

const beforeOf = ({ hits, n }: Charts.Share): number => hits / Math.max(1, n)
const nowOf = ({ newHits, newN }: Charts.Share): number => newHits / Math.max(1, newN)

const fieldAlarm = ({ known, name }: Field, place: number, chart: Charts.Share): Alarm => {
  const [before, now] = [beforeOf(chart), nowOf(chart)]
  const values = known?.length ?? 0
  const isAbsence = known !== undefined && place > values
  const kind = now > DEGENERATE && !isAbsence ? "degenerate" : "distribution"
  const what = known === undefined ? "repeats the row before" : place < values ? "has one value" : "has new values"
  const said = isAbsence ? "lacks a value that was frequent" : what
  const message = `since about row ${chart.since} field ${shown(name)} ${said} on ${percent(now)} of the rows, before ${percent(before)}`
  return { kind, field: name, value: known?.[isAbsence ? place - values - 1 : place], before, now, message }
}

/** Where rows cost nearly the same, a few percent are certain and do not matter. */
const TOLERATED = 1.25

const ranksAlarm = (kind: "cost" | "output", chart: Charts.Ranks | undefined, height: number): Option.Option<Alarm> => {
  if (chart === undefined) return Option.none()
  const side = [chart.up, chart.down].find(({ sum }) => sum >= height)
  if (side === undefined) return Option.none()
  const now = Charts.growth(chart, side)
  if (now < TOLERATED && now > 1 / TOLERATED) return Option.none()
  const what = kind === "cost" ? "what a row costs" : "the length of an answer"
  const message = `since about row ${side.since} ${what} is about ${now.toFixed(2)} times what it was before`
  return Option.some({ kind, field: undefined, value: undefined, before: 1, now, message })
}

const percent = (share: number): string => `${(share * 100).toFixed(1).replace(/\.0$/, "")} %`

/** A field's name is the job's own, or a key that a model made up. */
const shown = (name: string): string => name.replace(/[\p{Cc}\p{Cf}\u2028\u2029]+/gu, " ").slice(0, 60)
