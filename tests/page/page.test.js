// The page in Chromium against the mock server (mock_server.js): what users do, and what goes wrong.

import assert from "node:assert/strict";
import {readFile} from "node:fs/promises";
import {after, before, test} from "node:test";
import {ask, inThread, lastReply, openBrowser, openPage, replyText, send, shoot} from "./browser.js";
import {startMock} from "./mock_server.js";

const ASSETS = new URL("../assets/", import.meta.url).pathname;
let browser, mock;

before(async () => {
  browser = await openBrowser();
  mock = await startMock({assets: ASSETS});
});

after(async () => {
  await browser?.close();
  await mock?.stop();
});

// Each test has a page of its own; afterwards nothing forbidden may have happened on it.
function pageTest(name, run, {server = () => mock, expected = []} = {}) {
  test(name, {timeout: 120000}, async () => {
    const target = await server();
    const opened = await openPage(browser.context, target.url, expected);
    const {page, faults} = opened;
    try {
      await page.evaluate(() => localStorage.clear());
      await page.setViewportSize({width: 1280, height: 800});
      await page.emulateMedia({colorScheme: "light"});
      await page.goto(target.url);
      await page.locator("#model").or(page.locator("#banner")).filter({visible: true}).first().waitFor();
      await run({...opened, server: target});
      assert.equal(await page.evaluate(() => document.scrollingElement.scrollTop), 0, "only the parts scroll, not the page");
      assert.deepEqual(faults, []);
    } catch (error) {
      await shoot(page, `failed-${name.replace(/\W+/g, "-")}`);
      throw error;
    } finally {
      await page.close();
      if (target !== mock) await target.stop();
    }
  });
}

pageTest("a conversation: streamed, titled, with its figures", async ({page}) => {
  assert.equal(await page.title(), "gem");
  await shoot(page, "welcome-light");
  assert.match(await ask(page, "Hello there"), /^You said: Hello there$/);
  assert.match(await ask(page, "And again"), /^You said: And again$/);
  assert.equal(await page.locator("#title").innerText(), "Hello there");
  assert.match(await page.locator(".message.assistant .stats").last().innerText(), /[\d.]+ tokens\/s · \d+ tokens · first after \d+/);
  assert.match(await page.locator("#meter").innerText(), /^\d+ \/ 4,096$/);
  const {messages, ...rest} = mock.state.requests.at(-1);
  assert.deepEqual(messages.map(({role}) => role), ["user", "assistant", "user"]);
  assert.equal(rest.stream, true);
  assert.ok(!("temperature" in rest), "a default must be left to the server");
});

pageTest("the reply grows while it is written, and stop keeps what is there", async ({page}) => {
  await send(page, "mock:slow");
  await inThread(page, "word5 ").waitFor();
  const some = await lastReply(page).innerText();
  await inThread(page, "word12 ").waitFor();
  assert.ok((await lastReply(page).innerText()).length > some.length);
  const aborted = mock.state.aborted;
  await page.getByRole("button", {name: "Stop", exact: true}).click();
  await lastReply(page).getByText("Stopped").waitFor();
  const text = await replyText(page);
  assert.match(text, /word12/);
  assert.doesNotMatch(text, /word300/);
  await page.waitForFunction(() => document.querySelector("#send").getAttribute("aria-label") === "Send");
  for (let i = 0; i < 200 && mock.state.aborted === aborted; ++i) await page.waitForTimeout(10);
  assert.equal(mock.state.aborted, aborted + 1, "the server must notice");
  await page.getByRole("button", {name: "Continue this reply"}).click();
  await inThread(page, "… and the rest.").waitFor();
  assert.equal((await replyText(page)).startsWith(text.slice(0, 40)), true);
  assert.equal(mock.state.requests.at(-1).messages.at(-1).role, "assistant");
});

pageTest("a reload keeps the history, and marks a reply that was cut off", async ({page, server}) => {
  await ask(page, "Remember this");
  await send(page, "mock:slow");
  await inThread(page, "word30 ").waitFor();
  await page.reload();
  await lastReply(page).getByText("Interrupted").waitFor();
  const texts = await page.locator(".message-body").allInnerTexts();
  assert.match(texts[0], /Remember this/);
  assert.match(texts[1], /You said: Remember this/);
  assert.match(texts[3], /word1 word2/);
  assert.equal(await page.locator(".message.streaming").count(), 0);
  await page.goto(server.url); // also without the address of the conversation: it is in the list
  await page.locator(".entry-title", {hasText: "Remember this"}).first().click();
  await inThread(page, "You said: Remember this").waitFor();
  await page.getByRole("button", {name: "Continue this reply"}).waitFor();
});

pageTest("Markdown", async ({page}) => {
  await ask(page, "mock:markdown");
  const reply = lastReply(page);
  assert.equal(await reply.locator("h2").innerText(), "A heading");
  assert.equal(await reply.locator("ol > li").count(), 2);
  assert.equal(await reply.locator("ol ul > li").count(), 2);
  assert.equal(await reply.locator("td.align-right").first().innerText(), "1");
  assert.equal(await reply.locator(".code-lang").innerText(), "python");
  assert.ok(await reply.locator(".code .hl-keyword").count() >= 2);
  assert.equal(await reply.locator("math").count(), 2);
  const link = reply.locator("a");
  assert.equal(await link.getAttribute("rel"), "noopener noreferrer nofollow");
  assert.equal(await link.getAttribute("target"), "_blank");
  await browser.context.grantPermissions(["clipboard-read", "clipboard-write"]);
  // What is seen for a moment only is looked for before it comes.
  await Promise.all([
    reply.getByRole("button", {name: "Copied"}).waitFor(),
    reply.getByRole("button", {name: "Copy code"}).click(),
  ]);
  assert.match(await page.evaluate(() => navigator.clipboard.readText()), /^# Greets\.\ndef greet/);
  await shoot(page, "markdown-light");
  await page.emulateMedia({colorScheme: "dark"});
  await shoot(page, "markdown-dark");
});

pageTest("text of the model is never markup", async ({page, expect}) => {
  expect(/Executing inline script violates/);
  await ask(page, "mock:hostile");
  const reply = lastReply(page).locator(".message-body");
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await reply.locator("img, script, iframe, svg[onload], b[onclick], [onerror], [onmouseover]").count(), 0);
  const hrefs = await reply.locator("a").evaluateAll((links) => links.map((link) => link.getAttribute("href")));
  assert.ok(hrefs.length >= 3);
  for (const href of hrefs) assert.match(href, /^https:\/\//);
  await shoot(page, "hostile");
  // The policy holds even if the page's own code failed: nothing inline runs, nothing foreign loads.
  const blocked = await page.evaluate(() => new Promise((resolve) => {
    document.addEventListener("securitypolicyviolation", (event) => resolve(event.violatedDirective), {once: true});
    const script = document.createElement("script");
    script.textContent = "window.hacked = 11";
    document.body.append(script);
  }));
  assert.match(blocked, /script-src/);
  assert.equal(await page.evaluate(() => window.hacked), undefined);
});

pageTest("thoughts are folded, with a live preview", async ({page}) => {
  await send(page, "mock:think");
  await page.locator(".thought.running .thought-preview", {hasText: /look/}).waitFor();
  assert.equal(await page.locator(".thought").evaluate((details) => details.open), false);
  mock.state.release();
  assert.equal(await replyText(page), "The answer is 4.");
  assert.match(await page.locator(".thought-title").innerText(), /^Thought for [\d.]+ m?s$/);
  await page.locator(".thought summary").click();
  await page.locator(".thought-text em", {hasText: "consider"}).waitFor();
  await shoot(page, "thought");
});

pageTest("the thinking switch", async ({page}) => {
  await page.getByRole("button", {name: "Think", exact: true}).click();
  await ask(page, "Hi");
  assert.deepEqual(mock.state.requests.at(-1).chat_template_kwargs, {enable_thinking: false});
  await page.getByRole("button", {name: "Think", exact: true}).click();
  await ask(page, "Hi");
  assert.deepEqual(mock.state.requests.at(-1).chat_template_kwargs, {enable_thinking: true});
});

pageTest("tool calls are shown, and answered by hand", async ({page}) => {
  await page.getByRole("button", {name: "Settings"}).first().click();
  await page.getByText("Tools", {exact: true}).click();
  await page.getByLabel("Tools (JSON)").fill("[{");
  await page.getByText("not valid JSON").waitFor();
  await page.getByLabel("Tools (JSON)").fill('[{"name": "weather", "parameters": {"type": "object"}}]');
  await page.getByRole("button", {name: "Close settings"}).click();
  await send(page, "mock:tools");
  await page.getByRole("button", {name: "Send results"}).waitFor();
  assert.deepEqual(await page.locator(".call code").allInnerTexts(),
      ["Oslo", "Rome"].map((city) => JSON.stringify({city, days: [1, 2]}, null, 2)));
  await shoot(page, "tools");
  await page.getByLabel("Result of weather").first().fill("rain");
  await page.getByLabel("Result of weather").last().fill("sun");
  await page.getByRole("button", {name: "Send results"}).click();
  await inThread(page, "The tool said: sun").waitFor();
  const {messages, tools} = mock.state.requests.at(-1);
  assert.equal(tools[0].function.name, "weather");
  assert.deepEqual(messages.slice(1).map(({role, tool_call_id, content}) => [role, tool_call_id, content]),
      [["assistant", undefined, "Let me look. "], ["tool", "call_Oslo", "rain"], ["tool", "call_Rome", "sun"]]);
  assert.equal(messages[1].tool_calls[1].function.arguments, '{"city":"Rome","days":[1,2]}');
});

pageTest("a long prompt shows how far it is read", async ({page}) => {
  await send(page, "mock:progress");
  await page.getByText(/Reading the prompt: [\d,]+ of 4,096 tokens/).waitFor();
  assert.ok(await page.locator(".prompt-progress").evaluate((bar) => bar.value > 0 && bar.max === 4096));
  await shoot(page, "progress");
  mock.state.release();
  assert.equal(await replyText(page), "Read it.");
});

pageTest("errors: explained, retried, nothing lost", async ({page, expect}) => {
  expect(/status of (400|429)/);
  await ask(page, "mock:overflow");
  await page.getByText("Too long: 9,000 tokens, and the context holds 4,096.").waitFor();
  await ask(page, "mock:error");
  await page.getByText("The engine failed in this round.").waitFor();
  assert.equal(await replyText(page), "This begins well,");
  await shoot(page, "errors");
  await ask(page, "mock:refused");
  await page.getByText("Field 'stop': too many strings").waitFor();
  mock.state.tries = 0;
  assert.match(await ask(page, "mock:busy"), /You said: mock:busy/); // by itself, after Retry-After
  assert.match(await ask(page, "mock:length"), /One two three/);
  await page.getByText("the limit of tokens was reached").waitFor();
});

pageTest("a reply that breaks off is kept and can be continued", async ({page, expect}) => {
  expect(/ERR_INCOMPLETE_CHUNKED_ENCODING/);
  await send(page, "mock:cut");
  await inThread(page, "Half of a sen").waitFor();
  mock.state.release();
  await page.getByText("The connection was lost in the middle of the reply.").waitFor();
  assert.equal(await replyText(page), "Half of a sen");
  await page.getByRole("button", {name: "Continue this reply"}).click();
  await inThread(page, "Half of a sen … and the rest.").waitFor();
});

pageTest("a server that goes away and comes back", async ({page, expect, server}) => {
  expect(/ERR_CONNECTION_REFUSED|ERR_CONNECTION_RESET|ERR_EMPTY_RESPONSE|ERR_INCOMPLETE_CHUNKED/);
  await server.stop();
  await send(page, "Are you there?");
  await page.getByText("The server does not answer. Looking for it…").waitFor();
  await page.locator(".error-box").waitFor();
  await shoot(page, "away");
  await Promise.all([page.getByText("The server is back.").waitFor(), server.restart()]);
  await page.getByRole("button", {name: "Try again"}).dblclick(); // the second click finds the reply begun
  await inThread(page, "You said: Are you there?").waitFor(); // until then the failed reply is the last one
  assert.equal(await replyText(page), "You said: Are you there?");
  assert.equal(await page.locator(".message").count(), 2, "the failed reply is replaced");
}, {server: () => startMock({assets: ASSETS})});

pageTest("an API key is asked for and kept", async ({page}) => {
  await send(page, "Hello");
  await page.locator(".error-box").getByRole("button", {name: "Enter key"}).waitFor();
  await shoot(page, "key");
  await page.locator("#banner").getByRole("button", {name: "Enter key"}).click();
  await page.getByLabel("API key").last().fill("wrong");
  await page.getByRole("button", {name: "Use this key"}).click();
  await page.getByText("The server did not accept the key.").waitFor();
  await page.locator(".error-box").getByRole("button", {name: "Enter key"}).click();
  await page.getByLabel("API key").last().fill("sesame");
  await page.getByRole("button", {name: "Use this key"}).click();
  await inThread(page, "You said: Hello").waitFor();
  await page.reload();
  assert.match(await ask(page, "Again"), /You said: Again/);
}, {server: () => startMock({assets: ASSETS, key: "sesame"}), expected: [/status of 401/]});

pageTest("a model that loads is waited for", async ({page, expect, server}) => {
  expect(/status of 503/);
  server.state.loading = 4;
  await send(page, "Patience");
  await page.getByText("The model is being loaded…").first().waitFor();
  assert.equal(await replyText(page), "You said: Patience");
}, {server: () => startMock({assets: ASSETS})});

pageTest("edit, another reply, versions, delete and undo", async ({page}) => {
  await ask(page, "One");
  await ask(page, "Two");
  await page.locator(".message.user").first().getByRole("button", {name: "Edit message"}).click();
  await page.getByRole("textbox", {name: "Edit message"}).fill("Other");
  await page.getByRole("button", {name: "Send", exact: true}).first().click();
  await inThread(page, "You said: Other").waitFor();
  await replyText(page);
  assert.equal(await page.locator(".message").count(), 2);
  await page.getByRole("button", {name: "Previous version"}).first().click();
  await inThread(page, "You said: Two").waitFor();
  assert.equal(await page.locator(".message").count(), 4);
  await lastReply(page).getByRole("button", {name: "Another reply"}).click();
  await lastReply(page).getByText("2/2").waitFor();
  await lastReply(page).getByRole("button", {name: "Edit message"}).click();
  await page.getByRole("textbox", {name: "Edit message"}).fill("In **my** words");
  await page.getByRole("button", {name: "Save"}).click();
  await lastReply(page).locator("strong", {hasText: "my"}).waitFor();
  await page.locator(".message.user").last().getByRole("button", {name: "Delete from here on"}).click();
  await page.waitForFunction(() => document.querySelectorAll(".message").length === 2);
  await page.getByRole("button", {name: "Undo"}).click();
  await page.waitForFunction(() => document.querySelectorAll(".message").length === 4);
  await page.reload();
  await lastReply(page).locator("strong", {hasText: "my"}).waitFor();
});

pageTest("several conversations: search, rename, delete, export, import", async ({page}) => {
  await page.getByRole("button", {name: "New conversation"}).click();
  await ask(page, "About cats");
  await page.getByRole("button", {name: "New conversation"}).click();
  await ask(page, "About dogs");
  const list = page.locator("#conversations");
  await page.goBack();
  await inThread(page, "You said: About cats").waitFor();
  await page.goForward();
  await inThread(page, "You said: About dogs").waitFor();
  await page.getByLabel("Search conversations").fill("said: about CATS");
  await page.waitForFunction(() => document.querySelectorAll(".entry").length === 1);
  await list.getByRole("button", {name: "About cats", exact: true}).click();
  await inThread(page, "You said: About cats").waitFor();
  await page.getByLabel("Search conversations").fill("");
  await list.getByRole("button", {name: "About dogs", exact: true}).waitFor();
  await list.getByRole("button", {name: "About cats", exact: true}).focus();
  await page.keyboard.press("F2");
  await page.getByLabel("Title").fill("Felines");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.querySelector("#title").textContent === "Felines");

  await page.getByRole("button", {name: "Settings"}).first().click();
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", {name: "Export all"}).click()]);
  const file = JSON.parse(await readFile(await download.path(), "utf8"));
  assert.ok(file.conversations.some(({title, messages}) => title === "Felines" && messages.length === 2));

  await list.getByRole("button", {name: "Felines", exact: true}).focus();
  await page.keyboard.press("Delete");
  await page.getByText("Conversation deleted.").waitFor();
  await page.waitForFunction(() => ![...document.querySelectorAll(".entry-title")].some((entry) => entry.textContent === "Felines"));
  file.conversations = file.conversations.filter(({title}) => title === "Felines");
  await page.locator("#import-file").setInputFiles({name: "x.json", mimeType: "application/json", buffer: Buffer.from(JSON.stringify(file))});
  await list.getByRole("button", {name: "Felines", exact: true}).click();
  await inThread(page, "You said: About cats").waitFor();
  await page.locator("#import-file").setInputFiles({name: "x.json", mimeType: "application/json", buffer: Buffer.from("{}")});
  await page.getByText("This file holds no conversations of this page.").waitFor();
  await shoot(page, "conversations");
});

pageTest("system prompt and sampling settings are sent, kept and reset", async ({page}) => {
  await page.getByRole("button", {name: "Settings"}).first().click();
  await page.getByLabel("System prompt").fill("Be brief.");
  assert.equal(await page.getByLabel("Top-k").getAttribute("placeholder"), "64");
  await page.getByLabel("Temperature").fill("0.5");
  await page.getByLabel("Seed").fill("7");
  await page.getByLabel("Stop strings, one a line").fill("END\n\\n\\n");
  await page.getByLabel("Stop strings, one a line").blur();
  await shoot(page, "settings");
  await ask(page, "Hi");
  const {messages, temperature, seed, stop} = mock.state.requests.at(-1);
  assert.deepEqual([messages[0], temperature, seed, stop], [{role: "system", content: "Be brief."}, 0.5, 7, ["END", "\n\n"]]);
  await page.reload();
  await page.getByRole("button", {name: "Settings"}).first().click();
  assert.equal(await page.getByLabel("System prompt").inputValue(), "Be brief.");
  assert.equal(await page.getByLabel("Temperature").inputValue(), "0.5");
  await page.getByLabel("Top-p").fill("1.5"); // out of range: said, and not taken
  await page.getByLabel("Top-p").blur();
  await page.getByRole("button", {name: "Reset to the model's defaults"}).click();
  assert.equal(await page.getByLabel("Temperature").inputValue(), "");
  await ask(page, "Hi");
  assert.ok(!("temperature" in mock.state.requests.at(-1)) && !("top_p" in mock.state.requests.at(-1)));
});

pageTest("a narrow screen: drawer, panel, nothing wider than the screen", async ({page}) => {
  await page.setViewportSize({width: 390, height: 780});
  await ask(page, "mock:markdown");
  const wide = () => page.evaluate(() => document.documentElement.scrollWidth > innerWidth ||
      document.querySelector("#scroller").scrollWidth > document.querySelector("#scroller").clientWidth);
  assert.equal(await wide(), false);
  assert.deepEqual(await page.locator("#main").boundingBox(), {x: 0, y: 0, width: 390, height: 780}, "the thread has the screen");
  await shoot(page, "phone");
  assert.equal(await page.locator("#sidebar").isVisible(), false);
  await page.getByRole("button", {name: "Conversations"}).click();
  await page.locator("#conversations .entry").first().waitFor({state: "visible"});
  await page.waitForTimeout(300); // for the picture: the drawer has slid in
  await shoot(page, "phone-drawer");
  await page.keyboard.press("Escape");
  await page.locator("#sidebar").waitFor({state: "hidden"});
  await page.getByRole("button", {name: "Settings"}).click();
  await page.getByLabel("Temperature").waitFor({state: "visible"});
  await shoot(page, "phone-settings");
  await page.getByRole("button", {name: "Close settings"}).click();
  assert.equal(await page.locator("#settings").isVisible(), false);
  // What is touched is large enough for a finger.
  const small = await page.locator("#main button:visible").evaluateAll((buttons) => buttons
      .map((button) => [button.getAttribute("aria-label") ?? button.textContent, button.getBoundingClientRect()])
      .filter(([, box]) => box.height < 39 && box.width > 0).map(([name]) => name));
  assert.deepEqual(small, []);
});

pageTest("everything by keyboard", async ({page}) => {
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.className);
  assert.equal(await focused(), "input");
  await page.keyboard.type("Line one");
  await page.keyboard.press("Shift+Enter");
  await page.keyboard.type("line two");
  await page.keyboard.press("Enter");
  assert.match(await replyText(page), /Line one\s+line two/);
  assert.equal(await focused(), "input");
  await page.keyboard.type("mock:slow");
  await page.keyboard.press("Enter");
  await inThread(page, "word3 ").waitFor();
  await page.keyboard.press("Escape");
  await inThread(page, "Stopped").waitFor();
  await page.keyboard.press("ArrowUp");
  assert.equal(await focused(), "edit-area");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Control+,");
  await page.locator("#settings").waitFor({state: "visible"});
  await page.keyboard.press("Escape");
  await page.locator("#settings").waitFor({state: "hidden"});
  await page.keyboard.press("Control+k");
  assert.equal(await focused(), "search");
  await page.keyboard.press("ArrowDown");
  assert.equal(await focused(), "entry-title");
  await page.keyboard.press("Enter");
  await page.keyboard.press("Control+Shift+O");
  await page.locator("#welcome").waitFor({state: "visible"});
  assert.equal(await focused(), "input");
  // Tab reaches everything in order of reading: the way back from the field passes the header and the list.
  const seen = [];
  for (let i = 0; i < 14; ++i) {
    await page.keyboard.press("Shift+Tab");
    seen.push(await focused());
  }
  assert.ok(seen.indexOf("settings-button") < seen.indexOf("menu"), seen.join());
  assert.ok(seen.indexOf("menu") < seen.indexOf("search") || seen.includes("entry-title"), seen.join());
  await page.keyboard.press("Control+k");
  await page.keyboard.press("Escape");
  await page.locator("#menu").focus();
  await page.keyboard.press("?");
  await page.getByRole("heading", {name: "Keyboard"}).waitFor();
  await page.keyboard.press("Escape");
  await page.keyboard.press("/");
  assert.equal(await focused(), "input");
});

pageTest("light, dark and the system's look", async ({page}) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const light = await ground();
  await page.emulateMedia({colorScheme: "dark"});
  const dark = await ground();
  assert.notEqual(dark, light);
  await page.getByRole("button", {name: "Settings"}).first().click();
  await page.getByText("Light", {exact: true}).click();
  assert.equal(await ground(), light);
  await page.reload();
  assert.equal(await ground(), light);
  await page.getByRole("button", {name: "Settings"}).first().click();
  await page.getByText("Dark", {exact: true}).click();
  await page.emulateMedia({colorScheme: "light"});
  assert.equal(await ground(), dark);
  await shoot(page, "settings-dark");
});

pageTest("a huge reply: the page stays usable, nothing is lost", async ({page}) => {
  await send(page, "mock:huge");
  await page.locator(".message.streaming p").nth(5).waitFor();
  mock.state.release();
  await page.locator("#settings-button").click(); // answers while text pours in
  await page.locator("#settings").waitFor({state: "visible"});
  await inThread(page, "Done with it.").waitFor({timeout: 90000});
  await replyText(page);
  assert.equal(await lastReply(page).locator(".markdown > p").count(), 3001);
  assert.equal((await lastReply(page).locator("pre code").textContent()).length, 8000 * 6 - 1);
  const atEnd = await page.locator("#scroller").evaluate((box) => box.scrollHeight - box.scrollTop - box.clientHeight);
  assert.ok(atEnd < 100, `the view is ${atEnd} pixels from the end`);
});

pageTest("reading back is not disturbed by a growing reply", async ({page}) => {
  await ask(page, "mock:markdown");
  await send(page, "mock:slow");
  await inThread(page, "word3 ").waitFor();
  await page.locator("#scroller").evaluate((box) => { box.scrollTop = 0; });
  await page.getByRole("button", {name: "To the end"}).waitFor();
  const before = (await lastReply(page).innerText()).length;
  await page.waitForFunction((n) => document.querySelector(".message.streaming").innerText.length > n + 100, before);
  assert.equal(await page.locator("#scroller").evaluate((box) => box.scrollTop), 0);
  await page.getByRole("button", {name: "To the end"}).click();
  assert.ok(await page.locator("#scroller").evaluate((box) => box.scrollTop) > 0);
  await page.keyboard.press("Escape");
});

pageTest("replies go on in another conversation, and another tab sees them", async ({page, server}) => {
  await send(page, "mock:slow one");
  await inThread(page, "word3 ").waitFor();
  await page.getByRole("button", {name: "New conversation"}).click();
  assert.match(await ask(page, "Meanwhile"), /You said: Meanwhile/);
  await page.locator(".entry-running").waitFor();
  const other = await openPage(browser.context, server.url);
  await other.page.locator(".entry-title", {hasText: "Meanwhile"}).first().click();
  await inThread(other.page, "You said: Meanwhile").waitFor();
  await other.page.locator(".entry-title", {hasText: "mock:slow one"}).first().click();
  await other.page.getByText("Being written in another tab…").waitFor();
  await page.locator(".entry-title", {hasText: "mock:slow one"}).first().click();
  await page.getByRole("button", {name: "Stop", exact: true}).click();
  await inThread(page, "Stopped").waitFor();
  await inThread(other.page, "Stopped").waitFor();
  assert.deepEqual(other.faults, []);
  await other.page.close();
});

pageTest("screen readers hear each finished paragraph", async ({page}) => {
  await page.evaluate(() => {
    window.heard = [];
    new MutationObserver(() => window.heard.push(document.querySelector("#announcer").textContent))
        .observe(document.querySelector("#announcer"), {childList: true, characterData: true, subtree: true});
  });
  await ask(page, "mock:markdown");
  await page.waitForFunction(() => window.heard.join("\n").includes("The end."));
  const heard = await page.evaluate(() => window.heard.join("\n"));
  assert.match(heard, /A heading/);
  assert.equal(heard.split("A heading").length, 2, "once each");
});
