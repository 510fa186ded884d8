// The panel of settings: this conversation's (system prompt, tools), sampling, the browser's data.

import {h, icon} from "./dom.js";
import {parseTools, SAMPLING, SettingsFault} from "./request.js";

export class SettingsView {
  #conversation = null;
  #inputs = new Map();

  // actions: {change(fields), asDefault(), exportAll(), importFile(file), clear(), theme(name)}
  constructor(root, settings, server, actions) {
    Object.assign(this, {root, settings, server, actions});
    root.append(this.#conversationPart(), this.#thinkingPart(), this.#samplingPart(), this.#browserPart());
    server.addEventListener("change", () => this.#defaults());
    settings.addEventListener("change", () => this.#values());
    this.#values();
    this.#defaults();
  }

  show(conversation) {
    this.#conversation = conversation;
    if (document.activeElement !== this.system) this.system.value = conversation.record.system;
    if (document.activeElement !== this.tools) this.tools.value = conversation.record.tools;
    this.#checkTools();
  }

  // --- Parts.

  #conversationPart() {
    this.system = h("textarea", {id: "system", rows: "4", placeholder: "How the model should behave…",
      oninput: () => this.actions.change(this.#conversation, {system: this.system.value})});
    this.tools = h("textarea", {id: "tools", rows: "3", class: "code-field", spellcheck: "false",
      placeholder: '[{"name": "weather", "description": "…", "parameters": {…}}]', "aria-describedby": "tools-fault",
      oninput: () => {
        this.actions.change(this.#conversation, {tools: this.tools.value});
        this.#checkTools();
      }});
    this.toolsFault = h("p", {class: "field-fault", id: "tools-fault", role: "status"});
    const keep = h("button", {type: "button", class: "button small", onclick: () => {
      this.actions.asDefault(this.#conversation);
      keep.textContent = "Kept for new conversations";
      setTimeout(() => { keep.textContent = "Use for new conversations"; }, 2000);
    }}, "Use for new conversations");
    return section("This conversation",
        field("System prompt", this.system), keep,
        h("details", {class: "more"}, h("summary", {}, "Tools"),
            h("p", {class: "help"}, "Functions that the model may call, as a JSON array. The page shows each call and asks you for its result."),
            field("Tools (JSON)", this.tools), this.toolsFault));
  }

  #checkTools() {
    try {
      const tools = parseTools(this.tools.value);
      this.toolsFault.textContent = tools.length > 0 ? `${tools.map((tool) => tool.function.name).join(", ")}` : "";
      this.toolsFault.classList.remove("bad");
    } catch (error) {
      if (!(error instanceof SettingsFault)) throw error;
      this.toolsFault.textContent = error.message;
      this.toolsFault.classList.add("bad");
    }
  }

  #thinkingPart() {
    this.thinking = h("input", {type: "checkbox", role: "switch", id: "thinking-switch",
      onchange: () => this.settings.set("thinking", this.thinking.checked)});
    const budget = this.#number({name: "thinking_budget", prop: "thinking_budget_tokens", label: "Thinking budget", min: 0, step: 1, integer: true,
      help: "Most tokens of a thought; it is then closed. Empty: no limit."});
    return section("Thinking", h("label", {class: "switch-row"}, h("span", {}, "Think before answering"), this.thinking), budget);
  }

  #samplingPart() {
    this.stop = h("textarea", {id: "stop", rows: "2", class: "code-field", spellcheck: "false", placeholder: "none",
      onchange: () => this.settings.set("stop", this.stop.value)});
    const reset = h("button", {type: "button", class: "button small", id: "reset-sampling", onclick: () => {
      SAMPLING.forEach(({name}) => this.settings.set(name, null));
      this.settings.set("stop", null);
      this.#values(true);
    }}, icon("again"), "Reset to the model's defaults");
    return section("Sampling", h("div", {class: "number-grid"}, SAMPLING.map((one) => this.#number(one))),
        field("Stop strings, one a line", this.stop), reset);
  }

  #number(spec) {
    const input = h("input", {type: "number", id: `set-${spec.name}`, inputmode: spec.integer && spec.min >= 0 ? "numeric" : "decimal",
      min: spec.min, max: spec.max, step: spec.integer ? 1 : "any", "aria-describedby": `help-${spec.name}`,
      onchange: () => {
        const value = input.value.trim() === "" ? null : Number(input.value);
        const bad = value === null ? input.validity.badInput :
            !Number.isFinite(value) || value < spec.min || value > (spec.max ?? Infinity) || spec.integer && !Number.isSafeInteger(value);
        input.setCustomValidity(bad ? `From ${spec.min}${spec.max === undefined ? "" : ` to ${spec.max}`}${spec.integer ? ", whole" : ""}` : "");
        if (bad) input.reportValidity();
        else this.settings.set(spec.name, value);
      }});
    this.#inputs.set(spec.name, {input, spec});
    return h("div", {class: "field number", title: spec.help}, h("label", {for: input.id}, spec.label), input,
        h("span", {class: "visually-hidden", id: `help-${spec.name}`}, spec.help));
  }

  #browserPart() {
    this.key = h("input", {type: "password", id: "key", autocomplete: "off", placeholder: "none",
      onchange: () => {
        this.settings.key = this.key.value.trim();
        this.server.refresh();
      }});
    this.theme = h("div", {class: "segments", role: "radiogroup", "aria-label": "Look"},
        [["auto", "System"], ["light", "Light"], ["dark", "Dark"]].map(([name, label]) =>
          h("label", {}, h("input", {type: "radio", name: "theme", value: name, onchange: () => this.actions.theme(name)}),
              h("span", {}, icon({auto: "auto", light: "sun", dark: "moon"}[name]), label))));
    const file = h("input", {type: "file", accept: "application/json,.json", hidden: true, id: "import-file", onchange: () => {
      if (file.files[0]) this.actions.importFile(file.files[0]);
      file.value = "";
    }});
    this.usage = h("p", {class: "help"});
    this.about = h("p", {class: "help"});
    return section("This browser", field("API key", this.key), h("div", {class: "field"}, h("span", {class: "label"}, "Look"), this.theme),
        h("div", {class: "button-row"},
            h("button", {type: "button", class: "button small", onclick: () => this.actions.exportAll()}, icon("download"), "Export all"),
            h("button", {type: "button", class: "button small", onclick: () => file.click()}, icon("upload"), "Import"), file,
            h("button", {type: "button", class: "button small danger", onclick: () => this.actions.clear()}, icon("trash"), "Delete all")),
        this.usage, this.about);
  }

  // --- What the fields show.

  #values(all = false) {
    for (const [name, {input}] of this.#inputs) {
      if (!all && document.activeElement === input) continue;
      input.value = this.settings.get(name) ?? "";
      input.setCustomValidity("");
    }
    this.stop.value = this.settings.get("stop") ?? "";
    this.key.value = this.settings.key;
    this.thinking.checked = this.settings.get("thinking") ?? this.server.thinking;
    const look = this.settings.get("theme") ?? "auto";
    for (const input of this.theme.querySelectorAll("input")) input.checked = input.value === look;
  }

  #defaults() {
    for (const [name, {input, spec}] of this.#inputs) {
      let value = this.server.defaults[spec.prop ?? name];
      if (name === "seed" || typeof value !== "number" || value < (spec.min ?? -Infinity)) value = undefined;
      const none = {seed: "random", max_tokens: "no limit", thinking_budget: "no limit"}[name] ?? "default";
      input.placeholder = value === undefined ? none : String(Math.round(value * 1e4) / 1e4);
    }
    this.about.textContent = [this.server.model, this.server.build].filter(Boolean).join(" · ");
    this.#values();
  }

  async showUsage(lasting) {
    if (!lasting) {
      this.usage.textContent = "This browser keeps nothing here: conversations last as long as this page.";
      return;
    }
    const estimate = await navigator.storage?.estimate?.();
    this.usage.textContent = estimate?.usage ?
        `Conversations are kept in this browser only; ${(estimate.usage / 1e6).toFixed(1)} MB are in use.` :
        "Conversations are kept in this browser only.";
  }
}

function section(title, ...children) {
  return h("section", {class: "settings-section"}, h("h3", {}, title), ...children);
}

function field(label, input) {
  return h("div", {class: "field"}, h("label", {for: input.id}, label), input);
}
