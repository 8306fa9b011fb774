/**
 * A job over numbered rows for the scripted provider: a row's prompt is its text, so that a script can tell rows apart.
 */
import { Schema } from "effect"
import * as Agent from "../../src/programs/Agent.ts"
import * as Enrichment from "../../src/programs/Enrichment.ts"
import type { RetryPolicy } from "../../src/services/Retry.ts"
import { fromIterable } from "../../src/services/RowSource.ts"
import { model } from "./scriptedLlm.ts"

export const Row = Schema.Struct({ id: Schema.Int, text: Schema.String })
export type Row = typeof Row.Type
export const Output = Schema.Struct({ summary: Schema.String })

export const textOf = (id: number): string => `row ${id}`
export const idOf = (text: string): number => Number(text.split(" ")[1])
export const rowsOf = (n: number, text: (id: number) => string = textOf): ReadonlyArray<Row> =>
  Array.from({ length: n }, (_, i) => ({ id: i, text: text(i) }))

export interface ScriptedJobOptions {
  readonly rows: ReadonlyArray<Row>
  readonly retry?: RetryPolicy
  readonly maxRepairs?: number
  readonly maxOutputTokens?: number
  readonly chunkSize?: number
  readonly model?: string
}

export const agentOf = (options: Partial<ScriptedJobOptions> = {}) =>
  Agent.make({
    name: "scripted",
    model: options.model ?? model,
    system: "You are a test.",
    prompt: (row: Row) => row.text,
    output: Output,
    maxRepairs: options.maxRepairs ?? 1,
    maxOutputTokens: options.maxOutputTokens ?? 100
  })

export const jobOf = (options: ScriptedJobOptions) =>
  Enrichment.make({
    name: "scripted-job",
    agent: agentOf(options),
    row: Row,
    id: (row) => row.id,
    source: fromIterable(options.rows),
    chunkSize: options.chunkSize ?? 10,
    ...(options.retry === undefined ? {} : { retry: options.retry })
  })
