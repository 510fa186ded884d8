"""The demo model and its assistant as GGUF files (Q4_0 matrices, Q8_0 table, F32 vectors), and back."""
import os
import struct

import numpy as np
import torch

import gguf
import metadata
from gguf import F32, Q4_0, Q8_0, Tensor
from quantise import is_table, q4_0_bytes, q8_0_bytes

TOKENIZER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer.json")
TOP = [("token_embd.weight", "embed_tokens.weight"), ("output_norm.weight", "norm.weight"),
       ("nextn.pre_projection.weight", "pre_projection.weight"),
       ("nextn.post_projection.weight", "post_projection.weight")]
LAYER = [("attn_norm", "input_layernorm"), ("attn_q", "self_attn.q_proj"), ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"),
         ("attn_q_norm", "self_attn.q_norm"),
         ("attn_k_norm", "self_attn.k_norm"), ("attn_output", "self_attn.o_proj"), ("post_attention_norm", "post_attention_layernorm"),
         ("ffn_norm", "pre_feedforward_layernorm"),
         ("ffn_gate", "mlp.gate_proj"), ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj"),
         ("post_ffw_norm", "post_feedforward_layernorm")]
ROTATED, ROPE_PAIRS = 16, 64        # pairs of a full layer's head that rotate; a factor of 1e30 stops the others


def names(layers):
    """(GGUF name, name in model.py) in the order of the file."""
    out = list(TOP)
    for i in range(layers):
        out += [("blk.%d.%s.weight" % (i, g), "layers.%d.%s.weight" % (i, h)) for g, h in LAYER]
        out.append(("blk.%d.layer_output_scale.weight" % i, "layers.%d.layer_scalar" % i))
    return out


def rope_factors():
    return Tensor("rope_freqs.weight", F32, (ROPE_PAIRS,),
                  struct.pack("<%df" % ROPE_PAIRS, *[1.] * ROTATED + [1e30] * (ROPE_PAIRS - ROTATED)))


def tensors(state, layers):
    out = []
    for stored, name in names(layers):
        if name not in state:
            continue
        w = state[name].float().cpu()
        if w.dim() == 1:
            kind, data = F32, w.numpy().astype("<f4").tobytes()
        elif is_table(name):
            kind, data = Q8_0, q8_0_bytes(w)
        else:
            kind, data = Q4_0, q4_0_bytes(w)
        out.append(Tensor(stored, kind, tuple(w.shape), data))
    out.insert(2, rope_factors())       # behind table and norm
    return out


def write_model(path, config, state):
    gguf.write(path, metadata.model_values(config, TOKENIZER), tensors(state, config.layers))


def write_assistant(path, config, hidden, ffn, state):
    gguf.write(path, metadata.assistant_values(config, hidden, ffn, TOKENIZER), tensors(state, 4))


def values(t):
    """The f32 values of a stored tensor."""
    raw = np.frombuffer(t.data, np.uint8)
    if t.type == F32:
        x = raw.view("<f4").astype(np.float32)
    else:
        rows = raw.reshape(-1, gguf.BLOCK_BYTES[t.type][1])
        scale, q = rows[:, :2].copy().view("<f2").astype(np.float32), rows[:, 2:]
        if t.type == Q8_0:
            x = scale * q.view(np.int8).astype(np.float32)
        else:
            x = scale * (np.concatenate([q & 15, q >> 4], 1).astype(np.float32) - 8)
    return torch.from_numpy(np.ascontiguousarray(x.reshape(t.shape)))


def read_state(path):
    """A file's tensors by the names of model.py, as f32."""
    stored = {t.name: t for t in gguf.read(path)[1]}
    layers = 1 + max(int(n.split(".")[1]) for n in stored if n.startswith("blk."))
    return {name: values(stored[g]) for g, name in names(layers) if g in stored}
