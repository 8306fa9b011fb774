/**
 * Starts a server of this folder as a process and waits until it listens: until it prints `{"port":N}`. It ends with `stop`, or with the process
 * that started it.
 */
import { spawn } from "node:child_process"
import { once } from "node:events"
import { createInterface } from "node:readline"
import { fileURLToPath } from "node:url"

export interface Started {
  readonly origin: string
  readonly stop: () => Promise<void>
}

export const startServer = async (name: string, args: ReadonlyArray<string> = []): Promise<Started> => {
  const file = fileURLToPath(new URL(`./${name}.ts`, import.meta.url))
  const child = spawn(process.execPath, ["--import", "tsx", file, ...args], {
    stdio: ["ignore", "pipe", "inherit", "ipc"]
  })
  if (child.stdout === null) throw new Error(`${name} has no output`)
  const ended = once(child, "exit")
  const early = ended.then(([code]) => Promise.reject(new Error(`${name} ended early, with code ${code}`)))
  early.catch(() => undefined)
  const [line] = await Promise.race([once(createInterface({ input: child.stdout }), "line"), early])
  return {
    origin: `http://127.0.0.1:${JSON.parse(line).port}`,
    stop: async () => {
      child.kill("SIGKILL")
      await ended
    }
  }
}
