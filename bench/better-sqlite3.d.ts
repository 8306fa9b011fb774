/** The part of better-sqlite3 that the hand-written loops use; the package brings no types. */
declare module "better-sqlite3" {
  export interface Statement<Row> {
    run(...cells: ReadonlyArray<string | number | null>): unknown
    get(...cells: ReadonlyArray<string | number | null>): Row | undefined
    all(...cells: ReadonlyArray<string | number | null>): Array<Row>
  }
  export default class Database {
    constructor(filename: string)
    prepare<Row = unknown>(sql: string): Statement<Row>
    pragma(text: string): unknown
    close(): void
  }
}
