/** The job of the walk: the example's, over a provider that sometimes refuses and sometimes answers with what cannot be read. */
import { type LLM, LLMSimulated } from "longhaul"

export { default } from "../../examples/vendors/job.ts"

const assess = ({ messages }: LLM.ChatRequest): unknown => {
  const text = messages[1]?.content ?? ""
  if (text.includes("Pampas Robotics SA")) return "I would rather say this in my own words."
  const summary = text.slice(text.indexOf(": ") + 2).split(/(?<=\.)\s/)[0] ?? ""
  return { summary, risk: /late|fire|recalls/.test(text) ? "high" : /leased|single/.test(text) ? "medium" : "low" }
}

export const simulated = LLMSimulated.layer({
  respond: assess,
  latencyMs: { p50: 60, p99: 220 },
  rate429: 0.004,
  rateRefusal: 0.002
})
