/** A server of the test's own process on a free port of the loopback, for as long as the scope is open; gives the base URL for a client (`…/v1`). */
import type { Server } from "node:http"
import { Effect } from "effect"

export const listening = (server: Server) =>
  Effect.map(
    Effect.acquireRelease(
      Effect.async<void>((resume) => void server.listen(0, "127.0.0.1", () => resume(Effect.void))),
      () =>
        Effect.sync(() => {
          server.close()
          server.closeAllConnections()
        })
    ),
    () => {
      const address = server.address()
      return `http://127.0.0.1:${address instanceof Object ? address.port : 0}/v1`
    }
  )
