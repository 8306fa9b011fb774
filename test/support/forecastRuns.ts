/** Runs that are made up, with costs that are known: for what Forecast and Detectors promise. Seeded, so that the same seed gives the same runs. */
import { Option, Utils } from "effect"
import * as Detectors from "../../src/services/Detectors.ts"
import * as Forecast from "../../src/services/Forecast.ts"
import * as Sample from "../../src/services/Sample.ts"

/** Draws from one seed. */
export interface Draw {
  /** From 0 to 1. */
  readonly uniform: () => number
  readonly normal: () => number
}

export const drawOf = (seed: number): Draw => {
  const random = new Utils.PCGRandom(seed)
  const uniform = () => random.number()
  return {
    uniform,
    // Box and Muller.
    normal: () => Math.sqrt(-2 * Math.log(1 - uniform())) * Math.cos(2 * Math.PI * uniform())
  }
}

type CostOf = (length: number, draw: Draw) => number

const lognormal = (sigma: number, draw: Draw): number => Math.exp(sigma * draw.normal())
const outlier = (draw: Draw): number => (draw.uniform() < 0.02 ? 10 : 1)

/** What a row of an input length costs, in nano-dollars. */
export const distributions: Readonly<Record<string, CostOf>> = {
  "log-normal 0.3": (_, draw) => 1e5 * lognormal(0.3, draw),
  "log-normal 0.6": (_, draw) => 1e5 * lognormal(0.6, draw),
  "log-normal 0.9": (_, draw) => 1e5 * lognormal(0.9, draw),
  "log-normal 1.2": (_, draw) => 1e5 * lognormal(1.2, draw),
  "by length, 0.6": (length, draw) => 100 * length + 3e4 * lognormal(0.6, draw),
  "by length, 1.0": (length, draw) => 100 * length * lognormal(1, draw),
  "2 % at 10 times": (_, draw) => 1e5 * lognormal(0.3, draw) * outlier(draw),
  "by length, 2 % at 10 times": (length, draw) => (100 * length + 3e4 * lognormal(0.6, draw)) * outlier(draw),
  "20 % zero, 0.6": (_, draw) => (draw.uniform() < 0.2 ? 0 : 1e5 * lognormal(0.6, draw)),
  "20 % zero, 1.2": (_, draw) => (draw.uniform() < 0.2 ? 0 : 1e5 * lognormal(1.2, draw)),
  "all of it": (length, draw) =>
    draw.uniform() < 0.2 ? 0 : (100 * length + 3e4 * lognormal(0.9, draw)) * outlier(draw)
}

export interface Coverage {
  /** The share of runs whose true cost was in the interval. */
  readonly covered: number
  /** The median of the interval's width by the true cost. */
  readonly width: number
}

/** How often the interval of a sample of `n` has the true cost of a run of `rows`. */
export const coverage = (costOf: CostOf, rows: number, n: number, runs: number, seed: number): Coverage => {
  const draw = drawOf(seed)
  let covered = 0
  const widths: Array<number> = []
  for (let run = 0; run < runs; run++) {
    const lengths = Array.from({ length: rows }, () => Math.round(400 * lognormal(0.6, draw)))
    const costs = lengths.map((length) => Math.round(costOf(length, draw)))
    const truth = costs.reduce((a, b) => a + b, 0)
    const sample = Sample.pick(lengths, n).map((row) => ({ row, amount: costs[row] ?? 0 }))
    const { total } = Option.getOrThrow(Forecast.cost({ lengths, sample }))
    if (total.low <= truth && truth <= total.high) covered++
    widths.push((total.high - total.low) / truth)
  }
  return { covered: covered / runs, width: medianOf(widths) }
}

export const medianOf = (numbers: ReadonlyArray<number>): number =>
  [...numbers].sort((a, b) => a - b)[Math.floor(numbers.length / 2)] ?? 0

/** What a made-up run does from a row on. */
export interface Behaviour {
  readonly cost?: number
  readonly failed?: number
  readonly partial?: number
  readonly output?: number
  /** The share of rows whose `risk` is `low`; the others are divided between two values. */
  readonly low?: number
  readonly summary?: "constant"
}

export const drifts: Readonly<Record<string, Behaviour>> = {
  "cost x 1.6": { cost: 1.6 },
  "cost x 0.6": { cost: 0.6 },
  "answers x 2": { output: 2 },
  "failures 1 % to 15 %": { failed: 0.15 },
  "partial 1 % to 15 %": { partial: 0.15 },
  "a field of few values becomes one value": { low: 1 },
  "a field of few values moves from 50 % to 15 %": { low: 0.15 },
  "a free text becomes one value": { summary: "constant" }
}

export const observation = (seq: number, draw: Draw, is: Behaviour = {}): Detectors.Observation => {
  const inputLength = Math.round(400 * lognormal(0.6, draw))
  const outputTokens = Math.max(1, Math.round(60 * lognormal(0.5, draw) * (is.output ?? 1)))
  const u = draw.uniform()
  const failed = is.failed ?? 0.01
  const kind = u < failed ? "failed" : u < failed + (is.partial ?? 0.01) ? "partial" : "done"
  const low = is.low ?? 0.5
  const risk = draw.uniform() < low ? "low" : draw.uniform() < 0.6 ? "medium" : "high"
  const summary = is.summary === "constant" ? "not known" : `about ${Math.floor(draw.uniform() * 1e9)}`
  return {
    seq,
    kind,
    refusal: kind === "failed" && draw.uniform() < 0.3,
    cost: Math.round((100 * inputLength + 3e4) * lognormal(0.8, draw) * (is.cost ?? 1)),
    outputTokens: kind === "failed" ? 0 : outputTokens,
    inputLength,
    fields: kind === "done" ? { risk, summary, flag: draw.uniform() < 0.85 ? "true" : "false" } : {}
  }
}

/** Which row of a run of `rows` raised an alarm, and which; `drift` sets in at row `from`. */
export const alarmed = (
  seed: number,
  rows: number,
  canary: number,
  drift: Behaviour = {},
  from = Number.POSITIVE_INFINITY
): { readonly seq: number; readonly alarm: Detectors.Alarm } | undefined => {
  const draw = drawOf(seed)
  let state = Detectors.make(
    Array.from({ length: canary }, (_, seq) => observation(seq, draw)),
    { rows }
  )
  for (let seq = 0; seq < rows; seq++) {
    state = Detectors.add(state, observation(seq, draw, seq < from ? {} : drift))
    const alarm = Option.getOrUndefined(Detectors.verdict(state))
    if (alarm !== undefined) return { seq, alarm }
  }
  return undefined
}
