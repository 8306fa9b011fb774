/**
 * Internal. The one JSON value in a model's answer. Servers without constrained decoding put thinking before it, a fence around it or prose beside it: those are
 * taken off. Nothing is completed, and where two values could be meant none is chosen. The reasons name no engine's error and quote no text, so that a
 * repair asks with the same words everywhere.
 *
 * @since 0.1.0
 */
import { Either, Option } from "effect"

/**
 * The value; `salvaged` if the answer was not JSON as it stood.
 *
 * @since 0.1.0
 */
export interface Found {
  readonly value: unknown
  readonly salvaged: boolean
}

/**
 * The JSON value of an answer, or why there is none.
 *
 * @since 0.1.0
 */
export const find = (text: string): Either.Either<Found, string> => {
  const answer = text.trim()
  return Option.match(parse(answer), {
    onSome: (value) => Either.right({ value, salvaged: false }),
    onNone: () =>
      Either.map(Either.flatMap(afterThinking(answer), salvage), (value): Found => ({ value, salvaged: true }))
  })
}

const parse = Option.liftThrowable((text: string): unknown => JSON.parse(text))

const several = (count: number, what: string) => `the answer holds ${count} JSON ${what}: which one is meant?`

/** What is left when the thinking at its head is gone. */
const afterThinking = (text: string): Either.Either<string, string> => {
  let rest = text
  for (let tag = thinkingTag(rest); tag !== undefined; tag = thinkingTag(rest)) {
    const end = rest.indexOf(`</${tag}>`)
    if (end < 0) return Either.left("the answer ends inside its thinking")
    rest = rest.slice(end + `</${tag}>`.length).trimStart()
  }
  // Some templates give the thinking without the word that opens it.
  const end = rest.lastIndexOf("</think>")
  if (end >= 0 && !rest.slice(0, end).includes("<think>")) rest = rest.slice(end + "</think>".length).trimStart()
  return rest === "" ? Either.left("the answer is empty") : Either.right(rest)
}

const thinkingTag = (text: string) => ["think", "thinking"].find((tag) => text.startsWith(`<${tag}>`))

const salvage = (text: string): Either.Either<unknown, string> => {
  const whole = parse(text)
  if (Option.isSome(whole)) return Either.right(whole.value)
  const blocks = fencedBlocks(text).map(({ lines, ...block }) => ({ ...block, value: parse(lines.join("\n")) }))
  const values = blocks.flatMap(({ value }) => Option.toArray(value))
  if (values.length > 1) return Either.left(several(values.length, "blocks"))
  // A last block that was cut, or a broken one that says it is JSON, may be the one that is meant.
  const cut = blocks.some(({ closed, isJson, value }) => (!closed || isJson) && Option.isNone(value))
  return values.length === 1 && !cut ? Either.right(values[0]) : onlyObject(text)
}

interface Block {
  readonly lines: ReadonlyArray<string>
  readonly closed: boolean
  readonly isJson: boolean
}

/** The fenced blocks that are JSON or say nothing of what they are. Fences stand on lines of their own, so none is inside a JSON string. */
const fencedBlocks = (text: string): ReadonlyArray<Block> => {
  const lines = text.split("\n")
  const trimmed = lines.map((line) => line.trim())
  const blocks: Array<Block> = []
  for (let at = 0; at < lines.length; at++) {
    const line = trimmed[at] ?? ""
    const inside = /^```(?:json)?([^`]+)```$/i.exec(line)?.[1]
    if (inside !== undefined) blocks.push({ lines: [inside], closed: true, isJson: /^```json/i.test(line) })
    if (inside !== undefined || !line.startsWith("```")) continue
    const language = line.slice(3).trim().toLowerCase()
    const end = trimmed.indexOf("```", at + 1)
    const last = end < 0 ? lines.length : end
    if (language === "" || language === "json") {
      blocks.push({ lines: lines.slice(at + 1, last), closed: end >= 0, isJson: language === "json" })
    }
    at = last
  }
  return blocks
}

const onlyObject = (text: string): Either.Either<unknown, string> =>
  Either.flatMap(topLevelObjects(text), (found) => {
    // A broken one is meant too, if it looks like an object and not like a placeholder.
    const meant = found
      .map(({ inArray, text }) => ({ inArray, text, value: parse(text) }))
      .filter(({ text, value }) => Option.isSome(value) || /^\{\s*"/.test(text))
    const [first, ...more] = meant
    if (first === undefined) return Either.left(found.length === 0 ? noObject : brokenObject)
    if (more.length > 0) return Either.left(several(meant.length, "objects"))
    if (Option.isNone(first.value)) return Either.left(brokenObject)
    return first.inArray ? Either.left(array) : Either.right(first.value.value)
  })

const noObject = "the answer holds no JSON object"
const brokenObject = "the answer holds an object that is not valid JSON"
const array = "the answer holds a JSON array, not one object"
const unclosed = "the answer holds an object that is not closed"
const unopened = "the answer closes an object that it does not open"

interface Candidate {
  readonly text: string
  readonly inArray: boolean
}

/** What stands between balanced braces, in one pass. Quotes count inside braces only: prose has its own. */
const topLevelObjects = (text: string): Either.Either<ReadonlyArray<Candidate>, string> => {
  const found: Array<Candidate> = []
  let depth = 0
  let start = 0
  let quoted = false
  let before = ""
  let inArray = false
  for (let at = 0; at < text.length; at++) {
    const char = text.charAt(at)
    if (quoted) {
      if (char === "\\") at++
      else if (char === '"') quoted = false
    } else if (char === "{") {
      if (depth === 0) [start, inArray] = [at, before === "["]
      depth++
    } else if (char === "}") {
      if (depth === 0) return Either.left(unopened)
      depth--
      if (depth === 0) found.push({ text: text.slice(start, at + 1), inArray })
    } else if (char === '"') quoted = depth > 0
    if (depth === 0 && char.trim() !== "") before = char
  }
  return depth === 0 ? Either.right(found) : Either.left(unclosed)
}
