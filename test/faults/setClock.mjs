/** Preloaded into a process: its date's clock is SET_CLOCK milliseconds off, from SIGUSR2 on if SET_CLOCK_LATER is there; what counts the time that passes is not. */
const { now } = Date
let offset = process.env.SET_CLOCK_LATER === undefined ? Number(process.env.SET_CLOCK) : 0
Date.now = () => now() + offset
process.on("SIGUSR2", () => {
  offset = Number(process.env.SET_CLOCK)
})
