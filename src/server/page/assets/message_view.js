// One message of the thread. update() may be called for every token: it changes only what has changed.

import {copyButton, h, icon, iconButton} from "./dom.js";
import {plural, prettyJson, seconds, count, statsDetails, statsLine} from "./format.js";
import {MarkdownView} from "./markdown_dom.js";

const ROLES = {user: "You", assistant: "Model", tool: "Tool result"};
const NOTES = {stopped: "Stopped", interrupted: "Interrupted"};

export class MessageView {
  #busy = false;
  #shown = {}; // what the parts of the element show, to leave alone what stays

  // actions: {edit, regenerate, resume, remove, select, results, settings, key} taking the message
  constructor(message, actions) {
    this.message = message;
    this.actions = actions;
    this.body = h("div", {class: "message-body"});
    this.foot = h("div", {class: "message-foot"});
    this.element = h("article", {class: `message ${message.role}`, "aria-label": ROLES[message.role], tabindex: "-1"},
        this.body, this.foot);
    this.element.dataset.id = message.id;
    if (message.role === "assistant") this.#buildReply();
    else this.#buildText();
  }

  // context: {run, siblings, last, locked}. Returns texts that have become final, for screen readers.
  update(message, context) {
    this.message = message;
    this.context = context;
    const said = this.message.role === "assistant" ? this.#updateReply() : this.#updateText();
    this.#updateFoot();
    return said;
  }

  // --- Messages of the user and results of tools: text as it was typed.

  #buildText() {
    this.text = h("div", {class: "plain"});
    if (this.message.role === "tool") {
      this.body.append(h("div", {class: "tool-name"}, icon("tool"), `Result of ${this.message.name || "the tool"}`));
    }
    this.body.append(this.text);
  }

  #updateText() {
    if (!this.editing && this.#shown.text !== this.message.content) {
      this.#shown.text = this.message.content;
      this.text.textContent = this.message.content;
    }
    return [];
  }

  // --- Replies.

  #buildReply() {
    this.preview = h("span", {class: "thought-preview"});
    this.thoughtTitle = h("span", {class: "thought-title"});
    this.thoughtText = h("div", {class: "markdown thought-text"});
    this.thoughtMarkdown = new MarkdownView(this.thoughtText);
    this.thought = h("details", {class: "thought", hidden: true, ontoggle: () => this.#updateThought()},
        h("summary", {}, icon("thought"), this.thoughtTitle, this.preview), this.thoughtText);
    this.content = h("div", {class: "markdown"});
    this.markdown = new MarkdownView(this.content);
    this.calls = h("div", {class: "calls"});
    this.state = h("div", {class: "reply-state"});
    this.body.append(this.thought, this.content, this.calls, this.state);
  }

  #updateReply() {
    const {message} = this;
    const streaming = message.status === "streaming";
    this.#busy = streaming;
    this.element.classList.toggle("streaming", streaming);
    this.element.setAttribute("aria-busy", String(streaming));
    this.#updateThought();
    let said = [];
    const key = `${message.content.length}:${streaming}`;
    if (!this.editing && (this.#shown.content !== key || !streaming && this.#shown.text !== message.content)) {
      if (this.#shown.text !== undefined && !message.content.startsWith(this.#shown.text)) {
        this.markdown = new MarkdownView(this.content); // edited
        this.content.replaceChildren();
      }
      said = this.markdown.update(message.content, streaming);
      this.#shown.content = key;
      this.#shown.text = message.content;
    }
    this.#updateCalls();
    this.#updateState();
    return said;
  }

  #updateThought() {
    const {message, thought} = this;
    const text = message.reasoning ?? "";
    thought.hidden = text === "";
    if (thought.hidden) return;
    const thinking = message.status === "streaming" && !message.content && !message.toolCalls?.length;
    thought.classList.toggle("running", thinking);
    const time = message.thoughtMs > 0 ? ` for ${seconds(message.thoughtMs)}` : "";
    this.thoughtTitle.textContent = thinking ? "Thinking" : `Thought${time}`;
    // While it runs and is folded: its latest words.
    this.preview.textContent = thinking && !thought.open ? text.slice(-160).replace(/\s+/g, " ").trimStart() : "";
    if (thought.open) this.thoughtMarkdown.update(text, thinking);
  }

  #updateCalls() {
    const calls = this.message.toolCalls ?? [];
    const open = this.context.last && this.message.status === "done" && calls.length > 0;
    const key = JSON.stringify([calls, open]);
    if (this.#shown.calls === key) return;
    this.#shown.calls = key;
    const cards = calls.map((call, i) => {
      const old = this.calls.querySelectorAll(".call")[i];
      const card = old ?? h("div", {class: "call"},
          h("div", {class: "call-head"}, icon("tool"), h("span", {class: "call-name"}),
              copyButton("Copy arguments", () => prettyJson(this.message.toolCalls[i].arguments))),
          h("pre", {tabindex: "0"}, h("code")),
          h("textarea", {class: "call-result", rows: "2", placeholder: "Result of this call…",
            "aria-label": `Result of ${call.name}`, hidden: true}));
      card.querySelector(".call-name").textContent = call.name || "…";
      card.querySelector("code").textContent = prettyJson(call.arguments);
      card.querySelector("textarea").hidden = !open;
      return card;
    });
    const send = h("button", {type: "button", class: "button primary", onclick: () => {
      const areas = this.calls.querySelectorAll("textarea");
      this.actions.results(this.message, calls.map((call, i) => ({call, content: areas[i].value})));
    }}, calls.length > 1 ? "Send results" : "Send result");
    this.calls.replaceChildren(...cards, ...(open ? [send] : []));
  }

  #updateState() {
    const {message, context} = this;
    const run = context.run;
    if (message.status === "streaming") {
      if (!run) return this.#setState("foreign", () => [h("span", {class: "note"}, "Being written in another tab…")]);
      if (message.content || message.toolCalls?.length || message.reasoning) return this.#setState("none", () => []);
      const progress = run.reader.progress;
      if (run.waiting || !progress || progress.total === 0) {
        const words = run.waiting || "Waiting for the first token…";
        return this.#setState(words, () => [h("span", {class: "dots"}), h("span", {class: "note"}, words)]);
      }
      return this.#showProgress(progress);
    }
    if (message.error) {
      return this.#setState(`error ${message.error.message}`, () => [this.#errorBox(message.error)]);
    }
    const note = NOTES[message.status] ??
        (message.finish === "length" ? "Cut: the limit of tokens was reached" : "");
    const empty = !message.content && !message.toolCalls?.length && message.status === "done";
    const words = note || (empty ? "The reply is empty." : "");
    return this.#setState(`note ${words}`, () => (words ? [h("span", {class: "note"}, words)] : []));
  }

  #setState(key, build) {
    if (this.#shown.state === key) return;
    this.#shown.state = key;
    this.state.replaceChildren(...build());
  }

  #showProgress({processed, total, cache, ms}) {
    this.#setState("progress", () => [
      h("progress", {class: "prompt-progress", "aria-label": "Reading the prompt"}), h("span", {class: "note"})]);
    const bar = this.state.querySelector("progress");
    bar.max = total;
    bar.value = processed;
    const read = processed - cache;
    const left = read > 0 && ms > 0 ? (total - processed) * ms / read : 0;
    this.state.querySelector(".note").textContent =
        `Reading the prompt: ${count(processed)} of ${plural(total, "token")}` +
        (left > 1500 ? `, about ${seconds(left)} left` : "");
  }

  #errorBox(error) {
    const {message, actions} = this;
    const hint = {
      context: "The conversation no longer fits into the model's context. Delete or shorten earlier messages, " +
          "begin a new conversation, or start the server with a larger context.",
      network: "Is it still running? The page looks for it and says when it is back.",
      key: "The server answers only those who have one; it is kept in this browser.",
      busy: "Too many requests are waiting.",
      loading: "The model was still being loaded.",
      cut: "What had arrived is kept.",
    }[error.kind];
    const title = error.kind === "context" && error.promptTokens ?
        `Too long: ${count(error.promptTokens)} tokens, and the context holds ${count(error.context)}.` :
        error.kind === "key" ? "An API key is needed." : error.message;
    return h("div", {class: "error-box", role: "alert"}, icon("warn"),
        h("div", {}, h("p", {class: "error-title"}, title), hint ? h("p", {}, hint) : null,
            h("div", {class: "error-actions"},
                error.kind === "key" ?
                  h("button", {type: "button", class: "button primary", onclick: () => actions.key(message)}, icon("key"), "Enter key") : null,
                error.kind === "settings" ?
                  h("button", {type: "button", class: "button", onclick: () => actions.settings()}, icon("sliders"), "Settings") : null,
                h("button", {type: "button", class: "button", onclick: () => actions.regenerate(message)}, icon("again"), "Try again"))));
  }

  // --- Below the message: what can be done with it, and its figures.

  #updateFoot() {
    const {message, actions, context} = this;
    const streaming = message.status === "streaming";
    const place = context.siblings.findIndex(({id}) => id === message.id);
    const canResume = message.role === "assistant" && context.last && (message.content || message.reasoning) &&
        !message.toolCalls?.length &&
        (["stopped", "interrupted", "error"].includes(message.status) || message.finish === "length");
    const key = JSON.stringify([streaming, context.locked, context.siblings.length, place, canResume, context.last, this.editing, message.content === ""]);
    if (this.#shown.foot !== key) {
      this.#shown.foot = key;
      this.stats = h("span", {class: "stats"});
      const buttons = [];
      if (!streaming && !this.editing) {
        if (context.siblings.length > 1) buttons.push(this.#versions(place));
        if (message.content) buttons.push(copyButton("Copy message", () => this.message.content));
        if (!context.locked) {
          if (message.role === "assistant") {
            buttons.push(iconButton("again", "Another reply", () => actions.regenerate(this.message)));
            if (canResume) buttons.push(iconButton("forward", "Continue this reply", () => actions.resume(this.message)));
          }
          if (message.content) buttons.push(iconButton("edit", "Edit message", () => this.startEditing()));
          buttons.push(iconButton("trash", "Delete from here on", () => actions.remove(this.message)));
        }
      }
      this.foot.replaceChildren(...buttons, this.stats);
    }
    if (message.role !== "assistant") return;
    this.stats.textContent = statsLine(message);
    this.stats.title = statsDetails(message);
  }

  #versions(place) {
    const {siblings, locked} = this.context;
    const go = (step) => () => this.actions.select(siblings[place + step].id);
    return h("span", {class: "versions"},
        iconButton("left", "Previous version", go(-1), {disabled: place === 0 || locked}),
        h("span", {"aria-label": `Version ${place + 1} of ${siblings.length}`}, `${place + 1}/${siblings.length}`),
        iconButton("right", "Next version", go(1), {disabled: place === siblings.length - 1 || locked}));
  }

  startEditing() {
    if (this.editing || this.#busy) return;
    this.editing = true;
    const shown = this.message.role === "assistant" ? this.content : this.text;
    const area = h("textarea", {class: "edit-area", "aria-label": "Edit message"});
    area.value = this.message.content;
    const grow = () => {
      area.style.height = "auto";
      area.style.height = `${Math.min(area.scrollHeight + 2, window.innerHeight * 0.6)}px`;
    };
    const finish = (save) => {
      this.editing = false;
      form.replaceWith(shown);
      if (save && area.value !== this.message.content) this.actions.edit(this.message, area.value);
      this.#updateFoot();
      this.element.focus();
    };
    const form = h("form", {class: "edit", onsubmit: (event) => {
      event.preventDefault();
      finish(true);
    }, onkeydown: (event) => {
      if (event.key === "Escape") {
        event.stopPropagation();
        finish(false);
      } else if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        finish(true);
      }
    }}, area, h("div", {class: "edit-actions"},
        h("button", {type: "button", class: "button", onclick: () => finish(false)}, "Cancel"),
        h("button", {type: "submit", class: "button primary"}, this.message.role === "assistant" ? "Save" : "Send")));
    area.addEventListener("input", grow);
    shown.replaceWith(form);
    this.#updateFoot();
    grow();
    area.focus();
  }
}
