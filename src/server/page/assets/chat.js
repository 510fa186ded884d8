// The conversations and the replies being made. Knows nothing of how they look: it announces what changes with the
// events "list", "conversation" (detail: id) and "failure" (detail: ApiFailure).

import {ApiFailure} from "./api.js";
import {Conversation} from "./conversation.js";
import {newId} from "./dom.js";
import {ReplyReader} from "./reply.js";
import {chatRequest, SettingsFault} from "./request.js";

const SAVE_EVERY = 500; // milliseconds, of a reply in the making
const FOREIGN_FRESH = 10000; // a reply that another tab saved that recently is still being made there
const LOADING_TRIES = 120; // seconds of waiting for a model that loads
const BUSY_TRIES = 5;

// The same after a reload of this tab, another one in every other tab.
function tabId() {
  try {
    const id = sessionStorage.getItem("gem.tab") ?? newId();
    sessionStorage.setItem("gem.tab", id);
    return id;
  } catch {
    return newId();
  }
}

export class Chat extends EventTarget {
  records = [];
  #open = new Map(); // conversations in memory
  #running = new Map(); // conversation id → {message, controller, reader, waiting, saved}
  #tab = tabId();
  #channel = typeof BroadcastChannel === "function" ? new BroadcastChannel("gem") : null;

  constructor(store, api, settings, server) {
    super();
    this.store = store;
    this.api = api;
    this.settings = settings;
    this.server = server;
    this.#channel?.addEventListener("message", ({data}) => this.#changedElsewhere(data));
    window.addEventListener("pagehide", () => this.#running.forEach((run, id) => this.#save(id, [run.message], false)));
  }

  async load() {
    this.records = await this.store.list();
    this.#tell("list");
  }

  running(id) {
    return this.#running.get(id) ?? null;
  }

  async open(id) {
    const known = this.#open.get(id);
    if (known) return known;
    const record = await this.store.conversation(id);
    if (!record) return null;
    const messages = await this.store.messages(id);
    const orphans = messages.filter((message) => message.status === "streaming" && this.#abandoned(message));
    orphans.forEach((message) => { message.status = "interrupted"; });
    const conversation = new Conversation(record, messages);
    this.#open.set(id, conversation);
    if (orphans.length > 0) await this.#save(id, orphans);
    return conversation;
  }

  #abandoned(message) {
    return message.writer === this.#tab || Date.now() - (message.touched ?? 0) > FOREIGN_FRESH;
  }

  // A new conversation; it is kept once something is said in it.
  begin(fields = {}) {
    const conversation = Conversation.create(fields);
    this.#open.set(conversation.id, conversation);
    return conversation;
  }

  async change(conversation, fields) {
    Object.assign(conversation.record, fields);
    if (conversation.messages.size > 0) await this.#save(conversation.id, []);
    this.#tell("conversation", conversation.id);
  }

  async rename(id, title) {
    const conversation = await this.open(id);
    if (conversation) await this.change(conversation, {title, named: true});
  }

  // Resolves with a function that brings it back.
  async removeConversation(id) {
    this.stop(id);
    await this.#running.get(id)?.done;
    const conversation = await this.open(id);
    this.#open.delete(id);
    this.records = this.records.filter((record) => record.id !== id);
    await this.store.removeConversation(id);
    this.#announce(id);
    this.#tell("list");
    return async () => {
      this.#open.set(id, conversation);
      await this.#save(id, [...conversation.messages.values()]);
      this.#tell("list");
    };
  }

  async removeMessage(conversation, message) {
    if (this.#running.has(conversation.id)) return null;
    const {leaf} = conversation.record;
    const removed = conversation.remove(message.id);
    await this.store.removeMessages(conversation.record, removed.map(({id}) => id));
    this.#announce(conversation.id);
    this.#tell("conversation", conversation.id);
    return async () => {
      conversation.restore(removed, leaf);
      await this.#save(conversation.id, removed);
      this.#tell("conversation", conversation.id);
    };
  }

  async importConversations(entries) {
    for (const {record, messages} of entries) await this.store.save(record, messages);
    await this.load();
    this.#announce(null);
  }

  async clear() {
    [...this.#running.keys()].forEach((id) => this.stop(id));
    await Promise.all([...this.#running.values()].map((run) => run.done));
    this.#open.clear();
    await this.store.clear();
    await this.load();
    this.#announce(null);
  }

  // --- What the user does in a conversation. Each returns when the reply is complete.

  async send(conversation, text) {
    if (this.#running.has(conversation.id)) return;
    conversation.add({role: "user", content: text});
    await this.#reply(conversation);
  }

  async sendToolResults(conversation, results) {
    if (this.#running.has(conversation.id)) return;
    const added = results.map(({call, content}) =>
      conversation.add({role: "tool", toolCallId: call.id, name: call.name, content}));
    await this.#save(conversation.id, added);
    await this.#reply(conversation);
  }

  // The user's message in other words, on a branch of its own, and a reply to it.
  async edit(conversation, message, text) {
    if (this.#running.has(conversation.id)) return;
    if (message.role === "assistant") {
      message.content = text;
      await this.#save(conversation.id, [message]);
      this.#tell("conversation", conversation.id);
      return;
    }
    conversation.add({role: message.role, content: text, toolCallId: message.toolCallId, name: message.name},
        message.parent);
    await this.#reply(conversation);
  }

  // Another reply in place of this one. One that failed without a word is replaced, others stay as a branch.
  async regenerate(conversation, message) {
    if (this.#running.has(conversation.id)) return;
    const parent = message.role === "assistant" ? message.parent : message.id;
    if (message.role === "assistant" && !message.content && !message.reasoning && !message.toolCalls?.length) {
      const removed = conversation.remove(message.id);
      // The reply begins at once: a second click finds it running.
      const gone = this.store.removeMessages(conversation.record, removed.map(({id}) => id));
      await Promise.all([gone, this.#reply(conversation, parent)]);
      return;
    }
    await this.#reply(conversation, parent);
  }

  async resume(conversation, message) {
    if (this.#running.has(conversation.id)) return;
    await this.#run(conversation, message, conversation.path(message.id));
  }

  async select(conversation, id) {
    if (this.#running.has(conversation.id)) return;
    conversation.select(id);
    await this.#save(conversation.id, []);
    this.#tell("conversation", conversation.id);
  }

  stop(id) {
    this.#running.get(id)?.controller.abort();
  }

  // --- One reply.

  async #reply(conversation, parent = conversation.record.leaf) {
    const path = conversation.path(parent);
    const message = conversation.add({role: "assistant", status: "streaming"}, parent);
    await this.#run(conversation, message, path);
  }

  #run(conversation, message, path) {
    const run = {message, controller: new AbortController(), reader: new ReplyReader(message), waiting: "", saved: 0};
    this.#running.set(conversation.id, run);
    run.done = this.#make(conversation, run, path);
    return run.done;
  }

  async #make(conversation, run, path) {
    const {message, controller} = run;
    Object.assign(message, {status: "streaming", writer: this.#tab, error: undefined, finish: undefined});
    // The user's words are kept before anything else is tried.
    await this.#save(conversation.id, [...path.slice(-1), message]);
    this.#tell("conversation", conversation.id);
    try {
      const {system, tools} = conversation.record;
      const request =
          chatRequest({model: this.server.model, system, tools, path, settings: this.settings.values});
      await this.#stream(conversation, run, request);
      message.status = "done";
    } catch (error) {
      if (controller.signal.aborted) {
        message.status = "stopped";
      } else {
        const failure = error instanceof ApiFailure ? error :
            error instanceof SettingsFault ? new ApiFailure("settings", error.message) :
            new ApiFailure("page", `The page failed: ${error.message}`);
        message.status = failure.kind === "cut" && (message.content || message.reasoning) ? "interrupted" : "error";
        const {kind, message: words, promptTokens, context} = failure;
        message.error = {kind, message: words, promptTokens, context};
        this.#tell("failure", failure);
      }
    }
    run.reader.end();
    this.#running.delete(conversation.id);
    conversation.record.updated = Date.now();
    await this.#save(conversation.id, [message]);
    this.#tell("conversation", conversation.id);
  }

  async #stream(conversation, run, request) {
    const {message, controller, reader} = run;
    for (let tries = 0;; ++tries) {
      try {
        for await (const chunk of this.api.chat(request, controller.signal)) {
          run.waiting = "";
          reader.apply(chunk);
          this.#tell("conversation", conversation.id);
          if (Date.now() - run.saved > SAVE_EVERY) this.#save(conversation.id, [message], false);
        }
        return;
      } catch (failure) {
        const seconds = failure.kind === "loading" && tries < LOADING_TRIES ? 1 :
            failure.kind === "busy" && tries < BUSY_TRIES ? Math.min(failure.retryAfter ?? 2, 30) : 0;
        if (seconds === 0 || reader.first !== null) throw failure;
        run.waiting = failure.kind === "loading" ? "The model is being loaded…" : "The server is busy, trying again…";
        this.#tell("conversation", conversation.id);
        await pause(seconds * 1000, controller.signal);
      }
    }
  }

  // --- Keeping.

  async #save(id, messages, touchRecord = true) {
    const conversation = this.#open.get(id);
    if (!conversation) return;
    const run = this.#running.get(id);
    if (run) run.saved = Date.now();
    messages.forEach((message) => { if (message.status === "streaming") message.touched = Date.now(); });
    if (touchRecord) {
      this.records = [conversation.record, ...this.records.filter((record) => record.id !== id)]
          .sort((a, b) => b.updated - a.updated);
      this.#tell("list");
    }
    try {
      await this.store.save(touchRecord ? conversation.record : null, messages);
      this.#announce(id);
    } catch (error) {
      this.#tell("unsaved", error);
    }
  }

  #announce(id) {
    this.#channel?.postMessage({id});
  }

  async #changedElsewhere({id}) {
    this.records = await this.store.list();
    if (id && this.#open.has(id) && !this.#running.has(id)) {
      const record = await this.store.conversation(id);
      if (record) {
        const conversation = this.#open.get(id);
        const fresh = new Conversation(record, await this.store.messages(id));
        Object.assign(conversation, {record: fresh.record, messages: fresh.messages, order: fresh.order});
        this.#tell("conversation", id);
      } else {
        this.#open.delete(id);
      }
    }
    this.#tell("list");
  }

  #tell(type, detail) {
    this.dispatchEvent(new CustomEvent(type, {detail}));
  }
}

function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, {once: true});
  });
}
