import { readdirSync, readFileSync } from "node:fs"
import { dirname, join, normalize } from "node:path"
import { fileURLToPath } from "node:url"
import { assert, describe, it } from "@effect/vitest"

/** A source file: its path below src/, its text, and its text without comments. */
interface File {
  readonly path: string
  readonly text: string
  readonly code: string
}

interface Import {
  /** As it is written, or, for a relative one, the path below src/. */
  readonly target: string
  readonly names: string
  readonly typeOnly: boolean
}

/** Strings are matched first, so that `"http://…"` is no comment. */
const withoutComments = (text: string): string =>
  text.replaceAll(
    /("(?:\\.|[^"\\\n])*"|`(?:\\.|[^`\\])*`)|\/\*[\s\S]*?\*\/|\/\/.*$/gm,
    (_, string: string | undefined) => string ?? ""
  )

const fileOf = (path: string, text: string): File => ({ path, text, code: withoutComments(text) })

const src = fileURLToPath(new URL("../src/", import.meta.url))
const files = readdirSync(src, { recursive: true, encoding: "utf8" })
  .filter((path) => /\.tsx?$/.test(path))
  .sort()
  .map((path) => fileOf(path.replaceAll("\\", "/"), readFileSync(join(src, path), "utf8")))

const importsOf = ({ code, path }: File): ReadonlyArray<Import> => {
  const clause = String.raw`(?<names>\*(?:\s+as\s+\w+)?|\{[^}]*\}|\w+(?:\s*,\s*\{[^}]*\})?)`
  const found = [
    ...code.matchAll(
      new RegExp(String.raw`^(?:import|export)\s+(?<type>type\s+)?${clause}\s+from\s+"(?<from>[^"]+)"`, "gm")
    ),
    ...code.matchAll(/^import\s+"(?<from>[^"]+)"/gm),
    ...code.matchAll(/\bimport\("(?<from>[^"]+)"\)/g)
  ]
  return found.map(({ groups }) => {
    const from = groups?.from ?? ""
    return {
      target: from.startsWith(".") ? normalize(join(dirname(path), from)) : from,
      names: groups?.names ?? "",
      typeOnly: groups?.type !== undefined
    }
  })
}

const is = (folder: string) => (path: string) => path.startsWith(`${folder}/`)
const isService = is("services")
const isLayer = is("layers")
const isProgram = is("programs")

/** Which lines of a file's code match, as `path:line text`. */
const linesWith = (file: File, pattern: RegExp, text = file.code): ReadonlyArray<string> =>
  text.split("\n").flatMap((line) => (pattern.test(line) ? [`${file.path}: ${line.trim()}`] : []))

const none = (violations: ReadonlyArray<string>) => assert.deepStrictEqual(violations, [])

/** Where layers and programs are put together. */
const ENTRYPOINTS = [
  "programs/Cli.ts",
  "programs/CliBill.ts",
  "programs/CliFlags.ts",
  "programs/CliPlan.ts",
  "programs/CliRepairs.ts",
  "programs/CliReports.ts",
  "programs/CliRun.ts",
  "programs/CliShared.ts",
  "programs/CliSteer.ts",
  "programs/CliVerify.ts",
  "programs/CliWatch.ts",
  "programs/JobSettings.ts",
  "programs/RunExport.ts",
  "programs/CliServe.ts",
  "programs/Api.ts",
  "programs/ApiClient.ts",
  "programs/ApiErrors.ts",
  "programs/Server.ts",
  "programs/ServerAuth.ts",
  "programs/ServerGuards.ts",
  "programs/ServerPage.ts",
  "programs/ServerRuns.ts",
  "programs/ServerHandlers.ts",
  "programs/Simulation.ts",
  "programs/Verify.ts",
  "programs/main.ts",
  "programs/Server.ts"
]

/** Modules that a program may use besides effect. A job file is TypeScript, and tsx loads it. */
const PROGRAM_PACKAGES: Readonly<Record<string, ReadonlyArray<string>>> = { "programs/JobFile.ts": ["tsx/esm/api"] }

/** The page runs in a browser: of the rest of this library it knows types alone. */
const isPage = is("programs/page")

const directionViolations = (all: ReadonlyArray<File>): ReadonlyArray<string> =>
  all.flatMap((file) => {
    const allowed = (target: string): boolean => {
      if (file.path === "index.ts") return isService(target) || isLayer(target) || isProgram(target)
      if (isService(file.path)) return isService(target) || target === "effect" || target === "node:crypto"
      if (isLayer(file.path)) return !isProgram(target) && target !== "index.ts"
      if (ENTRYPOINTS.includes(file.path)) return target !== "index.ts"
      if (isPage(file.path)) return isProgram(target) || /^preact(\/hooks)?$/.test(target)
      if (!isProgram(file.path)) return false
      const known = PROGRAM_PACKAGES[file.path] ?? []
      return (
        isService(target) || isProgram(target) || target === "effect" || /^node:/.test(target) || known.includes(target)
      )
    }
    return importsOf(file).flatMap(({ target }) => (allowed(target) ? [] : [`${file.path} imports ${target}`]))
  })

/** What loads when `entry` is imported: files below src/ and packages. */
const reachable = (all: ReadonlyArray<File>, entry: string): ReadonlySet<string> => {
  const seen = new Set<string>()
  const visit = (path: string): void => {
    if (seen.has(path)) return
    seen.add(path)
    for (const file of all.filter((one) => one.path === path))
      for (const { target, typeOnly } of importsOf(file)) if (!typeOnly) visit(target)
  }
  visit(entry)
  return seen
}

const EXPORT = /^export (?:declare )?(?:abstract )?(?:const|function|class|interface|type) (\w+)/

/**
 * Exported names without a word, or without `@since` on it or at the head of their group: lines without an empty line between them. A member of a group needs no word
 * of its own, nor does a type that is declared beside a value of its name.
 */
const docViolations = ({ path, text }: File): ReadonlyArray<string> => {
  const lines = text.split("\n")
  const documented = new Set<string>()
  return lines.flatMap((line, at) => {
    const name = EXPORT.exec(line)?.[1]
    if (name === undefined || documented.has(name)) return []
    const above = lines.slice(0, at)
    // A comment's own empty lines are ` *`, so an empty line is the end of the group.
    const group = above.slice(above.lastIndexOf("") + 1).join("\n")
    const comment = /\/\*\*(?:(?!\/\*\*)[\s\S])*?\*\/\s*$/.exec(above.join("\n"))?.[0] ?? ""
    if (`${group}\n${comment}`.includes("@since")) {
      documented.add(name)
      return []
    }
    return [
      `${path}:${at + 1} ${name}${comment === "" && !group.includes("/**") ? " has no doc comment" : " has no @since"}`
    ]
  })
}

/** What a reader likes to have before the eyes as one thing. */
const LONGEST = 450

/** What is gone, or means something else, in Effect 4. */
const AVOID =
  /\b(?:FiberRef|FiberRefs|STM|TRef|TMap|TQueue|TSemaphore|Supervisor)\b|\bEffect\.(?:Service|Tag|locally\w*|disconnect)\b|\baccessors: true|\bRuntime\.(?:runFork|runPromise|runSync)\b/

describe("one of each", () => {
  it("there is one definition of idempotencyKey, in services/Identity.ts", () => {
    const defined = files.flatMap((file) => linesWith(file, /\b(?:const|let|function) idempotencyKey\b/))
    assert.deepStrictEqual(
      defined.map((line) => line.split(":")[0]),
      ["services/Identity.ts"]
    )
  })

  it("there is one admission: its transition is defined once, only the meter moves it, and no semaphore stands beside it", () => {
    const defined = files.filter(({ code, path }) => /\btransition = /.test(code) && path === "services/Admission.ts")
    assert.strictEqual(defined.length, 1)
    const users = files.filter(
      (file) =>
        file.path !== "index.ts" &&
        importsOf(file).some(
          ({ names, target, typeOnly }) =>
            target === "services/Admission.ts" && !typeOnly && (/\btransition\b/.test(names) || names.startsWith("*"))
        )
    )
    assert.deepStrictEqual(
      users.map(({ path }) => path),
      ["services/Meter.ts"]
    )
    none(files.flatMap((file) => linesWith(file, /[sS]emaphore/)))
  })

  it("only the invoker sends: no other program and no service calls generate", () => {
    const definesIt = (path: string) => isLayer(path) || path === "services/LLM.ts"
    // It asks a server of its own, to see how many requests one call is.
    const selfCheck = "layers/SelfCheck.ts"
    const others = files.filter(({ path }) => !definesIt(path) && path !== "programs/Invoker.ts")
    none(others.flatMap((file) => linesWith(file, /\bllm\.generate\b|\.generate\(/)))
    const definers = files.filter(({ path }) => definesIt(path) && path !== selfCheck)
    none(definers.flatMap((file) => linesWith(file, /\.generate\(/)))
    assert.isTrue(files.some((file) => file.path === "programs/Invoker.ts" && /\.generate\(/.test(file.code)))
  })
})

describe("imports", () => {
  it("point one way: services to services, layers to services, programs to both but to layers only where all is put together", () => {
    none(directionViolations(files))
  })

  it("of the index load neither a driver nor a module that loads one", () => {
    const loaded = [...reachable(files, "index.ts")]
    const drivers = ["JournalSql", "Sqlite", "RowsSqlite", "LLMOpenAI", "TokenizerGpt", "PriceGenai"].map(
      (name) => `layers/${name}.ts`
    )
    none(loaded.filter((path) => drivers.includes(path)))
    const packages = loaded.filter((path) => !path.endsWith(".ts") && !path.startsWith("node:")).sort()
    assert.deepStrictEqual(packages, ["csv-parse/sync", "effect"])
  })

  it("of the page load preact and its own modules alone", () => {
    const loaded = [...reachable(files, "programs/page/Main.tsx")]
    none(loaded.filter((path) => !isPage(path) && path !== "preact" && path !== "preact/hooks"))
    assert.isTrue(loaded.includes("programs/page/Client.ts"))
  })

  it("of each subpath load the driver that it is named after and no other", () => {
    const drivers = (entry: string) => [...reachable(files, entry)].filter((path) => /sqlite|openai|tsx/.test(path))
    assert.isTrue(drivers("layers/Sqlite.ts").every((path) => path.startsWith("@effect/sql-sqlite-node")))
    assert.deepStrictEqual(drivers("layers/LLMOpenAI.ts"), ["openai"])
    assert.deepStrictEqual(drivers("layers/LLMSimulated.ts"), [])
  })
})

describe("source text", () => {
  it("uses nothing that Effect 4 has not", () => {
    none(files.flatMap((file) => linesWith(file, AVOID)))
  })

  it("has no escape from the type checker or the linter", () => {
    none(files.flatMap((file) => linesWith(file, /@ts-(?:ignore|expect-error|nocheck)|biome-ignore/, file.text)))
    none(files.flatMap((file) => linesWith(file, /\bas (?:any|unknown|never)\b|[:<] ?any\b(?!")/)))
  })

  it("has a doc comment with @since on each exported name or on its group", () => {
    none(files.flatMap(docViolations))
  })

  it("has no file over 450 lines", () => {
    none(files.filter(({ text }) => text.trimEnd().split("\n").length > LONGEST).map(({ path }) => path))
  })
})

describe("these checks", () => {
  it("find what they look for in a planted file", () => {
    const planted = [
      fileOf("index.ts", 'export * as A from "./programs/A.ts"'),
      fileOf(
        "programs/A.ts",
        'import {\n  type B,\n  c\n} from "../layers/B.ts"\nimport type { D } from "../layers/D.ts"'
      ),
      fileOf(
        "services/E.ts",
        'import "../layers/D.ts"\nimport fs from "node:fs"\nconst later = () => import("openai")'
      ),
      fileOf("layers/B.ts", 'import { A } from "../programs/A.ts" // import { F } from "../programs/F.ts"')
    ]
    assert.deepStrictEqual(directionViolations(planted), [
      "programs/A.ts imports layers/B.ts",
      "programs/A.ts imports layers/D.ts",
      "services/E.ts imports node:fs",
      "services/E.ts imports layers/D.ts",
      "services/E.ts imports openai",
      "layers/B.ts imports programs/A.ts"
    ])
    assert.deepStrictEqual([...reachable(planted, "index.ts")], ["index.ts", "programs/A.ts", "layers/B.ts"])
    const undocumented =
      "/** Said. */\nexport const a = 1\n\nexport const b = 2\n\n/** @since 0.1.0 */\nexport type C = 1\nexport const D = 1\n"
    assert.deepStrictEqual(docViolations(fileOf("x.ts", undocumented)), [
      "x.ts:2 a has no @since",
      "x.ts:4 b has no doc comment"
    ])
    assert.match("const x = Effect.Service<X>()", AVOID)
  })
})
