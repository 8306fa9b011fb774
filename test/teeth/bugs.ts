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
    file: "src/services/Book.ts",
    find: "      versions.set(id, next)\n",
    replace: "",
    test: "test/laws/Checkpointer.test.ts",
    title: "I9: concurrent snapshots of one id get distinct, gap-free versions (50"
  },
  {
    id: "I10",
    bug: "open holds do not count against the cap",
    file: "src/services/Book.ts",
    find: "book.spent + book.uncertain + book.held + amount > book.cap",
    replace: "book.spent + book.uncertain + amount > book.cap",
    test: "test/laws/Journal.test.ts",
    title: "I10: concurrent charges and holds serialise"
  },
  {
    id: "I11",
    bug: "a PERMANENT error is tried again",
    file: "src/services/Retry.ts",
    find: ',\n    Schedule.whileInput((error: LLMError) => error.category !== "PERMANENT")',
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
    find: 'error.category !== "PERMANENT" && error.reason',
    replace: "error.reason",
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
    find: "let state = start(book)",
    replace: "let state = start({ ...book, spent: Usd.nano(0) })",
    test: "test/programs/Budget.test.ts",
    title: "I18: "
  },
  {
    id: "I19",
    bug: "an interrupted row is recorded as failed",
    file: "src/programs/RowLoop.ts",
    find: "      settle(row, key, exit)\n    )\n",
    replace:
      '      settle(row, key, exit)\n    ).pipe(\n      Effect.onInterrupt(() => finish(row, key, Either.left(Failure.fromUnknown("interrupted")), noFacts))\n    )\n',
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
    file: "src/services/Book.ts",
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
    find: "const cost = Price.cost(price, end.usage)",
    replace: "const cost = Usd.nano(Price.cost(price, end.usage) + (record.n % 7))",
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
    find: "        if (cost > amount) stop(breach(cost, amount))\n",
    replace: "",
    test: "test/programs/cap.test.ts",
    title: "above its hold"
  },
  {
    id: "I10",
    bug: "the provider is called before the hold",
    file: "src/programs/Invoker.ts",
    find: "        () => physical(request),\n",
    replace: "        ((early) => () => early)(physical(request)),\n",
    test: "test/programs/cap.test.ts",
    title: "I10: a provider is not even called before its hold stands"
  },
  {
    id: "I10",
    bug: "a claim that came too late gives the winner's back",
    file: "src/programs/Worker.ts",
    find: '      (verdict) =>\n        verdict._tag === "Ok"\n          ? Effect.ensuring(',
    replace: "      () =>\n        fence.worker > 0\n          ? Effect.ensuring(",
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
  }
]
