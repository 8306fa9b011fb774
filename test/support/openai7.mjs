/** With `node --import`: `openai` is version 7 of it, which is installed as `openai7`. */
import { register } from "node:module"

const hooks = `export const resolve = (name, context, next) => next(name.replace(/^openai(?=\\/|$)/, "openai7"), context)`
register(`data:text/javascript,${encodeURIComponent(hooks)}`)
