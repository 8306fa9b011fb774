/**
 * A job from a module: TypeScript or JavaScript, without a build step.
 *
 * @since 0.1.0
 */
import { existsSync } from "node:fs"
import { basename, resolve } from "node:path"
import { pathToFileURL } from "node:url"
import { Effect, Layer, Option, Predicate } from "effect"
import { InputError } from "../services/Errors.ts"
import type { LLM } from "../services/LLM.ts"
import type { Job } from "./Job.ts"

/** What a job module exports: the job, and perhaps a simulated provider that suits it. @since 0.1.0 */
export interface JobModule {
  readonly job: Job<unknown, unknown>
  readonly simulated: Option.Option<Layer.Layer<LLM>>
}

/**
 * Loads the module at `path`, which default-exports `Enrichment.make(…)` and may export `simulated`, a layer that stands for the provider in a trial. The module is code and runs
 * with this process's rights.
 *
 * @since 0.1.0
 */
export const load = (path: string): Effect.Effect<JobModule, InputError> =>
  Effect.gen(function* () {
    const file = resolve(path)
    if (!existsSync(file)) return yield* bad(file, "not_found", `there is no job module ${file}`)
    const loaded: unknown = yield* Effect.tryPromise({
      try: () => imported(file),
      catch: (error) => (isInputError(error) ? said(file, error) : unloadable(file, textOf(error)))
    })
    if (!Predicate.isRecord(loaded) || !isJob(loaded.default)) {
      return yield* bad(file, "bad_job", `${file} does not default-export a job: export default Enrichment.make({ … })`)
    }
    return { job: loaded.default, simulated: Option.liftPredicate(loaded.simulated, isProvider) }
  })

const textOf = (error: unknown): string => (error instanceof Error ? error.message : String(error))

/** By structure, as the job may have loaded another copy of this library. */
const isInputError = (error: unknown): error is { readonly message: string; readonly fix?: unknown } =>
  Predicate.isTagged(error, "InputError") && "message" in error && Predicate.isString(error.message)

/** What the library says of the job itself, such as an output schema that cannot be asked for. */
const said = (file: string, { fix, message }: { readonly message: string; readonly fix?: unknown }): InputError =>
  new InputError({
    reason: "bad_job",
    file,
    message: `${file}: ${message}`,
    ...(Predicate.isString(fix) ? { fix } : {})
  })

/** A `.ts` file outside a package of ES modules is taken for CommonJS, which cannot require this library while it runs the command. */
const unloadable = (file: string, message: string): InputError =>
  /require\(\) ES Module|ERR_REQUIRE/.test(message)
    ? new InputError({
        reason: "bad_job",
        file,
        message: `${file} is not an ES module`,
        fix: `put "type": "module" into the package.json of its folder, or call it ${basename(file).replace(/\.([tj])s$/, ".m$1s")}`
      })
    : bad(file, "bad_job", `${file} cannot be loaded: ${message}`)

/** The loader is fetched when it is needed: most commands load no job. */
const imported = async (file: string): Promise<unknown> => {
  const { register } = await import("tsx/esm/api")
  const unregister = register()
  try {
    return await import(pathToFileURL(file).href)
  } finally {
    await unregister()
  }
}

const bad = (file: string, reason: InputError["reason"], message: string) => new InputError({ reason, file, message })

/** What a layer provides cannot be seen from outside; a wrong one fails as a missing service at once. */
const isProvider = (value: unknown): value is Layer.Layer<LLM> => Layer.isLayer(value)

const isJob = (value: unknown): value is Job<unknown, unknown> =>
  Predicate.isRecord(value) &&
  Predicate.isString(value.name) &&
  Predicate.isFunction(value.decode) &&
  Predicate.isFunction(value.identify) &&
  Predicate.isRecord(value.agent) &&
  Predicate.isFunction(value.agent.work)
