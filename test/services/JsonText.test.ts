import { assert, describe, it } from "@effect/vitest"
import { Either } from "effect"
import * as fc from "fast-check"
import { vi } from "vitest"
import * as JsonText from "../../src/services/JsonText.ts"

// Room for a busy machine.
vi.setConfig({ testTimeout: 60_000 })

const many = { numRuns: 1000 }

const finds = (text: string, value: unknown, salvaged = true) =>
  assert.deepStrictEqual(JsonText.find(text), Either.right({ value, salvaged }), text)
const refuses = (text: string, reason: string) => assert.deepStrictEqual(JsonText.find(text), Either.left(reason), text)
const fenced = (content: string, language = "json") => `\`\`\`${language}\n${content}\n\`\`\``

const noObject = "the answer holds no JSON object"
const broken = "the answer holds an object that is not valid JSON"
const unclosed = "the answer holds an object that is not closed"

const objects = fc.dictionary(fc.fullUnicodeString(), fc.jsonValue({ maxDepth: 3, noUnicodeString: false }))
/** As JSON has it: no -0. */
const asJson = (value: unknown): unknown => JSON.parse(JSON.stringify(value))
/** Prose that has no digits, braces, brackets, quotes, fences or tags. */
const prose = fc.stringOf(fc.constantFrom(...("abc XYZ ,.;:!?'()-\\/\n\r\t\u2028\u00a0é漢😀".match(/./gsu) ?? [])))

describe("JsonText.find", () => {
  it("takes an answer that is JSON as it stands", () => {
    finds('{"a":1}', { a: 1 }, false)
    finds(' \n\ufeff{"a":"}"}\r\n', { a: "}" }, false)
    finds("[1,2]", [1, 2], false)
    finds("null", null, false)
    finds('"```json"', "```json", false)
  })

  it("takes thinking off, once or more, and does not look into thinking that is not ended", () => {
    finds('<think>perhaps {"a":0}</think>\n{"a":1}', { a: 1 })
    finds('<think>x</think> <thinking>y </think></thinking>\n\n{"a":1}', { a: 1 })
    finds(`<think></think>\nHere:\n${fenced('{"a":1}')}`, { a: 1 })
    refuses('<think>perhaps {"a":0}', "the answer ends inside its thinking")
    refuses('<thinking>perhaps {"a":0}</think>', "the answer ends inside its thinking")
    refuses("<think>x</think>\n", "the answer is empty")
  })

  it("takes thinking off that has no word to open it, and does not look into it", () => {
    finds('maybe {"a":0}?\n</think>\n{"a":1}', { a: 1 })
    refuses('maybe {"a":0}?\n</think>\n{"a": one}', broken)
    // With its opening word it is a text about thinking.
    refuses('x <think>{"a":0}</think> {"a":1}', "the answer holds 2 JSON objects: which one is meant?")
  })

  it("does not take a draft or an example for an answer that is broken", () => {
    refuses('First: {"a":0} - no. Finally: {"a":1,}', "the answer holds 2 JSON objects: which one is meant?")
    refuses(
      `Example:\n${fenced('{"a":0}')}\nAnswer:\n${fenced('{"a":1,}')}`,
      "the answer holds 2 JSON objects: which one is meant?"
    )
    // A placeholder is no object.
    finds('Fill in {name}: {"a":1}', { a: 1 })
  })

  it("takes the one fenced block that is JSON", () => {
    finds(fenced('{"a":1}'), { a: 1 })
    finds(fenced("[1]", "Json"), [1])
    finds(fenced('{\r\n  "a": "```"\r\n}', "JSON "), { a: "```" })
    finds(`Sure:\n  ${fenced("[1]", "")}\nIt replaces {"a":0}.`, [1])
    finds(`${fenced('{"a":0}', "ts")}\n${fenced("not JSON", "")}\n${fenced('{"a":1}')}`, { a: 1 })
    refuses(`${fenced('{"a":1}')}\n${fenced('{"a":1}')}`, "the answer holds 2 JSON blocks: which one is meant?")
    refuses(fenced("{'a':1}"), broken)
  })

  it("a fence may be on one line, or not closed if its content is whole", () => {
    finds('```json\n{"a":1}', { a: 1 })
    finds('{"a":1}\n```', { a: 1 })
    finds('```json {"a":1}```', { a: 1 })
    finds('```{"a":1}```\n```js\n{"a":0}\n```', { a: 1 })
    finds('Is it {"a":"\u2028```json\u2028{}\u2028```\u2028"}?', { a: "\u2028```json\u2028{}\u2028```\u2028" })
    refuses(`\`\`\`json {"a":1}\`\`\`\n${fenced('{"a":2}')}`, "the answer holds 2 JSON blocks: which one is meant?")
    refuses('```json\n{"a":1', unclosed)
    refuses(`For example:\n${fenced('{"a":1}')}\nSo:\n\`\`\`json\n{"a":2`, unclosed)
    refuses(`${fenced('{"a":1}')}\n\`\`\`json\n{"a":2}`, "the answer holds 2 JSON blocks: which one is meant?")
  })

  it("takes the one object between prose, and never chooses", () => {
    finds('Here you are: {"a":{"b":"\\"}{"}} - anything else?', { a: { b: '"}{' } })
    finds('He wrote "{name}" and 5" of {"a":1}', { a: 1 })
    refuses('{"a":1} or {"a":1}', "the answer holds 2 JSON objects: which one is meant?")
    refuses('{"a":1}{"a":2} {"a":3}', "the answer holds 3 JSON objects: which one is meant?")
    refuses('Here: [{"a":1}]', "the answer holds a JSON array, not one object")
    refuses(" \n", "the answer is empty")
    refuses("I cannot say. [1]", noObject)
  })

  it("completes and corrects nothing", () => {
    for (const text of ['{"a":1,}', "{'a':1}", "{a:1}", '{"a":1 "b":2}', '{"a":"\n"}', '{"a":NaN}', "{// x\n}"])
      refuses(text, broken)
    for (const text of ['{"a":1', '{"a":"}', '{"a":"x\\"}', '{"outer": {"a":1}', '{"a":"x{"a":{"b":1}', '{ {"a":1}'])
      refuses(text, unclosed)
    for (const text of ['"a":{"b":1}}', '{"a":1}}', ':} {"a":1}'])
      refuses(text, "the answer closes an object that it does not open")
  })

  it("any object is found between any prose", () => {
    fc.assert(
      fc.property(objects, prose, prose, fc.boolean(), (object, before, after, pretty) => {
        const found = JsonText.find(before + JSON.stringify(object, null, pretty ? 2 : 0) + after)
        const salvaged = (before + after).trim() !== ""
        assert.deepStrictEqual(found, Either.right({ value: asJson(object), salvaged }))
      }),
      many
    )
  })

  it("any object is found in a fence after thinking", () => {
    fc.assert(
      fc.property(objects, prose, (object, thought) =>
        finds(`<think>${thought}{"a":1}</think>${fenced(JSON.stringify(object, null, 1))}`, asJson(object))
      ),
      many
    )
  })

  it("nothing is found in an object that is cut", () => {
    fc.assert(
      fc.property(objects, fc.nat(), prose, (object, cut, before) => {
        const text = JSON.stringify(object, null, cut % 2)
        const found = JsonText.find(before + text.slice(0, cut % text.length))
        assert.isTrue(Either.isLeft(found), JSON.stringify(found))
      }),
      { numRuns: 5000 }
    )
  })

  it("takes linear time, whatever the answer", () => {
    const hostile = ["{", '{"', '{"a":', "[{", "{}", "{x}", "}", '"', "\\", "```json\n", "```\n{\n", "```x", "<think>"]
    for (const part of [...hostile, "<think></think>", "<think>\n\n", "\n", "{\\", '{"}', "[", "{ "]) {
      const start = performance.now()
      JsonText.find(`x${part.repeat(50_000)}`)
      JsonText.find(`${part.repeat(50_000)}x`)
      assert.isBelow(performance.now() - start, 5000, part)
    }
  })
})
