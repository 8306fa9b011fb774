/**
 * All runs that the caller may see.
 *
 * @since 0.1.0
 */
import type { Run } from "./Client.ts"
import { count, ended, isLive, many, money, percent, span } from "./Format.ts"
import { runHref, useAsk } from "./Hooks.ts"
import { Badge, Empty, Refused, RowsBar, SpendBar } from "./Parts.tsx"

const LOOK_MS = 3_000

/** @since 0.1.0 */
export const RunList = () => {
  const { data: runs, refusal } = useAsk<ReadonlyArray<Run>>("/runs", LOOK_MS)
  const live = runs?.filter(isLive) ?? []
  const rest = runs?.filter((run) => !isLive(run)) ?? []
  return (
    <>
      <div class="heading">
        <div>
          <h1 tabIndex={-1}>Runs</h1>
          {runs === undefined ? null : <p class="lead">{summary(runs, live.length)}</p>}
        </div>
        <a class="button primary" href="#/new">
          Begin a run
        </a>
      </div>
      <Refused refusal={refusal} />
      {runs?.length === 0 ? <Empty>No run yet. Begin the first one: it costs at most what you allow.</Empty> : null}
      {live.length > 0 ? <List name="Under way" runs={live} /> : null}
      {rest.length > 0 ? <List name="At rest" runs={rest} /> : null}
    </>
  )
}

const summary = (runs: ReadonlyArray<Run>, live: number): string => {
  const spent = runs.reduce((sum, run) => sum + run.spent, 0)
  return `${many(runs.length, "run")} · ${live} under way · ${money(spent)} spent in all`
}

const List = ({ name, runs }: { readonly name: string; readonly runs: ReadonlyArray<Run> }) => (
  <section aria-label={name}>
    <h2 class="over">{name}</h2>
    <ul class="runs">
      {runs.map((run) => (
        <li key={run.runId} class="card run">
          <div class="run-head">
            <h3>
              <a href={runHref(run.runId)}>{run.runId}</a>
            </h3>
            <Badge run={run} />
          </div>
          <div class="run-bars">
            <div>
              <RowsBar run={run} />
              <p>
                <b>{count(ended(run))}</b> / {count(run.rows)} rows
                <span class="far">{percent(ended(run), run.rows)}</span>
              </p>
            </div>
            <div>
              <SpendBar run={run} />
              <p>
                <b>{money(run.spent)}</b> {run.cap === null ? "spent, no cap" : `of ${money(run.cap)}`}
                {run.uncertain > 0 ? <span class="far">{money(run.uncertain)} uncertain</span> : null}
              </p>
            </div>
          </div>
          <p class="run-foot">{footOf(run)}</p>
        </li>
      ))}
    </ul>
  </section>
)

const footOf = (run: Run): string => {
  const failed = [
    ...(run.failed > 0 ? [`${count(run.failed)} failed`] : []),
    ...(run.partial > 0 ? [`${count(run.partial)} partial`] : [])
  ]
  if (run.paused !== null) return [run.paused.message || "paused", ...failed].join(" · ")
  if (isLive(run)) {
    const left = run.secondsLeft === null ? [] : [`est. ${span(run.secondsLeft)} remaining`]
    return [run.job, `${many(run.working, "worker")} active`, ...left, ...failed].join(" · ")
  }
  return [run.job, ...(run.reason === null ? [] : [run.reason.message]), ...failed].join(" · ")
}
