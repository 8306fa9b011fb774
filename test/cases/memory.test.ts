import { spawn } from "node:child_process"
import { once } from "node:events"
import { readdirSync } from "node:fs"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"
import { Effect, Schema } from "effect"
import { assertIncludes } from "../support/assertIncludes.ts"
import { tempDir } from "../support/mortalProcess.ts"

const child = fileURLToPath(new URL("./memory/child.ts", import.meta.url))
const Said = Schema.parseJson(
  Schema.Struct({
    rows: Schema.Int,
    done: Schema.Int,
    pending: Schema.Int,
    calls: Schema.Int,
    again: Schema.Int,
    sizes: Schema.Array(Schema.Int)
  })
)

interface Trial {
  /** Megabytes; beyond it the process dies. */
  readonly heap: number
  readonly rows: number
  /** Bytes of a row, and of a result. */
  readonly row: number
  readonly calls: number
  readonly result: number
}

const tried = (dir: string, { calls, heap, result, row, rows }: Trial) =>
  Effect.promise(async () => {
    const numbers = [rows, row, calls, result].map(String)
    const args = [`--max-old-space-size=${heap}`, "--import", "tsx", child, dir, ...numbers]
    const started = spawn(process.execPath, args, { stdio: ["ignore", "pipe", "pipe"] })
    let [out, errors] = ["", ""]
    started.stdout.on("data", (chunk) => {
      out += chunk
    })
    started.stderr.on("data", (chunk) => {
      errors += chunk
    })
    const [code, signal] = await once(started, "close")
    return { code, signal, out, errors }
  })

const limit = { timeout: 300_000 }

describe("memory", () => {
  const listed = { heap: 64, rows: 40_000, row: 2_000, calls: 2_000, result: 10 }
  it.scopedLive(
    `B87 queue-all: ${listed.rows} rows of 2 KB, 80 MB in all, are listed and ${listed.calls} of them run in a heap of ${listed.heap} MB`,
    () =>
      Effect.gen(function* () {
        const { code, errors, out } = yield* tried(yield* tempDir, listed)
        assert.strictEqual(code, 0, errors)
        const { calls, rows } = listed
        assertIncludes(yield* Schema.decode(Said)(out), { rows, done: calls, pending: rows - calls, calls, again: 0 })
      }),
    limit
  )

  const exported = { heap: 72, rows: 4_000, row: 10, calls: 4_000, result: 20_000 }
  it.scopedLive(
    `B88 invalid-string-length: 80 MB of results are made and exported in a heap of ${exported.heap} MB, again and again, for nothing`,
    () =>
      Effect.gen(function* () {
        const dir = yield* tempDir
        const { code, errors, out } = yield* tried(dir, exported)
        assert.strictEqual(code, 0, errors)
        const said = yield* Schema.decode(Said)(out)
        const { calls, result, rows } = exported
        assertIncludes(said, { rows, done: calls, pending: 0, calls, again: 0 })
        for (const size of said.sizes) assert.isAbove(size, rows * result)
        assert.strictEqual(said.sizes[1], said.sizes[2])
        assert.deepStrictEqual(
          readdirSync(dir)
            .filter((name) => name.startsWith("out") || name.endsWith(".tmp"))
            .sort(),
          ["out.csv", "out.jsonl"]
        )
      }),
    limit
  )
})
