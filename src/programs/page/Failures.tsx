/**
 * What went wrong, by what it was, each with what can be done about it.
 *
 * @since 0.1.0
 */
import { useState } from "preact/hooks"
import { ask, type FailureGroup, type Refusal, type Requeued, type Run, runPath } from "./Client.ts"
import { count, isLive, many, money } from "./Format.ts"
import { refusalFrom, runHref, useAsk } from "./Hooks.ts"
import { Dialog, Empty, Refused } from "./Parts.tsx"

const LOOK_MS = 5_000

/** @since 0.1.0 */
export const Failures = ({ look, run }: { readonly run: Run; readonly look: () => void }) => {
  const {
    again,
    data: groups,
    refusal
  } = useAsk<ReadonlyArray<FailureGroup>>(runPath(run.runId, "/failures"), isLive(run) ? LOOK_MS : undefined)
  const [said, say] = useState("")
  const [problem, setProblem] = useState<Refusal>()
  const [asked, setAsked] = useState<"failed" | "partial">()
  const requeue = async (rows: "failed" | "partial") => {
    setAsked(undefined)
    setProblem(undefined)
    try {
      const { rows: n } = await ask<Requeued>(runPath(run.runId, "/requeue"), { method: "POST", body: { rows } })
      say(`${many(n, "row is", "rows are")} queued again.${isLive(run) ? "" : " Resume the run to ask them."}`)
      again()
      look()
    } catch (cause) {
      setProblem(refusalFrom(cause))
    }
  }
  const isTaken = run.status !== "cancelled"
  return (
    <section aria-label="Failures" class="failures">
      <Refused refusal={refusal} />
      <Refused refusal={problem} />
      <p role="status" class={said === "" ? "sr" : "note good"}>
        {said}
      </p>
      {groups?.length === 0 ? <Empty>Nothing failed.</Empty> : null}
      {(["failed", "partial"] as const).map((kind) =>
        isTaken && run[kind] > 0 ? (
          <button key={kind} type="button" onClick={() => setAsked(kind)}>
            Queue {count(run[kind])} {kind} again…
          </button>
        ) : null
      )}
      {groups?.map((group) => (
        <Group key={`${group.kind} ${group.source} ${group.reason} ${group.message}`} group={group} runId={run.runId} />
      ))}
      {asked === undefined ? null : (
        <Dialog title={`Queue ${many(run[asked], "row")} again?`} onClose={() => setAsked(undefined)}>
          <p>
            They are asked again in a new pass, under the same cap. By what rows cost so far that is about{" "}
            {money(expected(groups ?? [], asked))}.
          </p>
          <div class="actions">
            <button type="button" class="primary" onClick={() => requeue(asked)}>
              Queue them again
            </button>
            <button type="button" onClick={() => setAsked(undefined)}>
              Leave them
            </button>
          </div>
        </Dialog>
      )}
    </section>
  )
}

const expected = (groups: ReadonlyArray<FailureGroup>, kind: FailureGroup["kind"]): number =>
  groups.filter((group) => group.kind === kind).reduce((sum, { remedy }) => sum + remedy.expectedCost, 0)

const Group = ({ group, runId }: { readonly group: FailureGroup; readonly runId: string }) => (
  <article class="card group">
    <header>
      <h2>
        {group.kind === "partial" ? "partial" : group.reason.replaceAll("_", " ")}
        <span class="tally">{count(group.count)}</span>
      </h2>
      <span class="tag">{group.category.toLowerCase()}</span>
    </header>
    <p class="said">{group.message}</p>
    <p class="remedy">
      <strong>Remedy.</strong> {group.remedy.text}
      {group.remedy.expectedCost > 0 ? `; about ${money(group.remedy.expectedCost)}` : ""}.{" "}
      <code>{group.remedy.command.replace("<run>", runId)}</code>
    </p>
    <p class="group-foot">
      {money(group.burnt)} burnt · from {group.source} · rows{" "}
      {group.rows.map((id, i) => (
        <span key={id}>
          {i > 0 ? ", " : ""}
          <a href={runHref(runId, `/rows?end=${group.kind}&search=${encodeURIComponent(id)}`)}>{id}</a>
        </span>
      ))}
      {group.count > group.rows.length ? (
        <>
          {" and "}
          <a href={runHref(runId, `/rows?end=${group.kind}`)}>more</a>
        </>
      ) : null}
    </p>
  </article>
)
