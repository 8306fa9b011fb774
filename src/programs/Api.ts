/**
 * The HTTP interface as a value: what can be asked, what is answered, and how it fails. The server answers it, a client is derived from it, and the OpenAPI document is written from it.
 *
 * @since 0.1.0
 */
import * as HttpApi from "@effect/platform/HttpApi"
import * as HttpApiEndpoint from "@effect/platform/HttpApiEndpoint"
import * as HttpApiGroup from "@effect/platform/HttpApiGroup"
import * as HttpApiMiddleware from "@effect/platform/HttpApiMiddleware"
import * as HttpApiSchema from "@effect/platform/HttpApiSchema"
import * as HttpApiSecurity from "@effect/platform/HttpApiSecurity"
import * as OpenApi from "@effect/platform/OpenApi"
import { Context, Schema } from "effect"
import * as ApiErrors from "./ApiErrors.ts"
import * as ApiViews from "./ApiViews.ts"

/** What a caller may do: `read` what is there, `run` begin and resume, `steer` change what a run does and may spend. @since 0.1.0 */
export const Scope = Schema.Literal("read", "run", "steer")
/** @since 0.1.0 */
export type Scope = typeof Scope.Type

/**
 * Who asks. A run belongs to the caller that began it; for others it is not there, but for the operator.
 *
 * @since 0.1.0
 */
export class Caller extends Context.Tag("longhaul/Caller")<
  Caller,
  { readonly name: string; readonly scopes: ReadonlySet<Scope>; readonly isOperator: boolean }
>() {}

/**
 * A bearer token.
 *
 * @since 0.1.0
 */
export class Auth extends HttpApiMiddleware.Tag<Auth>()("longhaul/Auth", {
  failure: ApiErrors.Unauthorized,
  provides: Caller,
  security: { bearer: HttpApiSecurity.bearer }
}) {}

const strict = { parseOptions: { onExcessProperty: "error" } } as const
const Count = Schema.Int.pipe(Schema.positive())
const RunPath = Schema.Struct({ runId: Schema.String })

/** What a run is to do. Amounts in US dollars. @since 0.1.0 */
export const Enrich = Schema.Struct({
  job: Schema.optional(Schema.String.annotations({ description: "A configured job; needed where there are several" })),
  source: Schema.String.annotations({ description: "A configured source" }),
  budget: Schema.Positive.annotations({ description: "The most that the run may cost, in US dollars" }),
  concurrency: Schema.optional(Count.annotations({ description: "The most calls in flight; default 8" })),
  maxCalls: Schema.optional(Count.annotations({ description: "The most calls that the run may send" })),
  requestsPerMinute: Schema.optional(Count),
  tokensPerMinute: Schema.optional(Count),
  canary: Schema.optional(Count.annotations({ description: "So many rows run first; then the run goes on or waits" }))
}).annotations({ identifier: "Enrich", ...strict })
/** @since 0.1.0 */
export type Enrich = typeof Enrich.Type

/** Other limits; what is left out stays. @since 0.1.0 */
export const LimitsPatch = Schema.Struct({
  budget: Schema.optional(Schema.Positive.annotations({ description: "The cap, in US dollars" })),
  concurrency: Schema.optional(Count),
  maxCalls: Schema.optional(Count),
  requestsPerMinute: Schema.optional(Count),
  tokensPerMinute: Schema.optional(Count)
}).annotations({ identifier: "LimitsPatch", ...strict })

/** Which rows run again: these, or all that failed, or all whose answer could not be read. @since 0.1.0 */
export const Requeue = Schema.Struct({
  rows: Schema.Union(Schema.Literal("failed", "partial"), Schema.NonEmptyArray(Schema.String))
}).annotations({ identifier: "Requeue", ...strict })

const Pause = Schema.Struct({ message: Schema.optional(Schema.String.pipe(Schema.maxLength(500))) }).annotations({
  identifier: "Pause",
  ...strict
})

/** A page of rows. @since 0.1.0 */
export const Page = Schema.Struct({
  after: Schema.optional(Schema.NumberFromString.pipe(Schema.int())),
  limit: Schema.optional(Schema.NumberFromString.pipe(Schema.int(), Schema.between(1, 500))),
  search: Schema.optional(Schema.String.pipe(Schema.maxLength(200))),
  end: Schema.optional(Schema.Literal("done", "partial", "failed", "pending"))
})

const Export = Schema.Struct({
  format: Schema.optional(Schema.Literal("csv", "jsonl", "parquet")),
  asOf: Schema.optional(Schema.NumberFromString.pipe(Schema.int(), Schema.positive()))
})

const text = (contentType: string) => Schema.String.pipe(HttpApiSchema.withEncoding({ kind: "Text", contentType }))

const Key = Schema.Struct({
  "idempotency-key": Schema.optional(
    Schema.String.pipe(Schema.minLength(1), Schema.maxLength(200)).annotations({
      description: "The same key again gives the same run; without one each request begins a run"
    })
  )
})

/** Runs: begun, looked at, read. @since 0.1.0 */
export const Runs = HttpApiGroup.make("runs")
  .add(
    HttpApiEndpoint.post("enrich", "/enrich")
      .setHeaders(Key)
      .setPayload(Enrich)
      .addSuccess(ApiViews.Begun, { status: 202 })
      .addError(ApiErrors.Conflict)
      .addError(ApiErrors.Unprocessable)
      .annotate(OpenApi.Description, "Begins a run over a configured source, under a cap")
  )
  .add(HttpApiEndpoint.get("jobs", "/jobs").addSuccess(ApiViews.Jobs))
  .add(
    HttpApiEndpoint.get("list", "/runs")
      .addSuccess(Schema.Array(ApiViews.Run))
      .annotate(OpenApi.Description, "The newest 200 runs")
  )
  .add(HttpApiEndpoint.get("run", "/runs/:runId").setPath(RunPath).addSuccess(ApiViews.Run))
  .add(
    HttpApiEndpoint.get("rows", "/runs/:runId/rows")
      .setPath(RunPath)
      .setUrlParams(Page)
      .addSuccess(ApiViews.Rows)
      .annotate(
        OpenApi.Description,
        "Rows with their results, in input order, a page at a time: `after` is the last page's `next`"
      )
  )
  .add(
    HttpApiEndpoint.get("calls", "/runs/:runId/rows/:rowId/calls")
      .setPath(Schema.Struct({ runId: Schema.String, rowId: Schema.String }))
      .addSuccess(Schema.Array(ApiViews.RowCall))
  )
  .add(
    HttpApiEndpoint.get("failures", "/runs/:runId/failures")
      .setPath(RunPath)
      .addSuccess(Schema.Array(ApiViews.FailureGroup))
  )
  .add(HttpApiEndpoint.get("receipt", "/runs/:runId/receipt").setPath(RunPath).addSuccess(ApiViews.Receipt))
  .add(
    HttpApiEndpoint.get("checkpoints", "/runs/:runId/checkpoints")
      .setPath(RunPath)
      .addSuccess(Schema.Array(ApiViews.Checkpoint))
  )
  .add(
    HttpApiEndpoint.get("export", "/runs/:runId/export")
      .setPath(RunPath)
      .setUrlParams(Export)
      .addSuccess(text("application/octet-stream"))
      .annotate(OpenApi.Description, "The rows with their results as a file, as far as the run is")
  )
  .add(
    HttpApiEndpoint.get("events", "/runs/:runId/events")
      .setPath(RunPath)
      .addSuccess(text("text/event-stream"))
      .annotate(
        OpenApi.Description,
        "Server-sent events: `snapshot` first, then what happens, each with an id; `Last-Event-ID` goes on from there, after a `gap` where that is too long ago"
      )
  )
  .addError(ApiErrors.Forbidden)
  .addError(ApiErrors.NotFound)
  .addError(ApiErrors.TooMany)
  .addError(ApiErrors.Unavailable)
  .middleware(Auth)

const verb = <const Name extends string>(name: Name) =>
  HttpApiEndpoint.post(name, `/runs/:runId/${name}`).setPath(RunPath).addSuccess(ApiViews.Run)

/** What changes a run that is there. Each means the same as the command of its name. @since 0.1.0 */
export const Steering = HttpApiGroup.make("steering")
  .add(verb("pause").setPayload(Pause))
  .add(verb("unpause"))
  .add(verb("approve"))
  .add(verb("drain"))
  .add(verb("cancel"))
  .add(verb("resume").annotate(OpenApi.Description, "Goes on with a run that nobody works on"))
  .add(
    HttpApiEndpoint.patch("limits", "/runs/:runId/limits")
      .setPath(RunPath)
      .setPayload(LimitsPatch)
      .addSuccess(ApiViews.Run)
  )
  .add(
    HttpApiEndpoint.post("requeue", "/runs/:runId/requeue")
      .setPath(RunPath)
      .setPayload(Requeue)
      .addSuccess(ApiViews.Requeued)
  )
  .addError(ApiErrors.Forbidden)
  .addError(ApiErrors.NotFound)
  .addError(ApiErrors.Conflict)
  .addError(ApiErrors.Unprocessable)
  .addError(ApiErrors.TooMany)
  .addError(ApiErrors.Unavailable)
  .middleware(Auth)

/** The server itself: open to whoever reaches it, and without a word of any row. @since 0.1.0 */
export const Health = HttpApiGroup.make("health").add(
  HttpApiEndpoint.get("health", "/health").addSuccess(ApiViews.Health).addError(ApiErrors.Unavailable)
)

/** Figures for Prometheus, in its text format. @since 0.1.0 */
export const Metrics = HttpApiGroup.make("metrics")
  .add(HttpApiEndpoint.get("metrics", "/metrics").addSuccess(text("text/plain; version=0.0.4")))
  .addError(ApiErrors.Forbidden)
  .middleware(Auth)

/** A document may give one `$id` to one place alone; the schema of whatever JSON has one in each. */
const withoutIds = (document: Record<string, unknown>): Record<string, unknown> =>
  JSON.parse(JSON.stringify(document), (key, value) => (key === "$id" ? undefined : value))

/**
 * All of it.
 *
 * @since 0.1.0
 */
export class Api extends HttpApi.make("longhaul")
  .add(Runs)
  .add(Steering)
  .add(Health)
  .add(Metrics)
  .annotate(OpenApi.Title, "Longhaul")
  .annotate(OpenApi.Version, "0.1.0")
  .annotate(OpenApi.Transform, withoutIds)
  .annotate(
    OpenApi.Description,
    "Long, budgeted, crash-safe LLM batch runs. Money in nano-dollars unless a name says dollars."
  ) {}
