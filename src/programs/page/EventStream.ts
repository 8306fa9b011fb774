/**
 * Server-sent events from a text that comes in pieces. The browser's own reader cannot send a token.
 *
 * @since 0.1.0
 */

/** `id` is empty where the event had none. @since 0.1.0 */
export interface ServerEvent {
  readonly id: string
  readonly name: string
  readonly data: string
}

/**
 * A parser: give it each piece, and it gives the events that are complete by then.
 *
 * @since 0.1.0
 */
export const parser = (): ((piece: string) => ReadonlyArray<ServerEvent>) => {
  let rest = ""
  return (piece) => {
    // A line end that is cut between its two characters waits for the other one.
    const text = rest + piece
    const whole = text.endsWith("\r") ? text.slice(0, -1) : text
    const blocks = whole.replaceAll("\r\n", "\n").split("\n\n")
    rest = `${blocks.pop() ?? ""}${text.slice(whole.length)}`
    return blocks.flatMap(eventOf)
  }
}

const eventOf = (block: string): ReadonlyArray<ServerEvent> => {
  const fields = block.split("\n").flatMap((line) => {
    const match = /^([a-z]+):? ?(.*)$/.exec(line)
    return match === null ? [] : [[match[1], match[2] ?? ""] as const]
  })
  const of = (name: string) => fields.flatMap(([key, value]) => (key === name ? [value] : []))
  const data = of("data")
  return data.length === 0
    ? []
    : [{ id: of("id").at(-1) ?? "", name: of("event").at(-1) ?? "message", data: data.join("\n") }]
}
