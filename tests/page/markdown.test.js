// The page's Markdown: blocks, inline, what a growing text shows, hostile text, time.

import assert from "node:assert/strict";
import {test} from "node:test";
import {MarkdownDocument, parseMarkdown} from "../assets/markdown.js";
import {parseInline, plainText, safeAddress} from "../assets/markdown_inline.js";

// A short form to compare with: tags around text.
function inline(nodes) {
  return nodes.map((node) => {
    switch (node.t) {
      case "text": return node.v;
      case "br": return "⏎";
      case "code": case "math": return `<${node.t}>${node.v}</${node.t}>`;
      case "image": return `<image ${node.href}>${node.alt}</image>`;
      case "link": return `<link ${node.href}>${inline(node.c)}</link>`;
      default: return `<${node.t}>${inline(node.c)}</${node.t}>`;
    }
  }).join("");
}

function short(block) {
  switch (block.t) {
    case "p": return `p:${inline(block.c)}`;
    case "h": return `h${block.level}:${inline(block.c)}`;
    case "code": return `code(${block.lang})${block.closed ? "" : "…"}:${block.text}`;
    case "quote": return `quote[${block.blocks.map(short).join(" ")}]`;
    case "list": {
      const items = block.items.map((item) => (item.task === null ? "" : item.task ? "☑" : "☐") + item.blocks.map(short).join(" "));
      return `${block.ordered ? `ol${block.start}` : "ul"}${block.loose ? "+" : ""}[${items.join(" | ")}]`;
    }
    case "table": return `table(${block.align})${block.head.map(inline).join("|")}${block.rows.map((row) => `/${row.map(inline).join("|")}`).join("")}`;
    case "math": return `math:${block.text}`;
    default: return block.t;
  }
}

const show = (text, options) => parseMarkdown(text, options).map(short);
const line = (text, open) => inline(parseInline(text, open));

test("blocks", () => {
  const cases = [
    ["# One\n## Two ##\ntext\nmore", ["h1:One", "h2:Two", "p:text⏎more"]],
    ["Title\n=====\nSub\n---", ["h1:Title", "h2:Sub"]],
    ["#no heading", ["p:#no heading"]],
    ["a\n\n---\n***\nb", ["p:a", "hr", "hr", "p:b"]],
    ["```js\nlet a;\n\n  b\n```\nafter", ["code(js):let a;\n\n  b", "p:after"]],
    ["````\n```\n````", ["code():```"]],
    ["~~~ python title=x\n1\n~~~", ["code(python):1"]],
    ["```\nnever closed", ["code()…:never closed"]],
    ["text\n\n    indented\n    code", ["p:text", "code():indented\ncode"]],
    ["> a\n> b\nlazy\n\nout", ["quote[p:a⏎b⏎lazy]", "p:out"]],
    ["> > deep", ["quote[quote[p:deep]]"]],
    ["- a\n- b\n\n\n1. c\n2. d", ["ul[p:a | p:b]", "ol1[p:c | p:d]"]],
    ["3. x\n4. y", ["ol3[p:x | p:y]"]],
    ["- a\n\n- b", ["ul+[p:a | p:b]"]],
    ["- a\n  - b\n    - c\n- d", ["ul[p:a ul[p:b ul[p:c]] | p:d]"]],
    ["1. a\n  - two columns are inside\n2. b", ["ol1[p:a ul[p:two columns are inside] | p:b]"]],
    ["- [x] done\n- [ ] open", ["ul[☑p:done | ☐p:open]"]],
    ["- code:\n  ```c\n  x;\n  ```\n- next", ["ul[p:code: code(c):x; | p:next]"]],
    ["text\n- list", ["p:text", "ul[p:list]"]],
    ["in\n1986. a year is no list", ["p:in⏎1986. a year is no list"]],
    ["| a | b |\n|:--|--:|\n| 1 | `x|y` |\n| 2 |", ["table(left,right)a|b/1|<code>x|y</code>/2|"]],
    ["Before\n| a | b |\n|---|---|\n| 1 | 2 |\n\nafter", ["p:Before", "table(,)a|b/1|2", "p:after"]],
    ["a | b\n--|--\n1 | 2", ["table(,)a|b/1|2"]],
    ["| a | b |\n|---|", ["p:| a | b |⏎|---|"]],
    ["$$\na = b\n$$", ["math:a = b"]],
    ["\\[ x \\]", ["math:x"]],
    ["a\r\nb\r\n\r\n- c\r\n", ["p:a⏎b", "ul[p:c]"]],
    ["", []],
    ["\n\n \n", []],
  ];
  for (const [text, expected] of cases) assert.deepEqual(show(text), expected, JSON.stringify(text));
});

test("inline", () => {
  const cases = [
    ["*a* _b_ **c** __d__ ***e*** ~~f~~", "<em>a</em> <em>b</em> <strong>c</strong> <strong>d</strong> <em><strong>e</strong></em> <del>f</del>"],
    ["**a *b* c**", "<strong>a <em>b</em> c</strong>"],
    ["snake_case_name and 2*3*4", "snake_case_name and 2<em>3</em>4"],
    ["* a * and 5 ~ 6", "* a * and 5 ~ 6"],
    ["**unclosed", "**unclosed"],
    ["`code *x*` ``a ` b``", "<code>code *x*</code> <code>a ` b</code>"],
    ["`open", "`open"],
    ["\\*not\\* \\\\", "*not* \\"],
    ["[t](http://x.y/a_(b)) [u](<http://x.y/> \"title\")", "<link http://x.y/a_(b)>t</link> <link http://x.y/>u</link>"],
    ["[**b** `c`](https://x.y)", "<link https://x.y><strong>b</strong> <code>c</code></link>"],
    ["[not a link] [x](", "[not a link] [x]("],
    ["see https://a.b/c_d_e?f=*g*, (https://h.i/j).", "see <link https://a.b/c_d_e?f=*g>https://a.b/c_d_e?f=*g</link>*, (<link https://h.i/j>https://h.i/j</link>)."],
    ["<https://a.b> <b>x</b>", "<link https://a.b>https://a.b</link> <b>x</b>"],
    ["![alt](https://a.b/c.png)", "<image https://a.b/c.png>alt</image>"],
    ["a<br>b<br/>c", "a⏎b⏎c"],
    ["&lt;&amp;&#65;&#x42;&nope;&constructor;", "<&AB&nope;&constructor;"],
    ["a  \nb\\\nc\nd", "a⏎b⏎c⏎d"],
    ["$a_1*b_2*c$ but $5 and $6, or US$5 to US$6", "<math>a_1*b_2*c</math> but $5 and $6, or US$5 to US$6"],
    ["\\(x\\) and $$y$$", "<math>x</math> and <math>y</math>"],
    ["日本**語**です **「あ」**い", "日本<strong>語</strong>です **「あ」**い"],
    ["😀*x*", "😀<em>x</em>"],
  ];
  for (const [text, expected] of cases) assert.equal(line(text), expected, text);
});

test("only safe addresses become links", () => {
  for (const address of ["javascript:alert(1)", " JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd",
    "//evil.example", "/relative", "java\nscript:alert(1)", "https:evil", "http://a b", "blob:x"]) {
    assert.equal(safeAddress(address), null, address);
    const [node] = parseInline(`[x](<${address.replace("\n", "")}>)`);
    if (node.t === "link") assert.equal(node.href, null, address);
  }
  assert.equal(safeAddress("https://a.b/?c=d&e"), "https://a.b/?c=d&e");
  assert.equal(safeAddress("mailto:a@b.c"), "mailto:a@b.c");
});

test("a growing text shows what it will become", () => {
  assert.equal(line("**bold and *em", true), "<strong>bold and <em>em</em></strong>");
  assert.equal(line("`co", true), "<code>co</code>");
  assert.equal(line("~~st", true), "<del>st</del>");
  assert.deepEqual(show("Text\n-", {open: true}), ["p:Text"]); // not a heading for one token
  assert.deepEqual(show("Text\n``", {open: true}), ["p:Text"]);
  assert.deepEqual(show("Text\n\n#", {open: true}), ["p:Text"]);
  assert.deepEqual(show("**a**\n\n**b", {open: true}), ["p:<strong>a</strong>", "p:<strong>b</strong>"]);
  assert.deepEqual(show("**a\n\n**b", {open: true}), ["p:**a", "p:<strong>b</strong>"]);
});

const SAMPLE = `# Title

A *paragraph* with
two lines and a [link](http://a.b).

- one
- two
  - nested

  more
- three

1. x

| a | b |
|---|---|
| 1 | 2 |

> quote
lazy

\`\`\`js
let a = 1;

let b;
\`\`\`

Text
===

$$
x
$$

end`;

test("growing by any step gives what parsing at once gives", () => {
  const whole = show(SAMPLE);
  for (const step of [1, 2, 3, 7, 50]) {
    const document = new MarkdownDocument();
    const shown = [];
    const put = (text, open) => {
      const {first, blocks} = document.update(text, open);
      shown.splice(first, Infinity, ...blocks.map(short));
    };
    for (let at = step; at < SAMPLE.length; at += step) {
      put(SAMPLE.slice(0, at), true);
      // At any time it shows what a fresh reading of the same text shows.
      assert.deepEqual(shown, show(SAMPLE.slice(0, at), {open: true}), `step ${step}, ${at} characters`);
    }
    put(SAMPLE, false);
    assert.deepEqual(shown, whole);
  }
});

test("a growing text reads its finished part only once", () => {
  const document = new MarkdownDocument();
  let text = "";
  for (let i = 0; i < 200; ++i) {
    text += `Paragraph ${i}.\n\n`;
    const {first, blocks} = document.update(text, true);
    assert.ok(first >= i - 1, `block ${first} was read again after ${i}`);
    assert.ok(blocks.length <= 2);
  }
});

// A step that reads the rest of the text at every character would need minutes here: the limit is a guard against hanging.
test("no text makes it hang", {timeout: 120000}, () => {
  const hostile = ["*a ", "*a_", "a**b", "[", "](", "[a](", "![", "`", "` `` ", "> ", ">", "- ", "  - ", "1. ", "$a ", "\\(", "$$\na\n\n",
    "<a ", "http://a ", "|a|b|\n|-|-|\n", "~~a", "&#1", "# ", "```\n", "a\n", "\\", "_a_ ", "[a](http://a \"", "(((("];
  for (const piece of hostile) {
    const text = piece.repeat(Math.ceil(100000 / piece.length));
    assert.ok(parseMarkdown(text).length > 0, piece);
    assert.ok(parseMarkdown(text, {open: true}).length > 0, piece);
  }
});

test("deep nesting is bounded", () => {
  const depth = (blocks) => Math.max(0, ...blocks.map((block) =>
    1 + Math.max(depth(block.blocks ?? []), ...(block.items ?? []).map((item) => depth(item.blocks)))));
  assert.ok(depth(parseMarkdown(">".repeat(5000) + "x")) < 40);
  assert.ok(depth(parseMarkdown("- ".repeat(5000) + "x")) < 40);
  const inner = (nodes) => 1 + Math.max(0, ...nodes.map((node) => (node.c ? inner(node.c) : 0)));
  const nodes = parseInline("*a _".repeat(20000), true);
  assert.ok(inner(nodes) < 50);
  assert.equal(plainText(nodes).replace(/[^a]/g, "").length, 20000); // nothing is lost
});

test("plain text of inline nodes", () => {
  assert.equal(plainText(parseInline("a **b** `c` [d](http://e.f)\ng")), "a b c d\ng");
});
