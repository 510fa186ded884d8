"""Worker processes that generate, encode and pack rows of tokens into shared memory.

Each worker owns a ring of rows; row n of the stream is row n // workers of worker n % workers. So the stream depends
on the seed and the number of workers alone, every row is used once, and a worker that is ahead waits.
"""
import multiprocessing as mp
import random
import time
from multiprocessing import shared_memory

import numpy as np

import dataset
from tokenizer import NAMED, Tok

ROW = 4096                  # tokens
PROMPT_WEIGHT, HISTORY_SHARE = 5, 50        # percent: of a prompt token; of a reply token's weight for an earlier model turn
OPEN_DOCUMENTS = 12         # documents kept back while a row is filled first-fit
ID = {s: i for i, s in NAMED.items()}


def encode(tok, s):
    """Token ids and loss weights (percent) of a sample. Prompt and reply are encoded apart, as a server does."""
    weight = dataset.TASKS[dataset.family(s.task)][2]
    if s.spans is None:
        ids, weights = [ID["<bos>"]], [0]
    else:
        ids, weights = [], []
        # history never shows thoughts, so with thinking on it would teach to leave them out
        history = PROMPT_WEIGHT if "<|think|>" in s.spans[0][0] else weight * HISTORY_SHARE // 100
        for text, kind in s.spans:
            e = tok.encode(text)
            ids += e
            weights += [history if kind else PROMPT_WEIGHT] * len(e)
        weights[0] = 0
    e = tok.encode(s.reply) + [ID[s.end]]
    return ids + e, weights + [weight] * len(e)


def fill(worker, names, workers, rows, tok_path, seed, filled, used, stop):
    """One worker: rows of whole documents, first-fit, padded with <pad> at weight 0."""
    tok, r = Tok(tok_path), random.Random(seed * 1000 + worker)
    blocks = [shared_memory.SharedMemory(name=n) for n in names]
    ids = np.ndarray((workers, rows, ROW), np.int16, blocks[0].buf)[worker]
    weights = np.ndarray((workers, rows, ROW), np.uint8, blocks[1].buf)[worker]
    waiting, n = [], 0
    while not stop.value:
        if n - used[worker] >= rows:
            time.sleep(.005)
            continue
        x, w, kept, misses = [], [], [], 0
        while len(x) < ROW - 24 and misses < OPEN_DOCUMENTS:
            d = waiting.pop() if waiting else encode(tok, dataset.sample(r))
            if len(d[0]) <= ROW - len(x):
                x += d[0]
                w += d[1]
            else:
                misses += 1
                if len(d[0]) <= ROW and len(kept) < OPEN_DOCUMENTS:
                    kept.append(d)
        waiting = kept + waiting
        row = n % rows
        ids[row, :len(x)], weights[row, :len(x)] = x, w
        ids[row, len(x):], weights[row, len(x):] = ID["<pad>"], 0
        n += 1
        filled[worker] = n


class Pool:
    def __init__(self, tok_path, workers, seed, rows=128):
        """rows: length of a worker's ring, that is how far it may be ahead."""
        ctx = mp.get_context("fork")
        self.workers, self.rows, self.drawn = workers, rows, 0
        size = workers * rows * ROW
        self.memory = [shared_memory.SharedMemory(create=True, size=size * 2), shared_memory.SharedMemory(create=True, size=size)]
        self.ids = np.ndarray((workers, rows, ROW), np.int16, self.memory[0].buf)
        self.weights = np.ndarray((workers, rows, ROW), np.uint8, self.memory[1].buf)
        self.filled, self.used = ctx.Array("q", workers, lock=False), ctx.Array("q", workers, lock=False)
        self.stop = ctx.Value("i", 0, lock=False)
        names = [m.name for m in self.memory]
        self.processes = [ctx.Process(target=fill, args=(k, names, workers, rows, tok_path, seed, self.filled, self.used, self.stop),
                                      daemon=True) for k in range(workers)]
        for p in self.processes:
            p.start()

    def draw(self, n):
        """The next n rows of the stream: ids [n, ROW] int16, weights [n, ROW] uint8 (percent)."""
        ids, weights = np.empty((n, ROW), np.int16), np.empty((n, ROW), np.uint8)
        for i in range(n):
            worker, k = self.drawn % self.workers, self.drawn // self.workers
            while self.filled[worker] <= k:
                if not self.processes[worker].is_alive():
                    raise RuntimeError("a data worker died")
                time.sleep(.002)
            ids[i], weights[i] = self.ids[worker, k % self.rows], self.weights[worker, k % self.rows]
            self.used[worker] = k + 1
            self.drawn += 1
        return ids, weights

    def close(self):
        self.stop.value = 1
        for p in self.processes:
            p.join(2)
            if p.is_alive():
                p.terminate()
        self.ids = self.weights = None
        for m in self.memory:
            m.close()
            m.unlink()
