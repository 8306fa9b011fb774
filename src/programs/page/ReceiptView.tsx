/**
 * The bill of a run.
 *
 * @since 0.1.0
 */
import { type Receipt, type Run, runPath } from "./Client.ts"
import { count, exact, many, time } from "./Format.ts"
import { useAsk } from "./Hooks.ts"
import { Card, Refused } from "./Parts.tsx"
import { orderWords } from "./RunState.ts"

/** @since 0.1.0 */
export const ReceiptView = ({ run }: { readonly run: Run }) => {
  const { again, data, isAsking, refusal } = useAsk<Receipt>(runPath(run.runId, "/receipt"))
  return (
    <section aria-label="Receipt" class="receipt">
      <Refused refusal={refusal} />
      {data === undefined ? null : <Bill receipt={data} again={again} isAsking={isAsking} />}
    </section>
  )
}

const Bill = ({
  again,
  isAsking,
  receipt
}: {
  readonly receipt: Receipt
  readonly again: () => void
  readonly isAsking: boolean
}) => {
  const { cacheSaved, models, orders, prices, released, repaired, retried, settled, storeSaved, unknown } = receipt
  return (
    <>
      <section class="card slip" aria-labelledby="slip">
        <header>
          <h2 id="slip">Receipt</h2>
          <button type="button" aria-disabled={isAsking} onClick={again}>
            Read it again
          </button>
        </header>
        <dl class="items">
          <Item
            name="Spent"
            note={`${many(settled.calls, "call")} settled by the provider’s figures`}
            amount={settled.cost}
          />
          <Item
            name="Uncertain"
            note={`${many(unknown.calls, "call")} of unknown end, at their worst`}
            amount={unknown.cost}
          />
          <Item name="Released" note={`${many(released.calls, "call")} that surely were not billed`} amount={0} />
          <Item
            name="Counted"
            note={receipt.cap === null ? "no cap" : `of a cap of ${exact(receipt.cap)}`}
            amount={settled.cost + unknown.cost}
            isSum
          />
        </dl>
        <dl class="items minor">
          <Item name="Retries, in it" note={many(retried.calls, "call")} amount={retried.cost} />
          <Item name="Repairs, in it" note={many(repaired.calls, "call")} amount={repaired.cost} />
          <Item
            name="Saved by the store"
            note={`${many(receipt.storeHits, "row")} not asked again; estimated`}
            amount={storeSaved}
          />
          <Item name="Saved by the provider’s cache" note="exact" amount={cacheSaved} />
        </dl>
        <p class="digest">
          <span>Digest, the same for any order of settlement</span>
          <code>{receipt.digest}</code>
        </p>
      </section>
      <div class="bills">
        {models.map(({ calls, model, uncertain, usage }) => (
          <section key={model} class="card" aria-label={`Model ${model}`}>
            <header>
              <h2>{model}</h2>
              <span>{many(calls, "call")}</span>
            </header>
            <dl class="items minor">
              <Item name="Cost" amount={usage.cost} />
              {uncertain > 0 ? <Item name="Uncertain" amount={uncertain} /> : null}
              <Plain
                name="Input tokens"
                value={count(usage.inputTokens)}
                note={`${count(usage.cachedTokens)} of them cached`}
              />
              <Plain
                name="Output tokens"
                value={count(usage.outputTokens)}
                note={`${count(usage.reasoningTokens)} of them reasoning`}
              />
            </dl>
          </section>
        ))}
        {prices.map(({ calls, cost, price }) => (
          <section key={price} class="card" aria-label="Price">
            <header>
              <h2>Price</h2>
              <span>dollars for a million tokens</span>
            </header>
            <dl class="items minor">
              {priceLines(price).map(([name, value]) => (
                <Plain key={name} name={name} value={value} />
              ))}
              <Item name="Billed by it" note={many(calls, "call")} amount={cost} />
            </dl>
          </section>
        ))}
        {orders.length === 0 ? null : (
          <Card title="Orders" class="log">
            <ol>
              {orders.map(({ at, by, n, order }) => (
                <li key={n}>
                  <time dateTime={new Date(at).toISOString()}>{time(at)}</time>
                  <span>
                    {by}: {orderWords(order)}
                  </span>
                </li>
              ))}
            </ol>
          </Card>
        )}
      </div>
    </>
  )
}

const Item = ({
  amount,
  isSum = false,
  name,
  note
}: {
  readonly name: string
  readonly amount: number
  readonly note?: string
  readonly isSum?: boolean
}) => (
  <div class={isSum ? "sum" : undefined}>
    <dt>
      {name}
      {note === undefined ? null : <small>{note}</small>}
    </dt>
    <dd>{exact(amount)}</dd>
  </div>
)

const Plain = ({ name, note, value }: { readonly name: string; readonly value: string; readonly note?: string }) => (
  <div>
    <dt>
      {name}
      {note === undefined ? null : <small>{note}</small>}
    </dt>
    <dd>{value}</dd>
  </div>
)

/** A row of the price table is kept as JSON, so that the bill can be checked. */
const priceLines = (price: string): ReadonlyArray<readonly [string, string]> => {
  const row: Record<string, unknown> = parsed(price)
  return Object.entries(row).map(([name, value]) => [name, valueOf(value)])
}

const valueOf = (value: unknown): string =>
  typeof value === "object" && value !== null
    ? Object.entries(value)
        .map(([name, one]) => `${name} ${one}`)
        .join(", ")
    : String(value)

const parsed = (text: string): Record<string, unknown> => {
  try {
    return JSON.parse(text)
  } catch {
    return { price: text }
  }
}
