/**
 * What a server offers, from a JSON file: jobs and sources by name, limits, tokens. Data alone: a request can name nothing that does not stand here.
 *
 * @since 0.1.0
 */
import { readFileSync } from "node:fs"
import { dirname, resolve } from "node:path"
import { Effect, ParseResult, Schema } from "effect"
import { InputError } from "../services/Errors.ts"
import * as Profile from "../services/Profile.ts"
import { Scope } from "./Api.ts"

const Name = Schema.String.pipe(Schema.pattern(/^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/))
const Count = Schema.Int.pipe(Schema.positive())
const orElse = <A, I>(schema: Schema.Schema<A, I>, value: A) => Schema.optionalWith(schema, { default: () => value })

/** Who may do everything, under this name in records. @since 0.1.0 */
export const OPERATOR = "operator"

/**
 * `jobs`: modules by name, each with its provider. `sources`: as `--source`. Paths are relative to the file. `maxTotalUsd`: what all runs may cost together, over the life of the database. `maxActive`: runs at
 * once, a caller; `requestsPerMinute`: requests that change something, a caller. `tokens`: each is known by its SHA-256 in hex; a caller sees its own runs alone. `hosts`, `origins`: by which names the server may
 * be reached, and from which pages, besides this machine's own.
 *
 * @since 0.1.0
 */
export const ServerConfig = Schema.Struct({
  jobs: Schema.Record({
    key: Name,
    value: Schema.Struct({
      file: Schema.String,
      llm: orElse(Schema.Literal("openai", "simulated"), "openai"),
      model: Schema.optional(Schema.String),
      profile: Schema.optional(Schema.Literal(...Profile.names)),
      timeout: Schema.optional(Count)
    })
  }),
  sources: Schema.Record({ key: Name, value: Schema.String }),
  maxTotalUsd: Schema.Positive,
  maxRunUsd: Schema.optional(Schema.Positive),
  maxConcurrency: orElse(Count, 16),
  maxActive: orElse(Count, 4),
  requestsPerMinute: orElse(Count, 120),
  tokens: orElse(
    Schema.Array(
      Schema.Struct({
        name: Name.pipe(
          Schema.filter((name) => name !== OPERATOR || `${OPERATOR} is who has LONGHAUL_TOKEN: take another name`)
        ),
        sha256: Schema.String.pipe(Schema.pattern(/^[0-9a-f]{64}$/)),
        scopes: orElse(Schema.Array(Scope), Scope.literals)
      })
    ),
    []
  ),
  hosts: orElse(Schema.Array(Schema.String), []),
  origins: orElse(Schema.Array(Schema.String), [])
})
/** @since 0.1.0 */
export type ServerConfig = typeof ServerConfig.Type

/**
 * Reads the file at `path`; its paths become absolute.
 *
 * @since 0.1.0
 */
export const load = (path: string): Effect.Effect<ServerConfig, InputError> =>
  Effect.gen(function* () {
    const file = resolve(path)
    const text = yield* Effect.try({
      try: () => readFileSync(file, "utf8"),
      catch: () => bad(file, "not_found", `there is no configuration ${file}`)
    })
    const config = yield* Schema.decodeUnknown(Schema.parseJson(ServerConfig), {
      errors: "all",
      onExcessProperty: "error"
    })(text).pipe(Effect.mapError((error) => malformed(file, error)))
    for (const [what, entries] of Object.entries({ jobs: config.jobs, sources: config.sources })) {
      if (Object.keys(entries).length === 0) {
        return yield* bad(file, "malformed", `${file}: ${what} is empty: name at least one`)
      }
    }
    const near = (path: string) => resolve(dirname(file), path)
    return {
      ...config,
      jobs: mapValues(config.jobs, (job) => ({ ...job, file: near(job.file) })),
      sources: mapValues(config.sources, (source) =>
        source.startsWith("sqlite:") ? `sqlite:${near(source.slice("sqlite:".length))}` : near(source)
      )
    }
  })

const mapValues = <A, B>(record: Readonly<Record<string, A>>, change: (value: A) => B): Record<string, B> =>
  Object.fromEntries(Object.entries(record).map(([key, value]) => [key, change(value)]))

const malformed = (file: string, error: ParseResult.ParseError) => {
  const [issue] = ParseResult.ArrayFormatter.formatErrorSync(error)
  const field = issue?.path.join(".") ?? ""
  return new InputError({
    reason: "malformed",
    file,
    message: `${file}: ${field === "" ? "" : `${field}: `}${issue?.message ?? "not understood"}`,
    ...(field === "" ? {} : { field })
  })
}

const bad = (file: string, reason: InputError["reason"], message: string) => new InputError({ reason, file, message })
