/**
 * A provider in a process of its own that is broken in whatever way it is asked to be: the fault is the first part of the path, so
 * `http://127.0.0.1:N/reset-in-body/v1` is the base URL of a provider that always resets in the middle of the body. It counts what arrives.
 *
 * node --import tsx test/support/faultServer.ts
 *
 * `GET /_counts` gives the {@link Counts}. When it listens, it prints one line, `{"port":N}`.
 */
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import type { Socket } from "node:net"
import { pipeline, Readable } from "node:stream"
import { gzipSync } from "node:zlib"
import { answerOf, goodText } from "./faultAnswers.ts"

/**
 * By fault: the requests that arrived, counted at their headers, and those whose socket closed before their answer was finished. `open`: the
 * connections that are open now, without the one that asks.
 */
export interface Counts {
  readonly requests: Readonly<Record<string, number>>
  readonly unfinished: Readonly<Record<string, number>>
  readonly open: number
}

type Handler = (response: ServerResponse, socket: Socket) => void

/** Time for what was written to arrive: a reset takes back what the other side has not read. */
const soon = (act: () => void) => setTimeout(act, 30)

const head = (headers: string, status = "200 OK") =>
  `HTTP/1.1 ${status}\r\ncontent-type: application/json\r\n${headers}\r\n`
const goodLength = `content-length: ${Buffer.byteLength(goodText)}\r\n`
const half = goodText.slice(0, 100)
const chunk = `${half.length.toString(16)}\r\n${half}\r\n`

/** Writes this and then nothing more, or ends the connection: `reset` at once, `end` only our half of it. */
const raw =
  (text: string, then: "stall" | "reset" | "end"): Handler =>
  (_, socket) => {
    if (text !== "") socket.write(text)
    if (then === "reset") soon(() => socket.resetAndDestroy())
    if (then === "end") soon(() => socket.end())
  }

const drip =
  (start: string, drop: string): Handler =>
  (response, socket) => {
    socket.write(start)
    const timer = setInterval(() => socket.write(drop), 20)
    response.on("close", () => clearInterval(timer))
  }

const megabyte = Buffer.alloc(1024 * 1024, "x")
const send100MB =
  (status: number, type: string): Handler =>
  (response) => {
    response.writeHead(status, { "content-type": type })
    pipeline(Readable.from(Array.from({ length: 100 }, () => megabyte)), response, () => undefined)
  }

/** 100 MB of blanks in 100 kB, made when it is first asked for. */
let bomb: Buffer | undefined

const wireFaults = {
  "stall-before-headers": raw("", "stall"),
  "stall-in-status-line": raw("HTTP/1.", "stall"),
  "stall-in-headers": raw("HTTP/1.1 200 OK\r\ncontent-type: applic", "stall"),
  "stall-after-headers": raw(head(goodLength), "stall"),
  "stall-in-body": raw(head(goodLength) + half, "stall"),
  "stall-in-chunked-body": raw(head("transfer-encoding: chunked\r\n") + chunk, "stall"),
  "stall-in-429-body": raw(head(goodLength, "429 Too Many Requests") + half, "stall"),

  "reset-before-headers": raw("", "reset"),
  "reset-in-status-line": raw("HTTP/1.", "reset"),
  "reset-in-headers": raw("HTTP/1.1 200 OK\r\ncontent-type: applic", "reset"),
  "reset-after-headers": raw(head(goodLength), "reset"),
  "reset-in-body": raw(head(goodLength) + half, "reset"),
  "reset-in-chunked-body": raw(head("transfer-encoding: chunked\r\n") + chunk, "reset"),

  "half-close-before-headers": raw("", "end"),
  "half-close-in-headers": raw("HTTP/1.1 200 OK\r\ncontent-type: applic", "end"),
  "half-close-after-headers": raw(head(goodLength), "end"),
  "half-close-in-body": raw(head(goodLength) + half, "end"),
  "half-close-in-chunked-body": raw(head("transfer-encoding: chunked\r\n") + chunk, "end"),

  "drip-header-bytes": drip("HTTP/1.1 200 OK\r\nx-slow: ", "x"),
  "drip-early-hints": drip("", "HTTP/1.1 103 Early Hints\r\nlink: </x>; rel=preload\r\n\r\n"),
  "drip-blank-lines": drip(head("transfer-encoding: chunked\r\n"), "1\r\n\n\r\n"),
  "drip-comments": drip(head("transfer-encoding: chunked\r\n"), "e\r\n: keep-alive\n\n\r\n"),
  "drip-then-good": (response) => {
    response.writeHead(200, { "content-type": "application/json" })
    for (let at = 1; at <= 5; at++) setTimeout(() => response.write("\n"), at * 20)
    setTimeout(() => response.end(goodText), 120)
  },

  "length-too-long": raw(head(`content-length: ${goodText.length + 50}\r\n`) + goodText, "end"),
  "length-too-long-kept-open": raw(head(`content-length: ${goodText.length + 50}\r\n`) + goodText, "stall"),
  "length-too-short": raw(head("content-length: 100\r\n") + goodText, "stall"),
  // A second answer on the same connection must not become the answer to a second request.
  "second-answer": raw((head(goodLength) + goodText).repeat(2), "stall"),
  "not-http": raw("SSH-2.0-OpenSSH_9.6\r\n", "stall"),
  "chunk-size-garbage": raw(`${head("transfer-encoding: chunked\r\n")}ZZ\r\n${half}`, "stall"),
  "headers-huge": raw(head(`x-huge: ${"x".repeat(1024 * 1024)}\r\n`), "stall"),

  "body-100MB": send100MB(200, "application/json"),
  "body-100MB-502": send100MB(502, "text/html"),
  "gzip-bomb": (response) => {
    bomb ??= gzipSync(Buffer.alloc(100 * 1024 * 1024, " "))
    response.writeHead(200, { "content-type": "application/json", "content-encoding": "gzip" })
    response.end(bomb)
  }
} satisfies Record<string, Handler>

export type WireFault = keyof typeof wireFaults

const isWireFault = (fault: string): fault is WireFault => Object.hasOwn(wireFaults, fault)

const requests: Record<string, number> = {}
const unfinished: Record<string, number> = {}
const open = new Set<Socket>()

const readBody = async (request: IncomingMessage): Promise<void> => {
  for await (const _ of request);
}

const server = createServer(async (request, response) => {
  const { socket, url = "" } = request
  if (url === "/_counts") {
    const counts: Counts = { requests, unfinished, open: open.size - 1 }
    response.writeHead(200, { "content-type": "application/json", connection: "close" })
    return response.end(JSON.stringify(counts))
  }
  const fault = url.split("/")[1] ?? ""
  requests[fault] = (requests[fault] ?? 0) + 1
  response.on("close", () => {
    if (!response.writableFinished) unfinished[fault] = (unfinished[fault] ?? 0) + 1
  })
  await readBody(request).catch(() => undefined)
  if (isWireFault(fault)) return wireFaults[fault](response, socket)
  const { body, headers, status } = answerOf(fault) ?? { body: "", headers: {}, status: 404 }
  response.writeHead(status, headers)
  response.end(body)
})

server.on("connection", (socket) => {
  open.add(socket)
  socket.on("close", () => open.delete(socket))
  socket.on("error", () => undefined)
})
server.listen(0, "127.0.0.1", () => {
  const address = server.address()
  if (address instanceof Object) console.log(JSON.stringify({ port: address.port }))
})
// Started by another process, it ends with it, even if that one is killed.
process.on("disconnect", () => process.exit(0))
