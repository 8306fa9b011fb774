/** Prints the keys and hashes of fixed values, one a line: run in a process of its own, it must print what this process computes. */
import { Either } from "effect"
import * as Identity from "../../src/services/Identity.ts"
import { agentOf, rowsOf } from "./scriptedJob.ts"

export const keys = (): ReadonlyArray<string> => {
  const agent = agentOf()
  const rows = rowsOf(5)
  const values: ReadonlyArray<unknown> = [
    { b: [1, { d: null, c: "ü" }], a: true },
    new Map<unknown, unknown>([
      ["x", 1n],
      [2, new Date(0)]
    ]),
    new Set(["b", "a"]),
    ...rows.map((row) => agent.request(row))
  ]
  return [
    agent.decoder,
    ...values.map((value) => Either.getOrThrow(Identity.stableHash(value))),
    ...rows.map((row) => Either.getOrThrow(Identity.idempotencyKey("scope", "job", row.id, row.text)))
  ]
}

if (process.argv[1]?.endsWith("printKeys.ts") === true) console.log(keys().join("\n"))
