"""Gemma 4 dense text model in plain PyTorch, with Hugging Face's parameter names (prefix "model.").

Layers come as five sliding and one full, over and over. Full layers have one K/V head of twice the width, take V from the
unnormed K, and rotate a quarter of each head. layer_scalar is a trained parameter. Attention scores are not scaled.
"""
import math
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Config:
    vocab: int = 4096
    hidden: int = 384
    ffn: int = 896
    layers: int = 12
    heads: int = 6
    kv: int = 2
    global_kv: int = 1
    head_dim: int = 64
    global_head_dim: int = 128
    window: int = 128
    pattern: int = 6
    cap: float = 30.0
    eps: float = 1e-6
    max_pos: int = 4096

    def full(self, i):
        return i % self.pattern == self.pattern - 1


def rms(x, w=None, eps=1e-6):
    """RMS norm in f32, with weight w if there is one."""
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    if w is not None:
        y = y * w.float()
    return y.to(x.dtype)


def rope_table(cfg, full, n, device):
    """cos and sin [n, head_dim / 2]; on full layers only the first quarter of the pairs rotates."""
    d = cfg.global_head_dim if full else cfg.head_dim
    i = torch.arange(d // 2, dtype=torch.float64, device=device)
    w = (1e6 if full else 1e4) ** (-2 * i / d)
    if full:
        w = torch.where(i < int(0.25 * d / 2), w, torch.zeros_like(w))
    a = torch.arange(n, dtype=torch.float64, device=device)[:, None] * w
    return a.cos().float(), a.sin().float()


def rope(x, cos, sin):
    """x [B, n, T, d]; cos, sin broadcastable to [B, n, T, d/2]."""
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Attn(nn.Module):
    """Projections and norms of one attention; the attention itself is the caller's. own_kv=False: reads another model's K/V."""

    def __init__(self, c, full, hidden=None, own_kv=True):
        super().__init__()
        h = hidden or c.hidden
        self.full, self.d = full, c.global_head_dim if full else c.head_dim
        self.nq, self.nkv = c.heads, c.global_kv if full else c.kv
        self.eps = c.eps
        self.q_proj = nn.Linear(h, self.nq * self.d, bias=False)
        self.o_proj = nn.Linear(self.nq * self.d, h, bias=False)
        self.q_norm = Scale(self.d)
        if own_kv:
            self.k_proj = nn.Linear(h, self.nkv * self.d, bias=False)
            if not full:        # full layers take V from K
                self.v_proj = nn.Linear(h, self.nkv * self.d, bias=False)
            self.k_norm = Scale(self.d)

    def queries(self, a, cos, sin):
        B, T, _ = a.shape
        q = self.q_proj(a).view(B, T, self.nq, self.d)
        return rope(rms(q, self.q_norm.weight, self.eps).transpose(1, 2), cos, sin)

    def keys(self, a, cos, sin):
        B, T, _ = a.shape
        k = self.k_proj(a).view(B, T, self.nkv, self.d)
        v = k if self.full else self.v_proj(a).view(B, T, self.nkv, self.d)
        k = rope(rms(k, self.k_norm.weight, self.eps).transpose(1, 2), cos, sin)
        return k, rms(v, None, self.eps).transpose(1, 2)

    def out(self, o):
        B, n, T, d = o.shape
        return self.o_proj(o.transpose(1, 2).reshape(B, T, n * d))


class Scale(nn.Module):
    """The weight of a norm."""

    def __init__(self, n):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(n))


class Mlp(nn.Module):
    def __init__(self, h, f):
        super().__init__()
        self.gate_proj = nn.Linear(h, f, bias=False)
        self.up_proj = nn.Linear(h, f, bias=False)
        self.down_proj = nn.Linear(f, h, bias=False)

    def forward(self, x):
        return self.down_proj(F.gelu(self.gate_proj(x), approximate="tanh") * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, full, hidden=None, ffn=None, own_kv=True):
        super().__init__()
        h = hidden or c.hidden
        self.eps = c.eps
        self.self_attn = Attn(c, full, h, own_kv)
        self.mlp = Mlp(h, ffn or c.ffn)
        self.input_layernorm = Scale(h)
        self.post_attention_layernorm = Scale(h)
        self.pre_feedforward_layernorm = Scale(h)
        self.post_feedforward_layernorm = Scale(h)
        self.layer_scalar = nn.Parameter(torch.ones(1))

    def norm(self, x):
        return rms(x, self.input_layernorm.weight, self.eps)

    def rest(self, h, o):
        h = h + rms(self.self_attn.out(o), self.post_attention_layernorm.weight, self.eps)
        m = self.mlp(rms(h, self.pre_feedforward_layernorm.weight, self.eps))
        h = h + rms(m, self.post_feedforward_layernorm.weight, self.eps)
        return h * self.layer_scalar


class Gemma4(nn.Module):
    def __init__(self, c=Config()):
        super().__init__()
        self.c = c
        self.embed_tokens = nn.Embedding(c.vocab, c.hidden)
        self.layers = nn.ModuleList([Layer(c, c.full(i)) for i in range(c.layers)])
        self.norm = Scale(c.hidden)

    def reset(self, seed=0):
        """Initial values.

        The attention multiplier is 1, so q_norm 1 and k_norm 1.5/sqrt(d) give scores a deviation near 1.5 instead of
        sqrt(d), which would be nearly one-hot. Norms behind attention and FFN start at 0.25: at 1 the 24 branches drown
        the embedding, whose rms is 0.02 * sqrt(384) = 0.39.
        """
        g = torch.Generator().manual_seed(seed)
        for n, p in self.named_parameters():
            if p.dim() == 2:
                std = 0.02 if "embed" in n else 1 / math.sqrt(p.shape[1])
                p.data.copy_(torch.randn(p.shape, generator=g) * std)
        for L in self.layers:
            d = L.self_attn.d
            L.self_attn.q_norm.weight.data.fill_(1.0)
            L.self_attn.k_norm.weight.data.fill_(1.5 / math.sqrt(d))
            L.post_attention_layernorm.weight.data.fill_(0.25)
            L.post_feedforward_layernorm.weight.data.fill_(0.25)
        return self

    def hidden(self, tok, attend, ropes):
        """attend(i, q, k, v) -> o. ropes: {full: (cos, sin)}. Returns the post-norm hidden rows."""
        h = self.embed_tokens(tok).float() * math.sqrt(self.c.hidden)
        for i, L in enumerate(self.layers):
            a, rope_now = L.norm(h), ropes[L.self_attn.full]
            q = L.self_attn.queries(a, *rope_now)
            k, v = L.self_attn.keys(a, *rope_now)
            h = L.rest(h, attend(i, q, k, v))
        return rms(h, self.norm.weight, self.c.eps)

    def logits(self, y):
        z = F.linear(y, self.embed_tokens.weight.to(y.dtype)).float()
        return self.c.cap * torch.tanh(z / self.c.cap)

    def state(self):
        """The parameters as f32 on the CPU, by Hugging Face's names without the prefix "model."."""
        return {k: v.detach().float().cpu().contiguous() for k, v in self.state_dict().items()}


# ---- dense attention with a cache: evaluation ------------------------------------------------------------------

class Cache:
    """K and V of all layers [B, heads, n, d], rows by position."""

    def __init__(self, c, B, n, device, dtype=torch.float32):
        self.k = [torch.zeros(B, c.global_kv if c.full(i) else c.kv, n, c.global_head_dim if c.full(i) else c.head_dim, device=device,
                              dtype=dtype) for i in range(c.layers)]
        self.v = [torch.zeros_like(k) for k in self.k]


def dense(q, k, v, mask):
    """Unscaled attention [B, heads, T, d]; mask [B, T, keys] is true where a key is seen."""
    B, n, T, d = q.shape
    g = n // k.shape[1]
    q = q.reshape(B, k.shape[1], g * T, d)
    s = (q @ k.transpose(-1, -2)).view(B, k.shape[1], g, T, -1)
    s = s.masked_fill(~mask[:, None, None], float("-inf")).softmax(-1)
    return (s.view(B, k.shape[1], g * T, -1) @ v).view(B, n, T, d)


@torch.no_grad()
def step(model, tok, pos, cache, tables):
    """tok, pos [B, T]; K and V go to cache rows pos. Returns post-norm hidden rows."""
    c = model.c
    n = cache.k[0].shape[2]
    j = torch.arange(n, device=tok.device)
    causal = j[None, None] <= pos[..., None]
    near = causal & (pos[..., None] - j[None, None] < c.window)
    ropes = {f: (t[0][pos][:, None], t[1][pos][:, None]) for f, t in tables.items()}

    def attend(i, q, k, v):
        idx = pos[:, None, :, None]
        cache.k[i].scatter_(2, idx.expand_as(k), k.to(cache.k[i].dtype))
        cache.v[i].scatter_(2, idx.expand_as(v), v.to(cache.v[i].dtype))
        return dense(q, cache.k[i], cache.v[i], causal if c.full(i) else near)
    return model.hidden(tok, attend, ropes)
