/**
 * What providers answer when something is wrong, in the words of the real ones: whole HTTP answers, so that nothing breaks on the wire. What does
 * break there is in {@link file://./faultServer.ts}.
 */
import { gzipSync } from "node:zlib"

export interface Answer {
  readonly status: number
  readonly body: string | Uint8Array
  readonly headers: Readonly<Record<string, string>>
}

const json = (status: number, body: unknown, headers: Readonly<Record<string, string>> = {}): Answer => ({
  status,
  body: typeof body === "string" || body instanceof Uint8Array ? body : JSON.stringify(body),
  headers: { "content-type": "application/json", ...headers }
})
const page = (status: number): Answer => ({
  status,
  body: `<!DOCTYPE html>\n<html>\n<head><title>${status}</title></head>\n<body>\n<center>cloudflare</center>\n</body>\n</html>\n`,
  headers: { "content-type": "text/html; charset=UTF-8", server: "cloudflare", "cf-ray": "8f1e2d3c4b5a6978-FRA" }
})
const failed = (status: number, error: unknown, headers: Readonly<Record<string, string>> = {}) =>
  json(status, { error }, headers)
const openai = (message: string, type: string, param: string | null, code: string | null) => ({
  message,
  type,
  param,
  code
})

const tokens = { prompt_tokens: 10, completion_tokens: 5, total_tokens: 15 }

const completion = (parts: object = {}, choice: object = {}) => ({
  id: "chatcmpl-1",
  object: "chat.completion",
  created: 1796000000,
  model: "gpt-6-luna-2026-10-01",
  choices: [
    { index: 0, message: { role: "assistant", content: "hi", refusal: null }, finish_reason: "stop", ...choice }
  ],
  usage: tokens,
  ...parts
})

export const goodText: string = JSON.stringify(completion())

const redirect = (status: number) => ({
  status,
  body: "",
  headers: { location: "/redirect-target/v1/chat/completions" }
})
const usage = (value: unknown) => json(200, completion({ usage: value }))
const choiceError = (error: object) => json(200, completion({}, { finish_reason: "error", error }))
const deep = `${"[".repeat(15_000)}${"]".repeat(15_000)}`
const vllmContext =
  "This model's maximum context length is 4096 tokens. However, you requested 5117 tokens (5017 in the messages, 100 in the completion). Please reduce the length of the messages or completion."
const llamaContext =
  "the request exceeds the available context size. try increasing the context size or enable context shift"
const groqTooLarge =
  "Request too large for model `llama-3.1-8b-instant` in organization `org_1` service tier `on_demand` on tokens per minute (TPM): Limit 6000, Requested 8120, please reduce your message size and try again."

export const answers = {
  good: json(200, goodText),
  "good-gzip": json(200, gzipSync(goodText), { "content-encoding": "gzip" }),
  "good-after-blank-lines": json(200, `\n\n\n\n${goodText}`),
  "good-without-type": { status: 200, body: goodText, headers: {} },
  "good-with-null-error": json(200, completion({ error: null })),

  // A success that is none.
  "html-200": page(200),
  "type-text": json(200, goodText, { "content-type": "text/plain" }),
  "type-octets": json(200, goodText, { "content-type": "application/octet-stream" }),
  "event-stream": {
    status: 200,
    body: `data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\ndata: [DONE]\n\n`,
    headers: { "content-type": "text/event-stream" }
  },
  "empty-200": json(200, ""),
  "no-content-204": { status: 204, body: "", headers: {} },
  "json-cut": json(200, goodText.slice(0, 120)),
  "json-null": json(200, "null"),
  "json-array": json(200, [completion()]),
  "json-without-choices": json(200, { id: "chatcmpl-1", object: "chat.completion", usage: tokens }),
  "json-twice": json(200, `${goodText}\n${goodText}`),
  "utf8-invalid-in-text": json(200, Buffer.from(goodText.replace("hi", "h\u00ffi"), "latin1")),
  "utf8-invalid-everywhere": json(200, Buffer.alloc(400, 0xff)),
  "gzip-that-is-none": json(200, goodText, { "content-encoding": "gzip" }),
  "gzip-cut": json(200, gzipSync(goodText).subarray(0, 60), { "content-encoding": "gzip" }),

  // An error inside a 200.
  "200-error-429": failed(200, { code: 429, message: "Rate limit exceeded: limit_rpm" }),
  "200-error-502": failed(200, { code: 502, message: "Provider returned error", metadata: { provider_name: "Azure" } }),
  "200-error-503-as-text": failed(200, { code: "503", message: "No instances available" }),
  "200-error-408": failed(200, { code: 408, message: "Timed out" }),
  "200-error-401": failed(200, { code: 401, message: "User not found." }),
  "200-error-402": failed(200, { code: 402, message: "Insufficient credits" }),
  "200-error-typed": failed(200, {
    code: 502,
    message: "Provider returned error",
    metadata: { error_type: "provider_overloaded", provider_name: "Anthropic" }
  }),
  "200-error-quota": failed(200, openai("You exceeded your current quota", "insufficient_quota", null, null)),
  "200-error-context": failed(200, {
    code: 400,
    message: llamaContext,
    type: "exceed_context_size_error",
    n_prompt_tokens: 9000,
    n_ctx: 4096
  }),
  "200-error-text": failed(200, "model is loading"),
  "200-error-deep": json(200, `{"error":{"message":"no","details":${deep}}}`),
  "200-choice-error-502": choiceError({ code: 502, message: "Provider disconnected" }),
  "200-choice-error-429": choiceError({ code: 429, message: "Rate limited upstream" }),
  "200-choice-error-word": choiceError({ code: "server_error", message: "Upstream failed" }),

  // An answer that is poor but billed: whether it will do is not the layer's to say.
  "choices-empty": json(200, completion({ choices: [] })),
  "content-null": json(200, completion({}, { message: { role: "assistant", content: null } })),
  "finish-length": json(200, completion({}, { finish_reason: "length" })),
  "finish-filter": json(200, completion({}, { message: { content: null }, finish_reason: "content_filter" })),
  "finish-null": json(200, completion({}, { finish_reason: null })),

  "usage-missing": usage(undefined),
  "usage-null": usage(null),
  "usage-text": usage("15 tokens"),
  "usage-zero": usage({ prompt_tokens: 0, completion_tokens: 0, total_tokens: 0 }),
  "usage-negative": usage({ ...tokens, prompt_tokens: -10, total_tokens: -5 }),
  "usage-negative-output": usage({ ...tokens, completion_tokens: -5, total_tokens: 5 }),
  "usage-1e308": usage({ prompt_tokens: 1e308, completion_tokens: 1e308 }),
  "usage-infinite": json(200, goodText.replaceAll(/"(prompt|total)_tokens":\d+/g, '"$1_tokens":1e999')),
  "usage-fraction": usage({ prompt_tokens: 9.5, completion_tokens: 5.5, total_tokens: 15 }),
  "usage-numbers-as-text": usage({ prompt_tokens: "10", completion_tokens: "5", total_tokens: "15" }),
  "usage-wrong-sum": usage({ ...tokens, total_tokens: 99 }),
  "usage-cached-above-prompt": usage({ ...tokens, prompt_tokens_details: { cached_tokens: 11 } }),
  "usage-cached-negative": usage({ ...tokens, prompt_tokens_details: { cached_tokens: -1 } }),
  "usage-reasoning-above-output": usage({ ...tokens, completion_tokens_details: { reasoning_tokens: 6 } }),

  "redirect-301": redirect(301),
  "redirect-302": redirect(302),
  "redirect-303": redirect(303),
  "redirect-307": redirect(307),
  "redirect-308": redirect(308),

  // 400
  "400-openai": failed(
    400,
    openai("Invalid value for 'messages[0].content'", "invalid_request_error", "messages[0].content", "invalid_value")
  ),
  "400-openai-schema": failed(
    400,
    openai(
      "Invalid schema for response_format 'out': In context=(), 'required' is required to be supplied and to be an array including every key in properties.",
      "invalid_request_error",
      "response_format",
      null
    )
  ),
  "400-openai-max-tokens": failed(
    400,
    openai(
      "max_tokens is too large: 200000. This model supports at most 128000 completion tokens, whereas you provided 200000.",
      "invalid_request_error",
      "max_tokens",
      "invalid_value"
    )
  ),
  "400-openai-unsupported": failed(
    400,
    openai(
      "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
      "invalid_request_error",
      "max_tokens",
      "unsupported_parameter"
    )
  ),
  "400-openai-temperature": failed(
    400,
    openai(
      "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1) value is supported.",
      "invalid_request_error",
      "temperature",
      "unsupported_value"
    )
  ),
  "400-openai-context": failed(
    400,
    openai(
      "This model's maximum context length is 128000 tokens. However, your messages resulted in 150012 tokens.",
      "invalid_request_error",
      "messages",
      "context_length_exceeded"
    )
  ),
  "400-openai-billing": failed(
    400,
    openai("Billing hard limit has been reached", "invalid_request_error", null, "billing_hard_limit_reached")
  ),
  "400-azure-filter": failed(400, {
    message:
      "The response was filtered due to the prompt triggering Azure OpenAI's content management policy. Please modify your prompt and retry.",
    type: null,
    param: "prompt",
    code: "content_filter",
    status: 400,
    innererror: {
      code: "ResponsibleAIPolicyViolation",
      content_filter_result: { violence: { filtered: true, severity: "medium" }, hate: { filtered: false } }
    }
  }),
  "400-vllm-flat": json(400, {
    object: "error",
    message: vllmContext,
    type: "BadRequestError",
    param: null,
    code: 400
  }),
  "400-vllm": failed(400, { message: vllmContext, type: "BadRequestError", param: null, code: 400 }),
  "400-llama-context": failed(400, {
    code: 400,
    message: llamaContext,
    type: "exceed_context_size_error",
    n_prompt_tokens: 9000,
    n_ctx: 4096
  }),
  "400-gemini-array": json(400, [
    {
      error: {
        code: 400,
        message: 'Invalid JSON payload received. Unknown name "seed": Cannot find field.',
        status: "INVALID_ARGUMENT"
      }
    }
  ]),
  "400-groq-json": failed(400, {
    message: "Failed to generate JSON. Please adjust your prompt. See 'failed_generation' for more details.",
    type: "invalid_request_error",
    code: "json_validate_failed",
    failed_generation: '{"risk": '
  }),
  "400-deep": json(400, `{"error":{"message":"no","details":${deep}}}`),

  // 401 to 499
  "401-openai": failed(
    401,
    openai("Incorrect API key provided: sk-x****.", "invalid_request_error", null, "invalid_api_key")
  ),
  "401-azure-flat": json(401, {
    statusCode: 401,
    message: "Unauthorized. Access token is missing, invalid, audience is incorrect, or have expired."
  }),
  "402-deepseek": failed(402, openai("Insufficient Balance", "unknown_error", null, "invalid_request_error")),
  "402-openrouter": failed(402, {
    code: 402,
    message: "Insufficient credits. Add more using https://openrouter.ai/settings/credits",
    metadata: { limit_source: "openrouter_credits" }
  }),
  "402-openrouter-in-flight": failed(
    402,
    {
      code: 402,
      message: "This request would exceed your available credits given your current in-flight requests.",
      metadata: { reason: "in_flight_budget_exhausted", limit_source: "openrouter_in_flight_budget" }
    },
    { "retry-after": "3" }
  ),
  "402-openrouter-weight": failed(402, {
    code: 402,
    message: "This request's estimated cost is above your in-flight budget.",
    metadata: { reason: "weight_exceeds_budget", limit_source: "openrouter_credits" }
  }),
  "403-openai-region": failed(
    403,
    openai(
      "Country, region, or territory not supported",
      "request_forbidden",
      null,
      "unsupported_country_region_territory"
    )
  ),
  "403-openrouter-moderation": failed(403, {
    code: 403,
    message: 'openai/gpt-6-luna requires moderation. Your input was flagged for "violence".',
    metadata: {
      reasons: ["violence"],
      flagged_input: "vendor",
      provider_name: "OpenAI",
      model_slug: "openai/gpt-6-luna"
    }
  }),
  "403-openrouter-guardrail": failed(403, {
    code: 403,
    message: "Request blocked: prompt injection patterns detected",
    metadata: { patterns: ["ignore previous instructions"] }
  }),
  "403-openrouter-budget": failed(403, {
    code: 403,
    message: "Workspace budget exceeded",
    metadata: {
      limit_source: "openrouter_workspace_budget",
      limit_usd: 10,
      spend_usd: 10.02,
      resets_at: "2026-12-01T00:00:00Z"
    }
  }),
  "403-azure-quota": json(403, { statusCode: 403, message: "Token quota is exceeded. Try again in 3 days." }),
  "404-openai": failed(
    404,
    openai(
      "The model `gpt-9` does not exist or you do not have access to it.",
      "invalid_request_error",
      null,
      "model_not_found"
    )
  ),
  "404-azure": failed(404, {
    code: "DeploymentNotFound",
    message: "The API deployment for this resource does not exist."
  }),
  "404-ollama": failed(404, openai('model "llama9" not found', "not_found_error", null, null)),
  "404-vllm-flat": json(404, {
    object: "error",
    message: "The model `x` does not exist.",
    type: "NotFoundError",
    param: null,
    code: 404
  }),
  "404-gemini-array": json(404, [{ error: { code: 404, message: "models/x is not found", status: "NOT_FOUND" } }]),
  "404-fastapi": json(404, { detail: "Not Found" }),
  "413-groq": failed(413, { message: groqTooLarge, type: "tokens", code: "rate_limit_exceeded" }),
  "422-fastapi": json(422, {
    detail: [{ type: "missing", loc: ["body", "messages"], msg: "Field required", input: null }]
  }),
  "424-groq": failed(424, { message: "Failed to reach the MCP server", type: "external_connector_error" }),
  "429-openai": failed(
    429,
    openai(
      "Rate limit reached for gpt-6-luna in organization org-1 on requests per min (RPM): Limit 3, Used 3, Requested 1. Please try again in 20s.",
      "requests",
      null,
      "rate_limit_exceeded"
    ),
    { "retry-after": "20", "retry-after-ms": "19500", "x-ratelimit-reset-requests": "20s" }
  ),
  "429-openai-too-large": failed(
    429,
    openai(
      "Request too large for gpt-6-luna in organization org-1 on tokens per min (TPM): Limit 30000, Requested 41000.",
      "tokens",
      null,
      "rate_limit_exceeded"
    )
  ),
  "429-openai-quota": failed(
    429,
    openai(
      "You exceeded your current quota, please check your plan and billing details.",
      "insufficient_quota",
      null,
      "insufficient_quota"
    )
  ),
  "429-openai-quota-by-type": failed(429, openai("You exceeded your current quota", "insufficient_quota", null, null)),
  "429-openai-spend-limit": failed(
    429,
    openai("The project has reached its spend limit", "insufficient_quota", null, "project_spend_limit_exceeded")
  ),
  "429-azure": failed(
    429,
    { code: "429", message: "Requests to the ChatCompletions_Create Operation have exceeded token rate limit." },
    { "retry-after-ms": "4200", "retry-after": "5" }
  ),
  "429-gemini-array": json(429, [
    { error: { code: 429, message: "Resource has been exhausted.", status: "RESOURCE_EXHAUSTED" } }
  ]),
  "429-flex": failed(429, openai("Resource unavailable", "resource_unavailable", null, "resource_unavailable")),
  "498-groq": failed(498, { message: "Flex capacity exceeded", type: "capacity_exceeded", code: "capacity_exceeded" }),

  // 500 to 599
  "500-openai": failed(
    500,
    openai("The server had an error while processing your request", "server_error", null, null)
  ),
  "500-vllm-flat": json(500, {
    object: "error",
    message: "Internal server error",
    type: "InternalServerError",
    param: null,
    code: 500
  }),
  "500-llama-context": failed(500, { code: 500, message: llamaContext, type: "server_error" }),
  "500-ollama-memory": failed(
    500,
    openai("model requires more system memory (8.4 GiB) than is available (3.1 GiB)", "api_error", null, null)
  ),
  "502-openrouter": failed(502, {
    code: 502,
    message: "Provider returned error",
    metadata: { error_type: "provider_unavailable", provider_name: "Azure" }
  }),
  "503-openai": failed(
    503,
    openai("The engine is currently overloaded, please try again later", "server_error", null, "server_is_overloaded")
  ),
  "503-llama-loading": failed(503, { code: 503, message: "Loading model", type: "unavailable_error" }),
  "503-openrouter": failed(503, {
    code: 503,
    message: "Provider overloaded",
    metadata: { error_type: "provider_overloaded" }
  }),
  "504-openai": failed(504, openai("Gateway timeout", "server_error", null, "timeout")),
  "529-anthropic": json(529, {
    type: "error",
    error: { type: "overloaded_error", message: "Overloaded" },
    request_id: "req_1"
  })
} satisfies Record<string, Answer>

export type AnswerFault = keyof typeof answers

/** Beside those above: `status-418` is that status without a body, `page-418` with a page, `code-418-word` with that word as the error's code. */
export type GenericFault = `status-${number}` | `page-${number}` | `code-${number}-${string}`

const isAnswer = (fault: string): fault is AnswerFault => Object.hasOwn(answers, fault)

export const answerOf = (fault: string): Answer | undefined => {
  if (isAnswer(fault)) return answers[fault]
  const [, kind, status, word] = /^(status|page|code)-(\d{3})(?:-(.+))?$/.exec(fault) ?? []
  if (kind === "status") return { status: Number(status), body: "", headers: {} }
  if (kind === "page") return page(Number(status))
  return kind === "code" ? failed(Number(status), openai("No", "error", null, word ?? null)) : undefined
}
