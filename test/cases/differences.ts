/** Where ours differs from what a case calls right, and why: one sentence for each case, printed beside its outcome. */
export const differences: Readonly<Record<string, string>> = {
  B01: "exit code 4 is that of every suspension (cap, account, outage); the run's stop reason tells them apart",
  B02: "nothing replaces an uncertain charge by the provider's own figure, and a row's failure has no count of attempts: each is a line of the ledger",
  B03: "a charge may be committed before its row's result, never after it: the answer is stored with the charge, and a resume makes the result of it without a call",
  B09: "after the repair the row ends as partial, its text kept, like every answer that cannot be used, and not as failed",
  B17: "account, key and configuration all stop a run as `provider`: the provider's own message tells them apart",
  B18: "a row's record has no count of attempts: each attempt is a line of the ledger, and the run counts calls and retries",
  B24: "more cached tokens than prompt tokens are not clamped: a usage that does not add up is no bill, so the call counts at its hold",
  B26: "no stream is asked for, so none is read: an event stream is no answer, uncertain at its hold, and the row is tried again",
  B29: "account, key and configuration all stop a run as `provider`: the provider's own message tells them apart",
  B30: "account, key and configuration all stop a run as `provider`: the provider's own message tells them apart",
  B43: "a memory dump of the process holds the key, as that of any process that uses one; the library writes no dump",
  B66: "not even the name of the key's source is recorded: a resume takes the key of its own environment",
  B70: "after the repair the row ends as partial, its text kept, like every answer that cannot be used, and not as failed",
  B72: "a ledger is not priced anew: each call stays as it was charged, under the price row that it names",
  B74: "there is no recovery file: an answer that could not be written is asked for again by a resume, and its first call stays uncertain",
  B96: "no try begins after the deadline; a call that is under way then ends by its own timeout, and is not cut",
  B103: "a 502 is uncertain, at its hold, unless a provider's profile says otherwise: a proxy's word does not tell whether the provider was reached",
  B118: "no note is kept that a fence was taken off: the answer's own text stays in the book",
  B122: "no stream is asked for, so none is read: one that is left open ends at the timeout, uncertain, and the row is tried again",
  B142: "a reset is uncertain and a try even where no byte was accepted, as a client cannot tell; only a refused connection costs nothing"
}
