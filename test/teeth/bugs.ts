/** One planted bug: `find` stands exactly once in `file`; with `replace` instead, the test of this title turns red. */
export interface Bug {
  readonly id: string
  readonly bug: string
  readonly file: string
  readonly find: string
  readonly replace: string
  readonly test: string
  readonly title: string
}

export const bugs: ReadonlyArray<Bug> = [
  {
    id: "I1",
    bug: "the snapshot encodes the live state one step late",
    file: "src/services/Checkpointer.ts",
    find: "const json = yield* toJson(id, schema, state)",
    replace: "const json = yield* Effect.zipRight(Effect.yieldNow(), toJson(id, schema, state))",
    test: "test/laws/Checkpointer.test.ts",
    title: "I1: a snapshot isolates state and metadata from later mutation of the live objects"
  },
  {
    id: "I2",
    bug: "what JSON drops is written all the same",
    file: "src/services/Checkpointer.ts",
    find: "  if (!isObject) throw new TypeError",
    replace: "  if (false) throw new TypeError",
    test: "test/laws/Checkpointer.test.ts",
    title: "is a typed CheckpointError at snapshot, and nothing is written"
  },
  {
    id: "I3",
    bug: "usage adds floats, rounded",
    file: "src/services/Usage.ts",
    find: "cost: Usd.add(a.cost, b.cost)",
    replace: "cost: Usd.nano(Math.round((a.cost / 1e9 + b.cost / 1e9) * 1e8) * 10)",
    test: "test/services/values.test.ts",
    title: "I3: "
  },
  {
    id: "I4",
    bug: "a failure's cause can be changed",
    file: "src/services/Failure.ts",
    find: "cause: Object.freeze([...failure.cause])",
    replace: "cause: [...failure.cause]",
    test: "test/services/values.test.ts",
    title: "I4: "
  },
  {
    id: "I5",
    bug: "keys hash in the order of the object's properties",
    file: "src/services/Identity.ts",
    find: "[...entries].sort(([a], [b]) => byCodeUnit(a, b))",
    replace: "entries",
    test: "test/services/values.test.ts",
    title: "I5: "
  },
  {
    id: "I6",
    bug: "a Map hashes in the order of insertion",
    file: "src/services/Identity.ts",
    find: "entries.sort(byCodeUnit).join",
    replace: "entries.join",
    test: "test/services/values.test.ts",
    title: "I6: "
  },
  {
    id: "I7",
    bug: "the fan-out ignores its width",
    file: "src/programs/FanOut.ts",
    find: "Effect.forEach(effects, (effect) => effect, { concurrency })",
    replace:
      'Effect.forEach(effects, (effect) => effect, { concurrency: concurrency === 0 ? concurrency : "unbounded" })',
    test: "test/programs/FanOut.test.ts",
    title: "I7: a fan-out keeps input order"
  },
  {
    id: "I8",
    bug: "a lost result goes unseen",
    file: "src/programs/FanOut.ts",
    find: "slots.length === effects.length && slots.every",
    replace: "slots.length <= effects.length && slots.every",
    test: "test/programs/FanOut.test.ts",
    title: "I8: a fan-out that"
  },
  {
    id: "I9",
    bug: "two snapshots of one commit get one version",
    file: "src/services/Group.ts",
    find: "      versions.set(id, next)\n",
    replace: "",
    test: "test/laws/Checkpointer.test.ts",
    title: "I9: concurrent snapshots of one id get distinct, gap-free versions (50"
  },
  {
    id: "I10",
    bug: "open holds do not count against the cap",
    file: "src/services/Ledger.ts",
    find: "book.spent + book.uncertain + book.held + amount > book.cap",
    replace: "book.spent + book.uncertain + amount > book.cap",
    test: "test/laws/Journal.test.ts",
    title: "I10: concurrent charges and holds serialise"
  },
  {
    id: "I11",
    bug: "a PERMANENT error is tried again",
    file: "src/programs/Invoker.ts",
    find: 'if (error.category === "PERMANENT") return false',
    replace: "",
    test: "test/programs/retry-breaker.test.ts",
    title: "I11: "
  },
  {
    id: "I12",
    bug: "retries hardly stop",
    file: "src/services/Retry.ts",
    find: "attempts: 5",
    replace: "attempts: 50",
    test: "test/programs/retry-breaker.test.ts",
    title: "I12: a TRANSIENT"
  },
  {
    id: "I13",
    bug: "bad rows open the breaker",
    file: "src/services/CircuitBreaker.ts",
    find: 'error.category !== "PERMANENT" && !isRateLimited(error)',
    replace: "!isRateLimited(error)",
    test: "test/programs/retry-breaker.test.ts",
    title: "I13: a thousand"
  },
  {
    id: "I14",
    bug: "the cause is lost on the way through JSON",
    file: "src/services/Errors.ts",
    find: "  message: Schema.String,\n  cause: LLMError\n",
    replace:
      '  message: Schema.String,\n  cause: Schema.transform(Schema.encodedSchema(LLMError), Schema.typeSchema(LLMError), {\n    strict: true,\n    decode: ({ message }) =>\n      new LLMError({ reason: "unknown", category: "UNKNOWN", scope: "row", charge: "none", message }),\n    encode: (error) => ({ ...error, _tag: "LLMError" as const })\n  })\n',
    test: "test/services/values.test.ts",
    title: "I14: "
  },
  {
    id: "I15",
    bug: "callers of one key each run their producer",
    file: "src/services/Store.ts",
    find: "        flights.set(key, own)\n",
    replace: "",
    test: "test/laws/Store.test.ts",
    title: "I15: 100 concurrent callers"
  },
  {
    id: "I16",
    bug: "a stale value is not counted",
    file: "src/services/Store.ts",
    find: "if (Option.isNone(value)) stale++",
    replace: "if (Option.isNone(value)) stale += 0",
    test: "test/laws/Store.test.ts",
    title: "I16: a stored value of"
  },
  {
    id: "I17",
    bug: "a suspended value shares its maker's arguments",
    file: "src/programs/Workflow.ts",
    find: "parts.pending.map(ToolCall.make)",
    replace: "parts.pending",
    test: "test/programs/Workflow.test.ts",
    title: "I17: a suspended value is deeply frozen"
  },
  {
    id: "I18",
    bug: "a meter begins at zero",
    file: "src/services/Meter.ts",
    find: "let state = start(book,",
    replace: "let state = start({ ...book, spent: Usd.nano(0) },",
    test: "test/programs/Budget.test.ts",
    title: "I18: "
  },
  {
    id: "I19",
    bug: "an interrupted row is recorded as failed",
    file: "src/programs/RowLoop.ts",
    find: "      (exit) => settle(row, asked.right, exit)\n    )\n",
    replace:
      '      (exit) => settle(row, asked.right, exit)\n    ).pipe(\n      Effect.onInterrupt(() => finish(row, key, Either.left(Failure.fromUnknown("interrupted")), noFacts))\n    )\n',
    test: "test/programs/retry-breaker.test.ts",
    title: "I19: "
  },
  {
    id: "I20",
    bug: "a snapshot grows with the rows",
    file: "src/services/Book.ts",
    find: "    calls: book.calls\n  })",
    replace: "    calls: book.calls,\n    ids: Array.from({ length: book.done }, (_, i) => i)\n  })",
    test: "test/laws/Checkpointer.test.ts",
    title: "I20: the writes of a run's snapshot"
  },
  {
    id: "I21",
    bug: "the repair turn writes into the first request",
    file: "src/programs/Agent.ts",
    find: "  makeRequest({\n    ...request,\n    messages: [\n      ...request.messages,",
    replace: "  Object.assign(request, {\n    messages: [\n      ...request.messages,",
    test: "test/services/values.test.ts",
    title: "I21: "
  },
  {
    id: "I22",
    bug: "retries are not counted",
    file: "src/services/Ledger.ts",
    find: "retries: book.retries + (attempt > 0 ? 1 : 0)",
    replace: "retries: book.retries",
    test: "test/programs/golden.test.ts",
    title: "I22: each part of the equation"
  },
  {
    id: "I23",
    bug: "a deadlock is reported as another end",
    file: "src/programs/Workflow.ts",
    find: 'if (wave.length === 0) return stopped("deadlock")',
    replace: 'if (wave.length === 0) return stopped("max_steps")',
    test: "test/programs/Workflow.test.ts",
    title: "I23: stopReason deadlock"
  },
  {
    id: "I24",
    bug: "pruning drops the DONE version",
    file: "src/layers/JournalSql.ts",
    find: " and status <> 'DONE'",
    replace: "",
    test: "test/laws/Checkpointer.test.ts",
    title: "I24: pruning keeps"
  },
  {
    id: "I25",
    bug: "rows that are done run again on resume",
    file: "src/programs/Reopen.ts",
    find: 'return kind === "failed" && category !== "PERMANENT"',
    replace: 'return kind === "done" || (kind === "failed" && category !== "PERMANENT")',
    test: "test/programs/golden.test.ts",
    title: "I25: a row's result"
  },
  {
    id: "I26",
    bug: "a call's cost depends on its number",
    file: "src/services/Meter.ts",
    find: "const { cost } = end",
    replace: "const cost = Usd.nano(end.cost + (record.n % 7))",
    test: "test/programs/golden.test.ts",
    title: "I26: two resumes"
  },
  {
    id: "I27",
    bug: "the cap stops the run while calls are in flight",
    file: "src/services/Admission.ts",
    find: "state.inFlight > 0 || HashMap.size(state.rows) > state.rowsWaiting",
    replace: "false",
    test: "test/programs/cap.test.ts",
    title: "I27: the cap reached in mid-run"
  },
  {
    id: "I27",
    bug: "a row that the cap left out is failed",
    file: "src/programs/RowLoop.ts",
    find: "    // The run stops and the row stays pending; what stopped it is told elsewhere.\n    return Effect.void",
    replace: "    return finish(row, key, Either.left(Failure.fromUnknown(reason)), noFacts)",
    test: "test/programs/cap.test.ts",
    title: "I27: the cap reached in mid-run"
  },
  {
    id: "I10",
    bug: "a bill above its hold stops nothing",
    file: "src/services/Meter.ts",
    find: "        if (state.cap !== null && cost > amount) stop(breach(cost, amount))\n",
    replace: "",
    test: "test/programs/cap.test.ts",
    title: "above its hold"
  },
  {
    id: "I10",
    bug: "the provider is called before the hold",
    file: "src/programs/Invoker.ts",
    find: "    const send = () => {\n      tries.begunAt = meter.now()\n      return physical(route, request)\n    }",
    replace:
      "    const early = physical(route, request)\n    const send = () => {\n      tries.begunAt = meter.now()\n      return early\n    }",
    test: "test/programs/cap.test.ts",
    title: "I10: a provider is not even called before its hold stands"
  },
  {
    id: "I10",
    bug: "a claim that came too late gives the winner's back",
    file: "src/programs/Worker.ts",
    find: 'verdict._tag === "Ok" ? Effect.ignore(',
    replace: "fence.worker > 0 ? Effect.ignore(",
    test: "test/programs/manifest.test.ts",
    title: "a claim that came too late leaves the winner's alone"
  },
  {
    id: "I25",
    bug: "a killed process's results never reach the store",
    file: "src/programs/Reopen.ts",
    find: 'book.status === "running") feed.add',
    replace: 'book.status === "loading") feed.add',
    test: "test/programs/manifest.test.ts",
    title: "what a killed process had not given to the store"
  },
  {
    id: "I10",
    bug: "a refused run has its limits changed",
    file: "src/programs/Execution.ts",
    find: "      const reused = yield* Reopen.reopen(live, feed)\n",
    replace:
      '      yield* live.journal.commit({ _tag: "Limits", fence: live.fence, limits: live.limits })\n      const reused = yield* Reopen.reopen(live, feed)\n',
    test: "test/programs/manifest.test.ts",
    title: "a run that is refused for drift keeps its cap"
  },
  // Provider truth: each family of the classifier, the wire, the bill, the throttle, the output, the fallback.
  {
    id: "P1",
    bug: "an account without money is a rate limit",
    file: "src/services/ErrorTables.ts",
    find: '      "insufficient_quota",\n',
    replace: "",
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P2",
    bug: "a wrong key concerns one row",
    file: "src/services/ErrorTables.ts",
    find: '{ values: [401, 403], reason: "auth", category: "PERMANENT", scope: "run", charge: "none" }',
    replace: '{ values: [401, 403], reason: "auth", category: "PERMANENT", scope: "row", charge: "none" }',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P3",
    bug: "a row that is too long stops the run",
    file: "src/services/ErrorTables.ts",
    find: '    values: [\n      "context_length_exceeded",',
    replace: '    values: [\n      "context_length",',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P4",
    bug: "a filtered prompt on Azure is free",
    file: "src/services/ErrorTables.ts",
    find: 'scope: "row", charge: "uncertain", values: ["content_filter"]',
    replace: 'scope: "row", charge: "none", values: ["content_filter"]',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P5",
    bug: "a parameter that no row can have fails row by row",
    file: "src/services/Classify.ts",
    find: 'isRefused && jobParams.has(found.param ?? "")',
    replace: "false",
    test: "test/layers/faults.test.ts",
    title: "400-openai-max-tokens"
  },
  {
    id: "P6",
    bug: "slow_down is a server error",
    file: "src/services/ErrorTables.ts",
    find: '      "slow_down",\n',
    replace: "",
    test: "test/layers/faults.test.ts",
    title: "slow_down"
  },
  {
    id: "P7",
    bug: "a server error is free",
    file: "src/services/ErrorTables.ts",
    find: '    values: [409, 423, 424, 425, 499, 500, 502],\n    reason: "server_error",\n    category: "TRANSIENT",\n    scope: "row",\n    charge: "uncertain"',
    replace:
      '    values: [409, 423, 424, 425, 499, 500, 502],\n    reason: "server_error",\n    category: "TRANSIENT",\n    scope: "row",\n    charge: "none"',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P8",
    bug: "a timeout is free",
    file: "src/services/ErrorTables.ts",
    find: '{ values: [408, 504], reason: "timeout", category: "TRANSIENT", scope: "row", charge: "uncertain" }',
    replace: '{ values: [408, 504], reason: "timeout", category: "TRANSIENT", scope: "row", charge: "none" }',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P9",
    bug: "a reset is free",
    file: "src/services/ErrorTables.ts",
    find: '    charge: "uncertain",\n    values: [\n      "ECONNRESET",',
    replace: '    charge: "none",\n    values: [\n      "ECONNRESET",',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P10",
    bug: "a bad certificate is tried again and again",
    file: "src/services/ErrorTables.ts",
    find: 'category: "PERMANENT",\n    scope: "run",\n    charge: "none",\n    values: [\n      "ERR_INVALID_URL"',
    replace: 'category: "TRANSIENT",\n    scope: "run",\n    charge: "none",\n    values: [\n      "ERR_INVALID_URL"',
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P11",
    bug: "an error behind a 200 is free",
    file: "src/services/Classify.ts",
    find: '{ ...byStatus(status), charge: "uncertain" }',
    replace: "byStatus(status)",
    test: "test/services/Classify.test.ts",
    title: "Classify"
  },
  {
    id: "P12",
    bug: "an error that says how long to wait is not heard",
    file: "src/services/Classify.ts",
    find: "return said ?? (headers",
    replace: "return (headers",
    test: "test/services/RateLimit.test.ts",
    title: "a wait in words"
  },
  {
    id: "P13",
    bug: "a server's own meaning of an error is not known",
    file: "src/services/Classify.ts",
    find: "const deviation = profile?.deviations.find(fits)",
    replace: "const deviation = undefined as Deviation | undefined",
    test: "test/layers/faults.test.ts",
    title: "402-openrouter-in-flight"
  },
  {
    id: "P14",
    bug: "a redirect is followed",
    file: "src/layers/LLMOpenAI.ts",
    find: 'redirect: "manual"',
    replace: 'redirect: "follow"',
    test: "test/layers/faults.test.ts",
    title: "redirect-307"
  },
  {
    id: "P15",
    bug: "an answer has no deadline once its head is here",
    file: "src/layers/LLMOpenAI.ts",
    find: "    const headers = { get: (name: string) =>",
    replace: "    clearTimeout(deadline)\n    const headers = { get: (name: string) =>",
    test: "test/layers/faults.test.ts",
    title: "stall-in-body"
  },
  {
    id: "P16",
    bug: "a body may be as large as it likes",
    file: "src/layers/LLMOpenAI.ts",
    find: "    if (size > limit)",
    replace: "    if (size < 0)",
    test: "test/layers/faults.test.ts",
    title: "a body that is too large is not read to its end"
  },
  {
    id: "P17",
    bug: "a request can be sent twice",
    file: "src/layers/LLMOpenAI.ts",
    find: "{ ...once(req), redirect",
    replace: "{ ...req, redirect",
    test: "test/layers/faults.test.ts",
    title: "status-421"
  },
  {
    id: "P18",
    bug: "the interruption of a call leaves its request under way",
    file: "src/layers/LLMOpenAI.ts",
    find: '  interrupted.addEventListener("abort", abort, { once: true })',
    replace: "",
    test: "test/layers/faults.test.ts",
    title: "an interruption closes the socket and is no error: stall-in-body"
  },
  {
    id: "M1",
    bug: "usage that is missing is zero",
    file: "src/services/Price.ts",
    find: "  if (usage === undefined && own === undefined) return noUsage\n",
    replace: "",
    test: "test/services/Price.test.ts",
    title: "usage that is missing"
  },
  {
    id: "M2",
    bug: "negative usage is billed",
    file: "src/services/Price.ts",
    find: "Number.isSafeInteger(n) && n >= 0 && n <= 1e9",
    replace: "Number.isSafeInteger(n) && n <= 1e9",
    test: "test/services/Price.test.ts",
    title: "usage that is missing"
  },
  {
    id: "M3",
    bug: "another model costs what was asked for",
    file: "src/services/Price.ts",
    find: "answer.model === request.model ? row : (priceOf(answer.model) ?? (isSame ? row : undefined))",
    replace: "row",
    test: "test/services/Price.test.ts",
    title: "another model"
  },
  {
    id: "M4",
    bug: "another tier costs the same",
    file: "src/services/Price.ts",
    find: "return known(cost(answered, tokens, tier))",
    replace: "return known(cost(answered, tokens))",
    test: "test/services/Price.test.ts",
    title: "another tier"
  },
  {
    id: "M5",
    bug: "the provider's own bill is not believed",
    file: "src/services/Price.ts",
    find: "  if (own !== undefined) return known(own)\n",
    replace: "",
    test: "test/services/Price.test.ts",
    title: "the provider's own figure"
  },
  {
    id: "M6",
    bug: "cached tokens are paid twice",
    file: "src/services/Price.ts",
    find: "usage.inputTokens - usage.cachedTokens - usage.cacheWriteTokens",
    replace: "usage.inputTokens - usage.cacheWriteTokens",
    test: "test/services/Price.test.ts",
    title: "a part that was cached"
  },
  {
    id: "M7",
    bug: "a run goes on after an answer without a price",
    file: "src/services/Meter.ts",
    find: '        if (state.cap !== null && end.unpriced) stop({ kind: "unpriced", message: end.reason })\n',
    replace: "",
    test: "test/cases/cost.test.ts",
    title: "B06"
  },
  {
    id: "M8",
    bug: "a dear tier does not raise the hold",
    file: "src/services/Price.ts",
    find: "whole * Math.max(1, ...asked)",
    replace: "whole",
    test: "test/services/Price.test.ts",
    title: "the hold covers the tier asked for"
  },
  {
    id: "M9",
    bug: "a price by the token is taken for one by the million",
    file: "src/services/Price.ts",
    find: "(price >= 0.001 && price <= 10_000)",
    replace: "price > 0",
    test: "test/services/Price.test.ts",
    title: "a price for one token"
  },
  {
    id: "M10",
    bug: "an output above its limit stops nothing",
    file: "src/services/Meter.ts",
    find: '        if (state.cap !== null && end.excess !== undefined) stop({ kind: "breach", message: end.excess })\n',
    replace: "",
    test: "test/programs/cap.test.ts",
    title: "I10: an output above its limit"
  },
  {
    id: "T1",
    bug: "a burst of 429s shrinks once for each",
    file: "src/services/Throttle.ts",
    find: " || grant <= before.shrunkAt",
    replace: "",
    test: "test/services/Throttle.test.ts",
    title: "shrinks by a quarter"
  },
  {
    id: "T2",
    bug: "a wish to wait is heard by nobody",
    file: "src/programs/Routes.ts",
    find: '} else meter.dispatch({ _tag: "Cool", until })',
    replace: "}",
    test: "test/programs/throttle.test.ts",
    title: "T14 429 storm"
  },
  {
    id: "T3",
    bug: "all go at once after a cool-down",
    file: "src/services/Throttle.ts",
    find: "state.probing ? 1 : ",
    replace: "",
    test: "test/cases/rate.test.ts",
    title: "B69"
  },
  {
    id: "T4",
    bug: "no pace",
    file: "src/services/Throttle.ts",
    find: "requests: paced(state.requests, 1, from),",
    replace: "requests: state.requests,",
    test: "test/programs/throttle.test.ts",
    title: "a run begins without"
  },
  {
    id: "T5",
    bug: "tokens are not paced",
    file: "src/services/Throttle.ts",
    find: "tokens: paced(state.tokens, call.tokens, from)",
    replace: "tokens: state.tokens",
    test: "test/programs/throttle.test.ts",
    title: "tokens a minute"
  },
  {
    id: "T6",
    bug: "retries are without number",
    file: "src/services/Throttle.ts",
    find: "state.retries >= 1 || inFlight === 0",
    replace: "state.retries >= 0 || inFlight === 0",
    test: "test/programs/throttle.test.ts",
    title: "half of all calls fail"
  },
  {
    id: "T7",
    bug: "a refused call uses up a try",
    file: "src/programs/Invoker.ts",
    find: "if (isRateLimited(error)) {",
    replace: 'if (isRateLimited(error) && error.scope !== "row") {',
    test: "test/programs/throttle.test.ts",
    title: "T14 429 storm"
  },
  {
    id: "T8",
    bug: "tries go on after the deadline",
    file: "src/programs/Invoker.ts",
    find: "if (counted) return tries.ownMs < options.retry.deadlineMs",
    replace: "if (counted) return true",
    test: "test/programs/fallback.test.ts",
    title: "no try begins after it"
  },
  {
    id: "T9",
    bug: "a very long wait is slept",
    file: "src/services/CircuitBreaker.ts",
    find: "    if (ms > options.outageMs) {",
    replace: "    if (ms < 0) {",
    test: "test/programs/throttle.test.ts",
    title: "T14 a wait of 30 years"
  },
  {
    id: "O2",
    bug: "an answer about another row is taken",
    file: "src/programs/RowLoop.ts",
    find: "    return said === id\n",
    replace: '    return said !== ""\n',
    test: "test/programs/fallback.test.ts",
    title: "that is about another row"
  },
  {
    id: "O3",
    bug: "an optional field goes out to strict mode",
    file: "src/services/StrictSchema.ts",
    find: "    if (!required.includes(name)) report(walk, at, optional)\n",
    replace: "",
    test: "test/programs/fallback.test.ts",
    title: "that strict mode cannot have"
  },
  {
    id: "F1",
    bug: "what a fallback answered is stored as the model's own",
    file: "src/programs/RowLoop.ts",
    find: 'record.kind === "done" && !facts.fallback && !facts.storeHit',
    replace: 'record.kind === "done" && !facts.storeHit',
    test: "test/programs/fallback.test.ts",
    title: "what another model answered is not stored"
  },
  {
    id: "F2",
    bug: "a fallback costs what the first model costs",
    file: "src/programs/Invoker.ts",
    find: "const price = yield* priceOf(request.model, priceFactor)",
    replace: 'const price = yield* priceOf("scripted", priceFactor)',
    test: "test/programs/fallback.test.ts",
    title: "a row that used up its tries goes"
  },
  {
    id: "R1",
    bug: "the lock is not looked at",
    file: "src/programs/Worker.ts",
    find: "if (!locked) return yield* busy",
    replace: "if (!locked && live.length === 0) return yield* busy",
    test: "test/programs/fencing.test.ts",
    title: "who finds the lock taken is told by whom"
  },
  {
    id: "R2",
    bug: "a worker that was taken over may still write",
    file: "src/services/Book.ts",
    find: "const book = group.live(op.fence)",
    replace: "const book = group.book(op.fence.runId)",
    test: "test/programs/fencing.test.ts",
    title: "no operation of a fenced worker changes anything"
  },
  {
    id: "R3",
    bug: "a late answer raises its call's charge",
    file: "src/services/Ledger.ts",
    find: 'correction.source === "late" && correction.cost > counted',
    replace: 'correction.source === "late" && correction.cost < 0',
    test: "test/programs/fencing.test.ts",
    title: "a late answer that costs more than its call counts at"
  },
  {
    id: "R4",
    bug: "a late answer is forgotten",
    file: "src/services/Meter.ts",
    find: '    journal.append({ _tag: "Correct", correction })\n',
    replace: "",
    test: "test/programs/fencing.test.ts",
    title: "a stale owner stops at once"
  },
  {
    id: "R5",
    bug: "an uncertain call is corrected twice",
    file: "src/services/Group.ts",
    find: "exact: (call) => void uncertain.delete(callId(call)),",
    replace: "exact: () => {},",
    test: "test/programs/fencing.test.ts",
    title: "what is learned of a call twice"
  },
  {
    id: "R6",
    bug: "a database that lost commits is taken for the truth",
    file: "src/services/Anchor.ts",
    find: "if (isWhole && commitSeq >= anchor.commitSeq && spent >= anchor.spent) return undefined",
    replace: "return undefined",
    test: "test/faults/damage.test.ts",
    title: "cut to 60 %"
  },
  {
    id: "R7",
    bug: "a flipped bit in a result is not seen",
    file: "src/layers/SqlTables.ts",
    find: "row.crc === null || num(row.crc) === checksum(...texts)",
    replace: "row.crc === null || num(row.crc) >= 0",
    test: "test/faults/damage.test.ts",
    title: "one bit flipped in each result"
  },
  {
    id: "R8",
    bug: "a resume makes tables where there are none",
    file: "src/layers/SqlVersions.ts",
    find: "if (present === 0 && !dialect.create) return yield* notOurs(dialect)",
    replace: "",
    test: "test/faults/damage.test.ts",
    title: "database emptied"
  },
  {
    id: "R9",
    bug: "a file that was taken away goes on being written",
    file: "src/layers/SqliteGuard.ts",
    find: "        return now?.ino === before\n",
    replace: "        return true\n",
    test: "test/faults/damage.test.ts",
    title: "taken away in mid-run"
  },
  {
    id: "R10",
    bug: "drift is not told by part",
    file: "src/services/Recipe.ts",
    find: "return parts.filter((_, i) => old[i] !== fresh[i])",
    replace: "return parts.filter(() => before !== now)",
    test: "test/programs/rerun.test.ts",
    title: "rows are counted by the part that changed"
  },
  {
    id: "R11",
    bug: "a refresh runs every touched row again",
    file: "src/programs/Refresh.ts",
    find: "was.right.key === asked.right.key) return untouched",
    replace: 'was.right.key === "") return untouched',
    test: "test/programs/rerun.test.ts",
    title: "applied: a resume asks the new and the changed rows"
  },
  {
    id: "R12",
    bug: "an older version shows the newest results",
    file: "src/programs/Report.ts",
    find: "return checkpoint.uptoCommitSeq",
    replace: "return checkpoint.uptoCommitSeq + 1_000",
    test: "test/programs/rerun.test.ts",
    title: "named rows and only they get a new epoch"
  },
  {
    id: "R13",
    bug: "a stall goes unseen",
    file: "src/programs/Stalls.ts",
    find: "late >= STALL_MS",
    replace: "late >= 60 * STALL_MS",
    test: "test/faults/stall.test.ts",
    title: "is reported with its length"
  },
  {
    id: "R14",
    bug: "two layers over a third are built at once",
    file: "src/layers/Memory.ts",
    find: "  Layer.provideMerge(Checkpointer.layer),\n",
    replace: "  (store) => Layer.merge(store, Checkpointer.layer),\n",
    test: "test/layers/bundles.test.ts",
    title: "memory: an interruption at any instant"
  },
  {
    id: "S1",
    bug: "a hold does not look whether the run is paused",
    file: "src/services/Ledger.ts",
    find: '  if (book.paused !== null) return refused("paused")\n',
    replace: "",
    test: "test/services/Orders.test.ts",
    title: "is refused while the run is paused"
  },
  {
    id: "S2",
    bug: "a raise does not end a stop for want of room",
    file: "src/services/Admission.ts",
    find: "stop: goesOn ? null : stop",
    replace: "stop",
    test: "test/programs/steering.test.ts",
    title: "memory a raise that comes with the last answer"
  },
  {
    id: "S3",
    bug: "a run is suspended over an order that it has not heard",
    file: "src/services/Book.ts",
    find: "heard !== undefined && heard < book.orders",
    replace: "heard !== undefined && heard < 0",
    test: "test/services/Book.test.ts",
    title: "waits for an order that its worker has not heard"
  },
  {
    id: "S4",
    bug: "a row that somebody else queued again is queued twice",
    file: "src/services/Orders.ts",
    find: "rows.filter(({ epoch, seq }) => group.epoch(book.runId, seq) === epoch)",
    replace: "rows",
    test: "test/services/Book.test.ts",
    title: "not where somebody else was first"
  },
  {
    id: "S5",
    bug: "more at once is not taken up while the run goes on",
    file: "src/programs/Passes.ts",
    find: "if (wanted > width) widen(wanted - width)",
    replace: "if (wanted > width) widen(0)",
    test: "test/programs/steering.test.ts",
    title: "memory more at once takes effect"
  },
  {
    id: "S6",
    bug: "a drain also stops who comes later",
    file: "src/programs/OrderWatch.ts",
    find: "let heard = claimed.orders",
    replace: "let heard = 0",
    test: "test/programs/steering.test.ts",
    title: "memory a drain stops who works on the run now"
  },
  {
    id: "S7",
    bug: "a cancelled run is begun again",
    file: "src/programs/RunRecord.ts",
    find: 'if (book?.status === "cancelled") return',
    replace: 'if (book?.status === "cancelled" && book.rows < 0) return',
    test: "test/programs/steering.test.ts",
    title: "memory a run that is cancelled ends"
  },
  {
    id: "S8",
    bug: "the receipt's digest knows who came first",
    file: "src/services/Digest.ts",
    find: "(digest + BigInt(",
    replace: "(digest * 31n + BigInt(",
    test: "test/programs/bill.test.ts",
    title: "has one digest for any order of settlement"
  },
  {
    id: "S9",
    bug: "the canary's pause does not hold the run",
    file: "src/programs/Canary.ts",
    find: "goesOn ? { _tag",
    replace: "goesOn || alarms.length > 0 ? { _tag",
    test: "test/programs/canaryRows.test.ts",
    title: "with a field with one value pauses the run"
  },
  {
    id: "S10",
    bug: "rows after the canary are not compared with it",
    file: "src/programs/Passes.ts",
    find: "const pause = comparison?.see(ended)",
    replace: "const pause = comparison && undefined",
    test: "test/programs/canaryRows.test.ts",
    title: "goes on being the measure"
  },
  {
    id: "S11",
    bug: "what a worker writes brings a cancelled run back",
    file: "src/services/Group.ts",
    find: 'status === "cancelled" ? { status, reason } : {}',
    replace: 'status === "done" ? { status, reason } : {}',
    test: "test/services/Orders.test.ts",
    title: "that was given up stays so, whatever its worker writes"
  },
  {
    id: "S12",
    bug: "a limit that was set lower just now ends the run",
    file: "src/services/Meter.ts",
    find: "const isNew = now !== undefined && (now.cap",
    replace: "const isNew = now === undefined && (now.cap",
    test: "test/programs/orderRaces.test.ts",
    title: "a cap that is lowered to where all rows fit ends nothing"
  },
  {
    id: "S13",
    bug: "the run's own flags stand above an order",
    file: "src/programs/Execution.ts",
    find: "Object.assign({}, limits, ...set.map(defined))",
    replace: "Object.assign({}, ...set.map(defined), limits)",
    test: "test/programs/orderRaces.test.ts",
    title: "a cap that is set while the rows are listed"
  },
  {
    id: "S14",
    bug: "an order that came after the book was read is taken for heard",
    file: "src/programs/OrderWatch.ts",
    find: "if (record.n > book.orders) break",
    replace: "if (record.n > book.orders + 9) break",
    test: "test/programs/orderRaces.test.ts",
    title: "a raise between the two reads of one look"
  },
  {
    id: "S15",
    bug: "a refresh writes over rows that were queued again",
    file: "src/programs/Refresh.ts",
    find: '_tag: "Refresh", fence, changes, heard }',
    replace: '_tag: "Refresh", fence, changes }',
    test: "test/programs/orderRaces.test.ts",
    title: "rows queued again while a refresh compares"
  },
  {
    id: "W1",
    bug: "what other runs of a pool hold is not counted",
    file: "src/services/Ledger.ts",
    find: "counted + pool.held <= pool.cap",
    replace: "counted <= pool.cap",
    test: "test/programs/pool.test.ts",
    title: "raised (SQLite, concurrency 8)"
  },
  {
    id: "W2",
    bug: "money that moves in a run's book does not move in its pool",
    file: "src/services/Group.ts",
    find: "if (shared !== undefined) writes.pools.set",
    replace: "if (shared === null) writes.pools.set",
    test: "test/programs/pool.test.ts",
    title: "raised (memory, concurrency 1)"
  },
  {
    id: "W3",
    bug: "a run gives up where calls of other runs hold the pool for a moment",
    file: "src/services/Ledger.ts",
    find: 'counted > pool.cap ? "pool" : "pool_busy"',
    replace: '"pool"',
    test: "test/programs/pool.test.ts",
    title: "raised (memory, concurrency 8)"
  }
]
