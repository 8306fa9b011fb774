/**
 * The pictures of docs/walk.md, in their order: the one list of their names. A capture is made by capture.ts and must show its words; the screenshots are made by
 * test/page/capture.ts.
 */

/** What an operator's terminal showed. `shows`: words that must be in it. */
export interface Capture {
  readonly kind: "capture"
  readonly name: string
  readonly title: string
  readonly prose: string
  readonly shows: readonly [string, ...Array<string>]
}

/** A page, on a desk and on a phone, by day and by night: docs/walk/<name>-<variant>.png. */
export interface Screenshot {
  readonly kind: "screenshot"
  readonly name: string
  readonly title: string
  readonly prose: string
}

export type Step = Capture | Screenshot

const capture = (
  name: string,
  title: string,
  prose: string,
  ...shows: readonly [string, ...Array<string>]
): Capture => ({ kind: "capture", name, title, prose, shows })

export const variants = ["desktop-light", "desktop-dark", "phone-light", "phone-dark"] as const

const screenshot = (name: string, title: string, prose: string): Screenshot => ({
  kind: "screenshot",
  name,
  title,
  prose
})

export const steps: ReadonlyArray<Step> = [
  capture(
    "plan",
    "Plan",
    "Before a call is made: how many rows, what is asked of the shortest and of the longest one, and between which bounds the bill will lie.",
    "longhaul plan job.ts",
    "rows: 2,000",
    "longest prompt:",
    "cost: $",
    "largest possible spend: $",
    "does not cover the estimate"
  ),
  capture(
    "canary",
    "A canary first",
    "A hundred rows, spread over the lengths of all, run first. They say that the whole will cost more than the budget, so the run waits.",
    "--canary 100",
    "canary: 100 of 2,000 rows",
    "all rows will cost about $",
    "the run waits; go on with: longhaul approve vendors-w27"
  ),
  capture(
    "approve",
    "Approve",
    "The answers are good, and a part of the rows today is better than none: another terminal lets the run go on.",
    "longhaul approve vendors-w27",
    "run vendors-w27 is approved",
    "works on it"
  ),
  capture(
    "live",
    "The run",
    "Back in the first terminal the last line is drawn anew four times a second: rows, money, calls in flight, the time left and the cost of the whole at this rate.",
    "/ 2,000 done · $",
    "8 workers active",
    "remaining",
    "in all"
  ),
  capture(
    "pause",
    "Pause",
    "From the other terminal: no call begins any more, those in flight end. It holds over a crash and a resume too.",
    "longhaul pause vendors-w27",
    "run vendors-w27 is paused: no call begins",
    "unpause with: longhaul unpause vendors-w27"
  ),
  capture(
    "paused",
    "What the run shows of it",
    "The line in the first terminal says who paused it and why; nobody is at work.",
    "the tone of row 12",
    "spent · 0 "
  ),
  capture(
    "watch",
    "Unpause, and watch",
    "The same line in any other terminal, by what the database says; Ctrl-C leaves the run alone.",
    "longhaul unpause vendors-w27",
    "run vendors-w27 is not paused",
    "longhaul watch vendors-w27",
    "workers active"
  ),
  capture(
    "kill",
    "kill -9",
    "The worst that can happen to a process. Nothing is written on the way out, because all that counts was written before.",
    "kill -9",
    "longhaul status vendors-w27",
    "run vendors-w27: running",
    "held of $"
  ),
  capture(
    "resume",
    "Resume",
    "One command, no flags: rows, limits and job are the run's own. What was in flight is counted in full as uncertain, and asked again.",
    "longhaul resume",
    "uncertain",
    "/ 2,000 done"
  ),
  capture(
    "cap",
    "The cap",
    "The next call might not fit under the cap, so none is sent. Rows that were not asked stay pending, and the exit code is 4.",
    "suspended: the cap of $",
    "are pending",
    "next: longhaul resume vendors-w27",
    "--budget <more>",
    "exit code 4"
  ),
  capture(
    "raise",
    "Raise the budget",
    "The new limit is in force at once. A run still at work would go on by itself; this one has ended, so it is resumed next.",
    "longhaul set vendors-w27 --budget",
    "run vendors-w27: cap $",
    "longhaul resume vendors-w27"
  ),
  capture(
    "done",
    "To the end",
    "Every row has ended; exit code 3 says that some of them failed or could not be read.",
    "done: 2,000 rows",
    "0 pending",
    "next: longhaul failures vendors-w27",
    "exit code 3"
  ),
  capture(
    "receipt",
    "The receipt",
    "What was paid, by end, model and price row, what is uncertain, and who steered the run. The digest is the same for any order in which the calls ended.",
    "receipt of run vendors-w27",
    "spent",
    "uncertain",
    "paused by",
    "digest"
  ),
  capture(
    "failures",
    "What went wrong",
    "By kind: how many rows, what they cost, and a command that mends it, with its price.",
    "rows failed",
    "partial",
    "longhaul requeue vendors-w27 --failed",
    "costs nothing"
  ),
  capture(
    "export",
    "Export",
    "The rows in input order, whole or not at all; any of them, at any time, also while the run goes on.",
    "longhaul export vendors-w27 --out rated.parquet",
    "2,000 rows: rated.parquet",
    "longhaul_status"
  ),
  screenshot(
    "page-runs",
    "The page: all runs",
    "`longhaul serve` shows the same over HTTP. What ran, what it cost, and what waits."
  ),
  screenshot(
    "page-run",
    "The page: one run",
    "Where it is, what it spent against its cap, how fast it goes, what failed; the buttons mean what the commands of their names mean."
  ),
  screenshot(
    "page-rows",
    "The page: its rows",
    "Each row with its result, found by its text or its end; a row opens to its calls."
  ),
  screenshot("page-receipt", "The page: its receipt", "The bill, as `longhaul receipt` has it.")
]
