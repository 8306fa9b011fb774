/**
 * What the promises rest on outside the database, looked at here and now: the file system, the free space, and that one call is one request.
 *
 * @since 0.1.0
 */
import { accessSync, constants, existsSync, statfsSync, statSync } from "node:fs"
import { createServer, type Server } from "node:http"
import { dirname } from "node:path"
import { Effect, Either, Redacted, Schema } from "effect"
import { type Finding, failed, fine, warning } from "../services/Finding.ts"
import { LLM, request } from "../services/LLM.ts"
import * as LLMOpenAI from "./LLMOpenAI.ts"

/** Less free space than this, in bytes, is worth a word: a million rows take about 1 GB. */
const LITTLE = 1_000_000_000

/**
 * The database file's directory, its rights, the file system under it, the space left.
 *
 * @since 0.1.0
 */
export const files = (path: string): ReadonlyArray<Finding> => {
  const directory = dirname(path)
  if (!existsSync(directory)) return [failed("directory", `${directory} does not exist`)]
  return [writable(existsSync(path) ? [path, directory] : [directory]), local(directory), space(directory)]
}

const writable = (paths: ReadonlyArray<string>): Finding => {
  const closed = paths.find((path) =>
    Either.isLeft(Either.try(() => accessSync(path, constants.R_OK | constants.W_OK)))
  )
  if (closed !== undefined) return failed("rights", `${closed} cannot be written by this user`)
  const [first = ""] = paths
  const open = (statSync(first).mode & 0o077) !== 0
  return open
    ? warning("rights", `other users can read ${first}, which holds rows and answers: chmod go= it if they should not`)
    : fine("rights", `${first} is this user's alone`)
}

/** File systems without dependable locks and shared memory, by the magic number of statfs(2) (linux/magic.h and the cifs, 9p and fuse sources). */
const remote: ReadonlyMap<number, string> = new Map([
  [0x6969, "NFS"],
  [0xff534d42, "CIFS"],
  [0xfe534d42, "SMB2"],
  [0x517b, "SMB"],
  [0x01021997, "9p"],
  [0x65735546, "FUSE"],
  [0x5346414f, "AFS"],
  [0x00c36400, "Ceph"]
])

const local = (directory: string): Finding => {
  const name = remote.get(statfsSync(directory).type)
  return name === undefined
    ? fine("file system", `${directory} is on a local disk, as far as can be seen`)
    : failed(
        "file system",
        `${directory} is on ${name}, where SQLite's locks do not hold: put the database on a local disk`
      )
}

const space = (directory: string): Finding => {
  const { bavail, bsize } = statfsSync(directory)
  const free = bavail * bsize
  const detail = `${(free / 1e9).toFixed(1)} GB free in ${directory}`
  return free < LITTLE ? warning("space", detail) : fine("space", detail)
}

/**
 * Sends one call through the adapter to a server on this machine that answers with an error: a hidden second request would be a charge without a hold. Also looks that the
 * output limit is sent, on which every hold rests.
 *
 * @since 0.1.0
 */
export const oneRequest: Effect.Effect<Finding> = Effect.scoped(
  Effect.gen(function* () {
    const bodies: Array<string> = []
    const server = yield* Effect.acquireRelease(
      Effect.sync(() => failing(bodies)),
      (server) =>
        Effect.sync(() => {
          server.close()
          server.closeAllConnections()
        })
    )
    const port = yield* Effect.async<number, Error>((resume) => {
      server.once("error", (error) => resume(Effect.fail(error)))
      server.listen(0, "127.0.0.1", () => {
        const address = server.address()
        resume(Effect.succeed(typeof address === "object" && address !== null ? address.port : 0))
      })
    })
    const options = { apiKey: Redacted.make("self-check"), baseUrl: `http://127.0.0.1:${port}/v1` }
    const call = Effect.flatMap(LLM, (llm) => llm.generate(asked))
    yield* Effect.ignore(Effect.provide(call, LLMOpenAI.layerWith(options)))
    return adapterFinding(bodies)
  })
).pipe(
  Effect.catchAllCause(() => Effect.succeed(warning("adapter", "could not be tried: no server can be opened here")))
)

const LIMIT = 17
const asked = request({
  model: "gpt-4o-mini",
  messages: [{ role: "user", content: "self-check" }],
  maxOutputTokens: LIMIT,
  format: { mode: "text" }
})

const failing = (bodies: Array<string>): Server =>
  createServer((incoming, answer) => {
    let body = ""
    incoming.on("data", (chunk: Buffer) => {
      body += chunk.toString()
    })
    incoming.on("end", () => {
      bodies.push(body)
      answer.writeHead(500, { "content-type": "application/json" }).end('{"error":{"message":"self-check"}}')
    })
  })

const Limited = Schema.parseJson(
  Schema.Union(Schema.Struct({ max_completion_tokens: Schema.Int }), Schema.Struct({ max_tokens: Schema.Int }))
)

const adapterFinding = (bodies: ReadonlyArray<string>): Finding => {
  const [body] = bodies
  if (body === undefined) return warning("adapter", "could not be tried: no server can be reached here")
  if (bodies.length !== 1)
    return failed("adapter", `one call was ${bodies.length} requests: each is a charge of its own`)
  return Either.isRight(Schema.decodeEither(Limited)(body))
    ? fine("adapter", "one call is one request, and it says its output limit")
    : failed("adapter", "the output limit is not sent, on which every hold rests")
}
