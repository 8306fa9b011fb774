/**
 * A small deterministic graph of steps. Nodes whose `after` is done run together, as a wave, and are committed in node order. A node sees the
 * outputs that it names in `after` and no others: those are there. A graph has no other input: close over it.
 *
 * @example
 * import { Effect } from "effect"
 * import { Workflow } from "longhaul"
 * const count = Workflow.make({ name: "count" })
 *   .fn("load_rows", () => Effect.succeed(["a", "b"]))
 *   .fn("count", (outputs) => Effect.succeed(outputs.load_rows.length), { after: "load_rows" })
 * const result = count.run() // outputs: { load_rows, count }, steps: 2, stopReason: "complete"
 *
 * @since 0.1.0
 */
import { Data, Effect, Option, Schema } from "effect"
import { deepFreeze, frozen } from "../services/Freeze.ts"
import * as ToolCall from "../services/ToolCall.ts"
import * as Usage from "../services/Usage.ts"
import type { Gather } from "./FanOut.ts"

/**
 * A graph that cannot be trusted. `arity`: a wave gave back other results than its nodes'. `duplicate`: two nodes of one name.
 *
 * @since 0.1.0
 */
export class WorkflowError extends Schema.TaggedError<WorkflowError>()("WorkflowError", {
  reason: Schema.Literal("arity", "duplicate"),
  message: Schema.String
}) {}

/** Why a workflow waits, and for which tool calls. Deeply frozen, and so is the value that a snapshot gives back. @since 0.1.0 */
export const Suspended = frozen(
  Schema.TaggedStruct("Suspended", { reason: Schema.String, pending: Schema.Array(ToolCall.ToolCall) })
)
/** @since 0.1.0 */
export type Suspended = typeof Suspended.Type

interface Totals {
  readonly usage: Usage.Usage
  readonly steps: number
  readonly suspended: Option.Option<Suspended>
}

/** @since 0.1.0 */
export interface Complete<O> extends Totals {
  readonly stopReason: "complete"
  readonly outputs: O
}

/** @since 0.1.0 */
export interface Stopped<O> extends Totals {
  readonly stopReason: "suspended" | "max_steps" | "deadlock"
  readonly outputs: Done<O>
}

/**
 * What a run gave, frozen. `usage` and `steps` (node runs; a sub-workflow is one) are of this run alone. `complete`: every node is done. `suspended`:
 * a node waits. `max_steps`: a node would run more than `maxSteps` times. `deadlock`: the nodes that are left can never start.
 *
 * @since 0.1.0
 */
export type WorkflowResult<O> = Complete<O> | Stopped<O>

/**
 * The outputs of the nodes that are done, and what a sub-workflow that stopped had given by then. `resume` goes on from them.
 *
 * @since 0.1.0
 */
export type Done<O> = { readonly [K in keyof O]?: O[K] extends Complete<infer S> ? WorkflowResult<S> : O[K] }

/**
 * What a node gives back to end the run as `suspended` with its output left open. The rest of its wave finishes. Of two that suspend, the first in
 * node order is reported, the other runs again after `resume`.
 *
 * @since 0.1.0
 */
export const suspend = (parts: Omit<Suspended, "_tag">): Suspend =>
  new Suspend({ suspended: deepFreeze({ _tag: "Suspended", ...parts, pending: parts.pending.map(ToolCall.make) }) })
/** @since 0.1.0 */
export class Suspend extends Data.Class<{ readonly suspended: Suspended }> {}

/** What a node gives back if its work cost something: the usage is added to the result's. @since 0.1.0 */
export const withUsage = <A>(value: A, usage: Usage.Usage): WithUsage<A> => new WithUsage({ value, usage })
/** @since 0.1.0 */
export class WithUsage<out A> extends Data.Class<{ readonly value: A; readonly usage: Usage.Usage }> {}

/** The output of a node whose function gives back `B`. @since 0.1.0 */
export type Output<B> = B extends Suspend ? never : B extends WithUsage<infer A> ? Exclude<A, Suspend> : B

/**
 * A sub-workflow: a workflow, or what runs like one. Without `resume` it starts anew when the outer graph is resumed.
 *
 * @since 0.1.0
 */
export interface Sub<in Outputs, O, out E, out R> {
  readonly run: (outputs: Outputs) => Effect.Effect<WorkflowResult<O>, E, R>
  readonly resume?: (done: Done<O>, outputs: Outputs) => Effect.Effect<WorkflowResult<O>, E, R>
}

type With<Out, Name extends string, A> = { readonly [K in keyof Out | Name]: K extends keyof Out ? Out[K] : A }
type After<K> = { readonly after?: K | ReadonlyArray<K> }

/** A graph, frozen: each builder call gives a new one, whose type knows one output more. @since 0.1.0 */
export interface Workflow<Out, E, R> {
  readonly name: string
  /** A node made of a function. It runs again, in the next wave, while `repeatWhile` is true of its output. */
  readonly fn: <Name extends string, B, E2, R2, K extends keyof Out & string = never>(
    name: Name,
    run: (outputs: Pick<Out, K>) => Effect.Effect<B, E2, R2>,
    options?: After<K> & { readonly repeatWhile?: (output: Output<B>, outputs: Pick<Out, K>) => boolean }
  ) => Workflow<With<Out, Name, Output<B>>, E | E2, R | R2>
  /** A node made of another graph: its output is that one's complete result. If that one stops, this one stops for the same reason. */
  readonly subworkflow: <Name extends string, O, E2, R2, K extends keyof Out & string = never>(
    name: Name,
    sub: Sub<Pick<Out, K>, O, E2, R2>,
    options?: After<K>
  ) => Workflow<With<Out, Name, Complete<O>>, E | E2, R | R2>
  /** Runs the graph. The first node that fails interrupts its wave and is the error. */
  readonly run: () => Effect.Effect<WorkflowResult<Out>, E | WorkflowError, R>
  /** Runs what is not done. A node that waits is answered by giving its output here. */
  readonly resume: (done: Done<Out>) => Effect.Effect<WorkflowResult<Out>, E | WorkflowError, R>
}

/**
 * An empty graph. `maxSteps` (default 1) bounds the runs of any one node: 1 is right unless one repeats. `gather` runs a wave, by default all of it at
 * once. The type argument is for a graph built from data, whose names no type knows: `make<Record<string, unknown>>`.
 *
 * @since 0.1.0
 */
export const make = <Out = {}>(options: Options): Workflow<Out, never, never> =>
  build({ maxSteps: 1, gather: together, ...options, nodes: [] })

type Options = { readonly name: string; readonly maxSteps?: number; readonly gather?: Gather }
type Graph<E, R> = Required<Options> & { readonly nodes: ReadonlyArray<Node<E, R>> }
type Outputs = Readonly<Record<string, unknown>>
type Stop = Pick<Stopped<unknown>, "stopReason" | "suspended">

/** One run of a node; `output` is what to keep of it. */
type Ran = { readonly node: string; readonly usage: Usage.Usage; readonly output: Outputs; readonly stop?: Stop }

interface Node<out E, out R> {
  readonly name: string
  readonly after: ReadonlyArray<string>
  // Methods are compared loosely, so nodes of any type fit one list. It is sound: a node starts when its `after` is done and is given just that
  run(outputs: Outputs, previous: unknown): Effect.Effect<Ran, E, R>
  isDone(output: unknown): boolean
}

const build = <Out, E, R>(graph: Graph<E, R>): Workflow<Out, E, R> =>
  Object.freeze<Workflow<Out, E, R>>({
    name: graph.name,
    fn: (name, run, options) => build(append(graph, fnNode(name, run, options))),
    subworkflow: (name, sub, options) => build(append(graph, subNode(name, sub, options))),
    run: () => execute<Out, E, R>(graph, {}),
    resume: (done) => execute<Out, E, R>(graph, done)
  })

const append = <E, R, E2, R2>(graph: Graph<E, R>, node: Node<E2, R2>): Graph<E | E2, R | R2> => ({
  ...graph,
  nodes: [...graph.nodes, node]
})

const fnNode = <O extends Outputs, E, R>(
  node: string,
  run: (outputs: O) => Effect.Effect<unknown, E, R>,
  options?: After<string> & { repeatWhile?(output: unknown, outputs: O): boolean }
): Node<E, R> => ({
  name: node,
  after: [options?.after ?? []].flat(),
  isDone: () => true,
  run: (outputs: O) =>
    Effect.map(run(outputs), (given): Ran => {
      const value: unknown = given instanceof WithUsage ? given.value : given
      const usage = given instanceof WithUsage ? given.usage : Usage.zero
      if (value instanceof Suspend) return { node, usage, output: {}, stop: waiting(value.suspended) }
      return { node, usage, output: options?.repeatWhile?.(value, outputs) ? {} : { [node]: value } }
    })
})

const waiting = (suspended: Suspended): Stop => ({ stopReason: "suspended", suspended: Option.some(suspended) })

const subNode = <O extends Outputs, S, E, R>(
  node: string,
  sub: Sub<O, S, E, R>,
  options?: After<string>
): Node<E, R> => ({
  name: node,
  after: [options?.after ?? []].flat(),
  isDone: (result: WorkflowResult<S>) => result.stopReason === "complete",
  run: (outputs: O, previous: Stopped<S> | undefined) =>
    Effect.map(sub.resume && previous ? sub.resume(previous.outputs, outputs) : sub.run(outputs), (result): Ran => {
      const ran: Ran = { node, usage: result.usage, output: { [node]: result } }
      return result.stopReason === "complete" ? ran : { ...ran, stop: result }
    })
})

const execute = Effect.fnUntraced(function* <Out, E, R>(graph: Graph<E, R>, done: Done<Out>) {
  if (new Set(graph.nodes.map((node) => node.name)).size < graph.nodes.length) {
    return yield* refused("duplicate", `${graph.name}: two nodes have one name`)
  }
  const runs: Array<string> = []
  let outputs: Done<Out> = { ...done }
  let usage = Usage.zero
  const stopped = (stopReason: Stop["stopReason"], suspended = Option.none<Suspended>()): WorkflowResult<Out> =>
    Object.freeze({ stopReason, outputs: Object.freeze(outputs), usage, steps: runs.length, suspended })
  while (!isComplete<Out>(graph, outputs)) {
    const wave = ready(graph, outputs)
    if (wave.length === 0) return stopped("deadlock")
    if (!wave.every((node) => runs.filter((name) => name === node.name).length < graph.maxSteps))
      return stopped("max_steps")
    const ran = yield* runWave(graph, wave, outputs)
    runs.push(...ran.map((one) => one.node))
    usage = Usage.add(usage, Usage.sum(ran.map((one) => one.usage)))
    outputs = { ...outputs, ...Object.fromEntries(ran.flatMap((one) => Object.entries(one.output))) }
    const stops = ran.flatMap((one) => one.stop ?? [])
    // a suspension goes first: it holds what somebody must answer
    const stop = stops.find((one) => one.stopReason === "suspended") ?? stops[0]
    if (stop !== undefined) return stopped(stop.stopReason, stop.suspended)
  }
  Object.freeze(outputs)
  const totals = { usage, steps: runs.length, suspended: Option.none<Suspended>() }
  return Object.freeze<WorkflowResult<Out>>({ stopReason: "complete", outputs, ...totals })
})

/** Results must be one of each node, in order: a gather that loses one would lose a node's work without a word. */
const runWave = <E, R>(graph: Graph<E, R>, wave: ReadonlyArray<Node<E, R>>, outputs: Outputs) => {
  const given = (node: Node<E, R>) => Object.freeze(Object.fromEntries(node.after.map((name) => [name, outputs[name]])))
  const runs = wave.map((node) => Effect.suspend(() => node.run(given(node), outputs[node.name])))
  return Effect.filterOrFail(
    graph.gather(runs, "unbounded"),
    (ran) => ran.length === wave.length && ran.every((one, index) => one.node === wave[index]?.name),
    (ran) => refused("arity", `${graph.name}: ${wave.length} nodes, ${ran.length} results`)
  )
}

const isDone = (node: Node<unknown, unknown>, outputs: Outputs) =>
  Object.hasOwn(outputs, node.name) && node.isDone(outputs[node.name])

const isComplete = <Out>(graph: Graph<unknown, unknown>, outputs: Outputs): outputs is Out & Outputs =>
  graph.nodes.every((node) => isDone(node, outputs))

const ready = <E, R>(graph: Graph<E, R>, outputs: Outputs) => {
  const done = new Set(graph.nodes.filter((node) => isDone(node, outputs)).map((node) => node.name))
  return graph.nodes.filter((node) => !done.has(node.name) && node.after.every((name) => done.has(name)))
}

const refused = (reason: WorkflowError["reason"], message: string) => new WorkflowError({ reason, message })

/** One node runs by itself: an interruption at the instant at which concurrent effects are begun can be lost (effect 3.22). */
const together: Gather = (wave, concurrency) => Effect.all(wave, wave.length === 1 ? {} : { concurrency })
