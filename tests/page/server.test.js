// The page in Chromium as `gem serve` serves it, with the bundled model.

import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import {createInterface} from "node:readline";
import {after, before, test} from "node:test";
import {ask, inThread, lastReply, openBrowser, openPage, replyText, send, shoot} from "./browser.js";

let browser, url, child, ended;

before(async () => {
  child = spawn(process.env.GEM_PROGRAM, ["serve", "--port", "0", "--temperature", "0", "--log-level", "warn"],
      {stdio: ["ignore", "pipe", "inherit"]});
  ended = new Promise((resolve) => child.once("exit", (code) => resolve(code)));
  for await (const line of createInterface({input: child.stdout})) {
    url = /^(http:\S+) serves /.exec(line)?.[1];
    if (url) break;
  }
  assert.ok(url, "gem serve did not start");
  browser = await openBrowser();
});

after(async () => {
  await browser?.close();
  if (!child) return;
  child.kill("SIGTERM");
  assert.equal(await ended, 0);
});

function pageTest(name, run) {
  test(name, {timeout: 120000}, async () => {
    const opened = await openPage(browser.context, `${url}/`);
    try {
      await opened.page.locator("#model").waitFor();
      await run(opened);
      assert.deepEqual(opened.faults, []);
    } catch (error) {
      await shoot(opened.page, `failed-${name.replace(/\W+/g, "-")}`);
      throw error;
    } finally {
      await opened.page.close();
    }
  });
}

test("the files: types, policy, tags", async () => {
  const home = await fetch(`${url}/`);
  assert.equal(home.status, 200);
  assert.match(home.headers.get("content-type"), /^text\/html/);
  assert.match(home.headers.get("content-security-policy"), /default-src 'none'/);
  const names = [...(await home.text()).matchAll(/(?:src|href)="(page\/[^"]+)"/g)].map(([, name]) => name);
  assert.ok(names.length >= 5);
  for (const name of new Set(names)) {
    const response = await fetch(`${url}/${name}`);
    assert.equal(response.status, 200, name);
    const tag = response.headers.get("etag");
    assert.equal((await fetch(`${url}/${name}`, {headers: {"If-None-Match": tag}})).status, 304, name);
    assert.equal((await fetch(`${url}/${name}`, {headers: {"If-None-Match": '"other"'}})).status, 200, name);
  }
  assert.equal((await fetch(`${url}/page/nothing.js`)).status, 404);
  assert.equal((await fetch(`${url}/page/../page.cpp`)).status, 404);
});

pageTest("a conversation with the bundled model", async ({page}) => {
  assert.match(await page.locator("#model").innerText(), /gem-demo/);
  await page.getByRole("button", {name: "Think", exact: true}).click(); // off: the shortest way to an answer
  assert.match(await ask(page, "What is 25 + 17?"), /42/);
  assert.match(await lastReply(page).locator(".stats").innerText(), /tokens\/s · \d+ tokens? · first after/);
  const [used, context] = (await page.locator("#meter").innerText()).replace(/,/g, "").split(" / ").map(Number);
  assert.ok(used > 10 && context >= used, `${used} of ${context}`);
  await shoot(page, "real-conversation");
  const first = await page.locator("#title").innerText();
  await page.reload();
  await inThread(page, "42").waitFor();
  assert.equal(await page.locator("#title").innerText(), first);
  assert.match(await ask(page, "What is the capital of France?"), /Paris/);
});

pageTest("a thought is folded before the answer", async ({page}) => {
  const think = page.getByRole("button", {name: "Think", exact: true});
  if (await think.getAttribute("aria-pressed") === "false") await think.click();
  await send(page, "What is the capital of France?");
  assert.match(await replyText(page), /Paris/);
  await lastReply(page).locator(".thought summary").click();
  assert.notEqual((await lastReply(page).locator(".thought-text").innerText()).trim(), "");
  await shoot(page, "real-thought");
});

pageTest("settings of the page reach the model", async ({page}) => {
  await page.getByRole("button", {name: "Settings"}).first().click();
  assert.equal(await page.getByLabel("Temperature").getAttribute("placeholder"), "0"); // --temperature of the command line
  await page.getByLabel("Max tokens").fill("5");
  await page.getByLabel("Max tokens").blur();
  await ask(page, "Tell me a short story about a lighthouse.");
  await page.getByText("the limit of tokens was reached").waitFor();
  await page.getByRole("button", {name: "Reset to the model's defaults"}).click();
  assert.equal(await replyText(page), ""); // five tokens reach into the thought: "A story"; the rest of it comes when it is continued
  await page.getByRole("button", {name: "Continue this reply"}).click();
  await page.locator(".message.streaming").or(inThread(page, "There was once")).first().waitFor();
  assert.match(await replyText(page), /lighthouse/);
  assert.equal(await page.locator(".message").count(), 2);
});

pageTest("stop ends the work of the server", async ({page}) => {
  await page.getByRole("button", {name: "Settings"}).first().click();
  await page.getByLabel("System prompt").fill("Answer at length.");
  await page.getByRole("button", {name: "Close settings"}).click();
  await send(page, "Count from 1 to 1000, one number a line.");
  await page.locator(".message.streaming .markdown:not(:empty), .message.streaming .thought:not([hidden])").first().waitFor();
  await page.keyboard.press("Escape");
  await replyText(page);
  const busy = async () => (await (await fetch(`${url}/slots`)).json()).some((slot) => slot.is_processing);
  for (let i = 0; await busy(); ++i) {
    assert.ok(i < 500, "a slot stays busy");
    await page.waitForTimeout(10);
  }
});

pageTest("a tool call by hand", async ({page}) => {
  await page.getByRole("button", {name: "Settings"}).first().click();
  await page.getByText("Tools", {exact: true}).click();
  await page.getByLabel("Tools (JSON)").fill(JSON.stringify([{name: "get_weather", description: "The weather of a city",
    parameters: {type: "object", properties: {city: {type: "string"}}, required: ["city"]}}]));
  await page.getByRole("button", {name: "Close settings"}).click();
  await send(page, "What is the weather in Paris?");
  await page.getByRole("button", {name: "Send result"}).waitFor();
  assert.equal(await page.locator(".call-name").innerText(), "get_weather");
  assert.match(await page.locator(".call code").innerText(), /Paris/);
  await shoot(page, "real-tool-call");
  await page.getByLabel("Result of get_weather").fill('{"temperature": 21, "sky": "clear"}');
  await page.getByRole("button", {name: "Send result"}).click();
  await page.locator(".message.tool").waitFor();
  assert.match(await replyText(page), /21|clear/i);
  await shoot(page, "real-tool-answer");
});
