/**
 * Looks at a run again and again from a process of its own, as `status` and `watch` do: `node --import tsx poller.ts <database> <run id> <looks>`. Says `ready`, waits for a line, and prints
 * what it saw as JSON.
 */
import { once } from "node:events"
import { Cause, Effect, Exit, Schema } from "effect"
import * as Sqlite from "../../src/layers/Sqlite.ts"
import * as Report from "../../src/programs/Report.ts"
import * as Watch from "../../src/programs/Watch.ts"

/** `running`: looks that saw the run at work; `done`: rows that were done at the first look and at the last. */
export const Polled = Schema.parseJson(
  Schema.Struct({
    looks: Schema.Int,
    running: Schema.Int,
    done: Schema.Tuple(Schema.Int, Schema.Int),
    errors: Schema.Array(Schema.String)
  })
)

const poll = (filename: string, runId: string, looks: number) =>
  Effect.gen(function* () {
    const errors: Array<string> = []
    const done: Array<number> = []
    let running = 0
    for (let n = 0; n < looks; n++) {
      const seen = yield* Effect.exit(Effect.zipLeft(Watch.look(runId), Report.lastCheckpoint(runId)))
      if (Exit.isFailure(seen)) {
        errors.push(Cause.pretty(seen.cause))
        continue
      }
      done.push(seen.value.done)
      if (seen.value.status === "running") running++
    }
    return yield* Schema.encode(Polled)({ looks, running, done: [done[0] ?? 0, done.at(-1) ?? 0], errors })
  }).pipe(Effect.provide(Sqlite.layer({ filename, create: false })))

const [, script = "", filename = "", runId = "", looks = ""] = process.argv
if (script.endsWith("poller.ts")) {
  console.log("ready")
  await once(process.stdin, "data")
  console.log(await Effect.runPromise(poll(filename, runId, Number(looks))))
}
