/**
 * The parts of the page that need no browser: its words and numbers are the command's, and its events are read whatever the pieces.
 */
import { assert, describe, it } from "@effect/vitest"
import { FastCheck as fc } from "effect"
import * as ProgressLine from "../../src/programs/ProgressLine.ts"
import { parser, type ServerEvent } from "../../src/programs/page/EventStream.ts"
import * as Format from "../../src/programs/page/Format.ts"
import { inFlightMs, throughput } from "../../src/programs/page/RunState.ts"
import { Usd } from "../../src/services/Usd.ts"

const amount = fc.oneof(fc.maxSafeNat(), fc.nat(20_000_000), fc.nat(2_000_000_000))

describe("numbers of the page", () => {
  it("are the command's", () => {
    fc.assert(
      fc.property(amount, (n) => {
        assert.strictEqual(Format.money(n), ProgressLine.money(Usd.nano(n)))
        assert.strictEqual(Format.count(n), ProgressLine.count(n))
      })
    )
  })

  it("of a bill have every digit", () => {
    fc.assert(
      fc.property(amount, (n) => {
        const [whole = "", rest = ""] = Format.exact(n).slice(1).replaceAll(",", "").split(".")
        assert.strictEqual(BigInt(whole) * 1_000_000_000n + BigInt(rest.padEnd(9, "0")), BigInt(n))
        assert.isAtLeast(rest.length, 2)
      })
    )
  })

  it("of a form are read back as the same amount", () => {
    fc.assert(
      fc.property(fc.nat(2_000_000_000), (n) =>
        assert.strictEqual(Usd.fromDollars(Number(Format.dollars(n))), Usd.nano(n))
      )
    )
  })

  it("never round a part up to all", () => {
    assert.strictEqual(Format.percent(9_999_999, 10_000_000), "99.9 %")
    assert.strictEqual(Format.percent(7, 7), "100.0 %")
  })
})

describe("server-sent events", () => {
  const word = fc.stringMatching(/^[a-zA-Z]{1,8}$/)
  const event = fc.record({ id: fc.oneof(fc.constant(""), fc.nat().map(String)), name: word, data: fc.json() })
  const written = ({ data, id, name }: ServerEvent) =>
    `${id === "" ? "" : `id: ${id}\n`}event: ${name}\ndata: ${data}\n\n`

  it("are read whatever the pieces, the line ends and the signs of life between them", () => {
    fc.assert(
      fc.property(
        fc.array(event),
        fc.infiniteStream(fc.integer({ min: 1, max: 9 })),
        fc.boolean(),
        (events, sizes, crlf) => {
          const text = `: alive\n\n${events.map(written).join(": alive\n\n")}`
          let rest = crlf ? text.replaceAll("\n", "\r\n") : text
          const parse = parser()
          const found: Array<ServerEvent> = []
          while (rest !== "") {
            const size = sizes.next().value
            found.push(...parse(rest.slice(0, size)))
            rest = rest.slice(size)
          }
          assert.deepStrictEqual(found, events)
        }
      )
    )
  })
})

describe("what a followed run says of itself", () => {
  /** Eight calls in flight, four rows a second. */
  const steady = Array.from({ length: 40 }, (_, i) => ({ at: i * 1_000, ended: i * 4, working: 8, isRunning: true }))

  it("is rows a second, each over some seconds", () => {
    assert.deepStrictEqual(
      throughput(steady).map((point) => point.rate),
      Array.from({ length: 35 }, () => 4)
    )
  })

  it("is the time in flight: calls by rows a second; nothing of a run that was paused, or of a few looks", () => {
    assert.strictEqual(inFlightMs(steady), 2_000)
    assert.isUndefined(inFlightMs(steady.slice(0, 9)))
    assert.isUndefined(inFlightMs(steady.map((sample, i) => ({ ...sample, isRunning: i !== 20 }))))
  })
})
