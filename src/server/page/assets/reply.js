// Writes the chunks of a streamed reply into its message.

export class ReplyReader {
  // `now()` in milliseconds; the reply was asked for just now.
  constructor(message, now = () => performance.now()) {
    this.message = message;
    this.now = now;
    this.started = now();
    this.first = null; // when the first token came
    this.calls = new Map(); // by the API's index; a continued message has calls of its own before these
    this.progress = null; // {processed, total, cache, ms} while the prompt is read
    this.thoughtBefore = message.thoughtMs ?? 0;
    this.thoughtStart = null;
  }

  apply(chunk) {
    const {message} = this;
    if (chunk.model) message.model = chunk.model;
    if (chunk.prompt_progress) {
      const {processed, total, cache = 0, time_ms: ms = 0} = chunk.prompt_progress;
      this.progress = {processed, total, cache, ms};
    }
    const choice = chunk.choices?.[0];
    const delta = choice?.delta ?? {};
    const thought = delta.reasoning_content ?? delta.reasoning;
    if (thought) {
      this.#token();
      this.thoughtStart ??= this.now();
      message.reasoning = (message.reasoning ?? "") + thought;
    }
    if (this.thoughtStart !== null) message.thoughtMs = this.thoughtBefore + this.now() - this.thoughtStart;
    if (delta.content) {
      this.#token();
      this.#endThought();
      message.content += delta.content;
    }
    for (const call of delta.tool_calls ?? []) {
      this.#token();
      this.#endThought();
      this.#call(call);
    }
    if (choice?.finish_reason) message.finish = choice.finish_reason;
    if (chunk.usage) message.usage = {
      prompt: chunk.usage.prompt_tokens,
      completion: chunk.usage.completion_tokens,
      total: chunk.usage.total_tokens,
      cached: chunk.usage.prompt_tokens_details?.cached_tokens ?? 0,
    };
    if (chunk.timings) this.#timings(chunk.timings);
  }

  // The reply is over, in whatever way.
  end() {
    this.#endThought();
    this.message.stats = {...this.message.stats, totalMs: this.now() - this.started};
  }

  #token() {
    if (this.first !== null) return;
    this.first = this.now();
    this.progress = null;
    this.message.stats = {...this.message.stats, firstMs: this.first - this.started};
  }

  #endThought() {
    if (this.thoughtStart === null) return;
    this.message.thoughtMs = this.thoughtBefore + this.now() - this.thoughtStart;
    this.thoughtBefore = this.message.thoughtMs;
    this.thoughtStart = null;
  }

  #call({index = 0, id, function: part = {}}) {
    const calls = (this.message.toolCalls ??= []);
    let call = this.calls.get(index);
    if (!call) {
      call = {id: id ?? `call_${index}`, name: "", arguments: ""};
      this.calls.set(index, call);
      calls.push(call);
    }
    if (part.name) call.name += part.name;
    if (part.arguments) call.arguments += part.arguments;
  }

  #timings(t) {
    this.message.stats = {
      ...this.message.stats,
      promptTokens: t.prompt_n, cachedTokens: t.cache_n ?? 0, promptPerSecond: t.prompt_per_second,
      tokens: t.predicted_n, tokensPerSecond: t.predicted_per_second,
      drafted: t.draft_n, accepted: t.draft_n_accepted,
    };
  }
}
