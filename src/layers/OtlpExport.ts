/**
 * Spans, metrics and logs to an OpenTelemetry collector, over HTTP; needs `@effect/opentelemetry` beside this library. No text of a row, a prompt or an answer is in them.
 *
 * @example
 * import * as OtlpExport from "longhaul/otlp"
 * const observed = OtlpExport.layer({ baseUrl: "http://127.0.0.1:4318" }) // and Enrichment.run(job, { spans: true })
 *
 * @since 0.1.0
 */
import * as Otlp from "@effect/opentelemetry/Otlp"
import * as FetchHttpClient from "@effect/platform/FetchHttpClient"
import { Layer } from "effect"

/** `baseUrl`: the collector's; `/v1/traces` and the others are appended. @since 0.1.0 */
export interface OtlpOptions {
  readonly baseUrl: string
  readonly serviceName?: string
}

/**
 * Exports for as long as the scope is open; what is left is sent when it closes.
 *
 * @since 0.1.0
 */
export const layer = ({ baseUrl, serviceName = "longhaul" }: OtlpOptions): Layer.Layer<never> =>
  Layer.provide(Otlp.layerJson({ baseUrl, resource: { serviceName } }), FetchHttpClient.layer)
