"""Gemma 4 chat rendering (large variant) for the demo model's data: text, tools, thinking.

render() returns spans (text, kind): kind 0 is prompt text, kind 1 is text that the model wrote in an earlier turn.
Joined, the spans are the prompt a server builds; the reply follows. Media, content arrays, nested schemas and prefill
are not needed here and not covered. A message is a dict with role system/user/assistant/tool and content; an
assistant message may carry calls = [(name, arguments)] and reasoning; a tool message carries the name of its call.
"""

QUOTE = '<|"|>'


def value(v):
    """A value of an argument, a result or a schema, in the call notation."""
    if v is None:
        return "null"
    if v is True:
        return "true"
    if v is False:
        return "false"
    if isinstance(v, str):
        return QUOTE + v + QUOTE
    if isinstance(v, dict):
        return "{" + ",".join(k + ":" + value(v[k]) for k in sorted(v, key=str.lower)) + "}"
    if isinstance(v, (list, tuple)):
        return "[" + ",".join(value(x) for x in v) + "]"
    return repr(v)


def call(name, arguments):
    return "<|tool_call>call:" + name + value(arguments) + "<tool_call|>"


def response(name, text):
    return "<|tool_response>response:" + name + "{value:" + value(text) + "}<tool_response|>"


def _properties(properties):
    out = []
    for key in sorted(properties, key=str.lower):
        p, fields = properties[key], []
        if p.get("description"):
            fields.append("description:" + value(p["description"]))
        if p.get("enum") and p["type"] == "string":
            fields.append("enum:" + value(p["enum"]))
        if p.get("items"):
            fields.append("items:{type:" + value(p["items"]["type"].upper()) + "}")
        fields.append("type:" + value(p["type"].upper()))
        out.append(key + ":{" + ",".join(fields) + "}")
    return ",".join(out)


def declaration(function):
    s = "<|tool>declaration:" + function["name"] + "{description:" + value(function.get("description", ""))
    p = function.get("parameters")
    if p:
        s += ",parameters:{"
        if p.get("properties"):
            s += "properties:{" + _properties(p["properties"]) + "},"
        if p.get("required"):
            s += "required:" + value(p["required"]) + ","
        s += "type:" + value(p["type"].upper()) + "}"
    return s + "}<tool|>"


def render(messages, tools=None, think=False):
    spans = []

    def add(text, kind=0):
        if text:
            spans.append((text, kind))

    head, start = "<bos>", 0
    has_system = bool(messages) and messages[0]["role"] == "system"
    if think or tools or has_system:
        head += "<|turn>system\n" + ("<|think|>\n" if think else "")
        if has_system:
            head += messages[0]["content"].strip()
            start = 1
        head += "".join(declaration(t) for t in tools or ()) + "<turn|>\n"
    add(head)
    last_user = max((k for k, m in enumerate(messages) if m["role"] == "user"), default=-1)
    others = [k for k in range(start, len(messages)) if messages[k]["role"] != "tool"]
    before, tail = None, None
    for n, k in enumerate(others):
        m = messages[k]
        model = m["role"] == "assistant"
        if not (model and before == "assistant"):
            add("<|turn>" + ("model" if model else m["role"]) + "\n")
        before, tail = m["role"], None
        if m.get("reasoning") and k > last_user:
            add("<|channel>thought\n" + m["reasoning"] + "\n<channel|>", 1)
        replies = ""
        for c in m.get("calls") or ():
            add(call(*c), 1)
            tail = "call"
        if tail:
            for r in messages[k + 1:]:
                if r["role"] != "tool":
                    break
                replies += response(r["name"], r["content"])
        if replies:
            add(replies)
            tail = "response"
        text = (m.get("content") or "").strip()
        add(text, int(model))
        following = messages[others[n + 1]]["role"] if n + 1 < len(others) else None
        if tail == "call":
            add("<|tool_response>")
        elif model and following == "assistant":
            pass
        elif not (tail == "response" and not text and following is None):
            add("<turn|>\n")
    if tail == "response" and text:         # content and answered calls at the end: a fresh model turn
        tail = None
    if tail == "response":
        add("<|channel>thought\n" if think else "")
    elif tail != "call":
        add("<|turn>model\n" + ("" if think else "<|channel>thought\n<channel|>"))
    return spans


def text(spans):
    return "".join(t for t, _ in spans)
