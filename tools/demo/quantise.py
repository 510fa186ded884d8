"""GGUF's Q4_0 and Q8_0: blocks of 32 along the input, one f16 scale each, with llama.cpp's reference rounding."""
import numpy as np
import torch

BLOCK = 32


def _inverse(scale):
    return torch.where(scale == 0, torch.zeros_like(scale), 1 / scale)


def q4_0_blocks(w):
    """-> (f16 scales [n, 1], integers 0..15 [n, 32]); the value is scale * (q - 8)."""
    x = w.float().reshape(-1, BLOCK)
    extreme = x.gather(1, x.abs().argmax(1, keepdim=True))
    scale = extreme / -8
    return scale.half(), torch.clamp(torch.floor(x * _inverse(scale) + 8.5), 0, 15)


def q8_0_blocks(w):
    """-> (f16 scales [n, 1], integers -127..127 [n, 32]); the value is scale * q."""
    x = w.float().reshape(-1, BLOCK)
    scale = x.abs().amax(1, keepdim=True) / 127
    return scale.half(), torch.round(x * _inverse(scale))


def q4_0_bytes(w):
    scale, q = q4_0_blocks(w.cpu())
    q = q.to(torch.uint8).numpy()
    return np.concatenate([scale.numpy().view(np.uint8), q[:, :16] | (q[:, 16:] << 4)], 1).tobytes()


def q8_0_bytes(w):
    scale, q = q8_0_blocks(w.cpu())
    return np.concatenate([scale.numpy().view(np.uint8), q.to(torch.int8).numpy().view(np.uint8)], 1).tobytes()


def is_table(name):
    return "embed_tokens" in name


def rounded(state):
    """What a reader of the GGUF file computes with: matrices as Q4_0, the table as Q8_0, vectors as they are."""
    out = {}
    for name, w in state.items():
        if w.dim() != 2:
            out[name] = w.float().clone()
            continue
        scale, q = q8_0_blocks(w) if is_table(name) else q4_0_blocks(w)
        out[name] = (scale.float() * (q if is_table(name) else q - 8)).reshape(w.shape)
    return out
