import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import { stall } from "./T12Stall.ts"

describe("a blocked event loop", () => {
  it.scopedLive(
    "is reported with its length, and nothing is lost by it",
    () => Effect.map(stall.run, ({ broken }) => assert.deepStrictEqual(broken, [])),
    { timeout: 120_000 }
  )
})
