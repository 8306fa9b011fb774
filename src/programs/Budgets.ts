/**
 * The namespace `Budget` as users see it: the budget of a run, and `within`, a budget around a program written by hand: every agent inside is metered by one book
 * and one cap.
 *
 * @example
 * import { Effect } from "effect"
 * import { Agent, Budget, LLMSimulated, Memory } from "longhaul"
 * import { Schema } from "effect"
 * const agent = Agent.make({ name: "a", model: "simulated", prompt: (name: string) => name, output: Schema.Struct({ summary: Schema.String }) })
 * const program = Effect.forEach(["Acme", "Initech"], (name) => agent.run(name), { concurrency: 8 }).pipe(
 *   Budget.within({ runId: "two-names", maxCostUsd: 1 }),
 *   Effect.provide([Memory.layer, LLMSimulated.layer()])
 * )
 *
 * @since 0.1.0
 */
import { Clock, Effect } from "effect"
import * as Budget from "../services/Budget.ts"
import * as CircuitBreaker from "../services/CircuitBreaker.ts"
import { Journal } from "../services/Journal.ts"
import { LLM } from "../services/LLM.ts"
import * as Meter from "../services/Meter.ts"
import * as Price from "../services/Price.ts"
import * as Retry from "../services/Retry.ts"
import * as Tokenizer from "../services/Tokenizer.ts"
import * as Invoker from "./Invoker.ts"
import * as OrderWatch from "./OrderWatch.ts"
import * as Routes from "./Routes.ts"
import * as RunRecord from "./RunRecord.ts"

export { Budget, type BudgetOptions, type BudgetShape, layer, make, type Reading } from "../services/Budget.ts"

/**
 * Runs the program under a cap. What it spends is in the book under `runId`: the same id again goes on with what is left. When the cap stops it, its agents fail
 * with `RunStopped`.
 *
 * @since 0.1.0
 */
export const within =
  (
    options: Budget.BudgetOptions & {
      readonly runId: string
      readonly retry?: Retry.RetryPolicy
      readonly graceMs?: number
      readonly acceptLoss?: boolean
    }
  ) =>
  <A, E, R>(program: Effect.Effect<A, E, R>) =>
    Effect.scoped(
      Effect.gen(function* () {
        const [journal, llm] = yield* Effect.all([Journal, LLM])
        const { runId } = options
        const now = yield* Clock.currentTimeMillis
        const budget = Budget.make(options)
        const limits = yield* budget.limits
        const { book, fence, lost } = yield* RunRecord.open(journal, {
          fresh: { runId, job: "within", scope: runId, status: "running", source: "{}", createdAt: now, chunkSize: 1 },
          limits,
          pool: yield* budget.pool,
          acceptLoss: options.acceptLoss
        })
        yield* journal.commit({ _tag: "Limits", fence, limits })
        const meter = Meter.make({ journal, book, fence, clock: yield* Effect.clock, adaptive: budget.adaptive })
        yield* Effect.forkScoped(Effect.zipRight(lost, Effect.sync(meter.fenced)))
        yield* OrderWatch.make({ journal, fence, meter, book }).watch(() => {})
        const routes = yield* Routes.make(llm, [], yield* CircuitBreaker.Breaker, meter.now)
        const invoker = Invoker.make({
          routes,
          switch: yield* Routes.watch(routes, meter, { provider: () => {}, left: () => {} }),
          meter,
          tokenizer: yield* Tokenizer.Tokenizer,
          prices: yield* Price.Price,
          now,
          retry: options.retry ?? Retry.standard,
          memo: 0,
          openCalls: [],
          reused: new Map(),
          spans: false
        })
        const metered = Effect.provideService(program, Invoker.Invoker, invoker)
        return yield* Effect.ensuring(
          Meter.drained(meter, options.graceMs ?? 10_000, metered),
          Effect.ignore(journal.flush)
        )
      })
    )
