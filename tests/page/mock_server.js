// A stand-in for `gem serve`, for what the real one does rarely: slow streams, errors in mid-reply, hostile text, huge
// replies. It serves the page's own files and answers by what the last user message asks for ("mock:NAME").

import {createReadStream, existsSync} from "node:fs";
import {createServer} from "node:http";
import {extname, join} from "node:path";

const TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
  ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"};
// As src/server/page/page.cpp sends it.
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; " +
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

export const HOSTILE = [
  "<img src=x onerror=\"window.hacked=1\"> <script>window.hacked=2</script>",
  "[click](javascript:window.hacked=3) ![x](https://evil.example/p.png) [d](data:text/html,<script>window.hacked=4</script>)",
  "<https://ok.example/> [ok](https://ok.example/?a=1&b=2 \"t\")",
  "```html\"><img src=x onerror=window.hacked=5>\n<script>window.hacked=6</script>\n```",
  "| <b onclick=window.hacked=7>a</b> | `<i>` |\n|---|---|\n| <iframe src=https://evil.example></iframe> | \" onmouseover=\"window.hacked=8 |",
  "$\\href{javascript:window.hacked=9}{x}$ and <svg/onload=window.hacked=10>",
].join("\n\n");

export const MARKDOWN = `# A heading

A paragraph with **bold**, *italic*, ~~struck~~ and \`inline code\`, and a [link](https://example.org/).

1. First
   - nested
   - more
2. Second

- [x] done
- [ ] to do

> A quote
> of two lines.

| Name | Size | Share |
|:-----|-----:|:-----:|
| a | 1 | 10 % |
| b | 22 | 90 % |

\`\`\`python
# Greets.
def greet(name: str) -> str:
    return f"Hello, {name}! {1 + 2}"
\`\`\`

The area is $A = \\pi r^2$, and

$$\\frac{a + b}{\\sqrt{c}} = \\sum_{i=1}^{n} x_i^2 \\le \\alpha$$

---

The end.`;

// options: {assets, key, context, pace: milliseconds between chunks}
export async function startMock({assets, key = "", context = 4096, pace = 5}) {
  const state = {requests: [], tries: 0, aborted: 0, healthy: true, loading: 0, key, pace};
  const server = createServer((request, response) => {
    handle(request, response, {assets, context, state}).catch((error) => {
      console.error("mock:", error);
      response.destroy();
    });
  });
  const sockets = new Set();
  server.on("connection", (socket) => {
    sockets.add(socket);
    socket.on("close", () => sockets.delete(socket));
  });
  const listen = (port) => new Promise((resolve, reject) => {
    server.once("error", reject);
    server.listen(port, "127.0.0.1", resolve);
  });
  await listen(0);
  const {port} = server.address();
  const stop = () => new Promise((resolve) => {
    sockets.forEach((socket) => socket.destroy());
    server.close(() => resolve()); // also when it is closed already
  });
  return {url: `http://127.0.0.1:${port}/`, state, stop, restart: () => listen(port)};
}

function json(response, status, body, headers = {}) {
  response.writeHead(status, {"Content-Type": "application/json", ...headers});
  response.end(JSON.stringify(body));
}

const error = (code, type, message, extra = {}) => ({error: {code, type, message, param: null, ...extra}});

async function handle(request, response, {assets, context, state}) {
  const {pathname} = new URL(request.url, "http://mock");
  const file = pathname === "/" ? "index.html" : pathname.startsWith("/page/") ? pathname.slice(6) : "";
  if (file && /^[\w.]+$/.test(file) && existsSync(join(assets, file))) {
    response.writeHead(200, {"Content-Type": TYPES[extname(file)], "Content-Security-Policy": POLICY, "Cache-Control": "no-cache"});
    createReadStream(join(assets, file)).pipe(response);
    return;
  }
  if (pathname === "/health") return json(response, 200, {status: "ok"});
  if (state.key && request.headers.authorization !== `Bearer ${state.key}`) {
    return json(response, 401, error(401, "authentication_error", "Invalid API Key"));
  }
  if (state.loading > 0) {
    --state.loading;
    return json(response, 503, error(503, "unavailable_error", "Loading model"));
  }
  if (pathname === "/v1/models") {
    return json(response, 200, {object: "list", data: [{id: "mock-12b", object: "model", meta: {n_params: 11959730224, n_ctx: context}}]});
  }
  if (pathname === "/props") {
    return json(response, 200, {model_alias: "mock-12b", build_info: "mock", thinking_default: true, default_generation_settings: {n_ctx: context, params: {
      temperature: 1, top_k: 64, top_p: 0.95, min_p: 0, seed: -1, n_predict: -1, presence_penalty: 0, frequency_penalty: 0, repeat_penalty: 1}}});
  }
  if (pathname !== "/v1/chat/completions") return json(response, 404, error(404, "not_found_error", "File Not Found"));
  let text = "";
  for await (const part of request) text += part;
  const body = JSON.parse(text);
  state.requests.push(body);
  await reply(response, body, state, context);
}

async function reply(response, body, state, context) {
  const last = body.messages.at(-1);
  const asked = body.messages.filter(({role}) => role === "user").at(-1)?.content ?? "";
  const name = /mock:([\w-]+)/.exec(asked)?.[1] ?? "";
  if (name === "overflow") {
    return json(response, 400, error(400, "exceed_context_size_error",
        `request (9000 tokens) exceeds the available context size (${context} tokens), try increasing it`, {n_prompt_tokens: 9000, n_ctx: context}));
  }
  if (name === "busy" && state.tries++ < 1) return json(response, 429, error(429, "rate_limit_error", "The queue is full"), {"Retry-After": "1"});
  if (name === "refused") return json(response, 400, error(400, "invalid_request_error", "Field 'stop': too many strings"));

  response.writeHead(200, {"Content-Type": "text/event-stream", "Cache-Control": "no-cache"});
  let gone = false;
  response.on("close", () => {
    if (!response.writableFinished) {
      gone = true;
      ++state.aborted;
    }
  });
  const started = Date.now();
  let tokens = 0;
  const send = (delta, finish = null, extra = {}) => response.write(`data: ${JSON.stringify({
    id: "chatcmpl-mock", object: "chat.completion.chunk", created: 1780000000, model: "mock-12b",
    choices: [{index: 0, delta, finish_reason: finish}], ...extra})}\n\n`);
  const wait = (ms = state.pace) => new Promise((resolve) => setTimeout(resolve, ms));
  const timings = () => ({cache_n: 10, prompt_n: 30, prompt_ms: 50, prompt_per_second: 600, predicted_n: tokens,
    predicted_ms: Date.now() - started, predicted_per_second: tokens / Math.max(0.001, (Date.now() - started) / 1000)});
  const say = async (what, field = "content", size = 4) => {
    for (let at = 0; at < what.length && !gone; at += size) {
      ++tokens;
      send({[field]: what.slice(at, at + size)}, null, {timings: timings()});
      if (state.pace > 0) await wait();
    }
  };
  // Until the test has seen what it wants to see, however slow the machine is: it calls state.release().
  const hold = () => new Promise((resolve) => {
    state.release = resolve;
    response.once("close", resolve);
  });
  const finish = (reason = "stop") => {
    if (gone) return;
    send({}, reason);
    response.write(`data: ${JSON.stringify({id: "chatcmpl-mock", choices: [], usage: {prompt_tokens: 40, completion_tokens: tokens,
      total_tokens: 40 + tokens, prompt_tokens_details: {cached_tokens: 10}}, timings: timings()})}\n\n`);
    response.end("data: [DONE]\n\n");
  };
  send({role: "assistant", content: null});
  if (last.role === "assistant") {
    await say(" … and the rest.");
    return finish();
  }
  if (last.role === "tool") {
    await say(`The tool said: ${last.content}`);
    return finish();
  }
  switch (name) {
    case "markdown":
      await say(MARKDOWN, "content", 7);
      return finish();
    case "hostile":
      await say(HOSTILE, "content", 9);
      return finish();
    case "think":
      await say("First I look at the question.", "reasoning_content");
      await hold();
      await say(" Then I *consider* what is wanted, step by step.", "reasoning_content");
      await say("The answer is **4**.");
      return finish();
    case "slow":
      for (let i = 1; i <= 4000 && !gone; ++i) {
        await say(`word${i} `, "content", 100);
        await wait(25);
      }
      return finish();
    case "progress":
      for (let done = 512; done <= 4096 && !gone; done += 512) {
        send({role: "assistant", content: null}, null, {prompt_progress: {total: 4096, cache: 0, processed: done, time_ms: done}});
        if (done === 2048) await hold();
      }
      await say("Read it.");
      return finish();
    case "tools":
      await say("Let me look. ");
      for (const [index, city] of ["Oslo", "Rome"].entries()) {
        send({tool_calls: [{index, id: `call_${city}`, type: "function", function: {name: "weather", arguments: ""}}]});
        for (const part of ['{"city":', `"${city}",`, '"days":[1,2]}']) {
          send({tool_calls: [{index, function: {arguments: part}}]});
          await wait();
        }
      }
      return finish("tool_calls");
    case "error":
      await say("This begins well, ");
      response.write(`data: ${JSON.stringify(error(500, "server_error", "The engine failed in this round."))}\n\n`);
      return response.end();
    case "cut":
      await say("Half of a sen");
      await hold(); // what a browser has not read yet, a broken connection takes away
      return response.destroy();
    case "length":
      await say("One two three");
      return finish("length");
    case "huge": {
      const line = "A line of **many**, with `code` and [a link](https://example.org/).\n\n";
      response.write(`data: ${JSON.stringify({choices: [{index: 0, delta: {content: "# Huge\n\n"}, finish_reason: null}]})}\n\n`);
      for (let i = 0; i < 3000 && !gone; ++i) {
        ++tokens;
        if (i === 300) await hold();
        if (!send({content: line})) await new Promise((resolve) => response.once("drain", resolve).once("close", resolve));
      }
      await say("```\n" + "x = 1\n".repeat(8000) + "```\n", "content", 2000);
      await say("Done with it.");
      return finish();
    }
    default:
      await say(`You said: ${asked}`);
      return finish();
  }
}
