// What the page knows of the server: its model, its defaults, whether it answers.

import {ApiFailure} from "./api.js";

const RETRY = [1000, 2000, 3000, 5000, 10000]; // milliseconds between looks at a server that does not answer

export class Server extends EventTarget {
  model = "";
  context = 0; // tokens
  defaults = {}; // sampling, as /props names it
  build = "";
  thinking = true; // whether replies begin with a thought where a request says nothing
  parameters = 0;
  state = "unknown"; // "ready", "away", "loading", "key"
  #watching = false;

  constructor(api) {
    super();
    this.api = api;
  }

  async refresh() {
    try {
      const [models, props] = await Promise.all([this.api.models(), this.api.props()]);
      const entry = models.data?.[0] ?? {};
      this.model = entry.id ?? props.model_alias ?? "";
      this.parameters = entry.meta?.n_params ?? 0;
      this.context = props.default_generation_settings?.n_ctx ?? entry.meta?.n_ctx ?? 0;
      this.defaults = props.default_generation_settings?.params ?? {};
      this.build = props.build_info ?? "";
      this.thinking = props.thinking_default ?? true;
      this.#set("ready");
    } catch (failure) {
      this.failed(failure);
    }
  }

  // Something that the page asked for failed in this way.
  failed(failure) {
    if (!(failure instanceof ApiFailure)) return;
    if (failure.kind === "key") {
      this.#set("key");
    } else if (failure.kind === "network" || failure.kind === "cut") {
      this.#set("away");
      this.#watch();
    } else if (failure.kind === "loading") {
      this.#set("loading");
      this.#watch();
    }
  }

  // Until the server answers again.
  async #watch() {
    if (this.#watching) return;
    this.#watching = true;
    for (let i = 0; ; ++i) {
      await new Promise((resolve) => setTimeout(resolve, RETRY[Math.min(i, RETRY.length - 1)]));
      if (await this.api.healthy()) break;
    }
    this.#watching = false;
    await this.refresh();
  }

  #set(state) {
    this.state = state;
    this.dispatchEvent(new CustomEvent("change"));
  }
}
