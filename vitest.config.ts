import { fileURLToPath } from "node:url"
import { defaultExclude, defineConfig } from "vitest/config"

export default defineConfig({
  resolve: {
    alias: [
      { find: "longhaul/sqlite", replacement: fileURLToPath(new URL("./src/layers/Sqlite.ts", import.meta.url)) },
      { find: "longhaul/openai", replacement: fileURLToPath(new URL("./src/layers/LLMOpenAI.ts", import.meta.url)) },
      { find: "longhaul/testing", replacement: fileURLToPath(new URL("./src/programs/Testing.ts", import.meta.url)) },
      {
        find: "longhaul/tokenizer",
        replacement: fileURLToPath(new URL("./src/layers/TokenizerGpt.ts", import.meta.url))
      },
      {
        find: "longhaul/genai-prices",
        replacement: fileURLToPath(new URL("./src/layers/PriceGenai.ts", import.meta.url))
      },
      { find: "longhaul", replacement: fileURLToPath(new URL("./src/index.ts", import.meta.url)) },
      // npm run test:openai7: the SDK's next major version, which lies beside the one that is installed for users.
      ...(process.env.LONGHAUL_OPENAI === "7" ? [{ find: /^openai(?=\/|$)/, replacement: "openai7" }] : [])
    ]
  },
  test: {
    include: ["test/**/*.test.ts"],
    // It needs a browser: npm run test:page.
    exclude: [...defaultExclude, "test/page/**"],
    // Many wait for processes of their own: two at once, also on two cores.
    maxWorkers: 2,
    minWorkers: 1,
    // Files of a worker share their modules: loading them anew for each took a quarter of the time.
    isolate: false,
    globalSetup: ["test/support/build.ts"],
    // Several tests start processes of their own; a busy machine must not fail them.
    testTimeout: 60_000,
    hookTimeout: 60_000
  }
})
