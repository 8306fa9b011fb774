/**
 * A provider in a process of its own, with a bill of its own: the witness of what was really sent and billed, whoever is killed. It speaks the shape
 * of chat completions. A request is billed when it is fully read, before anything is answered, so a client that is gone by then has still paid.
 *
 * node --import tsx test/support/fakeProvider.ts --port 0 --latency 20 --rate429 0.03 --billed500 0.02 --billedReset 0.01 --billedHang 0.003 --seed 1
 *
 * `GET /_bill` gives the {@link Bill}, `POST /_reset` begins a new one. When it listens, it prints one line, `{"port":N}`.
 */
import { createHash } from "node:crypto"
import { createServer, type IncomingMessage, type ServerResponse } from "node:http"
import { parseArgs } from "node:util"

/** Money in nano-dollars. `byHash` counts the billed answers (200) by the hash of their messages; each other end has its own count. */
export interface Bill {
  readonly requests: number
  readonly billedNano: number
  readonly inFlight: number
  readonly maxInFlight: number
  readonly answered: number
  readonly refused429: number
  readonly billed500: number
  readonly billedReset: number
  readonly billedHang: number
  readonly byHash: Readonly<Record<string, number>>
}

const { values: flags } = parseArgs({
  options: {
    port: { type: "string", default: "0" },
    latency: { type: "string", default: "20" },
    rate429: { type: "string", default: "0" },
    billed500: { type: "string", default: "0" },
    billedReset: { type: "string", default: "0" },
    billedHang: { type: "string", default: "0" },
    seed: { type: "string", default: "1" },
    inputNano: { type: "string", default: "150" },
    outputNano: { type: "string", default: "600" }
  }
})

const newBill = () => {
  const byHash: Record<string, number> = {}
  return {
    requests: 0,
    billedNano: 0,
    inFlight: 0,
    maxInFlight: 0,
    answered: 0,
    refused429: 0,
    billed500: 0,
    billedReset: 0,
    billedHang: 0,
    byHash
  }
}
let bill = newBill()
const attempts = new Map<string, number>()

type Json = Record<string, unknown>
const isJson = (value: unknown): value is Json => typeof value === "object" && value !== null && !Array.isArray(value)
const sha = (text: string) => createHash("sha256").update(text).digest("hex")
const tokensOf = (text: string) => Math.ceil(Buffer.byteLength(text) / 4)

/** An answer that fits the schema and shows which request it belongs to: its integers are the first integer in the message. */
const fill = (schema: unknown, defs: Json, said: string): unknown => {
  if (!isJson(schema)) return `echo: ${said}`
  if (typeof schema.$ref === "string") return fill(defs[schema.$ref.replace("#/$defs/", "")], defs, said)
  if ("const" in schema) return schema.const
  if (Array.isArray(schema.enum)) return schema.enum[Number(idIn(said)) % schema.enum.length]
  if (Array.isArray(schema.anyOf)) return fill(schema.anyOf[0], defs, said)
  switch (Array.isArray(schema.type) ? schema.type[0] : schema.type) {
    case "object": {
      const properties = Object.entries(isJson(schema.properties) ? schema.properties : {})
      return Object.fromEntries(properties.map(([name, property]) => [name, fill(property, defs, said)]))
    }
    case "array":
      return [fill(schema.items, defs, said)]
    case "integer":
    case "number":
      return idIn(said)
    case "boolean":
      return idIn(said) % 2 === 0
    case "null":
      return null
    default:
      return `echo: ${said}`.slice(0, typeof schema.maxLength === "number" ? schema.maxLength : 200)
  }
}

const idIn = (said: string): number => Number(/\d{1,15}/.exec(said)?.[0] ?? 0)

const contentFor = (request: Json, said: string): string => {
  const format = isJson(request.response_format) ? request.response_format : {}
  if (format.type === "json_object") return JSON.stringify({ id: idIn(said), echo: said })
  const schema = isJson(format.json_schema) ? format.json_schema.schema : undefined
  if (!isJson(schema)) return `echo: ${said}`
  return JSON.stringify(fill(schema, isJson(schema.$defs) ? schema.$defs : {}, said))
}

type End = "answered" | "refused429" | "billed500" | "billedReset" | "billedHang"

/** Drawn from the seed, the messages and the attempt: the same run meets the same faults, and a retry can succeed. */
const endOf = (hash: string): End => {
  const attempt = attempts.get(hash) ?? 0
  attempts.set(hash, attempt + 1)
  const dice = Number.parseInt(sha(`${flags.seed} ${hash} ${attempt}`).slice(0, 8), 16) / 2 ** 32
  const first = Number(flags.rate429)
  const second = first + Number(flags.billed500)
  const third = second + Number(flags.billedReset)
  if (dice < third) return dice < first ? "refused429" : dice < second ? "billed500" : "billedReset"
  return dice < third + Number(flags.billedHang) ? "billedHang" : "answered"
}

const readBody = async (request: IncomingMessage): Promise<string> => {
  const chunks: Array<Buffer> = []
  for await (const chunk of request) chunks.push(chunk)
  return Buffer.concat(chunks).toString()
}

const parse = (text: string): unknown => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const reply = (response: ServerResponse, status: number, body: unknown, headers: Record<string, string> = {}) => {
  response.writeHead(status, { "content-type": "application/json", ...headers })
  response.end(JSON.stringify(body))
}

const failed = (code: string) => ({ error: { message: `Fake provider: ${code}`, type: code, code } })

const complete = async (request: Json, response: ServerResponse): Promise<void> => {
  const messages: ReadonlyArray<unknown> = Array.isArray(request.messages) ? request.messages : []
  const last = messages.findLast((message) => isJson(message) && message.role === "user")
  const said = isJson(last) ? String(last.content) : ""
  const hash = sha(JSON.stringify(messages)).slice(0, 16)
  const end = endOf(hash)
  const limit = typeof request.max_completion_tokens === "number" ? request.max_completion_tokens : 4096
  const whole = contentFor(request, said)
  const cut = tokensOf(whole) > limit
  const content = cut
    ? Buffer.from(whole)
        .subarray(0, limit * 4)
        .toString()
    : whole
  const contents = messages.map((message) => (isJson(message) ? String(message.content) : "")).join("")
  const input = tokensOf(contents)
  const output = Math.min(tokensOf(whole), limit)

  // A call that outlives a reset ends in the bill that it began in.
  const own = bill
  own.requests++
  own[end]++
  own.maxInFlight = Math.max(own.maxInFlight, ++own.inFlight)
  if (end !== "refused429") own.billedNano += input * Number(flags.inputNano) + output * Number(flags.outputNano)
  if (end === "answered") own.byHash[hash] = (own.byHash[hash] ?? 0) + 1

  if (end === "billedHang") return void response.on("close", () => own.inFlight--)
  await new Promise((resolve) => setTimeout(resolve, Number(flags.latency)))
  own.inFlight--
  if (end === "refused429") return reply(response, 429, failed("rate_limit_exceeded"), { "retry-after-ms": "50" })
  if (end === "billed500") return reply(response, 500, failed("server_error"))
  if (end === "billedReset") return void response.socket?.resetAndDestroy()
  const id = `fake-${hash}-${own.requests}`
  const usage = { prompt_tokens: input, completion_tokens: output, total_tokens: input + output }
  const choice = {
    index: 0,
    message: { role: "assistant", content, refusal: null },
    finish_reason: cut ? "length" : "stop"
  }
  const body = { id, object: "chat.completion", created: 0, model: request.model, choices: [choice], usage }
  reply(response, 200, body, { "x-request-id": id })
}

const server = createServer(async (request, response) => {
  if (request.method === "GET" && request.url === "/_bill") return reply(response, 200, bill)
  if (request.method === "POST" && request.url === "/_reset") {
    bill = newBill()
    attempts.clear()
    return reply(response, 200, bill)
  }
  if (request.method !== "POST" || request.url?.endsWith("/chat/completions") !== true) {
    return reply(response, 404, failed("not_found"))
  }
  // A request that breaks off before it is read was never dispatched, and is not billed.
  const text = await readBody(request).catch(() => undefined)
  if (text === undefined) return
  const body = parse(text)
  if (!isJson(body)) return reply(response, 400, failed("invalid_request_error"))
  await complete(body, response)
})

server.listen(Number(flags.port), "127.0.0.1", () => {
  const address = server.address()
  if (isJson(address)) console.log(JSON.stringify({ port: address.port }))
})
// Started by another process, it ends with it, even if that one is killed.
process.on("disconnect", () => process.exit(0))
