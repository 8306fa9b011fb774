/**
 * The verbs of a run: those that its state takes.
 *
 * @since 0.1.0
 */
import { useState } from "preact/hooks"
import { Whole } from "./Begin.tsx"
import { ask, download, type Refusal, type Run, runPath } from "./Client.ts"
import { dollars, money } from "./Format.ts"
import { type Following, refusalFrom } from "./Hooks.ts"
import { Dialog, Field, numberIn, Refused } from "./Parts.tsx"

type Verb = "pause" | "unpause" | "approve" | "drain" | "cancel" | "resume"

/** @since 0.1.0 */
export const Steering = ({ following, run }: { readonly following: Following; readonly run: Run }) => {
  const [refusal, setRefusal] = useState<Refusal>()
  const [busy, setBusy] = useState("")
  const [open, setOpen] = useState<"limits" | "cancel" | "">("")
  const during = async (what: string, work: () => Promise<void>) => {
    if (busy !== "") return
    setBusy(what)
    setRefusal(undefined)
    try {
      await work()
    } catch (cause) {
      setRefusal(refusalFrom(cause))
    }
    setBusy("")
  }
  const give = (verb: Verb) =>
    during(verb, async () =>
      following.took(
        await ask<Run>(runPath(run.runId, `/${verb}`), { method: "POST", ...(verb === "pause" ? { body: {} } : {}) })
      )
    )
  const save = (format: string) =>
    during(format, () => download(runPath(run.runId, `/export?format=${format}`), `${run.runId}.${format}`))

  const isOpen = run.status !== "done" && run.status !== "cancelled"
  const isIdle = run.phase === "idle"
  const waits = run.paused !== null && run.paused.by !== "operator"
  const isPaused = run.paused !== null
  return (
    <>
      <div class="actions">
        {isOpen && waits ? (
          <Button name="Approve" primary busy={busy === "approve"} onClick={() => give("approve")} />
        ) : null}
        {isOpen && isIdle && run.status === "suspended" ? (
          <Button name="Resume" primary busy={busy === "resume"} onClick={() => give("resume")} />
        ) : null}
        {isOpen && !waits ? (
          <Button
            name={isPaused ? "Unpause" : "Pause"}
            primary={isPaused}
            busy={busy === "pause" || busy === "unpause"}
            onClick={() => give(isPaused ? "unpause" : "pause")}
          />
        ) : null}
        {isOpen && !isIdle ? <Button name="Drain" busy={busy === "drain"} onClick={() => give("drain")} /> : null}
        {isOpen ? <Button name="Limits…" onClick={() => setOpen("limits")} /> : null}
        {isOpen ? <Button name="Cancel…" danger onClick={() => setOpen("cancel")} /> : null}
        <fieldset class="downloads">
          <legend>Download</legend>
          {["csv", "jsonl", "parquet"].map((format) => (
            <Button key={format} name={names[format] ?? format} busy={busy === format} onClick={() => save(format)} />
          ))}
        </fieldset>
      </div>
      <Refused refusal={refusal} />
      {open === "cancel" ? (
        <Dialog title="Cancel this run?" onClose={() => setOpen("")}>
          <p>
            It is given up for good: its {run.pending.toLocaleString("en-US")} pending rows are not asked. What it did
            and paid so far stays, and can be downloaded. To stop it for now, drain it instead.
          </p>
          <div class="actions">
            <button type="button" onClick={() => setOpen("")}>
              Keep it
            </button>
            <button
              type="button"
              class="danger solid"
              onClick={() => {
                setOpen("")
                give("cancel")
              }}
            >
              Cancel it for good
            </button>
          </div>
        </Dialog>
      ) : null}
      {open === "limits" ? <Limits run={run} took={following.took} onClose={() => setOpen("")} /> : null}
    </>
  )
}

const names: Readonly<Record<string, string>> = { csv: "CSV", jsonl: "JSONL", parquet: "Parquet" }

const Button = ({
  busy = false,
  danger = false,
  name,
  onClick,
  primary = false
}: {
  readonly name: string
  readonly onClick: () => void
  readonly primary?: boolean
  readonly danger?: boolean
  readonly busy?: boolean
}) => (
  <button
    type="button"
    class={primary ? "primary" : danger ? "danger" : undefined}
    aria-disabled={busy}
    onClick={busy ? undefined : onClick}
  >
    {name}
  </button>
)

const Limits = ({
  onClose,
  run,
  took
}: {
  readonly run: Run
  readonly took: (run: Run) => void
  readonly onClose: () => void
}) => {
  const [refusal, setRefusal] = useState<Refusal>()
  // As they were when the dialog was opened: what is typed is not overwritten by what happens meanwhile.
  const [now] = useState(run)
  const submit = async (event: SubmitEvent) => {
    event.preventDefault()
    if (!(event.currentTarget instanceof HTMLFormElement)) return
    const body = changedIn(new FormData(event.currentTarget), now)
    if (Object.keys(body).length === 0) return onClose()
    try {
      took(await ask<Run>(runPath(run.runId, "/limits"), { method: "PATCH", body }))
      onClose()
    } catch (cause) {
      setRefusal(refusalFrom(cause))
    }
  }
  return (
    <Dialog title="Limits" onClose={onClose}>
      <form onSubmit={submit}>
        <p>In force from the next call on. Counted so far: {money(run.spent + run.uncertain + run.held)}.</p>
        <div class="fields">
          <Field id="limit-budget" label="Cap, US dollars">
            <input
              id="limit-budget"
              name="budget"
              type="number"
              inputMode="decimal"
              min="0.000001"
              step="any"
              {...(now.cap === null ? {} : { defaultValue: dollars(now.cap) })}
            />
          </Field>
          <Field id="concurrency" label="Workers">
            <Whole id="concurrency" value={now.maxConcurrency} />
          </Field>
          <Field id="maxCalls" label="Most calls in all">
            <Whole id="maxCalls" value={now.maxCalls ?? undefined} />
          </Field>
          <Field id="requestsPerMinute" label="Requests a minute">
            <Whole id="requestsPerMinute" value={now.requestsPerMinute ?? undefined} />
          </Field>
          <Field id="tokensPerMinute" label="Tokens a minute">
            <Whole id="tokensPerMinute" value={now.tokensPerMinute ?? undefined} />
          </Field>
        </div>
        <Refused refusal={refusal} />
        <div class="actions">
          <button type="submit" class="primary">
            Set them
          </button>
          <button type="button" onClick={onClose}>
            Leave them
          </button>
        </div>
      </form>
    </Dialog>
  )
}

/** Only what was changed is sent. */
const changedIn = (form: FormData, run: Run) => {
  const before = {
    budget: run.cap === null ? undefined : Number(dollars(run.cap)),
    concurrency: run.maxConcurrency,
    maxCalls: run.maxCalls ?? undefined,
    requestsPerMinute: run.requestsPerMinute ?? undefined,
    tokensPerMinute: run.tokensPerMinute ?? undefined
  }
  return Object.fromEntries(
    Object.entries(before).flatMap(([name, value]) => {
      const wanted = numberIn(form, name)
      return wanted === undefined || wanted === value ? [] : [[name, wanted]]
    })
  )
}
