/**
 * What every request passes before it is looked at: that it came by a name of this server and not from a foreign page, is no larger or deeper than anything that is asked here, and is JSON. What every answer
 * gets: an id, and headers that keep a browser from guessing or keeping it.
 *
 * @since 0.1.0
 */
import { randomUUID } from "node:crypto"
import * as HttpApiBuilder from "@effect/platform/HttpApiBuilder"
import * as HttpApp from "@effect/platform/HttpApp"
import type * as HttpServerError from "@effect/platform/HttpServerError"
import * as HttpServerRequest from "@effect/platform/HttpServerRequest"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import * as NodeHttpServerRequest from "@effect/platform-node/NodeHttpServerRequest"
import { Cause, Effect, Option, Predicate } from "effect"
import * as MonotonicTime from "../services/MonotonicTime.ts"

/** @since 0.1.0 */
export interface Guards {
  /** Names that this server is reached by, with or without a port, besides this machine's own. */
  readonly hosts: ReadonlyArray<string>
  /** Pages that may ask, besides its own. */
  readonly origins: ReadonlyArray<string>
}

/** Bytes that a body may have, and how deep its JSON may be. */
const MOST_BYTES = 1_000_000
const MOST_DEPTH = 32

/**
 * The guards around the whole server.
 *
 * @since 0.1.0
 */
export const layer = (guards: Guards) =>
  HttpApiBuilder.middleware(
    Effect.sync(() => {
      const looks = turns()
      const verbs = turns()
      return (app) =>
        Effect.gen(function* () {
          const request = yield* HttpServerRequest.HttpServerRequest
          yield* HttpApp.appendPreResponseHandler(yield* farewell)
          const body = refusalOf(request, guards) ?? (yield* bodyOf(request))
          // Only now: what waits here has asked all that it asks.
          yield* isRead(request) ? looks : verbs
          return typeof body === "string" ? yield* answered(app, request, body) : body
        })
    })
  )

const answered = <E, R>(app: HttpApp.Default<E, R>, request: HttpServerRequest.HttpServerRequest, body: string) =>
  Effect.gen(function* () {
    const safely = Effect.catchAllCause(app, failed)
    if (isRead(request)) return yield* safely
    if (depthOf(body) > MOST_DEPTH) return error(400, "too_deep", `JSON may be ${MOST_DEPTH} deep`)
    const json = parsed(body)
    if (Option.isNone(json)) return error(400, "bad_json", "the body is not JSON")
    // For whoever reads the body next.
    const read: typeof request = Object.create(request, {
      text: { value: Effect.succeed(body) },
      json: { value: Effect.succeed(json.value) }
    })
    return yield* Effect.provideService(safely, HttpServerRequest.HttpServerRequest, read)
  })

/**
 * Node lets one new connection in a turn of its loop. If a turn answers all who are there, a flood of requests keeps others out for seconds, so that one is begun a turn, in their order: one that
 * looks and one that changes something. (A semaphore of effect 3.22 wakes all who wait for each permit: 200 clients were answered at a quarter of the rate.)
 */
const turns = (): Effect.Effect<void> => {
  const waiting: Array<() => void> = []
  const next = () => {
    waiting.shift()?.()
    if (waiting.length > 0) setImmediate(next)
  }
  return Effect.async((resume) => {
    if (waiting.push(() => resume(Effect.void)) === 1) setImmediate(next)
  })
}

/** Every answer gets its headers, and a line in the log: without its query, which may hold a row's text. */
const farewell = Effect.map(MonotonicTime.now, (begun) => {
  const requestId = randomUUID()
  return (request: HttpServerRequest.HttpServerRequest, response: HttpServerResponse.HttpServerResponse) =>
    Effect.gen(function* () {
      const ms = Math.round((yield* MonotonicTime.now) - begun)
      const path = request.url.split("?")[0] ?? ""
      yield* Effect.annotateLogs(Effect.logInfo("request"), {
        requestId,
        method: request.method,
        path,
        status: response.status,
        ms
      })
      return HttpServerResponse.setHeaders(response, { ...headers, "x-request-id": requestId })
    })
})

const headers = {
  "x-content-type-options": "nosniff",
  "cache-control": "no-store",
  "referrer-policy": "no-referrer",
  "x-frame-options": "DENY",
  "cross-origin-resource-policy": "same-origin"
}

const error = (status: number, code: string, message: string) =>
  HttpServerResponse.unsafeJson({ _tag: "Refused", code, message }, { status })

/** What the interface itself does not know: a path that is not there, or a bug, which stands in the log by the answer's id. */
const failed = <E>(cause: Cause.Cause<E>): Effect.Effect<HttpServerResponse.HttpServerResponse, E> => {
  const failure = Option.getOrUndefined(Cause.failureOption(cause))
  if (isRequestError(failure, "RouteNotFound")) {
    return Effect.succeed(error(404, "not_found", "there is nothing at this path"))
  }
  if (isRequestError(failure, "RequestError")) {
    return Effect.succeed(error(400, "bad_request", "the request cannot be read"))
  }
  if (failure !== undefined || Cause.isInterrupted(cause)) return Effect.failCause(cause)
  return Effect.as(
    Effect.logError("a request failed", cause),
    error(500, "internal", "a bug in the server: its log has this request's id")
  )
}

const isRequestError = (
  failure: unknown,
  tag: HttpServerError.RequestError["_tag"] | HttpServerError.RouteNotFound["_tag"]
): boolean => Predicate.isTagged(failure, tag)

const refusalOf = (request: HttpServerRequest.HttpServerRequest, { hosts, origins }: Guards) => {
  const { host = "", origin } = request.headers
  if (!isOurs(host, hosts)) return error(421, "wrong_host", "this server is not reached by that name")
  const isOwn = origin === `http://${host}` || origin === `https://${host}`
  if (origin !== undefined && !isOwn && !origins.includes(origin)) {
    return error(403, "foreign_origin", "pages of other sites may not ask")
  }
  if (!isWellFormed(request.url)) return error(400, "bad_path", "the path is not well formed")
  if (!hasBody(request)) return undefined
  if (lengthOf(request) > MOST_BYTES) return tooLarge
  return /^application\/json\s*(;|$)/i.test(request.headers["content-type"] ?? "")
    ? undefined
    : error(415, "not_json", "send application/json")
}

/** A request, as this platform or Node has it. @since 0.1.0 */
export interface Head {
  readonly method?: string | undefined
  readonly headers: { readonly [name: string]: unknown }
}

const lengthOf = ({ headers }: Head) => Number(headers["content-length"] ?? 0)
const isRead = ({ method }: Head) => method === "GET" || method === "HEAD"
/** Whether there is a body to wait for. @since 0.1.0 */
export const hasBody = (head: Head): boolean =>
  !isRead(head) && (lengthOf(head) > 0 || head.headers["transfer-encoding"] !== undefined)

const tooLarge = error(413, "too_large", `a body may have ${MOST_BYTES} bytes`)

/** The body, for a verb that needs no more than its path too; or what is answered: what is too much is read and thrown away, so that the client still hears why; one that is gone hears nothing, and is not waited for. */
const bodyOf = (
  request: HttpServerRequest.HttpServerRequest
): Effect.Effect<string | HttpServerResponse.HttpServerResponse> =>
  Effect.async((resume) => {
    if (!hasBody(request)) return resume(Effect.succeed("{}"))
    const source = NodeHttpServerRequest.toIncomingMessage(request)
    let bytes = 0
    const chunks: Array<Buffer> = []
    const gone = () => resume(Effect.succeed(HttpServerResponse.empty({ status: 400 })))
    source.on("data", (chunk: Buffer) => {
      bytes += chunk.length
      if (bytes <= MOST_BYTES) return void chunks.push(chunk)
      chunks.length = 0
      resume(Effect.succeed(tooLarge))
    })
    source.once("end", () => resume(Effect.succeed(Buffer.concat(chunks).toString())))
    source.once("error", gone)
    source.once("close", gone)
  })

const parsed = Option.liftThrowable((text: string): unknown => JSON.parse(text))

const local = /^(127\.0\.0\.1|\[::1\]|localhost)(:\d+)?$/i

const isOurs = (host: string, hosts: ReadonlyArray<string>): boolean =>
  local.test(host) || hosts.some((name) => host === name || host.replace(/:\d+$/, "") === name)

const isWellFormed = (url: string): boolean => {
  try {
    decodeURIComponent(url.split("?")[0] ?? "")
    return true
  } catch {
    return false
  }
}

/** Of brackets outside strings. */
const depthOf = (json: string): number => {
  let depth = 0
  let most = 0
  let inString = false
  for (let i = 0; i < json.length; i++) {
    const char = json[i]
    if (inString) {
      if (char === "\\") i++
      else if (char === '"') inString = false
    } else if (char === '"') inString = true
    else if (char === "[" || char === "{") most = Math.max(most, ++depth)
    else if (char === "]" || char === "}") depth--
  }
  return most
}
