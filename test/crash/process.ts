/** The processes that are killed: the real command of `dist/`, or the light child, bundled once. */
import { type ChildProcess, spawn } from "node:child_process"
import { randomUUID } from "node:crypto"
import { once } from "node:events"
import { mkdirSync } from "node:fs"
import { dirname, join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import { fileURLToPath } from "node:url"
import { buildSync } from "esbuild"
import type { Order } from "./order.ts"

const root = fileURLToPath(new URL("../..", import.meta.url))
const here = (path: string) => fileURLToPath(new URL(path, import.meta.url))

/** One file: node starts it in a fraction of the time that a loader takes. It stands beside the packages, where the native one is found. */
export const bundleChild = (): string => {
  const outfile = join(root, "node_modules", ".cache", `longhaul-crash-${randomUUID()}.mjs`)
  mkdirSync(dirname(outfile), { recursive: true })
  const options = { bundle: true, platform: "node", format: "esm", target: "node20" } as const
  buildSync({ entryPoints: [here("./child.ts")], outfile, external: ["better-sqlite3"], ...options })
  return outfile
}

/** One life of a run. `ready` resolves when its work begins. */
export interface Life {
  readonly process: ChildProcess
  readonly ready: Promise<unknown>
  readonly ended: Promise<unknown>
  readonly said: () => string
}

const living = (process: ChildProcess, says: "stdout" | "stderr"): Life => {
  let said = ""
  const stderr = process.stderr
  stderr?.on("data", (chunk) => {
    said = `${said}${chunk}`.slice(-2_000)
  })
  const ended = once(process, "exit")
  const first = process[says]
  const ready = Promise.race(first === null ? [ended] : [once(first, "data"), ended])
  return { process, ready, ended, said: () => said }
}

/** The light child. */
export const startChild = (bundle: string, order: Order): Life =>
  living(spawn(process.execPath, [bundle, JSON.stringify(order)], { stdio: ["ignore", "pipe", "pipe"] }), "stdout")

/** The command; it is ready when the run is claimed, so that kills fall into work and not into the start of node. */
export const startCommand = (cwd: string, order: Order): Life => {
  const of = ["run", jobFile, "--run-id", order.runId, "--db", order.db]
  const files = ["--source", order.source, "--out", order.out]
  const limits = ["--budget", String(order.budget), "--concurrency", String(order.concurrency)]
  const timeout = ["--timeout", String(Math.ceil(order.timeoutMs / 1000))]
  return startLonghaul(cwd, [...of, ...files, ...limits, ...timeout], order.provider)
}

export const jobFile = here("./job.ts")

/** The command with these arguments. `cwd`: not the project's own directory, so that a job finds the library as an installed one does. */
export const startLonghaul = (cwd: string, args: ReadonlyArray<string>, provider = ""): Life => {
  const child = spawn(process.execPath, [here("../../dist/programs/main.js"), ...args], {
    cwd,
    stdio: ["ignore", "ignore", "pipe"],
    env: { ...process.env, OPENAI_API_KEY: "sk-crash", OPENAI_BASE_URL: provider }
  })
  return living(child, "stderr")
}

/** Kills it so many milliseconds after its work began; false: it had ended before. */
export const killAfter = async (life: Life, ms: number): Promise<boolean> => {
  await life.ready
  await Promise.race([sleep(ms), life.ended])
  life.process.kill("SIGKILL")
  await life.ended
  return wasKilled(life)
}

export const wasKilled = ({ process }: Life): boolean => process.signalCode === "SIGKILL"
