"""The prompts that the model is measured on, the bars, and the table of results. Needs no PyTorch."""
import json
import random

import chat_format
import dataset
import probes
import task_retrieval
import task_tools

COUNTS = {"chat": 100, "arith": 300, "count": 50, "string": 400, "agent": 80, "json": 200, "story": 40, "code": 50, "multi": 150}
TOOL_KINDS, TOOL_COUNT = ("call", "answer", "none", "parallel", "two"), 70
NEEDLES, NEEDLE_COUNT = {"needle_250": 20, "needle_1000": 104, "needle_2000": 215, "needle_3000": 325}, 28      # label: sentences of filler

BARS = {"all": .98, "chat": .97, "json": .97, "code": .97, "count": .97, "agent": .97, "tool_call": .97, "tool_answer": .97,
        "needle_250": .97, "needle_1000": .97, "needle_2000": .97,
        "needle_3000": .97, "arith": .97, "multi": .97, "string": .95, "story": .95, "odd prompts end": 1.}
BARS.update({label: .90 if label.startswith(("accents", "emoji")) else .95 for label in probes.outside(0)})


def case(task, s):
    return dict(task=task, sample=s, prompt=chat_format.text(s.spans),
                accept=[a + s.end for a in (s.accept if s.accept is not None else [s.reply])])


def held_out(share=1., seed=99, stories=True):
    """Cases of every task, none of them a training prompt; share scales the counts."""
    r = random.Random(seed)
    out = []
    for task, n in COUNTS.items():
        while n * share >= 1 and (stories or task != "story"):
            s = dataset.sample(r, task, held_out=True)
            if s.spans is not None:
                out.append(case(dataset.family(s.task), s))
                n -= 1 / share
    for kind in TOOL_KINDS:
        n = 0
        while n < int(TOOL_COUNT * share):
            s = task_tools.t_tool(r, kind)
            if s.task in dataset.FREE or dataset.is_held_out(s):
                out.append(case(s.task, s))
                n += 1
    for label, sentences in NEEDLES.items():
        for _ in range(int(NEEDLE_COUNT * share)):
            out.append(case(label, task_retrieval.t_needle(r, sentences, r.choice([1, 4]))))
    return out


def outside_cases(n=40):
    return [case(label, s) for label, samples in probes.outside(n).items() for s in samples]


def file_cases():
    """The cases of heldout.jsonl: no stories, since those have no one right answer, and half of the long prompts."""
    cases = held_out(.3, seed=7, stories=False) + outside_cases(12)
    long = [c for c in cases if len(c["prompt"]) > 2800]
    return [c for c in cases if c not in long[::2]]


def write_cases(cases, path):
    with open(path, "w", encoding="utf-8") as f:
        for c in cases:
            f.write(json.dumps(dict(task=c["task"], prompt=c["prompt"], accept=c["accept"]), ensure_ascii=False) + "\n")


def question_case(q):
    """A line of questions.jsonl (messages and tools in the OpenAI form) as a case."""
    messages, names = [], {}
    for m in q["messages"]:
        x = dict(role=m["role"], content=m.get("content"))
        if m.get("tool_calls"):
            x["calls"] = [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in m["tool_calls"]]
            names.update((t["id"], t["function"]["name"]) for t in m["tool_calls"])
        if m["role"] == "tool":
            x["name"] = names[m["tool_call_id"]]
        if m.get("reasoning_content"):
            x["reasoning"] = m["reasoning_content"]
        messages.append(x)
    tools = [t["function"] for t in q["tools"]] if q["tools"] else None
    return dict(task="question", prompt=chat_format.text(chat_format.render(messages, tools, q["options"]["enable_thinking"])), accept=[],
                question=q)


def answers_question(reply, expect):
    """Does a reply with its end marker meet the line's expectation? A thought in front does not count."""
    reply = reply.split("<channel|>")[-1]
    if "tool_calls" in expect:
        return reply == "".join(chat_format.call(t["name"], t["arguments"]) for t in expect["tool_calls"]) + "<|tool_response>"
    if "content" in expect:
        return reply == expect["content"] + "<turn|>"
    return reply.endswith("<turn|>") and all(s in reply for s in expect["contains"])


def markdown(results):
    """results: {column: {label: [right, n]}}; a table with the bars."""
    columns = list(results)
    labels = list(dict.fromkeys(label for c in columns for label in results[c]))
    lines = ["| | n | bar | " + " | ".join(columns) + " |", "|---|---|---|" + "---|" * len(columns)]
    for label in labels:
        cells = []
        for c in columns:
            right, n = results[c].get(label, (0, 0))
            value = "%.3f" % (right / n) if n else ""
            cells.append("**" + value + "**" if n and right / n < BARS.get(label, 0) else value)
        n = next(results[c][label][1] for c in columns if label in results[c])
        lines.append("| %s | %d | %s | %s |" % (label, n, "%.2f" % BARS[label] if label in BARS else "", " | ".join(cells)))
    return "\n".join(lines)
