/**
 * Plays recorded replies over real HTTP, well or badly as each of them says, and keeps what it was asked. It lives in the test's process; its clock is the
 * test's, so that a request's time may be virtual.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import type { Socket } from "node:net"
import { Duration, Effect, Either, Fiber, Option, Schema, type Scope, TestClock } from "effect"
import { listening } from "./listening.ts"

/**
 * `send_bytes` of the body (default: all of it), then (in a file: `then`) silence, a reset, or an end that never comes. 0 bytes: not even the headers.
 */
const Wire = Schema.Struct({
  send_bytes: Schema.optional(Schema.Int),
  ends: Schema.propertySignature(Schema.Literal("stall", "reset", "never_end")).pipe(Schema.fromKey("then"))
})

/** An object as body is sent as JSON, a text as it is. */
export const Reply = Schema.Struct({
  status: Schema.Int,
  headers: Schema.Record({ key: Schema.String, value: Schema.String }),
  body: Schema.Unknown,
  wire: Schema.optional(Wire)
})
export type Reply = typeof Reply.Type

/** One reply to every request, or replies in order, the last of them for all that come later. */
export const Fixture = Schema.Union(Reply, Schema.Struct({ sequence: Schema.NonEmptyArray(Reply) }))
export type Fixture = typeof Fixture.Type

/** A request as it came, from 1. `said` is its first user message. */
export interface Seen {
  readonly n: number
  readonly at: number
  readonly authorization: string
  readonly model: string
  readonly said: string
  readonly body: string
}

export type Script = (seen: Seen) => Reply | Promise<Reply>

export interface FixtureServer {
  readonly url: string
  readonly requests: ReadonlyArray<Seen>
  /** Exchanges under way: begun, and neither answered nor broken off. */
  readonly live: () => number
  /** The most that were under way at once. */
  readonly most: () => number
  /** Closes the connections that are kept alive and not in use. */
  readonly closeIdle: () => void
}

export interface ServerOptions {
  /** So many connections, the first ones, are reset before a byte of them is read. */
  readonly resets?: number
}

export const repliesOf = (fixture: Fixture): ReadonlyArray<Reply> =>
  "sequence" in fixture ? fixture.sequence : [fixture]

/** The replies in order, the last again and again. */
export const inOrder = (...fixtures: ReadonlyArray<Fixture>): Script => {
  const replies = fixtures.flatMap(repliesOf)
  return ({ n }) => replies[Math.min(n, replies.length) - 1] ?? broken
}
const broken: Reply = { status: 500, headers: {}, body: "the script is empty" }

/** A server that answers by the script, for as long as the scope is open. */
export const play = (
  script: Script,
  { resets = 0 }: ServerOptions = {}
): Effect.Effect<FixtureServer, never, Scope.Scope> =>
  Effect.gen(function* () {
    const clock = yield* Effect.clock
    const requests: Array<Seen> = []
    let accepted = 0
    let live = 0
    let most = 0

    const answer = async (incoming: IncomingMessage, response: ServerResponse) => {
      most = Math.max(most, ++live)
      response.on("close", () => live--)
      const body = await textOf(incoming)
      const seen: Seen = {
        n: requests.length + 1,
        at: clock.unsafeCurrentTimeMillis(),
        authorization: incoming.headers.authorization ?? "",
        ...readAsked(body),
        body
      }
      requests.push(seen)
      send(await script(seen), response)
    }

    const server = createServer((incoming, response) => {
      // A client that is gone before its request was read has asked nothing.
      answer(incoming, response).catch(() => response.destroy())
    })
    server.on("connection", (socket: Socket) => {
      if (accepted++ < resets) socket.resetAndDestroy()
    })
    const url = yield* listening(server)
    return {
      url,
      requests,
      live: () => live,
      most: () => most,
      closeIdle: () => server.closeIdleConnections()
    }
  })

const send = ({ body, headers, status, wire }: Reply, response: ServerResponse): void => {
  const bytes = Buffer.from(typeof body === "string" ? body : JSON.stringify(body))
  const reset = () => response.socket?.resetAndDestroy()
  if (wire?.send_bytes === 0) {
    if (wire.ends === "reset") reset()
    return
  }
  response.writeHead(status, headers)
  if (wire === undefined) {
    response.end(bytes)
    return
  }
  // The bytes are on their way before the connection breaks.
  response.write(bytes.subarray(0, wire.send_bytes ?? bytes.length), () => {
    if (wire.ends === "reset") setTimeout(reset, 20)
  })
}

const textOf = async (incoming: IncomingMessage): Promise<string> => {
  const chunks: Array<Buffer> = []
  for await (const chunk of incoming) chunks.push(chunk)
  return Buffer.concat(chunks).toString()
}

const Asked = Schema.parseJson(
  Schema.Struct({
    model: Schema.String,
    messages: Schema.Array(Schema.Struct({ role: Schema.String, content: Schema.String }))
  })
)
const decodeAsked = Schema.decodeUnknownEither(Asked)
const readAsked = (body: string): Pick<Seen, "model" | "said"> => {
  const { messages, model } = Either.getOrElse(decodeAsked(body), () => ({ messages: [], model: "" }))
  return { model, said: messages.find(({ role }) => role === "user")?.content ?? "" }
}

/**
 * Lets virtual time pass, `step` by `step`, whenever the server has nothing under way, until the effect ends: so minutes of waiting between real requests take
 * no time. It must be over after `most` of virtual time.
 */
export const elapse = <A, E, R>(
  server: FixtureServer,
  effect: Effect.Effect<A, E, R>,
  { most, step }: { readonly most: Duration.DurationInput; readonly step: Duration.DurationInput }
): Effect.Effect<A, E, R> =>
  Effect.gen(function* () {
    const fiber = yield* Effect.fork(effect)
    for (let passed = 0; passed <= Duration.toMillis(most); passed += Duration.toMillis(step)) {
      yield* idle(server)
      if (Option.isSome(yield* Fiber.poll(fiber))) return yield* Fiber.join(fiber)
      yield* TestClock.adjust(step)
    }
    yield* Fiber.interruptFork(fiber)
    return yield* Effect.dieMessage(`it is not over after ${Duration.format(most)} of virtual time`)
  })

/** The server has answered everything, and the client had a moment to read it. */
const idle = (server: FixtureServer): Effect.Effect<void> =>
  Effect.promise(async () => {
    let quiet = 0
    while (quiet < 3) {
      await new Promise((resume) => setTimeout(resume, 1))
      quiet = server.live() === 0 ? quiet + 1 : 0
    }
  })
