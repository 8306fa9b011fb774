/**
 * What a call comes to: paid, perhaps paid, or surely not. What cannot be told counts as perhaps. Internal to the meter.
 *
 * @since 0.1.0
 */
import { Cause, Exit, Option } from "effect"
import type { Settled } from "./Book.ts"
import type { LLMError } from "./Errors.ts"
import { type ChatAnswer, answer as makeAnswer } from "./LLM.ts"
import type * as Price from "./Price.ts"

/** The call as it was asked for, and how its answer is billed. @since 0.1.0 */
export interface Asked {
  readonly model: string
  readonly bill: (answer: ChatAnswer) => Price.Bill
}

/** What a call comes to. @since 0.1.0 */
export type End =
  | ({ readonly _tag: "settled"; readonly excess?: string | undefined } & Omit<Settled, "at">)
  | {
      readonly _tag: "uncertain"
      readonly reason: string
      readonly answer: string | null
      readonly requestId: string | null
      /** It came from a model or tier without a price. */
      readonly unpriced: boolean
    }
  | { readonly _tag: "released"; readonly reason: string; readonly sent: boolean }

const uncertain = (reason: string, requestId: string | null = null): End => ({
  _tag: "uncertain",
  reason,
  answer: null,
  requestId,
  unpriced: false
})

/**
 * What a call comes to by how it ended.
 *
 * @since 0.1.0
 */
export const endOf = (exit: Exit.Exit<ChatAnswer, LLMError>, sent: boolean, call: Asked): End => {
  try {
    return endBy(exit, sent, call)
  } catch {
    // What cannot be billed counts at its hold.
    return uncertain("defect")
  }
}

const endBy = (exit: Exit.Exit<ChatAnswer, LLMError>, sent: boolean, { bill, model }: Asked): End => {
  if (Exit.isSuccess(exit)) return answered(exit.value, bill(exit.value))
  if (!sent) return { _tag: "released", reason: "not sent", sent: false }
  const failure = Cause.failureOption(exit.cause)
  if (Option.isNone(failure)) return uncertain(Cause.isInterrupted(exit.cause) ? "interrupted" : "defect")
  const { charge, reason, requestId, usage } = failure.value
  if (charge === "none") return { _tag: "released", reason, sent: true }
  if (charge !== "known" || usage === undefined) return uncertain(reason, requestId ?? null)
  const end = answered(makeAnswer({ text: "", model, usage, requestId }), bill(makeAnswer({ text: "", model, usage })))
  return end._tag === "settled" ? { ...end, reason, finish: null } : end
}

const answered = (answer: ChatAnswer, bill: Price.Bill): End => {
  // An empty answer is paid for but not accepted: a resumed run asks again.
  const accepted = answer.text.trim() !== "" || answer.refusal !== undefined
  const text = accepted ? encodeAnswer(answer) : null
  const requestId = answer.requestId ?? null
  if (bill._tag === "Uncertain") return { ...bill, _tag: "uncertain", answer: text, requestId }
  return {
    _tag: "settled",
    usage: bill.usage,
    cost: bill.cost,
    excess: bill.excess,
    reason: "",
    answer: text,
    finish: answer.finish,
    requestId
  }
}

/** The answer as it stands in the book. */
const encodeAnswer = (answer: ChatAnswer): string =>
  JSON.stringify({ text: answer.text, refusal: answer.refusal, finish: answer.finish, model: answer.model })
