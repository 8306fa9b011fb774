/**
 * What happens in a run as one JSON object a line, for programs: no text of a row, a prompt or an answer is in it. Money in nano-dollars. Internal to the doors.
 *
 * @since 0.1.0
 */
import { Either } from "effect"
import { Usd } from "../services/Usd.ts"
import type { RunEvent, Snapshot } from "./Enrichment.ts"
import * as ProgressLine from "./ProgressLine.ts"

/**
 * An event of a run.
 *
 * @since 0.1.0
 */
export const event = (event: RunEvent<unknown>): string => JSON.stringify(shown(event))

const shown = (event: RunEvent<unknown>) => {
  switch (event._tag) {
    case "Row": {
      const { _tag, fromStore, id, outcome, seq } = event
      return Either.match(outcome, {
        onLeft: ({ category, reason, source }) => ({
          _tag,
          seq,
          id,
          end: "failed",
          source,
          reason,
          category,
          fromStore
        }),
        onRight: ({ partial, usage }) => ({
          _tag,
          seq,
          id,
          end: partial ? "partial" : "done",
          cost: usage.cost,
          inputTokens: usage.inputTokens,
          outputTokens: usage.outputTokens,
          fromStore
        })
      })
    }
    case "ProviderDown":
      return { _tag: event._tag, message: event.error?.message ?? null }
    case "Finished": {
      const { workflow: _, ...result } = event.result
      return { _tag: event._tag, ...result }
    }
    default:
      return event
  }
}

/**
 * Where a run is: `rowsPerSecond`, the seconds that are left and the cost in all by what it did so far; null where nothing can be said.
 *
 * @since 0.1.0
 */
export const progress = (snapshot: Snapshot, rowsPerSecond: number): string => {
  const { done, failed, partial, rows, spent, uncertain } = snapshot
  const ended = done + partial + failed
  return JSON.stringify({
    _tag: "Progress",
    ...snapshot,
    rowsPerSecond,
    secondsLeft: ProgressLine.secondsLeft(rows - ended, rowsPerSecond),
    costInAll: ended === 0 ? null : Usd.nano(Math.round(((spent + uncertain) / ended) * rows))
  })
}
