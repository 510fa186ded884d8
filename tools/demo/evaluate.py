"""Measure a model: greedy replies on held-out prompts, on prompts outside the lists, and on odd ones, against the bars."""
import time
from collections import defaultdict

import torch

import cases
import chat_format
import model as M
import probes
from tokenizer import STOP

COUNT_LIMIT, LONG_LIMIT, REPLY_LIMIT, ODD_LIMIT = 1500, 450, 220, 500     # tokens


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


def reply_to(m, tok, asked):
    """Fill in ids, out (tokens) and text of every case."""
    groups = defaultdict(list)
    for c in asked:
        groups[COUNT_LIMIT if c["task"] == "count" else LONG_LIMIT if c["task"] in ("story",
                                                                                    "question") or "<|think|>" in c["prompt"][:60] else REPLY_LIMIT].append(c)
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


def score(m, tok, asked, log, show=0):
    """{label: [right, n]} of the cases asked, and of "all" of them; shows some failures."""
    begin = time.time()
    reply_to(m, tok, asked)
    table, shown = defaultdict(lambda: [0, 0]), defaultdict(int)
    for c in asked:
        ok = good(c)
        for label in (c["task"], "all"):
            table[label][0] += ok
            table[label][1] += 1
        if not ok and shown[c["task"]] < show:
            shown[c["task"]] += 1
            log("  [%s] ...%r\n      want %r\n      got  %r" % (c["task"], c["prompt"][-150:-20], (c["accept"] or ["a story"])[0][-160:],
                                                                c["text"][-160:]))
    log("%d cases in %.0f s: all %.4f" % (len(asked), time.time() - begin, table["all"][0] / len(asked)))
    return dict(table)


def odd_replies_end(m, tok, log):
    prompts = [tok.encode(chat_format.text(s)) for s in probes.odd()]
    outs = generate(m, prompts, ODD_LIMIT)
    for p, o in zip(prompts, outs):
        if o[-1] not in STOP:
            log("  no end: %r -> %r" % (tok.decode(p)[-80:], tok.decode(o)[:200]))
    return [sum(o[-1] in STOP for o in outs), len(outs)]


def measure(m, tok, log, show=0):
    """Everything that has a bar."""
    table = score(m, tok, cases.held_out(), log, show)
    outside = score(m, tok, cases.outside_cases(), log, show)
    outside.pop("all")
    table.update(outside)
    table["odd prompts end"] = odd_replies_end(m, tok, log)
    return table


def answered(m, tok, questions, log):
    """[answered as expected, asked] for the lines of questions.jsonl."""
    asked = [cases.question_case(q) for q in questions]
    reply_to(m, tok, asked)
    right = 0
    for c in asked:
        ok = cases.answers_question(c["text"], c["question"]["expect"])
        right += ok
        if not ok:
            log("  question %s: got %r" % (c["question"]["name"], c["text"][:300]))
    return [right, len(asked)]
