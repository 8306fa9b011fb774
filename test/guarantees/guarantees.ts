/**
 * Runs the command of every claim in docs/guarantees.md, one after the other. Exit 0 only if all held.
 *
 *   npm run guarantees [-- cap damage]   claims whose titles hold one of the words
 */
import { spawnSync } from "node:child_process"
import { fileURLToPath } from "node:url"
import { claims } from "./claims.ts"

const words = process.argv.slice(2).map((word) => word.toLowerCase())
const chosen = claims.filter(
  ({ title }) => words.length === 0 || words.some((word) => title.toLowerCase().includes(word))
)
const root = fileURLToPath(new URL("../..", import.meta.url))
let failed = 0
for (const { commands, title } of chosen) {
  console.log(title)
  for (const command of commands) {
    const begun = performance.now()
    const { status, stderr, stdout } = spawnSync("bash", ["-c", command], {
      cwd: root,
      encoding: "utf8",
      maxBuffer: 1 << 28
    })
    const seconds = Math.round((performance.now() - begun) / 1000)
    console.log(`  ${status === 0 ? "ok    " : "BROKEN"} ${command}   ${seconds} s`)
    if (status === 0) continue
    failed++
    console.log(`${stdout}${stderr}`.split("\n").slice(-40).join("\n"))
  }
}
console.log(failed === 0 ? `${chosen.length} claims held` : `${failed} commands failed`)
process.exitCode = failed === 0 && chosen.length > 0 ? 0 : 1
