/** `longhaul serve` as a process of its own, in a place with a configuration, a job and sources; and requests to it. */
import type { ChildProcess } from "node:child_process"
import { createHash } from "node:crypto"
import { existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { command, type Ended } from "./command.ts"

/** Asks about a row as `id: name`; its simulated provider answers at once. */
export const jobFile = fileURLToPath(new URL("../programs/cli/job.ts", import.meta.url))

/** Longer than the shortest that is accepted; its marker is looked for where no token may be. */
export const TOKEN = "CANARY-operator-token-0123456789"

export const sha256 = (text: string): string => createHash("sha256").update(text).digest("hex")

export interface Place {
  readonly dir: string
  /** Writes a source of so many rows, whose texts no other source has. */
  readonly source: (name: string, rows: number) => void
  readonly config: (config: object) => void
  readonly remove: () => void
}

/** A directory of its own. */
export const place = (): Place => {
  const dir = mkdtempSync(join(tmpdir(), "longhaul-server-"))
  return {
    dir,
    source: (name, rows) => {
      const lines = Array.from({ length: rows }, (_, i) => `v${i + 1},${name} ${i + 1}`)
      writeFileSync(join(dir, `${name}.csv`), `id,name\n${lines.join("\n")}\n`)
    },
    config: (config) => writeFileSync(join(dir, "server.json"), JSON.stringify(config)),
    remove: () => rmSync(dir, { recursive: true, force: true })
  }
}

export interface Answer {
  readonly status: number
  readonly headers: Headers
  readonly text: string
  /** Of an answer that is JSON; of others undefined. */
  readonly json: ReturnType<typeof JSON.parse>
}

export interface Asked {
  /** Default: the operator's; null: none. */
  readonly token?: string | null | undefined
  /** Sent as JSON; a text as it is. */
  readonly body?: unknown
  readonly headers?: Readonly<Record<string, string>>
}

export interface Served {
  readonly url: string
  readonly port: number
  readonly child: ChildProcess
  readonly ended: Promise<Ended>
  readonly stdout: () => string
  readonly ask: (method: string, path: string, asked?: Asked) => Promise<Answer>
  /** The run's events from now on, or after the one that was seen last. */
  readonly listen: (runId: string, lastEventId?: string, token?: string) => Promise<Listener>
  /** Resident memory in bytes, once its garbage is collected. */
  readonly memory: () => Promise<number>
  readonly kill: (signal?: NodeJS.Signals) => Promise<Ended>
}

export interface Event {
  readonly id: string
  readonly name: string
  readonly data: ReturnType<typeof JSON.parse>
}

export interface Listener {
  readonly events: ReadonlyArray<Event>
  /** Resolves when the server ends the stream. */
  readonly over: Promise<void>
  readonly until: (holds: (events: ReadonlyArray<Event>) => boolean) => Promise<void>
  readonly close: () => void
}

export interface Serving {
  readonly env?: Readonly<Record<string, string>>
  readonly db?: string
  /** Default: `TOKEN`; null: none. */
  readonly token?: string | null
  readonly args?: ReadonlyArray<string>
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms))

/** Waits for what another process does, not for ever. */
export const until = async (holds: () => boolean | Promise<boolean>, what = "it"): Promise<void> => {
  const end = Date.now() + 30_000
  while (!(await holds())) {
    if (Date.now() > end) throw new Error(`${what} did not happen`)
    await pause(10)
  }
}

const parsed = (text: string): ReturnType<typeof JSON.parse> => {
  try {
    return JSON.parse(text)
  } catch {
    return undefined
  }
}

const eventOf = (block: string): ReadonlyArray<Event> => {
  const field = (name: string) => new RegExp(`^${name}: (.*)$`, "m").exec(block)?.[1] ?? ""
  return field("event") === "" ? [] : [{ id: field("id"), name: field("event"), data: parsed(field("data")) }]
}

const listening = async (response: Response, abort: AbortController): Promise<Listener> => {
  const events: Array<Event> = []
  const read = async () => {
    let rest = ""
    const decoder = new TextDecoder()
    for await (const chunk of response.body ?? []) {
      const blocks = (rest + decoder.decode(chunk, { stream: true })).split("\n\n")
      rest = blocks.pop() ?? ""
      events.push(...blocks.flatMap(eventOf))
    }
  }
  return {
    events,
    over: read().catch(() => undefined),
    until: (holds) => until(() => holds(events), `the event after ${events.at(-1)?.name}`),
    close: () => abort.abort()
  }
}

/** Collects the garbage of a process when it gets SIGUSR2, and writes down what it still holds: what is garbage already would be taken for growth. */
const collects = (dir: string): string => {
  const file = join(dir, "collects.cjs")
  writeFileSync(
    file,
    `require("node:v8").setFlagsFromString("--expose-gc")
    const collect = require("node:vm").runInNewContext("gc")
    process.on("SIGUSR2", () => {
      collect()
      collect()
      const { renameSync, writeFileSync } = require("node:fs")
      writeFileSync("memory.part", String(process.memoryUsage.rss()))
      renameSync("memory.part", "memory")
    })`
  )
  return file
}

/** Starts the server over `server.json` of the place, and waits until it listens. */
export const serve = async (
  { dir }: Place,
  { args = [], db = "longhaul.db", env = {}, token = TOKEN }: Serving = {}
): Promise<Served> => {
  const { child, ended } = command(["serve", "server.json", "--db", db, "--port", "0", ...args], {
    cwd: dir,
    env: { NODE_OPTIONS: `--require ${collects(dir)}`, ...env, ...(token === null ? {} : { LONGHAUL_TOKEN: token }) }
  })
  let stdout = ""
  const url = await new Promise<string>((resolve, reject) => {
    child.stdout?.on("data", (chunk) => {
      stdout += chunk
      const found = /^longhaul serves (http:\S+)$/m.exec(stdout)?.[1]
      if (found !== undefined) resolve(found)
    })
    ended.then(({ stderr }) => reject(new Error(`the server ended: ${stderr}`)), reject)
  })
  const headersOf = (own: string | null | undefined): Record<string, string> => {
    const sent = own === undefined ? token : own
    return sent === null ? {} : { authorization: `Bearer ${sent}` }
  }
  return {
    url,
    port: Number(new URL(url).port),
    child,
    ended,
    stdout: () => stdout,
    ask: async (method, path, { body, headers, token: own } = {}) => {
      const sent = body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body)
      const response = await fetch(`${url}${path}`, {
        method,
        headers: {
          ...headersOf(own),
          ...(sent === undefined ? {} : { "content-type": "application/json" }),
          ...headers
        },
        ...(sent === undefined ? {} : { body: sent })
      })
      const text = await response.text()
      return { status: response.status, headers: response.headers, text, json: parsed(text) }
    },
    listen: async (runId, lastEventId, own) => {
      const abort = new AbortController()
      const response = await fetch(`${url}/runs/${runId}/events`, {
        headers: { ...headersOf(own), ...(lastEventId === undefined ? {} : { "last-event-id": lastEventId }) },
        signal: abort.signal
      })
      if (response.status !== 200) throw new Error(`no events: ${response.status} ${await response.text()}`)
      return listening(response, abort)
    },
    memory: async () => {
      const file = join(dir, "memory")
      rmSync(file, { force: true })
      child.kill("SIGUSR2")
      await until(() => existsSync(file), "the collection")
      return Number(readFileSync(file, "utf8"))
    },
    kill: (signal = "SIGKILL") => {
      child.kill(signal)
      return ended
    }
  }
}

/** The run once it is as asked for. */
export const runWhen = async (
  server: Served,
  runId: string,
  holds: (run: ReturnType<typeof JSON.parse>) => boolean
): Promise<ReturnType<typeof JSON.parse>> => {
  let run: ReturnType<typeof JSON.parse>
  await until(async () => {
    run = (await server.ask("GET", `/runs/${runId}`)).json
    return holds(run)
  }, `run ${runId} as waited for`)
  return run
}
