/** What a fault is to `faults.ts`. */
import { spawnSync } from "node:child_process"
import { mkdtempSync, rmdirSync } from "node:fs"
import { tmpdir } from "node:os"
import { join } from "node:path"
import type { Effect, Scope } from "effect"

export interface Fault {
  readonly id: string
  readonly name: string
  /** What the machine must have. */
  readonly needs?: ReadonlyArray<Tool>
  readonly run: Effect.Effect<Report, unknown, Scope.Scope>
}

/** `control`: what the same measure gives where the library's protection is left out. `broken`: what did not hold, in words. */
export interface Report {
  readonly figure: string
  readonly control: string
  readonly broken: ReadonlyArray<string>
}

export type Tool = keyof typeof tools

const runs =
  (command: string, ...args: ReadonlyArray<string>) =>
  () =>
    spawnSync(command, args).status === 0
const tools = {
  gcc: runs("gcc", "--version"),
  bash: runs("bash", "-c", "true"),
  root: () => process.getuid?.() === 0,
  // Root in a container may not mount.
  tmpfs: () => {
    const dir = mkdtempSync(join(tmpdir(), "longhaul-mount-"))
    const mounted = runs("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", dir)()
    if (mounted) spawnSync("umount", [dir])
    rmdirSync(dir)
    return mounted
  }
}

export const has = (tool: Tool): boolean => tools[tool]()

/** The tools of a fault that are not here. */
export const missing = ({ needs = [] }: Fault): ReadonlyArray<Tool> => needs.filter((tool) => !has(tool))

/** Collects what does not hold. */
export const makeChecks = () => {
  const broken: Array<string> = []
  const check = (what: string, held: boolean): void => {
    if (!held) broken.push(what)
  }
  return { broken, check }
}
