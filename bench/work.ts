/**
 * The work that every loop of the bench does: the same rows, prompts and answers, so about the same bytes in the same tables.
 */
export interface Vendor {
  readonly id: number
  readonly name: string
  readonly description: string
}

export const vendorOf = (seq: number): Vendor => ({
  id: seq + 1,
  name: `Vendor ${seq + 1}`,
  description: `Supplies fasteners and fittings to ${(seq * 7) % 97} plants since ${1950 + (seq % 70)}; terms are net 30.`
})

export const model = "simulated"
export const system = "You assess vendors for a purchasing department."
export const promptOf = (vendor: Vendor): string => `${vendor.name}: ${vendor.description}`

export interface Enriched {
  readonly summary: string
  readonly risk: string
}

export interface Answer {
  readonly text: string
  readonly usage: typeof usage
}

const usage = { inputTokens: 60, cachedTokens: 0, cacheWriteTokens: 0, outputTokens: 40, reasoningTokens: 0 }
const answerTo = (prompt: string): Answer => {
  const enriched: Enriched = { summary: `A steady supplier. ${prompt}`, risk: "low" }
  return { text: JSON.stringify(enriched), usage }
}

/** A provider: answers a prompt through the callback. */
export type Provider = (prompt: string, answered: (answer: Answer) => void) => void

/** Answers on the next turn of the event loop. */
export const atOnce: Provider = (prompt, answered) => void setImmediate(() => answered(answerTo(prompt)))

/** Answers the n-th call after the n-th latency. */
export const after = (latencies: ReadonlyArray<number>): Provider => {
  let calls = 0
  return (prompt, answered) => void setTimeout(() => answered(answerTo(prompt)), latencies[calls++] ?? 0)
}

/** Log-normal latencies in whole milliseconds by their median and 99th percentile; the same in every process. */
export const tail = (count: number, p50: number, p99: number): ReadonlyArray<number> => {
  const next = random(1)
  const sigma = Math.log(p99 / p50) / 2.3263
  return Array.from({ length: count }, () => {
    const normal = Math.sqrt(-2 * Math.log(1 - next())) * Math.cos(2 * Math.PI * next())
    return Math.max(1, Math.round(p50 * Math.exp(sigma * normal)))
  })
}

/** Mulberry32. */
const random = (seed: number) => () => {
  seed = (seed + 0x6d2b79f5) | 0
  const a = Math.imul(seed ^ (seed >>> 15), 1 | seed)
  const b = (a + Math.imul(a ^ (a >>> 7), 61 | a)) ^ a
  return ((b ^ (b >>> 14)) >>> 0) / 2 ** 32
}

/** By the clock, and on the processors (the collector's and the compiler's threads too): the latter says more on a busy machine. */
export interface Took {
  readonly ms: number
  readonly cpuMs: number
}

export const stopwatch = (): (() => Took) => {
  const begun = performance.now()
  const before = process.cpuUsage()
  return () => {
    const used = process.cpuUsage(before)
    return { ms: performance.now() - begun, cpuMs: (used.user + used.system) / 1000 }
  }
}
