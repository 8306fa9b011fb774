/**
 * Who asks: bearer tokens, known by their SHA-256 alone, and how often each caller may change something.
 *
 * @since 0.1.0
 */
import { createHash, timingSafeEqual } from "node:crypto"
import * as RateLimiter from "@effect/experimental/RateLimiter"
import * as HttpApp from "@effect/platform/HttpApp"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import { type Context, Duration, Effect, Layer, Redacted } from "effect"
import { Auth, type Caller, Scope } from "./Api.ts"
import { TooMany, Unauthorized } from "./ApiErrors.ts"
import { OPERATOR, type ServerConfig } from "./ServerConfig.ts"

/** @since 0.1.0 */
export interface AuthOptions {
  readonly tokens: ServerConfig["tokens"]
  /** The operator's own: all scopes, and all runs of the database. */
  readonly operator?: Redacted.Redacted | undefined
}

const sha256 = (token: string) => createHash("sha256").update(token).digest()

/**
 * Knows callers by their tokens.
 *
 * @since 0.1.0
 */
export const layer = ({ operator, tokens }: AuthOptions): Layer.Layer<Auth> => {
  const known = tokens.map(({ name, scopes, sha256 }) => ({
    hash: Buffer.from(sha256, "hex"),
    caller: { name, scopes: new Set(scopes), isOperator: false }
  }))
  if (operator !== undefined) {
    const caller = { name: OPERATOR, scopes: new Set(Scope.literals), isOperator: true }
    known.push({ hash: sha256(Redacted.value(operator)), caller })
  }
  return Layer.succeed(
    Auth,
    Auth.of({
      bearer: (token) =>
        Effect.suspend(() => {
          const hash = sha256(Redacted.value(token))
          // Every one is compared, so that the time tells nothing.
          const [found] = known.filter((one) => timingSafeEqual(one.hash, hash))
          return found === undefined ? unauthorized : Effect.succeed(found.caller)
        })
    })
  )
}

/**
 * A run is its caller's matter, and the operator's.
 *
 * @since 0.1.0
 */
export const maySee = ({ isOperator, name }: Context.Tag.Service<Caller>, owner: string | undefined): boolean =>
  isOperator || owner === name

const unauthorized = Effect.zipRight(
  HttpApp.appendPreResponseHandler((_, response) =>
    Effect.succeed(HttpServerResponse.setHeader(response, "www-authenticate", 'Bearer realm="longhaul"'))
  ),
  new Unauthorized({ code: "token", message: "send Authorization: Bearer <token>" })
)

/**
 * One more request of a caller that changes something.
 *
 * @since 0.1.0
 */
export const withinRate = (caller: string, perMinute: number): Effect.Effect<void, TooMany, RateLimiter.RateLimiter> =>
  Effect.flatMap(RateLimiter.RateLimiter, ({ consume }) =>
    consume({ key: caller, limit: perMinute, window: "1 minute", algorithm: "token-bucket" })
  ).pipe(
    Effect.asVoid,
    Effect.catchAll((error) =>
      error.reason === "Exceeded"
        ? Effect.fail(
            new TooMany({
              code: "too_many_requests",
              message: `${perMinute} changes a minute are allowed`,
              retryAfterSeconds: Math.max(1, Math.ceil(Duration.toSeconds(error.retryAfter)))
            })
          )
        : Effect.die(error)
    )
  )
