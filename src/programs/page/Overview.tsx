/**
 * A run as it goes: spend, throughput, workers, failures by kind, the canary, what happened.
 *
 * @since 0.1.0
 */
import type { FailureGroup, Run } from "./Client.ts"
import { runPath } from "./Client.ts"
import { clock, count, ended, isLive, money, percent, rate, took } from "./Format.ts"
import { type Following, runHref, useAsk } from "./Hooks.ts"
import { Bar, Card, Fact, Json, SpendBar } from "./Parts.tsx"
import { inFlightMs } from "./RunState.ts"
import { Spark } from "./Spark.tsx"

/** @since 0.1.0 */
export const Overview = ({ following, run }: { readonly following: Following; readonly run: Run }) => (
  <div class="board">
    <Spend run={run} costInAll={following.costInAll} />
    <Throughput following={following} run={run} />
    <Rows run={run} />
    <Kinds run={run} />
    <Log following={following} />
    <Canary following={following} />
  </div>
)

const Spend = ({ costInAll, run }: { readonly run: Run; readonly costInAll: number | null }) => {
  const counted = run.spent + run.uncertain + run.held
  const isTold = costInAll !== null && isLive(run) && ended(run) >= 20
  return (
    <Card
      title="Spend"
      class="spend"
      aside={run.cap === null ? <span>no cap</span> : <span>cap {money(run.cap)}</span>}
    >
      <p class="big">{money(run.spent)}</p>
      <SpendBar run={run} />
      <dl class="facts">
        <Fact name={<Key of="spent">Spent</Key>} note="billed, and known">
          {money(run.spent)}
        </Fact>
        <Fact name={<Key of="uncertain">Uncertain</Key>} note="sent, end unknown: counted at its worst">
          {money(run.uncertain)}
        </Fact>
        <Fact name={<Key of="held">Held</Key>} note="set aside for calls in flight">
          {money(run.held)}
        </Fact>
        {run.cap === null ? null : (
          <Fact
            name="Left under the cap"
            note={isTold ? `≈ ${money(Math.round(costInAll))} in all by what it cost so far` : undefined}
          >
            {money(Math.max(0, run.cap - counted))}
          </Fact>
        )}
      </dl>
    </Card>
  )
}

const Key = ({ children, of }: { readonly of: string; readonly children: string }) => (
  <>
    <i class={`key ${of}`} aria-hidden="true" />
    {children}
  </>
)

const Throughput = ({ following, run }: { readonly following: Following; readonly run: Run }) => {
  const perRow = inFlightMs(following.samples)
  const isRunning = run.phase === "running"
  return (
    <Card title="Throughput" class="flow" aside={<span>rows a second</span>}>
      <p class="big">{isRunning && run.rowsPerSecond !== null ? rate(run.rowsPerSecond) : "–"}</p>
      <Spark samples={following.samples} />
      <dl class="facts">
        <Fact name="Workers active" note={workersNote(run)}>
          {count(run.working)} of {count(isLive(run) && run.phase !== "idle" ? run.allowed : run.maxConcurrency)}
        </Fact>
        <Fact name="In flight per row" note="mean of the last half minute">
          {isRunning && perRow !== undefined ? took(perRow) : "–"}
        </Fact>
        <Fact
          name="Calls"
          note={
            run.retries + run.repairs > 0 ? `${count(run.retries)} retries, ${count(run.repairs)} repairs` : undefined
          }
        >
          {count(run.calls)}
        </Fact>
      </dl>
    </Card>
  )
}

const workersNote = (run: Run): string | undefined => {
  if (run.phase === "paused") return "none begins while it is paused"
  return run.phase !== "idle" && run.allowed < run.maxConcurrency
    ? `the provider takes fewer than the ${count(run.maxConcurrency)} allowed`
    : undefined
}

const Rows = ({ run }: { readonly run: Run }) => (
  <Card title="Rows" class="ends" aside={<span>{percent(ended(run), run.rows)}</span>}>
    <dl class="facts">
      <Fact name={<Key of="done">Done</Key>}>{count(run.done)}</Fact>
      <Fact name={<Key of="partial">Partial</Key>} note="answered, and not readable">
        {count(run.partial)}
      </Fact>
      <Fact name={<Key of="failed">Failed</Key>}>{count(run.failed)}</Fact>
      <Fact name={<Key of="pending">Pending</Key>}>{count(run.pending)}</Fact>
      {run.filtered > 0 ? (
        <Fact name="Filtered out" note="by the job’s own condition">
          {count(run.filtered)}
        </Fact>
      ) : null}
      {run.storeHits + run.memoHits > 0 ? (
        <Fact name="Not asked again" note="taken from the store, for nothing">
          {count(run.storeHits + run.memoHits)}
        </Fact>
      ) : null}
    </dl>
  </Card>
)

const LOOK_MS = 5_000

const Kinds = ({ run }: { readonly run: Run }) => {
  const { data: groups } = useAsk<ReadonlyArray<FailureGroup>>(
    runPath(run.runId, "/failures"),
    isLive(run) ? LOOK_MS : undefined
  )
  const kinds = new Map<string, number>()
  for (const group of groups ?? []) kinds.set(kindOf(group), (kinds.get(kindOf(group)) ?? 0) + group.count)
  const most = Math.max(1, ...kinds.values())
  return (
    <Card
      title="Failures by kind"
      class="kinds"
      aside={kinds.size > 0 ? <a href={runHref(run.runId, "/failures")}>Remedies</a> : null}
    >
      {groups !== undefined && kinds.size === 0 ? <p class="empty small">None so far.</p> : null}
      <ul class="ranks">
        {[...kinds].map(([kind, n]) => (
          <li key={kind}>
            <span>{kind.replaceAll("_", " ")}</span>
            <b>{count(n)}</b>
            <Bar
              label={kind}
              text={`${n} rows`}
              max={most}
              segments={[{ name: kind === "partial" ? "partial" : "failed", amount: n }]}
            />
          </li>
        ))}
      </ul>
    </Card>
  )
}

const kindOf = ({ kind, reason }: FailureGroup): string => (kind === "partial" ? "partial" : reason)

const Canary = ({ following: { canary } }: { readonly following: Following }) => {
  if (canary === undefined) return null
  const { alarms, answers, cost, rates, rows } = canary
  const share = (part: number) => percent(part, 1)
  return (
    <Card title="Canary" class="canary" aside={<span>{canary.goesOn ? "went on" : "waits for an approval"}</span>}>
      <p>
        {count(rates.rows)} of {count(rows)} rows: {share(rates.failed)} failed, {share(rates.refused)} refused,{" "}
        {share(rates.partial)} partial.
        {cost._tag === "Some"
          ? ` It cost ${money(cost.value.known)}; all rows will cost about ${money(cost.value.total.expected)}, between ${money(cost.value.total.low)} and ${money(cost.value.total.high)}.`
          : ""}
      </p>
      {alarms.map((alarm) => (
        <p key={alarm} class="note wait">
          {alarm}
        </p>
      ))}
      <dl class="answers">
        {answers.map(({ id, output }) => (
          <div key={id}>
            <dt>Row {id}</dt>
            <dd>
              <Json value={read(output)} />
            </dd>
          </div>
        ))}
      </dl>
    </Card>
  )
}

/** What the model wrote, by its fields if it is JSON. */
const read = (output: string): unknown => {
  try {
    return JSON.parse(output)
  } catch {
    return output
  }
}

const Log = ({ following: { line, log } }: { readonly following: Following }) => (
  <Card title="What happened" class="log" aside={<span>{lines[line]}</span>}>
    {log.length === 0 ? <p class="empty small">Nothing since this page was opened.</p> : null}
    <ol>
      {log.map(({ at, text }) => (
        <li key={`${at} ${text}`}>
          <time dateTime={new Date(at).toISOString()}>{clock(at)}</time>
          <span>{text}</span>
        </li>
      ))}
    </ol>
  </Card>
)

const lines = { connecting: "connecting", live: "live", waiting: "line lost", over: "at rest" }
