/**
 * How the HTTP interface fails: a status, a code for programs, a sentence for people that names the fix, and the request's id, which the server's log has too.
 *
 * @since 0.1.0
 */
import * as HttpApiSchema from "@effect/platform/HttpApiSchema"
import { Schema } from "effect"

const fields = { code: Schema.String, message: Schema.String }

/** 401: no token, or one that is not known. @since 0.1.0 */
export class Unauthorized extends Schema.TaggedError<Unauthorized>()(
  "Unauthorized",
  fields,
  HttpApiSchema.annotations({ status: 401, description: "No token, or one that is not known" })
) {}

/** 403: the token lacks a scope. @since 0.1.0 */
export class Forbidden extends Schema.TaggedError<Forbidden>()(
  "Forbidden",
  fields,
  HttpApiSchema.annotations({ status: 403, description: "The token lacks a scope" })
) {}

/** 404: no such run, or somebody else's. @since 0.1.0 */
export class NotFound extends Schema.TaggedError<NotFound>()(
  "NotFound",
  fields,
  HttpApiSchema.annotations({ status: 404, description: "It is not there, or it is somebody else's" })
) {}

/** 409: the run is in another state than that takes. @since 0.1.0 */
export class Conflict extends Schema.TaggedError<Conflict>()(
  "Conflict",
  fields,
  HttpApiSchema.annotations({ status: 409, description: "The run is in a state that does not take this" })
) {}

/** 422: understood, and not acceptable. @since 0.1.0 */
export class Unprocessable extends Schema.TaggedError<Unprocessable>()(
  "Unprocessable",
  fields,
  HttpApiSchema.annotations({ status: 422, description: "Understood, and not acceptable" })
) {}

/** 429: too many requests, or too many runs; `Retry-After` says when. @since 0.1.0 */
export class TooMany extends Schema.TaggedError<TooMany>()(
  "TooMany",
  { ...fields, retryAfterSeconds: Schema.Int },
  HttpApiSchema.annotations({ status: 429, description: "Too many requests or runs at once: see Retry-After" })
) {}

/** 503: the database refuses, or the server stops. @since 0.1.0 */
export class Unavailable extends Schema.TaggedError<Unavailable>()(
  "Unavailable",
  fields,
  HttpApiSchema.annotations({ status: 503, description: "The database refuses, or the server stops" })
) {}
