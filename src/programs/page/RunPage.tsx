/**
 * One run: where it is and what may be done with it, and below that the view of it that was chosen.
 *
 * @since 0.1.0
 */
import { useEffect, useRef, useState } from "preact/hooks"
import { Checkpoints } from "./Checkpoints.tsx"
import type { Run } from "./Client.ts"
import { Failures } from "./Failures.tsx"
import { count, ended, line, state } from "./Format.ts"
import { type Following, runHref, useRun } from "./Hooks.ts"
import { Overview } from "./Overview.tsx"
import { Badge, Refused, RowsBar } from "./Parts.tsx"
import { ReceiptView } from "./ReceiptView.tsx"
import { RowsView } from "./RowsView.tsx"
import { Steering } from "./Steering.tsx"

const tabs = { "": "Overview", rows: "Rows", failures: "Failures", receipt: "Receipt", checkpoints: "Checkpoints" }

/** @since 0.1.0 */
export const RunPage = ({
  query,
  runId,
  tab
}: {
  readonly runId: string
  readonly tab: string
  readonly query: URLSearchParams
}) => {
  const following = useRun(runId)
  const { refusal, run } = following
  return (
    <>
      <div class="heading run-heading">
        <div>
          <p class="crumb">
            <a href="#/">Runs</a>
            {run === undefined ? "" : ` / ${run.job}`}
          </p>
          <h1 tabIndex={-1}>{runId}</h1>
        </div>
        {run === undefined ? null : <Badge run={run} />}
      </div>
      <Refused refusal={refusal} />
      {run === undefined ? null : <Head following={following} run={run} />}
      <nav class="tabs" aria-label="Views of this run">
        {Object.entries(tabs).map(([name, title]) => (
          <a
            key={name}
            href={runHref(runId, name === "" ? "" : `/${name}`)}
            aria-current={tab === name ? "page" : undefined}
          >
            {title}
            {name === "failures" && run !== undefined && run.failed + run.partial > 0 ? (
              <span class="tally">{count(run.failed + run.partial)}</span>
            ) : null}
          </a>
        ))}
      </nav>
      {run === undefined ? null : <Tab following={following} query={query} run={run} tab={tab} />}
    </>
  )
}

const Tab = ({
  following,
  query,
  run,
  tab
}: {
  readonly following: Following
  readonly run: Run
  readonly tab: string
  readonly query: URLSearchParams
}) => {
  switch (tab) {
    case "rows":
      return <RowsView runId={run.runId} query={query} />
    case "failures":
      return <Failures run={run} look={following.look} />
    case "receipt":
      return <ReceiptView run={run} />
    case "checkpoints":
      return <Checkpoints run={run} />
    default:
      return <Overview following={following} run={run} />
  }
}

const Head = ({ following, run }: { readonly following: Following; readonly run: Run }) => (
  <section class="card hero" aria-label="Where it is">
    <p class="line" data-testid="line">
      {line(run).map((part, i) => (
        <span key={part.replace(/[\d.,–]+/g, "#")} class={i === 0 ? "first" : undefined}>
          {part}
        </span>
      ))}
    </p>
    <RowsBar run={run} />
    <Why run={run} line={following.line} />
    <Steering following={following} run={run} />
    <Announcer run={run} />
  </section>
)

/** Why it does not run, and that the line to the server is lost. */
const Why = ({ line, run }: { readonly run: Run; readonly line: Following["line"] }) => (
  <>
    {run.paused === null || run.status === "done" || run.status === "cancelled" ? null : (
      <p class="note wait">
        <strong>{by[run.paused.by]}.</strong> {run.paused.message}
      </p>
    )}
    {run.phase === "cooling" ? <p class="note wait">The provider asked for a rest; calls go on after it.</p> : null}
    {run.phase === "provider_down" ? (
      <p class="note bad">The provider fails as a whole. One call at a time probes it; rows wait and lose no try.</p>
    ) : null}
    {run.status === "suspended" && run.paused === null && run.reason !== null ? (
      <p class="note wait">
        <strong>Suspended.</strong> {run.reason.message}
      </p>
    ) : null}
    {line === "waiting" ? <p class="note wait">The line to the server is lost; trying again.</p> : null}
  </>
)

const by = { operator: "Paused by an operator", canary: "Paused by its canary", detector: "Paused by a detector" }

/** Says a change of state, and each tenth of the rows, to who does not see it. */
const Announcer = ({ run }: { readonly run: Run }) => {
  const tenth = run.rows === 0 ? 0 : Math.floor((ended(run) / run.rows) * 10)
  const { word } = state(run)
  const [said, say] = useState("")
  const latest = useRef(run)
  latest.current = run
  useEffect(() => say(`${word}. ${tenth * 10} % of ${count(latest.current.rows)} rows.`), [word, tenth])
  return (
    <p class="sr" role="status">
      {said}
    </p>
  )
}
