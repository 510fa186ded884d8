"""The mix of tasks, and the split into training and held-out prompts.

python3 dataset.py [seed] [n] prints n samples of every task and the speed of generation.
"""
import random
import sys
import time
import zlib

import chat_format
from task_agent import t_agent
from task_chat import t_chat
from task_json import t_json
from task_numbers import t_arith, t_count
from task_retrieval import t_multi, t_needle
from task_text import t_string
from task_tools import t_tool
from task_writing import t_code, t_story

# generator, share of samples, weight of a reply token in percent
TASKS = {"chat": (t_chat, 11, 120), "arith": (t_arith, 25, 150), "count": (t_count, 4, 70), "string": (t_string, 30, 200),
         "needle": (t_needle, 3.5, 200), "tool": (t_tool, 22, 120),
         "json": (t_json, 11, 120), "story": (t_story, 4.5, 40), "code": (t_code, 4, 100), "multi": (t_multi, 10, 150),
         "agent": (t_agent, 3, 150)}
FREE = ("chat", "tool_none", "code", "story", "count")      # few different prompts: not held out
NAMES, SHARES = list(TASKS), [t[1] for t in TASKS.values()]


def family(task):
    """string_copy -> string."""
    return task.split("_")[0]


def is_held_out(s):
    """One prompt in fifty, by a hash of its end, never trains the model."""
    if s.task in FREE or s.spans is None:
        return False
    return zlib.crc32((s.spans[-1][0] + "".join(t for t, _ in s.spans[-4:])).encode()) % 50 == 0


def sample(r, task=None, held_out=False):
    while True:
        s = TASKS[task or r.choices(NAMES, SHARES)[0]][0](r)
        if is_held_out(s) == held_out or s.task in FREE:
            return s


def main():
    r = random.Random(int(sys.argv[1]) if len(sys.argv) > 1 else 0)
    for task in TASKS:
        for _ in range(int(sys.argv[2]) if len(sys.argv) > 2 else 3):
            s = sample(r, task)
            print("[%s]" % s.task, chat_format.text(s.spans or [])[-700:] + "=>" + s.reply + s.end)
    start = time.time()
    n = sum(len(chat_format.text(s.spans or [])) + len(s.reply) for s in (sample(r) for _ in range(5000)))
    print("%.0f characters a second, %.0f a sample" % (n / (time.time() - start), n / 5000))


if __name__ == "__main__":
    main()
