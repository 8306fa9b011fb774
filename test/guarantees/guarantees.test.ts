import { readFileSync } from "node:fs"
import { assert, describe, it } from "@effect/vitest"
import { claims } from "./claims.ts"

const { scripts } = JSON.parse(readFileSync(new URL("../../package.json", import.meta.url), "utf8"))

describe("docs/guarantees.md", () => {
  it("has a command for each claim, and each command is one of package.json's", () => {
    assert.isAtLeast(claims.length, 10)
    for (const { commands, title } of claims) {
      assert.isNotEmpty(commands, title)
      for (const command of commands) {
        const script = /^(?:! )?npm (?:run (?:--silent )?)?([\w:]+)/.exec(command)?.[1] ?? ""
        assert.property(scripts, script, command)
      }
    }
  })
})
