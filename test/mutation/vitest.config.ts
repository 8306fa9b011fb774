import { fileURLToPath } from "node:url"
import { defineConfig, mergeConfig } from "vitest/config"
import base from "../../vitest.config.ts"

/** The tests that answer for one module; mutation.ts says which. Without the build: none of them starts the command. */
export default mergeConfig(
  defineConfig({ resolve: base.resolve ?? {} }),
  defineConfig({
    test: {
      root: fileURLToPath(new URL("../..", import.meta.url)),
      include: (process.env.LONGHAUL_MUTATION_TESTS ?? "").split(","),
      testTimeout: 8_000,
      hookTimeout: 8_000,
      isolate: false,
      cache: false
    }
  })
)
