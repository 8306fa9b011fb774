/**
 * What a self-check found.
 *
 * @since 0.1.0
 */

/** One thing that was looked at. `warning`: the promises hold, but look at it. @since 0.1.0 */
export interface Finding {
  readonly name: string
  readonly state: "ok" | "warning" | "failed"
  readonly detail: string
}

/** A finding that is well. @since 0.1.0 */
export const fine = (name: string, detail: string): Finding => ({ name, state: "ok", detail })
/** A finding to look at. @since 0.1.0 */
export const warning = (name: string, detail: string): Finding => ({ name, state: "warning", detail })
/** A finding that breaks a promise. @since 0.1.0 */
export const failed = (name: string, detail: string): Finding => ({ name, state: "failed", detail })
