/**
 * What `longhaul/testing` gives: the simulator, for a job's own tests.
 *
 * @since 0.1.0
 */
export * as Verify from "./Verify.ts"
