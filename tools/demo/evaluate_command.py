#!/usr/bin/env python3
"""Asks a model through the real command and counts exact answers: the C++ program against the recipe's own figures.

Usage: evaluate_command.py [--gem build/gem] [--model FILE] [--heldout tests/data/demo/heldout.jsonl]

Every line of the held-out file has a task, a rendered prompt and the accepted replies, end marker included. Decoding is
greedy. Prints right/asked for each task and in all, beside the reference's figures (heldout-accuracy.json).
"""
import argparse
import collections
import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--gem", default=str(ROOT / "build" / "gem"))
    ap.add_argument("--model")
    ap.add_argument("--heldout", type=pathlib.Path, default=ROOT / "tests" / "data" / "demo" / "heldout.jsonl")
    a = ap.parse_args()
    cases = [json.loads(line) for line in a.heldout.read_text().splitlines()]
    command = [a.gem, "run", "--jsonl", "--temperature", "0", "--max-tokens", "500"] + (["-m", a.model] if a.model else [])
    asked = "".join(json.dumps({"prompt": c["prompt"]}) + "\n" for c in cases)
    done = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    answers = [json.loads(line)["text"] for line in done.stdout.splitlines()]
    if len(answers) != len(cases):
        sys.exit("expected %d answers, got %d" % (len(cases), len(answers)))
    right, total = collections.Counter(), collections.Counter()
    for case, answer in zip(cases, answers):
        for group in (case["task"], "all"):
            total[group] += 1
            right[group] += answer in case["accept"]
        if answer not in case["accept"]:
            print("[%s] want %r\n  got  %r" % (case["task"], case["accept"][0][:200], answer[:200]))
    reference = json.loads((a.heldout.parent / "heldout-accuracy.json").read_text())["weights as trained, f32 arithmetic"]
    print("%-32s %9s %9s" % ("task", "gem", "reference"))
    for group in sorted(total, key=lambda g: (g == "all", g)):
        print("%-32s %4d/%-4d %4d/%-4d" % (group, right[group], total[group], *reference.get(group, [0, 0])))
    print("all: %.4f, reference %.4f" % (right["all"] / total["all"], reference["all"][0] / reference["all"][1]))


if __name__ == "__main__":
    main()
