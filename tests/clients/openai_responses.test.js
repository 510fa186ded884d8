// The Responses API through the official openai client.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";
import OpenAI, {AuthenticationError, BadRequestError} from "openai";
import {ENDLESS, KEY, rejected, SLOTS, startServer, TIMEOUT, TOO_LONG, WEATHER, weatherIn} from "./server.js";

const options = {timeout: TIMEOUT};
let server, client;

before(async () => {
  server = await startServer();
  client = new OpenAI({baseURL: `${server.url}/v1`, apiKey: KEY, maxRetries: 0, timeout: TIMEOUT});
}, options);
after(() => server?.stop());

const plain = (input, more = {}) => ({model: "any", temperature: 0, reasoning: {effort: "none"}, input, ...more});
const thinking = {reasoning: {effort: "medium"}};
const tools = [{type: "function", ...WEATHER, strict: false}];
const types = (response) => response.output.map(({type}) => type);
// What two responses to the same request must agree in; ids and times differ.
const essence = ({status, output_text, output, usage, incomplete_details}) => ({
  status, output_text, incomplete_details,
  tokens: [usage.input_tokens, usage.output_tokens, usage.output_tokens_details.reasoning_tokens],
  // The helper adds what it has parsed.
  output: output.map(({id, call_id, parsed_arguments, content, ...item}) => (
    {...item, content: content?.map(({parsed, ...part}) => part)})),
});

test("a right answer in the official shape", options, async () => {
  const response = await client.responses.create(plain("What is 128 + 345?", {metadata: {a: "b"}}));
  assert.equal(response.output_text, "128 + 345 = 473");
  assert.match(response.id, /^resp_\w{32}$/);
  assert.equal(response.object, "response");
  assert.equal(response.status, "completed");
  assert.equal(response.model, server.model);
  assert.equal(response.error, null);
  assert.equal(response.incomplete_details, null);
  assert.deepEqual(response.metadata, {a: "b"});
  assert.deepEqual(types(response), ["message"]);
  assert.ok(response.completed_at >= response.created_at);
  const {input_tokens, output_tokens, total_tokens} = response.usage;
  assert.ok(input_tokens > 5 && output_tokens > 3);
  assert.equal(total_tokens, input_tokens + output_tokens);
});

test("instructions, and a conversation as items", options, async () => {
  const named = await client.responses.create(plain("What is your name?", {instructions: "Your name is Brumelda."}));
  assert.equal(named.output_text, "I am Brumelda.");
  assert.equal(named.instructions, "Your name is Brumelda.");
  const told = await client.responses.create(plain([
    {role: "user", content: "My name is Torvik."},
    {type: "message", role: "assistant", content: [{type: "output_text", text: "Nice to meet you, Torvik.", annotations: []}]},
    {role: "user", content: [{type: "input_text", text: "What is my name?"}]}]));
  assert.equal(told.output_text, "Your name is Torvik.");
});

test("events come numbered and in the official order", options, async () => {
  const stream = await client.responses.create(plain("What is 57 + 68?", {...thinking, stream: true}));
  const events = [];
  for await (const event of stream) events.push(event);
  assert.deepEqual(events.map(({sequence_number}) => sequence_number), events.map((_, i) => i));
  const order = events.map(({type}) => type).filter((type, i, all) => type !== all[i - 1]);
  const item = (kind) => ["response.output_item.added", "response.content_part.added", `response.${kind}.delta`,
    `response.${kind}.done`, "response.content_part.done", "response.output_item.done"];
  assert.deepEqual(order, ["response.created", "response.in_progress", ...item("reasoning_text"), ...item("output_text"),
    "response.completed"]);
  assert.equal(events.at(-1).response.output.length, 2);
});

for (const [name, body] of Object.entries({
  text: plain("Say: 🦊🎉 東京 Привет"),
  thought: plain("What is 57 + 68?", thinking),
  "parallel calls": plain("What is the weather in Rome and Oslo?", {tools}),
  "a cut reply": plain("Count from 1 to 100.", {max_output_tokens: 12}),
})) {
  test(`the stream helper gives the plain response: ${name}`, options, async () => {
    const whole = await client.responses.create(body);
    const stream = client.responses.stream(body);
    const deltas = [];
    stream.on("response.output_text.delta", ({delta, snapshot}) => {
      deltas.push(delta);
      assert.ok(snapshot.endsWith(delta));
    });
    const streamed = await stream.finalResponse();
    assert.deepEqual(essence(streamed), essence(whole));
    assert.equal(deltas.join(""), whole.output_text);
  });
}

for (const effort of ["none", "high"]) {
  test(`a tool loop ends in the right answer (effort ${effort})`, options, async () => {
    const input = [{role: "user", content: "What is the weather in Paris?"}];
    const asked = [];
    let response;
    for (let step = 0; step < 4; ++step) {
      response = await client.responses.create(plain(input, {tools, reasoning: {effort}}));
      input.push(...response.output); // as the official guide has it: thoughts and all
      const calls = response.output.filter(({type}) => type === "function_call");
      if (calls.length === 0) break;
      for (const {call_id, name, arguments: text} of calls) {
        assert.equal(name, "get_weather");
        asked.push(JSON.parse(text).city);
        input.push({type: "function_call_output", call_id, output: weatherIn(asked.at(-1))});
      }
    }
    assert.equal(response.output_text, "The weather in Paris is sunny, 18 degrees.");
    assert.deepEqual(asked, ["Paris"]);
    assert.equal(input.some(({type}) => type === "reasoning"), effort === "high");
  });
}

test("parallel_tool_calls false: one call; tool_choice none: no call", options, async () => {
  const body = plain("What is the weather in Rome and Oslo?", {tools});
  const one = await client.responses.create({...body, parallel_tool_calls: false});
  assert.deepEqual(types(one), ["function_call"]);
  const none = await client.responses.create({...body, tool_choice: "none"});
  assert.ok(!types(none).includes("function_call"));
});

test("tools of the vendor's own servers are left out", options, async () => {
  const response = await client.responses.create(plain("What is the weather in Paris?",
    {tools: [{type: "web_search"}, ...tools]}));
  assert.deepEqual(types(response), ["function_call"]);
});

test("thinking: by effort, and on by default", options, async () => {
  for (const [fields, thinks] of [[thinking, true], [{reasoning: {effort: "none"}}, false], [{reasoning: undefined}, true]]) {
    const response = await client.responses.create(plain("What is 57 + 68?", fields));
    assert.equal(response.output_text, "57 + 68 = 125");
    assert.deepEqual(types(response), thinks ? ["reasoning", "message"] : ["message"]);
    assert.equal(response.usage.output_tokens_details.reasoning_tokens > 0, thinks);
  }
});

test("a reply cut by its limit is incomplete", options, async () => {
  const response = await client.responses.create(plain("Count from 1 to 100.", {max_output_tokens: 10}));
  assert.equal(response.status, "incomplete");
  assert.equal(response.incomplete_details.reason, "max_output_tokens");
  assert.equal(response.usage.output_tokens, 10);
  assert.equal(response.output[0].status, "incomplete");
});

test("input tokens are counted as they are used", options, async () => {
  const body = {model: "any", input: "What is 57 + 68?", instructions: "Answer with the number only.", tools};
  const {input_tokens} = await client.responses.inputTokens.count(body);
  const {usage} = await client.responses.create({...body, temperature: 0});
  assert.equal(usage.input_tokens, input_tokens);
});

test("the second turn finds the first one's prompt", options, async () => {
  const story = "The mill is old. The river runs by the mill. Nobody knew why the owl sings. ".repeat(8);
  const input = [{role: "user", content: `${story}What is 20 + 15?`}];
  const one = await client.responses.create(plain(input));
  input.push(...one.output, {role: "user", content: "Add 7 to that."});
  const two = await client.responses.create(plain(input));
  assert.equal(two.output_text, "35 + 7 = 42");
  const cached = two.usage.input_tokens_details.cached_tokens;
  assert.ok(cached > one.usage.input_tokens * 0.9 && cached < two.usage.input_tokens, `${cached} of ${two.usage.input_tokens}`);
});

test("what needs a store, or constrained decoding, is refused by name", options, async () => {
  const cases = {
    previous_response_id: {previous_response_id: "resp_1"},
    conversation: {conversation: "conv_1"},
    background: {background: true},
    "text.format": {text: {format: {type: "json_schema", name: "n", schema: {type: "object"}}}},
    tool_choice: {tools, tool_choice: "required"},
    "tool_choice.name": {tools, tool_choice: {type: "function", name: "nobody"}},
    max_output_tokens: {max_output_tokens: "many"},
    "input[0].content[0]": {input: [{role: "user", content: [{type: "input_image", image_url: "data:image/png;base64,AA=="}]}]},
  };
  for (const [param, fields] of Object.entries(cases)) {
    const error = await rejected(client.responses.create(plain("Hello", fields)), BadRequestError);
    assert.equal(error.param, param, error.message);
  }
});

test("a wrong key is an AuthenticationError", options, async () => {
  await rejected(client.withOptions({apiKey: "wrong"}).responses.create(plain("Hello")), AuthenticationError);
});

test("a prompt that does not fit: 400, and response.failed in a stream", options, async () => {
  const error = await rejected(client.responses.create(plain(TOO_LONG)), BadRequestError);
  assert.match(error.message, /exceeds the available context size/);
  const events = [];
  for await (const event of await client.responses.create(plain(TOO_LONG, {stream: true}))) events.push(event);
  assert.equal(events[0].type, "response.created");
  assert.equal(events.at(-1).type, "response.failed");
  assert.equal(events.at(-1).response.status, "failed");
  assert.equal(events.at(-1).response.error.code, "context_length_exceeded");
});

test("an abort in mid-stream frees the slot", options, async () => {
  for (let round = 0; round < SLOTS + 1; ++round) {
    let seen = 0;
    for await (const event of await client.responses.create(plain(ENDLESS, {stream: true}))) {
      if (event.type === "response.output_text.delta" && ++seen === 3) break;
    }
    await server.idle();
  }
});
