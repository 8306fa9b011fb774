import { writeFileSync } from "node:fs"
import { join } from "node:path"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Rows from "../../src/layers/Rows.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import type { RowSource } from "../../src/services/RowSource.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { assessing, assessorWith, bytesOf, dated, enrich, Input, refusedBy, rowsOf } from "./inputs.ts"
import { EnrichedVendor, resultsOf } from "./vendors.ts"

const NOW = Date.parse("2026-10-05T10:00:00Z")
const WEEK = 7 * 24 * 3_600_000

/** A timestamp with its zone; `Schema.Date` alone would read one without by the zone of the machine. */
const zoned = /^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$/
const Instant = Schema.compose(Schema.String.pipe(Schema.pattern(zoned)), Schema.Date)

const lastWeek = (source: RowSource) =>
  Enrichment.make({
    name: "inputs",
    agent: assessorWith(EnrichedVendor),
    row: Schema.Struct({ ...Input.fields, updated_at: Instant }),
    id: (row) => row.id,
    where: (row, now) => now.getTime() - row.updated_at.getTime() <= WEEK,
    source
  })

/** The rest of the test under that zone of the machine. */
const zone = (name: string) =>
  Effect.acquireRelease(
    Effect.sync(() => {
      const before = process.env.TZ
      process.env.TZ = name
      return before
    }),
    (before) =>
      Effect.sync(() => {
        if (before === undefined) delete process.env.TZ
        else process.env.TZ = before
      })
  )

describe("time", () => {
  const name = "B39-naive-timestamp-vendors.csv"
  for (const [tz, offset] of [
    ["America/Los_Angeles", 420],
    ["UTC", 0],
    ["Asia/Tokyo", -540]
  ] as const) {
    it.scopedLive(`B39 naive-timestamp: under ${tz} the same rows are chosen, and a time without zone is refused`, () =>
      dated(
        Effect.gen(function* () {
          yield* zone(tz)
          assert.strictEqual(new Date(NOW).getTimezoneOffset(), offset)
          const whole = yield* refusedBy(lastWeek(rowsOf(name)))
          assertIncludes(whole, { reason: "bad_row", line: 6, field: "updated_at" })

          const dir = yield* tempDir
          const [header = "", ...lines] = bytesOf(name).toString().trimEnd().split("\n")
          const only = (...some: ReadonlyArray<string>) => {
            const path = join(dir, "vendors.csv")
            writeFileSync(path, `${[header, ...some].join("\n")}\n`)
            return lastWeek(Rows.csv(path))
          }
          // Without zone, not ISO, seconds, nothing, no date at all.
          for (const line of lines.slice(4))
            assertIncludes(yield* refusedBy(only(line)), { line: 2, field: "updated_at" })

          const result = yield* enrich(only(...lines.slice(0, 4)), assessing())
          // The second is a second too old; the others are the same instant.
          assertIncludes(result, { status: "done", rows: 3, filtered: 1, calls: 3 })
          assert.deepStrictEqual(
            (yield* resultsOf).map(({ id }) => id),
            ["V-001", "V-003", "V-004"]
          )
        }),
        () => NOW
      ).pipe(Effect.provide(Memory.layer))
    )
  }
})
