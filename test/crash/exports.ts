/**
 * Kills `longhaul export` itself, the real command, while it writes: the target must then be absent, the old one or the whole new one, and an export after the kill must give what one without a
 * kill gives, byte for byte.
 */
import { createHash } from "node:crypto"
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  watch,
  writeFileSync
} from "node:fs"
import { join } from "node:path"
import { setTimeout as sleep } from "node:timers/promises"
import * as SqliteClient from "@effect/sql-sqlite-node/SqliteClient"
import { Effect } from "effect"
import { jobFile, type Life, startLonghaul, wasKilled } from "./process.ts"

/** The targets, in turns: the file that is looked at, and what `--out` calls it. */
const targets = {
  csv: { file: "out.csv", out: "out.csv" },
  jsonl: { file: "out.jsonl", out: "out.jsonl" },
  parquet: { file: "out.parquet", out: "out.parquet" },
  sqlite: { file: "out.db", out: "sqlite:out.db#rows" }
} as const
export type Target = keyof typeof targets
const names: ReadonlyArray<Target> = ["csv", "jsonl", "parquet", "sqlite"]

export interface ExportReport {
  kills: number
  /** Kills that left a draft or a journal behind. */
  hits: number
  /** What the exports after the kills, and the one without, came to. */
  readonly hashes: Set<string>
  readonly broken: Array<string>
}

const ROWS = 5_000
const ABSENT = "absent"

/** A run that is done, its export without a kill, and an older state of each target. */
interface Bed {
  readonly directory: string
  readonly whole: Readonly<Record<Target, string>>
  readonly old: Readonly<Record<Target, string>>
  /** Milliseconds from the command's start until its first write is seen, and until it ends. */
  readonly times: Readonly<Record<Target, readonly [begin: number, end: number]>>
}

/** A number from 0 to 1. */
type Random = () => number

/** Kills so many exports, and gives a report for each kind of target. */
export const killExports = async (directory: string, kills: number, randoms: ReadonlyArray<Random>) => {
  const bed = await prepare(directory)
  const reports = new Map(names.map((name) => [name, emptyReport(bed.whole[name])] as const))
  let next = 0
  let wanted = kills
  const drive = async (random: Random, lane: number) => {
    while (wanted > 0) {
      const index = next++
      wanted--
      const target = names[index % names.length] ?? "csv"
      const report = reports.get(target)
      if (report === undefined) continue
      // One that had ended before its kill is made up for.
      if (!(await killOne(bed, target, index, join(directory, `lane-${lane}`), random, report))) wanted++
    }
  }
  await Promise.all(randoms.map(drive))
  return reports
}

const emptyReport = (whole: string): ExportReport => ({ kills: 0, hits: 0, hashes: new Set([whole]), broken: [] })

const killOne = async (
  bed: Bed,
  target: Target,
  index: number,
  cwd: string,
  random: Random,
  report: ExportReport
): Promise<boolean> => {
  rmSync(cwd, { recursive: true, force: true })
  mkdirSync(cwd)
  const { file, out } = targets[target]
  const path = join(cwd, file)
  const isOld = Math.floor(index / names.length) % 2 === 1
  if (isOld) copyFileSync(join(bed.directory, "old", file), path)
  const before = isOld ? bed.old[target] : ABSENT
  const [begin, end] = bed.times[target]
  // By turns at any moment of its life, and after its first write.
  const isBlind = Math.floor(index / names.length / 2) % 2 === 1
  const life = exporting(bed, cwd, out)
  await (isBlind ? Promise.race([sleep(begin / 2 + random() * (end - begin / 2)), life.ended]) : firstWrite(cwd, life))
  // Sooner more often than later: the end of a command is long beside the writing of a table.
  if (!isBlind) await Promise.race([sleep(random() ** 2 * (end - begin)), life.ended])
  life.process.kill("SIGKILL")
  await life.ended
  if (wasKilled(life)) report.kills++
  if (wasKilled(life) && isMidway(cwd, file)) report.hits++

  const note = (what: string) => report.broken.push(`export ${index} to ${out}: ${what}`)
  const left = await hashOf(target, path)
  if (left !== before && left !== bed.whole[target])
    note(`after the kill it is neither ${before} nor the new one but ${left}`)
  const again = exporting(bed, cwd, out)
  await again.ended
  if (again.process.exitCode !== 0)
    note(`an export after the kill ends with ${again.process.exitCode}: ${again.said()}`)
  const hash = await hashOf(target, path)
  report.hashes.add(hash)
  if (hash !== bed.whole[target]) note(`an export after the kill gives ${hash}`)
  return wasKilled(life)
}

const exporting = ({ directory }: Pick<Bed, "directory">, cwd: string, out: string, ...more: ReadonlyArray<string>) =>
  startLonghaul(cwd, ["export", "crash", "--db", join(directory, "book.db"), "--out", out, ...more])

const firstWrite = async (cwd: string, life: Life): Promise<void> => {
  const watcher = watch(cwd)
  await Promise.race([new Promise((seen) => watcher.once("change", seen)), life.ended])
  watcher.close()
}

/** A draft that did not get its name; a journal that was to be undone, or a database in which nothing is yet. */
const isMidway = (cwd: string, file: string): boolean =>
  readdirSync(cwd).some((name) => name.endsWith(".tmp") || name.endsWith("-journal")) ||
  (existsSync(join(cwd, file)) && statSync(join(cwd, file)).size === 0)

const sha256 = (data: string | Buffer): string => createHash("sha256").update(data).digest("hex")

/** Of the file's bytes, or of what the table holds. */
const hashOf = async (target: Target, path: string): Promise<string> => {
  if (!existsSync(path)) return ABSENT
  if (target !== "sqlite") return sha256(readFileSync(path))
  return Effect.gen(function* () {
    const sql = yield* SqliteClient.SqliteClient
    const sound = yield* sql.unsafe("pragma integrity_check").values
    if (String(sound) !== "ok") return `damaged: ${String(sound)}`
    const made = yield* sql.unsafe("select sql from sqlite_schema where name = 'rows'").values
    if (made.length === 0) return ABSENT
    return sha256(JSON.stringify([made, yield* sql.unsafe("select * from rows").values]))
  }).pipe(Effect.provide(SqliteClient.layer({ filename: path, disableWAL: true })), Effect.runPromise)
}

const prepare = async (directory: string): Promise<Bed> => {
  mkdirSync(directory)
  const rows = Array.from({ length: ROWS }, (_, i) => `${i + 1},"row ${i + 1}, ${"abcdefghi ".repeat(10).trim()}"`)
  writeFileSync(join(directory, "rows.csv"), ["id,name", ...rows].join("\n"))
  const job = ["--llm", "simulated", "--source", "rows.csv", "--db", "book.db", "--run-id", "crash"]
  await done(startLonghaul(directory, ["run", jobFile, ...job, "--budget", "1000", "-c", "64", "--out", "run.csv"]))
  const bed = { directory }
  const states = { old: emptyState(), whole: emptyState() }
  const times: Record<Target, readonly [number, number]> = {
    csv: [0, 0],
    jsonl: [0, 0],
    parquet: [0, 0],
    sqlite: [0, 0]
  }
  for (const state of ["old", "whole"] as const) {
    const cwd = join(directory, state)
    mkdirSync(cwd)
    for (const name of names) {
      const began = performance.now()
      const life = exporting(bed, cwd, targets[name].out, ...(state === "old" ? ["--as-of", "1"] : []))
      await firstWrite(cwd, life)
      const seen = performance.now() - began
      await done(life)
      times[name] = [seen, performance.now() - began]
      states[state][name] = await hashOf(name, join(cwd, targets[name].file))
    }
  }
  const run = sha256(readFileSync(join(directory, "run.csv")))
  if (run !== states.whole.csv) throw new Error("the run's own file is not what an export gives")
  return { directory, ...states, times }
}

const emptyState = (): Record<Target, string> => ({ csv: "", jsonl: "", parquet: "", sqlite: "" })

const done = async (life: Life): Promise<void> => {
  await life.ended
  if (life.process.exitCode !== 0) throw new Error(`the command ended with ${life.process.exitCode}: ${life.said()}`)
}
