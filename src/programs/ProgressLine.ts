/**
 * A run at a glance, as one line for an operator.
 *
 * @since 0.1.0
 */
import { Usd } from "../services/Usd.ts"
import type { Snapshot } from "./Enrichment.ts"

/** Rows ended at a time, in milliseconds. @since 0.1.0 */
export interface Mark {
  readonly at: number
  readonly ended: number
}

/**
 * Rows a second between two marks; 0 where no time has passed.
 *
 * @since 0.1.0
 */
export const rate = (from: Mark, to: Mark): number =>
  to.at > from.at ? Math.max(0, ((to.ended - from.ended) * 1000) / (to.at - from.at)) : 0

/**
 * `2,347 / 10,000 done · $12.30 spent · 8 workers active · est. 18 min remaining · 7.1 rows/s`; failed, partial and uncertain only where there are any.
 *
 * @since 0.1.0
 */
export const render = (snapshot: Snapshot, rowsPerSecond: number): string => {
  const { failed, partial, phase, rows, spent, uncertain, working } = snapshot
  if (phase === "loading") return "loading rows"
  const ended = snapshot.done + partial + failed
  const parts = [
    `${count(ended)} / ${count(rows)} done`,
    `${money(spent)} spent`,
    `${working} ${working === 1 ? "worker" : "workers"} active`,
    remaining(rows - ended, rowsPerSecond),
    `${rowsPerSecond < 10 ? rowsPerSecond.toFixed(1) : count(Math.round(rowsPerSecond))} rows/s`
  ]
  if (failed > 0) parts.push(`${count(failed)} failed`)
  if (partial > 0) parts.push(`${count(partial)} partial`)
  if (uncertain > 0) parts.push(`${money(uncertain)} uncertain`)
  const note = notes[phase]
  if (note !== undefined) parts.push(note)
  return parts.join(" · ")
}

const notes: Partial<Record<Snapshot["phase"], string>> = {
  cooling: "cooling down",
  provider_down: "provider down, probing",
  stopping: "stopping"
}

/**
 * Money at a glance: cents, and finer only where cents would hide all of it.
 *
 * @since 0.1.0
 */
export const money = (usd: Usd): string =>
  usd === 0 || usd >= 10_000_000
    ? `$${(Math.floor(usd / 10_000_000) / 100).toLocaleString("en-US", cents)}`
    : Usd.format(usd)

const cents = { minimumFractionDigits: 2, maximumFractionDigits: 2 }

/**
 * `10,000`.
 *
 * @since 0.1.0
 */
export const count = (n: number): string => n.toLocaleString("en-US")

const remaining = (rows: number, rowsPerSecond: number): string => {
  if (rows === 0) return "nothing remaining"
  if (rowsPerSecond <= 0) return "est. – remaining"
  const seconds = Math.ceil(rows / rowsPerSecond)
  if (seconds < 90) return `est. ${seconds} s remaining`
  const minutes = Math.ceil(seconds / 60)
  return minutes < 120
    ? `est. ${minutes} min remaining`
    : `est. ${Math.floor(minutes / 60)} h ${minutes % 60} min remaining`
}
