// Elements from names, properties and children. Strings become text nodes: nothing here reads markup.

export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

// Line drawings on a grid of 24 units, drawn for this page.
const ICONS = {
  menu: "M4 7h16M4 12h16M4 17h10",
  plus: "M12 5v14M5 12h14",
  search: "M10.5 5a5.5 5.5 0 1 0 0 11a5.5 5.5 0 1 0 0-11zM15 15l5 5",
  sliders: "M4 8h9M17 8h3M4 16h3M11 16h9M15 5.5v5M9 13.5v5",
  send: "M12 19V6M6 11.5L12 5.5l6 6",
  stop: "M6.5 6.5h11v11h-11z",
  copy: "M9 9h10v11H9zM5 15V4h10",
  check: "M5 12.5l5 5L19 7",
  edit: "M5 19l1-4L16 5l3 3L9 18zM14 7l3 3",
  trash: "M5 7h14M10 7V4.5h4V7M7 7l1 13h8l1-13M10.5 11v5.5M13.5 11v5.5",
  again: "M19 12a7 7 0 1 1-2.2-5.1M19 4v4.5h-4.5",
  forward: "M6 6l7 6l-7 6zM17 6v12",
  left: "M14 6l-6 6l6 6",
  right: "M10 6l6 6l-6 6",
  down: "M12 5v13M6 12.5l6 6l6-6",
  close: "M6 6l12 12M18 6L6 18",
  sun: "M12 8.2a3.8 3.8 0 1 0 0 7.6a3.8 3.8 0 1 0 0-7.6zM12 3v2M12 19v2M3 12h2M19 12h2M5.6 5.6l1.5 1.5M16.9 16.9l1.5 1.5M5.6 18.4l1.5-1.5M16.9 7.1l1.5-1.5",
  moon: "M19 14.5A7.5 7.5 0 0 1 9.5 5a7.5 7.5 0 1 0 9.5 9.5z",
  auto: "M12 4a8 8 0 1 0 0 16a8 8 0 1 0 0-16zM12 4v16M12 8h5.5M12 12h8M12 16h5.5",
  thought: "M9 18h6M10 21h4M8.5 15c-3-2-4-7 .3-9.7c4.8-2.6 9 1.2 8.2 5.2c-.4 2-1.5 2.7-1.7 4.5z",
  tool: "M14.5 6.5a4 4 0 0 1 5-1l-2.5 2.5l1.5 1.5l2.5-2.5a4 4 0 0 1-5.5 5L8 19.5a2 2 0 0 1-3-3L12.5 9a4 4 0 0 1 2-2.5z",
  key: "M8 11a4 4 0 1 0 0 8a4 4 0 1 0 0-8zM11 12l8-8M16 7l3 3",
  warn: "M12 4L21 20H3zM12 10v5M12 17.5v.01",
  upload: "M12 15V4M7 9l5-5l5 5M5 15v5h14v-5",
  download: "M12 4v11M7 10l5 5l5-5M5 15v5h14v-5",
};

export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  for (const [key, value] of Object.entries({viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true"})) {
    svg.setAttribute(key, value);
  }
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

// A button with a picture; its name is for the pointer and for screen readers.
export function iconButton(name, label, onclick, properties = {}) {
  return h("button", {type: "button", class: "icon-button", title: label, "aria-label": label, onclick, ...properties},
      icon(name));
}

// Plain http on a local network has no clipboard API.
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = h("textarea", {class: "hidden-copy", "aria-hidden": "true"});
    area.value = text;
    const focused = document.activeElement;
    (document.querySelector("dialog[open]") ?? document.body).append(area);
    area.select();
    let done = false;
    try {
      done = document.execCommand("copy");
    } catch { /* nothing else to try */ }
    area.remove();
    focused?.focus?.();
    return done;
  }
}

// A copy button that says that it worked.
export function copyButton(label, text) {
  const button = iconButton("copy", label, async () => {
    const done = await copyText(text());
    button.replaceChildren(icon(done ? "check" : "warn"));
    button.setAttribute("aria-label", done ? "Copied" : "Copying was refused");
    setTimeout(() => {
      button.replaceChildren(icon("copy"));
      button.setAttribute("aria-label", label);
    }, 1500);
  });
  return button;
}

export function downloadText(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], {type}));
  h("a", {href: url, download: name}).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Random, and also there where the page is not a secure context (crypto.randomUUID is not).
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
