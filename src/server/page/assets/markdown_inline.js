// Inline Markdown: {t: "text", v} {t: "code", v} {t: "em" | "strong" | "del", c} {t: "link", href, title, c}
// {t: "image", href, alt} {t: "br"} {t: "math", v, display}. Emphasis follows CommonMark's delimiter algorithm
// (spec 0.31, appendix "A parsing strategy"); every step is linear or bounded, whatever the text.

const MAX_ADDRESS = 2048; // characters of a link's target
const MAX_MATH = 2000;
const MAX_DEPTH = 40; // of emphasis and links within each other
const PUNCTUATION = /[\p{P}\p{S}]/u;
const ENTITIES = {amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ndash: "–", mdash: "—",
  hellip: "…", times: "×", deg: "°", copy: "©", rarr: "→", larr: "←", le: "≤", ge: "≥", ne: "≠"};

// Only what a person may safely follow. Anything else is no link at all.
export function safeAddress(address) {
  const clean = address.trim();
  return /^(https?:\/\/|mailto:)[^\s<>]+$/i.test(clean) ? clean : null;
}

export function parseInline(text, open = false) {
  return new InlineParser(text, open).parse();
}

// A doubly linked list, so that wrapping a stretch of nodes costs no copying.
class Nodes {
  constructor() {
    this.head = {t: "end"};
    this.head.prev = this.head.next = this.head;
  }
  get last() { return this.head.prev; }
  push(node) { return insertAfter(this.head.prev, node); }
}

function insertAfter(where, node) {
  node.prev = where;
  node.next = where.next;
  where.next.prev = node;
  where.next = node;
  return node;
}

function remove(node) {
  node.prev.next = node.next;
  node.next.prev = node.prev;
}

// Takes the nodes between the two (both excluded) out of the list.
function cut(from, to) {
  const taken = new Nodes();
  if (from.next === to) return taken;
  const first = from.next, last = to.prev;
  from.next = to;
  to.prev = from;
  taken.head.next = first;
  first.prev = taken.head;
  taken.head.prev = last;
  last.next = taken.head;
  return taken;
}

// The nodes as an array, without their links; neighbouring texts joined. What lies deeper than a page can show is text.
function toArray(nodes, depth = 0) {
  if (depth >= MAX_DEPTH) return [{t: "text", v: deepText(nodes)}];
  const result = [];
  for (let node = nodes.head.next; node !== nodes.head; node = node.next) {
    const previous = result[result.length - 1];
    if (node.t === "text" || node.t === "run" || node.t === "bracket") {
      if (node.v === "") continue;
      if (previous?.t === "text") previous.v += node.v;
      else result.push({t: "text", v: node.v});
      continue;
    }
    const {prev, next, ...rest} = node;
    if (rest.c instanceof Nodes) rest.c = toArray(rest.c, depth + 1);
    result.push(rest);
  }
  return result;
}

function deepText(nodes) {
  let text = "";
  const above = []; // a stack of our own: the depth is the text's
  let node = nodes.head.next;
  for (;;) {
    if (node.t === "end") {
      if (above.length === 0) return text;
      node = above.pop().next;
      continue;
    }
    text += node.v ?? node.alt ?? "";
    if (node.c instanceof Nodes) {
      above.push(node);
      node = node.c.head.next;
    } else {
      node = node.next;
    }
  }
}

class InlineParser {
  constructor(text, open) {
    this.text = text;
    this.open = open;
    this.at = 0;
    this.nodes = new Nodes();
    this.brackets = [];
    this.runs = null; // positions of backtick runs by length
  }

  parse() {
    const plain = /[^\\`*_~[\]!<&\n$:]+/y;
    while (this.at < this.text.length) {
      plain.lastIndex = this.at;
      const match = plain.exec(this.text);
      if (match) {
        this.addText(match[0]);
        this.at += match[0].length;
      } else {
        this.special(this.text[this.at]);
      }
    }
    processEmphasis(this.nodes, this.nodes.head, this.open);
    return toArray(this.nodes);
  }

  addText(v) {
    if (this.nodes.last.t === "text") this.nodes.last.v += v;
    else this.nodes.push({t: "text", v});
  }

  special(c) {
    const handled =
        c === "\\" ? this.escape() :
        c === "`" ? this.code() :
        c === "*" || c === "_" || c === "~" ? this.run(c) :
        c === "[" ? this.openBracket("[") :
        c === "!" && this.text[this.at + 1] === "[" ? this.openBracket("![") :
        c === "]" ? this.closeBracket() :
        c === "<" ? this.angle() :
        c === "&" ? this.entity() :
        c === "\n" ? this.lineBreak() :
        c === "$" ? this.dollars() :
        c === ":" ? this.bareAddress() : false;
    if (!handled) {
      this.addText(c);
      ++this.at;
    }
  }

  escape() {
    const next = this.text[this.at + 1];
    if (next === "(" || next === "[") {
      if (this.math(next === "(" ? "\\)" : "\\]", 2, next === "[")) return true;
    }
    if (next === "\n") {
      this.nodes.push({t: "br"});
      this.at += 2;
      return true;
    }
    if (next === undefined || !/[!-/:-@[-`{-~]/.test(next)) return false;
    this.addText(next);
    this.at += 2;
    return true;
  }

  code() {
    if (!this.runs) {
      this.runs = new Map();
      for (const match of this.text.matchAll(/`+/g)) {
        const length = match[0].length;
        if (!this.runs.has(length)) this.runs.set(length, []);
        this.runs.get(length).push(match.index);
      }
      for (const positions of this.runs.values()) positions.reverse();
    }
    let length = 1;
    while (this.text[this.at + length] === "`") ++length;
    const positions = this.runs.get(length) ?? [];
    while (positions.length > 0 && positions[positions.length - 1] <= this.at) positions.pop();
    let end = positions[positions.length - 1];
    if (end === undefined && this.open && this.text.length > this.at + length) end = this.text.length;
    if (end === undefined) {
      this.addText(this.text.slice(this.at, this.at + length));
    } else {
      let v = this.text.slice(this.at + length, end).replace(/\n/g, " ");
      if (v.startsWith(" ") && v.endsWith(" ") && v.trim() !== "") v = v.slice(1, -1);
      this.nodes.push({t: "code", v});
      this.at = end;
    }
    this.at += length;
    return true;
  }

  run(c) {
    let n = 1;
    while (this.text[this.at + n] === c) ++n;
    const before = this.at === 0 ? "\n" : previousCharacter(this.text, this.at);
    const after = this.at + n >= this.text.length ? "\n" : String.fromCodePoint(this.text.codePointAt(this.at + n));
    const spaceBefore = /\s/.test(before), spaceAfter = /\s/.test(after);
    const punctBefore = PUNCTUATION.test(before), punctAfter = PUNCTUATION.test(after);
    const left = !spaceAfter && (!punctAfter || spaceBefore || punctBefore);
    const right = !spaceBefore && (!punctBefore || spaceAfter || punctAfter);
    const v = c.repeat(n);
    if (c === "~" && n !== 2) {
      this.addText(v);
    } else {
      this.nodes.push({
        t: "run", v, c, n, total: n,
        canOpen: c === "_" ? left && (!right || punctBefore) : left,
        canClose: c === "_" ? right && (!left || punctAfter) : right,
      });
    }
    this.at += n;
    return true;
  }

  openBracket(v) {
    const node = this.nodes.push({t: "bracket", v});
    this.brackets.push({node, image: v === "![", active: true});
    this.at += v.length;
    return true;
  }

  closeBracket() {
    const opener = this.brackets.pop();
    if (!opener?.active) return false;
    const target = this.linkTarget(this.at + 1);
    if (!target) return false;
    const children = cut(opener.node, this.nodes.head);
    remove(opener.node);
    processEmphasis(children, children.head, false);
    const href = safeAddress(target.href);
    if (opener.image) {
      this.nodes.push({t: "image", href, alt: plainText(toArray(children))});
    } else {
      this.nodes.push({t: "link", href, title: target.title, c: children});
      for (const bracket of this.brackets) bracket.active &&= bracket.image; // no link within a link
    }
    this.at = target.end;
    return true;
  }

  // (address "title") at `from`.
  linkTarget(from) {
    if (this.text[from] !== "(") return null;
    const rest = this.text.slice(from + 1, from + 1 + MAX_ADDRESS);
    const match = /^[ \n]*(?:<([^<>\n]*)>|((?:[^\s()\\]|\\.|\((?:[^\s()\\]|\\.)*\))*))(?:[ \n]+("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'))?[ \n]*\)/.exec(rest);
    if (!match) return null;
    const unescape = (s) => s.replace(/\\([!-/:-@[-`{-~])/g, "$1");
    return {
      href: unescape(match[1] ?? match[2]),
      title: match[3] ? unescape(match[3].slice(1, -1)) : "",
      end: from + 1 + match[0].length,
    };
  }

  // <https://…> and <br>. All other markup is text.
  angle() {
    const rest = this.text.slice(this.at, this.at + MAX_ADDRESS);
    const line = /^<br *\/?>/i.exec(rest);
    if (line) {
      this.nodes.push({t: "br"});
      this.at += line[0].length;
      return true;
    }
    const link = /^<((?:https?:\/\/|mailto:)[^\s<>]+)>/i.exec(rest);
    if (!link) return false;
    this.nodes.push({t: "link", href: safeAddress(link[1]), title: "", c: textNodes(link[1])});
    this.at += link[0].length;
    return true;
  }

  entity() {
    const match = /^&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([a-z]{2,8}));/.exec(this.text.slice(this.at, this.at + 12));
    if (!match) return false;
    let v;
    if (match[3]) {
      v = Object.hasOwn(ENTITIES, match[3]) ? ENTITIES[match[3]] : undefined;
    } else {
      const code = match[1] ? parseInt(match[1], 10) : parseInt(match[2], 16);
      v = code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
    }
    if (v === undefined) return false;
    this.addText(v);
    this.at += match[0].length;
    return true;
  }

  // Models mean their line breaks (verse, addresses), so a single one is kept.
  lineBreak() {
    if (this.nodes.last.t === "text") this.nodes.last.v = this.nodes.last.v.replace(/ +$/, "");
    this.nodes.push({t: "br"});
    ++this.at;
    while (this.text[this.at] === " ") ++this.at;
    return true;
  }

  dollars() {
    if (this.text[this.at + 1] === "$") return this.math("$$", 2, true);
    // $5 and $6 are money: a formula touches its dollars from inside, and no digit follows.
    if (/[\p{L}\p{N}]/u.test(previousCharacter(this.text, this.at))) return false;
    if (/\s/.test(this.text[this.at + 1] ?? " ")) return false;
    const window = this.text.slice(this.at + 1, this.at + 1 + MAX_MATH);
    const end = window.search(/(?<!\\)[$\n]/);
    if (end <= 0 || window[end] === "\n" || /\s/.test(window[end - 1]) || /\d/.test(window[end + 1] ?? "")) return false;
    this.nodes.push({t: "math", v: window.slice(0, end), display: false});
    this.at += end + 2;
    return true;
  }

  math(close, length, display) {
    const from = this.at + length;
    const end = this.text.slice(from, from + MAX_MATH).indexOf(close);
    if (end <= 0) return false;
    const v = this.text.slice(from, from + end).trim();
    if (v === "" || v.includes("\n\n")) return false;
    this.nodes.push({t: "math", v, display});
    this.at = from + end + close.length;
    return true;
  }

  // http://… and https://… without brackets.
  bareAddress() {
    const last = this.nodes.last;
    if (!this.text.startsWith("://", this.at) || last.t !== "text") return false;
    const scheme = /(?:^|[^\p{L}\p{N}])(https?)$/iu.exec(last.v.slice(-6));
    if (!scheme) return false;
    let rest = /^:\/\/[^\s<>`"|]+/.exec(this.text.slice(this.at, this.at + MAX_ADDRESS))?.[0];
    if (!rest || rest.length < 4) return false;
    for (;;) {
      if (/[.,;:!?'*_~\]}]$/.test(rest)) {
        rest = rest.slice(0, -1);
      } else if (rest.endsWith(")") && rest.split(")").length > rest.split("(").length) {
        rest = rest.slice(0, -1);
      } else {
        break;
      }
    }
    const address = safeAddress(scheme[1] + rest);
    if (!address || rest.length < 4) return false;
    last.v = last.v.slice(0, last.v.length - scheme[1].length);
    this.nodes.push({t: "link", href: address, title: "", c: textNodes(address)});
    this.at += rest.length;
    return true;
  }
}

function previousCharacter(text, at) {
  if (at === 0) return "";
  const unit = text.charCodeAt(at - 1);
  const pair = unit >= 0xdc00 && unit < 0xe000 && at > 1;
  return text.slice(at - (pair ? 2 : 1), at);
}

function textNodes(v) {
  const nodes = new Nodes();
  nodes.push({t: "text", v});
  return nodes;
}

// Pairs the runs of * _ ~ after `bottom`.
function processEmphasis(nodes, bottom, open) {
  const floors = new Map(); // per kind of closer: no opener at or below this node
  let closer = bottom.next;
  const stack = []; // runs that may still open
  while (closer !== nodes.head) {
    if (closer.t !== "run") {
      closer = closer.next;
      continue;
    }
    if (closer.canClose) {
      const key = closer.c + (closer.canOpen ? "o" : "") + (closer.total % 3);
      const floor = floors.get(key) ?? 0;
      let i = stack.length - 1;
      for (; i >= floor; --i) {
        const opener = stack[i];
        if (opener.c !== closer.c) continue;
        const threes = (opener.canClose || closer.canOpen) && (opener.total + closer.total) % 3 === 0 &&
                       !(opener.total % 3 === 0 && closer.total % 3 === 0);
        if (!threes) break;
      }
      if (i >= floor) {
        const opener = stack[i];
        const used = closer.c === "~" ? 2 : opener.n >= 2 && closer.n >= 2 ? 2 : 1;
        const t = closer.c === "~" ? "del" : used === 2 ? "strong" : "em";
        stack.length = i + 1;
        for (const [kind, value] of floors) if (value > stack.length) floors.set(kind, stack.length);
        const c = cut(opener, closer);
        insertAfter(opener, {t, c});
        shorten(opener, used);
        shorten(closer, used);
        if (opener.n === 0) {
          remove(opener);
          stack.pop();
        }
        if (closer.n === 0) {
          const next = closer.next;
          remove(closer);
          closer = next;
        }
        continue;
      }
      floors.set(key, stack.length);
    }
    if (closer.canOpen) stack.push(closer);
    closer = closer.next;
  }
  if (!open) return;
  // What a growing text has opened will be closed.
  while (stack.length > 0) {
    const opener = stack.pop();
    if (opener.next === nodes.head || opener.n > 3) continue;
    const t = opener.c === "~" ? "del" : opener.n >= 2 ? "strong" : "em";
    const c = cut(opener, nodes.head);
    insertAfter(opener, {t, c});
    shorten(opener, opener.c === "~" || opener.n >= 2 ? 2 : 1);
  }
}

function shorten(run, used) {
  run.n -= used;
  run.v = run.v.slice(used);
}

export function plainText(nodes) {
  return nodes.map((node) => node.v ?? node.alt ?? (node.c ? plainText(node.c) : node.t === "br" ? "\n" : "")).join("");
}
