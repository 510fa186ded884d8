// Markdown as models write it (CommonMark with tables, strike-through, task lists, bare addresses and TeX),
// parsed into plain objects. Nothing here touches the DOM: markdown_dom.js builds elements from the objects, so
// text of the model can never become markup.
//
// Blocks: {t: "p", c} {t: "h", level, c} {t: "code", lang, text, closed} {t: "quote", blocks}
//   {t: "list", ordered, start, loose, items: [{task, blocks}]} {t: "table", align, head, rows} {t: "hr"}
//   {t: "math", text}; c, head and the cells of rows are lists of inline nodes (markdown_inline.js).
// `open` says that more text will come: what is unfinished at the end is then shown as it will probably become.

import {parseInline} from "./markdown_inline.js";

const MAX_DEPTH = 16; // of quotes and lists; deeper ones are text

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}>/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:( +)(.*)|)$/;
const TABLE_RULE = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
// The last line of a text that still grows, when it may yet become the start of a block.
const UNDECIDED = /^ {0,3}(?:[-*+_=]{1,2}|#{1,6}|`{1,2}|~{1,2}|\d{1,3}[.)])[ \t]*$/;

export function parseMarkdown(text, {open = false} = {}) {
  return parseLines(splitLines(text, open), 0, open).map(({block}) => block);
}

// Parses a text that grows, without reading its finished part again: in a grown text all blocks but the last are final.
export class MarkdownDocument {
  #length = 0; // of the text seen, to notice that it was replaced
  #offset = 0; // where the last block begins
  #count = 0; // blocks before it

  // The blocks that are new or may have changed, and the index of the first of them.
  update(text, open) {
    if (text.length < this.#length) this.#offset = this.#count = 0;
    this.#length = text.length;
    const lines = splitLines(text.slice(this.#offset), open);
    const parsed = parseLines(lines, 0, open);
    const first = this.#count;
    if (open && parsed.length > 1) {
      const last = parsed[parsed.length - 1].line;
      for (let i = 0; i < last; ++i) this.#offset += lines[i].length + 1;
      this.#count += parsed.length - 1;
    }
    return {first, blocks: parsed.map(({block}) => block)};
  }
}

function splitLines(text, open) {
  const lines = text.split("\n");
  for (let i = 0; i < lines.length; ++i) {
    // A carriage return stays in the count of MarkdownDocument, as a blank.
    if (lines[i].endsWith("\r")) lines[i] = lines[i].slice(0, -1) + " ";
  }
  if (open && UNDECIDED.test(lines[lines.length - 1])) lines[lines.length - 1] = "";
  return lines;
}

const isBlank = (line) => /^[ \t]*$/.test(line);
const indentOf = (line) => line.match(/^ */)[0].length;
const expandTabs = (line) => line.replace(/^[ \t]+/, (blanks) => blanks.replace(/\t/g, "    "));

function itemAt(line) {
  const match = ITEM.exec(line);
  if (!match || RULE.test(line)) return null;
  const [, indent, marker, gap = " "] = match;
  return {
    indent: indent.length,
    ordered: marker.length > 1,
    kind: marker[marker.length - 1],
    number: parseInt(marker, 10),
    content: indent.length + marker.length + (gap.length > 4 ? 1 : gap.length),
    empty: !match[4],
  };
}

// Whether a line ends the paragraph before it.
function interrupts(line) {
  if (FENCE.test(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line)) return true;
  if (/^ {0,3}(\$\$|\\\[)/.test(line)) return true;
  const item = itemAt(line);
  return item !== null && item.indent < 4 && !item.empty && (!item.ordered || item.number === 1);
}

function splitRow(line) {
  const cells = [];
  let cell = "";
  let ticks = 0; // length of the open run of backticks: a | inside code is text
  const row = line.trim().replace(/^\|/, "");
  for (let i = 0; i < row.length; ++i) {
    if (row[i] === "\\" && row[i + 1] === "|") {
      cell += "|";
      ++i;
    } else if (row[i] === "`") {
      let run = 1;
      while (row[i + run] === "`") ++run;
      if (ticks === 0) ticks = row.indexOf("`".repeat(run), i + run) >= 0 ? run : 0;
      else if (ticks === run) ticks = 0;
      cell += row.slice(i, i + run);
      i += run - 1;
    } else if (row[i] === "|" && ticks === 0) {
      cells.push(cell.trim());
      cell = "";
    } else {
      cell += row[i];
    }
  }
  if (cell.trim() !== "") cells.push(cell.trim());
  return cells;
}

function tableAlign(line) {
  return splitRow(line).map((cell) => {
    const left = cell.startsWith(":"), right = cell.endsWith(":");
    return left && right ? "center" : right ? "right" : left ? "left" : "";
  });
}

// Reads blocks; each comes with the index of its first line.
function parseLines(lines, depth, open) {
  const result = [];
  let at = 0;
  while (at < lines.length) {
    const line = expandTabs(lines[at]);
    if (isBlank(line)) {
      ++at;
      continue;
    }
    const start = at;
    // Only the last block of an unfinished text is unfinished.
    const read = depth < MAX_DEPTH ? readBlock(lines, at, line, depth, open) : null;
    const {block, next} = read ?? readParagraph(lines, at, open, depth);
    at = next;
    result.push({block, line: start});
  }
  return result;
}

function readBlock(lines, at, line, depth, open) {
  if (indentOf(line) >= 4) return readIndentedCode(lines, at);
  const fence = FENCE.exec(line);
  if (fence && !(fence[1][0] === "`" && fence[2].includes("`"))) return readFence(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) {
    const text = (heading[2] ?? "").replace(/(^|[ \t]+)#+[ \t]*$/, "").trim();
    return {block: {t: "h", level: heading[1].length, c: parseInline(text, open && at + 1 >= lines.length)}, next: at + 1};
  }
  if (RULE.test(line)) return {block: {t: "hr"}, next: at + 1};
  if (QUOTE.test(line)) return readQuote(lines, at, depth, open);
  if (itemAt(line)) return readList(lines, at, depth, open);
  const math = /^ {0,3}(\$\$|\\\[)/.exec(line);
  if (math) return readMath(lines, at, math[1] === "$$" ? "$$" : "\\]", open);
  if (line.includes("|") && at + 1 < lines.length && TABLE_RULE.test(lines[at + 1])) {
    const head = splitRow(line), align = tableAlign(lines[at + 1]);
    if (head.length === align.length) return readTable(lines, at, head, align, open);
  }
  return null;
}

function readIndentedCode(lines, at) {
  const text = [];
  let next = at;
  for (; next < lines.length; ++next) {
    const line = expandTabs(lines[next]);
    if (!isBlank(line) && indentOf(line) < 4) break;
    text.push(line.slice(4));
  }
  while (text.length > 1 && isBlank(text[text.length - 1])) text.pop();
  return {block: {t: "code", lang: "", text: text.join("\n"), closed: true}, next};
}

function readFence(lines, at, fence) {
  const indent = indentOf(expandTabs(lines[at]));
  const close = new RegExp(`^ {0,3}\\${fence[1][0]}{${fence[1].length},}[ \\t]*$`);
  const text = [];
  let next = at + 1;
  let closed = false;
  for (; next < lines.length; ++next) {
    if (close.test(lines[next])) {
      closed = true;
      ++next;
      break;
    }
    text.push(lines[next].slice(Math.min(indent, indentOf(lines[next]))));
  }
  if (!closed && text.length > 0 && text[text.length - 1] === "") text.pop();
  const lang = fence[2].trim().split(/[\s{]/, 1)[0];
  return {block: {t: "code", lang, text: text.join("\n"), closed}, next};
}

function readQuote(lines, at, depth, open) {
  const inner = [];
  let next = at;
  for (; next < lines.length; ++next) {
    const line = lines[next];
    if (QUOTE.test(line)) {
      inner.push(line.replace(/^ {0,3}> ?/, ""));
    } else if (isBlank(line) || interrupts(line) || isBlank(inner[inner.length - 1])) {
      break;
    } else {
      inner.push(line); // a paragraph goes on without its mark
    }
  }
  const blocks = parseLines(inner, depth + 1, open && next >= lines.length).map(({block}) => block);
  return {block: {t: "quote", blocks}, next};
}

function readList(lines, at, depth, open) {
  const first = itemAt(expandTabs(lines[at]));
  const items = [];
  let loose = false, blank = false;
  let item = null, content = [];
  let next = at;
  for (; next < lines.length; ++next) {
    const line = expandTabs(lines[next]);
    if (isBlank(line)) {
      blank = true;
      content.push("");
      continue;
    }
    const marker = itemAt(line);
    // Two columns past the mark count as inside: models indent by two whatever the mark's width is.
    const inside = item !== null && indentOf(line) >= Math.min(item.content, item.indent + 2);
    if (inside) {
      if (blank && !marker) loose = true;
      content.push(line.slice(Math.min(indentOf(line), item.content)));
    } else if (marker && marker.indent < 4 + first.indent && marker.kind === first.kind) {
      if (blank && item !== null) loose = true;
      item = marker;
      content = [marker.empty ? "" : line.slice(marker.content)];
      items.push(content);
    } else if (blank || interrupts(line) || marker || FENCE.test(content[content.length - 1] ?? "")) {
      break;
    } else {
      content.push(line.trimStart()); // a paragraph goes on without its indentation
    }
    blank = false;
  }
  // Blank lines after the list belong to nobody; without this a growing list would turn loose and tight again.
  const last = next >= lines.length;
  const parsed = items.map((text, index) => {
    const task = /^\[([ xX])\][ \t]+/.exec(text[0]);
    if (task) text[0] = text[0].slice(task[0].length);
    const blocks = parseLines(text, depth + 1, open && last && index === items.length - 1).map(({block}) => block);
    return {task: task ? task[1] !== " " : null, blocks};
  });
  return {block: {t: "list", ordered: first.ordered, start: first.number, loose, items: parsed}, next};
}

function readMath(lines, at, end, open) {
  const text = [];
  for (let next = at; next < lines.length && next < at + 100; ++next) {
    let line = lines[next];
    if (next === at) line = line.trimStart().slice(2);
    else if (isBlank(line)) break;
    const stop = line.indexOf(end);
    if (stop >= 0) {
      if (!isBlank(line.slice(stop + 2).replace(/^[.,;:]/, ""))) return null; // text goes on: not a block of its own
      text.push(line.slice(0, stop));
      return {block: {t: "math", text: text.join("\n").trim()}, next: next + 1};
    }
    text.push(line);
    if (next === lines.length - 1 && open) return {block: {t: "math", text: text.join("\n").trim()}, next: next + 1};
  }
  return null;
}

function readTable(lines, at, head, align, open) {
  const rows = [];
  let next = at + 2;
  for (; next < lines.length; ++next) {
    const line = lines[next];
    if (isBlank(line) || interrupts(line)) break;
    const unfinished = open && next >= lines.length - 1;
    const cells = splitRow(line).slice(0, head.length);
    while (cells.length < head.length) cells.push("");
    rows.push(cells.map((cell) => parseInline(cell, unfinished)));
  }
  return {block: {t: "table", align, head: head.map((cell) => parseInline(cell, false)), rows}, next};
}

function readParagraph(lines, at, open, depth) {
  const text = [];
  let next = at;
  let level = 0;
  for (; next < lines.length; ++next) {
    const line = lines[next];
    if (isBlank(line)) break;
    if (next > at) {
      const underline = /^ {0,3}(=+|-+)[ \t]*$/.exec(line);
      if (underline) {
        level = underline[1][0] === "=" ? 1 : 2;
        ++next;
        break;
      }
      if (depth < MAX_DEPTH && interrupts(line)) break;
      // A table may follow its heading line at once.
      if (line.includes("|") && next + 1 < lines.length && TABLE_RULE.test(lines[next + 1]) &&
          splitRow(line).length === tableAlign(lines[next + 1]).length) {
        break;
      }
    }
    text.push(line.trimStart());
  }
  const c = parseInline(text.join("\n").trimEnd(), open && next >= lines.length);
  return {block: level > 0 ? {t: "h", level, c} : {t: "p", c}, next};
}
