/**
 * The library's errors as the HTTP interface says them. What a database says, which names files of this machine, is for the server's log.
 *
 * @since 0.1.0
 */
import { Effect } from "effect"
import type { InputError, RunRefused, StorageError } from "../services/Errors.ts"
import { Conflict, NotFound, type TooMany, Unavailable, Unprocessable } from "./ApiErrors.ts"
import type { WorkflowError } from "./Workflow.ts"

/** How a request to begin, go on or steer fails. @since 0.1.0 */
export type BeginError = Conflict | NotFound | TooMany | Unavailable | Unprocessable

/** @since 0.1.0 */
export type LibraryError = RunRefused | InputError | StorageError | WorkflowError

/** Also for a run that is somebody else's. @since 0.1.0 */
export const noRun = new NotFound({ code: "not_found", message: "there is no such run" })

/**
 * Errors of reading: where a run that was looked at is gone, it is not there.
 *
 * @since 0.1.0
 */
export const reading = <A, R>(
  read: Effect.Effect<A, RunRefused | InputError | StorageError, R>
): Effect.Effect<A, NotFound | Unavailable, R> =>
  Effect.mapError(logged(read), (error) => {
    if (error._tag === "StorageError") return refusing(error)
    return error._tag === "RunRefused" ? noRun : new NotFound({ code: error.reason, message: error.message })
  })

/**
 * Errors of beginning, going on and steering.
 *
 * @since 0.1.0
 */
export const acting = <A, E extends BeginError | LibraryError, R>(
  work: Effect.Effect<A, E, R>,
  hide?: (text: string) => string
): Effect.Effect<A, BeginError, R> => Effect.mapError(logged(work), (error) => toBeginError(error, hide))

const logged = <A, E extends BeginError | LibraryError, R>(work: Effect.Effect<A, E, R>): Effect.Effect<A, E, R> =>
  Effect.tapError(work, (error) => (error._tag === "StorageError" ? Effect.logError(error.message) : Effect.void))

/**
 * One error, with what callers must not read hidden.
 *
 * @since 0.1.0
 */
export const toBeginError = (
  error: BeginError | LibraryError,
  hide: (text: string) => string = (text) => text
): BeginError => {
  switch (error._tag) {
    case "WorkflowError":
      return new Unprocessable({ code: "bad_job", message: hide(error.message) })
    case "StorageError":
      return refusing(error)
    case "InputError":
      return new Unprocessable({ code: error.reason, message: hide(error.message) })
    case "RunRefused":
      return refusedBy(error)
    default:
      return error
  }
}

const refusing = ({ reason }: StorageError) =>
  new Unavailable({ code: reason, message: "the database refuses; the server's log says why" })

const refusedBy = ({ message, reason }: RunRefused): BeginError => {
  switch (reason) {
    case "not_found":
      return noRun
    case "busy":
      // Which process on which machine is no caller's matter.
      return new Conflict({ code: reason, message: "another process works on this run" })
    case "cancelled":
    case "done":
    case "drift":
      return new Conflict({ code: reason, message })
    default:
      return new Unprocessable({ code: reason, message })
  }
}
