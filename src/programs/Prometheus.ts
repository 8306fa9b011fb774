/**
 * What Effect's metrics say, in Prometheus' text format (https://prometheus.io/docs/instrumenting/exposition_formats/).
 *
 * @since 0.1.0
 */
import { Effect, HashSet, Metric, MetricKeyType, type MetricPair, MetricState } from "effect"

/**
 * Every metric of this process, as text.
 *
 * @since 0.1.0
 */
export const text: Effect.Effect<string> = Effect.map(Metric.snapshot, (pairs) => {
  const lines = new Map<string, Array<string>>()
  for (const pair of pairs) {
    const name = nameOf(pair.metricKey.name)
    const known = lines.get(name) ?? headOf(name, pair)
    known.push(...samplesOf(name, pair))
    lines.set(name, known)
  }
  return `${[...lines.values()].flat().join("\n")}\n`
})

const nameOf = (name: string) => name.replaceAll(/[^a-zA-Z0-9_:]/g, "_")

const headOf = (name: string, { metricKey: { description, keyType } }: MetricPair.MetricPair.Untyped) => {
  const type = MetricKeyType.isHistogramKey(keyType)
    ? "histogram"
    : MetricKeyType.isCounterKey(keyType)
      ? "counter"
      : "gauge"
  const help = description._tag === "Some" ? [`# HELP ${name} ${escape(description.value)}`] : []
  return [...help, `# TYPE ${name} ${type}`]
}

const samplesOf = (name: string, { metricKey, metricState }: MetricPair.MetricPair.Untyped): ReadonlyArray<string> => {
  const labels = [...HashSet.values(HashSet.fromIterable(metricKey.tags))].map(
    ({ key, value }) => `${nameOf(key)}="${escape(value).replaceAll('"', '\\"')}"`
  )
  const sample = (suffix: string, value: number | bigint, ...more: ReadonlyArray<string>) => {
    const all = [...labels, ...more]
    return `${name}${suffix}${all.length === 0 ? "" : `{${all.join(",")}}`} ${value}`
  }
  if (MetricState.isCounterState(metricState)) return [sample("", metricState.count)]
  if (MetricState.isGaugeState(metricState)) return [sample("", metricState.value)]
  if (MetricState.isHistogramState(metricState)) {
    return [
      ...metricState.buckets.map(([bound, count]) =>
        sample("_bucket", count, `le="${bound === Number.POSITIVE_INFINITY ? "+Inf" : bound}"`)
      ),
      sample("_sum", metricState.sum),
      sample("_count", metricState.count)
    ]
  }
  return []
}

const escape = (text: string) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n")
