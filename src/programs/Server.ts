/**
 * `longhaul serve` as a layer: the HTTP interface over one database, until its scope closes; then runs drain and streams end.
 *
 * @since 0.1.0
 */
import { createServer, type Server } from "node:http"
import type { Socket } from "node:net"
import * as RateLimiter from "@effect/experimental/RateLimiter"
import * as HttpApiBuilder from "@effect/platform/HttpApiBuilder"
import * as HttpApiSwagger from "@effect/platform/HttpApiSwagger"
import * as HttpServer from "@effect/platform/HttpServer"
import * as NodeContext from "@effect/platform-node/NodeContext"
import * as NodeHttpServer from "@effect/platform-node/NodeHttpServer"
import { Effect, Layer, type Redacted } from "effect"
import * as Sqlite from "../layers/Sqlite.ts"
import * as ServerAuth from "./ServerAuth.ts"
import type { ServerConfig } from "./ServerConfig.ts"
import * as ServerGuards from "./ServerGuards.ts"
import * as ServerHandlers from "./ServerHandlers.ts"
import * as ServerPage from "./ServerPage.ts"
import * as ServerRuns from "./ServerRuns.ts"

/** `operator`: the token that may do everything; `spans`: one for each chunk, row, turn and call. @since 0.1.0 */
export interface ServerOptions {
  readonly config: ServerConfig
  readonly db: string
  readonly host: string
  readonly port: number
  readonly operator?: Redacted.Redacted | undefined
  readonly spans: boolean
}

/** How long a client may take for its headers and its request, in milliseconds: half-open ones are closed within seconds. */
const patience = {
  headersTimeout: 5_000,
  requestTimeout: 8_000,
  connectionsCheckingInterval: 1_000,
  // Long, so that a request hardly ever meets the close of its idle connection.
  keepAliveTimeout: 60_000
}
/** How many connections there may be; and from so many on, those make room that have been asking for so many looks. */
const MOST_CONNECTIONS = 1_024
const CROWDED = 240
const MOST_LOOKS = 10
/** Time as the loop lived it, in milliseconds a look: while it stood still, nobody's request could be read. */
const LOOK_MS = 100

/**
 * When places run short, connections that have asked nothing, or not all of it yet, make room, the oldest first, so that half-open ones cannot take the places of those that ask; idle ones only
 * if that does not serve, as their clients may be asking again just then. Node's own limit would turn away who comes last.
 */
const makeRoom = (server: Server): void => {
  const open = new Set<Socket>()
  const asking = new Map<Socket, number>()
  const idle = new Set<Socket>()
  let looks = 0
  const clock = setInterval(() => looks++, LOOK_MS).unref()
  server.once("close", () => clearInterval(clock))
  const leaves = (socket: Socket) => {
    open.delete(socket)
    asking.delete(socket)
    idle.delete(socket)
  }
  const turnOut = (socket: Socket) => {
    leaves(socket)
    socket.destroy()
  }
  server.on("connection", (socket) => {
    open.add(socket)
    asking.set(socket, looks)
    socket.once("close", () => leaves(socket))
    for (const [other, since] of asking) {
      const isSlow = open.size > CROWDED && looks - since >= MOST_LOOKS
      if (other === socket || (!isSlow && open.size <= MOST_CONNECTIONS)) break
      turnOut(other)
    }
    if (open.size <= MOST_CONNECTIONS) return
    // All are being answered: then it is the new one.
    const [other = socket] = idle
    turnOut(other)
  })
  server.on("request", (request, response) => {
    const { socket } = request
    idle.delete(socket)
    asking.delete(socket)
    if (ServerGuards.hasBody(request)) {
      asking.set(socket, looks)
      request.once("end", () => asking.delete(socket))
    }
    response.once("finish", () => {
      if (!socket.destroyed) idle.add(socket)
    })
  })
}

/** Offers to change the protocol are ignored: no web sockets here, and such a connection would have none of the limits. */
const withoutUpgrades = (server: Server): void =>
  void server.on("newListener", (event, listener) => {
    if (event === "upgrade") process.nextTick(() => server.off("upgrade", listener))
  })

/**
 * The server. Gives `HttpServer`, which knows its address.
 *
 * @since 0.1.0
 */
export const layer = ({ config, db, host, operator, port, spans }: ServerOptions) => {
  const server = createServer(patience)
  makeRoom(server)
  withoutUpgrades(server)
  // Below its own close, which waits for every connection: a stream that is open would never end.
  const listening = Layer.scopedDiscard(
    Effect.addFinalizer(() => Effect.sync(() => server.closeAllConnections()))
  ).pipe(Layer.provideMerge(NodeHttpServer.layer(() => server, { port, host })))
  // First of all, while runs drain: who comes from then on is refused at once, and does not wait for an answer that cannot come.
  const closing = Layer.scopedDiscard(
    Effect.addFinalizer(() =>
      Effect.sync(() => {
        server.close()
        server.closeIdleConnections()
      })
    )
  )
  const serving = HttpApiBuilder.serve().pipe(
    Layer.provide(ServerGuards.layer(config)),
    Layer.provide(HttpApiSwagger.layer({ path: "/docs" })),
    Layer.provide(HttpApiBuilder.middlewareOpenApi({ path: "/openapi.json" })),
    Layer.provide(ServerPage.layer),
    Layer.provide(ServerHandlers.layer),
    Layer.provide(ServerAuth.layer({ tokens: config.tokens, operator })),
    Layer.provide(RateLimiter.layer.pipe(Layer.provide(RateLimiter.layerStoreMemory))),
    Layer.provide(ServerRuns.layer(config, spans)),
    Layer.provide(Sqlite.layer({ filename: db })),
    Layer.provide(NodeContext.layer),
    Layer.provideMerge(listening)
  )
  return Layer.provideMerge(closing, serving)
}

/**
 * Where it listens, as `http://host:port`.
 *
 * @since 0.1.0
 */
export const address: Effect.Effect<string, never, HttpServer.HttpServer> = HttpServer.addressWith((address) =>
  Effect.succeed(
    address._tag === "TcpAddress" && address.hostname.includes(":")
      ? `http://[${address.hostname}]:${address.port}`
      : HttpServer.formatAddress(address)
  )
)
