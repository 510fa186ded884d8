// gem serve on a free port, with the bundled model, for the tests of one file.

import assert from "node:assert/strict";
import {spawn} from "node:child_process";
import {createInterface} from "node:readline";

export const KEY = "test-key";
export const SLOTS = 3;
export const TIMEOUT = 120000; // the machine may be busy; nothing here waits for a fixed time

export async function startServer() {
  const child = spawn(process.env.GEM_PROGRAM,
    ["serve", "--port", "0", "--api-key", KEY, "--parallel", String(SLOTS), "--log-level", "warn"],
    {stdio: ["ignore", "pipe", "pipe"]});
  let errors = "";
  child.stderr.on("data", (data) => { errors += data; });
  const ended = new Promise((resolve) => child.once("exit", (code, signal) => resolve({code, signal})));
  const ready = (async () => {
    for await (const line of createInterface({input: child.stdout})) {
      const match = line.match(/^(http:\S+) serves (\S+)/);
      if (match) return {url: match[1], model: match[2]};
    }
    throw new Error(`gem serve ended: ${errors}`);
  })();
  const {url, model} = await ready;

  async function get(path) {
    const response = await fetch(url + path, {headers: {authorization: `Bearer ${KEY}`}});
    assert.equal(response.status, 200, path);
    return response.json();
  }
  async function waitForSlots(condition, what) {
    const deadline = Date.now() + TIMEOUT;
    for (;;) {
      const slots = await get("/slots");
      if (condition(slots.filter((slot) => slot.is_processing).length)) return slots;
      assert.ok(Date.now() < deadline, what);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
  return {
    url,
    model,
    get,
    // Resolves once no reply, or any, is being made.
    idle: () => waitForSlots((busy) => busy === 0, "a slot stays busy"),
    busy: () => waitForSlots((busy) => busy > 0, "no slot becomes busy"),
    async stop() {
      child.kill("SIGTERM");
      assert.deepEqual(await ended, {code: 0, signal: null}, errors);
      // What the log said at the level of warnings: nothing, in a run without faults of the server's own.
      return errors;
    },
  };
}

// The promise must be rejected; returns the error.
export async function rejected(promise, type) {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof type, `expected ${type.name}, got ${error}`);
    return error;
  }
  return assert.fail(`expected ${type.name}`);
}

// More than the context holds.
export const TOO_LONG = "All the words of a very long story. ".repeat(2000);

// What the bundled model goes on with for thousands of tokens, unless it is stopped.
export const ENDLESS = "Count from 1 to 1000000.";

export const WEATHER = {
  name: "get_weather",
  description: "Get the current weather.",
  parameters: {
    type: "object",
    properties: {city: {type: "string", description: "City name"}},
    required: ["city"],
  },
};

export function weatherIn(city) {
  return {Paris: "sunny, 18 degrees", Rome: "rainy, 7 degrees", Oslo: "cloudy, 3 degrees"}[city] ?? "Error: no such city";
}
