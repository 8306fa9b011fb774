/**
 * Everything in memory: for tests and trials. The same laws as a durable bundle, within one process.
 *
 * @since 0.1.0
 */
import { Layer } from "effect"
import * as Checkpointer from "../services/Checkpointer.ts"
import type { Journal } from "../services/Journal.ts"
import * as Store from "../services/Store.ts"
import * as JournalMemory from "./JournalMemory.ts"

/**
 * Journal, Store and Checkpointer in memory.
 *
 * @since 0.1.0
 */
export const layer: Layer.Layer<Journal | Store.Store | Checkpointer.Checkpointer> = Store.layer.pipe(
  // One after the other, not merged: an interruption while two layers over a third are built at once hangs (effect 3.22).
  Layer.provideMerge(Checkpointer.layer),
  Layer.provideMerge(JournalMemory.layer)
)
