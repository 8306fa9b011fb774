import { mkdirSync, readdirSync, readFileSync, statSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { inspect } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import { Cause, Effect, Exit, Layer, Logger, LogLevel, Redacted, Tracer } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { assertIncludes } from "../support/assertIncludes.ts"
import { command, type Ended } from "../support/command.ts"
import { play, type Reply } from "../support/fixtureServer.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { good, jobOf, quick, resultsOf, run, until, vendors } from "./vendors.ts"

const CANARY = "CANARY"
const key = "sk-test-CANARY-1111"
const job = fileURLToPath(new URL("./command/job.ts", import.meta.url))

const quoting = (status: number, code: string): Reply => ({
  status,
  headers: { "content-type": "application/json", "x-request-id": key },
  body: { error: { message: `Incorrect API key provided: ${key}.`, type: code, param: key, code } }
})

/** Every file below a directory, the database and its log as they are on the disk. */
const filesIn = (directory: string): ReadonlyArray<string> =>
  readdirSync(directory, { recursive: true, encoding: "utf8" })
    .map((name) => join(directory, name))
    .filter((path) => statSync(path).isFile())

const assertNoKey = (cwd: string, ...ended: ReadonlyArray<Ended>): void => {
  for (const { stderr, stdout } of ended) assert.notInclude(stdout + stderr, CANARY)
  for (const path of filesIn(cwd)) assert.notInclude(readFileSync(path, "latin1"), CANARY, path)
}

const rows = (cwd: string, lines: ReadonlyArray<string>) =>
  writeFileSync(join(cwd, "rows.csv"), `id,name\n${lines.join("\n")}\n`)
const acme = (n: number) => Array.from({ length: n }, (_, i) => `V-00${i + 1},Acme ${i + 1}`)

describe("secrets", () => {
  it.scopedLive(
    "B43 debug-headers: at every log level, of every failure, the key is in no output, file or database",
    () =>
      Effect.gen(function* () {
        const root = yield* tempDir
        const server = yield* play((seen) => {
          if (seen.n === 1) return { ...quoting(429, "rate_limit_exceeded"), headers: { "retry-after-ms": "50" } }
          return seen.n <= 3 ? good(seen) : quoting(401, "invalid_api_key")
        })
        const loud = {
          OPENAI_LOG: "debug",
          NODE_DEBUG: "fetch,undici,https",
          HTTPS_PROXY: `http://u:${CANARY}3@127.0.0.1:9`
        }
        const longhaul = (name: string, env: Record<string, string>, args: ReadonlyArray<string> = []) => {
          const cwd = join(root, name)
          mkdirSync(cwd)
          rows(cwd, ["V-001,throws", ...acme(6).slice(1)])
          return Effect.promise(
            () =>
              command(["run", job, "--budget", "1", "--concurrency", "1", "--run-id", name, ...args], {
                cwd,
                env: { OPENAI_API_KEY: key, OPENAI_BASE_URL: server.url, ...loud, ...env }
              }).ended
          )
        }
        const [refused, tls, password] = yield* Effect.all(
          [
            longhaul("refused", {}),
            longhaul("tls", { OPENAI_BASE_URL: server.url.replace("http:", "https:") }),
            longhaul("password", { OPENAI_BASE_URL: `http://user:${CANARY}2@127.0.0.1:9/v1` })
          ],
          { concurrency: 2 }
        )
        assert.strictEqual(refused.code, 4, refused.stderr)
        assert.match(refused.stdout, /suspended: Incorrect API key provided: <redacted>\./)
        assert.match(refused.stdout, /rows: 2 done, 0 partial, 1 failed, 3 pending/)
        assert.strictEqual(tls.code, 4, tls.stderr)
        assert.strictEqual(password.code, 2, password.stderr)
        assert.include(password.stderr, "The base URL")
        for (const ended of [refused, tls, password])
          assert.notMatch(ended.stdout + ended.stderr, /Authorization|Bearer/i)
        assertNoKey(root, refused, tls, password)
      })
  )

  it.scopedLive("B43 debug-headers: traces, logs and typed errors of a run do not hold it either", () =>
    Effect.gen(function* () {
      const silence: Reply = { status: 200, headers: {}, body: "", wire: { send_bytes: 0, ends: "stall" } }
      const reset: Reply = { ...silence, wire: { send_bytes: 0, ends: "reset" } }
      const replies = [quoting(429, "rate_limit_exceeded"), silence, reset, quoting(500, key), quoting(400, key)]
      const server = yield* play((seen) => replies[seen.n - 1] ?? quoting(401, "invalid_api_key"))
      const said: Array<string> = []
      const logger = Logger.make((entry) => void said.push(inspect(entry, { depth: 8 })))
      const quiet = { apiKey: Redacted.make(key), timeoutMs: 300 }
      const ended = yield* Effect.exit(
        run(jobOf({ rows: vendors(4), retry: quick(5) }), server, {
          llm: quiet,
          budget: { maxConcurrency: 1 },
          run: { spans: true }
        })
      ).pipe(
        Effect.withTracer(tracing(said)),
        Effect.provide(Layer.merge(Logger.replace(Logger.defaultLogger, logger), Logger.minimumLogLevel(LogLevel.All)))
      )
      assert.isAtLeast(server.requests.length, 6)
      assert.isTrue(said.some((text) => text.includes("gen_ai.request.model")))
      const results = yield* resultsOf
      const shown = [
        ...said,
        inspect(ended, { depth: 20 }),
        JSON.stringify(ended),
        Exit.isFailure(ended) ? Cause.pretty(ended.cause, { renderErrorCause: true }) : "",
        JSON.stringify(results),
        JSON.stringify(yield* Enrichment.runs)
      ]
      assert.notInclude(shown.join("\n"), CANARY)
      assert.include(shown.join("\n"), "<redacted>")
    }).pipe(Effect.provide(Memory.layer))
  )

  it.scopedLive(
    "B66 secret-in-state: no key is stored, a resume takes the present one, and nothing depends on it",
    () =>
      Effect.gen(function* () {
        const cwd = yield* tempDir
        const elsewhere = yield* tempDir
        rows(cwd, acme(6))
        const server = yield* play(async (seen) => {
          // The third call is under way when the process is killed.
          if (seen.n === 3) await new Promise((resume) => setTimeout(resume, 20_000))
          return good(seen)
        })
        const env = (apiKey: string) => ({ OPENAI_API_KEY: apiKey, OPENAI_BASE_URL: server.url })
        writeFileSync(join(elsewhere, "longhaul.json"), JSON.stringify({ apiKey: `sk-${CANARY}-file`, budget: 1 }))
        const flag = command(["run", job, "--budget", "1", "--api-key", `sk-${CANARY}-flag`], {
          cwd: elsewhere,
          env: env(`sk-${CANARY}-a`)
        })
        const args = ["run", job, "--budget", "1", "--concurrency", "1", "--run-id", "r", "--out", "out.csv"]
        const first = command(args, { cwd, env: env(`sk-${CANARY}-a`) })
        yield* Effect.addFinalizer(() => Effect.sync(() => first.child.kill("SIGKILL")))
        yield* until(() => server.requests.length >= 3)
        first.child.kill("SIGKILL")
        const killed = yield* Effect.promise(() => first.ended)
        // As it is on the disk now: the log of the database is not yet merged into it.
        assert.isTrue(filesIn(cwd).some((path) => path.endsWith(".db-wal")))
        assertNoKey(cwd, killed)

        const resumed = yield* Effect.promise(() => command(["resume"], { cwd, env: env(`sk-${CANARY}-b`) }).ended)
        assert.strictEqual(resumed.code, 0, resumed.stderr)
        const status = yield* Effect.provide(
          Enrichment.status("r"),
          Sqlite.layer({ filename: join(cwd, "longhaul.db") })
        )
        assertIncludes(status, { status: "done", done: 6, failed: 0, calls: 7 })
        assert.deepStrictEqual(
          server.requests.map(({ authorization }) => authorization.at(-1)),
          ["a", "a", "a", "b", "b", "b", "b"]
        )
        assertNoKey(cwd, resumed)
        assert.notInclude(JSON.stringify(status), CANARY)

        // There is no flag for a key, and the file's is not read.
        const refused = yield* Effect.promise(() => flag.ended)
        assert.strictEqual(refused.code, 2)
        assert.deepStrictEqual(
          filesIn(elsewhere).map((path) => path.slice(elsewhere.length + 1)),
          ["longhaul.json"]
        )
      })
  )
})

/** A tracer that writes down all that a span is told. */
const tracing = (said: Array<string>): Tracer.Tracer =>
  Tracer.make({
    context: (f) => f(),
    span: (name, parent, context, links, startTime, kind) => {
      const attributes = new Map<string, unknown>()
      let status: Tracer.SpanStatus = { _tag: "Started", startTime }
      const span: Tracer.Span = {
        _tag: "Span",
        name,
        spanId: String(said.length),
        traceId: "test",
        parent,
        context,
        links,
        kind,
        sampled: true,
        attributes,
        get status() {
          return status
        },
        end: (endTime, exit) => {
          status = { _tag: "Ended", startTime, endTime, exit }
          said.push(inspect([name, attributes, exit], { depth: 20 }))
        },
        attribute: (name, value) => void attributes.set(name, value),
        event: (name, _, attributes) => void said.push(inspect([name, attributes], { depth: 20 })),
        addLinks: () => {}
      }
      return span
    }
  })
