import { once } from "node:events"
import { connect } from "node:net"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import {
  type Event,
  jobFile,
  type Place,
  place,
  runWhen,
  type Served,
  serve,
  TOKEN,
  until
} from "../support/longhaulServer.ts"
import { type FakeProvider, startFakeProvider } from "../support/startFakeProvider.ts"

const limit = { timeout: 120_000 }
let provider: FakeProvider
let here: Place
let server: Served
const start = () => serve(here, { env: { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: provider.url } })

const sources = ["both", "after", "cut", "dead", "keyless", "twice", "viewed", "quiet"]
beforeAll(async () => {
  provider = await startFakeProvider({ latency: 100 })
  here = place()
  for (const name of sources) here.source(name, name === "viewed" || name === "quiet" ? 200 : 20)
  here.config({
    jobs: { vendors: { file: jobFile } },
    sources: Object.fromEntries(sources.map((name) => [name, `${name}.csv`])),
    maxTotalUsd: 10,
    maxActive: 8
  })
  server = await start()
}, 60_000)
afterAll(async () => {
  await server.kill()
  await provider.stop()
  here.remove()
})

const submit = async (source: string, key?: string) => {
  const headers = key === undefined ? {} : { "idempotency-key": key }
  const { json, status, text } = await server.ask("POST", "/enrich", { body: { source, budget: 0.1 }, headers })
  assert.strictEqual(status, 202, text)
  return String(json.runId)
}
const isOver = ({ phase, status }: { phase: string; status: string }) => status === "done" && phase === "idle"
/** One run, and each of its rows was asked about once. */
const assertOne = async (ids: ReadonlyArray<string>) => {
  const [runId = ""] = ids
  assert.deepStrictEqual([...new Set(ids)], [runId])
  const run = await runWhen(server, runId, isOver)
  assert.deepInclude(run, { rows: 20, done: 20, calls: 20, cap: 100_000_000 })
  assert.strictEqual((await provider.bill()).requests, 20)
}

describe("http api", () => {
  it("B15 double-submit: two at once, and one after the first was answered, are one run", limit, async () => {
    await provider.reset()
    await assertOne(await Promise.all([submit("both", "a"), submit("both", "a")]))
    await provider.reset()
    const first = await submit("after", "b")
    await assertOne([first, await submit("after", "b")])
    // Long after, it is still that run.
    await assertOne([first, await submit("after", "b")])
  })

  it("B15 double-submit: a client that is cut off before its answer finds its run by the key", limit, async () => {
    await provider.reset()
    const body = JSON.stringify({ source: "cut", budget: 0.1 })
    const socket = connect(server.port, "127.0.0.1")
    await once(socket, "connect")
    const headers = [
      "POST /enrich HTTP/1.1",
      "Host: localhost",
      `Authorization: Bearer ${TOKEN}`,
      "Content-Type: application/json",
      "Idempotency-Key: c",
      `Content-Length: ${body.length}`
    ]
    await new Promise<void>((sent) => socket.write(`${headers.join("\r\n")}\r\n\r\n${body}`, () => sent()))
    socket.destroy()
    await assertOne([await submit("cut", "c")])
  })

  it(
    "B15 double-submit: a server that is killed once the run is there gives that run to who asks again",
    limit,
    async () => {
      await provider.reset()
      const first = await submit("dead", "d")
      await server.kill("SIGKILL")
      server = await start()
      assert.strictEqual(await submit("dead", "d"), first)
      const run = await runWhen(server, first, isOver)
      assert.deepInclude(run, { rows: 20, done: 20 })
      // What was in flight at the kill is asked again.
      assert.isAtMost((await provider.bill()).requests, 20 + 8)
    }
  )

  it("B15 double-submit: without a key each request is a run of its own, with its own cap", limit, async () => {
    const [one = "", other = ""] = await Promise.all([submit("keyless"), submit("keyless")])
    assert.notStrictEqual(one, other)
    for (const id of [one, other]) {
      const run = await runWhen(server, id, isOver)
      assert.deepInclude(run, { rows: 20, done: 20, cap: 100_000_000 })
      assert.isAtMost(run.spent, run.cap)
    }
  })

  it("B15 double-submit: two that resume a run at once have one worker between them", limit, async () => {
    await provider.reset()
    const runId = await submit("twice", "f")
    await server.ask("POST", `/runs/${runId}/drain`)
    const drained = await runWhen(server, runId, ({ phase }) => phase === "idle")
    assert.strictEqual(drained.status, "suspended")
    const both = await Promise.all([1, 2].map(() => server.ask("POST", `/runs/${runId}/resume`)))
    assert.deepStrictEqual(
      both.map(({ status }) => status),
      [200, 200]
    )
    await assertOne([runId])
  })

  it(
    "B42 sse-disconnect: who comes back goes on after the last event seen, or hears of a gap; one that never reads harms nobody",
    limit,
    async () => {
      const runId = await submit("viewed", "g")
      const path = `GET /runs/${runId}/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ${TOKEN}\r\n\r\n`
      const deaf = connect(server.port, "127.0.0.1", () => deaf.write(path))
      deaf.on("error", () => undefined)
      deaf.pause()
      const viewers = await Promise.all(Array.from({ length: 49 }, () => server.listen(runId)))
      const broken = await server.listen(runId)
      await broken.until((events) => events.length >= 3)
      broken.close()
      await broken.over
      const seen = broken.events.slice(0, 3)
      const back = await server.listen(runId, seen[2]?.id)
      await back.until((events) => events.length >= 20)

      // From before a restart of the server: its numbers mean nothing now.
      await server.kill("SIGTERM")
      server = await start()
      const stale = await server.listen(runId, seen[2]?.id)
      const fresh = await server.listen(runId)
      await Promise.all([...viewers, back, stale, fresh].map(({ over }) => over))
      deaf.destroy()
      const run = await runWhen(server, runId, isOver)
      assert.deepInclude(run, { rows: 200, done: 200, calls: 200 })

      const told = (events: ReadonlyArray<Event>) => events.map(({ id, name }) => `${id} ${name}`)
      const all = told(viewers[0]?.events ?? [])
      for (const { events } of viewers) {
        // Whoever came later has the same from there on.
        const own = told(events).slice(1)
        assert.deepStrictEqual(
          all.slice(all.length - own.length).slice(0, own.length - 40),
          own.slice(0, own.length - 40)
        )
      }
      const again = [...told(seen), ...told(back.events)].slice(1)
      const from = all.indexOf(again[0] ?? "")
      assert.isAtLeast(from, 0)
      assert.deepStrictEqual(again.slice(0, 20), all.slice(from, from + 20))
      assert.deepStrictEqual([stale.events[0]?.name, stale.events[0]?.data.runId], ["gap", runId])
      assert.strictEqual(fresh.events[0]?.name, "snapshot")
      for (const { events } of [stale, fresh]) {
        const rows = events.filter(({ name }) => name === "Row").map(({ data }) => data.seq)
        assert.strictEqual(new Set(rows).size, rows.length)
        assert.isAtLeast(events[0]?.data.done + rows.length, 200)
        assert.strictEqual(events.at(-1)?.name, "Finished")
      }
      await until(async () => (await server.ask("GET", "/health")).json.active === 0)
    }
  )

  it("B42 sse-disconnect: a line on which nothing happens is known to live", limit, async () => {
    const runId = await submit("quiet", "h")
    assert.strictEqual((await server.ask("POST", `/runs/${runId}/pause`, { body: {} })).status, 200)
    const response = await fetch(`${server.url}/runs/${runId}/events`, {
      headers: { authorization: `Bearer ${TOKEN}` }
    })
    let text = ""
    // The case's own figure.
    const begun = performance.now()
    for await (const chunk of response.body ?? []) {
      text += Buffer.from(chunk).toString()
      if (text.split(": alive\n\n").length > 1) break
    }
    assert.include(text, ": alive\n\n")
    assert.isBelow(performance.now() - begun, 15_000)
    assert.include(text, "event: snapshot")
    await server.ask("POST", `/runs/${runId}/cancel`)
  })
})
