/**
 * The command `verify`: a job against a provider that is made up, under crashes and faults, in virtual time. No database is touched and nothing is sent.
 *
 * @since 0.1.0
 */
import { Args, Command, Options } from "@effect/cli"
import { Console, Effect, Option } from "effect"
import { InputError } from "../services/Errors.ts"
import * as Enrichment from "./Enrichment.ts"
import * as ExitCode from "./ExitCode.ts"
import * as JobFile from "./JobFile.ts"
import * as JobSettings from "./JobSettings.ts"
import { count } from "./ProgressLine.ts"
import * as Verify from "./Verify.ts"

const flags = {
  job: Args.text({ name: "job" }).pipe(
    Args.withDescription("A module that default-exports Enrichment.make(…), .ts or .js")
  ),
  seeds: Options.integer("seeds").pipe(
    Options.withDescription("How many lives of the run are tried (default 200)"),
    Options.withDefault(200)
  ),
  seed: Options.integer("seed").pipe(Options.withDescription("Only this one, told line by line"), Options.optional),
  rows: Options.integer("rows").pipe(
    Options.withDescription("How many of the source's first rows (default 50)"),
    Options.withDefault(50)
  ),
  concurrency: Options.integer("concurrency").pipe(
    Options.withAlias("c"),
    Options.withDescription("The most calls in flight (default another number for each seed)"),
    Options.optional
  ),
  source: Options.text("source").pipe(
    Options.withDescription("A .csv, .tsv or .jsonl file, or sqlite:<file>#<table>, instead of the job's"),
    Options.optional
  )
}

/**
 * `longhaul verify`.
 *
 * @since 0.1.0
 */
export const command = Command.make("verify", flags, (given) =>
  Effect.gen(function* () {
    const seed = Option.getOrUndefined(given.seed)
    const concurrency = Option.getOrUndefined(given.concurrency)
    yield* atLeastOne("--seeds", given.seeds)
    yield* atLeastOne("--rows", given.rows)
    yield* atLeastOne("--concurrency", concurrency ?? 1)
    const loaded = yield* JobFile.load(given.job)
    const source = yield* JobSettings.sourceOf({ source: Option.getOrUndefined(given.source) })
    const job = Enrichment.withOverrides(loaded.job, source === undefined ? {} : { source })
    const options = { rows: given.rows, concurrency, seeds: given.seeds }
    const again = commandOf(given.job, given.rows, concurrency, Option.getOrUndefined(given.source))
    const violations =
      seed === undefined ? yield* verified(job, options) : yield* replayed(job, seed, { rows: given.rows, concurrency })
    for (const one of violations.slice(0, MOST_SHOWN)) {
      // What was seen before anything ran is of no seed.
      yield* Console.log(`violation${one.seed === 0 ? "" : `, seed ${one.seed}`}: ${one.what}`)
      if (seed === undefined && one.step > 0) yield* Console.log(`  replay with: ${again} --seed ${one.seed}`)
    }
    if (violations.length > MOST_SHOWN) yield* Console.log(`and ${count(violations.length - MOST_SHOWN)} more`)
    process.exitCode = violations.length === 0 ? ExitCode.DONE : ExitCode.VIOLATIONS
  })
).pipe(Command.withDescription("Try a job out against crashes and faults, in virtual time; nothing is sent"))

/** One fault of a job may show in every seed. */
const MOST_SHOWN = 10

type AnyJob = JobFile.JobModule["job"]

const verified = (job: AnyJob, options: Verify.Options) =>
  Effect.gen(function* () {
    const { crashes, rows, seeds, violations } = yield* Verify.job(job, options)
    const parts = [
      some(seeds, "seed"),
      some(rows, "row"),
      some(crashes, "crash", "crashes"),
      some(violations.length, "violation")
    ]
    yield* Console.log(parts.join(" · "))
    return violations
  })

const some = (n: number, one: string, more = `${one}s`): string => `${count(n)} ${n === 1 ? one : more}`

const replayed = (job: AnyJob, seed: number, options: Verify.Options) =>
  Effect.gen(function* () {
    const { lines, traceHash, violations } = yield* Verify.replay(job, seed, options)
    yield* Console.log([...lines, `trace hash ${traceHash}`].join("\n"))
    return violations
  })

/** All that a seed's life depends on. */
const commandOf = (job: string, rows: number, concurrency: number | undefined, source: string | undefined): string => {
  const parts = [
    `longhaul verify ${job}`,
    rows === 50 ? "" : ` --rows ${rows}`,
    concurrency === undefined ? "" : ` --concurrency ${concurrency}`,
    source === undefined ? "" : ` --source ${source}`
  ]
  return parts.join("")
}

const atLeastOne = (flag: string, n: number): Effect.Effect<void, InputError> =>
  n >= 1
    ? Effect.void
    : new InputError({ reason: "bad_option", message: `${flag} must be a whole number from 1, not ${n}` })
