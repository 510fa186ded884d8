// Short notices at the edge of the page, and questions that must be answered.

import {h, icon, iconButton} from "./dom.js";

// action: {label, run}. Goes away by itself.
export function toast(root, text, action = null, ms = 6000) {
  const close = () => element.remove();
  const element = h("div", {class: "toast", role: "status"}, h("span", {}, text),
      action ? h("button", {type: "button", class: "button small", onclick: () => {
        close();
        action.run();
      }}, action.label) : null,
      iconButton("close", "Close", close));
  root.append(element);
  while (root.children.length > 3) root.firstElementChild.remove();
  setTimeout(close, ms);
}

// Resolves with the value of the button that was pressed, or "" when the dialog was left.
function ask(content) {
  const dialog = h("dialog", {class: "dialog"}, content);
  document.body.append(dialog);
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue);
    });
    dialog.showModal();
  });
}

const buttons = (...list) => h("div", {class: "dialog-actions"}, list.map(([value, label, kind = ""]) =>
  h("button", {type: "submit", value, class: `button ${kind}`, formnovalidate: value === ""}, label)));

export async function confirmDialog(title, text, yes) {
  return await ask(h("form", {method: "dialog"}, h("h2", {}, title), h("p", {}, text),
      buttons(["", "Cancel"], ["yes", yes, "danger"]))) === "yes";
}

// Resolves with the key, or null.
export async function keyDialog(key, wrong) {
  const input = h("input", {type: "password", autocomplete: "off", "aria-label": "API key", autofocus: true});
  input.value = key;
  const answer = await ask(h("form", {method: "dialog"}, h("h2", {}, icon("key"), "API key"),
      h("p", {}, wrong ? "The server did not accept this key." : "This server answers only those who have a key. It is kept in this browser."),
      input, buttons(["", "Cancel"], ["yes", "Use this key", "primary"])));
  return answer === "yes" ? input.value.trim() : null;
}

const SHORTCUTS = [
  ["Enter", "Send"], ["Shift + Enter", "New line"], ["Esc", "Stop the reply, close a panel"],
  ["↑ in the empty field", "Edit your last message"], ["/", "To the message field"],
  ["Ctrl + Shift + O", "New conversation"], ["Ctrl + K", "Search conversations"], ["Ctrl + ,", "Settings"],
  ["F2, Delete in the list", "Rename, delete a conversation"], ["?", "This list"],
];

export function shortcutsDialog() {
  const mac = /Mac|iPhone|iPad/.test(navigator.platform);
  return ask(h("form", {method: "dialog"}, h("h2", {}, "Keyboard"),
      h("dl", {class: "shortcuts"}, SHORTCUTS.map(([keys, what]) =>
        [h("dt", {}, h("kbd", {}, mac ? keys.replace("Ctrl", "⌘") : keys)), h("dd", {}, what)])),
      buttons(["", "Close", "primary"])));
}
