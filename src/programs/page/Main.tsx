/**
 * The page of `longhaul serve`: signs in, and shows the view that the address names.
 *
 * @since 0.1.0
 */
import { render } from "preact"
import { useEffect, useRef, useState } from "preact/hooks"
import { Begin } from "./Begin.tsx"
import { currentToken, onToken, readToken, setToken } from "./Client.ts"
import { usePlace } from "./Hooks.ts"
import { RunList } from "./RunList.tsx"
import { RunPage } from "./RunPage.tsx"
import { SignIn } from "./SignIn.tsx"

const App = () => {
  const [token, set] = useState(currentToken())
  const { path, query } = usePlace()
  const main = useRef<HTMLElement>(null)
  const view = path.join("/")
  const seen = useRef(view)
  useEffect(() => onToken(() => set(currentToken())), [])
  // A new view begins at its heading, also for who does not see it.
  useEffect(() => {
    if (seen.current === view) return
    seen.current = view
    scrollTo(0, 0)
    main.current?.querySelector("h1")?.focus({ preventScroll: true })
  }, [view])
  return (
    <>
      <header class="top">
        <a class="brand" href="#/">
          <Road />
          Longhaul
        </a>
        {token === "" ? null : (
          <nav aria-label="Site">
            <a href="#/" aria-current={view === "" ? "page" : undefined}>
              Runs
            </a>
            <a href="#/new" aria-current={view === "new" ? "page" : undefined}>
              New run
            </a>
            <a href="/docs" target="_blank" rel="noreferrer">
              API
            </a>
            <button type="button" class="plain" onClick={() => setToken("")}>
              Sign out
            </button>
          </nav>
        )}
      </header>
      <main ref={main}>{token === "" ? <SignIn /> : <View path={path} query={query} />}</main>
    </>
  )
}

const View = ({ path, query }: ReturnType<typeof usePlace>) => {
  const [first, runId, tab = ""] = path
  if (first === "runs" && runId !== undefined) return <RunPage key={runId} runId={runId} tab={tab} query={query} />
  return first === "new" ? <Begin /> : <RunList />
}

const Road = () => (
  <svg viewBox="0 0 32 32" width="26" height="26" aria-hidden="true">
    <rect width="32" height="32" rx="8" class="road-ground" />
    <path d="M12.5 6 6 26h20L19.5 6z" class="road-way" />
    <path d="M16 7v4M16 14v4M16 21v5" class="road-line" />
  </svg>
)

readToken()
const root = document.getElementById("app")
if (root !== null) render(<App />, root)
