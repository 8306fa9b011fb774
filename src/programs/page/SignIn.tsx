/**
 * The form for the token.
 *
 * @since 0.1.0
 */
import { useState } from "preact/hooks"
import { ask, Refusal, setToken } from "./Client.ts"
import { Field, textIn } from "./Parts.tsx"

/** @since 0.1.0 */
export const SignIn = () => {
  const [problem, setProblem] = useState("")
  const [isAsking, setAsking] = useState(false)
  const submit = async (event: SubmitEvent) => {
    event.preventDefault()
    if (!(event.currentTarget instanceof HTMLFormElement)) return
    const token = textIn(new FormData(event.currentTarget), "token").trim()
    setAsking(true)
    try {
      await ask("/jobs", { headers: { authorization: `Bearer ${token}` } })
      setToken(token)
    } catch (cause) {
      setProblem(
        cause instanceof Refusal && cause.status === 401 ? "The server does not know this token." : wordsOf(cause)
      )
      setAsking(false)
    }
  }
  return (
    <section class="signin card" aria-labelledby="signin">
      <h1 id="signin" tabIndex={-1}>
        Sign in
      </h1>
      <p class="lead">
        The token is in <code>LONGHAUL_TOKEN</code>, in the server’s configuration, or in the address that{" "}
        <code>longhaul serve</code> printed. It stays in this tab.
      </p>
      <form onSubmit={submit}>
        <Field id="token" label="Access token">
          <input
            id="token"
            name="token"
            type="password"
            required
            autocomplete="current-password"
            aria-describedby={problem === "" ? undefined : "token-problem"}
            aria-invalid={problem !== ""}
          />
        </Field>
        {problem === "" ? null : (
          <p id="token-problem" class="note bad" role="alert">
            {problem}
          </p>
        )}
        <button type="submit" class="primary" aria-disabled={isAsking}>
          Sign in
        </button>
      </form>
    </section>
  )
}

const wordsOf = (cause: unknown): string => (cause instanceof Error ? cause.message : String(cause))
