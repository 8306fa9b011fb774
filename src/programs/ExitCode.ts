/**
 * What the command's exit code says, for scripts and schedulers.
 *
 * @since 0.1.0
 */
import type { InputError, RunRefused, StorageError } from "../services/Errors.ts"
import type { RunResult } from "./Enrichment.ts"

/** Every row is done. @since 0.1.0 */
export const DONE = 0
/** A bug: nothing an operator did. @since 0.1.0 */
export const INTERNAL = 1
/** `verify` found something that must hold and does not. @since 0.1.0 */
export const VIOLATIONS = 1
/** Input, options, or a job that cannot be used; nothing was sent. @since 0.1.0 */
export const BAD_INPUT = 2
/** The run is complete, and some rows are failed or partial. @since 0.1.0 */
export const DONE_WITH_FAILURES = 3
/** The run stopped before its end (cap, quota, outage) and can be resumed. @since 0.1.0 */
export const SUSPENDED = 4
/** The run was cancelled: there is nothing to resume. @since 0.1.0 */
export const CANCELLED = 5
/** The database refused; the run can be resumed once it is mended. EX_IOERR of sysexits.h. @since 0.1.0 */
export const STORAGE = 74
/** Another process works on the run. EX_TEMPFAIL of sysexits.h. @since 0.1.0 */
export const BUSY = 75
/** Ctrl-C or SIGTERM; calls in flight were let finish, and the run can be resumed. @since 0.1.0 */
export const INTERRUPTED = 130

/**
 * The code of a run's end.
 *
 * @since 0.1.0
 */
export const ofResult = (result: Pick<RunResult<unknown>, "status" | "stopReason" | "failed" | "partial">): number => {
  if (result.status === "cancelled") return CANCELLED
  if (result.stopReason === "suspended") return SUSPENDED
  return result.failed + result.partial > 0 ? DONE_WITH_FAILURES : DONE
}

/**
 * The code of an operator's error.
 *
 * @since 0.1.0
 */
export const ofError = (error: InputError | RunRefused | StorageError | { readonly _tag: string }): number => {
  if (error._tag === "StorageError") return STORAGE
  return "reason" in error && error.reason === "busy" ? BUSY : BAD_INPUT
}
