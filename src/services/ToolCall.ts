/**
 * A tool call that a model asked for and that is not done yet: what a suspended workflow waits for. Plain JSON, deeply frozen, so it is the same
 * after a snapshot as before.
 *
 * @example
 * import { ToolCall } from "longhaul"
 * const call = ToolCall.make({ id: "call_1", name: "approve", arguments: { vendors: [1, 2] } })
 *
 * @since 0.1.0
 */
import { Schema } from "effect"
import { deepFreeze, frozen } from "./Freeze.ts"

/** @since 0.1.0 */
export type Json =
  | null
  | boolean
  | number
  | string
  | ReadonlyArray<Json>
  | {
      readonly [key: string]: Json
    }

/**
 * What JSON can hold. NaN and the infinities are refused: they would come back as null.
 *
 * @since 0.1.0
 */
export const Json: Schema.Schema<Json> = Schema.suspend(() =>
  Schema.Union(
    Schema.Null,
    Schema.Boolean,
    Schema.JsonNumber,
    Schema.String,
    Schema.Array(Json),
    Schema.Record({ key: Schema.String, value: Json })
  )
)

/** @since 0.1.0 */
export interface ToolCall {
  readonly id: string
  readonly name: string
  readonly arguments: { readonly [key: string]: Json }
}

/**
 * `id` is the provider's, `arguments` are as the model wrote them, parsed. A decoded call is deeply frozen.
 *
 * @since 0.1.0
 */
export const ToolCall: Schema.Schema<ToolCall> = frozen(
  Schema.Struct({
    id: Schema.String,
    name: Schema.String,
    arguments: Schema.Record({ key: Schema.String, value: Json })
  })
)

/**
 * A deeply frozen copy: the caller's own arguments stay the caller's.
 *
 * @since 0.1.0
 */
export const make = (call: ToolCall): ToolCall =>
  deepFreeze({ id: call.id, name: call.name, arguments: structuredClone(call.arguments) })
