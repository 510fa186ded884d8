// The Messages API through the official @anthropic-ai/sdk.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";
import Anthropic, {APIUserAbortError, AuthenticationError, BadRequestError} from "@anthropic-ai/sdk";
import {ENDLESS, KEY, rejected, SLOTS, startServer, TIMEOUT, TOO_LONG, WEATHER, weatherIn} from "./server.js";

const options = {timeout: TIMEOUT};
let server, client;

before(async () => {
  server = await startServer();
  client = new Anthropic({baseURL: server.url, apiKey: KEY, maxRetries: 0, timeout: TIMEOUT});
}, options);
after(() => server?.stop());

const user = (content) => [{role: "user", content}];
const plain = (content, more = {}) => ({
  model: "any", max_tokens: 500, temperature: 0, messages: typeof content === "string" ? user(content) : content, ...more,
});
const thinking = {thinking: {type: "enabled", budget_tokens: 1024}, max_tokens: 2000};
const {parameters: input_schema, ...weather} = WEATHER;
const tools = [{...weather, input_schema}];
const text = (message) => message.content.filter(({type}) => type === "text").map((block) => block.text).join("");
const types = (message) => message.content.map(({type}) => type);
// What two messages to the same request must agree in; ids, and what was resumed, differ.
const essence = ({content, stop_reason, stop_sequence, usage}) => ({
  content: content.map(({id, ...block}) => block), stop_reason, stop_sequence,
  tokens: [usage.input_tokens + usage.cache_read_input_tokens, usage.output_tokens],
});

test("a right answer in the official shape", options, async () => {
  const message = await client.messages.create(plain("What is 128 + 345?"));
  assert.match(message.id, /^msg_\w{32}$/);
  assert.equal(message.type, "message");
  assert.equal(message.role, "assistant");
  assert.equal(message.model, server.model);
  assert.deepEqual(message.content, [{type: "text", text: "128 + 345 = 473"}]);
  assert.equal(message.stop_reason, "end_turn");
  assert.equal(message.stop_sequence, null);
  assert.ok(message.usage.input_tokens > 5 && message.usage.output_tokens > 3);
});

test("system prompts, blocks and earlier turns", options, async () => {
  for (const system of ["Your name is Brumelda.", [{type: "text", text: "Your name is Brumelda.", cache_control: {type: "ephemeral"}}]]) {
    assert.equal(text(await client.messages.create(plain("What is your name?", {system}))), "I am Brumelda.");
  }
  const message = await client.messages.create(plain([...user("My name is Torvik."),
    {role: "assistant", content: [{type: "text", text: "Nice to meet you, Torvik."}]},
    ...user([{type: "text", text: "What is my name?"}])]));
  assert.equal(text(message), "Your name is Torvik.");
});

test("events come in the official order", options, async () => {
  const events = [];
  for await (const event of await client.messages.create(plain("What is 57 + 68?", {...thinking, stream: true}))) events.push(event);
  const order = events.map(({type, delta}) => delta?.type ?? type).filter((type, i, all) => type !== all[i - 1]);
  assert.deepEqual(order, ["message_start", "content_block_start", "thinking_delta", "signature_delta", "content_block_stop",
    "content_block_start", "text_delta", "content_block_stop", "message_delta", "message_stop"]);
  assert.ok(events[0].message.usage.input_tokens > 5);
  assert.deepEqual(events.filter(({type}) => type === "content_block_start").map(({index}) => index), [0, 1]);
});

for (const [name, body] of Object.entries({
  text: plain("Say: 🦊🎉 東京 Привет"),
  thought: plain("What is 57 + 68?", thinking),
  "parallel calls": plain("What is the weather in Rome and Oslo?", {tools}),
  "a cut reply": plain("Count from 1 to 100.", {max_tokens: 12}),
})) {
  test(`the stream helper gives the plain message: ${name}`, options, async () => {
    const whole = await client.messages.create(body);
    const stream = client.messages.stream(body);
    let streamedText = "";
    stream.on("text", (delta) => { streamedText += delta; });
    const final = await stream.finalMessage();
    assert.deepEqual(essence(final), essence(whole));
    assert.equal(streamedText, text(whole));
  });
}

for (const fields of [{}, thinking]) {
  test(`a tool loop ends in the right answer (${fields === thinking ? "thinking" : "no thought"})`, options, async () => {
    const messages = user("What is the weather in Paris?");
    const asked = [];
    let message;
    for (let step = 0; step < 4; ++step) {
      message = await client.messages.create(plain(messages, {tools, ...fields}));
      messages.push({role: "assistant", content: message.content});
      if (message.stop_reason !== "tool_use") break;
      messages.push({role: "user", content: message.content.filter(({type}) => type === "tool_use").map(({id, name, input}) => {
        assert.match(id, /^toolu_/);
        assert.equal(name, "get_weather");
        asked.push(input.city);
        return {type: "tool_result", tool_use_id: id, content: weatherIn(input.city)};
      })});
    }
    assert.equal(text(message), "The weather in Paris is sunny, 18 degrees.");
    assert.equal(message.stop_reason, "end_turn");
    assert.deepEqual(asked, ["Paris"]);
    assert.equal(types(messages[1])[0] === "thinking", fields === thinking);
  });
}

for (const stream of [false, true]) {
  test(`the client's own tool runner (stream ${stream})`, options, async () => {
    const asked = [];
    const runner = client.beta.messages.toolRunner({
      ...plain("What is the weather in Rome and Oslo?"), stream,
      tools: [{...tools[0], parse: (input) => input, run: ({city}) => {
        asked.push(city);
        return [{type: "text", text: weatherIn(city)}];
      }}],
    });
    const message = await runner.runUntilDone();
    assert.deepEqual(asked.sort(), ["Oslo", "Rome"]);
    assert.match(text(message), /rainy, 7 degrees/);
    assert.match(text(message), /cloudy, 3 degrees/);
  });
}

test("a failed tool is told of", options, async () => {
  const message = await client.messages.create(plain([...user("What is the weather in Paris?"),
    {role: "assistant", content: [{type: "tool_use", id: "toolu_1", name: "get_weather", input: {city: "Paris"}}]},
    ...user([{type: "tool_result", tool_use_id: "toolu_1", is_error: true, content: "timeout"}])], {tools}));
  assert.equal(text(message), "The tool failed: timeout.");
});

test("disable_parallel_tool_use: one call; tool_choice none: no call", options, async () => {
  const body = plain("What is the weather in Rome and Oslo?", {tools});
  const one = await client.messages.create({...body, tool_choice: {type: "auto", disable_parallel_tool_use: true}});
  assert.deepEqual(types(one), ["tool_use"]);
  assert.deepEqual(one.content[0].input, {city: "Rome"});
  const none = await client.messages.create({...body, tool_choice: {type: "none"}});
  assert.ok(!types(none).includes("tool_use"));
});

test("thinking is as asked for, and off unless it is", options, async () => {
  for (const [fields, thinks] of [[thinking, true], [{thinking: {type: "adaptive"}}, true], [{thinking: {type: "disabled"}}, false], [{}, false]]) {
    const message = await client.messages.create(plain("What is 57 + 68?", fields));
    assert.equal(text(message), "57 + 68 = 125");
    assert.deepEqual(types(message), thinks ? ["thinking", "text"] : ["text"]);
    if (thinks) assert.ok(message.content[0].thinking.length > 0);
  }
  const omitted = await client.messages.create(plain("What is 57 + 68?", {thinking: {type: "adaptive", display: "omitted"}}));
  assert.equal(omitted.content[0].thinking, "");
});

test("a stop sequence is named", options, async () => {
  const message = await client.messages.create(plain("Count from 1 to 20.", {stop_sequences: ["never", ", 7"]}));
  assert.equal(text(message), "1, 2, 3, 4, 5, 6");
  assert.equal(message.stop_reason, "stop_sequence");
  assert.equal(message.stop_sequence, ", 7");
});

test("max_tokens ends a reply", options, async () => {
  const message = await client.messages.create(plain("Count from 1 to 100.", {max_tokens: 10}));
  assert.equal(message.stop_reason, "max_tokens");
  assert.equal(message.usage.output_tokens, 10);
});

test("a prefill is continued", options, async () => {
  const message = await client.messages.create(plain([...user("Count from 1 to 20."), {role: "assistant", content: "1, 2, 3, 4,"}]));
  assert.match(text(message), /^ ?5, 6, 7.* 20$/);
});

test("tokens are counted as they are used", options, async () => {
  const body = {model: "any", system: "Your name is Brumelda.", messages: user("What is 46 + 38?"), tools};
  const {input_tokens} = await client.messages.countTokens(body);
  const {usage, content} = await client.messages.create({...body, max_tokens: 50, temperature: 0});
  assert.deepEqual(content, [{type: "text", text: "46 + 38 = 84"}]);
  assert.equal(usage.input_tokens + usage.cache_read_input_tokens, input_tokens);
});

test("the second turn finds the first one's prompt, also behind a billing header", options, async () => {
  const story = "The mill is old. The river runs by the mill. Nobody knew why the owl sings. ".repeat(8);
  const system = (cch) => [{type: "text", text: `x-anthropic-billing-header: cc_version=2.1; cch=${cch};`}, {type: "text", text: story}];
  const first = user("What is 20 + 15?");
  const one = await client.messages.create(plain(first, {system: system("0a1b2")}));
  const stream = client.messages.stream(plain([...first, {role: "assistant", content: one.content}, ...user("Add 7 to that.")],
    {system: system("f9e8d")}));
  const {usage} = await stream.finalMessage();
  const before = one.usage.input_tokens + one.usage.cache_read_input_tokens;
  assert.ok(usage.cache_read_input_tokens > before * 0.9, JSON.stringify(usage));
  assert.ok(usage.input_tokens > 0 && usage.input_tokens < before / 2, JSON.stringify(usage));
  assert.equal(usage.cache_creation_input_tokens, 0);
});

test("keys: as x-api-key and as a bearer token; a wrong one is an AuthenticationError", options, async () => {
  const bearer = new Anthropic({baseURL: server.url, apiKey: null, authToken: KEY, maxRetries: 0});
  assert.equal(text(await bearer.messages.create(plain("What is 3 + 4?"))), "3 + 4 = 7");
  const error = await rejected(client.withOptions({apiKey: "wrong"}).messages.create(plain("Hello")), AuthenticationError);
  assert.equal(error.error.type, "error");
  assert.equal(error.error.error.type, "authentication_error");
});

test("a prompt that does not fit is refused in the official words", options, async () => {
  for (const stream of [false, true]) {
    const error = await rejected(client.messages.create(plain(TOO_LONG, {stream})), BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    assert.match(error.error.error.message, /^prompt is too long/);
  }
});

test("what cannot be done is refused by name", options, async () => {
  const cases = {
    "messages[0].content[0]": {messages: user([{type: "image", source: {type: "base64", media_type: "image/png", data: "AA=="}}])},
    tool_choice: {tools, tool_choice: {type: "any"}},
    "tool_choice.name": {tools, tool_choice: {type: "tool", name: "nobody"}},
    "output_config.format": {output_config: {format: {type: "json_schema", schema: {type: "object"}}}},
    "thinking.type": {thinking: {type: "deep"}},
    temperature: {temperature: "hot"},
    stop_sequences: {stop_sequences: 5},
    messages: {messages: []},
  };
  for (const [field, fields] of Object.entries(cases)) {
    const error = await rejected(client.messages.create(plain("Hello", fields)), BadRequestError);
    assert.equal(error.error.error.type, "invalid_request_error");
    assert.ok(error.error.error.message.includes(`'${field}'`), error.message);
  }
});

test("an abort in mid-stream frees the slot", options, async () => {
  for (let round = 0; round < SLOTS + 1; ++round) {
    const stream = client.messages.stream(plain(ENDLESS, {max_tokens: 3000}));
    stream.once("text", () => stream.abort());
    await rejected(stream.finalMessage(), APIUserAbortError);
    await server.idle();
  }
});
