/**
 * Models that their provider has shut down or will: what a long job should know before it starts. Internal.
 *
 * @since 0.1.0
 */

interface Shutdown {
  readonly models: ReadonlyArray<string>
  /** The last day, UTC, `yyyy-mm-dd`. */
  readonly day: string
  readonly instead: string
}

/** https://platform.openai.com/docs/deprecations, read 2026-11-29. */
const shutdowns: ReadonlyArray<Shutdown> = [
  { models: ["gpt-4o", "gpt-4o-mini", "gpt-4.1", "gpt-4.1-mini"], day: "2027-01-14", instead: "gpt-6-luna" },
  {
    models: ["gpt-5", "gpt-5-mini", "gpt-5-nano", "gpt-5-pro", "o3", "o3-pro"],
    day: "2026-12-11",
    instead: "gpt-6-luna"
  },
  {
    models: ["gpt-3.5-turbo", "gpt-4", "gpt-4-turbo", "gpt-4.1-nano", "o1", "o1-pro", "o3-mini", "o4-mini"],
    day: "2026-10-23",
    instead: "gpt-6-luna"
  }
]

/**
 * The model that a dated snapshot (`gpt-4o-2024-08-06`) is of; any other name as it is.
 *
 * @since 0.1.0
 */
export const baseOf = (model: string): string => model.replace(/-\d{4}-\d{2}-\d{2}$/, "")

/**
 * A sentence about a model's end, or `undefined`: none is known. A dated snapshot ends with its model.
 *
 * @since 0.1.0
 */
export const shutdownOf = (model: string, now: number): string | undefined => {
  const base = baseOf(model)
  const found = shutdowns.find(({ models }) => models.includes(base))
  if (found === undefined) return undefined
  const over = new Date(now).toISOString().slice(0, 10) > found.day
  return over
    ? `model ${model} was shut down on ${found.day}: its provider names ${found.instead} instead`
    : `model ${model} will be shut down on ${found.day}: its provider names ${found.instead} instead`
}
