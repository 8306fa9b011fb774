/**
 * Starts {@link file://./faultServer.ts} as a process and waits until it listens. It ends with `stop`, or with the process that started it.
 */
import { get } from "node:http"
import { text } from "node:stream/consumers"
import type { AnswerFault, GenericFault } from "./faultAnswers.ts"
import type { Counts, WireFault } from "./faultServer.ts"
import { startServer } from "./startServer.ts"

export type { AnswerFault, Counts, WireFault }
export type Fault = WireFault | AnswerFault | GenericFault

/** `url` is the base URL (`…/v1`) of a provider that has this one fault. */
export interface FaultServer {
  readonly origin: string
  readonly url: (fault: Fault) => string
  readonly counts: () => Promise<Counts>
  readonly stop: () => Promise<void>
}

export const startFaultServer = async (): Promise<FaultServer> => {
  const { origin, stop } = await startServer("faultServer")
  return {
    origin,
    url: (fault) => `${origin}/${fault}/v1`,
    // Over a socket of its own: one from the pool of fetch would be used up, and a test counts those.
    counts: () =>
      new Promise((resolve, reject) => {
        const asked = get(`${origin}/_counts`, { agent: false }, (response) => {
          text(response).then(JSON.parse).then(resolve, reject)
        })
        asked.on("error", reject)
      }),
    stop
  }
}
