// The page: puts its parts together.

import {Api} from "./api.js";
import {Chat} from "./chat.js";
import {ComposerView} from "./composer_view.js";
import {downloadText, h, icon, iconButton} from "./dom.js";
import {count, parameters} from "./format.js";
import {confirmDialog, keyDialog, shortcutsDialog, toast} from "./notices.js";
import {Server} from "./server.js";
import {Settings} from "./settings.js";
import {SettingsView} from "./settings_view.js";
import {SidebarView} from "./sidebar_view.js";
import {openStore} from "./store.js";
import {ThreadView} from "./thread_view.js";
import {exportConversations, readImport} from "./transfer.js";

const $ = (id) => document.getElementById(id);
const NARROW = matchMedia("(max-width: 820px)"); // as in layout.css: panels lie over the conversation
const ANNOUNCED = 2000; // characters at once to screen readers: nobody listens to more than the end of it
const SUGGESTIONS = ["Hello, who are you?", "What is 25 + 17?", "What is the capital of France?",
  "Tell me a short story about a lighthouse."];

const settings = new Settings();
const api = new Api(new URL(".", document.baseURI), () => settings.key);
const server = new Server(api);
const store = await openStore();
const chat = new Chat(store, api, settings, server);
let current = null; // the open conversation
const drafts = new Map(); // conversation id → what was typed and not sent

// --- Views.

const sidebar = new SidebarView($("sidebar"), {
  open: (id) => openConversation(id),
  rename: (id, title) => chat.rename(id, title),
  remove: (id) => removeConversation(id),
  download: async (id) => saveFile(await exportConversations(store, [id])),
  search: (text) => store.search(text),
  running: (id) => chat.running(id) !== null,
});

const thread = new ThreadView({
  scroller: $("scroller"), list: $("thread"), jump: $("jump"), welcome: $("welcome"),
  run: (id) => chat.running(id),
  announce: (text) => { $("announcer").textContent = text.slice(-ANNOUNCED); },
  actions: {
    edit: (message, text) => chat.edit(current, message, text),
    regenerate: (message) => chat.regenerate(current, message),
    resume: (message) => chat.resume(current, message),
    select: (id) => chat.select(current, id),
    results: (message, results) => chat.sendToolResults(current, results),
    settings: () => showPanel("settings"),
    key: async (message) => {
      if (await askKey()) chat.regenerate(current, message);
    },
    remove: async (message) => {
      const undo = await chat.removeMessage(current, message);
      if (undo) toast($("toasts"), "Deleted.", {label: "Undo", run: undo});
    },
  },
});

const composer = new ComposerView($("composer"), {
  send: (text) => {
    thread.toEnd();
    chat.send(current, text);
  },
  stop: () => chat.stop(current.id),
  thinking: () => settings.set("thinking", !thinkingOn()),
  draft: (text) => { if (current) drafts.set(current.id, text); },
  editLast: () => {
    const last = current.path().filter((message) => message.role === "user").at(-1);
    if (!last || chat.running(current.id)) return false;
    thread.view(last.id)?.startEditing();
    return true;
  },
});

const panel = new SettingsView($("settings-body"), settings, server, {
  change: (conversation, fields) => chat.change(conversation, fields),
  asDefault: ({record}) => {
    settings.set("system", record.system);
    settings.set("tools", record.tools);
  },
  exportAll: async () => saveFile(await exportConversations(store)),
  importFile: async (file) => {
    try {
      const entries = readImport(await file.text());
      await chat.importConversations(entries);
      toast($("toasts"), `${entries.length} imported.`);
    } catch (error) {
      toast($("toasts"), error.message);
    }
  },
  clear: async () => {
    const sure = await confirmDialog("Delete all conversations?", "They are kept nowhere else. This cannot be undone.", "Delete all");
    if (!sure) return;
    await chat.clear();
    newConversation();
  },
  theme: (name) => settings.set("theme", name === "auto" ? null : name),
});

// --- Conversations.

function newConversation() {
  show(chat.begin({system: settings.get("system") ?? "", tools: settings.get("tools") ?? ""}));
  if (location.hash) history.pushState(null, "", location.pathname + location.search);
  hidePanels();
  composer.focus();
}

async function openConversation(id) {
  const conversation = await chat.open(id);
  if (!conversation) return newConversation();
  show(conversation);
  if (location.hash !== `#${id}`) history.pushState(null, "", `#${id}`);
  if (NARROW.matches) hidePanels();
  if (!NARROW.matches) composer.focus();
}

function show(conversation) {
  current = null; // the field's old text is not this one's draft
  composer.text = drafts.get(conversation.id) ?? "";
  current = conversation;
  thread.show(conversation);
  panel.show(conversation);
  refresh();
}

async function removeConversation(id) {
  const undo = await chat.removeConversation(id);
  if (current?.id === id) newConversation();
  toast($("toasts"), "Conversation deleted.", {label: "Undo", run: async () => {
    await undo();
    openConversation(id);
  }});
}

function saveFile(json) {
  downloadText(`gem-conversations-${new Date().toISOString().slice(0, 10)}.json`, json);
}

// --- What all parts show.

const thinkingOn = () => settings.get("thinking") ?? server.thinking;

function refresh() {
  if (!current) return;
  const title = current.record.title || "New conversation";
  $("title").textContent = title;
  document.title = current.record.title ? `${title} – gem` : "gem";
  composer.setRunning(chat.running(current.id) !== null);
  composer.setThinking(thinkingOn());
  composer.setMeter(contextUsed(), server.context);
  sidebar.update(chat.records, current.id);
}

// As the last reply left it; the tokens of a running one are counted as they come.
function contextUsed() {
  const progress = chat.running(current.id)?.reader.progress;
  if (progress) return progress.processed;
  for (const {usage, stats, status} of current.path().reverse()) {
    if (status === "streaming" && stats?.tokens) return (stats.promptTokens ?? 0) + (stats.cachedTokens ?? 0) + stats.tokens;
    if (usage?.total) return usage.total;
    if (stats?.tokens) return (stats.promptTokens ?? 0) + (stats.cachedTokens ?? 0) + stats.tokens;
  }
  return 0;
}

function applyTheme() {
  const theme = settings.get("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

let lastState = "unknown";
function showServer() {
  const {state} = server;
  $("model").hidden = !server.model;
  $("model").textContent = server.model;
  $("model").title = [server.model, server.parameters ? `${parameters(server.parameters)} parameters` : "",
    server.context ? `context of ${count(server.context)} tokens` : "", server.build].filter(Boolean).join("\n");
  const banner = $("banner");
  banner.hidden = state === "ready" || state === "unknown";
  banner.dataset.state = state;
  if (state === "away") banner.replaceChildren(h("span", {class: "dots"}), "The server does not answer. Looking for it…");
  if (state === "loading") banner.replaceChildren(h("span", {class: "dots"}), "The model is being loaded…");
  if (state === "key") {
    banner.replaceChildren(icon("key"), settings.key ? "The server did not accept the key." : "This server wants an API key.",
        h("button", {type: "button", class: "button small", onclick: () => askKey()}, "Enter key"));
  }
  if (state === "ready" && lastState === "away") toast($("toasts"), "The server is back.", null, 3000);
  lastState = state;
  refresh();
}

async function askKey() {
  const key = await keyDialog(settings.key, settings.key !== "" && server.state === "key");
  if (key === null) return false;
  settings.key = key;
  await server.refresh();
  settings.dispatchEvent(new CustomEvent("change"));
  return server.state === "ready";
}

function buildWelcome() {
  $("welcome").append(
      h("img", {src: "page/icon.svg", alt: "", width: "44", height: "44"}),
      h("p", {class: "welcome-title"}, "What would you like to know?"),
      h("div", {class: "suggestions"}, SUGGESTIONS.map((text) =>
        h("button", {type: "button", class: "suggestion", onclick: () => {
          composer.text = "";
          chat.send(current, text);
          composer.focus();
        }}, text))));
}

// --- Panels: beside the conversation, or over it on a narrow screen.

function showPanel(name) {
  const narrow = NARROW.matches;
  if (name === "settings") {
    $("settings").hidden = false;
    panel.showUsage(store.lasting);
    $("settings").querySelector(".panel-head button").focus();
  } else {
    document.body.classList.add("sidebar-open");
    document.body.classList.remove("sidebar-closed");
    $("search").focus({preventScroll: true});
  }
  menuButton.setAttribute("aria-expanded", String(sidebarShown()));
  if (!narrow) return;
  if (name === "settings") document.body.classList.remove("sidebar-open");
  else $("settings").hidden = true;
  $("shade").hidden = false;
  $("main").inert = true;
}

const sidebarShown = () => NARROW.matches ? document.body.classList.contains("sidebar-open") :
    !document.body.classList.contains("sidebar-closed");

// True when something was open.
function hidePanels() {
  const open = !$("shade").hidden || !$("settings").hidden && NARROW.matches;
  document.body.classList.remove("sidebar-open");
  if (NARROW.matches) $("settings").hidden = true;
  $("shade").hidden = true;
  $("main").inert = false;
  menuButton.setAttribute("aria-expanded", String(sidebarShown()));
  return open;
}

function closeSettings() {
  $("settings").hidden = true;
  hidePanels();
  settingsButton.focus();
}

const menuButton = iconButton("menu", "Conversations", () => {
  if (NARROW.matches) return showPanel("sidebar");
  document.body.classList.toggle("sidebar-closed");
  menuButton.setAttribute("aria-expanded", String(sidebarShown()));
}, {id: "menu", "aria-expanded": "true", "aria-controls": "sidebar"});
const settingsButton = iconButton("sliders", "Settings", () => ($("settings").hidden ? showPanel("settings") : closeSettings()),
    {id: "settings-button", "aria-controls": "settings"});
document.querySelector(".top").prepend(menuButton);
document.querySelector(".top").append(settingsButton);
document.querySelector(".sidebar-head").append(iconButton("close", "Close", () => {
  hidePanels();
  menuButton.focus();
}, {class: "icon-button drawer-close"}));
document.querySelector(".panel-head").append(iconButton("close", "Close settings", closeSettings));
$("new").append(icon("plus"), "New conversation");
$("new").addEventListener("click", newConversation);
document.querySelector(".search-field").prepend(icon("search"));
document.querySelector(".sidebar-foot").append(
    h("button", {type: "button", class: "button quiet", onclick: () => shortcutsDialog()}, "Keyboard"),
    h("button", {type: "button", class: "button quiet", onclick: () => showPanel("settings")}, icon("sliders"), "Settings"));
$("shade").addEventListener("click", hidePanels);
NARROW.addEventListener("change", () => {
  hidePanels();
  $("main").inert = false;
});

window.addEventListener("popstate", () => {
  const id = location.hash.slice(1);
  if (id && id !== current.id) openConversation(id);
  else if (!id && current.messages.size > 0) newConversation();
});

document.addEventListener("keydown", (event) => {
  if (event.defaultPrevented || document.querySelector("dialog[open]")) return;
  const command = event.ctrlKey || event.metaKey;
  const typing = event.target.closest?.("input, textarea");
  if (event.key === "Escape") {
    if (hidePanels()) menuButton.focus();
    else if (chat.running(current.id)) chat.stop(current.id);
    else if (!$("settings").hidden) closeSettings();
    else return;
  } else if (command && event.shiftKey && event.code === "KeyO") {
    newConversation();
  } else if (command && !event.shiftKey && event.code === "KeyK") {
    showPanel("sidebar");
  } else if (command && event.key === ",") {
    if ($("settings").hidden) showPanel("settings");
    else closeSettings();
  } else if (!typing && !command && !event.altKey && event.key === "/") {
    composer.focus();
  } else if (!typing && !command && !event.altKey && event.key === "?") {
    shortcutsDialog();
  } else {
    return;
  }
  event.preventDefault();
});

// --- Events of the parts below.

chat.addEventListener("list", () => refresh());
chat.addEventListener("conversation", ({detail}) => {
  if (detail !== current?.id) return;
  if (current.messages.size > 0 && location.hash !== `#${current.id}`) history.replaceState(null, "", `#${current.id}`);
  thread.changed();
  planRefresh();
});
chat.addEventListener("failure", ({detail}) => server.failed(detail));
let unsaved = false;
chat.addEventListener("unsaved", ({detail}) => {
  if (!unsaved) {
    toast($("toasts"), `${detail?.message ?? "The browser's storage failed."} What is new is not kept; export and delete conversations in the settings.`, null, 20000);
  }
  unsaved = true;
});
server.addEventListener("change", showServer);
settings.addEventListener("change", () => {
  applyTheme();
  refresh();
});

let planned = false;
function planRefresh() {
  if (planned) return;
  planned = true;
  setTimeout(() => {
    planned = false;
    refresh();
  }, 100);
}

// --- Start.

applyTheme();
buildWelcome();
await chat.load();
const wanted = location.hash.slice(1);
if (wanted && chat.records.some(({id}) => id === wanted)) await openConversation(wanted);
else newConversation();
await server.refresh();
if (!store.lasting) toast($("toasts"), "This browser keeps nothing here: conversations last as long as this page.", null, 15000);
