/**
 * `@copilotkit/aimock`, a provider that nobody here wrote, as a process: it answers each chat completion about the first integer in the row's message, and breaks
 * some of them. The dice are seeded, so that a run of equal rows meets equally many faults of each kind.
 *
 * node --import tsx test/support/aimockServer.ts --rateLimit 0.01 --malformed 0.03 --disconnect 0.03 --drop 0.03 --seed 1
 *
 * `GET /__aimock/journal` gives its journal. When it listens, it prints one line, `{"port":N}`.
 */
import { createHash } from "node:crypto"
import { parseArgs } from "node:util"
import { LLMock } from "@copilotkit/aimock"

const { values: flags } = parseArgs({
  options: {
    rateLimit: { type: "string", default: "0" },
    malformed: { type: "string", default: "0" },
    disconnect: { type: "string", default: "0" },
    drop: { type: "string", default: "0" },
    seed: { type: "string", default: "1" }
  }
})

let thrown = 0
Math.random = () => createHash("sha256").update(`${flags.seed} ${thrown++}`).digest().readUInt32BE() / 2 ** 32

const mock = new LLMock({
  chaos: {
    rateLimitRate: Number(flags.rateLimit),
    malformedRate: Number(flags.malformed),
    disconnectRate: Number(flags.disconnect),
    dropRate: Number(flags.drop)
  },
  // Without a limit: by default it forgets what is older than 1,000 requests.
  journalMaxEntries: 0
})
mock.on({ endpoint: "chat" }, ({ messages }) => {
  const said = String(messages.findLast(({ role }) => role === "user")?.content)
  return {
    content: JSON.stringify({ id: Number(/\d+/.exec(said)?.[0]), summary: `about ${said}` }),
    usage: { prompt_tokens: 20, completion_tokens: 10, total_tokens: 30 }
  }
})

await mock.start()
console.log(JSON.stringify({ port: mock.port }))
// Started by another process, it ends with it, even if that one is killed.
process.on("disconnect", () => process.exit(0))
