/**
 * The real `longhaul serve` in a process of its own, over a temporary folder with a thousand generated vendors, and a browser that looks at its page.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { existsSync, mkdtempSync, rmSync, writeFileSync } from "node:fs"
import { tmpdir } from "node:os"
import { delimiter, join } from "node:path"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"
import { Effect, Stream } from "effect"
import { Export } from "longhaul"
import { type Browser, chromium } from "playwright-core"
import { vendors } from "../../examples/vendors/generate.ts"

const main = fileURLToPath(new URL("../../dist/programs/main.js", import.meta.url))
const job = fileURLToPath(new URL("./job.ts", import.meta.url))

export const token = "a-token-of-the-page-tests-only"

export interface Served {
  readonly url: string
  readonly stop: () => Promise<void>
}

/** `rows`: of each source by its name. `isPlain`: without the characters that few machines have a font for. */
export const serve = async (
  rows: Readonly<Record<string, number>>,
  { isPlain = false, model }: { readonly isPlain?: boolean; readonly model?: string } = {}
): Promise<Served> => {
  const directory = mkdtempSync(join(tmpdir(), "longhaul-page-"))
  for (const [at, [name, n]] of Object.entries(rows).entries()) {
    // Rows of other seeds are other rows: no source is answered from what another one left in the store.
    const made = Stream.map(Stream.fromIterable(vendors({ rows: n, seed: at + 1, now: new Date() })), (row) =>
      isPlain ? { ...row, name: plain(row.name), description: plain(row.description) } : row
    )
    const file = join(directory, `${name}.csv`)
    await Effect.runPromise(Export.writeCsv(file, ["id", "name", "description", "updatedAt"], made))
  }
  const config = {
    jobs: { vendors: { file: job, llm: "simulated", model } },
    sources: Object.fromEntries(Object.keys(rows).map((name) => [name, `${name}.csv`])),
    maxTotalUsd: 500,
    maxRunUsd: 50
  }
  writeFileSync(join(directory, "serve.json"), JSON.stringify(config))
  const child = spawn(process.execPath, [main, "serve", "serve.json", "--port", "0", "--db", "page.db"], {
    cwd: directory,
    env: { ...process.env, LONGHAUL_TOKEN: token },
    stdio: ["ignore", "pipe", "pipe"]
  })
  const ended = once(child, "exit")
  let said = ""
  child.stderr.on("data", (piece) => {
    said = `${said}${piece}`.slice(-10_000)
  })
  const early = ended.then(([code]) => Promise.reject(new Error(`serve ended early, with code ${code}: ${said}`)))
  early.catch(() => undefined)
  const [line] = await Promise.race([once(createInterface({ input: child.stdout }), "line"), early])
  const url = /http:\/\/\S+/.exec(String(line))?.[0]
  if (url === undefined) throw new Error(`serve printed no address: ${line}`)
  return {
    url,
    stop: async () => {
      child.kill("SIGTERM")
      const late = setTimeout(() => child.kill("SIGKILL"), 5_000)
      await ended
      clearTimeout(late)
      rmSync(directory, { recursive: true, force: true })
    }
  }
}

const plain = (text: string): string => text.replaceAll(" 桜", "")

const names = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"]

/** A browser's path: `LONGHAUL_CHROMIUM`, or one that is installed. */
export const chromiumPath = (): string | undefined =>
  process.env.LONGHAUL_CHROMIUM ??
  (process.env.PATH ?? "")
    .split(delimiter)
    .flatMap((folder) => names.map((name) => join(folder, name)))
    .find((path) => existsSync(path))

/** Root has no sandbox. */
export const browse = (executablePath: string): Promise<Browser> =>
  chromium.launch({ executablePath, args: process.getuid?.() === 0 ? ["--no-sandbox"] : [] })
