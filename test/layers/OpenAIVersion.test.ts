import { writeFileSync } from "node:fs"
import { createServer } from "node:http"
import { join } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Redacted } from "effect"
import * as LLMOpenAI from "../../src/layers/LLMOpenAI.ts"
import { LLM, request } from "../../src/services/LLM.ts"
import { command } from "../support/command.ts"
import { tempDir } from "../support/mortalProcess.ts"

const major = process.env.LONGHAUL_OPENAI ?? "6"

/** A server that refuses all, and keeps what version of the SDK each request names. */
const server = Effect.acquireRelease(
  Effect.async<{ readonly url: string; readonly versions: Array<string>; readonly close: () => void }>((resume) => {
    const versions: Array<string> = []
    const http = createServer((incoming, response) => {
      versions.push(String(incoming.headers["x-stainless-package-version"]))
      incoming.resume().on("end", () => response.writeHead(401, { "content-type": "application/json" }).end("{}"))
    })
    http.listen(0, "127.0.0.1", () => {
      const address = http.address()
      const url = `http://127.0.0.1:${address instanceof Object ? address.port : 0}/v1`
      resume(Effect.succeed({ url, versions, close: () => http.close().closeAllConnections() }))
    })
  }),
  ({ close }) => Effect.sync(close)
)

describe(`the openai SDK is version ${major}`, () => {
  it.scopedLive("of the layer in this process", () =>
    Effect.gen(function* () {
      const { url, versions } = yield* server
      const asked = request({
        model: "gpt-6-luna",
        messages: [{ role: "user", content: "hi" }],
        maxOutputTokens: 10,
        format: { mode: "text" }
      })
      yield* Effect.flip(Effect.flatMap(LLM, (llm) => llm.generate(asked))).pipe(
        Effect.provide(LLMOpenAI.layerWith({ apiKey: Redacted.make("sk-test"), baseUrl: url }))
      )
      assert.match(versions.join(), new RegExp(`^${major}\\.\\d+\\.\\d+$`))
    })
  )

  it.scopedLive("of the command in a process of its own", () =>
    Effect.gen(function* () {
      const { url, versions } = yield* server
      const cwd = yield* tempDir
      writeFileSync(join(cwd, "rows.csv"), "id,name\n1,one\n")
      const job = fileURLToPath(new URL("../programs/cli/job.ts", import.meta.url))
      const args = ["run", job, "--budget", "1", "--source", "rows.csv"]
      const env = { OPENAI_API_KEY: "sk-test", OPENAI_BASE_URL: url }
      const { code, stderr } = yield* Effect.promise(() => command(args, { cwd, env }).ended)
      assert.strictEqual(code, 4, stderr)
      assert.match(versions.join(), new RegExp(`^${major}\\.\\d+\\.\\d+$`))
    })
  )
})
