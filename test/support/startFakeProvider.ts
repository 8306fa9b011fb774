/**
 * Starts {@link file://./fakeProvider.ts} as a process and waits until it listens. It ends with `stop`, or with the process that started it.
 */
import type { Bill } from "./fakeProvider.ts"
import { startServer } from "./startServer.ts"

export type { Bill }

/** The flags of the fake provider, by name; what is left out is its default (`rate429` and the like: 0). */
export interface Flags {
  readonly port?: number
  readonly latency?: number
  readonly rate429?: number
  readonly billed500?: number
  readonly billedReset?: number
  readonly billedHang?: number
  readonly seed?: number
  readonly inputNano?: number
  readonly outputNano?: number
}

/** `url` is the base URL for a client (`…/v1`). */
export interface FakeProvider {
  readonly url: string
  readonly bill: () => Promise<Bill>
  /** Begins a new bill. */
  readonly reset: () => Promise<void>
  readonly stop: () => Promise<void>
}

export const startFakeProvider = async (flags: Flags = {}): Promise<FakeProvider> => {
  const args = Object.entries(flags).flatMap(([name, value]) => [`--${name}`, String(value)])
  const { origin, stop } = await startServer("fakeProvider", args)
  return {
    url: `${origin}/v1`,
    bill: async () => JSON.parse(await (await fetch(`${origin}/_bill`)).text()),
    reset: async () => void (await (await fetch(`${origin}/_reset`, { method: "POST" })).text()),
    stop
  }
}
