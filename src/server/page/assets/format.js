// Numbers and times as people read them.

const whole = new Intl.NumberFormat("en");

export const count = (n) => whole.format(Math.round(n));

export function plural(n, word) {
  return `${count(n)} ${word}${n === 1 ? "" : "s"}`;
}

export function seconds(ms) {
  if (ms < 950) return `${Math.max(10, Math.round(ms / 10) * 10)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(1)} s`;
  return `${Math.floor(ms / 60000)} min ${Math.round((ms % 60000) / 1000)} s`;
}

export function rate(perSecond) {
  return perSecond >= 100 ? count(perSecond) : perSecond.toFixed(1);
}

// 11959730224 → "12.0 B"
export function parameters(n) {
  if (n >= 1e9) return `${(n / 1e9).toFixed(1)} B`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)} M`;
  return count(n);
}

// The heading under which a conversation of that time is listed.
export function dayGroup(time, now = Date.now()) {
  const day = (t) => new Date(t).setHours(0, 0, 0, 0);
  const days = Math.round((day(now) - day(time)) / 86400000);
  return days <= 0 ? "Today" : days === 1 ? "Yesterday" : days < 8 ? "Last 7 days" : days < 31 ? "Last 30 days" : "Older";
}

export function statsLine(message) {
  const s = message.stats ?? {};
  const parts = [];
  if (s.tokensPerSecond > 0) parts.push(`${rate(s.tokensPerSecond)} tokens/s`);
  const tokens = s.tokens ?? message.usage?.completion;
  if (tokens) parts.push(plural(tokens, "token"));
  if (s.firstMs !== undefined) parts.push(`first after ${seconds(s.firstMs)}`);
  return parts.join(" · ");
}

export function statsDetails(message) {
  const s = message.stats ?? {};
  const lines = [];
  if (message.model) lines.push(`Model: ${message.model}`);
  if (s.promptTokens !== undefined) {
    const cached = s.cachedTokens > 0 ? `, ${count(s.cachedTokens)} more from the cache` : "";
    lines.push(`Prompt: ${plural(s.promptTokens, "token")} read${cached}` +
        (s.promptPerSecond > 0 ? `, ${rate(s.promptPerSecond)} tokens/s` : ""));
  }
  if (s.tokens) lines.push(`Reply: ${plural(s.tokens, "token")}, ${rate(s.tokensPerSecond ?? 0)} tokens/s`);
  if (s.drafted > 0) lines.push(`Drafted: ${count(s.drafted)}, of which ${count(s.accepted ?? 0)} were accepted`);
  if (s.totalMs) lines.push(`Total: ${seconds(s.totalMs)}`);
  return lines.join("\n");
}

// Arguments of a tool call, indented where they are JSON already.
export function prettyJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
