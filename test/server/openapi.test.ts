/** The document of the interface is right, and enough: a client that knows nothing else completes a run. */

import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Validator } from "@seriousme/openapi-schema-validator"
import { OpenAPIClientAxios } from "openapi-client-axios"
import { jobFile, type Place, place, type Served, serve, TOKEN, until } from "../support/longhaulServer.ts"

let here: Place
let server: Served
beforeAll(async () => {
  here = place()
  here.source("few", 5)
  here.config({
    jobs: { vendors: { file: jobFile, llm: "simulated" } },
    sources: { few: "few.csv" },
    maxTotalUsd: 1
  })
  server = await serve(here)
}, 60_000)
afterAll(async () => {
  await server.kill()
  here.remove()
})

/** Without a token: who builds a client has none yet. */
const documentOf = async () => (await server.ask("GET", "/openapi.json", { token: null })).json

describe("the OpenAPI document", () => {
  it("is valid, and names each answer and each way to fail", async () => {
    const document = await documentOf()
    const { errors, valid } = await new Validator().validate(structuredClone(document))
    assert.isTrue(valid, JSON.stringify(errors))
    assert.strictEqual(document.info.title, "Longhaul")
    const { responses, security } = document.paths["/enrich"].post
    assert.includeMembers(Object.keys(responses), ["202", "400", "401", "403", "409", "422", "429", "503"])
    assert.deepStrictEqual(security, [{ bearer: [] }])
    assert.deepInclude(document.components.securitySchemes.bearer, { type: "http", scheme: "bearer" })
    // Open to whoever reaches it.
    assert.deepStrictEqual(document.paths["/health"].get.security, [])
  })

  it("is enough for a client to complete a run", { timeout: 60_000 }, async () => {
    const api = new OpenAPIClientAxios({
      definition: await documentOf(),
      withServer: { url: server.url },
      axiosConfigDefaults: { headers: { Authorization: `Bearer ${TOKEN}` } }
    })
    const client = await api.init()
    const call = async (operation: string, parameters: Readonly<Record<string, string | number>>, body?: object) => {
      const method = client[operation]
      assert.isDefined(method, operation)
      return await method?.({ ...parameters }, body)
    }
    const begun = await call("runs.enrich", { "idempotency-key": "one" }, { source: "few", budget: 0.1 })
    assert.strictEqual(begun?.status, 202)
    const { runId } = begun.data
    let run: ReturnType<typeof JSON.parse>
    await until(async () => {
      run = (await call("runs.run", { runId }))?.data
      return run.status === "done"
    })
    assert.deepInclude(run, { rows: 5, done: 5, failed: 0 })

    const first = (await call("runs.rows", { runId, limit: 3 }))?.data
    const rest = (await call("runs.rows", { runId, limit: 3, after: first.next }))?.data
    const ids = [...first.rows, ...rest.rows].map(({ id }) => id)
    assert.deepStrictEqual(ids, ["v1", "v2", "v3", "v4", "v5"])
    assert.isNull(rest.next)

    const receipt = (await call("runs.receipt", { runId }))?.data
    assert.deepInclude(receipt, { runId, spent: run.spent, calls: 5 })
    assert.strictEqual(receipt.settled.cost, run.spent)

    const exported = await call("runs.export", { runId, format: "jsonl" })
    const lines = String(exported?.data).trim().split("\n")
    assert.deepStrictEqual(
      lines.map((line) => JSON.parse(line)).map(({ id, longhaul_status, summary }) => [id, longhaul_status, summary]),
      ids.map((id, i) => [id, "done", `about ${id}: few ${i + 1}`])
    )
  })
})
