import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { inspect } from "node:util"
import { assert, describe, it } from "@effect/vitest"
import {
  Cause,
  Chunk,
  Effect,
  Either,
  Exit,
  Layer,
  Logger,
  LogLevel,
  Option,
  Redacted,
  Schema,
  Stream,
  Tracer
} from "effect"
import {
  Agent,
  Budget,
  Checkpointer,
  CircuitBreaker,
  Enrichment,
  Errors,
  Failure,
  Journal,
  LLM,
  Retry,
  Rows
} from "../../src/index.ts"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import { command } from "../support/command.ts"
import { tempDir } from "../support/mortalProcess.ts"
import { canary, leaksIn, quotes, quotingServer, type Seen } from "../support/quotingServer.ts"

const namesOf = (...scopes: ReadonlyArray<string>) =>
  Object.entries(quotes).flatMap(([name, { scope }]) => (scopes.includes(scope) ? [name] : []))
const provider = (baseUrl: string) =>
  LLMOpenAI.layerWith({ apiKey: Redacted.make(canary), baseUrl, timeoutMs: 500, name: "quoting" })

const clean = (what: string, bytes: Uint8Array | string) => assert.deepStrictEqual(leaksIn(bytes), [], what)

/** All that a value can be made to show. */
const shownOf = (value: unknown): string =>
  [
    inspect(value, { depth: 20, showHidden: true, maxStringLength: null, maxArrayLength: null }),
    JSON.stringify(value, (_, item: unknown) => (typeof item === "bigint" ? String(item) : item)) ?? "",
    String(value),
    ...Errors.causeChain(value)
  ].join("\n")

const shownExit = (exit: Exit.Exit<unknown, unknown>): string =>
  Exit.match(exit, {
    onSuccess: shownOf,
    onFailure: (cause) =>
      [
        shownOf(cause),
        Cause.pretty(cause, { renderErrorCause: true }),
        ...Cause.prettyErrors(cause).map(shownOf),
        shownOf(Cause.squash(cause))
      ].join("\n")
  })

/** What each request has of the key, besides the one header that it is for. */
const onlyAuthorized = (seen: ReadonlyArray<Seen>) => {
  assert.isAbove(seen.length, 0)
  for (const { headers, rest } of seen) {
    const [authorized, others] = [
      headers.filter(([name]) => name === "authorization"),
      headers.filter(([name]) => name !== "authorization")
    ]
    assert.deepStrictEqual(authorized, [["authorization", `Bearer ${canary}`]])
    clean("request line and body", rest)
    clean("other headers", others.flat().join("\n"))
  }
}

/** Notes everything that a tracer is told. */
const tracerInto = (notes: Array<string>): Tracer.Tracer =>
  Tracer.make({
    span: (name, parent, context, links, startTime, kind, options) => {
      const attributes = new Map(Object.entries(options?.attributes ?? {}))
      notes.push(name, shownOf(links))
      return {
        _tag: "Span",
        name,
        spanId: String(notes.length),
        traceId: "test",
        parent,
        context,
        status: { _tag: "Started", startTime },
        attributes,
        links,
        sampled: true,
        kind,
        end: (_, exit) => void notes.push(shownOf([...attributes]), shownExit(exit)),
        attribute: (key, value) => void attributes.set(key, value),
        event: (event, _, more) => void notes.push(event, shownOf(more)),
        addLinks: (more) => void notes.push(shownOf(more))
      }
    },
    context: (run) => run()
  })

/** Every line, in each of the forms that a logger may give it. */
const loggerInto = (notes: Array<string>): Layer.Layer<never> => {
  const formats = [
    Logger.stringLogger,
    Logger.jsonLogger,
    Logger.logfmtLogger,
    Logger.map(Logger.structuredLogger, shownOf)
  ]
  const all = Logger.make<unknown, void>((line) => {
    for (const format of formats) notes.push(format.log(line))
  })
  return Layer.merge(Logger.replace(Logger.defaultLogger, all), Logger.minimumLogLevel(LogLevel.All))
}

const Row = Schema.Struct({ id: Schema.Int, kind: Schema.String })
const Output = Schema.Struct({ summary: Schema.String, risk: Schema.String })
const jobOver = (kinds: ReadonlyArray<string>) =>
  Enrichment.make({
    name: "canary",
    agent: Agent.make({
      name: "assessor",
      model: "gpt-4o-mini",
      maxOutputTokens: 100,
      prompt: (row: typeof Row.Type) => `${row.id}: ${row.kind}`,
      output: Output
    }),
    row: Row,
    id: (row) => row.id,
    source: Rows.fromIterable(kinds.map((kind, i) => ({ id: i + 1, kind }))),
    chunkSize: 5,
    retry: Retry.policy({ attempts: 2, base: "1 millis", longest: "1 millis" })
  })

/** Each file of a directory, as it lies on the disk. */
const filesOf = (directory: string) =>
  readdirSync(directory, { recursive: true, encoding: "utf8", withFileTypes: true })
    .filter((file) => file.isFile())
    .map((file) => [file.name, readFileSync(join(file.parentPath, file.name))] as const)

const cleanFiles = (directory: string): ReadonlyArray<string> =>
  filesOf(directory).map(([name, bytes]) => {
    clean(name, bytes)
    return name
  })

/** A run over these rows, with all that it tells and keeps. */
const watched = Effect.fnUntraced(function* (kinds: ReadonlyArray<string>) {
  const server = yield* quotingServer()
  const directory = yield* tempDir
  const logs: Array<string> = []
  const spans: Array<string> = []
  const looked = Effect.gen(function* () {
    const events = Chunk.toReadonlyArray(
      yield* Stream.runCollect(Enrichment.events(jobOver(kinds), { runId: "run", spans: true }))
    )
    yield* Effect.logTrace("ended", events)
    const rows = Chunk.toReadonlyArray(yield* Stream.runCollect(Enrichment.results("run", Output)))
    const checkpointer = yield* Checkpointer.Checkpointer
    const versions = yield* checkpointer.listVersions("run")
    const checkpoints = yield* Effect.forEach(versions, (version) =>
      checkpointer.get("run", version, Enrichment.Progress)
    )
    const book = yield* Effect.flatMap(Journal.Journal, (journal) => journal.reads.book("run"))
    // While the database is open, what was written last is in its -wal.
    return { events, rows, checkpoints, book, files: cleanFiles(directory) }
  })
  const seen = yield* looked.pipe(
    Effect.provide([
      Budget.layer({ maxCostUsd: 5, maxConcurrency: 2 }),
      Sqlite.layer({ filename: join(directory, "run.db") }),
      provider(server.url),
      CircuitBreaker.layer({ threshold: 3, coolMs: 10, maxCoolMs: 20 }),
      loggerInto(logs)
    ]),
    Effect.withTracer(tracerInto(spans))
  )
  clean("events", shownOf(seen.events))
  clean("rows", shownOf(seen.rows))
  clean("checkpoints", shownOf(seen.checkpoints))
  clean("book", shownOf(seen.book))
  clean("logs", logs.join("\n"))
  clean("spans", spans.join("\n"))
  cleanFiles(directory)
  onlyAuthorized(server.seen)
  return { ...seen, logs, spans }
})

describe("canary", () => {
  describe("a key that is quoted back is in no rendering of the error, nor in what a log, a span or a book makes of it:", () => {
    for (const name of Object.keys(quotes)) {
      it.scopedLive(name, () =>
        Effect.gen(function* () {
          const { seen, url } = yield* quotingServer()
          const notes: Array<string> = []
          const asked = LLM.request({
            model: "gpt-4o-mini",
            messages: [{ role: "user", content: `1: ${name}` }],
            maxOutputTokens: 10,
            format: { mode: "text" }
          })
          const call = Effect.flatMap(LLM.LLM, (llm) => llm.generate(asked)).pipe(
            Effect.tapErrorCause((cause) => Effect.logTrace("a call failed", cause)),
            Effect.withSpan("call")
          )
          const exit = yield* Effect.exit(call).pipe(
            Effect.provide([provider(url), loggerInto(notes)]),
            Effect.withTracer(tracerInto(notes))
          )
          const error = yield* Effect.flip(exit)
          const open = new Errors.CircuitOpen({ message: `quoting is failing: ${error.message}`, cause: error })
          const failure = Failure.fromLLMError(error)
          clean("exit", shownExit(exit))
          for (const value of [error, open, failure]) clean("value", shownOf(value))
          clean("encoded error", JSON.stringify(yield* Schema.encode(Errors.LLMError)(error)))
          clean("encoded outage", JSON.stringify(yield* Schema.encode(Errors.CircuitOpen)(open)))
          clean("encoded failure", JSON.stringify(yield* Schema.encode(Failure.Failure)(failure)))
          clean("log and span", notes.join("\n"))
          assert.include(notes.join("\n"), "a call failed")
          onlyAuthorized(seen)
        })
      )
    }
  })

  it.scopedLive("a run whose rows meet all of them keeps the key out of its events, spans, logs, book and files", () =>
    Effect.gen(function* () {
      const quoting = namesOf("row")
      // First enough of them in a row to open the breaker, then each between rows that are answered.
      const kinds = [
        ...quoting.slice(0, 8),
        ...[...quoting.slice(8), ...namesOf("again")].flatMap((kind) => ["good", kind])
      ]
      const { book, checkpoints, events, files, logs, rows, spans } = yield* watched(kinds)
      assert.deepInclude(book, { status: "done", failed: quoting.length, done: kinds.length - quoting.length })
      // It was looked at where there was something to see.
      assert.isAbove(checkpoints.length, 1)
      assert.includeMembers([...files], ["run.db", "run.db-wal"])
      const failures = rows.flatMap(({ outcome }) => Option.toArray(Option.flatMap(outcome, Either.getLeft)))
      assert.strictEqual(failures.length, quoting.length)
      assert.isTrue(failures.some(({ message }) => message.includes("<redacted>")))
      const down = events.flatMap((event) => (event._tag === "ProviderDown" ? [event.error] : []))
      assert.isTrue(down.some((error) => error !== undefined))
      assert.isAbove(logs.length, 0)
      assert.includeMembers(spans, [
        "longhaul.run",
        "longhaul.chunk",
        "longhaul.row",
        "longhaul.turn",
        "chat gpt-4o-mini"
      ])
    })
  )

  it.scopedLive("nor does a run that stops at once tell why with the key in it", () =>
    Effect.gen(function* () {
      for (const kind of namesOf("run")) {
        const { book, events } = yield* watched([kind, "good"])
        assert.strictEqual(book?.reason?.kind, "provider", kind)
        assert.isTrue(events.some(({ _tag }) => _tag === "Stopping"))
      }
    })
  )

  it.scopedLive(
    "the command keeps it out of its output at log level trace, its database, its -wal after a SIGKILL, and its exports",
    () =>
      Effect.gen(function* () {
        const { seen, url } = yield* quotingServer(50)
        const cwd = yield* tempDir
        const job = fileURLToPath(new URL("./cli/job.ts", import.meta.url))
        const env = { OPENAI_API_KEY: canary, OPENAI_BASE_URL: url, OPENAI_LOG: "debug" }
        const start = (args: ReadonlyArray<string>) => command(["--log-level", "trace", ...args], { cwd, env })
        /** To its end; the output, without the key. */
        const ended = (args: ReadonlyArray<string>, code: number) =>
          Effect.promise(async () => {
            const end = await start(args).ended
            clean(args.join(" "), end.stdout + end.stderr)
            assert.strictEqual(end.code, code, end.stderr)
            return end.stdout
          })
        const rows = Array.from({ length: 60 }, (_, i) => `v${i},${i % 10 === 3 ? "400-json" : "good"}`)
        writeFileSync(join(cwd, "rows.csv"), ["id,name", ...rows].join("\n"))

        const first = start(["run", job, "--budget", "1", "--source", "rows.csv", "--run-id", "run", "--db", "run.db"])
        while (seen.length < 20 && first.child.exitCode === null) yield* Effect.sleep("10 millis")
        first.child.kill("SIGKILL")
        const killed = yield* Effect.promise(() => first.ended)
        assert.strictEqual(killed.code, null, killed.stderr)
        clean("output of the killed command", killed.stdout + killed.stderr)
        assert.includeMembers([...cleanFiles(cwd)], ["run.db", "run.db-wal"])

        yield* ended(["resume", "--db", "run.db"], 3)
        const status = yield* ended(["status", "run", "--json", "--db", "run.db"], 0)
        assert.deepInclude(JSON.parse(status), { status: "done", done: 54, failed: 6 })
        assert.include(yield* ended(["failures", "run", "--db", "run.db"], 0), "<redacted>")
        yield* ended(["checkpoints", "run", "--db", "run.db"], 0)
        yield* ended(["export", "run", "--db", "run.db", "--out", "out.csv"], 0)
        yield* ended(["export", "run", "--db", "run.db", "--out", "out.jsonl"], 0)
        for (const kind of ["401-json", "401-page"]) {
          writeFileSync(join(cwd, "refused.csv"), `id,name\n1,${kind}\n`)
          yield* ended(
            ["run", job, "--budget", "1", "--source", "refused.csv", "--db", "refused.db", "--run-id", kind],
            4
          )
        }
        assert.includeMembers([...cleanFiles(cwd)], ["run.db", "run.csv", "out.csv", "out.jsonl", "refused.db"])
        onlyAuthorized(seen)
      }),
    120_000
  )

  it.scopedLive("a base URL with a password is refused without a word of it, and nothing is sent", () =>
    Effect.gen(function* () {
      const { seen, url } = yield* quotingServer()
      const cwd = yield* tempDir
      writeFileSync(join(cwd, "rows.csv"), "id,name\n1,good\n")
      const job = fileURLToPath(new URL("./cli/job.ts", import.meta.url))
      for (const login of ["user:CANARY2", "CANARY2", ":CANARY2", "user:CANARY2%2F"]) {
        const baseUrl = url.replace("://", `://${login}@`)
        const exit = yield* Effect.exit(Layer.build(LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-test"), baseUrl })))
        assert.isTrue(Exit.isFailure(exit))
        clean(login, shownExit(exit))
        const args = ["--log-level", "trace", "run", job, "--budget", "1", "--source", "rows.csv"]
        const env = { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: baseUrl, OPENAI_LOG: "debug" }
        const { code, stderr, stdout } = yield* Effect.promise(() => command(args, { cwd, env }).ended)
        assert.strictEqual(code, 2, stderr)
        assert.include(stderr, "without user and password")
        clean(login, stdout + stderr)
        cleanFiles(cwd)
      }
      assert.strictEqual(seen.length, 0)
    })
  )

  it("would be found in every form", () => {
    const found = [
      canary,
      canary.slice(0, 11),
      JSON.stringify(canary).replaceAll("/", "\\/"),
      encodeURIComponent(canary),
      canary.replaceAll("/", "&#x2F;"),
      Buffer.from(canary).toString("base64"),
      Buffer.from(`Bearer ${canary}`).toString("base64")
    ]
    for (const form of found) assert.isAbove(leaksIn(`before ${form} after`).length, 0, form)
    assert.isAbove(leaksIn(Buffer.from(`before ${canary}`, "utf16le")).length, 0)
    assert.deepStrictEqual(leaksIn("sk-<redacted>, canary"), [])
  })
})
