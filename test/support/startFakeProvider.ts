/**
 * Starts {@link file://./fakeProvider.ts} as a process and waits until it listens. It ends with `stop`, or with the process that started it.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import type { Bill } from "./fakeProvider.ts"

export type { Bill }

/** The flags of the fake provider, by name; what is left out is its default (`rate429` and the like: 0). */
export interface Flags {
  readonly port?: number
  readonly latency?: number
  readonly rate429?: number
  readonly billed500?: number
  readonly billedReset?: number
  readonly seed?: number
  readonly inputNano?: number
  readonly outputNano?: number
}

/** `url` is the base URL for a client (`…/v1`). */
export interface FakeProvider {
  readonly url: string
  readonly bill: () => Promise<Bill>
  readonly stop: () => Promise<void>
}

export const startFakeProvider = async (flags: Flags = {}): Promise<FakeProvider> => {
  const file = fileURLToPath(new URL("./fakeProvider.ts", import.meta.url))
  const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])
  const child = spawn(process.execPath, ["--import", "tsx", file, ...args], {
    stdio: ["ignore", "pipe", "inherit", "ipc"]
  })
  if (child.stdout === null) throw new Error("The fake provider has no output")
  const ended = once(child, "exit")
  const early = ended.then(([code]) => Promise.reject(new Error(`The fake provider ended early, with code ${code}`)))
  early.catch(() => undefined)
  const [line] = await Promise.race([once(createInterface({ input: child.stdout }), "line"), early])
  const origin = `http://127.0.0.1:${JSON.parse(line).port}`
  return {
    url: `${origin}/v1`,
    bill: async () => JSON.parse(await (await fetch(`${origin}/_bill`)).text()),
    stop: async () => {
      child.kill("SIGKILL")
      await ended
    }
  }
}
