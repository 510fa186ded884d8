// The field at the bottom: text, thinking switch, context meter, send and stop.

import {h, icon} from "./dom.js";
import {count, plural} from "./format.js";

export class ComposerView {
  // actions: {send(text), stop(), editLast(), thinking()}
  constructor(root, actions) {
    this.actions = actions;
    this.area = root.querySelector("textarea");
    this.sendButton = root.querySelector("#send");
    this.thinkingButton = root.querySelector("#thinking");
    this.meter = root.querySelector("#meter");
    this.meterFill = h("span", {class: "meter-fill"});
    this.meterText = h("span", {class: "meter-text"});
    this.meter.append(h("span", {class: "meter-track"}, this.meterFill), this.meterText);
    this.thinkingButton.prepend(icon("thought"));
    this.thinkingButton.addEventListener("click", () => actions.thinking());
    root.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    this.area.addEventListener("input", () => this.#changed());
    this.area.addEventListener("keydown", (event) => this.#key(event));
    this.setRunning(false);
    // A tap on the frame is meant for the field.
    root.querySelector(".composer-box").addEventListener("click", (event) => {
      if (!event.target.closest("button, textarea, [tabindex]")) this.area.focus();
    });
  }

  get text() { return this.area.value; }
  set text(value) {
    this.area.value = value;
    this.#changed();
  }

  focus() { this.area.focus({preventScroll: true}); }

  setRunning(running) {
    this.running = running;
    const label = running ? "Stop the reply (Esc)" : "Send (Enter)";
    this.sendButton.replaceChildren(icon(running ? "stop" : "send"));
    this.sendButton.title = label;
    this.sendButton.setAttribute("aria-label", running ? "Stop" : "Send");
    this.sendButton.classList.toggle("stop", running);
    this.#changed();
  }

  setThinking(on) {
    this.thinkingButton.setAttribute("aria-pressed", String(on));
    this.thinkingButton.title = on ? "The model thinks before it answers" : "The model answers without thinking";
  }

  setMeter(used, context) {
    this.meter.hidden = !context;
    if (!context) return;
    const share = Math.min(1, used / context);
    this.meterFill.style.width = `${share * 100}%`;
    this.meter.dataset.level = share >= 0.95 ? "full" : share >= 0.8 ? "high" : "";
    this.meterText.textContent = `${count(used)} / ${count(context)}`;
    const label = `Context: ${count(used)} of ${plural(context, "token")} used (${Math.round(share * 100)} %)`;
    this.meter.title = label;
    this.meter.setAttribute("aria-label", label);
  }

  #changed() {
    this.area.style.height = "auto";
    this.area.style.height = `${Math.min(this.area.scrollHeight, window.innerHeight * 0.4)}px`;
    this.sendButton.disabled = !this.running && this.area.value.trim() === "";
    this.actions.draft?.(this.area.value);
  }

  #key(event) {
    if (event.isComposing) return; // Enter that ends an input method's word
    if (event.key === "Enter" && !event.shiftKey && !event.altKey) {
      // On a touch screen the line break has no other key.
      if (matchMedia("(hover: none) and (pointer: coarse)").matches && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (!this.running) this.#submit();
    } else if (event.key === "ArrowUp" && this.area.value === "" && !this.running) {
      if (this.actions.editLast()) event.preventDefault();
    }
  }

  #submit() {
    if (this.running) {
      this.actions.stop();
      return;
    }
    const text = this.area.value.trim();
    if (text === "") return;
    this.text = "";
    this.actions.send(text);
  }
}
