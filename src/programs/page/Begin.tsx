/**
 * The form that begins a run.
 *
 * @since 0.1.0
 */
import { useState } from "preact/hooks"
import { ask, type Begun, type Enrich, type Jobs, newKey, type Refusal } from "./Client.ts"
import { count } from "./Format.ts"
import { refusalFrom, runHref, useAsk } from "./Hooks.ts"
import { Field, numberIn, Refused, textIn } from "./Parts.tsx"

/** @since 0.1.0 */
export const Begin = () => {
  const { data: jobs, refusal } = useAsk<Jobs>("/jobs")
  return (
    <>
      <div class="heading">
        <div>
          <h1 tabIndex={-1}>Begin a run</h1>
          <p class="lead">
            Every row of a source through a job, under a cap. It can be paused, steered and stopped at any time.
          </p>
        </div>
      </div>
      <Refused refusal={refusal} />
      {jobs === undefined ? null : <Form jobs={jobs} />}
    </>
  )
}

const Form = ({ jobs }: { readonly jobs: Jobs }) => {
  // One key for one form: sent twice, it begins one run.
  const [key] = useState(newKey)
  const [refusal, setRefusal] = useState<Refusal>()
  const [isAsking, setAsking] = useState(false)
  const submit = async (event: SubmitEvent) => {
    event.preventDefault()
    if (isAsking || !(event.currentTarget instanceof HTMLFormElement)) return
    setAsking(true)
    setRefusal(undefined)
    try {
      const body = enrichOf(new FormData(event.currentTarget))
      const { runId } = await ask<Begun>("/enrich", { method: "POST", body, headers: { "idempotency-key": key } })
      location.hash = runHref(runId)
    } catch (cause) {
      setRefusal(refusalFrom(cause))
      setAsking(false)
    }
  }
  const most = Math.min(8, jobs.maxConcurrency)
  return (
    <form class="card begin" onSubmit={submit}>
      <div class="fields">
        <Field id="job" label="Job">
          <Choice id="job" from={jobs.jobs} />
        </Field>
        <Field id="source" label="Source">
          <Choice id="source" from={jobs.sources} />
        </Field>
        <Field
          id="budget"
          label="Budget, US dollars"
          hint={`The most that it may cost; at most $${count(jobs.maxRunUsd)} here`}
        >
          <input
            id="budget"
            name="budget"
            type="number"
            inputMode="decimal"
            required
            min="0.000001"
            max={jobs.maxRunUsd}
            step="any"
            aria-describedby="budget-hint"
          />
        </Field>
        <Field id="concurrency" label="Workers" hint={`Calls in flight at once, 1 to ${jobs.maxConcurrency}`}>
          <Whole id="concurrency" isHinted value={most} max={jobs.maxConcurrency} />
        </Field>
        <Field
          id="canary"
          label="Canary rows (optional)"
          hint="So many rows run first; the run waits if they look wrong"
        >
          <Whole id="canary" isHinted />
        </Field>
      </div>
      <details>
        <summary>Limits</summary>
        <div class="fields">
          <Field id="maxCalls" label="Most calls in all">
            <Whole id="maxCalls" />
          </Field>
          <Field id="requestsPerMinute" label="Requests a minute">
            <Whole id="requestsPerMinute" />
          </Field>
          <Field id="tokensPerMinute" label="Tokens a minute">
            <Whole id="tokensPerMinute" />
          </Field>
        </div>
      </details>
      <Refused refusal={refusal} />
      <div class="actions">
        <button type="submit" class="primary" aria-disabled={isAsking}>
          {isAsking ? "Beginning…" : "Begin the run"}
        </button>
        <a class="button" href="#/">
          Not now
        </a>
      </div>
    </form>
  )
}

const Choice = ({ from, id }: { readonly id: string; readonly from: ReadonlyArray<string> }) => (
  <select id={id} name={id} required>
    {from.map((name) => (
      <option key={name} value={name}>
        {name}
      </option>
    ))}
  </select>
)

/** A whole number, or nothing. @since 0.1.0 */
export const Whole = ({
  id,
  isHinted = false,
  max,
  value
}: {
  readonly id: string
  readonly isHinted?: boolean
  readonly value?: number | undefined
  readonly max?: number
}) => (
  <input
    id={id}
    name={id}
    type="number"
    inputMode="numeric"
    min={1}
    {...(max === undefined ? {} : { max })}
    step={1}
    aria-describedby={isHinted ? `${id}-hint` : undefined}
    {...(value === undefined ? {} : { defaultValue: String(value) })}
  />
)

const enrichOf = (form: FormData): Enrich => ({
  job: textIn(form, "job"),
  source: textIn(form, "source"),
  budget: numberIn(form, "budget") ?? 0,
  concurrency: numberIn(form, "concurrency"),
  canary: numberIn(form, "canary"),
  maxCalls: numberIn(form, "maxCalls"),
  requestsPerMinute: numberIn(form, "requestsPerMinute"),
  tokensPerMinute: numberIn(form, "tokensPerMinute")
})
