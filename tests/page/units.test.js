// The page's parts that need no browser: events, replies, conversations, requests, files, formulas, colours.

import assert from "node:assert/strict";
import {webcrypto} from "node:crypto";
import {test} from "node:test";
globalThis.crypto ??= webcrypto;

const {failureFrom} = await import("../assets/api.js");
const {Conversation, titleOf} = await import("../assets/conversation.js");
const {dayGroup, seconds, statsLine, prettyJson} = await import("../assets/format.js");
const {highlight} = await import("../assets/highlight.js");
const {ReplyReader} = await import("../assets/reply.js");
const {chatMessages, chatRequest, parseTools, SettingsFault, stopStrings} = await import("../assets/request.js");
const {serverEvents} = await import("../assets/stream.js");
const {parseTex, TexFault} = await import("../assets/tex.js");
const {readImport} = await import("../assets/transfer.js");

async function events(pieces) {
  const body = new ReadableStream({
    start(controller) {
      pieces.forEach((piece) => controller.enqueue(piece));
      controller.close();
    },
  });
  const result = [];
  for await (const data of serverEvents(body)) result.push(data);
  return result;
}

test("server-sent events, however they are cut", async () => {
  const text = ': hello\n\ndata: {"a":"ä€😀"}\n\ndata:x\r\ndata: y\r\n\r\nevent: n\nid: 1\n\ndata: [DONE]\n\ndata: incomplete';
  const expected = ['{"a":"ä€😀"}', "x\ny", "[DONE]"];
  const bytes = new TextEncoder().encode(text);
  for (const size of [1, 2, 3, 5, 1000]) {
    const pieces = [];
    for (let at = 0; at < bytes.length; at += size) pieces.push(bytes.slice(at, at + size));
    assert.deepEqual(await events(pieces), expected, `pieces of ${size}`);
  }
});

test("a reply is put together from its chunks", () => {
  let time = 1000;
  const message = {role: "assistant", content: ""};
  const reader = new ReplyReader(message, () => time);
  const delta = (part, rest = {}) => reader.apply({choices: [{index: 0, delta: part, finish_reason: null}], ...rest});
  delta({role: "assistant", content: null});
  delta({role: "assistant", content: null}, {prompt_progress: {total: 100, cache: 20, processed: 60, time_ms: 5}});
  assert.deepEqual(reader.progress, {processed: 60, total: 100, cache: 20, ms: 5});
  time = 1500;
  delta({reasoning_content: "Let "});
  assert.equal(reader.progress, null);
  time = 3500;
  delta({reasoning: "me."});
  delta({content: "Hi"});
  time = 9000;
  delta({tool_calls: [{index: 0, id: "c1", type: "function", function: {name: "f", arguments: ""}}]});
  delta({tool_calls: [{index: 1, id: "c2", type: "function", function: {name: "g", arguments: "{"}}]});
  delta({tool_calls: [{index: 0, function: {arguments: '{"a":1}'}}]});
  delta({tool_calls: [{index: 1, function: {arguments: "}"}}]});
  reader.apply({choices: [{index: 0, delta: {}, finish_reason: "tool_calls"}]});
  reader.apply({choices: [], usage: {prompt_tokens: 100, completion_tokens: 9, total_tokens: 109, prompt_tokens_details: {cached_tokens: 20}},
    timings: {prompt_n: 80, cache_n: 20, predicted_n: 9, predicted_per_second: 12.5, prompt_per_second: 400}});
  reader.end();
  assert.equal(message.content, "Hi");
  assert.equal(message.reasoning, "Let me.");
  assert.equal(message.thoughtMs, 2000); // until the first word that is not thought
  assert.equal(message.finish, "tool_calls");
  assert.deepEqual(message.toolCalls, [{id: "c1", name: "f", arguments: '{"a":1}'}, {id: "c2", name: "g", arguments: "{}"}]);
  assert.deepEqual(message.usage, {prompt: 100, completion: 9, total: 109, cached: 20});
  assert.equal(message.stats.firstMs, 500);
  assert.equal(message.stats.totalMs, 8000);
  assert.equal(statsLine(message), "12.5 tokens/s · 9 tokens · first after 500 ms");
});

test("kinds of failures", () => {
  assert.equal(failureFrom({type: "exceed_context_size_error", message: "m", n_prompt_tokens: 9, n_ctx: 8}, 400).kind, "context");
  for (const [status, kind] of [[401, "key"], [429, "busy"], [503, "loading"], [400, "request"], [404, "request"], [500, "server"]]) {
    assert.equal(failureFrom({message: "m"}, status).kind, kind);
  }
  assert.match(failureFrom({}, 502).message, /502/);
});

test("branches: edit, other versions, delete and undo", () => {
  const conversation = Conversation.create();
  const a = conversation.add({role: "user", content: "First question\nmore"});
  const b = conversation.add({role: "assistant", content: "one"});
  const c = conversation.add({role: "user", content: "second"});
  const d = conversation.add({role: "assistant", content: "two"});
  assert.equal(conversation.record.title, "First question");
  const ids = () => conversation.path().map(({content}) => content);
  assert.deepEqual(ids(), ["First question\nmore", "one", "second", "two"]);
  const b2 = conversation.add({role: "assistant", content: "another"}, a.id);
  assert.deepEqual(ids(), ["First question\nmore", "another"]);
  assert.deepEqual(conversation.siblings(b).map(({id}) => id), [b.id, b2.id]);
  conversation.select(b.id);
  assert.deepEqual(ids(), ["First question\nmore", "one", "second", "two"]); // with all that followed
  const removed = conversation.remove(c.id);
  assert.deepEqual(removed.map(({id}) => id), [d.id, c.id]);
  assert.deepEqual(ids(), ["First question\nmore", "one"]);
  conversation.restore(removed, d.id);
  assert.deepEqual(ids(), ["First question\nmore", "one", "second", "two"]);
  conversation.remove(b.id);
  assert.deepEqual(ids(), ["First question\nmore", "another"]); // the other version takes its place
  conversation.remove(a.id);
  assert.deepEqual(ids(), []);
  assert.equal(conversation.messages.size, 0);
});

test("a damaged tree does not hang", () => {
  const conversation = new Conversation({id: "x", leaf: "1"}, [
    {id: "1", parent: "2", order: 1}, {id: "2", parent: "1", order: 2}]);
  assert.equal(conversation.path().length, 2);
});

test("titles", () => {
  assert.equal(titleOf("  Short  \nnext"), "Short");
  assert.ok(titleOf("word ".repeat(50)).length <= 61);
});

test("the request holds what is set, and nothing else", () => {
  const path = [
    {role: "user", content: "q"},
    {role: "assistant", content: "", status: "error"}, // said nothing
    {role: "user", content: "q2"},
    {role: "assistant", content: "", reasoning: "hm", toolCalls: [{id: "c", name: "f", arguments: "{}"}]},
    {role: "tool", toolCallId: "c", name: "f", content: "r"},
  ];
  assert.deepEqual(chatMessages(" sys ", path), [
    {role: "system", content: " sys "}, {role: "user", content: "q"}, {role: "user", content: "q2"},
    {role: "assistant", content: "", reasoning_content: "hm", tool_calls: [{id: "c", type: "function", function: {name: "f", arguments: "{}"}}]},
    {role: "tool", tool_call_id: "c", content: "r"},
  ]);
  const thought = {role: "assistant", content: "", reasoning: "hm", status: "stopped"};
  assert.deepEqual(chatMessages("", [path[0], thought]).at(-1), {role: "assistant", content: "", reasoning_content: "hm"}); // to go on with
  assert.equal(chatMessages("", [path[0], thought, path[2]]).length, 2);
  const plain = chatRequest({model: "m", system: "", tools: "", path: path.slice(0, 1), settings: {}});
  assert.deepEqual(Object.keys(plain).sort(), ["messages", "model", "return_progress", "stream", "stream_options", "timings_per_token"]);
  const full = chatRequest({model: "m", system: "", path: [], tools: '[{"name":"f","parameters":{}}]',
    settings: {temperature: 0, top_k: 5, seed: 7, stop: "END\n\\n\\n", thinking: false, thinking_budget: 10, theme: "dark"}});
  assert.equal(full.temperature, 0);
  assert.equal(full.top_k, 5);
  assert.equal(full.seed, 7);
  assert.deepEqual(full.stop, ["END", "\n\n"]);
  assert.deepEqual(full.chat_template_kwargs, {enable_thinking: false});
  assert.equal(full.thinking_budget_tokens, 10);
  assert.deepEqual(full.tools, [{type: "function", function: {name: "f", parameters: {}}}]);
  assert.ok(!("theme" in full) && !("top_p" in full));
});

test("tools and stop strings as typed", () => {
  assert.deepEqual(parseTools(""), []);
  assert.throws(() => parseTools("[{"), SettingsFault);
  assert.throws(() => parseTools('[{"description":"no name"}]'), SettingsFault);
  assert.equal(parseTools('{"type":"function","function":{"name":"f"}}')[0].function.name, "f");
  assert.deepEqual(stopStrings("a\n\nb\\tc\\\\n\n"), ["a", "b\tc\\n"]);
});

test("import: checked, freshly numbered, unknown fields left out", () => {
  const file = {format: "gem-conversations", version: 1, conversations: [{
    id: "old", title: "T", system: "S", created: 5, updated: 6, leaf: "b", evil: 1,
    messages: [
      {id: "a", parent: null, order: 1, role: "user", content: "q", created: 5, status: "done"},
      {id: "b", parent: "a", order: 2, role: "assistant", content: "r", created: 6, status: "streaming", reasoning: "h",
        toolCalls: [{id: "c", name: "f", arguments: "{}"}], stats: {tokens: 3, evil: "x"}, evil: 2},
      {id: "z", parent: "a", role: "system", content: "no such role"},
      null,
    ],
  }, {title: "without messages"}, 7]};
  const [{record, messages}, ...rest] = readImport(JSON.stringify(file));
  assert.equal(rest.length, 0);
  assert.equal(record.title, "T");
  assert.notEqual(record.id, "old");
  assert.equal(messages.length, 2);
  assert.equal(messages[1].parent, messages[0].id);
  assert.equal(record.leaf, messages[1].id);
  assert.equal(messages[1].status, "interrupted");
  assert.deepEqual(messages[1].stats, {tokens: 3});
  assert.ok(!("evil" in record) && !("evil" in messages[1]));
  assert.throws(() => readImport("x"), /JSON/);
  assert.throws(() => readImport("{}"), /no conversations/);
  assert.throws(() => readImport('{"format":"gem-conversations","version":2,"conversations":[]}'), /version 2/);
});

test("numbers and times", () => {
  assert.deepEqual([0, 234, 1234, 61000].map(seconds), ["10 ms", "230 ms", "1.2 s", "1 min 1 s"]);
  const now = new Date(2026, 4, 20, 12).getTime();
  assert.deepEqual([0, 1, 3, 20, 200].map((days) => dayGroup(now - days * 86400000, now)),
      ["Today", "Yesterday", "Last 7 days", "Last 30 days", "Older"]);
  assert.equal(prettyJson('{"a":[1]}'), '{\n  "a": [\n    1\n  ]\n}');
  assert.equal(prettyJson('{"a":'), '{"a":');
});

function tex([tag, , content]) {
  return `<${tag}>${typeof content === "string" ? content : content.map(tex).join("")}</${tag}>`;
}

test("formulas", () => {
  assert.equal(tex(parseTex("x^23")), "<math><mrow><msup><mi>x</mi><mn>2</mn></msup><mn>3</mn></mrow></math>");
  assert.equal(tex(parseTex("\\frac12")), "<math><mfrac><mn>1</mn><mn>2</mn></mfrac></math>");
  assert.equal(tex(parseTex("\\sum_{i=1}^n i", true)).slice(0, 24), "<math><mrow><munderover>");
  assert.equal(tex(parseTex("\\sum_{i=1}^n i", false)).slice(0, 21), "<math><mrow><msubsup>");
  assert.equal(tex(parseTex("\\sqrt[3]{a}")), "<math><mroot><mi>a</mi><mn>3</mn></mroot></math>");
  assert.equal(tex(parseTex("\\mathbb{R}")), "<math><mi>ℝ</mi></math>");
  assert.equal(tex(parseTex("\\text{if x}")), "<math><mtext>if x</mtext></math>");
  assert.match(tex(parseTex("\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}")), /<mtr><mtd><mn>3<\/mn><\/mtd><mtd><mn>4/);
  for (const bad of ["\\href{javascript:x}{y}", "\\unknown", "a}", "{a", "\\frac{1}", "\\left(a", "\\end{x}", "a & b", "\\begin{evil}\\end{evil}",
    "\\constructor", "\\toString", "{".repeat(100) + "}".repeat(100)]) {
    assert.throws(() => parseTex(bad), TexFault, bad);
  }
});

test("colours change no character of the code", () => {
  const samples = {
    python: "# c\n@d\ndef f(x: int):\n    '''doc'''\n    return f\"a{1}\" + 'b'  # e\n", js: "const a = `x${1}`; // hi\nfoo(1.5e3) /* z */",
    json: '{"a": "b", "c": [1, true]}', bash: "echo $# ${a#b} # hi", html: '<a href="x">t</a><!-- c', cpp: "#include <a>\nint main() { return 'a'; }",
    sql: "SELECT * FROM t -- c", diff: "@@ -1 +1 @@\n-a\n+b", yaml: "a: b # c\nd: [1, 'e']", css: "a { color: #fff; }",
  };
  for (const [language, text] of Object.entries(samples)) {
    const pieces = highlight(text, language);
    assert.equal(pieces.map(([, piece]) => piece).join(""), text, language);
    assert.ok(pieces.some(([kind]) => kind !== ""), language);
  }
  assert.deepEqual(highlight("x = '#' # c", "py").filter(([kind]) => kind === "comment"), [["comment", "# c"]]);
  assert.equal(highlight("a", "no such language"), null);
  assert.equal(highlight("a", "constructor"), null);
});
