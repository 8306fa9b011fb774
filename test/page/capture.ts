/**
 * `npm run docs:capture:page`: pictures of the page of a run in mid-flight, docs/walk/page-{runs,run,rows,receipt}-{desktop,phone}-{light,dark}.png.
 */
import { mkdirSync } from "node:fs"
import { pathToFileURL } from "node:url"
import type { Page } from "playwright-core"
import { browse, chromiumPath, serve, token } from "./served.ts"

const sizes = { desktop: { width: 1280, height: 860 }, phone: { width: 390, height: 844 } }
const schemes = ["light", "dark"] as const

/** Writes the pictures into `folder`, and gives their number. */
export const capturePage = async (folder: string): Promise<number> => {
  const path = chromiumPath()
  if (path === undefined) throw new Error("there is no chromium: install one, or name it in LONGHAUL_CHROMIUM")
  mkdirSync(folder, { recursive: true })
  const served = await serve({ vendors: 10_000, pilot: 300, archive: 800 }, { isPlain: true, model: "gpt-6-sol" })
  const browser = await browse(path)
  try {
    const page = await browser.newPage({ viewport: sizes.desktop, reducedMotion: "reduce" })
    await page.goto(`${served.url}/#token=${token}`)
    await begin(page, { source: "pilot", budget: "1", workers: "12" })
    await page
      .locator(".run-heading .badge", { hasText: /^(Done|Complete, with failures)$/ })
      .waitFor({ timeout: 120_000 })
    await begin(page, { source: "archive", budget: "0.12", workers: "12" })
    await page.locator(".run-heading .badge", { hasText: "Suspended" }).waitFor({ timeout: 120_000 })
    await begin(page, { source: "vendors", budget: "9", workers: "12", canary: "100" })
    await page.waitForFunction(
      () =>
        Number((document.querySelector("[data-testid=line]")?.textContent ?? "").split("/")[0]?.replace(/\D/g, "")) >
        2_300,
      undefined,
      { timeout: 240_000 }
    )
    return await pictures(page, new URL(page.url()).hash, folder)
  } finally {
    await browser.close()
    await served.stop()
  }
}

interface Asked {
  readonly source: string
  readonly budget: string
  readonly workers: string
  readonly canary?: string
}

const begin = async (page: Page, { budget, canary, source, workers }: Asked): Promise<void> => {
  await page.getByRole("link", { name: "New run" }).click()
  await page.getByLabel("Source").selectOption(source)
  await page.getByLabel("Budget, US dollars").fill(budget)
  await page.getByLabel("Workers").fill(workers)
  if (canary !== undefined) await page.getByLabel("Canary rows").fill(canary)
  await page.getByRole("button", { name: "Begin the run" }).click()
  await page.getByTestId("line").waitFor()
}

/** One page for all of them, so that the picture of the throughput has its minutes. */
const pictures = async (page: Page, hash: string, folder: string): Promise<number> => {
  const views = { run: hash, rows: `${hash}/rows`, receipt: `${hash}/receipt`, runs: "#/" }
  const ready = { run: ".spark svg", rows: ".opener", receipt: ".digest", runs: ".run" }
  let n = 0
  for (const [view, to] of Object.entries(views)) {
    await page.evaluate((next) => {
      location.hash = next
    }, to)
    for (const [size, viewport] of Object.entries(sizes)) {
      await page.setViewportSize(viewport)
      for (const colorScheme of schemes) {
        await page.emulateMedia({ colorScheme })
        await page
          .locator(Object.entries(ready).find(([name]) => name === view)?.[1] ?? "main")
          .first()
          .waitFor()
        if (view === "rows" && n % 4 === 0) {
          await page.locator(".opener").nth(1).click()
          await page.getByRole("heading", { name: "Calls" }).waitFor()
        }
        await page.waitForTimeout(300)
        await page.screenshot({ path: `${folder}/page-${view}-${size}-${colorScheme}.png`, fullPage: view !== "rows" })
        n++
      }
    }
  }
  return n
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) {
  console.log(`${await capturePage("docs/walk")} pictures in docs/walk`)
}
