/** How each module is mutated; mutation.ts runs it and says which module and which tests. */
export default {
  testRunner: "vitest",
  plugins: ["@stryker-mutator/vitest-runner"],
  vitest: { configFile: "test/mutation/vitest.config.ts", related: false },
  coverageAnalysis: "perTest",
  // Texts are for people; what a text decides (a reason, a tag, a key) is asserted in the tests all the same.
  mutator: { excludedMutations: ["StringLiteral"] },
  // Stryker reads a tsconfig with an API that TypeScript 7 no longer has: a file that is not there keeps it from that.
  tsconfigFile: "no-tsconfig.json",
  checkers: [],
  concurrency: 2,
  timeoutMS: 15_000,
  timeoutFactor: 2,
  tempDirName: ".stryker-tmp",
  ignorePatterns: ["dist", "bench", "docs", "test/pack", "test/teeth", "test/real", "*.db"],
  reporters: ["clear-text", "json"],
  clearTextReporter: { allowColor: false, reportTests: false, reportScoreTable: false },
  jsonReporter: { fileName: process.env.LONGHAUL_MUTATION_REPORT ?? ".stryker-tmp/report.json" },
  disableTypeChecks: false
}
