/**
 * What a run's record keeps of how it was begun, and how it is begun again by it: the job with its overrides, its source, its provider. Internal to the doors.
 *
 * @since 0.1.0
 */
import { Effect, type Either, Layer, Option, Schema } from "effect"
import * as LLMSimulated from "../layers/LLMSimulated.ts"
import * as Rows from "../layers/Rows.ts"
import * as RowsSqlite from "../layers/RowsSqlite.ts"
import { InputError } from "../services/Errors.ts"
import * as Profile from "../services/Profile.ts"
import type { RowSource } from "../services/RowSource.ts"
import * as Enrichment from "./Enrichment.ts"
import type { Job } from "./Job.ts"
import type * as JobFile from "./JobFile.ts"

/**
 * What a run's record keeps, so that `resume` needs no flags.
 *
 * @since 0.1.0
 */
export const Settings = Schema.Struct({
  job: Schema.String,
  source: Schema.optional(Schema.String),
  query: Schema.optional(Schema.String),
  llm: Schema.Literal("openai", "simulated"),
  model: Schema.optional(Schema.String),
  scope: Schema.optional(Schema.String),
  chunkSize: Schema.optional(Schema.Int),
  out: Schema.optional(Schema.String),
  profile: Schema.optional(Schema.Literal(...Profile.names)),
  /** Seconds a call. */
  timeout: Schema.optional(Schema.Int),
  /** No adaptation of the calls in flight. */
  fixed: Schema.optional(Schema.Boolean),
  /** Begun over HTTP: by whom, of which configured job and source, and the hash of what was asked. */
  server: Schema.optional(
    Schema.Struct({ caller: Schema.String, job: Schema.String, source: Schema.String, hash: Schema.String })
  )
})
/** @since 0.1.0 */
export type Settings = typeof Settings.Type

/** @since 0.1.0 */
export const SettingsJson = Schema.parseJson(Settings)

/** The SDK is fetched when it is needed: a trial starts without it. */
const openai = ({ profile, timeout }: Settings) =>
  Layer.unwrapEffect(
    Effect.map(
      Effect.promise(() => import("../layers/LLMOpenAI.ts")),
      ({ layerWith }) => layerWith({ profile, timeoutMs: timeout === undefined ? undefined : timeout * 1000 })
    )
  )

/** The provider that a run calls. @since 0.1.0 */
export const providerOf = (settings: Settings, simulated: JobFile.JobModule["simulated"]) =>
  settings.llm === "openai" ? openai(settings) : Option.getOrElse(simulated, () => LLMSimulated.layer())

/** The job with what the run's record changes in it. @since 0.1.0 */
export const overridden = (job: Job<unknown, unknown>, settings: Settings) =>
  Effect.map(sourceOf(settings), (source) =>
    Enrichment.withOverrides(job, {
      ...(source === undefined ? {} : { source }),
      ...(settings.model === undefined ? {} : { model: settings.model }),
      ...(settings.scope === undefined ? {} : { scope: settings.scope }),
      ...(settings.chunkSize === undefined ? {} : { chunkSize: settings.chunkSize })
    })
  )

/**
 * `--source`: a file by its extension, `sqlite:<file>#<table>`, or `sqlite:<file>` with `--query`.
 *
 * @since 0.1.0
 */
export const sourceOf = ({
  query,
  source
}: Pick<Settings, "query" | "source">):
  | Either.Either<RowSource | undefined, InputError>
  | Effect.Effect<RowSource | undefined, InputError> => {
  if (query !== undefined && source?.startsWith("sqlite:") !== true) {
    return new InputError({ reason: "bad_option", message: "--query needs --source sqlite:<file>" })
  }
  if (source === undefined) return Effect.succeed(undefined)
  if (!source.startsWith("sqlite:")) return Rows.fromPath(source)
  const [file = "", table] = source.slice("sqlite:".length).split("#")
  if (query !== undefined) return Effect.succeed(RowsSqlite.query(file, query))
  if (table !== undefined) return Effect.succeed(RowsSqlite.table(file, table))
  const message = `--source ${source} names no table: write sqlite:${file}#<table>, or add --query "select …"`
  return new InputError({ reason: "bad_option", message })
}
