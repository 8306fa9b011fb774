/**
 * What the forecast and the detectors promise, measured on runs that are made up and whose true costs are known: how often the interval has the true cost, how wide it is,
 * how many runs without drift raise an alarm, and how many rows a drift lasts until it is found. Exit code 1 where a promise is not kept.
 *
 *   npm run bench:forecast [-- --runs 200 --seed 1]
 */
import { parseArgs } from "node:util"
import { alarmed, coverage, distributions, drifts, medianOf } from "../test/support/forecastRuns.ts"

const { values } = parseArgs({ options: { runs: { type: "string" }, seed: { type: "string" } } })
const runs = Number(values.runs ?? 200)
const seed = Number(values.seed ?? 1)
const ROWS = 10_000
const CANARY = 100
const FROM = 3_000
const FOUND_BY = 3_300
const problems: Array<string> = []
const percent = (share: number) => `${(share * 100).toFixed(1)} %`
const say = (line: string) => console.log(line)

say(`cost of ${ROWS} rows, ${runs} runs each: covered / median width by the true cost`)
say("| cost of a row | sample 50 | sample 100 | sample 200 |\n| --- | ---: | ---: | ---: |")
for (const [i, [name, costOf]] of Object.entries(distributions).entries()) {
  const cells = [50, 100, 200].map((n) => {
    const { covered, width } = coverage(costOf, ROWS, n, runs, seed * 1_000 + i * 10 + n)
    if (covered < 0.9) problems.push(`${name}, sample ${n}: ${percent(covered)} covered, below 90 %`)
    return `${percent(covered)} / ${(width * 100).toFixed(0)} %`
  })
  say(`| ${name} | ${cells.join(" | ")} |`)
}

const calm = Array.from({ length: runs }, (_, i) => alarmed(seed * 100_000 + i, ROWS, CANARY))
const falseAlarms = calm.flatMap((found) => (found === undefined ? [] : [found.alarm.message]))
say(`\nwithout drift: ${falseAlarms.length} of ${runs} runs of ${ROWS} rows raised an alarm`)
for (const message of falseAlarms) say(`  ${message}`)
if (falseAlarms.length > runs * 0.01) problems.push(`${falseAlarms.length} of ${runs} runs raised a false alarm`)

say(`\ndrift from row ${FROM} on, canary of ${CANARY}: rows until it is found`)
say(`| drift | median | 95 % | most | found before row ${FOUND_BY} |\n| --- | ---: | ---: | ---: | ---: |`)
for (const [i, [name, drift]] of Object.entries(drifts).entries()) {
  const found = Array.from({ length: runs }, (_, run) =>
    alarmed(seed * 200_000 + i * runs + run, FROM + 1_000, CANARY, drift, FROM)
  )
  const delays = found
    .map((one) => (one === undefined ? 1_000 : one.seq - FROM + 1))
    .filter((delay) => delay > 0)
    .sort((a, b) => a - b)
  const intime = delays.filter((delay) => delay <= FOUND_BY - FROM).length / Math.max(1, delays.length)
  const at = (share: number) => delays[Math.min(delays.length - 1, Math.floor(share * delays.length))] ?? 0
  say(`| ${name} | ${medianOf(delays)} | ${at(0.95)} | ${at(1)} | ${percent(intime)} |`)
  if (intime < 0.99) problems.push(`${name}: found in time in ${percent(intime)} of the runs only`)
}

for (const problem of problems) say(`not kept: ${problem}`)
process.exitCode = problems.length === 0 ? 0 : 1
