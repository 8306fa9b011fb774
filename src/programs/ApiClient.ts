/**
 * A typed client of a server: each method an Effect, each error of the interface decoded back.
 *
 * @example
 * import * as FetchHttpClient from "@effect/platform/FetchHttpClient"
 * import { Effect, Redacted } from "effect"
 * import * as Http from "longhaul/http"
 * const begun = Effect.gen(function* () {
 *   const client = yield* Http.client({ baseUrl: "http://127.0.0.1:8787", token: Redacted.make("…") })
 *   const { runId } = yield* client.runs.enrich({
 *     headers: { "idempotency-key": "vendors-week-31" },
 *     payload: { source: "vendors", budget: 50, concurrency: 8 }
 *   })
 *   return yield* client.runs.run({ path: { runId } })
 * }).pipe(Effect.provide(FetchHttpClient.layer))
 *
 * @since 0.1.0
 */
import * as HttpApiClient from "@effect/platform/HttpApiClient"
import * as HttpClient from "@effect/platform/HttpClient"
import * as HttpClientRequest from "@effect/platform/HttpClientRequest"
import type { Redacted } from "effect"
import { Api } from "./Api.ts"

/** @since 0.1.0 */
export interface ClientOptions {
  readonly baseUrl: string
  readonly token: Redacted.Redacted
}

/**
 * A client of the server at `baseUrl`. Calls fail with the errors of `ApiErrors`.
 *
 * @since 0.1.0
 */
export const client = ({ baseUrl, token }: ClientOptions) =>
  HttpApiClient.make(Api, {
    baseUrl,
    transformClient: HttpClient.mapRequest(HttpClientRequest.bearerToken(token))
  })
