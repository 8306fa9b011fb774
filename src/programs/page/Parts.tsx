/**
 * The small parts that views are made of.
 *
 * @since 0.1.0
 */
import type { ComponentChildren } from "preact"
import { useId, useLayoutEffect, useRef } from "preact/hooks"
import type { Refusal, Run } from "./Client.ts"
import { money, percent, type State, state } from "./Format.ts"

/** A part of a bar. @since 0.1.0 */
export interface Segment {
  readonly name: string
  readonly amount: number
}

/** A bar of parts of a whole, which is read out as one sentence. @since 0.1.0 */
export const Bar = ({
  isLane = false,
  label,
  max,
  segments,
  text
}: {
  readonly label: string
  readonly text: string
  readonly max: number
  readonly segments: ReadonlyArray<Segment>
  readonly isLane?: boolean
}) => {
  const all = segments.reduce((sum, { amount }) => sum + amount, 0)
  const whole = Math.max(max, all, 1)
  return (
    <div
      class={`bar${isLane ? " lane" : ""}`}
      role="progressbar"
      aria-label={label}
      aria-valuemin={0}
      aria-valuemax={100}
      aria-valuenow={Math.floor((all / whole) * 100)}
      aria-valuetext={text}
    >
      {segments.map(({ amount, name }) =>
        amount > 0 ? <span key={name} class={`seg ${name}`} style={{ width: `${(amount / whole) * 100}%` }} /> : null
      )}
    </div>
  )
}

/** How far a run is. @since 0.1.0 */
export const RowsBar = ({ run }: { readonly run: Run }) => (
  <Bar
    label={`Rows of ${run.runId}`}
    text={`${percent(run.rows - run.pending, run.rows)} of ${run.rows} rows`}
    max={run.rows}
    isLane
    segments={[
      { name: "done", amount: run.done },
      { name: "partial", amount: run.partial },
      { name: "failed", amount: run.failed }
    ]}
  />
)

/** What is counted against the cap. @since 0.1.0 */
export const SpendBar = ({ run }: { readonly run: Run }) => (
  <Bar
    label={`Spend of ${run.runId} against its cap`}
    text={`${money(run.spent)} spent, ${money(run.uncertain)} uncertain, ${money(run.held)} held${run.cap === null ? "" : `, of ${money(run.cap)}`}`}
    max={run.cap ?? 0}
    segments={[
      { name: "spent", amount: run.spent },
      { name: "uncertain", amount: run.uncertain },
      { name: "held", amount: run.held }
    ]}
  />
)

/** @since 0.1.0 */
export const Badge = ({ run }: { readonly run: Run }) => <Mark {...state(run)} />

const Mark = ({ tone, word }: State) => <span class={`badge ${tone}`}>{word}</span>

/** A name and a value; several make a `dl`. @since 0.1.0 */
export const Fact = ({
  children,
  name,
  note
}: {
  readonly name: ComponentChildren
  readonly children: ComponentChildren
  readonly note?: string | undefined
}) => (
  <div class="fact">
    <dt>{name}</dt>
    <dd>{children}</dd>
    {note === undefined ? null : <dd class="fact-note">{note}</dd>}
  </div>
)

/** What the server refused. @since 0.1.0 */
export const Refused = ({ refusal }: { readonly refusal: Refusal | undefined }) =>
  refusal === undefined ? null : (
    <p class="note bad" role="alert">
      <strong>{refusal.message}</strong>{" "}
      <code>{refusal.status === 0 ? refusal.code : `${refusal.status} ${refusal.code}`}</code>
    </p>
  )

/** @since 0.1.0 */
export const Empty = ({ children }: { readonly children: ComponentChildren }) => <p class="empty">{children}</p>

/** A card with a heading. @since 0.1.0 */
export const Card = ({
  aside,
  children,
  class: name = "",
  title
}: {
  readonly title: string
  readonly children: ComponentChildren
  readonly aside?: ComponentChildren
  readonly class?: string
}) => {
  const id = useId()
  return (
    <section class={`card ${name}`} aria-labelledby={id}>
      <header>
        <h2 id={id}>{title}</h2>
        {aside}
      </header>
      {children}
    </section>
  )
}

/** A dialog over the page, open while it is rendered. Escape closes it, and the focus goes back to where it was. @since 0.1.0 */
export const Dialog = ({
  children,
  onClose,
  title
}: {
  readonly title: string
  readonly children: ComponentChildren
  readonly onClose: () => void
}) => {
  const ref = useRef<HTMLDialogElement>(null)
  const id = useId()
  // Before anything else can be pressed.
  useLayoutEffect(() => {
    const dialog = ref.current
    dialog?.showModal()
    // Closed before it goes: only then can what lies below it have the focus again.
    return () => dialog?.close()
  }, [])
  return (
    <dialog ref={ref} aria-labelledby={id} onClose={onClose}>
      <h2 id={id}>{title}</h2>
      {children}
    </dialog>
  )
}

/** An input with its label. @since 0.1.0 */
export const Field = ({
  children,
  hint,
  id,
  label
}: {
  readonly id: string
  readonly label: string
  readonly children: ComponentChildren
  readonly hint?: string | undefined
}) => (
  <div class="field">
    <label for={id}>{label}</label>
    {children}
    {hint === undefined ? null : (
      <small id={`${id}-hint`} class="hint">
        {hint}
      </small>
    )}
  </div>
)

/** The positive number in a field of a form; `undefined` for an empty one. @since 0.1.0 */
export const numberIn = (form: FormData, name: string): number | undefined => {
  const text = form.get(name)
  return typeof text === "string" && text.trim() !== "" ? Number(text) : undefined
}

/** The text in a field of a form. @since 0.1.0 */
export const textIn = (form: FormData, name: string): string => {
  const text = form.get(name)
  return typeof text === "string" ? text : ""
}

/** Any JSON, for people: fields of an object by name, the rest as JSON. @since 0.1.0 */
export const Json = ({ value }: { readonly value: unknown }) => {
  if (typeof value !== "object" || value === null || Array.isArray(value))
    return <span class="json">{plain(value)}</span>
  return (
    <dl class="json">
      {Object.entries(value).map(([name, one]) => (
        <div key={name}>
          <dt>{name}</dt>
          <dd>{plain(one)}</dd>
        </div>
      ))}
    </dl>
  )
}

/** @since 0.1.0 */
export const plain = (value: unknown): string => (typeof value === "string" ? value : (JSON.stringify(value) ?? ""))
