/** Real terminals, by tmux: an operator types, and the screen is read as it is seen. Each server has a socket of its own. */
import { execFileSync } from "node:child_process"

export interface Terminal {
  /** Types a line and its Enter. */
  readonly type: (line: string) => void
  /** Types a key by tmux's name for it, such as `C-c`. */
  readonly key: (name: string) => void
  /** What is on the screen, without the empty lines below. */
  readonly screen: () => string
  readonly clear: () => Promise<void>
  /** Waits until the screen shows the text, and gives the screen. */
  readonly shows: (text: string | RegExp) => Promise<string>
  /** Waits for the prompt after a command's output, and gives the screen without it. */
  readonly ends: () => Promise<string>
}

export interface Terminals {
  readonly open: (name: string) => Terminal
  /** Ends every shell, and waits until what ran in them is gone. */
  readonly close: () => Promise<void>
}

const LONGEST_MS = 60_000
const sleep = (ms: number) => new Promise<void>((resume) => setTimeout(resume, ms))

/** Terminals of so many columns in a directory, with these variables and no others. */
export const terminals = (
  cwd: string,
  { columns, env, rows }: { readonly columns: number; readonly rows: number; readonly env: Record<string, string> }
): Terminals => {
  const tmux = (...args: ReadonlyArray<string>): string =>
    execFileSync("tmux", ["-L", `longhaul-walk-${process.pid}`, "-f", "/dev/null", ...args], {
      encoding: "utf8",
      env: { ...env, TERM: "xterm-256color" }
    })
  const opened: Array<Terminal> = []
  const open = (name: string): Terminal => {
    const size = ["-x", String(columns), "-y", String(rows)]
    const variables = Object.entries(env).map(([key, value]) => `${key}=${value}`)
    const shell = ["env", "-i", ...variables, "TERM=screen", "PS1=$ ", "bash", "--norc", "--noprofile"]
    tmux("new-session", "-d", "-s", name, ...size, "-c", cwd, ...shell)
    const screen = () =>
      // Joined: a line that was wrapped is one line.
      tmux("capture-pane", "-p", "-J", "-t", name)
        .split("\n")
        .map((line) => line.trimEnd())
        .join("\n")
        .trimEnd()
    const when = async (is: (text: string) => boolean, what: string): Promise<string> => {
      for (const until = Date.now() + LONGEST_MS; Date.now() < until; await sleep(50)) {
        const text = screen()
        if (is(text)) return text
      }
      throw new Error(`the terminal ${name} never showed ${what}:\n${screen()}`)
    }
    const key = (pressed: string) => void tmux("send-keys", "-t", name, pressed)
    const terminal: Terminal = {
      type: (line) => {
        tmux("send-keys", "-t", name, "-l", line)
        key("Enter")
      },
      key,
      screen,
      clear: async () => {
        key("C-l")
        await when((text) => text === "$", "an empty screen")
      },
      shows: (text) => when((seen) => (typeof text === "string" ? seen.includes(text) : text.test(seen)), String(text)),
      ends: async () => (await when((text) => /\n\$$/.test(text), "the prompt again")).replace(/\n\$$/, "")
    }
    opened.push(terminal)
    return terminal
  }
  return {
    open,
    close: async () => {
      for (const { key } of opened) {
        // A run that drains ends at the second one.
        key("C-c")
        await sleep(100)
        key("C-c")
      }
      await sleep(500)
      try {
        tmux("kill-server")
      } catch {
        // There was none yet.
      }
    }
  }
}
