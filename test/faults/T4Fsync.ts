/** T4: each hold is on the disk before it is acknowledged: a hundred, one after the other, are at least a hundred fsyncs. */
import { Effect } from "effect"
import { type Fault, makeChecks } from "./fault.ts"
import { ACKS, type Recording, record } from "./recording.ts"

const HOLDS = 100

/** The syncs of the database's files between the claim of the run and the last acknowledgement. */
const syncsOf = ({ entries }: Recording): number => {
  const isAck = entries.map(({ file }) => file === ACKS)
  const during = entries.slice(isAck.indexOf(true), isAck.lastIndexOf(true))
  return during.filter(({ kind }) => kind === "s").length
}

const work = { rows: HOLDS, concurrency: 1, settles: false }

export const fsync: Fault = {
  id: "T4",
  name: "fsync guard",
  needs: ["gcc"],
  run: Effect.gen(function* () {
    const { broken, check } = makeChecks()
    const ours = yield* record(work)
    const normal = yield* record({ ...work, synchronous: "normal" })
    const [syncs, few] = [syncsOf(ours), syncsOf(normal)]
    check(`${syncs} fsyncs >= ${HOLDS} holds`, syncs >= HOLDS)
    // 2 is FULL; SQLite's own default for a WAL file that is opened again is 1, NORMAL.
    check(`pragma synchronous is ${ours.synchronous} after a write, 2 wanted`, ours.synchronous === "2")
    check(
      `control: ${few} fsyncs with NORMAL, pragma ${normal.synchronous}`,
      few < HOLDS / 10 && normal.synchronous === "1"
    )
    const figure = `${HOLDS} holds: ${syncs} fsyncs, synchronous ${ours.synchronous}`
    return { figure, control: `NORMAL: ${few} fsyncs`, broken }
  })
}
