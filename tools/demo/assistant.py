"""The MTP assistant: four query-only layers that read the target's last sliding and last full K/V.

A draft for position n starts from the target's hidden row g of n - 1 and the embedding of token n; each further step
takes the token drafted and the g the assistant itself put out. Training runs such chains teacher-forced from every
position at once, against the target's own greedy choice, on reply tokens only, each with the
weight that it has when the target is trained (sums and copied text more, stories less).
"""
import math
import time
from collections import defaultdict

import torch
import torch.nn as nn
import torch.nn.functional as F

import dataset
import model as M
import train as TR

DEPTH = 7               # drafted tokens a chain
DECAY = .95             # loss weight of each further step


class Assistant(nn.Module):
    """h, ffn: widths of its own layers; it reads the target's K/V and hidden rows, of the sizes in config c."""

    def __init__(self, c, h=128, ffn=256):
        super().__init__()
        self.c, self.h = c, h
        self.embed_tokens = nn.Embedding(c.vocab, h)
        self.layers = nn.ModuleList([M.Layer(c, i == 3, h, ffn, own_kv=False) for i in range(4)])
        self.norm = M.Scale(h)
        self.pre_projection = nn.Linear(2 * c.hidden, h, bias=False)
        self.post_projection = nn.Linear(h, c.hidden, bias=False)

    def reset(self, seed=0):
        g = torch.Generator().manual_seed(seed)
        for n, p in self.named_parameters():
            if p.dim() == 2:
                p.data.copy_(torch.randn(p.shape, generator=g) * (0.02 if "embed" in n else 1 / math.sqrt(p.shape[1])))
        for L in self.layers:
            L.post_attention_layernorm.weight.data.fill_(0.3)
            L.post_feedforward_layernorm.weight.data.fill_(0.3)
        return self

    def flat(self):
        """All tensors as nested tuples, for a compiled step."""
        return (self.embed_tokens.weight, self.pre_projection.weight, self.post_projection.weight, self.norm.weight,
                tuple((L.input_layernorm.weight, L.self_attn.q_proj.weight, L.self_attn.q_norm.weight, L.self_attn.o_proj.weight,
                       L.post_attention_layernorm.weight,
                       L.pre_feedforward_layernorm.weight, L.mlp.gate_proj.weight, L.mlp.up_proj.weight, L.mlp.down_proj.weight,
                       L.post_feedforward_layernorm.weight, L.layer_scalar)
                      for L in self.layers))


def step(P, e, g, ropes, attend):
    """e: scaled target embedding of the last token, g: hidden row; both [B, T, backbone]. -> (logits, next g)."""
    emb, pre, post, norm, layers = P
    x = F.linear(torch.cat([e, g], -1), pre)
    B, n = x.shape[:2]
    x = x.float()
    for i, (n1, wq, nq, wo, n2, n3, wg, wu, wd, n4, s) in enumerate(layers):
        a = M.rms(x, n1)
        q = F.linear(a, wq).view(B, n, -1, nq.shape[0])
        q = M.rope(M.rms(q, nq).transpose(1, 2), *ropes[i == 3])
        o = attend(i == 3, q).transpose(1, 2).reshape(B, n, -1)
        x = x + M.rms(F.linear(o, wo), n2)
        f = M.rms(x, n3)
        x = (x + M.rms(F.linear(F.gelu(F.linear(f, wg), approximate="tanh") * F.linear(f, wu), wd), n4)) * s
    y = M.rms(x, norm)
    return F.linear(y, emb), F.linear(y, post)


def shift(x, k):
    """x[:, n + k] at n, zero past the end."""
    if k == 0:
        return x
    pad = torch.zeros_like(x[:, :abs(k)])
    return torch.cat([x[:, k:], pad], 1) if k > 0 else torch.cat([pad, x[:, :k]], 1)


# ---- training -------------------------------------------------------------------------------------------------

def teach(a, m, pool, steps, max_seconds, log, rows=16, lr=3e-3, decay=.05, warm_up=50, final=.03):
    """Train assistant a on the frozen target m; the schedule is that of train.run. Returns the number of steps made."""
    tables = {f: tuple(t[None, None] for t in M.rope_table(m.c, f, TR.ROW, "cuda")) for f in (False, True)}

    @torch.compile(dynamic=False)
    def chain_step(P, e, g, kv, doc, full_blocks, near_blocks, labels, w):
        with torch.autocast("cuda", torch.bfloat16):
            see = lambda full, q: TR.attend(q, *kv[full], doc, *(full_blocks if full else near_blocks), 0 if full else m.c.window,
                                            strict=True)
            z, g2 = step(P, e, g, tables, see)
        z = z.float().flatten(0, 1)
        ce = F.cross_entropy(z, labels.flatten(), reduction="none")
        hit = (z.detach().argmax(-1) == labels.flatten()).view(labels.shape)
        return (ce * w.flatten()).sum() / w.sum().clamp(min=1), g2, hit
    named = list(a.named_parameters())
    adam = torch.optim.AdamW([dict(params=[p for _, p in named if p.dim() == 2], weight_decay=decay),
                              dict(params=[p for _, p in named if p.dim() < 2], weight_decay=0.)],
                             lr=lr, betas=(.9, .95), fused=True)
    begin, n, progress = time.time(), 0, 0.
    right, seen = torch.zeros(DEPTH, device="cuda"), torch.zeros(DEPTH, device="cuda")
    while progress < 1:
        x, _, w = TR.batch(pool, rows, "cuda")
        with torch.no_grad():
            h, kv, doc = TR.backbone(m, x, tables, kv=True)
            with torch.autocast("cuda", torch.bfloat16):
                y = M.rms(h, m.norm.weight)
                want = F.linear(y, m.embed_tokens.weight).argmax(-1)      # row n: the target's token for n + 1
            E = F.embedding(x, m.embed_tokens.weight) * math.sqrt(m.c.hidden)
            full_blocks, near_blocks = TR.blocks(doc, 0), TR.blocks(doc, m.c.window)
            reply = torch.where(w >= TR.REPLY, w, 0.)                     # row n: token n + 1 is the model's
            kv = {f: tuple(t.bfloat16() for t in kv[f]) for f in kv}
            g = shift(y, -1).float()
        total, alive, P = 0, None, a.flat()
        for k in range(DEPTH):
            counted = shift(reply, k) * ((shift(doc, k) == doc) & (doc > 0))
            loss, g, hit = chain_step(P, shift(E, k), g, kv, doc, full_blocks, near_blocks, shift(want, k), counted)
            total = total + loss * DECAY ** k
            alive = hit if alive is None else alive & hit
            right[k] += (alive * counted).sum()
            seen[k] += counted.sum()
        total.backward()
        torch.nn.utils.clip_grad_norm_(a.parameters(), 1., foreach=True)
        scale = min(1, (n + 1) / warm_up) * (final + (1 - final) * .5 * (1 + math.cos(math.pi * progress)))
        for group in adam.param_groups:
            group["lr"] = lr * scale
        adam.step()
        adam.zero_grad(set_to_none=True)
        n += 1
        if n % 10 == 0:
            torch.cuda.synchronize()
        if n == 10:
            log("first steps (compile) %.1f s" % (time.time() - begin))
        progress = max(n / steps, (time.time() - begin) / max_seconds)
        if n % 200 == 0:
            log("step %d  %.0f s  loss %.4f  accepted down to depth k: %s" % (n, time.time() - begin, total.item(),
                                                                              " ".join("%.3f" % v for v in (right / seen.clamp(min=1)).tolist())))
            right.zero_()
            seen.zero_()
    return n


# ---- measuring ------------------------------------------------------------------------------------------------

@torch.no_grad()
def drafts(a, m, tokens):
    """Teacher-forced drafts from every position of one sequence: [T, DEPTH] tokens, f32."""
    x = torch.tensor(tokens, device="cuda")[None]
    T = x.shape[1]
    tables = {f: M.rope_table(m.c, f, T, "cuda") for f in (False, True)}
    cache = M.Cache(m.c, 1, T, "cuda")
    y = M.step(m, x, torch.arange(T, device="cuda")[None], cache, tables)
    L = m.c.layers
    kv = {False: (cache.k[L - 2], cache.v[L - 2]), True: (cache.k[L - 1], cache.v[L - 1])}
    E = m.embed_tokens(x) * math.sqrt(m.c.hidden)
    i = torch.arange(T, device="cuda")
    before = i[None, :] < i[:, None]
    near = before & (i[:, None] - i[None, :] < m.c.window)
    ropes = {f: tuple(t[None, None] for t in tables[f]) for f in tables}

    def see(full, q):
        return torch.nan_to_num(M.dense(q, *kv[full], (before if full else near)[None]))      # position 0 sees nothing
    g, P, out = shift(y, -1), a.flat(), []
    for k in range(DEPTH):
        z, g = step(P, shift(E, k), g, ropes, see)
        out.append(z[0].argmax(-1))
    return torch.stack(out, 1).cpu()


def acceptance(a, m, cases, windows=(4, DEPTH)):
    """On the target's own greedy replies (cases with ids and out): per task family and for all,
    {"depth": accepted share at depth 1..7 given the earlier ones, "round": {window: tokens a round}}."""
    right, seen = defaultdict(lambda: [0] * DEPTH), defaultdict(lambda: [0] * DEPTH)
    rounds = defaultdict(lambda: {w: [0, 0] for w in windows})
    for c in cases:
        tokens, start = c["ids"] + c["out"], len(c["ids"])
        end = len(tokens) - 1
        hit = [[int(v) for v in row] for row in drafts(a, m, tokens)]

        def run_length(n, limit):
            k = 0
            while k < limit and hit[n][k] == tokens[n + 1 + k]:
                k += 1
            return k
        for label in ("all", dataset.family(c["task"])):
            for n in range(start, end):
                limit = min(DEPTH, end - n)
                k = run_length(n, limit)
                for j in range(min(k + 1, limit)):
                    seen[label][j] += 1
                    right[label][j] += j < k
            for w in windows:
                n = start
                while n < end:
                    k = run_length(n, min(w, end - n))
                    rounds[label][w][0] += 1
                    rounds[label][w][1] += min(k + 1, end - n)
                    n += k + 1
    return {label: {"depth": [r / max(1, s) for r, s in zip(right[label], seen[label])],
                    "round": {w: t / max(1, n) for w, (n, t) in rounds[label].items()}} for label in seen}
