/**
 * The command `serve`: the HTTP interface and its page. Internal to the command line.
 *
 * @since 0.1.0
 */
import { randomBytes } from "node:crypto"
import { Args, Command, Options } from "@effect/cli"
import { Config, Console, Effect, Layer, Logger, Option, Redacted } from "effect"
import { InputError } from "../services/Errors.ts"
import { db } from "./CliFlags.ts"
import { operatorLogger, sayError, setCode } from "./CliShared.ts"
import * as ExitCode from "./ExitCode.ts"
import * as ServerConfig from "./ServerConfig.ts"

const token = Config.option(Config.redacted("LONGHAUL_TOKEN"))
const isLoopback = (host: string) => host === "localhost" || host === "::1" || /^127(\.\d{1,3}){3}$/.test(host)
/** Bytes of a token that is made here, and characters that a given one must have: 128 bits. */
const TOKEN_BYTES = 32
const TOKEN_LENGTH = 22

/** @since 0.1.0 */
export const serveCommand = Command.make(
  "serve",
  {
    config: Args.text({ name: "config" }).pipe(
      Args.withDescription("A JSON file: jobs and sources by name, limits, tokens")
    ),
    db,
    host: Options.text("host").pipe(
      Options.withDescription("Where to listen; others than this machine need a token"),
      Options.withDefault("127.0.0.1")
    ),
    otlp: Options.text("otlp").pipe(
      Options.withDescription("An OpenTelemetry collector that gets spans, metrics and logs, as http://127.0.0.1:4318"),
      Options.optional
    ),
    port: Options.integer("port").pipe(Options.withAlias("p"), Options.withDefault(8787))
  },
  ({ config: file, db, host, otlp, port }) =>
    Effect.gen(function* () {
      const config = yield* ServerConfig.load(file)
      const given = yield* Effect.orDie(token)
      yield* acceptable(given, host, config.tokens.length)
      if (port < 0 || port > 65_535) return yield* notListening(`there is no port ${port}`)
      const made = Option.isNone(given) && config.tokens.length === 0
      const operator = made ? Option.some(Redacted.make(randomBytes(TOKEN_BYTES).toString("base64url"))) : given
      // Most commands serve nothing.
      const Server = yield* Effect.promise(() => import("./Server.ts"))
      const layer = Server.layer({
        config,
        db,
        host,
        port,
        operator: Option.getOrUndefined(operator),
        spans: Option.isSome(otlp)
      })
      const serving = Effect.gen(function* () {
        const url = yield* Server.address
        yield* Console.log(`longhaul serves ${url}`)
        if (made && Option.isSome(operator)) {
          yield* Console.log(`open ${url}/#token=${Redacted.value(operator.value)}`)
        }
        return yield* Effect.never
      })
      const observed = Option.match(otlp, { onNone: () => Layer.empty, onSome: exporter })
      return yield* Effect.mapError(Effect.provide(serving, Layer.provide(layer, observed)), (error) =>
        error._tag === "ServeError"
          ? notListening(`cannot listen on ${host}, port ${port}: ${String(error.cause).replace("Error: ", "")}`)
          : error
      )
    }).pipe(
      Effect.provide(Logger.replace(operatorLogger, Logger.withConsoleError(Logger.jsonLogger))),
      Effect.catchAll((error) => Effect.zipRight(sayError(error), setCode(ExitCode.ofError(error))))
    )
).pipe(Command.withDescription("The same over HTTP, with a page"))

/** It stands in a package of its own, which most who serve have not. */
const exporter = (baseUrl: string) =>
  Layer.unwrapEffect(
    Effect.map(
      Effect.tryPromise({
        try: () => import("../layers/OtlpExport.ts"),
        catch: () =>
          new InputError({
            reason: "bad_option",
            message: "--otlp needs a package that is not installed",
            fix: "npm i @effect/opentelemetry@0.64"
          })
      }),
      ({ layer }) => layer({ baseUrl })
    )
  )

const notListening = (message: string) =>
  new InputError({ reason: "bad_option", message, fix: "take another --host or --port; port 0 is any that is free" })

const acceptable = (token: Option.Option<Redacted.Redacted>, host: string, tokens: number) =>
  Effect.gen(function* () {
    if (Option.isSome(token) && Redacted.value(token.value).length < TOKEN_LENGTH) {
      const message = "LONGHAUL_TOKEN is too short: it must be hard to guess"
      return yield* new InputError({
        reason: "bad_option",
        message,
        fix: 'take the output of "openssl rand -base64 32"'
      })
    }
    if (Option.isNone(token) && tokens === 0 && !isLoopback(host)) {
      return yield* new InputError({
        reason: "bad_option",
        message: `${host} can be reached from other machines, and there is no token`,
        fix: "set LONGHAUL_TOKEN, or name tokens in the configuration"
      })
    }
  })
