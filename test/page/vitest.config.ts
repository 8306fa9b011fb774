/** `npm run test:page`: the page in a browser. Not among the others, as it needs one and takes its time. */
import { fileURLToPath } from "node:url"
import all from "../../vitest.config.ts"

export default {
  ...all,
  root: fileURLToPath(new URL("../../", import.meta.url)),
  test: { include: ["test/page/**/*.test.ts"], testTimeout: 180_000, hookTimeout: 60_000 }
}
