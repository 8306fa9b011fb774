/**
 * The command `plan`: what a run would do and may cost, before anything is sent. No database is touched.
 *
 * @since 0.1.0
 */
import { Args, Command, Options } from "@effect/cli"
import { Config, Console, Effect, Option } from "effect"
import { InputError } from "../services/Errors.ts"
import * as Profile from "../services/Profile.ts"
import { Usd } from "../services/Usd.ts"
import { configured, forNewRun } from "./CliFlags.ts"
import { sayError, setCode } from "./CliShared.ts"
import * as ExitCode from "./ExitCode.ts"
import * as JobFile from "./JobFile.ts"
import * as JobSettings from "./JobSettings.ts"
import * as Plan from "./Plan.ts"
import { count, money, oneLine } from "./ProgressLine.ts"

const flags = {
  job: Args.text({ name: "job" }).pipe(
    Args.withDescription("A module that default-exports Enrichment.make(…), .ts or .js")
  ),
  source: configured(
    Options.text("source").pipe(Options.withDescription("A .csv, .tsv or .jsonl file, or sqlite:<file>#<table>")),
    Config.string("source")
  ),
  query: Options.text("query").pipe(Options.withDescription("A select, with --source sqlite:<file>"), Options.optional),
  sample: Options.integer("sample").pipe(
    Options.withDescription("How many rows' tokens are counted, spread over the lengths of all (default 200)"),
    Options.withDefault(200)
  ),
  json: Options.boolean("json").pipe(Options.withDescription("One JSON object; money in nano-dollars")),
  budget: forNewRun.budget,
  concurrency: forNewRun.concurrency,
  llm: forNewRun.llm,
  model: forNewRun.model,
  rpm: forNewRun.rpm,
  tpm: forNewRun.tpm,
  profile: forNewRun.profile
}

/**
 * `longhaul plan`.
 *
 * @since 0.1.0
 */
export const command = Command.make("plan", flags, (given) =>
  Effect.gen(function* () {
    const llm = Option.getOrElse(given.llm, () => "openai" as const)
    const budget = yield* budgetOf(Option.getOrUndefined(given.budget))
    const loaded = yield* JobFile.load(given.job)
    const job = yield* JobSettings.overridden(loaded.job, {
      job: given.job,
      llm,
      source: Option.getOrUndefined(given.source),
      query: Option.getOrUndefined(given.query),
      model: Option.getOrUndefined(given.model)
    })
    const plan = yield* Plan.plan(job, {
      concurrency: Option.getOrElse(given.concurrency, () => 8),
      sample: given.sample,
      requestsPerMinute: Option.getOrUndefined(given.rpm),
      tokensPerMinute: Option.getOrUndefined(given.tpm),
      provider: llm === "openai" ? yield* serverOf(Option.getOrUndefined(given.profile)) : undefined
    })
    yield* Console.log(given.json ? jsonOf(plan, budget) : textOf(plan, budget))
    yield* setCode(plan.badRows === 0 ? ExitCode.DONE : ExitCode.BAD_INPUT)
  }).pipe(Effect.catchTag("RunRefused", (error) => Effect.zipRight(sayError(error), setCode(ExitCode.ofError(error)))))
).pipe(Command.withDescription("What a run would do and may cost, before anything is sent"))

const budgetOf = (dollars: number | undefined): Effect.Effect<Usd | undefined, InputError> => {
  const budget = dollars === undefined ? undefined : Usd.fromDollars(dollars)
  return dollars !== undefined && budget === undefined
    ? new InputError({ reason: "bad_option", message: `--budget must be an amount of dollars, not ${dollars}` })
    : Effect.succeed(budget)
}

/** The server that a run would ask, by its profile or address; no key is needed to know it. */
const serverOf = (name: Profile.Name | undefined): Effect.Effect<Profile.Profile> =>
  Effect.map(Effect.option(Config.string("OPENAI_BASE_URL")), (found) => {
    const url = Option.getOrElse(found, () => "").trim()
    if (name !== undefined) return Profile.profiles[name]
    return URL.canParse(url) ? Profile.forUrl(url) : Profile.profiles.openai
  })

/** What a prompt shows of itself: so many lines, and so many letters each. */
const MOST_LINES = 8
const LONGEST_LINE = 160

/** A row may hold anything, so nothing of a prompt reaches the terminal as it is. */
const promptText = (name: string, { id, line, messages, tokens }: Plan.Prompt): ReadonlyArray<string> => {
  const lines = messages.flatMap(({ content, role }) =>
    content.split(/\r\n|[\r\n\u2028\u2029]/).map((text, i) => `${i === 0 ? `${role}: ` : ""}${text}`)
  )
  const shown = lines.slice(0, MOST_LINES).map((text) => {
    const clean = oneLine(text)
    return `  ${clean.length < LONGEST_LINE ? clean : `${clean.slice(0, LONGEST_LINE)} …`}`
  })
  const more = lines.length > MOST_LINES ? [`  … ${count(lines.length - MOST_LINES)} more lines`] : []
  return [`${name} prompt: row ${oneLine(id)}, line ${count(line)}, about ${count(tokens)} tokens`, ...shown, ...more]
}

const textOf = (plan: Plan.Plan, budget: Usd | undefined): string => {
  const { badRows, bad, cost, filtered, inputTokens, largest, leastOutput, ms, outputLimit, prompts, rows, unasked } =
    plan
  const some = (n: number, what: string) => (n === 0 ? "" : `, ${count(n)} ${what}`)
  const asked = rows - unasked.rows
  return [
    `job ${oneLine(plan.job)} · model ${oneLine(plan.model)} · ${oneLine(plan.source)}`,
    `rows: ${count(rows)}${some(filtered, "left out by where")}${some(badRows, "bad")}${some(unasked.rows, "without a prompt")}`,
    ...bad.map((error) => `  ${oneLine(error.message)}`),
    ...(badRows > bad.length ? [`  and ${count(badRows - bad.length)} more`] : []),
    ...(badRows > 0 ? ["  a run refuses this source: mend these rows, or the job's row schema"] : []),
    ...(unasked.first === undefined ? [] : [`  they fail without a call; the first: ${oneLine(unasked.first)}`]),
    ...(prompts === undefined
      ? []
      : [
          ...promptText("shortest", prompts.short),
          ...promptText("median", prompts.median),
          ...promptText("longest", prompts.long)
        ]),
    ...(asked === 0
      ? ["nothing would be asked"]
      : [
          `input: ${between(inputTokens.low, inputTokens.high, tokenCount)} tokens, from ${count(plan.sampled)} of ${count(asked)} rows`,
          `answers: ${count(leastOutput)} to ${count(outputLimit)} tokens each: not known before a call is made`,
          `cost: ${between(cost.low, cost.high, (nano) => money(Usd.nano(nano)))}, from the shortest answers to answers of the whole output limit, one call a row`,
          `largest possible spend: ${money(largest.spend)}: ${largestText(largest)}`,
          "  outages, kills and rows run again can add to it; the budget bounds all of it",
          `budget: ${budgetText(plan, budget)}`,
          `time: ${between(ms.low, ms.high, duration)}, supposing ${Plan.assumed.slow.perSecond} to ${Plan.assumed.fast.perSecond} output tokens a second`
        ])
  ].join("\n")
}

const between = (low: number, high: number, shown: (n: number) => string): string =>
  shown(low) === shown(high) ? shown(low) : `${shown(low)} to ${shown(high)}`
const tokenCount = (n: number): string => count(Math.round(n))

const largestText = ({ call, models, tries, turns }: Plan.Largest): string => {
  const repairs = turns === 1 ? "no repair" : `${turns - 1} ${turns === 2 ? "repair" : "repairs"}`
  const where = models === 1 ? "" : ` on each of ${models} models`
  return `each row with ${repairs}, each question tried ${count(tries)} times${where}, each call at its hold (${money(call)} for the largest row's first)`
}

/** Which of the figures a budget covers. @since 0.1.0 */
export const budgetText = ({ cost, largest }: Pick<Plan.Plan, "cost" | "largest">, budget: Usd | undefined): string => {
  if (budget === undefined) return "none given: a run wants --budget, or --no-cap"
  const shown = money(budget)
  if (budget >= largest.spend) return `${shown} covers the largest possible spend`
  if (budget >= cost.high) return `${shown} covers the estimate, not the largest possible spend`
  if (budget >= cost.low) return `${shown} may not cover the estimate: that depends on how long the answers are`
  return `${shown} does not cover the estimate: the run would stop before its end, and could go on with more`
}

const duration = (ms: number): string => {
  const seconds = Math.ceil(ms / 1000)
  if (seconds < 90) return `${seconds} s`
  const minutes = Math.ceil(seconds / 60)
  return minutes < 120 ? `${minutes} min` : `${count(Math.floor(minutes / 60))} h ${minutes % 60} min`
}

const jsonOf = (plan: Plan.Plan, budget: Usd | undefined): string =>
  JSON.stringify(
    {
      ...plan,
      bad: plan.bad.map(({ field, file, fix, line, message, reason }) => ({ reason, file, line, field, message, fix })),
      budget: budget ?? null,
      covered:
        budget === undefined ? null : { estimate: budget >= plan.cost.high, largest: budget >= plan.largest.spend }
    },
    null,
    2
  )
