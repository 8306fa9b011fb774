/** The life of a run over HTTP, against the real server in a process of its own and a provider in another. */
import { readdirSync, readFileSync, writeFileSync } from "node:fs"
import { join } from "node:path"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as ServerConfig from "../../src/programs/ServerConfig.ts"
import { command } from "../support/command.ts"
import {
  type Event,
  jobFile,
  type Place,
  place,
  runWhen,
  type Served,
  type Serving,
  serve,
  TOKEN,
  until
} from "../support/longhaulServer.ts"
import { type FakeProvider, startFakeProvider } from "../support/startFakeProvider.ts"

const limit = { timeout: 120_000 }
/** Markers that may stand nowhere. */
const KEY = "sk-CANARY-provider-key"

let provider: FakeProvider
const places: Array<Place> = []
const servers: Array<Served> = []
beforeAll(async () => {
  provider = await startFakeProvider({ latency: 100 })
}, 60_000)
afterAll(async () => {
  for (const server of servers) await server.kill()
  await provider.stop()
  for (const one of places) one.remove()
})

const env = () => ({ OPENAI_API_KEY: KEY, OPENAI_BASE_URL: provider.url })

/** A place with sources of so many rows, whose texts no other place has. */
const placeWith = (sources: Readonly<Record<string, number>>, config: object = {}): Place => {
  const here = place()
  places.push(here)
  for (const [name, rows] of Object.entries(sources)) here.source(`${name}`, rows)
  here.config({
    jobs: { vendors: { file: jobFile } },
    sources: Object.fromEntries(Object.keys(sources).map((name) => [name, `${name}.csv`])),
    maxTotalUsd: 10,
    ...config
  })
  return here
}
const start = async (here: Place, serving: Serving = {}): Promise<Served> => {
  const server = await serve(here, { env: env(), ...serving })
  servers.push(server)
  return server
}
const begin = async (server: Served, body: object): Promise<string> => {
  const { json, status, text } = await server.ask("POST", "/enrich", { body: { budget: 1, ...body } })
  assert.strictEqual(status, 202, text)
  return json.runId
}
const steer = async (server: Served, runId: string, verb: string, body?: object) => {
  const { json, status, text } = await server.ask("POST", `/runs/${runId}/${verb}`, { body })
  assert.strictEqual(status, 200, text)
  return json
}
const rowsOf = (events: ReadonlyArray<Event>) => events.filter(({ name }) => name === "Row").map(({ data }) => data.seq)
const numbersOf = (events: ReadonlyArray<Event>) => events.map(({ id }) => Number(id.split("-").at(-1)))

describe("a run", () => {
  it(
    "is begun with 202 and told as it goes: a snapshot, each row once, its end; a listener that comes back misses none",
    limit,
    async () => {
      const server = await start(placeWith({ told: 80 }))
      const runId = await begin(server, { source: "told", concurrency: 2 })
      const whole = await server.listen(runId)
      const broken = await server.listen(runId)
      await broken.until((events) => rowsOf(events).length >= 5)
      broken.close()
      await broken.over
      const seen = [...broken.events]
      // Meanwhile more happens.
      await whole.until((events) => rowsOf(events).length >= 20)
      const back = await server.listen(runId, seen.at(-1)?.id)
      await Promise.all([whole.over, back.over])

      const [first, ...rest] = whole.events
      assert.deepStrictEqual([first?.name, first?.data.runId], ["snapshot", runId])
      assert.deepStrictEqual(
        [rest.at(-1)?.name, rest.at(-1)?.data.status, rest.at(-1)?.data.done],
        ["Finished", "done", 80]
      )
      assert.isTrue(rest.some(({ name }) => name === "Progress"))
      // Without a hole or a repeat: the rows that ended before the snapshot are in it.
      const n = numbersOf(whole.events)
      assert.deepStrictEqual(
        n,
        n.map((_, i) => (n[0] ?? 0) + i)
      )
      assert.strictEqual(new Set(rowsOf(rest)).size, rowsOf(rest).length)
      assert.isAtLeast(first?.data.done + rowsOf(rest).length, 80)

      assert.notInclude(
        back.events.map(({ name }) => name),
        "gap"
      )
      assert.deepStrictEqual(
        [...seen, ...back.events].slice(1).map(({ id, name }) => `${id} ${name}`),
        whole.events
          .slice(whole.events.findIndex(({ id }) => id === seen[1]?.id))
          .map(({ id, name }) => `${id} ${name}`)
      )

      // It is over: whoever comes back now hears that something is missing, and where the run is.
      const late = await server.listen(runId, seen.at(-1)?.id)
      await late.over
      assert.deepStrictEqual(
        late.events.map(({ data, name }) => [name, data.status]),
        [["gap", "done"]]
      )
      const fresh = await server.listen(runId)
      await fresh.over
      assert.deepStrictEqual(
        fresh.events.map(({ data, name }) => [name, data.status]),
        [["snapshot", "done"]]
      )
    }
  )

  it("is changed by each verb as by the command of that name", limit, async () => {
    const server = await start(placeWith({ steered: 400, failing: 10 }))
    const runId = await begin(server, { source: "steered", concurrency: 2 })
    await runWhen(server, runId, ({ done }) => done >= 4)

    const paused = await steer(server, runId, "pause", { message: "look at row 3" })
    assert.deepStrictEqual(paused.paused, { by: "operator", message: "paused by operator: look at row 3" })
    const still = await runWhen(server, runId, ({ phase, working }) => phase === "paused" && working === 0)
    await new Promise((resolve) => setTimeout(resolve, 500))
    assert.strictEqual((await server.ask("GET", `/runs/${runId}`)).json.calls, still.calls)

    const set = await server.ask("PATCH", `/runs/${runId}/limits`, {
      body: { budget: 2, concurrency: 6, maxCalls: 5_000, requestsPerMinute: 9_000, tokensPerMinute: 900_000 }
    })
    assert.deepInclude(set.json, {
      cap: 2_000_000_000,
      maxConcurrency: 6,
      maxCalls: 5_000,
      requestsPerMinute: 9_000,
      tokensPerMinute: 900_000
    })
    assert.isNull((await steer(server, runId, "unpause")).paused)
    await runWhen(server, runId, ({ working }) => working > 2)

    await steer(server, runId, "drain")
    const drained = await runWhen(server, runId, ({ phase }) => phase === "idle")
    assert.deepStrictEqual([drained.status, drained.reason.kind, drained.held], ["suspended", "operator", 0])
    assert.isAbove(drained.pending, 0)

    await Promise.all([steer(server, runId, "resume"), steer(server, runId, "resume")])
    await runWhen(server, runId, ({ done }) => done > drained.done)
    assert.strictEqual((await steer(server, runId, "cancel")).status, "cancelled")
    const cancelled = await runWhen(server, runId, ({ phase }) => phase === "idle")
    assert.deepStrictEqual([cancelled.status, cancelled.held], ["cancelled", 0])
    for (const verb of ["resume", "unpause", "drain"]) {
      assert.strictEqual((await server.ask("POST", `/runs/${runId}/${verb}`)).status, 409, verb)
    }
    const { json } = await server.ask("GET", `/runs/${runId}/receipt`)
    assert.deepStrictEqual(
      json.orders.map(({ by, order }: { by: string; order: { _tag: string } }) => `${order._tag} by ${by}`),
      ["Pause", "Set", "Unpause", "Drain", "Cancel"].map((tag) => `${tag} by operator`)
    )
    assert.strictEqual(json.settled.cost, json.spent)
  })

  it("that ended runs again where rows are asked for again; a canary waits for an approval", limit, async () => {
    const here = placeWith({ again: 10 })
    writeFileSync(
      join(here.dir, "strange.csv"),
      `id,name\n${Array.from({ length: 40 }, (_, i) => `v${i + 1},unreadable ${i + 1}`).join("\n")}\n`
    )
    here.config({
      jobs: { vendors: { file: jobFile, llm: "simulated" } },
      sources: { again: "again.csv", strange: "strange.csv" },
      maxTotalUsd: 10
    })
    const server = await start(here)
    const runId = await begin(server, { source: "again" })
    await runWhen(server, runId, ({ phase, status }) => status === "done" && phase === "idle")
    const requeued = await server.ask("POST", `/runs/${runId}/requeue`, { body: { rows: ["v2", "v3"] } })
    assert.deepStrictEqual(requeued.json, { rows: 2 })
    assert.strictEqual((await server.ask("POST", `/runs/${runId}/requeue`, { body: { rows: ["v99"] } })).status, 422)
    assert.deepInclude((await server.ask("GET", `/runs/${runId}`)).json, { status: "suspended", pending: 2, done: 8 })
    await steer(server, runId, "resume")
    const done = await runWhen(server, runId, ({ phase, status }) => status === "done" && phase === "idle")
    assert.deepInclude(done, { done: 10, reruns: 2, pending: 0 })

    const careful = await begin(server, { source: "strange", canary: 5 })
    const waiting = await runWhen(server, careful, ({ paused }) => paused !== null)
    assert.strictEqual(waiting.paused.by, "canary")
    assert.isNull((await steer(server, careful, "approve")).paused)
    await runWhen(server, careful, ({ status }) => status === "done")
    const { json } = await server.ask("GET", `/runs/${careful}/rows?end=partial&limit=7&search=UNREADABLE`)
    assert.deepStrictEqual([json.rows.length, json.next], [7, 6])
    const rest = await server.ask("GET", `/runs/${careful}/rows?after=6&limit=500`)
    assert.deepStrictEqual([rest.json.rows.length, rest.json.next], [33, null])
  })
})

describe("the server", () => {
  it(
    "stops within seconds with streams open: runs are drained, and go on by themselves when it is back",
    limit,
    async () => {
      const here = placeWith({ stopped: 300 })
      const server = await start(here)
      const runId = await begin(server, { source: "stopped", concurrency: 4 })
      const listeners = await Promise.all(Array.from({ length: 5 }, () => server.listen(runId)))
      await runWhen(server, runId, ({ done }) => done >= 8)
      const begun = performance.now()
      const { code, stderr } = await server.kill("SIGTERM")
      const took = performance.now() - begun
      console.log(`SIGTERM to the end with five streams and four calls: ${Math.round(took)} ms`)
      await Promise.all(listeners.map(({ over }) => over))
      assert.strictEqual(code, 130, stderr)
      // Calls of 100 ms are in flight; measured: 300 ms.
      assert.isBelow(took, 3_000)
      const status = command(["status", runId, "--json", "--db", "longhaul.db"], { cwd: here.dir })
      const left = JSON.parse((await status.ended).stdout)
      assert.deepInclude(left, { status: "suspended", held: 0, uncertain: 0 })
      assert.strictEqual(left.reason.kind, "interrupted")
      assert.isAbove(left.pending, 0)

      const back = await start(here)
      const stale = await back.listen(runId, listeners[0]?.events.at(-1)?.id)
      await stale.over
      // Its own numbers begin anew: what a listener saw of the server before is no place in them.
      assert.deepStrictEqual([stale.events[0]?.name, stale.events.at(-1)?.name], ["gap", "Finished"])
      const done = await runWhen(back, runId, ({ status }) => status === "done")
      assert.deepInclude(done, { done: 300, calls: 300, uncertain: 0 })
    }
  )

  it("that is killed in mid-run goes on when it is back: no row is lost or done twice", limit, async () => {
    const here = placeWith({ killed: 200 })
    await provider.reset()
    const server = await start(here)
    const runId = await begin(server, { source: "killed", concurrency: 4 })
    await runWhen(server, runId, ({ done }) => done >= 20)
    await server.kill("SIGKILL")
    const back = await start(here)
    const done = await runWhen(back, runId, ({ phase, status }) => status === "done" && phase === "idle")
    assert.deepInclude(done, { rows: 200, done: 200, held: 0 })
    const { json } = await back.ask("GET", `/runs/${runId}/rows?limit=500`)
    const ids = json.rows.map(({ id, parsed }: { id: string; parsed: { summary: string } }) => {
      assert.include(parsed.summary, `${id}: killed`)
      return id
    })
    assert.deepStrictEqual(
      ids,
      Array.from({ length: 200 }, (_, i) => `v${i + 1}`)
    )
    const bill = await provider.bill()
    assert.isAtMost(bill.requests, 200 + 4)
    // A call that was counted, and killed before it was sent.
    assert.isAtLeast(done.calls, bill.requests)
    assert.isAtMost(done.calls, 200 + 4)
    assert.isAtLeast(done.spent + done.uncertain, bill.billedNano)
  })

  it("spends no more than its cap over all runs: both stop", limit, async () => {
    const server = await start(placeWith({ left: 400, right: 400 }, { maxTotalUsd: 0.002, maxRunUsd: 0.002 }))
    await provider.reset()
    const ids = await Promise.all(["left", "right"].map((source) => begin(server, { source, budget: 0.002 })))
    const ended = await Promise.all(ids.map((id) => runWhen(server, id, ({ phase }) => phase === "idle")))
    for (const { held, reason, status } of ended) {
      assert.deepStrictEqual([status, reason?.kind, held], ["suspended", "budget", 0])
    }
    const counted = ended.reduce((sum, { spent, uncertain }) => sum + spent + uncertain, 0)
    assert.isAtMost(counted, 2_000_000)
    assert.isAtMost((await provider.bill()).billedNano, 2_000_000)
    for (const { spent } of ended) assert.isAbove(spent, 0)
    // Nor does a third run.
    const third = await begin(server, { source: "left", budget: 0.001 })
    const none = await runWhen(server, third, ({ phase, status }) => phase === "idle" && status !== "loading")
    assert.isAtMost(counted + none.spent + none.uncertain, 2_000_000)
  })

  it("shows neither its token nor the provider's key, in no output, file or answer", limit, async () => {
    const here = placeWith({ secret: 20 })
    const server = await start(here)
    const runId = await begin(server, { source: "secret" })
    const listener = await server.listen(runId)
    await listener.over
    const told: Array<string> = [JSON.stringify(listener.events)]
    const paths = ["", "/rows", "/rows/v1/calls", "/failures", "/receipt", "/checkpoints", "/export"]
    for (const path of paths) told.push((await server.ask("GET", `/runs/${runId}${path}`)).text)
    for (const path of ["/health", "/metrics", "/runs", "/jobs", "/openapi.json", "/nope"]) {
      told.push((await server.ask("GET", path)).text)
    }
    told.push((await server.ask("GET", "/runs", { token: `${TOKEN}x` })).text)
    const { stderr, stdout } = await server.kill("SIGTERM")
    assert.include(stderr, '"path":"/runs"')
    told.push(stdout, stderr)
    for (const text of told) assert.notInclude(text, "CANARY")
    const files = readdirSync(here.dir, { recursive: true, withFileTypes: true }).filter((file) => file.isFile())
    assert.include(
      files.map(({ name }) => name),
      "longhaul.db"
    )
    for (const { name, parentPath } of files) {
      assert.notInclude(readFileSync(join(parentPath, name), "latin1"), "CANARY", name)
    }
  })
})

describe("the command serve", () => {
  const refused = async (here: Place, args: ReadonlyArray<string>, own: Record<string, string> = {}) => {
    const { code, stderr, stdout } = await command(["serve", ...args], { cwd: here.dir, env: { ...env(), ...own } })
      .ended
    assert.strictEqual(code, 2, stderr)
    assert.strictEqual(stdout, "")
    assert.notMatch(stderr, /\n\s+at |Error:/)
    return stderr
  }

  it("makes a token on this machine, and takes none that can be guessed", limit, async () => {
    const here = placeWith({ made: 3 })
    const server = await start(here, { token: null })
    await until(() => server.stdout().includes("#token="))
    const token = /#token=(\S+)/.exec(server.stdout())?.[1] ?? ""
    // 256 bits.
    assert.match(token, /^[\w-]{43}$/)
    assert.strictEqual((await server.ask("GET", "/runs", { token })).status, 200)
    assert.strictEqual((await server.ask("GET", "/runs", { token: `${token.slice(1)}x` })).status, 401)
    assert.include(await refused(here, ["server.json"], { LONGHAUL_TOKEN: "secret" }), "LONGHAUL_TOKEN is too short")
  })

  it("listens to other machines with a token alone, and says how to get one", limit, async () => {
    const here = placeWith({ open: 3 })
    for (const host of ["0.0.0.0", "::", "127.0.0.1.example", "127.evil.example"]) {
      const said = await refused(here, ["server.json", "--host", host])
      assert.include(said, `${host} can be reached from other machines, and there is no token`)
      assert.include(said, "fix: set LONGHAUL_TOKEN, or name tokens in the configuration")
    }
  })

  it("names the file and the field of a configuration that is wrong", limit, async () => {
    const here = placeWith({ wrong: 3 })
    const right = { jobs: { vendors: { file: jobFile } }, sources: { wrong: "wrong.csv" }, maxTotalUsd: 1 }
    const token = { name: "ada", sha256: "0".repeat(64) }
    for (const [config, field] of [
      [{ ...right, maxTotalUsd: "much" }, "maxTotalUsd"],
      [{ ...right, maxtotalusd: 1 }, "maxtotalusd"],
      [{ ...right, jobs: { vendors: { file: jobFile, llm: "other" } } }, "jobs.vendors.llm"],
      [{ ...right, sources: {} }, "sources is empty"],
      [{ ...right, tokens: [{ ...token, sha256: "secret" }] }, "tokens.0.sha256"],
      [{ ...right, tokens: [{ ...token, name: "operator" }] }, "tokens.0.name"]
    ] as const) {
      here.config(config)
      const { message } = await Effect.runPromise(Effect.flip(ServerConfig.load(join(here.dir, "server.json"))))
      assert.match(message, /^\S*server\.json: /)
      assert.include(message, field)
    }
    // The command says the same.
    assert.match(await refused(here, ["server.json"]), /^error: \S*server\.json: tokens\.0\.name: operator is who has/)
    writeFileSync(join(here.dir, "server.json"), "{")
    assert.match(await refused(here, ["server.json"]), /^error: \S*server\.json: /)
    assert.match(await refused(here, ["none.json"]), /there is no configuration \S*none\.json/)
    here.config({ ...right, jobs: { vendors: { file: "none.ts" } } })
    assert.match(await refused(here, ["server.json", "--port", "0"]), /there is no job module \S*none\.ts/)
  })

  it("says which port is taken, or is none", limit, async () => {
    const here = placeWith({ taken: 3 })
    const server = await start(here)
    const other = ["server.json", "--db", "other.db", "--port"]
    assert.match(
      await refused(here, [...other, String(server.port)]),
      /^error: cannot listen on 127\.0\.0\.1, port \d+: .*\nfix: /
    )
    assert.match(await refused(here, [...other, "99999"]), /^error: there is no port 99999\nfix: /)
  })
})
