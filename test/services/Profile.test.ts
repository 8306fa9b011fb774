import { assert, describe, it } from "@effect/vitest"
import * as Profile from "../../src/services/Profile.ts"

describe("Profile.forUrl", () => {
  const rows: ReadonlyArray<readonly [url: string, name: Profile.Name]> = [
    ["https://api.openai.com/v1", "openai"],
    ["https://eu.api.openai.com/v1", "openaiRegional"],
    ["https://us.api.openai.com/v1", "openaiRegional"],
    ["https://ours.openai.azure.com/openai/v1", "azure"],
    ["https://ours.services.ai.azure.com/openai/v1", "azure"],
    ["https://openrouter.ai/api/v1", "openrouter"],
    ["https://api.groq.com/openai/v1", "groq"],
    ["https://api.deepseek.com", "deepseek"],
    ["https://api.mistral.ai/v1", "mistral"],
    ["https://generativelanguage.googleapis.com/v1beta/openai", "gemini"],
    ["http://127.0.0.1:11434/v1", "ollama"],
    ["http://127.0.0.1:8000/v1", "compatible"],
    // Names that only look alike.
    ["https://api.openai.com.example.test/v1", "compatible"],
    ["https://notgroq.com/v1", "compatible"],
    ["https://example.test/api.openai.com/v1", "compatible"]
  ]
  for (const [url, name] of rows) it(`${url}: ${name}`, () => assert.strictEqual(Profile.forUrl(url).name, name))
})

describe("the profiles", () => {
  const withPart = (has: (profile: Profile.Profile) => boolean) =>
    Profile.names.filter((name) => has(Profile.profiles[name]))

  it("each knows its own name", () => {
    for (const name of Profile.names) assert.strictEqual(Profile.profiles[name].name, name)
  })

  it("data residency costs 10 % more, everything else what the table says", () => {
    assert.strictEqual(Profile.profiles.openaiRegional.priceFactor, 1.1)
    assert.deepStrictEqual(
      withPart(({ priceFactor }) => priceFactor !== 1),
      ["openaiRegional"]
    )
  })

  it("the standard tier is asked for by name only where the project may have another one by default", () => {
    assert.deepStrictEqual(
      withPart(({ standardTier }) => standardTier !== undefined),
      ["openai", "openaiRegional"]
    )
    assert.strictEqual(Profile.profiles.openai.standardTier, "default")
  })

  it("a bill of its own is believed only where it is documented", () => {
    assert.deepStrictEqual(
      withPart(({ costInUsage }) => costInUsage),
      ["openrouter"]
    )
  })

  it("a message that decides is only read with its status: a row can say anything", () => {
    for (const name of Profile.names) {
      const { deviations }: Profile.Profile = Profile.profiles[name]
      for (const { message, statuses } of deviations) {
        assert.isAbove(statuses.length, 0, name)
        assert.isTrue(message === undefined || !message.global, name)
      }
    }
  })
})
