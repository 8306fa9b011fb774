/**
 * The page in a real browser over the real command: `npm run test:page`. Without a browser it is skipped by name, but not in CI.
 */
import { readFileSync } from "node:fs"
import { createRequire } from "node:module"
import { afterAll, assert, beforeAll, describe, it } from "@effect/vitest"
import { parse } from "csv-parse/sync"
import type { Browser, Page } from "playwright-core"
import { browse, chromiumPath, type Served, serve, token } from "./served.ts"

const path = chromiumPath()
if (path === undefined && process.env.LONGHAUL_CI !== undefined) {
  throw new Error("there is no chromium: install one, or name it in LONGHAUL_CHROMIUM")
}

const ROWS = 1_000
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8")

describe.skipIf(path === undefined)("the page, in a browser (skipped without a chromium)", () => {
  let served: Served
  let browser: Browser

  beforeAll(async () => {
    served = await serve({ vendors: ROWS, others: ROWS, few: 400 })
    browser = await browse(path ?? "")
  })
  afterAll(async () => {
    await browser?.close()
    await served?.stop()
  })

  /** A page whose errors are kept: at the end there must be none. */
  const opened = async (options: { readonly width?: number; readonly colorScheme?: "light" | "dark" } = {}) => {
    const { colorScheme = "light", width = 1280 } = options
    const context = await browser.newContext({ viewport: { width, height: 844 }, colorScheme })
    const page = await context.newPage()
    const errors: Array<string> = []
    page.on("console", (message) => {
      if (message.type() === "error") errors.push(message.text())
    })
    page.on("pageerror", (error) => errors.push(error.message))
    return { context, errors, page }
  }

  const lineOf = async (page: Page): Promise<string> => (await page.getByTestId("line").textContent()) ?? ""
  const endedOf = async (page: Page): Promise<number> =>
    Number((await lineOf(page)).split("/")[0]?.replaceAll(/\D/g, ""))
  const badge = (page: Page, word: string) => page.locator(".run-heading .badge", { hasText: word })

  it("shows a run from its beginning to its end, and obeys", async () => {
    const { context, errors, page } = await opened()
    await page.goto(`${served.url}/#token=${token}`)
    await page.getByRole("heading", { name: "Runs", level: 1 }).waitFor()
    assert.notInclude(page.url(), token)

    await page.getByRole("link", { name: "Begin a run" }).click()
    await page.getByLabel("Budget, US dollars").fill("2")
    await page.getByRole("button", { name: "Begin the run" }).click()
    await page.getByTestId("line").waitFor()
    await page.waitForFunction(() => /^[1-9]/.test(document.querySelector("[data-testid=line]")?.textContent ?? ""))
    assert.match(
      await lineOf(page),
      /^[\d,]+ \/ 1,000 done\s*·?\s*\$\d+\.\d+ spent\s*·?\s*\d+ workers? active\s*·?\s*est\. \S+( s| min)? remaining$/
    )
    const before = await endedOf(page)
    await page.waitForFunction(
      (n) =>
        Number((document.querySelector("[data-testid=line]")?.textContent ?? "").split("/")[0]?.replace(/\D/g, "")) > n,
      before
    )

    await page.getByRole("button", { name: "Pause" }).click()
    await badge(page, "Paused").waitFor()
    await page.getByText("0 workers active").waitFor()
    // What came back last is still being written down.
    await page.waitForTimeout(1_500)
    const paused = await endedOf(page)
    assert.isBelow(paused, ROWS)
    // Two more looks of the server's own, each a second.
    await page.waitForTimeout(2_500)
    assert.strictEqual(await endedOf(page), paused)
    await page.getByText("Paused by an operator").waitFor()

    await page.getByRole("button", { name: "Unpause" }).click()
    await badge(page, "Running").waitFor()
    await page
      .locator(".run-heading .badge", { hasText: /^(Done|Complete, with failures)$/ })
      .waitFor({ timeout: 120_000 })
    assert.strictEqual(await endedOf(page), ROWS)

    await page.getByText("What happened").waitFor()
    await downloaded(page, () => page.getByRole("button", { name: "CSV" }).click())
    assert.deepStrictEqual(errors, [])
    await context.close()
  })

  it("can be used with the keyboard alone", async () => {
    const { context, errors, page } = await opened()
    const key = (name: string) => page.keyboard.press(name)
    await page.goto(served.url)
    await tabTo(page, "Access token")
    await page.keyboard.type("not-the-token-of-this-server")
    await key("Enter")
    await page.getByText("does not know this token").waitFor()
    // The browser reports the 401 itself.
    assert.lengthOf(errors.splice(0), 1)
    await key("Control+a")
    await page.keyboard.type(token)
    await key("Enter")

    await tabTo(page, "Begin a run")
    await key("Enter")
    await tabTo(page, "Source")
    await page.keyboard.type("others")
    await tabTo(page, "Budget, US dollars")
    await page.keyboard.type("2")
    await tabTo(page, "Begin the run")
    await key("Space")
    await badge(page, "Running").waitFor()

    await tabTo(page, "Pause")
    await key("Space")
    await badge(page, "Paused").waitFor()
    // The focus has stayed on the button, which says the opposite now.
    await key("Space")
    await badge(page, "Running").waitFor()

    await tabTo(page, "Limits…")
    await key("Enter")
    await page.getByRole("dialog", { name: "Limits" }).waitFor()
    await tabTo(page, "Workers")
    await key("Control+a")
    await page.keyboard.type("5")
    await key("Enter")
    await page.getByText(/of 5\b/).waitFor()
    assert.strictEqual(await focused(page), "Limits…")
    await tabTo(page, "Cancel…")
    await key("Enter")
    await page.getByRole("dialog", { name: "Cancel this run?" }).waitFor()
    await key("Escape")
    await page.getByRole("dialog").waitFor({ state: "hidden" })
    assert.strictEqual(await focused(page), "Cancel…")

    await tabTo(page, "Rows")
    await key("Enter")
    await tabTo(page, "Search")
    await page.keyboard.type("Robotics")
    await key("Enter")
    await page.waitForURL(/search=Robotics/)
    // Those of before may still be there.
    await page.waitForFunction(() => {
      const shown = [...document.querySelectorAll("tbody tr:not(.detail)")]
      return shown.length > 0 && shown.every(({ textContent }) => textContent?.includes("Robotics"))
    })
    const first = (await page.locator(".opener").first().textContent()) ?? ""
    await tabTo(page, first)
    await key("Space")
    await page.getByRole("heading", { name: "Calls" }).waitFor()

    await page.reload()
    await page
      .locator(".run-heading .badge", { hasText: /^(Done|Complete, with failures)$/ })
      .waitFor({ timeout: 120_000 })
    await tabTo(page, "CSV")
    await downloaded(page, () => key("Enter"))
    await tabTo(page, "Receipt")
    await key("Enter")
    await page.getByText("Digest, the same for any order of settlement").waitFor()
    assert.deepStrictEqual(errors, [])
    await context.close()
  })

  it("shows what a canary found, also to who comes later; approves, stops at the cap, and goes on with a higher one", async () => {
    const { context, errors, page } = await opened()
    await page.goto(`${served.url}/#token=${token}`)
    await page.getByRole("link", { name: "Begin a run" }).click()
    await page.getByLabel("Source").selectOption("few")
    await page.getByLabel("Budget, US dollars").fill("0.005")
    await page.getByLabel("Canary rows").fill("100")
    await page.getByRole("button", { name: "Begin the run" }).click()
    await page.getByText("Paused by its canary.").waitFor()
    await page.reload()
    const canary = page.getByRole("region", { name: "Canary" })
    await canary.getByText("100 of 400 rows").waitFor()
    await canary.getByText(/the run may cost .* more than its cap of \$0.005/).waitFor()

    await page.getByRole("button", { name: "Approve" }).click()
    await badge(page, "Suspended").waitFor()
    await page.locator(".note", { hasText: "the cap of $0.005 is reached" }).waitFor()
    await page.getByRole("button", { name: "Limits…" }).click()
    await page.getByLabel("Cap, US dollars").fill("0.0001")
    await page.getByRole("button", { name: "Set them" }).click()
    // Less than is counted already: refused where it was asked.
    await page.getByRole("dialog").getByRole("alert").waitFor()
    assert.lengthOf(errors.splice(0), 1)
    await page.getByLabel("Cap, US dollars").fill("1")
    await page.getByRole("button", { name: "Set them" }).click()
    await page.getByText("cap $1.00").waitFor()
    await page.getByRole("button", { name: "Resume" }).click()
    await page
      .locator(".run-heading .badge", { hasText: /^(Done|Complete, with failures)$/ })
      .waitFor({ timeout: 120_000 })
    assert.strictEqual(await endedOf(page), 400)
    assert.deepStrictEqual(errors, [])
    await context.close()
  })

  const widths = [1280, 390]
  const schemes = ["light", "dark"] as const
  it.each(schemes.flatMap((colorScheme) => widths.map((width) => ({ colorScheme, width }))))(
    "has no serious violation of accessibility and no overflow: $colorScheme, $width px",
    async ({ colorScheme, width }) => {
      const { context, errors, page } = await opened({ colorScheme, width })
      const found: Array<string> = []
      const look = async (view: string) => {
        found.push(...(await violations(page)).map((one) => `${view}: ${one}`))
        const wide = await page.evaluate(
          () => document.documentElement.scrollWidth - document.documentElement.clientWidth
        )
        if (wide > 0) found.push(`${view}: ${wide} px too wide`)
      }
      await page.goto(served.url)
      await page.getByLabel("Access token").waitFor()
      await look("sign-in")
      await page.goto("about:blank")
      await page.goto(`${served.url}/#token=${token}`)
      await page.locator(".run h3").nth(1).waitFor()
      await look("runs")
      await page.getByRole("link", { name: "New run" }).click()
      await page.getByText("Limits", { exact: true }).click()
      await look("new run")
      await page.getByRole("link", { name: "Runs", exact: true }).click()
      await page.locator(".run", { hasText: " failed" }).first().getByRole("link").click()
      await page.getByText("What happened").waitFor()
      await page.getByRole("heading", { name: "Failures by kind" }).waitFor()
      await look("overview")
      for (const [tab, text] of Object.entries({
        Rows: "Later rows",
        Failures: "Remedy.",
        Receipt: "Digest, the same for any order of settlement",
        Checkpoints: "Rows ended"
      })) {
        await page.getByRole("navigation", { name: "Views of this run" }).getByRole("link", { name: tab }).click()
        await page.getByText(text).first().waitFor()
        if (tab === "Rows") {
          await page.locator(".opener").first().click()
          await page.getByRole("heading", { name: "Calls" }).waitFor()
        }
        await look(tab)
        if (tab !== "Failures") continue
        await page.getByRole("button", { name: "again…" }).first().click()
        await page.getByRole("dialog").waitFor()
        await look("a dialog")
        await page.keyboard.press("Escape")
      }
      assert.deepStrictEqual(found, [])
      assert.deepStrictEqual(errors, [])
      await context.close()
    }
  )
})

/** What has the focus, by its name. */
const focused = (page: Page): Promise<string> =>
  page.evaluate(() => {
    const at = document.activeElement
    if (at instanceof HTMLInputElement || at instanceof HTMLSelectElement) return at.labels?.[0]?.textContent ?? ""
    return at?.textContent?.trim() ?? ""
  })

/** Presses Tab until what is so called has the focus. */
const tabTo = async (page: Page, name: string): Promise<void> => {
  for (let presses = 0; presses < 80; presses++) {
    if ((await focused(page)) === name) return
    await page.keyboard.press("Tab")
  }
  throw new Error(`no Tab leads to "${name}"`)
}

/** The CSV that this downloads has every row once. */
const downloaded = async (page: Page, act: () => Promise<void>): Promise<void> => {
  const downloading = page.waitForEvent("download")
  await act()
  const text = readFileSync(await (await downloading).path(), "utf8")
  const rows: ReadonlyArray<{ readonly id: string }> = parse(text, { columns: true, bom: true })
  assert.deepStrictEqual(
    rows.map(({ id }) => Number(id)),
    Array.from({ length: ROWS }, (_, i) => i + 1)
  )
}

interface AxeResults {
  readonly violations: ReadonlyArray<{
    readonly id: string
    readonly impact: string
    readonly nodes: ReadonlyArray<{ readonly html: string; readonly failureSummary: string }>
  }>
}

const violations = async (page: Page): Promise<ReadonlyArray<string>> => {
  await page.evaluate(axe)
  const { violations } = await page.evaluate<AxeResults>("axe.run(document, { resultTypes: ['violations'] })")
  return violations
    .filter(({ impact }) => impact === "serious" || impact === "critical")
    .flatMap(({ id, nodes }) =>
      nodes.map(({ failureSummary, html }) => `${id}: ${html.slice(0, 200)} ${failureSummary}`)
    )
}
