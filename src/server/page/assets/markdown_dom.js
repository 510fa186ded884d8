// Elements for parsed Markdown (markdown.js). Text goes into text nodes and addresses have passed safeAddress, so
// nothing that a model writes is run or fetched: a picture is shown as a link to it.

import {copyButton, h} from "./dom.js";
import {highlight} from "./highlight.js";
import {MarkdownDocument} from "./markdown.js";
import {mathElement} from "./math.js";

const HIGHLIGHT_LIMIT = 50000; // characters of a code block

// Shows a text that grows in `root`, touching only what changes.
export class MarkdownView {
  #document = new MarkdownDocument();

  constructor(root) {
    this.root = root;
  }

  // Returns the elements that have become final since the last call (for screen readers).
  update(text, open) {
    const {first, blocks} = this.#document.update(text, open);
    const children = this.root.children;
    blocks.forEach((block, i) => {
      const old = children[first + i];
      if (old && patchCode(old, block)) return;
      const element = renderBlock(block);
      if (old) old.replaceWith(element);
      else this.root.append(element);
    });
    while (children.length > first + blocks.length) this.root.lastElementChild.remove();
    const done = open ? Math.max(0, blocks.length - 1) : blocks.length;
    return Array.from(children).slice(first, first + done);
  }
}

export function renderMarkdown(text) {
  const root = h("div", {class: "markdown"});
  new MarkdownView(root).update(text, false);
  return root;
}

// A code block grows often and by little: its text node is extended, the element stays.
function patchCode(element, block) {
  if (block.t !== "code" || !element.classList.contains("code") || element.dataset.lang !== block.lang) return false;
  const code = element.querySelector("code");
  const shown = code.textContent;
  if (!block.text.startsWith(shown)) return false;
  if (block.text.length > shown.length) {
    if (code.childNodes.length !== 1) return false;
    code.firstChild.appendData(block.text.slice(shown.length));
  }
  if (block.closed) colour(code, block);
  return true;
}

function colour(code, block) {
  if (block.text.length > HIGHLIGHT_LIMIT) return;
  const pieces = highlight(block.text, block.lang);
  if (!pieces) return;
  code.replaceChildren(...pieces.map(([kind, text]) => kind ? h("span", {class: `hl-${kind}`}, text) : text));
}

function renderBlock(block) {
  switch (block.t) {
    case "h": return h(`h${Math.min(6, block.level + 1)}`, {}, renderInline(block.c)); // the page has its own h1
    case "code": return renderCode(block);
    case "quote": return h("blockquote", {}, block.blocks.map(renderBlock));
    case "list": return renderList(block);
    case "table": return renderTable(block);
    case "hr": return h("hr");
    case "math": return h("div", {class: "math-block"}, mathElement(block.text, true));
    default: return h("p", {}, renderInline(block.c));
  }
}

function renderCode(block) {
  const code = h("code", {}, document.createTextNode(block.text));
  const element = h("div", {class: "code"},
      h("div", {class: "code-head"}, h("span", {class: "code-lang"}, block.lang || "text"),
          copyButton("Copy code", () => code.textContent)),
      h("pre", {tabindex: "0"}, code));
  element.dataset.lang = block.lang;
  if (block.closed) colour(code, block);
  return element;
}

function renderList(block) {
  const items = block.items.map(({task, blocks}) => {
    const content = blocks.map((child) =>
      child.t === "p" && !block.loose ? h("span", {class: "tight"}, renderInline(child.c)) : renderBlock(child));
    if (task === null) return h("li", {}, content);
    const box = h("input", {type: "checkbox", disabled: true, checked: task, "aria-label": task ? "done" : "to do"});
    return h("li", {class: "task"}, box, h("div", {}, content));
  });
  const start = block.ordered && block.start !== 1 ? String(block.start) : null;
  return h(block.ordered ? "ol" : "ul", {start}, items);
}

function renderTable(block) {
  const cell = (tag, content, column) =>
    h(tag, {class: block.align[column] ? `align-${block.align[column]}` : null, scope: tag === "th" ? "col" : null},
        renderInline(content));
  return h("div", {class: "table-frame", tabindex: "0", role: "region", "aria-label": "Table"},
      h("table", {},
          h("thead", {}, h("tr", {}, block.head.map((content, i) => cell("th", content, i)))),
          h("tbody", {}, block.rows.map((row) => h("tr", {}, row.map((content, i) => cell("td", content, i)))))));
}

function renderInline(nodes) {
  return nodes.map((node) => {
    switch (node.t) {
      case "code": return h("code", {}, node.v);
      case "em": return h("em", {}, renderInline(node.c));
      case "strong": return h("strong", {}, renderInline(node.c));
      case "del": return h("del", {}, renderInline(node.c));
      case "br": return h("br");
      case "math": return mathElement(node.v, node.display);
      case "image": return link(node.href, "", [node.alt || node.href || "picture"]);
      case "link": return link(node.href, node.title, renderInline(node.c));
      default: return node.v;
    }
  });
}

function link(href, title, children) {
  if (!href) return h("span", {}, children);
  return h("a", {href, title: title || null, target: "_blank", rel: "noopener noreferrer nofollow"}, children);
}
