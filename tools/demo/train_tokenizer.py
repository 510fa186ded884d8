"""Learn the demo tokenizer from generated text and write a Hugging Face tokenizer.json: python3 train_tokenizer.py OUT.json

The tokenizer.json beside this file came out of this script on the first version of the data and is kept, so that ids
stay what they are; a run on today's data gives other merges.
"""
import json
import random
import sys
from collections import Counter, defaultdict

import chat_format
from tokenizer import CHUNK, NAMED, SPECIAL, VOCAB, Tok

EXTRA = "\t\u2581" + "".join(map(chr, range(0xA1, 0x180))) + "–—‘’“”…€→←↑↓≤≥≠×÷√∞°•абвгдежзийклмнопрстуфхцчшщъыьэюяαβγδεζηθικλμνξοπρστυφχψω"
MAXLEN = 16


def train(texts, log=print):
    words = Counter()
    for t in texts:
        for i, part in enumerate(SPECIAL.split(t)):
            if i % 2 == 0:
                words.update(c for c in CHUNK.findall(part.replace(" ", "\u2581")) if c[0] != "\n" and c[:2] != "\u2581\u2581")
    chars = sorted(set(EXTRA) | set(map(chr, range(33, 127))))
    free = [i for i in range(168, 238)] + [i for i in range(494, 4089)]
    want = len(free) - len(chars)
    kept = [(w, n) for w, n in words.items() if n >= 4 and len(w) > 1]
    log("words", len(words), "kept", len(kept), "merges wanted", want)
    seqs = [list(w) for w, _ in kept]
    cnt = [n for _, n in kept]
    pairs, where = Counter(), defaultdict(set)
    for i, s in enumerate(seqs):
        for p in zip(s, s[1:]):
            pairs[p] += cnt[i]
            where[p].add(i)
    merges, pieces = [], {}
    while len(merges) < want:
        best = max(pairs.items(), key=lambda kv: (kv[1], kv[0]))
        (a, b), n = best
        if n < 2:
            break
        new = a + b
        if len(new) > MAXLEN or new in pieces:
            del pairs[(a, b)]
            if new in pieces:       # a second way to the same piece: keep the merge, it costs no id
                merges.append((a, b))
                want += 1
            else:
                continue
        else:
            merges.append((a, b))
            pieces[new] = 1
        for i in list(where[(a, b)]):
            s = seqs[i]
            for p in zip(s, s[1:]):
                pairs[p] -= cnt[i]
                if pairs[p] <= 0:
                    del pairs[p]
            out, k = [], 0
            while k < len(s):
                if k + 1 < len(s) and s[k] == a and s[k + 1] == b:
                    out.append(new)
                    k += 2
                else:
                    out.append(s[k])
                    k += 1
            seqs[i] = out
            for p in zip(out, out[1:]):
                if len(p[0]) + len(p[1]) <= MAXLEN:
                    pairs[p] += cnt[i]
                    where[p].add(i)
        pairs.pop((a, b), None)
    vocab = {s: i for i, s in NAMED.items()}
    for i in range(5, 107):
        if i not in NAMED:
            vocab["[multimodal]" if i == 5 else "<unused%d>" % (i - 6)] = i
    runs = []
    for ch, base, lo in (("\n", 107, 1), ("\u2581", 138, 2)):
        for n in range(lo, 32):
            vocab[ch * n] = base + n - lo
        for n in range(31, 1, -1):
            runs += [(ch * k, ch * (n - k)) for k in range(n - 1, 0, -1)]
    for b in range(256):
        vocab["<0x%02X>" % b] = 238 + b
    learned = list(pieces)
    for i, s in zip(free, learned + [c for c in chars]):
        vocab[s] = i
    log("pieces", len(learned), "vocab", len(vocab), "last", learned[-5:])
    left = [i for i in range(VOCAB) if i not in set(vocab.values())]
    for k, i in enumerate(left):
        vocab["<unused%d>" % (99 + k)] = i
    return vocab, runs + merges


def write(path, vocab, merges):
    added = [dict(id=i, content=s, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True) for i, s in NAMED.items()]
    j = dict(version="1.0", truncation=None, padding=None, added_tokens=added,
             normalizer=dict(type="Replace", pattern=dict(String=" "), content="\u2581"),
             pre_tokenizer=dict(type="Split", pattern=dict(String=" "), behavior="MergedWithPrevious", invert=False), post_processor=None,
             decoder=dict(type="Sequence",
                          decoders=[dict(type="Replace", pattern=dict(String="\u2581"), content=" "), dict(type="ByteFallback"),
                                    dict(type="Fuse")]),
             model=dict(type="BPE", dropout=None, unk_token="<unk>", continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=True,
                        byte_fallback=True,
                        ignore_merges=False, vocab=dict(sorted(vocab.items(), key=lambda kv: kv[1])), merges=[list(m) for m in merges]))
    with open(path, "w", encoding="utf-8") as f:
        json.dump(j, f, ensure_ascii=False)


def main(path):
    import dataset      # reads tokenizer.json for its open slots
    r = random.Random(7)
    texts = []
    for _ in range(60000):
        s = dataset.sample(r)
        texts.append(chat_format.text(s.spans or []) + s.reply + s.end)
    vocab, merges = train(texts)
    write(path, vocab, merges)
    tok = Tok(path)
    print("characters a token", sum(map(len, texts[:3000])) / sum(len(tok.encode(x)) for x in texts[:3000]))


if __name__ == "__main__":
    main(sys.argv[1])
