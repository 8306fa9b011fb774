/**
 * The public surface: one namespace a module.
 *
 * @since 0.1.0
 */
export * as Errors from "./services/Errors.ts"
export * as Failure from "./services/Failure.ts"
export * as Identity from "./services/Identity.ts"
export * as LLM from "./services/LLM.ts"
export * as Price from "./services/Price.ts"
export * as RowSource from "./services/RowSource.ts"
export * as Usage from "./services/Usage.ts"
export { Usd } from "./services/Usd.ts"
