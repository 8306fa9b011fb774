/**
 * The HTTP interface for programs: its definition, its errors and answers, and a typed client. The server itself is the command `longhaul serve`.
 *
 * @since 0.1.0
 */
export * from "./Api.ts"
export { type ClientOptions, client } from "./ApiClient.ts"
export * as Errors from "./ApiErrors.ts"
export * as Views from "./ApiViews.ts"
