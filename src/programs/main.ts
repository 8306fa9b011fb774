#!/usr/bin/env node
/**
 * The `longhaul` command.
 *
 * @since 0.1.0
 */
import { readFileSync } from "node:fs"
// Not the barrel: it brings clusters and sockets, and a command should start at once.
import * as NodeContext from "@effect/platform-node/NodeContext"
import * as NodeRuntime from "@effect/platform-node/NodeRuntime"
import { Cause, Effect, Exit, Layer, Logger, Schema } from "effect"
import { main } from "./Cli.ts"
import { operatorLogger } from "./CliShared.ts"
import * as ExitCode from "./ExitCode.ts"

const Package = Schema.parseJson(Schema.Struct({ version: Schema.String }))
const { version } = Schema.decodeSync(Package)(readFileSync(new URL("../../package.json", import.meta.url), "utf8"))

// Who closes the terminal asks to stop, as SIGTERM does, and does not read what is said from then on.
process.once("SIGHUP", () => process.kill(process.pid, "SIGTERM"))
// A shell and the kernel may each send one: the second abandons nothing.
process.on("SIGHUP", () => {})
for (const stream of [process.stdout, process.stderr]) stream.on("error", () => {})

main(process.argv, version).pipe(
  // Results go to stdout, everything said about them to stderr.
  Effect.provide(Layer.merge(NodeContext.layer, Logger.replace(Logger.defaultLogger, operatorLogger))),
  NodeRuntime.runMain({
    disableErrorReporting: true,
    disablePrettyLogger: true,
    // At once: a cool-down that still sleeps somewhere must not keep a finished command alive.
    teardown: (exit) => {
      if (Exit.isSuccess(exit)) process.exit(process.exitCode)
      process.exit(Cause.isInterrupted(exit.cause) ? ExitCode.INTERRUPTED : ExitCode.INTERNAL)
    }
  })
)
