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

export const bugs: ReadonlyArray<Bug> = []
