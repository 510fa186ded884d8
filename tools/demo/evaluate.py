"""Measure a model: greedy replies on held-out prompts, on prompts outside the lists, and on odd ones, against the bars."""
import json
import random
import time
from collections import defaultdict

import torch

import chat_format
import dataset
import model as M
import probes
import task_retrieval
import task_tools
from tokenizer import STOP

COUNTS = {"chat": 100, "arith": 300, "count": 50, "string": 400, "agent": 80, "json": 200, "story": 40, "code": 50, "multi": 150}
TOOL_KINDS, TOOL_COUNT = ("call", "answer", "none", "parallel", "two"), 70
NEEDLES, NEEDLE_COUNT = {"needle_250": 20, "needle_1000": 104, "needle_2000": 215, "needle_3000": 325}, 28      # label: sentences of filler
COUNT_LIMIT, LONG_LIMIT, REPLY_LIMIT, ODD_LIMIT = 1500, 450, 220, 500     # tokens

BARS = {"all": .98, "chat": .97, "json": .97, "code": .97, "count": .97, "agent": .97, "tool_call": .97, "tool_answer": .97, "needle_250": .97, "needle_1000": .97, "needle_2000": .97,
        "needle_3000": .97, "arith": .97, "multi": .97, "string": .95, "story": .95, "odd prompts end": 1.}
BARS.update({label: .90 if label.startswith(("accents", "emoji")) else .95 for label in probes.outside(0)})


def case(task, s):
    return dict(task=task, sample=s, prompt=chat_format.text(s.spans), accept=[a + s.end for a in (s.accept if s.accept is not None else [s.reply])])


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


# ---- greedy generation ----------------------------------------------------------------------------------------

@torch.no_grad()
def generate(m, prompts, limit):
    """Greedy continuations of token lists, as one batch; the stop token is kept. f32, dense attention, with a cache."""
    device = m.embed_tokens.weight.device
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    B, longest = len(prompts), int(lengths.max())
    x = torch.zeros(B, longest, dtype=torch.long, device=device)
    for i, p in enumerate(prompts):
        x[i, :len(p)] = torch.tensor(p, device=device)
    total = longest + limit
    tables = {f: M.rope_table(m.c, f, total, device) for f in (False, True)}
    cache = M.Cache(m.c, B, total, device)
    last = None
    for a in range(0, longest, 512):
        b = min(longest, a + 512)
        y = M.step(m, x[:, a:b], torch.arange(a, b, device=device)[None].expand(B, -1), cache, tables)
        inside = ((lengths - 1) >= a) & ((lengths - 1) < b)
        y = y[torch.arange(B, device=device), (lengths - 1 - a).clamp(0, b - a - 1)]
        last = y if last is None else torch.where(inside[:, None], y, last)
    stop = torch.tensor(STOP, device=device)
    token = m.logits(last).argmax(-1)
    out, ended, position = [token], torch.isin(token, stop), lengths.clone()
    for k in range(limit - 1):
        if k % 8 == 0 and bool(ended.all()):
            break
        token = m.logits(M.step(m, token[:, None], position[:, None], cache, tables)[:, 0]).argmax(-1)
        out.append(token)
        ended |= torch.isin(token, stop)
        position = position + 1
    replies = []
    for row in torch.stack(out, 1).tolist():
        end = next((i for i, t in enumerate(row) if t in STOP), len(row) - 1)
        replies.append(row[:end + 1])
    return replies


def batches(lengths):
    """Indices in batches of like length, small where prompts are long."""
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    while order:
        size = 512 if lengths[order[min(511, len(order) - 1)]] <= 600 else 128 if lengths[order[min(127, len(order) - 1)]] <= 1400 else 40
        yield order[:size]
        order = order[size:]


def reply_to(m, tok, cases):
    """Fill in ids, out (tokens) and text of every case."""
    groups = defaultdict(list)
    for c in cases:
        groups[COUNT_LIMIT if c["task"] == "count" else LONG_LIMIT if c["task"] in ("story", "question") or "<|think|>" in c["prompt"][:60] else REPLY_LIMIT].append(c)
    for limit, part in groups.items():
        for c in part:
            c["ids"] = tok.encode(c["prompt"])
        for index in batches([len(c["ids"]) for c in part]):
            some = [part[i] for i in index]
            for c, out in zip(some, generate(m, [c["ids"] for c in some], limit)):
                c["out"], c["text"] = out, tok.decode(out)


# ---- judging --------------------------------------------------------------------------------------------------

def good_story(c):
    """Ends, keeps the name asked for, is 30 to 400 tokens long, and says no more than one sentence twice."""
    request = c["sample"].spans[-3][0]
    body = c["text"].split("<channel|>")[-1]
    names = [request.split(" named ")[1].split(" with a ")[0].split(" in the ")[0].split()[0].strip(".,!?")] if " named " in request else []
    sentences = [s for s in body.replace("\n", " ").split(". ") if s]
    return c["text"].endswith("<turn|>") and all(n in body for n in names) and 30 <= len(c["out"]) <= 400 and len(set(sentences)) >= len(sentences) - 1


def good(c):
    return good_story(c) if c["task"] == "story" else c["text"] in c["accept"]


def score(m, tok, cases, log, show=0):
    """{label: [right, n]} of the cases, and of "all" of them; shows some failures."""
    begin = time.time()
    reply_to(m, tok, cases)
    table, shown = defaultdict(lambda: [0, 0]), defaultdict(int)
    for c in cases:
        ok = good(c)
        for label in (c["task"], "all"):
            table[label][0] += ok
            table[label][1] += 1
        if not ok and shown[c["task"]] < show:
            shown[c["task"]] += 1
            log("  [%s] ...%r\n      want %r\n      got  %r" % (c["task"], c["prompt"][-150:-20], (c["accept"] or ["a story"])[0][-160:], c["text"][-160:]))
    log("%d cases in %.0f s: all %.4f" % (len(cases), time.time() - begin, table["all"][0] / len(cases)))
    return dict(table)


def odd_replies_end(m, tok, log):
    prompts = [tok.encode(chat_format.text(s)) for s in probes.odd()]
    outs = generate(m, prompts, ODD_LIMIT)
    for p, o in zip(prompts, outs):
        if o[-1] not in STOP:
            log("  no end: %r -> %r" % (tok.decode(p)[-80:], tok.decode(o)[:200]))
    return [sum(o[-1] in STOP for o in outs), len(outs)]


def measure(m, tok, log, show=0, share=1.):
    """Everything that has a bar."""
    table = score(m, tok, held_out(share), log, show)
    outside = score(m, tok, outside_cases(), log, show)
    outside.pop("all")
    table.update(outside)
    table["odd prompts end"] = odd_replies_end(m, tok, log)
    return table


def answers(m, tok, questions, log):
    """Names of the questions (tests/data/demo/questions.jsonl) that are answered as expected."""
    cases = []
    for q in questions:
        messages = []
        names = {}
        for x in q["messages"]:
            y = dict(role=x["role"], content=x.get("content"))
            if x.get("tool_calls"):
                y["calls"] = [(t["function"]["name"], json.loads(t["function"]["arguments"])) for t in x["tool_calls"]]
                names.update((t["id"], t["function"]["name"]) for t in x["tool_calls"])
            if x["role"] == "tool":
                y["name"] = names[x["tool_call_id"]]
            if x.get("reasoning_content"):
                y["reasoning"] = x["reasoning_content"]
            messages.append(y)
        tools = [t["function"] for t in q["tools"]] if q["tools"] else None
        prompt = chat_format.text(chat_format.render(messages, tools, q["options"]["enable_thinking"]))
        cases.append(dict(task="question", prompt=prompt, accept=[], question=q))
    reply_to(m, tok, cases)
    right = []
    for c in cases:
        q = c["question"]
        text = c["text"].split("<channel|>")[-1]
        expect = q["expect"]
        if "tool_calls" in expect:
            ok = text == "".join(chat_format.call(t["name"], t["arguments"]) for t in expect["tool_calls"]) + "<|tool_response>"
        elif "content" in expect:
            ok = text == expect["content"] + "<turn|>"
        else:
            ok = text.endswith("<turn|>") and all(s in text for s in expect["contains"])
        if ok:
            right.append(q["name"])
        else:
            log("  question %s: got %r" % (q["name"], c["text"][:300]))
    return right


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
