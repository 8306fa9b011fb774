import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { Effect, Exit, Scope } from "effect"
import { ROWS } from "./damageJob.ts"
import { damagedCopy, damages, killed, resumed, takenAway } from "./T8Damage.ts"

const limit = { timeout: 120_000 }

describe("a run whose files are damaged after a kill", () => {
  const life = Effect.runSync(Scope.make())
  let db = ""
  beforeAll(async () => {
    db = await Effect.runPromise(Scope.extend(killed, life))
  }, limit.timeout)
  afterAll(() => Effect.runPromise(Scope.close(life, Exit.void)))

  for (const damage of damages) {
    const { name, wants } = damage
    const title = wants === undefined ? `${name}: goes on with every row` : `${name}: is refused, and nothing is sent`
    it.scopedLive(
      title,
      () =>
        Effect.gen(function* () {
          let calls = 0
          const said = yield* resumed(yield* damagedCopy(db, damage), () => calls++)
          if (wants === undefined) return assert.strictEqual(said, `done, ${ROWS} done`)
          assert.include(wants, said)
          assert.strictEqual(calls, 0)
        }),
      limit
    )
  }
})

describe("the files of a live run", () => {
  it.scopedLive(
    "taken away in mid-run: it stops, and sends nothing more",
    () => Effect.map(takenAway.run, ({ broken }) => assert.deepStrictEqual(broken, [])),
    limit
  )
})
