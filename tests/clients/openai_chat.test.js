// Chat completions through the official openai client.

import assert from "node:assert/strict";
import {after, before, test} from "node:test";
import OpenAI, {AuthenticationError, BadRequestError, NotFoundError, APIUserAbortError} from "openai";
import {ENDLESS, KEY, rejected, SLOTS, startServer, TIMEOUT, TOO_LONG, WEATHER, weatherIn} from "./server.js";

const options = {timeout: TIMEOUT};
let server, client;

before(async () => {
  server = await startServer();
  client = new OpenAI({baseURL: `${server.url}/v1`, apiKey: KEY, maxRetries: 0, timeout: TIMEOUT});
}, options);
after(() => server?.stop());

const user = (content) => [{role: "user", content}];
// The default of these tests: greedy, no thought.
const plain = (content, more = {}) => ({
  model: "any", temperature: 0, reasoning_effort: "none",
  messages: typeof content === "string" ? user(content) : content, ...more,
});
const weatherTool = {type: "function", function: WEATHER};

test("models", options, async () => {
  const models = (await client.models.list()).data;
  assert.deepEqual(models.map(({id, object}) => ({id, object})), [{id: server.model, object: "model"}]);
  assert.equal((await client.models.retrieve(server.model)).id, server.model);
  await rejected(client.models.retrieve("no-such-model"), NotFoundError);
});

test("a right answer in the official shape", options, async () => {
  const reply = await client.chat.completions.create(plain("What is 128 + 345?"));
  assert.match(reply.id, /^chatcmpl-\w{32}$/);
  assert.equal(reply.object, "chat.completion");
  assert.equal(reply.model, server.model);
  assert.equal(reply.choices.length, 1);
  const [choice] = reply.choices;
  assert.equal(choice.message.content, "128 + 345 = 473");
  assert.equal(choice.message.role, "assistant");
  assert.equal(choice.message.tool_calls, undefined);
  assert.equal(choice.message.reasoning_content, undefined);
  assert.equal(choice.finish_reason, "stop");
  const {usage} = reply;
  assert.ok(usage.prompt_tokens > 5 && usage.completion_tokens > 3);
  assert.equal(usage.total_tokens, usage.prompt_tokens + usage.completion_tokens);
});

test("system and developer messages, earlier turns, parts", options, async () => {
  const ask = async (messages) => (await client.chat.completions.create(plain(messages))).choices[0].message.content;
  for (const role of ["system", "developer"]) {
    assert.equal(await ask([{role, content: "Your name is Brumelda."}, ...user("What is your name?")]), "I am Brumelda.");
  }
  assert.equal(await ask([...user("My name is Torvik."), {role: "assistant", content: "Nice to meet you, Torvik."},
    ...user([{type: "text", text: "What is my name?"}])]), "Your name is Torvik.");
});

test("a stream: the role first, then text, the finish, usage", options, async () => {
  const stream = await client.chat.completions.create(
    plain("Say: 🦊🎉 東京 Привет", {stream: true, stream_options: {include_usage: true}}));
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  assert.equal(new Set(chunks.map(({id, created, model}) => `${id} ${created} ${model}`)).size, 1);
  assert.equal(chunks[0].choices[0].delta.role, "assistant");
  assert.equal(chunks.map(({choices}) => choices[0]?.delta.content ?? "").join(""), "🦊🎉 東京 Привет");
  const reasons = chunks.flatMap(({choices}) => choices).map(({finish_reason}) => finish_reason).filter(Boolean);
  assert.deepEqual(reasons, ["stop"]);
  const last = chunks.at(-1);
  assert.deepEqual(last.choices, []);
  assert.ok(last.usage.completion_tokens > 3);
  assert.ok(chunks.slice(0, -1).every(({usage}) => !usage));
  assert.ok(chunks.length > 4, "text comes in pieces");
});

test("the stream helper gives the plain reply", options, async () => {
  const body = plain("What is the weather in Rome and Oslo?", {tools: [weatherTool]});
  const whole = await client.chat.completions.create(body);
  const stream = client.chat.completions.stream({...body, stream_options: {include_usage: true}});
  let calls = 0;
  stream.on("tool_calls.function.arguments.done", () => { ++calls; });
  const streamed = await stream.finalChatCompletion();
  const essence = ({choices: [{message, finish_reason}]}) => ({
    content: message.content ?? null,
    calls: message.tool_calls.map(({function: {name, arguments: text}}) => ({name, text})),
    finish_reason,
  });
  assert.deepEqual(essence(streamed), essence(whole));
  assert.equal(calls, 2);
  assert.deepEqual(essence(whole), {
    content: null,
    calls: [{name: "get_weather", text: '{"city":"Rome"}'}, {name: "get_weather", text: '{"city":"Oslo"}'}],
    finish_reason: "tool_calls",
  });
  assert.equal(streamed.usage.prompt_tokens, whole.usage.prompt_tokens);
  assert.equal(streamed.usage.completion_tokens, whole.usage.completion_tokens);
});

for (const stream of [false, true]) {
  for (const effort of ["none", "high"]) {
    test(`a tool loop ends in the right answer (stream ${stream}, effort ${effort})`, options, async () => {
      const asked = [];
      const runner = client.chat.completions.runTools({
        ...plain("What is the weather in Paris?"), reasoning_effort: effort, stream,
        tools: [{type: "function", function: {...WEATHER, parse: JSON.parse, function: ({city}) => {
          asked.push(city);
          return weatherIn(city);
        }}}],
      });
      assert.equal(await runner.finalContent(), "The weather in Paris is sunny, 18 degrees.");
      assert.deepEqual(asked, ["Paris"]);
      const [first] = runner.messages.filter(({role}) => role === "assistant");
      assert.equal(Boolean(first.reasoning_content), effort === "high");
    });
  }
}

test("a failed tool is told of", options, async () => {
  const messages = [...user("What is the weather in Paris?"),
    {role: "assistant", content: null, tool_calls: [{id: "c1", type: "function", function: {name: "get_weather", arguments: '{"city":"Paris"}'}}]},
    {role: "tool", tool_call_id: "c1", content: "Error: timeout"}];
  const reply = await client.chat.completions.create(plain(messages, {tools: [weatherTool]}));
  assert.equal(reply.choices[0].message.content, "The tool failed: timeout.");
});

test("parallel_tool_calls false: one call; tool_choice none: no call", options, async () => {
  const body = plain("What is the weather in Rome and Oslo?", {tools: [weatherTool]});
  const one = await client.chat.completions.create({...body, parallel_tool_calls: false});
  assert.equal(one.choices[0].message.tool_calls.length, 1);
  assert.equal(one.choices[0].finish_reason, "tool_calls");
  const none = await client.chat.completions.create({...body, tool_choice: "none"});
  assert.equal(none.choices[0].message.tool_calls, undefined);
  assert.equal(none.choices[0].finish_reason, "stop");
});

test("thinking: on by effort, by template argument and by default; off likewise", options, async () => {
  const ask = async (more) => {
    const body = {...plain("What is 57 + 68?"), ...more};
    if (body.reasoning_effort === undefined) delete body.reasoning_effort;
    const {choices: [{message}], usage} = await client.chat.completions.create(body);
    assert.equal(message.content, "57 + 68 = 125");
    const thoughts = usage.completion_tokens_details.reasoning_tokens;
    assert.equal(Boolean(message.reasoning_content), thoughts > 0);
    return Boolean(message.reasoning_content);
  };
  assert.equal(await ask({reasoning_effort: "high"}), true);
  assert.equal(await ask({reasoning_effort: undefined}), true);
  assert.equal(await ask({reasoning_effort: undefined, chat_template_kwargs: {enable_thinking: false}}), false);
  assert.equal(await ask({reasoning_effort: "none"}), false);
});

test("thoughts are streamed before the answer", options, async () => {
  const stream = await client.chat.completions.create(plain("What is 57 + 68?", {reasoning_effort: "low", stream: true}));
  const order = [];
  const texts = {reasoning_content: "", content: ""};
  for await (const {choices: [choice]} of stream) {
    for (const kind of ["reasoning_content", "content"]) {
      if (!choice?.delta[kind]) continue;
      if (order.at(-1) !== kind) order.push(kind);
      texts[kind] += choice.delta[kind];
    }
  }
  assert.deepEqual(order, ["reasoning_content", "content"]);
  assert.equal(texts.content, "57 + 68 = 125");
});

test("a thought is closed at its budget", options, async () => {
  const {choices: [{message}], usage} = await client.chat.completions.create(
    plain("What is 57 + 68?", {reasoning_effort: "high", thinking_budget_tokens: 4}));
  // The budget, and the markers around the thought: <|channel>, "thought", the line end, <channel|>.
  const {reasoning_tokens} = usage.completion_tokens_details;
  assert.ok(reasoning_tokens > 0 && reasoning_tokens <= 4 + 4, JSON.stringify(usage));
  const {usage: free} = await client.chat.completions.create(plain("What is 57 + 68?", {reasoning_effort: "high"}));
  assert.ok(free.completion_tokens_details.reasoning_tokens > 3 * reasoning_tokens, "without a budget it is longer");
  assert.ok(message.content.length > 0);
});

test("n replies, each with its index, the first as alone", options, async () => {
  const body = {...plain("Tell me a story about a fox named Mia."), temperature: 1, seed: 7, max_tokens: 40};
  const alone = await client.chat.completions.create(body);
  const {choices, usage} = await client.chat.completions.create({...body, n: 2});
  assert.deepEqual(choices.map(({index}) => index), [0, 1]);
  assert.equal(choices[0].message.content, alone.choices[0].message.content);
  assert.notEqual(choices[1].message.content, choices[0].message.content);
  assert.ok(usage.completion_tokens > alone.usage.completion_tokens);
  const texts = ["", ""];
  const stream = await client.chat.completions.create({...body, n: 2, stream: true});
  for await (const chunk of stream) for (const choice of chunk.choices) texts[choice.index] += choice.delta.content ?? "";
  assert.deepEqual(texts, choices.map(({message}) => message.content));
});

test("logprobs are over the tokens of the text", options, async () => {
  const body = plain("What is 128 + 345?", {logprobs: true, top_logprobs: 3});
  const {choices: [{message, logprobs}]} = await client.chat.completions.create(body);
  const bytes = logprobs.content.flatMap((token) => token.bytes);
  assert.ok(Buffer.from(bytes).toString().startsWith(message.content));
  for (const {token, logprob, top_logprobs} of logprobs.content) {
    assert.ok(logprob <= 0 && logprob > -1, `${token}: ${logprob}`); // a greedy, sure reply
    assert.equal(top_logprobs.length, 3);
    assert.equal(top_logprobs[0].token, token);
    assert.ok(Math.abs(top_logprobs[0].logprob - logprob) < 1e-6);
    assert.ok(top_logprobs[0].logprob >= top_logprobs[1].logprob && top_logprobs[1].logprob >= top_logprobs[2].logprob);
  }
  const stream = await client.chat.completions.create({...body, stream: true});
  const streamed = [];
  for await (const {choices: [choice]} of stream) streamed.push(...(choice?.logprobs?.content ?? []));
  assert.deepEqual(streamed, logprobs.content);
});

test("stop strings cut the text before them", options, async () => {
  const body = plain("Count from 1 to 20.", {stop: ["never", ", 7"]});
  const {choices: [{message, finish_reason}]} = await client.chat.completions.create(body);
  assert.equal(message.content, "1, 2, 3, 4, 5, 6");
  assert.equal(finish_reason, "stop");
  let text = "";
  for await (const {choices: [choice]} of await client.chat.completions.create({...body, stream: true})) {
    text += choice?.delta.content ?? "";
  }
  assert.equal(text, message.content);
});

test("max_completion_tokens ends with length", options, async () => {
  const {choices: [{finish_reason}], usage} =
    await client.chat.completions.create(plain("Count from 1 to 100.", {max_completion_tokens: 10}));
  assert.equal(finish_reason, "length");
  assert.equal(usage.completion_tokens, 10);
});

test("a seed repeats a drawn reply, another one does not", options, async () => {
  const draw = async (seed) => (await client.chat.completions.create(
    {...plain("Tell me a story about a fox named Mia."), temperature: 1.5, seed, max_tokens: 60})).choices[0].message.content;
  const first = await draw(1);
  assert.equal(await draw(1), first);
  assert.notEqual(await draw(2), first);
});

test("a prefill is continued", options, async () => {
  const {choices: [{message}]} = await client.chat.completions.create(
    plain([...user("Count from 1 to 20."), {role: "assistant", content: "1, 2, 3, 4,"}]));
  assert.match(message.content, /^ ?5, 6, 7.* 20$/);
});

test("the second turn finds the first one's prompt", options, async () => {
  const story = "The mill is old. The river runs by the mill. Nobody knew why the owl sings. ".repeat(8);
  const first = [...user(`${story}What is 20 + 15?`)];
  const one = await client.chat.completions.create(plain(first));
  assert.equal(one.choices[0].message.content, "20 + 15 = 35");
  const two = await client.chat.completions.create(plain(
    [...first, {role: "assistant", content: "20 + 15 = 35"}, ...user("Add 7 to that.")]));
  assert.equal(two.choices[0].message.content, "35 + 7 = 42");
  const {prompt_tokens, prompt_tokens_details: {cached_tokens}} = two.usage;
  assert.ok(cached_tokens > one.usage.prompt_tokens * 0.9 && cached_tokens < prompt_tokens,
    `${cached_tokens} of ${prompt_tokens}, after ${one.usage.prompt_tokens}`);
});

test("more requests than slots: every one gets its own answer", options, async () => {
  const sums = Array.from({length: SLOTS * 3}, (_, i) => [20 + i, 31 + 2 * i]);
  const replies = await Promise.all(sums.map(([a, b]) => client.chat.completions.create(plain(`What is ${a} + ${b}?`))));
  assert.deepEqual(replies.map(({choices: [{message}]}) => message.content), sums.map(([a, b]) => `${a} + ${b} = ${a + b}`));
});

test("text completions", options, async () => {
  const {choices: [{text, finish_reason}], object} = await client.completions.create({
    model: "any", temperature: 0, max_tokens: 30,
    prompt: "<|turn>user\nWhat is 128 + 345?<turn|>\n<|turn>model\n<|channel>thought\n<channel|>",
  });
  assert.equal(object, "text_completion");
  assert.equal(text, "128 + 345 = 473");
  assert.equal(finish_reason, "stop");
});

test("a wrong key is an AuthenticationError", options, async () => {
  const stranger = client.withOptions({apiKey: "wrong"});
  for (const request of [stranger.models.list(), stranger.chat.completions.create(plain("Hello"))]) {
    const error = await rejected(request, AuthenticationError);
    assert.equal(error.status, 401);
    assert.equal(error.type, "authentication_error");
  }
});

test("a prompt that does not fit is refused in the words that clients look for", options, async () => {
  for (const stream of [false, true]) {
    const error = await rejected(client.chat.completions.create(plain(TOO_LONG, {stream})), BadRequestError);
    assert.equal(error.type, "exceed_context_size_error");
    assert.match(error.message, /exceeds the available context size/);
    assert.ok(error.error.n_prompt_tokens > error.error.n_ctx);
  }
});

test("bad fields are refused by name", options, async () => {
  const cases = {
    top_p: {top_p: 2}, temperature: {temperature: "hot"}, messages: {messages: []}, n: {n: 1e9},
    "messages[0].role": {messages: [{role: "king", content: "x"}]},
    tool_choice: {tools: [weatherTool], tool_choice: "required"},
    response_format: {response_format: {type: "json_object"}},
    "messages[0].content[0]": {messages: user([{type: "image_url", image_url: {url: "data:image/png;base64,AA=="}}])},
  };
  for (const [param, fields] of Object.entries(cases)) {
    const error = await rejected(client.chat.completions.create(plain("Hello", fields)), BadRequestError);
    assert.equal(error.param, param, error.message);
    assert.equal(error.type, "invalid_request_error");
  }
});

test("an abort in mid-stream frees the slot", options, async () => {
  for (let round = 0; round < SLOTS + 1; ++round) {
    const stream = await client.chat.completions.create(plain(ENDLESS, {stream: true}));
    let seen = 0;
    for await (const chunk of stream) {
      if (chunk.choices[0]?.delta.content && ++seen === 3) break; // the client aborts
    }
    await server.idle();
  }
});

test("an abort of a plain request frees the slot", options, async () => {
  await server.idle();
  const controller = new AbortController();
  const request = client.chat.completions.create(plain(ENDLESS), {signal: controller.signal});
  request.catch(() => {});
  await server.busy();
  controller.abort();
  await rejected(request, APIUserAbortError);
  await server.idle();
});

test("aborted while it waits for a slot, a request is never begun", options, async () => {
  const streams = await Promise.all(Array.from({length: SLOTS}, () =>
    client.chat.completions.create(plain(ENDLESS, {stream: true}))));
  const controller = new AbortController();
  const waiting = await client.chat.completions.create(plain(ENDLESS, {stream: true}), {signal: controller.signal});
  controller.abort();
  const readWaiting = (async () => { for await (const chunk of waiting) assert.ok(!chunk.choices[0]?.delta.content); })();
  await readWaiting.catch((error) => assert.ok(error instanceof APIUserAbortError, error));
  for (const stream of streams) stream.controller.abort();
  await server.idle();
  const {choices: [{message}]} = await client.chat.completions.create(plain("What is 3 + 4?"));
  assert.equal(message.content, "3 + 4 = 7");
});
