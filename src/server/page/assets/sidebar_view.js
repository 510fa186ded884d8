// The list of conversations: by day, searched, renamed, deleted.

import {h, iconButton} from "./dom.js";
import {dayGroup} from "./format.js";

export class SidebarView {
  #records = [];
  #found = null; // ids whose messages hold the search text
  #searching = 0;
  #renaming = null;
  #drawn = ""; // what the list looked like when it was last drawn

  // actions: {open(id), rename(id, title), remove(id), download(id), search(text), running(id)}
  constructor(root, actions) {
    this.actions = actions;
    this.list = root.querySelector("#conversations");
    this.search = root.querySelector("#search");
    this.search.addEventListener("input", () => this.#search());
    this.search.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.search.value) {
        event.stopPropagation();
        this.search.value = "";
        this.#search();
      } else if (event.key === "ArrowDown") {
        event.preventDefault();
        this.list.querySelector(".entry-title")?.focus();
      }
    });
    this.list.addEventListener("keydown", (event) => this.#arrows(event));
  }

  update(records, current) {
    this.#records = records;
    this.current = current;
    if (this.#renaming) return;
    // Called often while a reply is written: the list is left alone unless it would look different.
    const look = records.map(({id, title, updated}) => [id, title, dayGroup(updated), this.actions.running(id)]);
    const key = JSON.stringify([current, look]);
    if (key === this.#drawn) return;
    this.#drawn = key;
    this.#draw();
  }

  async #search() {
    const text = this.search.value.trim();
    const turn = ++this.#searching;
    const found = text === "" ? null : await this.actions.search(text);
    if (turn !== this.#searching) return; // more was typed meanwhile
    this.#found = found;
    this.#draw();
  }

  #draw() {
    const text = this.search.value.trim().toLowerCase();
    const records = this.#records.filter((record) =>
      !text || record.title.toLowerCase().includes(text) || this.#found?.has(record.id));
    const focused = document.activeElement?.closest?.(".entry")?.dataset.id;
    const children = [];
    let group = "";
    for (const record of records) {
      const name = dayGroup(record.updated);
      if (name !== group) children.push(h("li", {class: "group", role: "presentation"}, name));
      group = name;
      children.push(this.#entry(record));
    }
    if (records.length === 0) {
      children.push(h("li", {class: "empty"}, text ? "Nothing found." : "Conversations are kept in this browser."));
    }
    this.list.replaceChildren(...children);
    if (focused) this.list.querySelector(`[data-id="${focused}"] .entry-title`)?.focus();
  }

  #entry(record) {
    const title = record.title || "New conversation";
    const current = record.id === this.current;
    const entry = h("li", {class: `entry${current ? " current" : ""}`},
        h("button", {type: "button", class: "entry-title", title, "aria-current": current ? "page" : null,
          onclick: () => this.actions.open(record.id), ondblclick: () => this.#rename(entry, record)}, title),
        this.actions.running(record.id) ? h("span", {class: "entry-running", title: "A reply is being written"}) : null,
        h("span", {class: "entry-actions"},
            iconButton("edit", `Rename “${title}”`, () => this.#rename(entry, record)),
            iconButton("download", `Export “${title}”`, () => this.actions.download(record.id)),
            iconButton("trash", `Delete “${title}”`, () => this.actions.remove(record.id))));
    entry.dataset.id = record.id;
    return entry;
  }

  #rename(entry, record) {
    this.#renaming = record.id;
    const input = h("input", {class: "entry-rename", "aria-label": "Title", maxlength: "200"});
    input.value = record.title;
    let open = true;
    const finish = (save) => {
      if (!open) return;
      open = false;
      this.#renaming = null;
      const title = input.value.trim();
      if (save && title && title !== record.title) this.actions.rename(record.id, title);
      this.#draw();
      this.list.querySelector(`[data-id="${record.id}"] .entry-title`)?.focus();
    };
    input.addEventListener("keydown", (event) => {
      event.stopPropagation();
      if (event.key === "Enter") finish(true);
      else if (event.key === "Escape") finish(false);
    });
    input.addEventListener("blur", () => finish(true));
    entry.replaceChildren(input);
    input.focus();
    input.select();
  }

  #arrows(event) {
    const entry = event.target.closest?.(".entry");
    if (!entry) return;
    const titles = [...this.list.querySelectorAll(".entry-title")];
    const at = titles.indexOf(entry.querySelector(".entry-title"));
    if (event.key === "ArrowDown") titles[Math.min(at + 1, titles.length - 1)].focus();
    else if (event.key === "ArrowUp") (at === 0 ? this.search : titles[at - 1]).focus();
    else if (event.key === "F2") entry.querySelector(".entry-actions button").click();
    else if (event.key === "Delete") entry.querySelector(".entry-actions button:last-child").click();
    else return;
    event.preventDefault();
  }
}
