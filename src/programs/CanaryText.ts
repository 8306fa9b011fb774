/**
 * What a canary says, for an operator. Internal to the command line.
 *
 * @since 0.1.0
 */
import { Option } from "effect"
import type { CanaryReport } from "./Canary.ts"
import { count, money, oneLine } from "./ProgressLine.ts"

/**
 * The report in some lines, with what happens next.
 *
 * @since 0.1.0
 */
export const render = (report: CanaryReport, runId: string, db: string): string => {
  const { alarms, answers, cost, goesOn, rates, rows } = report
  const share = (part: number) => `${(part * 100).toFixed(1)} %`
  const answerOf = ({ id, output }: CanaryReport["answers"][number]) => `  row ${oneLine(id)}: ${oneLine(output)}`
  return [
    `canary: ${count(rates.rows)} of ${count(rows)} rows: ${share(rates.failed)} failed, ${share(rates.refused)} refused, ${share(rates.partial)} partial`,
    ...Option.match(cost, {
      onNone: () => [],
      onSome: ({ known, total }) => [
        `  it cost ${money(known)}; all rows will cost about ${money(total.expected)}, between ${money(total.low)} and ${money(total.high)}`
      ]
    }),
    ...answers.map(answerOf),
    ...alarms.map((alarm) => `  looks wrong: ${oneLine(alarm)}`),
    goesOn
      ? "  nothing looks wrong: the run goes on"
      : `  the run waits; go on with: longhaul approve ${runId} --db ${db}, or give it up with: longhaul cancel ${runId} --db ${db}`
  ].join("\n")
}
