/** Asks for `/health` on a new connection each time, from a process of its own, until its input ends: `node healthWatch.mjs <port>`. Prints how long each answer took, in milliseconds, and what failed. */
import { request } from "node:http"

const [, , port] = process.argv
const times = []
const failed = []
let isOver = false
process.stdin.on("end", () => {
  isOver = true
})
process.stdin.resume()

/** @returns {Promise<void>} */
const ask = () =>
  new Promise((resolve) => {
    const begun = performance.now()
    const ends = (error) => {
      times.push(performance.now() - begun)
      if (error !== undefined) failed.push(String(error))
      resolve()
    }
    const asked = request({ port, path: "/health", headers: { connection: "close" } }, (response) => {
      response.resume()
      response.on("end", () => ends(response.statusCode === 200 ? undefined : response.statusCode))
    })
    asked.on("error", ends)
    asked.end()
  })

while (!isOver) {
  await ask()
  await new Promise((resolve) => setTimeout(resolve, 20))
}
process.stdout.write(JSON.stringify({ times, failed }))
