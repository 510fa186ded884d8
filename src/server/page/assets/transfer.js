// Conversations as a JSON file, out and in.

import {newId} from "./dom.js";

const FORMAT = "gem-conversations";

export async function exportConversations(store, ids = null) {
  const records = (await store.list()).filter((record) => !ids || ids.includes(record.id));
  const conversations = [];
  for (const record of records) conversations.push({...record, messages: await store.messages(record.id)});
  return JSON.stringify({format: FORMAT, version: 1, exported: new Date().toISOString(), conversations}, null, 1);
}

const text = (value, limit = 10_000_000) => (typeof value === "string" ? value.slice(0, limit) : "");
const number = (value, otherwise) => (Number.isFinite(value) ? value : otherwise);

// Checked and freshly numbered copies of what the file holds: [{record, messages}]. Throws Error with a message for
// the user.
export function readImport(json) {
  let file;
  try {
    file = JSON.parse(json);
  } catch {
    throw new Error("This is not a JSON file.");
  }
  if (file?.format !== FORMAT || !Array.isArray(file.conversations)) {
    throw new Error("This file holds no conversations of this page.");
  }
  if (file.version !== 1) throw new Error(`This file is of version ${file.version}; this page reads version 1.`);
  return file.conversations.map(readConversation).filter((one) => one !== null);
}

function readConversation(source) {
  if (typeof source !== "object" || source === null || !Array.isArray(source.messages)) return null;
  const now = Date.now();
  const record = {
    id: newId(), title: text(source.title, 500), named: source.named === true, system: text(source.system),
    tools: text(source.tools), created: number(source.created, now), updated: number(source.updated, now), leaf: null,
  };
  const ids = new Map();
  for (const message of source.messages) {
    if (typeof message?.id === "string" && ["user", "assistant", "tool"].includes(message.role)) {
      ids.set(message.id, newId());
    }
  }
  const messages = source.messages.filter((message) => ids.has(message?.id)).map((message, i) => ({
    id: ids.get(message.id), conversation: record.id, parent: ids.get(message.parent) ?? null,
    order: number(message.order, i), role: message.role, content: text(message.content),
    created: number(message.created, now),
    status: ["stopped", "interrupted", "error"].includes(message.status) ? message.status :
        message.status === "streaming" ? "interrupted" : "done",
    ...(message.role === "tool" && {toolCallId: text(message.toolCallId, 200), name: text(message.name, 200)}),
    ...(message.role === "assistant" && readReply(message)),
  }));
  record.leaf = ids.get(source.leaf) ?? messages.at(-1)?.id ?? null;
  return {record, messages};
}

function readReply(message) {
  const calls = Array.isArray(message.toolCalls) ? message.toolCalls : [];
  const result = {reasoning: text(message.reasoning), model: text(message.model, 200), finish: text(message.finish, 50)};
  if (calls.length > 0) {
    result.toolCalls = calls.map((call, i) =>
      ({id: text(call?.id, 200) || `call_${i}`, name: text(call?.name, 200), arguments: text(call?.arguments)}));
  }
  if (Number.isFinite(message.thoughtMs)) result.thoughtMs = message.thoughtMs;
  for (const field of ["stats", "usage"]) {
    const source = message[field];
    if (typeof source !== "object" || source === null) continue;
    result[field] = Object.fromEntries(Object.entries(source).filter(([, value]) => Number.isFinite(value)));
  }
  if (message.status === "error" && typeof message.error?.message === "string") {
    result.error = {kind: text(message.error.kind, 20), message: text(message.error.message, 2000)};
  }
  return result;
}
