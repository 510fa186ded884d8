"""The demo tokenizer: Gemma 4's kind (BPE on raw text, space as U+2581, byte fallback), 4096 pieces.

Encodes as Gemma does (special tokens cut out, no pre-tokeniser). Pieces never cross a space, a newline, a digit or a
border between letters and signs, so cutting the text there first changes nothing and allows a cache of words.
"""
import json
import re

VOCAB = 4096
NAMED = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 4: "<mask>", 46: "<|tool>", 47: "<tool|>", 48: "<|tool_call>", 49: "<tool_call|>",
         50: "<|tool_response>", 51: "<tool_response|>", 52: "<|\"|>", 98: "<|think|>", 100: "<|channel>", 101: "<channel|>",
         105: "<|turn>", 106: "<turn|>",
         4089: "<|image>", 4090: "<|audio>", 4091: "<|image|>", 4092: "<|audio|>", 4093: "<image|>", 4094: "<audio|>", 4095: "<|video|>"}
STOP = (1, 106, 50)          # <eos>, <turn|>, <|tool_response>: a reply ends at any of them
CHUNK = re.compile("\n+|\u2581{2,}|\u2581?[^\\W\\d_]+|\u2581?(?:(?![^\\W\\d_])[^\u2581\n0-9])+|\u2581|[0-9]")
SPECIAL = re.compile("(" + "|".join(re.escape(s) for s in sorted(NAMED.values(), key=len, reverse=True)) + ")")


class Tok:
    """encode() and decode() by a tokenizer.json; words are cached."""

    def __init__(self, path):
        with open(path, encoding="utf-8") as f:
            m = json.load(f)["model"]
        self.vocab = m["vocab"]
        self.text = {i: s for s, i in self.vocab.items()}
        self.rank = {tuple(p): i for i, p in enumerate(m["merges"])}
        self.cache = {}

    def _word(self, w):
        s = []
        for c in w:
            s += [c] if c in self.vocab else ["<0x%02X>" % b for b in c.encode()]
        while len(s) > 1:
            r, k = min((self.rank.get(p, 1 << 30), k) for k, p in enumerate(zip(s, s[1:])))
            if r == 1 << 30:
                break
            s[k:k + 2] = [s[k] + s[k + 1]]
        ids = [self.vocab[x] for x in s]
        if len(self.cache) < 400000:
            self.cache[w] = ids
        return ids

    def encode(self, text):
        out, cache = [], self.cache
        for i, part in enumerate(SPECIAL.split(text)):
            if i % 2:
                out.append(self.vocab[part])
            elif part:
                for w in CHUNK.findall(part.replace(" ", "\u2581")):
                    out += cache.get(w) or self._word(w)
        return out

    def decode(self, ids):
        out = b""
        for i in ids:
            s = self.text[int(i)]
            if int(i) in NAMED:
                out += s.encode()
            elif 238 <= int(i) < 494:
                out += bytes([int(i) - 238])
            else:
                out += s.replace("\u2581", " ").encode()
        return out.decode("utf-8", "replace")
