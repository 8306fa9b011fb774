/**
 * The flags of `run` and `resume`. Internal to the command line.
 *
 * @since 0.1.0
 */
import { Options } from "@effect/cli"
import { Config, Effect, Option } from "effect"
import { TARGETS } from "../layers/Export.ts"
import { InputError } from "../services/Errors.ts"
import * as Profile from "../services/Profile.ts"
import type { Settings } from "./JobSettings.ts"

/**
 * A flag that the environment and the file may give too: for a new run. A resume has its run's record, and only a flag wins over that.
 *
 * @since 0.1.0
 */
export const configured = <A>(option: Options.Options<A>, config: Config.Config<A>) =>
  option.pipe(Options.withFallbackConfig(Config.nested(config, "longhaul")), Options.optional)

/** The database file. @since 0.1.0 */
export const db = Options.text("db").pipe(
  Options.withDescription("The database file (default longhaul.db)"),
  Options.withFallbackConfig(Config.nested(Config.string("db"), "longhaul")),
  Options.withDefault("longhaul.db")
)

/** @since 0.1.0 */
export const asOf = Options.integer("as-of").pipe(
  Options.withDescription("As it was at this version of its checkpoints"),
  Options.optional
)

const flags = {
  budget: Options.float("budget").pipe(
    Options.withAlias("b"),
    Options.withDescription("The most the run may cost, in US dollars")
  ),
  maxCalls: Options.integer("max-calls").pipe(Options.withDescription("The most calls the run may send")),
  concurrency: Options.integer("concurrency").pipe(
    Options.withAlias("c"),
    Options.withDescription("The most calls in flight (default 8)")
  ),
  llm: Options.choice("llm", ["openai", "simulated"]).pipe(Options.withDescription("The provider (default openai)")),
  model: Options.text("model").pipe(Options.withDescription("Another model than the job's")),
  out: Options.text("out").pipe(
    Options.withAlias("o"),
    Options.withDescription(`The results: ${TARGETS} (default <runId>.csv, never over the source)`)
  ),
  rpm: Options.integer("rpm").pipe(
    Options.withDescription("The most requests that begin within a minute (default what the provider says)")
  ),
  tpm: Options.integer("tpm").pipe(
    Options.withDescription("The most tokens that begin within a minute (default what the provider says)")
  ),
  profile: Options.choice("profile", Profile.names).pipe(
    Options.withDescription("What kind of server OPENAI_BASE_URL is (default by its address)")
  ),
  timeout: Options.integer("timeout").pipe(Options.withDescription("Seconds that a call may take (default 120)"))
}

const always = {
  db,
  noCap: Options.boolean("no-cap").pipe(Options.withDescription("Run without a cap")),
  grace: Options.integer("grace").pipe(
    Options.withDescription("Seconds that a stop waits for calls in flight (default 30)"),
    Options.withDefault(30)
  ),
  json: Options.boolean("json").pipe(
    Options.withDescription("What happens, as JSON lines on stdout, in place of the progress line")
  ),
  fixed: Options.boolean("fixed").pipe(
    Options.withDescription("Always as many calls in flight as allowed, also where the provider takes fewer")
  ),
  keep: Options.boolean("keep").pipe(Options.withDescription("Keep rows done with another prompt, schema or model")),
  rerun: Options.boolean("rerun").pipe(Options.withDescription("Run such rows again")),
  acceptLoss: Options.boolean("accept-loss").pipe(
    Options.withDescription("Go on though the database lost commits; what they cost counts as uncertain")
  )
}

/** What a new run takes. @since 0.1.0 */
export const forNewRun = {
  ...always,
  budget: configured(flags.budget, Config.number("budget")),
  maxCalls: configured(flags.maxCalls, Config.integer("maxCalls")),
  concurrency: configured(flags.concurrency, Config.integer("concurrency")),
  llm: configured(flags.llm, Config.literal("openai", "simulated")("llm")),
  model: configured(flags.model, Config.string("model")),
  out: configured(flags.out, Config.string("out")),
  rpm: configured(flags.rpm, Config.integer("rpm")),
  tpm: configured(flags.tpm, Config.integer("tpm")),
  profile: configured(flags.profile, Config.literal(...Profile.names)("profile")),
  timeout: configured(flags.timeout, Config.integer("timeout"))
}

/** What may be set while a run goes on. @since 0.1.0 */
export const forSet = {
  db,
  noCap: always.noCap,
  budget: Options.optional(flags.budget),
  maxCalls: Options.optional(flags.maxCalls),
  concurrency: Options.optional(flags.concurrency),
  rpm: Options.optional(flags.rpm),
  tpm: Options.optional(flags.tpm)
}

/** What a resume takes. @since 0.1.0 */
export const forResume = {
  ...always,
  budget: Options.optional(flags.budget),
  maxCalls: Options.optional(flags.maxCalls),
  concurrency: Options.optional(flags.concurrency),
  llm: Options.optional(flags.llm),
  model: Options.optional(flags.model),
  out: Options.optional(flags.out),
  rpm: Options.optional(flags.rpm),
  tpm: Options.optional(flags.tpm),
  profile: Options.optional(flags.profile),
  timeout: Options.optional(flags.timeout)
}

interface Limited {
  readonly budget: Option.Option<number>
  readonly noCap: boolean
  readonly maxCalls: Option.Option<number>
  readonly concurrency: Option.Option<number>
  readonly rpm: Option.Option<number>
  readonly tpm: Option.Option<number>
}

interface Given {
  readonly profile: Option.Option<Profile.Name>
  readonly timeout: Option.Option<number>
  readonly fixed: boolean
}

/**
 * What the provider is and how it is asked, as the run's record keeps it; what is not given stays as the record has it.
 *
 * @since 0.1.0
 */
export const wireOf = (flags: Given, kept: Wire = {}): Wire => ({
  profile: Option.getOrElse(flags.profile, () => kept.profile),
  timeout: Option.getOrElse(flags.timeout, () => kept.timeout),
  fixed: flags.fixed || kept.fixed
})

/** @since 0.1.0 */
export type Wire = Pick<Settings, "profile" | "timeout" | "fixed">

/**
 * The limits that were given.
 *
 * @since 0.1.0
 */
export const budgetOf = (flags: Limited) => ({
  // A cap from the environment or the file gives way to a flag that says "no cap".
  maxCostUsd: flags.noCap ? undefined : Option.getOrUndefined(flags.budget),
  noCap: flags.noCap,
  maxCalls: Option.getOrUndefined(flags.maxCalls),
  maxConcurrency: Option.getOrUndefined(flags.concurrency),
  requestsPerMinute: Option.getOrUndefined(flags.rpm),
  tokensPerMinute: Option.getOrUndefined(flags.tpm)
})

/**
 * What becomes of rows that were done with something else.
 *
 * @since 0.1.0
 */
export const driftOf = ({ keep, rerun }: { readonly keep: boolean; readonly rerun: boolean }) =>
  keep && rerun
    ? new InputError({ reason: "bad_option", message: "--keep and --rerun exclude each other" })
    : Effect.succeed(keep ? ("keep" as const) : rerun ? ("rerun" as const) : undefined)
