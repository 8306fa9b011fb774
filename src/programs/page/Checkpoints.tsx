/**
 * The snapshots of a run; each can be downloaded as the run was then.
 *
 * @since 0.1.0
 */
import { useState } from "preact/hooks"
import { type Checkpoint, download, type Refusal, type Run, runPath } from "./Client.ts"
import { count, ended, isLive, money, time } from "./Format.ts"
import { refusalFrom, useAsk } from "./Hooks.ts"
import { Empty, Refused } from "./Parts.tsx"

const LOOK_MS = 10_000

/** @since 0.1.0 */
export const Checkpoints = ({ run }: { readonly run: Run }) => {
  const { data, refusal } = useAsk<ReadonlyArray<Checkpoint>>(
    runPath(run.runId, "/checkpoints"),
    isLive(run) ? LOOK_MS : undefined
  )
  const [problem, setProblem] = useState<Refusal>()
  const save = (version: number) =>
    download(runPath(run.runId, `/export?format=csv&asOf=${version}`), `${run.runId}-${version}.csv`).then(
      () => setProblem(undefined),
      (cause: unknown) => setProblem(refusalFrom(cause))
    )
  return (
    <section aria-label="Checkpoints" class="checkpoints">
      <Refused refusal={refusal ?? problem} />
      {data?.length === 0 ? <Empty>No checkpoint yet.</Empty> : null}
      {data === undefined || data.length === 0 ? null : (
        <table class="grid">
          <thead>
            <tr>
              <th scope="col">Version</th>
              <th scope="col">Rows ended</th>
              <th scope="col" class="number">
                Spent
              </th>
              <th scope="col">As it was</th>
            </tr>
          </thead>
          <tbody>
            {data.toReversed().map(({ at, progress, status, version }) => (
              <tr key={version}>
                <th scope="row">
                  {version}
                  <small>{time(at)}</small>
                </th>
                <td>
                  {count(ended(progress))} of {count(progress.rows)}
                  <small>
                    {status.toLowerCase()}
                    {progress.failed > 0 ? `, ${count(progress.failed)} failed` : ""}
                  </small>
                </td>
                <td class="number">
                  {money(progress.spent)}
                  <small>{count(progress.calls)} calls</small>
                </td>
                <td>
                  <button
                    type="button"
                    aria-label={`Download the rows as of checkpoint ${version} as CSV`}
                    onClick={() => save(version)}
                  >
                    CSV
                  </button>
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  )
}
