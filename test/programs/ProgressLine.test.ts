import { assert, describe, it } from "@effect/vitest"
import type { Snapshot } from "../../src/programs/Enrichment.ts"
import * as ProgressLine from "../../src/programs/ProgressLine.ts"
import { Usd } from "../../src/services/Usd.ts"

const snapshot = (parts: Partial<Snapshot>): Snapshot => ({
  runId: "run",
  phase: "running",
  paused: null,
  rows: 10_000,
  done: 0,
  partial: 0,
  failed: 0,
  spent: Usd.zero,
  uncertain: Usd.zero,
  working: 8,
  allowed: 8,
  concurrency: 8,
  ...parts
})

describe("the progress line", () => {
  it("reads at a glance, as promised", () => {
    const line = ProgressLine.render(snapshot({ done: 2_347, spent: Usd.nano(12_300_000_000) }), 7.1)
    assert.strictEqual(
      line,
      "2,347 / 10,000 done · $12.30 spent · 8 workers active · est. 18 min remaining · 7.1 rows/s · ≈ $52.40 in all"
    )
  })

  it("shows failed, partial and uncertain only where there are any, and counts failed rows as ended", () => {
    const line = ProgressLine.render(snapshot({ done: 5, partial: 1, failed: 2, uncertain: Usd.nano(1_500_000) }), 100)
    assert.include(line, "8 / 10,000 done")
    assert.include(line, "· 2 failed · 1 partial · $0.0015 uncertain")
  })

  it("an estimate is never NaN, infinite or negative", () => {
    assert.include(ProgressLine.render(snapshot({}), 0), "est. – remaining")
    assert.strictEqual(ProgressLine.rate({ at: 5, ended: 1 }, { at: 5, ended: 9 }), 0)
    assert.strictEqual(ProgressLine.rate({ at: 5, ended: 1 }, { at: 3, ended: 9 }), 0)
    assert.strictEqual(ProgressLine.rate({ at: 0, ended: 9 }, { at: 1_000, ended: 1 }), 0)
    assert.include(
      ProgressLine.render(snapshot({ done: 10_000, working: 0 }), 0),
      "0 workers active · nothing remaining"
    )
  })

  it("says seconds, minutes or hours", () => {
    assert.include(ProgressLine.render(snapshot({ done: 9_990 }), 1), "est. 10 s remaining")
    assert.include(ProgressLine.render(snapshot({}), 1), "est. 2 h 47 min remaining")
    assert.include(ProgressLine.render(snapshot({ working: 1 }), 1), "1 worker active")
  })

  it("on a narrow terminal the words get shorter, and what went wrong stays", () => {
    const narrow = snapshot({ done: 2_344, failed: 3, spent: Usd.nano(12_300_000_000), uncertain: Usd.nano(1) })
    const line = ProgressLine.render(narrow, 7.1, 79)
    assert.strictEqual(line, "2,347 / 10,000 done · $12.30 spent · 8 active · 18 min left · 3 failed")
    assert.isAtMost(line.length, 79)
    assert.match(ProgressLine.render({ ...narrow, phase: "stopping" }, 7.1, 79), /^stopping · 2,347/)
  })

  it("says where the provider takes fewer calls at once than allowed", () => {
    assert.include(ProgressLine.render(snapshot({ working: 2, allowed: 3 }), 1), "· 2 of 3 workers active ·")
    assert.include(ProgressLine.render(snapshot({ working: 1, allowed: 1 }), 1, 79), "· 1 of 1 active ·")
  })

  it("says why it waits", () => {
    assert.include(ProgressLine.render(snapshot({ phase: "cooling" }), 1), "cooling down")
    assert.include(ProgressLine.render(snapshot({ phase: "provider_down" }), 1), "provider down, probing")
    assert.include(ProgressLine.render(snapshot({ phase: "stopping" }), 1), "stopping")
    assert.strictEqual(ProgressLine.render(snapshot({ phase: "loading" }), 1), "loading rows")
  })
})
