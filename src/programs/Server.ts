/**
 * `longhaul serve` as a layer: the HTTP interface over one database, until its scope closes; then runs drain and streams end.
 *
 * @since 0.1.0
 */
import { createServer } from "node:http"
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

/** `operator`: the token that may do everything. @since 0.1.0 */
export interface ServerOptions {
  readonly config: ServerConfig
  readonly db: string
  readonly host: string
  readonly port: number
  readonly operator?: Redacted.Redacted | undefined
}

/** How long a client may take for its headers and its request, and how many may be there, in milliseconds: half-open ones are closed within seconds. */
const patience = { headersTimeout: 5_000, requestTimeout: 10_000, connectionsCheckingInterval: 1_000 }
const MOST_CONNECTIONS = 256

/**
 * The server. Gives `HttpServer`, which knows its address.
 *
 * @since 0.1.0
 */
export const layer = ({ config, db, host, operator, port }: ServerOptions) => {
  const server = createServer(patience)
  server.maxConnections = MOST_CONNECTIONS
  // Below its own close, which waits for every connection: a stream that is open would never end.
  const listening = Layer.scopedDiscard(
    Effect.addFinalizer(() => Effect.sync(() => server.closeAllConnections()))
  ).pipe(Layer.provideMerge(NodeHttpServer.layer(() => server, { port, host })))
  return HttpApiBuilder.serve().pipe(
    Layer.provide(ServerGuards.layer(config)),
    Layer.provide(HttpApiSwagger.layer({ path: "/docs" })),
    Layer.provide(HttpApiBuilder.middlewareOpenApi({ path: "/openapi.json" })),
    Layer.provide(ServerPage.layer),
    Layer.provide(ServerHandlers.layer),
    Layer.provide(ServerAuth.layer({ tokens: config.tokens, operator })),
    Layer.provide(RateLimiter.layer.pipe(Layer.provide(RateLimiter.layerStoreMemory))),
    Layer.provide(ServerRuns.layer(config)),
    Layer.provide(Sqlite.layer({ filename: db })),
    Layer.provide(NodeContext.layer),
    Layer.provideMerge(listening)
  )
}

/**
 * Where it listens, as `http://host:port`.
 *
 * @since 0.1.0
 */
export const address: Effect.Effect<string, never, HttpServer.HttpServer> = HttpServer.addressFormattedWith(
  Effect.succeed
)
