// What the user has chosen, kept in localStorage of this browser: sampling and thinking for all conversations, the
// look, and the API key. A value that is absent is the server's default.

const SETTINGS = "gem.settings";
const KEY = "gem.key";

export class Settings extends EventTarget {
  #values = read(SETTINGS) ?? {};

  get values() { return this.#values; }
  get(name) { return this.#values[name]; }

  set(name, value) {
    if (value === undefined || value === null || value === "") delete this.#values[name];
    else this.#values[name] = value;
    write(SETTINGS, JSON.stringify(this.#values));
    this.dispatchEvent(new CustomEvent("change", {detail: name}));
  }

  #key = read(KEY, false) ?? "";
  get key() { return this.#key; }
  set key(value) {
    this.#key = value;
    write(KEY, value || null);
  }
}

function read(name, parse = true) {
  try {
    const text = localStorage.getItem(name);
    return text !== null && parse ? JSON.parse(text) : text;
  } catch {
    return null;
  }
}

function write(name, text) {
  try {
    if (text === null) localStorage.removeItem(name);
    else localStorage.setItem(name, text);
  } catch { /* then it lasts as long as the page */ }
}
