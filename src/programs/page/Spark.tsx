/**
 * Throughput over the last minutes, as a small picture.
 *
 * @since 0.1.0
 */
import { rate, span } from "./Format.ts"
import { type Sample, throughput } from "./RunState.ts"

const WIDTH = 600
const HEIGHT = 120

/** @since 0.1.0 */
export const Spark = ({ samples }: { readonly samples: ReadonlyArray<Sample> }) => {
  const points = throughput(samples)
  const first = points[0]
  const last = points.at(-1)
  if (first === undefined || last === undefined || points.length < 3) {
    return <p class="spark-none">Drawn once some seconds were seen.</p>
  }
  const most = Math.max(...points.map((point) => point.rate))
  const top = niceAbove(most)
  const x = (at: number) => ((at - first.at) / Math.max(1, last.at - first.at)) * WIDTH
  const y = (value: number) => HEIGHT - (value / top) * HEIGHT
  const path = points
    .map((point, i) => `${i === 0 ? "M" : "L"}${x(point.at).toFixed(1)} ${y(point.rate).toFixed(1)}`)
    .join("")
  const seen = span(Math.round((last.at - first.at) / 1_000))
  return (
    <figure class="spark">
      <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img">
        <title>{`Rows a second over the last ${seen}: now ${rate(last.rate)}, at most ${rate(most)}`}</title>
        <path class="grid" d={`M0 .5H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}`} />
        <path class="area" d={`${path}L${WIDTH} ${HEIGHT}L0 ${HEIGHT}Z`} />
        <path class="stroke" d={path} />
      </svg>
      <span class="spark-top" aria-hidden="true">
        {top}
      </span>
      <figcaption>
        <span>{seen} ago</span>
        <span>now</span>
      </figcaption>
    </figure>
  )
}

/** 1, 2 or 5 times a power of ten. */
const niceAbove = (value: number): number => {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 0.1)))
  const step = [1, 2, 5, 10].find((times) => times * power >= value) ?? 10
  return Number((step * power).toPrecision(2))
}
