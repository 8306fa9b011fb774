/**
 * The page: three files, served from beside this module.
 *
 * @since 0.1.0
 */
import { fileURLToPath } from "node:url"
import * as HttpApiBuilder from "@effect/platform/HttpApiBuilder"
import * as HttpServerResponse from "@effect/platform/HttpServerResponse"
import { Effect } from "effect"

/** Nothing from elsewhere, and nothing inline. */
const policy =
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

const files = [
  ["/", "index.html", "text/html; charset=utf-8"],
  ["/app.js", "app.js", "text/javascript; charset=utf-8"],
  ["/app.css", "app.css", "text/css; charset=utf-8"]
] as const

/**
 * The routes of the page.
 *
 * @since 0.1.0
 */
export const layer = HttpApiBuilder.Router.use((router) =>
  Effect.forEach(files, ([path, file, type]) =>
    router.get(
      path,
      Effect.orElse(
        HttpServerResponse.file(fileURLToPath(new URL(`./page/${file}`, import.meta.url)), {
          headers: { "content-type": type, "content-security-policy": policy }
        }),
        () => HttpServerResponse.text("the page is not part of this build", { status: 404 })
      )
    )
  )
)
