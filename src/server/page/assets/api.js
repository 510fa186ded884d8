// The server's API. Every failure is an ApiFailure of a kind that the page has words for.

import {serverEvents} from "./stream.js";

// kind: "network" nothing answered; "key" a key is wanted or wrong; "context" the prompt does not fit; "busy" try
// later; "loading" not ready yet; "request" our fault; "server" its fault; "cut" the reply broke off.
export class ApiFailure extends Error {
  constructor(kind, message, extra = {}) {
    super(message);
    this.kind = kind;
    Object.assign(this, extra);
  }
}

export class Api {
  // `key()` gives the key to send, or "". `base` is the page's own address, so that a path prefix is kept.
  constructor(base, key) {
    this.base = base;
    this.key = key;
  }

  async #fetch(path, {body, signal} = {}) {
    const headers = {};
    const key = this.key();
    if (key) headers.Authorization = `Bearer ${key}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(new URL(path, this.base), {
        method: body === undefined ? "GET" : "POST",
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ApiFailure("network", "The server does not answer.");
    }
    if (!response.ok) throw await failureOf(response);
    return response;
  }

  async props(signal) {
    return (await this.#fetch("props", {signal})).json();
  }

  async models(signal) {
    return (await this.#fetch("v1/models", {signal})).json();
  }

  async healthy(signal) {
    try {
      await this.#fetch("health", {signal});
      return true;
    } catch {
      return false;
    }
  }

  // The chunks of a streamed chat completion, as objects.
  async* chat(request, signal) {
    const response = await this.#fetch("v1/chat/completions", {body: request, signal});
    let finished = false;
    try {
      for await (const data of serverEvents(response.body)) {
        if (data === "[DONE]") return;
        const chunk = JSON.parse(data);
        if (chunk.error) throw failureFrom(chunk.error, chunk.error.code);
        if (chunk.choices?.some((choice) => choice.finish_reason)) finished = true;
        yield chunk;
      }
    } catch (error) {
      if (signal?.aborted || error instanceof ApiFailure) throw error;
      throw new ApiFailure("cut", "The connection was lost in the middle of the reply.");
    }
    if (!finished) throw new ApiFailure("cut", "The reply ended before it was complete.");
  }
}

async function failureOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch { /* not ours: a proxy's page */ }
  const failure = failureFrom(error, response.status);
  const wait = parseInt(response.headers.get("Retry-After") ?? "", 10);
  if (wait >= 0) failure.retryAfter = wait;
  return failure;
}

export function failureFrom(error, status) {
  const message = typeof error === "string" ? error : error.message || `The server answered with status ${status}.`;
  const type = error.type ?? "";
  const kind =
      type === "exceed_context_size_error" ? "context" :
      status === 401 ? "key" :
      status === 429 ? "busy" :
      status === 503 ? "loading" :
      status >= 400 && status < 500 ? "request" : "server";
  return new ApiFailure(kind, message, {
    status,
    promptTokens: error.n_prompt_tokens,
    context: error.n_ctx,
  });
}
