/** A run's spans and metrics at a collector: a real HTTP server that keeps what it is sent. */
import { createServer } from "node:http"
import { assert, describe, it } from "@effect/vitest"
import { Effect } from "effect"
import * as Memory from "../../src/layers/Memory.ts"
import * as OtlpExport from "../../src/layers/OtlpExport.ts"
import * as Budget from "../../src/programs/Budgets.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import { jobOf, rowsOf } from "../support/scriptedJob.ts"
import { good, prices, scripted, tokens } from "../support/scriptedLlm.ts"

const collector = Effect.acquireRelease(
  Effect.async<{ readonly url: string; readonly bodies: Map<string, string>; readonly close: () => void }>((resume) => {
    const bodies = new Map<string, string>()
    const server = createServer((request, response) => {
      let body = ""
      request.on("data", (part) => {
        body += part
      })
      request.on("end", () => {
        const path = request.url ?? ""
        bodies.set(path, (bodies.get(path) ?? "") + body)
        response.setHeader("content-type", "application/json").end("{}")
      })
    })
    server.listen(0, "127.0.0.1", () => {
      const address = server.address()
      const port = typeof address === "object" && address !== null ? address.port : 0
      resume(Effect.succeed({ url: `http://127.0.0.1:${port}`, bodies, close: () => void server.close() }))
    })
  }),
  ({ close }) => Effect.sync(close)
)

describe("OTLP export", () => {
  it.scopedLive("a run's spans and metrics arrive by their conventional names, and no row's text with them", () =>
    Effect.gen(function* () {
      const { bodies, url } = yield* collector
      const llm = scripted(({ row }) => good(tokens(row.length, 3)))
      const job = jobOf({ rows: rowsOf(3, (id) => `secret-text ${id}`) })
      yield* Enrichment.run(job, { runId: "observed", spans: true }).pipe(
        Effect.provide(Budget.layer({ maxCostUsd: 1 })),
        Effect.provide([Memory.layer, llm.layer, prices]),
        Effect.provide(OtlpExport.layer({ baseUrl: url }))
      )
      const traces = bodies.get("/v1/traces") ?? ""
      for (const name of ["longhaul.run", "longhaul.chunk", "longhaul.row", "longhaul.turn", "chat scripted"]) {
        assert.include(traces, `"name":"${name}"`)
      }
      assert.include(traces, "gen_ai.usage.input_tokens")
      const metrics = bodies.get("/v1/metrics") ?? ""
      assert.include(metrics, "gen_ai.client.operation.duration")
      assert.include(metrics, "longhaul.cost")
      assert.notInclude([...bodies.values()].join(""), "secret-text")
    })
  )
})
