/**
 * Takes secrets out of what a server says, as it may quote them back: in an error, in a header, in an answer. Internal.
 *
 * @since 0.1.0
 */

/** @since 0.1.0 */
export type Scrub = (text: string) => string

/** Shorter ones are words such as "any", for a server that wants no key. */
const SHORTEST = 8

/**
 * Hides these secrets, however they are written, and the beginning of one where the text was cut within it.
 *
 * @since 0.1.0
 */
export const hiding = (secrets: ReadonlyArray<string>): Scrub => {
  const hidden = [...new Set(secrets)].filter((secret) => secret.length >= SHORTEST).map(hideOne)
  return (text) => hidden.reduce((clear, hide) => hide(clear), text)
}

const hideOne = (secret: string): Scrub => {
  const whole = new RegExp([...secret].map(quoted).join(""), "gi")
  // Nothing writes letters and digits in another way, so most texts need no more than this look.
  const core = (secret.match(/[A-Za-z0-9]+/g) ?? []).reduce((long, run) => (run.length > long.length ? run : long), "")
  const begins = Array.from({ length: secret.length - SHORTEST }, (_, i) => secret.slice(0, secret.length - 1 - i))
  return (text) => {
    const clear = text.includes(core) ? text.replace(whole, "<redacted>") : text
    const begin = begins.find((begin) => clear.endsWith(begin))
    return begin === undefined ? clear : `${clear.slice(0, -begin.length)}<redacted>`
  }
}

/** A letter in every way that it may be written: as it stands, or as JSON, a URL or a page writes it, once or a few times over. */
const quoted = (letter: string): string => {
  const code = letter.charCodeAt(0)
  const hex = code.toString(16)
  if (/[A-Za-z0-9]/.test(letter)) return letter
  return `(?:\\\\{0,4}\\x${hex}|%(?:25){0,3}${hex}|\\\\{1,4}u00${hex}|&(?:amp;){0,2}#(?:0{0,4}${code}|x0{0,4}${hex});|&(?:amp;){0,2}[a-z]{2,8};)`
}
