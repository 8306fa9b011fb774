/** Jobs of a few shapes, each of which takes other ways through a run. */
import { Schema } from "effect"
import { Agent, Enrichment, Retry, Rows } from "../../src/index.ts"

export const Vendor = Schema.Struct({ id: Schema.Int, name: Schema.String })
export type Vendor = typeof Vendor.Type
export const Enriched = Schema.Struct({ summary: Schema.String, risk: Schema.Literal("low", "medium", "high") })

export const vendorsOf = (count: number, nameOf = (id: number) => `Vendor ${id}`): ReadonlyArray<Vendor> =>
  Array.from({ length: count }, (_, i) => ({ id: i + 1, name: nameOf(i + 1) }))

type More = Partial<
  Pick<Enrichment.JobOptions<Vendor, Vendor, unknown, unknown>, "chunkSize" | "memo" | "fallback" | "retry" | "keep">
>

export const jobOf = (
  options: More & {
    readonly rows?: number
    readonly maxRepairs?: number
    readonly nameOf?: (id: number) => string
  } = {},
  prompt: (vendor: Vendor) => string = ({ name }) => name
) => {
  const { maxRepairs = 1, nameOf, rows = 50, ...more } = options
  const agent = Agent.make({
    name: "enricher",
    model: "simulated",
    system: "You assess vendors.",
    prompt,
    output: Enriched,
    maxRepairs,
    maxOutputTokens: 200
  })
  return Enrichment.make({
    name: "vendors",
    agent,
    row: Vendor,
    id: (vendor) => vendor.id,
    source: Rows.fromIterable(vendorsOf(rows, nameOf)),
    ...more
  })
}

export const shapes = {
  plain: jobOf(),
  repairs: jobOf({ maxRepairs: 3, chunkSize: 7 }),
  memo: jobOf({ memo: 20, nameOf: (id) => `Vendor ${id % 9}`, chunkSize: 20 }),
  fallback: jobOf({
    chunkSize: 1,
    fallback: [{ model: "simulated", provider: "second" }, { model: "gpt-5-nano" }],
    retry: Retry.policy({ attempts: 2, base: "50 millis", longest: "1 second" })
  }),
  pruned: jobOf({ chunkSize: 10, keep: 2, maxRepairs: 0 })
}
