// Where conversations are kept: IndexedDB of this browser, two tables (conversations, messages), so that a reply in
// the making rewrites one small record. Where the browser has none (some private windows), memory, and the page says so.

const NAME = "gem";
const VERSION = 1;

export class StoreFull extends Error {}

export async function openStore() {
  try {
    return new BrowserStore(await openDatabase());
  } catch {
    return new MemoryStore();
  }
}

function openDatabase() {
  return new Promise((resolve, reject) => {
    const request = indexedDB.open(NAME, VERSION);
    request.onupgradeneeded = () => {
      const database = request.result;
      database.createObjectStore("conversations", {keyPath: "id"});
      database.createObjectStore("messages", {keyPath: "id"}).createIndex("conversation", "conversation");
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // a newer page in another tab
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("blocked"));
  });
}

class BrowserStore {
  lasting = true;

  constructor(database) {
    this.database = database;
  }

  // Runs `work(conversations, messages)` in one transaction; resolves with the result of the request that it returns.
  #run(mode, work) {
    return new Promise((resolve, reject) => {
      let result;
      const transaction = this.database.transaction(["conversations", "messages"], mode);
      const fail = () => {
        const error = transaction.error;
        reject(error?.name === "QuotaExceededError" ? new StoreFull("The browser's storage is full.") : error);
      };
      transaction.oncomplete = () => resolve(result?.result);
      transaction.onabort = fail;
      transaction.onerror = fail;
      result = work(transaction.objectStore("conversations"), transaction.objectStore("messages"));
    });
  }

  async list() {
    const all = await this.#run("readonly", (conversations) => conversations.getAll());
    return all.sort((a, b) => b.updated - a.updated);
  }

  conversation(id) {
    return this.#run("readonly", (conversations) => conversations.get(id));
  }

  messages(conversation) {
    return this.#run("readonly", (_, messages) => messages.index("conversation").getAll(conversation));
  }

  save(record, messages = []) {
    return this.#run("readwrite", (conversations, table) => {
      if (record) conversations.put(record);
      messages.forEach((message) => table.put(message));
    });
  }

  removeMessages(record, ids) {
    return this.#run("readwrite", (conversations, messages) => {
      conversations.put(record);
      ids.forEach((id) => messages.delete(id));
    });
  }

  removeConversation(id) {
    return this.#run("readwrite", (conversations, messages) => {
      conversations.delete(id);
      const cursor = messages.index("conversation").openKeyCursor(id);
      cursor.onsuccess = () => {
        if (!cursor.result) return;
        messages.delete(cursor.result.primaryKey);
        cursor.result.continue();
      };
    });
  }

  clear() {
    return this.#run("readwrite", (conversations, messages) => {
      conversations.clear();
      messages.clear();
    });
  }

  // Ids of the conversations with a message that holds `text`.
  async search(text) {
    const wanted = text.toLowerCase();
    const found = new Set();
    await this.#run("readonly", (_, messages) => {
      const cursor = messages.openCursor();
      cursor.onsuccess = () => {
        if (!cursor.result) return;
        const {conversation, content} = cursor.result.value;
        if (content?.toLowerCase().includes(wanted)) found.add(conversation);
        cursor.result.continue();
      };
    });
    return found;
  }
}

class MemoryStore {
  lasting = false;
  #conversations = new Map();
  #messages = new Map();

  async list() { return [...this.#conversations.values()].sort((a, b) => b.updated - a.updated); }
  async conversation(id) { return this.#conversations.get(id); }
  async messages(id) { return [...this.#messages.values()].filter((message) => message.conversation === id); }
  async save(record, messages = []) {
    if (record) this.#conversations.set(record.id, structuredClone(record));
    messages.forEach((message) => this.#messages.set(message.id, structuredClone(message)));
  }
  async removeMessages(record, ids) {
    await this.save(record);
    ids.forEach((id) => this.#messages.delete(id));
  }
  async removeConversation(id) {
    this.#conversations.delete(id);
    for (const message of await this.messages(id)) this.#messages.delete(message.id);
  }
  async clear() {
    this.#conversations.clear();
    this.#messages.clear();
  }
  async search(text) {
    const wanted = text.toLowerCase();
    const found = [...this.#messages.values()].filter((message) => message.content.toLowerCase().includes(wanted));
    return new Set(found.map((message) => message.conversation));
  }
}
