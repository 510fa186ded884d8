// Headless Chromium with a new profile, and a page that remembers what must not happen: errors on the console,
// exceptions, requests to anywhere but the server.

import {mkdirSync, mkdtempSync, rmSync} from "node:fs";
import {tmpdir} from "node:os";
import {join} from "node:path";
import {chromium} from "playwright-core";

const PROGRAM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const SHOTS = join(process.cwd(), "screenshots");

// A browser with a profile of its own: kept over the pages opened in it, as with a user's.
export async function openBrowser(options = {}) {
  const profile = mkdtempSync(join(tmpdir(), "gem-page-"));
  const context = await chromium.launchPersistentContext(profile, {
    executablePath: PROGRAM,
    headless: true,
    args: ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
      "--disable-background-networking", "--disable-component-update", "--disable-sync"],
    viewport: {width: 1280, height: 800},
    colorScheme: "light",
    locale: "en-GB",
    ...options,
  });
  context.setDefaultTimeout(20000);
  const close = async () => {
    await context.close();
    rmSync(profile, {recursive: true, force: true, maxRetries: 5});
  };
  return {context, close};
}

// `expected`: patterns of console errors that the test provokes (expect() adds one later).
export async function openPage(context, url, expected = []) {
  const page = await context.newPage();
  const faults = [];
  const origin = new URL(url).origin;
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") {
      if (!expected.some((pattern) => pattern.test(message.text()))) faults.push(`console: ${message.text()}`);
    }
  });
  page.on("pageerror", (error) => faults.push(`exception: ${error.stack ?? error}`));
  page.on("request", (request) => {
    const target = request.url();
    if (!target.startsWith(origin) && !/^(blob|data):/.test(target)) faults.push(`request: ${target}`);
  });
  await page.goto(url);
  return {page, faults, expect: (pattern) => expected.push(pattern)};
}

export async function shoot(page, name) {
  mkdirSync(SHOTS, {recursive: true});
  await page.screenshot({path: join(SHOTS, `${name}.png`)});
}

// --- What a user does.

export const input = (page) => page.getByLabel("Message", {exact: true}).and(page.locator("textarea"));

export async function send(page, text) {
  await input(page).fill(text);
  await input(page).press("Enter");
}

// Text in the conversation (what screen readers are told stands elsewhere in the page once more).
export const inThread = (page, text) => page.locator("#thread").getByText(text).first();

export const lastReply = (page) => page.locator(".message.assistant").last();

// Waits until the last reply is complete; its visible text.
export async function replyText(page) {
  await page.locator(".message.assistant:not(.streaming)").last().waitFor();
  await page.waitForFunction(() => !document.querySelector(".message.streaming"));
  return (await lastReply(page).locator(".message-body > .markdown").innerText()).trim();
}

export async function ask(page, text) {
  const before = await page.locator(".message.assistant").count();
  await send(page, text);
  await page.waitForFunction((n) => document.querySelectorAll(".message.assistant").length > n, before);
  return replyText(page);
}
