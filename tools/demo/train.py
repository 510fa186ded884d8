"""Train the demo model on packed rows: Muon for the matrices, AdamW for the table and the vectors, bf16 autocast."""
import math
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

import model as M
from pool import ROW

BOS = 2
REPLY = .35     # target weight from which a token counts as part of a reply in the log
TILE = 128          # rows and columns of a block of flex_attention


def blocks(doc, window):
    """Which 128-key blocks each 128-query block needs: (partly, wholly) visible, as flex_attention's index lists."""
    B, n = doc.shape[0], doc.shape[1] // TILE
    d = doc.view(B, n, TILE)
    lo, hi = d[..., 0], d[..., -1]
    i = torch.arange(n, device=doc.device)
    causal = (i[None, :] <= i[:, None])[None] & (hi[:, None, :] >= lo[:, :, None])
    if window:
        need, full = causal & (i[:, None] - i[None, :] <= (window + TILE - 1) // TILE)[None], None
    else:
        full = (i[None, :] < i[:, None])[None] & (lo[:, None, :] == hi[:, :, None])
        need = causal & ~full
    out = []
    for m in (need, full):
        if m is None:
            m = torch.zeros_like(need)
        out += [m.sum(-1, dtype=torch.int32)[:, None].contiguous(),
                torch.argsort(m.int(), dim=-1, descending=True, stable=True).int()[:, None].contiguous()]
    return out


def attend(q, k, v, doc, num, idx, fnum, fidx, window, strict=False):
    """flex_attention inside documents, within the window (0: none); strict: a row does not see its own key."""
    def mask(b, h, i, j):
        ok = (doc[b, i] == doc[b, j]) & ((i > j) if strict else (i >= j))
        return ok & (i - j < window) if window else ok
    bm = BlockMask.from_kv_blocks(num, idx, None if window else fnum, None if window else fidx, BLOCK_SIZE=TILE, mask_mod=mask)
    return flex_attention(q, k, v, block_mask=bm, scale=1.0, enable_gqa=q.shape[1] != k.shape[1])


def params(L):
    """A layer's tensors: plain arguments let one compiled graph serve all layers of a kind."""
    A, P = L.self_attn, L.mlp
    return (L.input_layernorm.weight, A.q_proj.weight, A.k_proj.weight, None if A.full else A.v_proj.weight, A.q_norm.weight,
            A.k_norm.weight, A.o_proj.weight,
            L.post_attention_layernorm.weight, L.pre_feedforward_layernorm.weight, P.gate_proj.weight, P.up_proj.weight, P.down_proj.weight,
            L.post_feedforward_layernorm.weight, L.layer_scalar)


def layer(P, h, cos, sin, doc, bl, window, d):
    """One layer on the f32 residual h -> (new h, k, v). P: params(); bl: blocks(); d: head width."""
    n1, wq, wk, wv, nq, nk, wo, n2, n3, wg, wu, wd, n4, s = P
    B, n = h.shape[:2]
    with torch.autocast("cuda", torch.bfloat16):
        a = M.rms(h, n1)
        heads = lambda w: F.linear(a, w).view(B, n, -1, d)
        k_raw = heads(wk)
        q = M.rope(M.rms(heads(wq), nq).transpose(1, 2), cos, sin)
        k = M.rope(M.rms(k_raw, nk).transpose(1, 2), cos, sin)
        v = M.rms(k_raw if wv is None else heads(wv)).transpose(1, 2)
        o = attend(q, k, v, doc, *bl, window).transpose(1, 2).reshape(B, n, -1)
        h = h + M.rms(F.linear(o, wo), n2)
        f = M.rms(h, n3)
        m = F.linear(F.gelu(F.linear(f, wg), approximate="tanh") * F.linear(f, wu), wd)
        return (h + M.rms(m, n4)) * s, k, v


@torch.compile(dynamic=False)
def layer_full(P, h, cos, sin, doc, bl):
    return layer(P, h, cos, sin, doc, bl, 0, 128)


@torch.compile(dynamic=False)
def layer_slide(P, h, cos, sin, doc, bl):
    return layer(P, h, cos, sin, doc, bl, 128, 64)


@torch.compile(dynamic=False)
def head_loss(norm, emb, h, labels, w):
    """(weighted loss, unweighted loss and accuracy on reply tokens)."""
    with torch.autocast("cuda", torch.bfloat16):
        z = F.linear(M.rms(h, norm), emb).float()
    z = 30 * torch.tanh(z / 30)
    z, labels, w = z.flatten(0, 1), labels.flatten(), w.flatten()
    ce = F.cross_entropy(z, labels, reduction="none")
    big = (w >= REPLY).float()
    n = big.sum().clamp(min=1)
    hit = ((z.detach().argmax(-1) == labels).float() * big).sum() / n
    return (ce * w).sum() / w.sum().clamp(min=1), (ce.detach() * big).sum() / n, hit


def backbone(m, tok, tables, kv=False):
    """Packed rows [B, T] -> residual before the final norm (and K/V of the last layer of each type)."""
    doc = (tok == BOS).int().cumsum(1, dtype=torch.int32)
    bf, bs = blocks(doc, 0), blocks(doc, 128)
    h = F.embedding(tok, m.embed_tokens.weight) * math.sqrt(m.c.hidden)
    last = {}
    for L in m.layers:
        full = L.self_attn.full
        h, k, v = (layer_full if full else layer_slide)(params(L), h, *tables[full], doc, bf if full else bs)
        last[full] = (k, v)
    return (h, last, doc) if kv else h


def batch(pool, n, dev):
    """Ids, the next ids, and the weights of those, [n, ROW] each."""
    x, w = pool.draw(n)
    x = torch.from_numpy(x.astype(np.int64)).pin_memory().to(dev, non_blocking=True)
    w = torch.from_numpy(w).pin_memory().to(dev, non_blocking=True).float() / 100
    lab, wl = torch.zeros_like(x), torch.zeros_like(w)
    lab[:, :-1], wl[:, :-1] = x[:, 1:], w[:, 1:]
    return x, lab, wl


# ---- optimiser ------------------------------------------------------------------------------------------------

def by_shape(params):
    """Parameters in lists of equal shape."""
    g = {}
    for p in params:
        g.setdefault(tuple(p.shape), []).append(p)
    return list(g.values())


class Muon:
    """Muon with the update scaled to AdamW's usual size (0.2 * sqrt(longer side)), batched over equal shapes."""

    def __init__(self, params, lr, wd=0.1, mom=0.95):
        self.groups, self.lr, self.wd, self.mom = by_shape(params), lr, wd, mom
        self.buf = [torch.zeros(len(g), *g[0].shape, device=g[0].device) for g in self.groups]

    @torch.no_grad()
    def step(self, scale):
        for g, b in zip(self.groups, self.buf):
            G = torch.stack([p.grad for p in g])
            b.lerp_(G, 1 - self.mom)
            U = G.lerp(b, self.mom).bfloat16()
            tr = U.shape[1] > U.shape[2]
            U = U.mT if tr else U
            U = U / (U.norm(dim=(1, 2), keepdim=True) + 1e-7)
            for _ in range(5):
                A = U @ U.mT
                U = 3.4445 * U + (-4.7750 * A + 2.0315 * A @ A) @ U
            U = (U.mT if tr else U).float()
            lr = self.lr * scale
            a = 0.2 * max(U.shape[1:]) ** 0.5 * lr
            ps = [p.data for p in g]
            torch._foreach_mul_(ps, 1 - lr * self.wd)
            torch._foreach_add_(ps, list(U.unbind(0)), alpha=-a)

def run(m, pool, steps, max_seconds, log, rows=32, lr=4e-3, lr_small=3e-3, decay=.1, warm_up=60, final=.03):
    """Train for a number of steps: linear warm-up, then a cosine down to the share `final`.

    If max_seconds would be passed, the schedule follows the clock instead, so that a slow machine still ends at the low
    rate (and on another model). Returns the number of steps made.
    """
    device = next(m.parameters()).device
    tables = {f: tuple(t[None, None] for t in M.rope_table(m.c, f, ROW, device)) for f in (False, True)}
    matrices = [p for n, p in m.named_parameters() if p.dim() == 2 and "embed" not in n]
    vectors = [p for p in m.parameters() if p.dim() < 2]
    muon = Muon(matrices, lr, decay)
    # a small epsilon: the gradients of the scalars are tiny
    adam = torch.optim.AdamW([dict(params=[m.embed_tokens.weight], weight_decay=.01), dict(params=vectors, weight_decay=0.)], lr=lr_small,
                             betas=(.9, .95), eps=1e-10, fused=True)
    begin = time.time()
    sums, mark, n, progress = torch.zeros(3, device=device), (begin, 0), 0, 0.
    while progress < 1:
        x, labels, w = batch(pool, rows, device)
        loss, reply_loss, hits = head_loss(m.norm.weight, m.embed_tokens.weight, backbone(m, x, tables), labels, w)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(m.parameters(), 1., foreach=True)
        scale = min(1., (n + 1) / warm_up) * (final + (1 - final) * .5 * (1 + math.cos(math.pi * progress)))
        for g in adam.param_groups:
            g["lr"] = lr_small * scale
        adam.step()
        muon.step(scale)
        m.zero_grad(set_to_none=True)
        sums += torch.stack([loss.detach(), reply_loss, hits])
        n += 1
        if n % 10 == 0:
            torch.cuda.synchronize()
        if n == 10:
            log("first steps (compile) %.1f s" % (time.time() - begin))
            mark = (time.time(), n)
        progress = max(n / steps, (time.time() - begin) / max_seconds)
        if n % 200 == 0:
            now = time.time()
            log("step %5d  %.0f s  loss %.4f  reply %.4f  token accuracy %.4f  |g| %.3f  rate x%.3f  %.2f Mtok/s" % (
                n, now - begin, *(sums / 200).tolist(), norm.item(), scale, (n - mark[1]) * rows * ROW / (now - mark[0]) / 1e6))
            sums.zero_()
            mark = (now, n)
    return n
