/** Builds `dist/` once before the tests, for those that run the real command. */
import { execFileSync } from "node:child_process"

export default () => {
  execFileSync("npm", ["run", "--silent", "build"], { stdio: "inherit" })
}
