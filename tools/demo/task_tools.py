"""Tool use: call, answer from results, parallel calls, a second request, no tool that fits."""
import chat_format
import openwords as ow
import tool_catalog as catalog
from sample import ask, bot, close, user
from task_chat import NO_TOOL, small_talk, tool_wish
from words import ALL

SINGLE = [e for e in catalog.ENTRIES if len(e.params) == 1]
LISTED = [e for e in SINGLE if e.params[0][1] in ("city", "name")]      # several values can be asked for in one sentence


class Case:
    """One request to one tool: declaration, question, arguments, results and answer."""

    def __init__(self, r, entry=None, plain=False, slots=None):
        phrase = (lambda q, **s: r.choice(q).format(**s)) if plain else (lambda q, **s: ask(r, q, **s))
        if entry is None:
            x = r.random()
            entry = catalog.SHELL if x < .2 else catalog.invent(r) if x < .42 else r.choice(catalog.ENTRIES)
        self.entry = entry
        self.tool, self.keys = catalog.declare(r, entry)
        if entry is catalog.SHELL:
            q, command, kind = r.choice(catalog.COMMANDS)
            slots = dict(d=catalog.folder(r), f=catalog.path(r), x=ow.word(r, ALL), n=str(r.randint(2, 30)))
            command = command.format(**slots)
            self.question, self.arguments = phrase([q], **slots), {self.keys[0]: command}
            text, template = catalog.output(r, kind, command), catalog.COMMAND_ANSWER.get(kind, "The output is: {}").replace("{}", "{r}")
        else:
            slots = slots or catalog.draw(r, entry)
            values = [slots["p%d" % i] for i in range(len(self.keys))]
            self.question, self.arguments = phrase(entry.requests, **slots), dict(zip(self.keys, values))
            kind = entry.result
            text, template = catalog.output(r, kind, values[0] if kind == "calc" else None), entry.answer
            unit = next((k for k in ("unit", "units", "scale") if "enum" in self.tool["parameters"]["properties"].get(k, {})), None)
            if unit and kind == "weather" and r.random() < .6:
                u = r.choice(["celsius", "fahrenheit"])
                self.question = self.question.rstrip(".?! ") + " in " + u + r.choice(["?", "", "."])
                self.arguments[unit] = u
        self.result, self.answer = text, template.format(r=text, **slots)
        x = r.random()
        if entry is not catalog.SHELL and x < .35:
            self.result = catalog.as_json(r, kind, text, slots)
        elif x > .95:
            reason = r.choice(["not found", "timeout", "no permission", "unknown argument", ow.phrase(r, 1, 3)])
            self.result, self.answer = r.choice(["Error: ", "error: "]) + reason, "The tool failed: " + reason + "."

    @property
    def call(self):
        return self.tool["name"], self.arguments


def same_kind(a, b):
    """Would a request for one tool fit the other?"""
    for e in catalog.ENTRIES + [catalog.SHELL]:
        if any(a["name"].endswith(n) for n in e.names) and any(b["name"].endswith(n) for n in e.names):
            return True
    return a["description"] == b["description"]


FILE_KIND = {n for e in catalog.ENTRIES if e.answer.startswith(("The file", "The folder",
                                                                "I wrote")) for n in e.names} | set(catalog.SHELL.names)


def handles_files(tool):
    return any(tool["name"].endswith(n) for n in FILE_KIND)


def decoys(r, used, n):
    """n declarations that serve none of the requests to the used tools."""
    out, block = [], any(handles_files(t) for t in used)
    while len(out) < n:
        x = r.random()
        t, _ = catalog.declare(r, catalog.SHELL if x < .1 else catalog.invent(r) if x < .4 else r.choice(catalog.ENTRIES))
        if not any(same_kind(t, u) for u in used + out) and not (block and handles_files(t)):
            out.append(t)
    return out


def nothing_fits(r):
    if r.random() < .4:
        q, entry = tool_wish(r)
        wanted, _ = catalog.declare(r, entry)
        tools = [t for t in decoys(r, [wanted], r.randint(1, 4)) if not same_kind(t, wanted)]
        return close(r, "tool_none", [user(q)], NO_TOOL, "No tool fits.", tools)
    if r.random() < .6:
        q, a = small_talk(r)
    else:
        x, y = r.randint(1, 99), r.randint(1, 99)
        q, a = ask(r, ["What is {x} + {y}?", "{x} + {y}"], x=x, y=y), "%d + %d = %d" % (x, y, x + y)
    sums = catalog.ENTRIES[1].names
    tools = [t for t in decoys(r, [], r.randint(1, 4)) if not any(t["name"].endswith(n) for n in sums)]
    return close(r, "tool_none", [user(q)], a, "No tool is needed.", tools)


def same_tool_twice(r):
    """One sentence that asks one tool for two or three values."""
    entry = r.choice(LISTED)
    draw = catalog.SLOTS[entry.params[0][1]]
    values = []
    while len(values) < r.choice([2, 2, 3]):
        v = draw(r)
        if v not in values:
            values.append(v)
    first = Case(r, entry, slots={"p0": values[0]})
    joined = " and ".join(values) if len(values) < 3 else ", ".join(values[:2]) + " and " + values[2]
    question = ask(r, entry.requests, p0=joined)
    results = [catalog.output(r, entry.result) for _ in values]
    calls = [(first.tool["name"], {first.keys[0]: v}) for v in values]
    return [first.tool], question, calls, results, " ".join(entry.answer.format(p0=v, r=x) for v, x in zip(values, results))


def two_tools(r):
    """Two requests in one message, for two tools."""
    a = Case(r, plain=True)
    while True:
        b = Case(r, plain=True)
        if not same_kind(a.tool, b.tool) and not (handles_files(a.tool) and handles_files(b.tool)):
            break
    question = a.question.rstrip(".") + (" Then: " if a.question.endswith("?") else ". Then: ") + b.question
    return [a.tool, b.tool], question, [a.call, b.call], [a.result, b.result], a.answer + " " + b.answer


def t_tool(r, kind=None):
    kind = kind or r.choices(["call", "answer", "none", "parallel", "two"], [40, 26, 12, 12, 10])[0]
    if kind == "none":
        return nothing_fits(r)
    case = None
    if kind == "parallel":
        used, question, calls, results, answer = (same_tool_twice if r.random() < .5 else two_tools)(r)
        thought = "I make %d calls." % len(calls)
    else:
        case = Case(r)
        used, question, calls, results, answer = [case.tool], case.question, [case.call], [case.result], case.answer
        thought = "I use " + case.tool["name"] + "."
    tools = (used + decoys(r, used, r.choice([0, 0, 1, 2, 3])))[:4]
    r.shuffle(tools)
    messages = [user(question)]
    task = "tool_" + kind
    if kind == "two":
        messages += [dict(role="assistant", content="", calls=calls), dict(role="tool", name=case.tool["name"], content=case.result),
                     bot(answer)]
        if case.entry in SINGLE and r.random() < .5:
            v = catalog.SLOTS[case.entry.params[0][1]](r)
            q = ask(r, ["And {p0}?", "And for {p0}?", "Now {p0}.", "What about {p0}?"] + case.entry.requests, p0=v)
            return close(r, task, messages + [user(q)], chat_format.call(case.tool["name"], {case.keys[0]: v}), thought, tools,
                         end="<|tool_response>")
        q, a = small_talk(r)
        return close(r, task, messages + [user(q)], a, "No tool is needed.", tools)
    if kind == "answer" or (kind == "parallel" and r.random() < .4):
        # with thinking on, the calls carry the thought before them about as often as not
        reasoning = thought if r.random() < .2 else None
        messages.append(dict(role="assistant", content="", calls=calls, reasoning=reasoning))
        messages += [dict(role="tool", name=c[0], content=x) for c, x in zip(calls, results)]
        return close(r, "tool_answer", messages, answer, "I have the result.", tools, p_think=1 if reasoning else .2, opened=True)
    return close(r, task, messages, "".join(chat_format.call(*c) for c in calls), thought, tools, end="<|tool_response>")
