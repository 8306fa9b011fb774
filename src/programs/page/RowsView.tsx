/**
 * The rows of a run with their results: searched, filtered, a page at a time, each with its calls.
 *
 * @since 0.1.0
 */
import { useEffect, useState } from "preact/hooks"
import { type Row, type RowCall, type Rows, runPath } from "./Client.ts"
import { clock, count, exact, money, took } from "./Format.ts"
import { runHref, useAsk } from "./Hooks.ts"
import { Empty, Json, plain, Refused, textIn } from "./Parts.tsx"

const PAGE = 50

/** @since 0.1.0 */
export const RowsView = ({ query, runId }: { readonly runId: string; readonly query: URLSearchParams }) => {
  const search = query.get("search") ?? ""
  const end = query.get("end") ?? ""
  // Where each page that was seen began, so that one can go back.
  const [starts, setStarts] = useState<ReadonlyArray<number>>([])
  useEffect(() => setStarts([]), [search, end])
  const asked = new URLSearchParams({ limit: String(PAGE) })
  const start = starts.at(-1)
  if (start !== undefined) asked.set("after", String(start))
  if (search !== "") asked.set("search", search)
  if (end !== "") asked.set("end", end)
  const { again, data, isAsking, refusal } = useAsk<Rows>(runPath(runId, `/rows?${asked}`))
  const submit = (event: SubmitEvent) => {
    event.preventDefault()
    if (!(event.currentTarget instanceof HTMLFormElement)) return
    const form = new FormData(event.currentTarget)
    const wanted = new URLSearchParams()
    for (const name of ["search", "end"]) if (textIn(form, name) !== "") wanted.set(name, textIn(form, name))
    const next = runHref(runId, `/rows${wanted.size > 0 ? `?${wanted}` : ""}`)
    if (next === location.hash) again()
    else location.hash = next
  }
  const next = data?.next ?? null
  return (
    <section aria-label="Rows" class="rows">
      <form class="filter" onSubmit={submit} key={`${search} ${end}`}>
        <div class="field grow">
          <label for="search">Search</label>
          <input
            id="search"
            name="search"
            type="search"
            defaultValue={search}
            maxLength={200}
            placeholder="in ids, records, results and failures"
          />
        </div>
        <div class="field">
          <label for="end">End</label>
          <select id="end" name="end" defaultValue={end}>
            <option value="">all</option>
            {["done", "partial", "failed", "pending"].map((one) => (
              <option key={one} value={one} selected={one === end}>
                {one}
              </option>
            ))}
          </select>
        </div>
        <button type="submit">Show</button>
      </form>
      <Refused refusal={refusal} />
      {data === undefined ? null : <Table rows={data.rows} runId={runId} />}
      {data?.rows.length === 0 ? (
        <Empty>
          {next === null ? "No row is like that." : "None on this page of the search; there are more rows behind it."}
        </Empty>
      ) : null}
      <div class="pager">
        <button type="button" aria-disabled={starts.length === 0} onClick={() => setStarts(starts.slice(0, -1))}>
          Earlier rows
        </button>
        <span role="status">{wordsOf(data, isAsking)}</span>
        <button
          type="button"
          aria-disabled={next === null}
          onClick={() => {
            if (next !== null) setStarts([...starts, next])
          }}
        >
          Later rows
        </button>
      </div>
    </section>
  )
}

const wordsOf = (data: Rows | undefined, isAsking: boolean): string => {
  if (data === undefined) return isAsking ? "Reading…" : ""
  const [first] = data.rows
  const last = data.rows.at(-1)
  return first === undefined || last === undefined
    ? "no rows"
    : `${count(data.rows.length)} rows, ${count(first.seq + 1)} to ${count(last.seq + 1)}`
}

const Table = ({ rows, runId }: { readonly rows: ReadonlyArray<Row>; readonly runId: string }) => {
  const [open, setOpen] = useState<number>()
  return (
    <table class="grid">
      <thead>
        <tr>
          <th scope="col">Row</th>
          <th scope="col">End</th>
          <th scope="col" class="wide">
            Record
          </th>
          <th scope="col">Result</th>
          <th scope="col" class="wide number">
            Cost
          </th>
        </tr>
      </thead>
      <tbody>
        {rows.map((row) => (
          <Line
            key={row.seq}
            row={row}
            runId={runId}
            isOpen={open === row.seq}
            toggle={() => setOpen(open === row.seq ? undefined : row.seq)}
          />
        ))}
      </tbody>
    </table>
  )
}

const Line = ({
  isOpen,
  row,
  runId,
  toggle
}: {
  readonly row: Row
  readonly runId: string
  readonly isOpen: boolean
  readonly toggle: () => void
}) => (
  <>
    <tr class={isOpen ? "open" : undefined}>
      <th scope="row">
        <button
          type="button"
          class="plain opener"
          aria-expanded={isOpen}
          aria-controls={`row-${row.seq}`}
          onClick={toggle}
        >
          {row.id}
        </button>
      </th>
      <td>
        <span class={`end ${row.end}`}>{row.end}</span>
      </td>
      <td class="wide clip">
        <Inline value={row.record} />
      </td>
      <td class="clip">
        {row.failure === undefined ? <Inline value={row.parsed ?? row.output} /> : <span>{row.failure.message}</span>}
      </td>
      <td class="wide number">{row.cost === undefined ? "" : money(row.cost)}</td>
    </tr>
    <tr id={`row-${row.seq}`} class="detail" hidden={!isOpen}>
      <td colSpan={5}>{isOpen ? <Detail row={row} runId={runId} /> : null}</td>
    </tr>
  </>
)

/** A value in a line: of an object its fields. */
const Inline = ({ value }: { readonly value: unknown }) => {
  if (typeof value !== "object" || value === null) return <span>{value === undefined ? "" : plain(value)}</span>
  return (
    <span>
      {Object.entries(value).map(([name, one]) => (
        <span key={name} class="pair">
          <i>{name}</i> {plain(one)}{" "}
        </span>
      ))}
    </span>
  )
}

const Detail = ({ row, runId }: { readonly row: Row; readonly runId: string }) => {
  const { data: calls, refusal } = useAsk<ReadonlyArray<RowCall>>(
    runPath(runId, `/rows/${encodeURIComponent(row.id)}/calls`)
  )
  return (
    <div class="detail-in">
      <div>
        <h3>Record</h3>
        <Json value={row.record} />
      </div>
      <div>
        <h3>{row.end === "partial" ? "What the model wrote" : "Result"}</h3>
        {row.failure === undefined ? null : (
          <p class="note bad">
            <strong>{row.failure.message}</strong>{" "}
            <code>
              {row.failure.source} · {row.failure.reason} · {row.failure.category}
            </code>
          </p>
        )}
        {row.end === "pending" ? <p class="empty small">Not asked yet.</p> : null}
        {row.end === "done" ? <Json value={row.parsed} /> : null}
        {row.output === undefined ? null : <pre>{row.output}</pre>}
      </div>
      <div class="all">
        <h3>Calls</h3>
        <Refused refusal={refusal} />
        {calls?.length === 0 ? <p class="empty small">No call was made for it.</p> : null}
        {calls === undefined || calls.length === 0 ? null : <Calls calls={calls} />}
      </div>
    </div>
  )
}

const Calls = ({ calls }: { readonly calls: ReadonlyArray<RowCall> }) => (
  <table class="grid inner">
    <thead>
      <tr>
        <th scope="col">Sent</th>
        <th scope="col">Call</th>
        <th scope="col">End</th>
        <th scope="col" class="number">
          Cost
        </th>
      </tr>
    </thead>
    <tbody>
      {calls.map((call) => (
        <tr key={`${call.epoch} ${call.turn} ${call.attempt} ${call.at}`}>
          <td>
            {clock(call.at)}
            <small>{took(call.closedAt - call.at)}</small>
          </td>
          <td>
            {call.model}
            <small>
              {call.turn > 0 ? "repair, " : ""}try {call.attempt + 1}
              {call.epoch > 0 ? `, pass ${call.epoch + 1}` : ""}
              {call.requestId === null ? "" : ` · ${call.requestId}`}
            </small>
          </td>
          <td>
            {call.state}
            <small>{call.reason}</small>
          </td>
          <td class="number">
            {exact(call.usage.cost)}
            <small>
              {count(call.usage.inputTokens)} in, {count(call.usage.outputTokens)} out
            </small>
          </td>
        </tr>
      ))}
    </tbody>
  </table>
)
