// From a conversation and the settings to the body of POST /v1/chat/completions.

// The sampling settings that the page offers. Empty means the server's default, which is then not sent.
// `prop` is the default's name in /props.
export const SAMPLING = [
  {name: "temperature", label: "Temperature", min: 0, max: 5, step: 0.05, help: "0 always takes the most probable token."},
  {name: "top_k", label: "Top-k", min: 0, max: 1000, step: 1, integer: true, help: "Draw from the k most probable tokens; 0: from all."},
  {name: "top_p", label: "Top-p", min: 0, max: 1, step: 0.01, help: "Draw from the tokens that make up this share; 1: from all."},
  {name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, help: "Leave out tokens below this share of the most probable one's."},
  {name: "max_tokens", label: "Max tokens", prop: "n_predict", min: 1, step: 1, integer: true, help: "Length of a reply, thoughts included. Empty: until the context is full."},
  {name: "seed", label: "Seed", min: 0, step: 1, integer: true, help: "The same seed gives the same reply. Empty: another one each time."},
  {name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, help: "Against tokens that have occurred."},
  {name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, help: "Against tokens, by how often they have occurred."},
  {name: "repeat_penalty", label: "Repeat penalty", min: 0.1, max: 2, step: 0.05, help: "Divides the logits of tokens that have occurred; 1: off."},
];

export class SettingsFault extends Error {}

export function stopStrings(text) {
  // One a line; \n and \t may be written so.
  return (text ?? "").split("\n").filter((line) => line !== "")
      .map((line) => line.replace(/\\([nt\\])/g, (_, c) => ({n: "\n", t: "\t", "\\": "\\"})[c]));
}

// The tools field: a JSON array of tools or of bare functions.
export function parseTools(text) {
  if (!text?.trim()) return [];
  let tools;
  try {
    tools = JSON.parse(text);
  } catch (error) {
    throw new SettingsFault(`The tools are not valid JSON: ${error.message}`);
  }
  if (!Array.isArray(tools)) tools = [tools];
  return tools.map((tool, i) => {
    const full = tool?.function ? tool : {type: "function", function: tool};
    if (typeof full.function?.name !== "string" || full.function.name === "") {
      throw new SettingsFault(`Tool ${i + 1} has no name.`);
    }
    return full;
  });
}

export function chatMessages(system, path) {
  const messages = [];
  if (system?.trim()) messages.push({role: "system", content: system});
  for (const message of path) {
    if (message.role === "tool") {
      messages.push({role: "tool", tool_call_id: message.toolCallId, content: message.content});
    } else if (message.role === "user") {
      messages.push({role: "user", content: message.content});
    } else {
      const calls = message.toolCalls ?? [];
      // A reply that failed before it said anything; but a thought at the end is there to be continued.
      if (!message.content && calls.length === 0 && !(message.reasoning && message === path.at(-1))) continue;
      const entry = {role: "assistant", content: message.content};
      if (message.reasoning) entry.reasoning_content = message.reasoning;
      if (calls.length > 0) {
        entry.tool_calls = calls.map((call) =>
          ({id: call.id, type: "function", function: {name: call.name, arguments: call.arguments}}));
      }
      messages.push(entry);
    }
  }
  return messages;
}

export function chatRequest({model, system, tools, path, settings}) {
  const body = {
    model,
    messages: chatMessages(system, path),
    stream: true,
    stream_options: {include_usage: true},
    return_progress: true,
    timings_per_token: true,
  };
  for (const {name} of SAMPLING) {
    const value = settings[name];
    if (typeof value === "number" && Number.isFinite(value)) body[name] = value;
  }
  const stop = stopStrings(settings.stop);
  if (stop.length > 0) body.stop = stop;
  if (typeof settings.thinking === "boolean") body.chat_template_kwargs = {enable_thinking: settings.thinking};
  if (typeof settings.thinking_budget === "number") body.thinking_budget_tokens = settings.thinking_budget;
  const declared = parseTools(tools);
  if (declared.length > 0) body.tools = declared;
  return body;
}
