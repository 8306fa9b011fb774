/** The real command, as it is packed, in a process of its own: `dist/` is built before the tests (test/support/build.ts). */
import { type ChildProcess, spawn } from "node:child_process"
import { once } from "node:events"
import { fileURLToPath } from "node:url"

const main = fileURLToPath(new URL("../../dist/programs/main.js", import.meta.url))
/** The command has the SDK of the tests, see vitest.config.ts. */
const openai7 = process.env.LONGHAUL_OPENAI === "7" ? ["--import", new URL("./openai7.mjs", import.meta.url).href] : []

export interface Ended {
  readonly code: number | null
  readonly stdout: string
  readonly stderr: string
}

export interface Running {
  readonly child: ChildProcess
  readonly ended: Promise<Ended>
  /** What it has printed so far. */
  readonly stdout: () => string
  /** Resolves when stderr has shown this text. */
  readonly shows: (text: string) => Promise<void>
}

export interface Options {
  readonly cwd: string
  readonly env?: Readonly<Record<string, string>>
  /** What starts node: a shell with limits. */
  readonly through?: ReadonlyArray<string>
  readonly as?: { readonly uid: number; readonly gid: number }
}

/** Starts `longhaul …args`, without a terminal and without a key or settings of the caller's environment. */
export const command = (args: ReadonlyArray<string>, { as, cwd, env = {}, through = [] }: Options): Running => {
  const clean = Object.entries(process.env).filter(([name]) => !/^(OPENAI|LONGHAUL|NODE_OPTIONS|VITEST)/.test(name))
  const [first = process.execPath, ...rest] = [...through, process.execPath, ...openai7, main, ...args]
  const child = spawn(first, rest, {
    ...as,
    cwd,
    env: { ...Object.fromEntries(clean), ...env },
    stdio: ["ignore", "pipe", "pipe"]
  })
  let stdout = ""
  let stderr = ""
  const listeners = new Set<() => void>()
  child.stdout.on("data", (chunk) => {
    stdout += chunk
  })
  child.stderr.on("data", (chunk) => {
    stderr += chunk
    for (const listener of listeners) listener()
  })
  const ended = once(child, "close").then(([code]): Ended => ({ code, stdout, stderr }))
  const shows = (text: string) =>
    new Promise<void>((resolve, reject) => {
      const look = () => {
        if (!stderr.includes(text)) return
        listeners.delete(look)
        resolve()
      }
      listeners.add(look)
      look()
      ended.then(() => reject(new Error(`ended without showing "${text}": ${stderr}`)), reject)
    })
  return { child, ended, stdout: () => stdout, shows }
}
