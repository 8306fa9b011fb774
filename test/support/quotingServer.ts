/**
 * A provider in this process that quotes the caller's key back, in each way that a server, a proxy or a gateway may. The last word of the row's message says which
 * one is meant. It keeps every request that it was sent, byte for byte.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { Effect } from "effect"

/** Its marker is in every form of it, and in every piece of it; the other letters are those that JSON, URLs and pages write in another way. */
export const canary = "sk-CANARY/7QzX+01=23_45-67"
const marker = "CANARY"

/** The marker as it stands, in two bytes a letter, and the key in base64, alone and behind `Bearer `. */
const forms = [
  marker,
  Buffer.from(marker, "utf16le").toString("latin1"),
  Buffer.from(canary).toString("base64").slice(0, 30),
  Buffer.from(`Bearer ${canary}`).toString("base64").slice(0, 40)
]

/** The canary's surroundings, wherever it stands in these bytes. */
export const leaksIn = (bytes: Uint8Array | string): ReadonlyArray<string> => {
  const text = Buffer.from(bytes).toString("latin1")
  return forms.flatMap((form) => {
    const at = text.indexOf(form)
    return at < 0 ? [] : [text.slice(Math.max(0, at - 80), at + 80)]
  })
}

/** `row`: another row may do better; `run`: none will, and the run stops. `again`: the second try is answered. */
interface Quote {
  readonly scope: "row" | "run" | "again"
  readonly answer: (response: ServerResponse, request: IncomingMessage) => void
}

const send =
  (status: number, type: string, body: string, headers: Record<string, string> = {}) =>
  (response: ServerResponse): void =>
    void response.writeHead(status, { "content-type": type, ...headers }).end(body)

const unicode = (letter: string) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`
const json = "application/json"
const said = `Incorrect API key provided: ${canary}. Find yours at https://provider/keys?mine=${encodeURIComponent(canary)}`
const body = JSON.stringify({ error: { message: said, type: canary, code: canary, param: canary } })
const page = `<html><head><title>${canary}</title></head><body><a href="/?key=${encodeURIComponent(canary)}">${canary}</a></body></html>`
const slashed = body.replaceAll("/", "\\/")
const encoded = encodeURIComponent(canary)
const entities = `<p>${canary.replaceAll("/", "&#x2F;").replaceAll("+", "&#43;").replaceAll("=", "&equals;")}</p>`
/** What a hidden key would leave behind where a text is cut before it is hidden. */
const long = (length: number) => `${"x".repeat(length)} ${canary}`

export const quotes: Readonly<Record<string, Quote>> = {
  "401-json": { scope: "run", answer: send(401, json, body, { "x-request-id": canary }) },
  "401-json-slashes": { scope: "run", answer: send(401, json, body.replaceAll("/", "\\/")) },
  "401-json-unicode": {
    scope: "run",
    answer: send(
      401,
      json,
      body.replace(/[/+=-]/g, (one) => unicode(one))
    )
  },
  "401-url": {
    scope: "run",
    answer: send(401, json, JSON.stringify({ error: encodeURIComponent(`Incorrect API key provided: ${canary}`) }))
  },
  "401-page": { scope: "run", answer: send(401, "text/html", page) },
  "401-text": { scope: "run", answer: send(401, `text/plain; key="${canary}"`, said) },
  "302-location": { scope: "run", answer: send(302, "text/html", page, { location: `http://127.0.0.1/${canary}` }) },
  "400-json": { scope: "row", answer: send(400, json, body, { "x-request-id": canary }) },
  "400-flat": { scope: "row", answer: send(400, json, JSON.stringify({ message: said, headers: [[canary]] })) },
  "400-json-name": { scope: "row", answer: send(400, json, JSON.stringify({ error: { [canary]: said } })) },
  "400-json-in-json": { scope: "row", answer: send(400, json, JSON.stringify({ error: slashed })) },
  "400-url-lower": {
    scope: "row",
    answer: send(400, json, JSON.stringify({ error: encoded.replace(/%../g, (one) => one.toLowerCase()) }))
  },
  "400-url-twice": { scope: "row", answer: send(400, json, JSON.stringify({ error: encodeURIComponent(encoded) })) },
  "400-page-entities": { scope: "row", answer: send(400, "text/html", entities) },
  "400-cut-within": { scope: "row", answer: send(400, json, said.slice(0, 45), { "content-length": "9999" }) },
  "500-json-cut": { scope: "row", answer: send(500, json, slashed.slice(0, -3)) },
  "200-json-cut": { scope: "row", answer: send(200, json, slashed.slice(0, -3)) },
  "400-long": { scope: "row", answer: send(400, json, JSON.stringify({ error: { message: long(290) } })) },
  "400-page-long": { scope: "row", answer: send(400, "text/html", long(1_990)) },
  "429-json": { scope: "again", answer: send(429, json, body, { "retry-after-ms": "20" }) },
  "500-json": { scope: "row", answer: send(500, json, body.replaceAll("/", "\\/")) },
  "502-page": { scope: "row", answer: send(502, "text/html", page) },
  "200-error": { scope: "row", answer: send(200, json, body) },
  "200-page": { scope: "row", answer: send(200, "text/html", page) },
  "200-cut": { scope: "row", answer: send(200, json, `{"choices":[{"message":"${said}`) },
  "200-choice-error": {
    scope: "row",
    answer: send(200, json, JSON.stringify({ choices: [{ error: { code: 502, message: said } }] }))
  },
  "200-length-too-long": { scope: "row", answer: send(200, json, body, { "content-length": "9999" }) },
  "bad-status-line": { scope: "row", answer: (_, { socket }) => void socket.end(`HTTP/1.1 ${canary}\r\n${canary}`) },
  "bad-header": {
    scope: "row",
    answer: (_, { socket }) => void socket.end(`HTTP/1.1 200 OK\r\n${canary} bad: ${canary}\r\n\r\n`)
  },
  reset: {
    scope: "row",
    answer: (response, { socket }) => {
      response.writeHead(200, { "content-type": json }).write(`{"error":"${said}`)
      setTimeout(() => socket.resetAndDestroy(), 20)
    }
  },
  timeout: { scope: "row", answer: (response) => void response.writeHead(200, { "content-type": json }).write(said) }
}

const good = JSON.stringify({
  model: "gpt-4o-mini",
  choices: [{ message: { role: "assistant", content: '{"summary":"fine","risk":"low"}' }, finish_reason: "stop" }],
  usage: { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }
})

/** One request as it came: its line and body, and its headers in pairs. */
export interface Seen {
  readonly rest: string
  readonly headers: ReadonlyArray<readonly [name: string, value: string]>
}

/** `latency`: how many milliseconds a good answer takes. */
export const quotingServer = Effect.fnUntraced(function* (latency = 0) {
  const seen: Array<Seen> = []
  const tries = new Map<string, number>()
  const server = createServer(async (request, response) => {
    const chunks: Array<Buffer> = []
    for await (const chunk of request) chunks.push(chunk)
    const text = Buffer.concat(chunks).toString()
    const raw = request.rawHeaders
    const headers = raw.flatMap((name, at) => (at % 2 === 0 ? [[name.toLowerCase(), raw[at + 1] ?? ""] as const] : []))
    seen.push({ rest: `${request.method} ${request.url}\n${text}`, headers })
    tries.set(text, (tries.get(text) ?? 0) + 1)
    const quote = quotes[/: ([\w-]+)"/.exec(text)?.[1] ?? ""]
    if (quote === undefined || (quote.scope === "again" && tries.get(text) === 2)) {
      setTimeout(() => send(200, json, good)(response), latency)
    } else quote.answer(response, request)
  })
  yield* Effect.acquireRelease(
    Effect.async<void>((resume) => void server.listen(0, "127.0.0.1", () => resume(Effect.void))),
    () => Effect.sync(() => server.close().closeAllConnections())
  )
  const address = server.address()
  return { url: `http://127.0.0.1:${address instanceof Object ? address.port : 0}/v1`, seen }
})
