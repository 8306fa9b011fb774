/**
 * A line that is drawn again and again: in place on a terminal, one below the other elsewhere. Internal to the command line.
 *
 * @since 0.1.0
 */
import { clearLine, cursorTo } from "node:readline"
import type { WriteStream } from "node:tty"
import { Effect } from "effect"

/** @since 0.1.0 */
export interface TerminalLine {
  readonly isTerminal: boolean
  /** Draws what is rendered for a width in characters; `undefined`: as long as it is. */
  readonly draw: (render: (width: number | undefined) => string) => Effect.Effect<void>
  /** Writes lines that stay, above the one that is drawn. */
  readonly above: (text: string) => Effect.Effect<void>
  /** Leaves the line as it stands. */
  readonly end: Effect.Effect<void>
}

/**
 * Whether a stream is a terminal that takes escape codes: a dumb one shows them as they are (terminfo(5), "dumb"), the log of a build service too, and one without a width cannot hold a line.
 *
 * @since 0.1.0
 */
export const takesCodes = (stream: WriteStream): boolean =>
  stream.isTTY === true &&
  stream.columns !== 0 &&
  process.env.TERM !== "dumb" &&
  ["", "0", "false"].includes(process.env.CI ?? "")

/**
 * A line on a stream of the process.
 *
 * @since 0.1.0
 */
export const make = (stream: WriteStream): TerminalLine => {
  const isTerminal = takesCodes(stream)
  const clear = () => {
    if (!isTerminal) return
    cursorTo(stream, 0)
    clearLine(stream, 0)
  }
  return {
    isTerminal,
    above: (text) =>
      Effect.sync(() => {
        clear()
        stream.write(`${text}\n`)
      }),
    draw: (render) =>
      Effect.sync(() => {
        if (!isTerminal) {
          stream.write(`${render(undefined)}\n`)
          return
        }
        clear()
        // One less: a full line would wrap, and the next one be drawn below it.
        stream.write(render((stream.columns ?? 80) - 1))
      }),
    end: Effect.sync(() => void (isTerminal && stream.write("\n")))
  }
}
