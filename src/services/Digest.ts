/**
 * A digest of things that came in whatever order: the sum of their SHA-256 digests modulo 2^256, so that it is the same for every order, and a thing that is there twice counts twice. It shows that two
 * bills are the same; it is no seal against who can choose what stands in them.
 *
 * @since 0.1.0
 */
import { createHash } from "node:crypto"

/** The digest of nothing. @since 0.1.0 */
export const empty = 0n

const MODULUS = 1n << 256n

/**
 * A digest with one more thing in it, given as its text.
 *
 * @since 0.1.0
 */
export const add = (digest: bigint, text: string): bigint =>
  (digest + BigInt(`0x${createHash("sha256").update(text).digest("hex")}`)) % MODULUS

/**
 * The digest as 64 hexadecimal digits.
 *
 * @since 0.1.0
 */
export const format = (digest: bigint): string => digest.toString(16).padStart(64, "0")
