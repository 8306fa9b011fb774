/** The claims of docs/guarantees.md with the commands that try to break them. */
import { readFileSync } from "node:fs"

export interface Claim {
  readonly title: string
  readonly commands: ReadonlyArray<string>
}

/** Each heading of the third level under "What is promised", with the lines of its shell fences. */
export const claims: ReadonlyArray<Claim> = (() => {
  const text = readFileSync(new URL("../../docs/guarantees.md", import.meta.url), "utf8")
  const promised = /^## What is promised$(.*?)^## /ms.exec(text)?.[1] ?? ""
  return promised
    .split(/^### /m)
    .slice(1)
    .map((part) => ({
      title: part.split("\n")[0] ?? "",
      commands: [...part.matchAll(/^```sh\n(.*?)^```$/gms)].flatMap(([, lines = ""]) =>
        lines.split("\n").filter((line) => line !== "")
      )
    }))
})()
