"""The metadata of the GGUF files: geometry of the two networks, and the tokenizer."""
import json

from gguf import ARRAY, BOOL, F32_VALUE, I32, STRING, U32, Value

FILE_TYPE_Q4_0 = 2
NORMAL, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 3, 4, 5, 6       # token types
SPOKEN = ("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>")      # specials that are part of a reply's text


def tokenizer_values(path):
    with open(path, encoding="utf-8") as f:
        j = json.load(f)
    vocab = j["model"]["vocab"]
    tokens, types = [None] * len(vocab), [NORMAL] * len(vocab)
    for s, i in vocab.items():
        tokens[i] = s
        if len(s) == 6 and s.startswith("<0x"):
            types[i] = BYTE
        elif s.startswith("<unused"):
            types[i] = UNUSED
    for a in j["added_tokens"]:
        types[a["id"]] = USER_DEFINED if a["content"] in SPOKEN else CONTROL
    merges = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    t = "tokenizer.ggml."
    return [Value(t + "model", STRING, "gemma4"), Value(t + "tokens", ARRAY, (STRING, tokens)),
            Value(t + "scores", ARRAY, (F32_VALUE, [0.] * len(tokens))),
            Value(t + "token_type", ARRAY, (I32, types)), Value(t + "merges", ARRAY, (STRING, merges)), Value(t + "bos_token_id", U32, 2),
            Value(t + "eos_token_id", U32, 106),
            Value(t + "padding_token_id", U32, 0), Value(t + "unknown_token_id", U32, 3), Value(t + "add_bos_token", BOOL, 1),
            Value(t + "add_space_prefix", BOOL, 0)]


def geometry(arch, name, c, hidden, ffn, full, extra):
    """c: sizes of the attention (model.Config); full: per layer, whether it sees everything; extra: values of this network alone."""
    a = arch + "."
    return [Value("general.architecture", STRING, arch), Value("general.alignment", U32, 32), Value(a + "block_count", U32, len(full)),
            Value(a + "context_length", U32, c.max_pos),
            Value(a + "embedding_length", U32, hidden), Value(a + "feed_forward_length", U32, ffn),
            Value(a + "attention.head_count", U32, c.heads),
            Value(a + "attention.head_count_kv", ARRAY, (I32, [c.global_kv if f else c.kv for f in full])),
            Value(a + "attention.key_length", U32, c.global_head_dim), Value(a + "attention.value_length", U32, c.global_head_dim),
            Value(a + "attention.key_length_swa", U32, c.head_dim), Value(a + "attention.value_length_swa", U32, c.head_dim),
            Value(a + "attention.sliding_window", U32, c.window),
            Value(a + "attention.sliding_window_pattern", ARRAY, (BOOL, [int(not f) for f in full])),
            Value(a + "embedding_length_per_layer_input", U32, 0), Value(a + "attention.layer_norm_rms_epsilon", F32_VALUE, c.eps),
            Value(a + "rope.freq_base", F32_VALUE, 1e6), Value(a + "rope.freq_base_swa", F32_VALUE, 1e4),
            Value(a + "rope.dimension_count", U32, c.global_head_dim), Value(a + "rope.dimension_count_swa", U32, c.head_dim)] + [
        Value(a + key, kind, v) for key, kind, v in extra] + [Value("general.name", STRING, name),
                                                              Value("general.file_type", U32, FILE_TYPE_Q4_0)]


def model_values(c, tok_path):
    full = [c.full(i) for i in range(c.layers)]
    return geometry("gemma4", "gem demo", c, c.hidden, c.ffn, full,
                    [("attention.shared_kv_layers", U32, 0), ("final_logit_softcapping", F32_VALUE, c.cap)]) + tokenizer_values(tok_path)


def assistant_values(c, hidden, ffn, tok_path):
    """Four layers without K/V of their own: three sliding, one full."""
    full = [False, False, False, True]
    extra = [("embedding_length_out", U32, c.hidden), ("nextn_predict_layers", U32, len(full)),
             ("attention.shared_kv_layers", U32, len(full))]
    return geometry("gemma4-assistant", "gem demo assistant", c, hidden, ffn, full, extra) + tokenizer_values(tok_path)
