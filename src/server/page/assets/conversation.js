// A conversation: a tree of messages, of which the path from the root to `record.leaf` is shown. Editing a message
// or asking for another reply adds a branch and keeps the old one.
//
// record: {id, title, named, system, tools, created, updated, leaf}
// message: {id, conversation, parent, order, role: "user" | "assistant" | "tool", content, created, status}, and
//   assistant: {reasoning, thoughtMs, toolCalls: [{id, name, arguments}], finish, error, stats, usage, model}
//   tool: {toolCallId, name}
// status: "done", "streaming" (being written), "stopped" (by the user), "interrupted" (page or connection went
//   away) or "error".

import {newId} from "./dom.js";

export class Conversation {
  constructor(record, messages = []) {
    this.record = record;
    this.messages = new Map(messages.map((message) => [message.id, message]));
    this.order = messages.reduce((most, message) => Math.max(most, message.order), 0);
  }

  static create(fields = {}) {
    const now = Date.now();
    return new Conversation(
        {id: newId(), title: "", named: false, system: "", tools: "", created: now, updated: now, leaf: null, ...fields});
  }

  get id() { return this.record.id; }

  path(leaf = this.record.leaf) {
    const result = [];
    const seen = new Set();
    for (let at = this.messages.get(leaf); at && !seen.has(at.id); at = this.messages.get(at.parent)) {
      seen.add(at.id);
      result.push(at);
    }
    return result.reverse();
  }

  children(id) {
    return [...this.messages.values()].filter((message) => message.parent === id).sort((a, b) => a.order - b.order);
  }

  siblings(message) {
    return this.children(message.parent);
  }

  // Adds a message below `parent` and shows it.
  add(fields, parent = this.record.leaf) {
    const message = {
      id: newId(), conversation: this.id, parent, order: ++this.order, created: Date.now(), status: "done",
      content: "", ...fields,
    };
    this.messages.set(message.id, message);
    this.record.leaf = message.id;
    this.record.updated = Date.now();
    if (!this.record.named && message.role === "user" && !this.record.title) this.record.title = titleOf(message.content);
    return message;
  }

  // Shows the branch through this message that was written last.
  select(id) {
    let leaf = id;
    for (let below = this.children(leaf); below.length > 0; below = this.children(leaf)) {
      leaf = below[below.length - 1].id;
    }
    this.record.leaf = leaf;
  }

  // Takes out a message and all that follows it, on every branch; what was taken, for undo.
  remove(id) {
    const removed = [];
    const collect = (at) => {
      this.children(at).forEach((child) => collect(child.id));
      removed.push(this.messages.get(at));
    };
    const message = this.messages.get(id);
    collect(id);
    removed.forEach((one) => this.messages.delete(one.id));
    if (!this.messages.has(this.record.leaf)) {
      const others = this.siblings(message);
      if (others.length > 0) this.select(others[others.length - 1].id);
      else this.record.leaf = message.parent;
    }
    return removed;
  }

  restore(messages, leaf) {
    messages.forEach((message) => this.messages.set(message.id, message));
    this.record.leaf = leaf;
  }

  // Tool calls at the end of the path that have no result yet.
  openCalls() {
    const last = this.path().at(-1);
    return last?.role === "assistant" && last.status === "done" ? last.toolCalls ?? [] : [];
  }
}

export function titleOf(text) {
  const line = text.trim().split(/\s*\n/, 1)[0];
  return line.length > 60 ? line.slice(0, 60).replace(/\s+\S*$/, "") + "…" : line;
}
