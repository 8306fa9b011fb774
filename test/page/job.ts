/**
 * The vendors of the example with a provider that is slow enough to be watched and steered, and fails in several ways.
 */
import { LLMSimulated } from "longhaul"
import job from "../../examples/vendors/job.ts"

export default job

const risks = ["low", "low", "low", "medium", "high"]

export const simulated = LLMSimulated.layer({
  respond: ({ messages }) => {
    const text = messages[1]?.content ?? ""
    const summary = text.slice(text.indexOf(": ") + 2).split(/(?<=\.)\s/)[0] ?? ""
    return { summary, risk: risks[text.length % risks.length] }
  },
  latencyMs: { p50: 110, p99: 420 },
  rate429: 0.002,
  rate5xx: 0.006,
  rateBadJson: 0.02,
  rateRefusal: 0.006
})
