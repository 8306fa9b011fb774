/** Builds `dist/` once before the tests, for those that run the real command. Not in CI, where the installation has built it and other steps run it at the same time. */
import { execFileSync } from "node:child_process"

export default () => {
  if (process.env.LONGHAUL_CI === undefined) execFileSync("npm", ["run", "--silent", "build"], { stdio: "inherit" })
}
