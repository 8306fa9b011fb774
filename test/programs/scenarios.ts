/**
 * What a run asks again and what it does not: the twelve scenarios of identity with the calls that each may cost. The test plays them, and docs/scenarios.md is
 * written from them.
 */

/** `calls`: for each choice the calls after what happened, with runs of `ROWS` rows; `refused`: nothing is sent before the operator has chosen. */
export interface Scenario {
  readonly name: string
  readonly happens: string
  readonly calls: ReadonlyArray<readonly [choice: string, calls: number | "refused"]>
  readonly why: string
}

/** How many rows each run has, unless the scenario says otherwise. */
export const ROWS = 4

export const scenarios = [
  {
    name: "crash after the answer",
    happens:
      "The process dies when the last row's answer is settled and its outcome is not yet written; the run is resumed.",
    calls: [["resume", 0]],
    why: "A call is paid for exactly when its answer is in the book: the same turn with the same request gets that answer."
  },
  {
    name: "crash before the repair",
    happens:
      "The last row's answer does not fit the schema; the process dies before the repair is asked; the run is resumed.",
    calls: [["resume", 1]],
    why: "The answer is read again from the book, so that only the repair is left to ask."
  },
  {
    name: "partial rows again",
    happens:
      "Two rows of four ended as partial (their text could not be read, even after the repair); the run is called again.",
    calls: [
      ["no choice", 0],
      ['retry: "partial"', 2]
    ],
    why: "A partial row is an end. A re-run is a new epoch: it asks anew and does not read the old answers."
  },
  {
    name: "failed rows again",
    happens: "Two rows of four failed for good; the run is called again.",
    calls: [
      ["no choice", 0],
      ['retry: "failed"', 2]
    ],
    why: "A permanent error is tried again only when the operator asks for it. Rows that are done are not touched."
  },
  {
    name: "prompt changed",
    happens: "One word of the prompt is another; the finished run is called again.",
    calls: [
      ["no choice", "refused"],
      ['onDrift: "keep"', 0],
      ['onDrift: "rerun"', 4]
    ],
    why: "Each row's request is rendered and compared with the one that it was done with; the refusal says how many differ."
  },
  {
    name: "schema changed on the decode side only",
    happens:
      "A filter is added to the output schema, which the provider is not told of; the finished run is called again.",
    calls: [
      ["no choice", "refused"],
      ['onDrift: "keep"', 0],
      ['onDrift: "rerun"', 0],
      ['onDrift: "rerun", a crash in the midst of it, resume', 0]
    ],
    why: "The question is the same, only its reading is not: the paid answers are read again from the book."
  },
  {
    name: "model changed",
    happens: "The agent gets another model; the finished run is called again.",
    calls: [
      ["no choice", "refused"],
      ['onDrift: "keep"', 0],
      ['onDrift: "rerun"', 4]
    ],
    why: "The model is part of the request."
  },
  {
    name: "equal rows",
    happens: "A run of two rows with different ids and equal content.",
    calls: [
      ["memo: 0", 2],
      ["memo: 10", 1]
    ],
    why: "Two rows are two results, by their ids. The memo, off unless asked for, answers equal requests of one run once."
  },
  {
    name: "id with a new version",
    happens: "A later run over the same rows, of which one has a new version and is otherwise equal.",
    calls: [["run", 1]],
    why: "The version is part of the key: the operator says by it that the row is another one."
  },
  {
    name: "no version function",
    happens:
      "A later run of a job that names no version, over the same rows, of which one has other content or none has.",
    calls: [
      ["one row changed", 1],
      ["no row changed", 0]
    ],
    why: "Without a version the hash of the row's own fields is its version."
  },
  {
    name: "second run of the week",
    happens: "A later run, with another run id, over the same rows in the same database.",
    calls: [
      ["same scope", 0],
      ["another scope", 4]
    ],
    why: "A stored result is shared over the scope, which is the job's name unless set, and not over the run."
  },
  {
    name: "output mode changed",
    happens: "The agent asks for any JSON object instead of one held to the schema; the finished run is called again.",
    calls: [
      ["no choice", "refused"],
      ['onDrift: "keep"', 0],
      ['onDrift: "rerun"', 4]
    ],
    why: "The mode is part of the request, and so is the schema that now stands in the prompt."
  }
] as const satisfies ReadonlyArray<Scenario>

export type Name = (typeof scenarios)[number]["name"]

/** The text of docs/scenarios.md. */
export const toMarkdown = (all: ReadonlyArray<Scenario> = scenarios): string => {
  const lines = all.flatMap(({ calls, happens, name, why }, i) =>
    calls.map(([choice, expected], j) => {
      const cells = j === 0 ? [`${i + 1}`, `**${name}.** ${happens}`] : ["", ""]
      return `| ${[...cells, choiceText(choice), expected, j === 0 ? why : ""].join(" | ")} |`
    })
  )
  return `# What is asked again, and what is not

Written from \`test/programs/scenarios.ts\`; the test beside it plays each line. A run has ${ROWS} rows unless it says otherwise; *calls* are those after what happened.

| # | what happens | choice | calls | why |
| --- | --- | --- | --- | --- |
${lines.join("\n")}
`
}

const choiceText = (choice: string): string => (choice.includes(":") ? `\`${choice}\`` : choice)
