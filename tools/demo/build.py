"""Train, measure and export the demo model and its assistant: python3 build.py [--out DIR] [model] [assistant]

model      trains the model, writes gem-demo.gguf, heldout.jsonl and model-results.json (and .md)
assistant  trains the assistant on gem-demo.gguf (of --out, else the shipped one), writes mtp-gem-demo.gguf and
           assistant-results.json
Needs one GPU with about 30 GB, PyTorch 2.11 and ten processor cores.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TOKENIZER = os.path.join(HERE, "tokenizer.json")
QUESTIONS = os.path.join(ROOT, "tests", "data", "demo", "questions.jsonl")
MODEL, ASSISTANT = "gem-demo.gguf", "mtp-gem-demo.gguf"
WORKERS = 10
STEPS, MAX_SECONDS = 4200, 390
ASSISTANT_STEPS, ASSISTANT_SECONDS, ASSISTANT_HIDDEN, ASSISTANT_FFN = 4600, 460, 128, 256
SEED = 1
begin = time.time()


def log(*args):
    print("[%.0f]" % (time.time() - begin), *args, flush=True)


def save_json(path, value):
    with open(path, "w", encoding="utf-8") as f:
        json.dump(value, f, indent=1, ensure_ascii=False)


def read_lines(path):
    if not os.path.exists(path):
        return []
    with open(path, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def load(state):
    import model as M
    m = M.Gemma4()
    m.load_state_dict(state)
    return m.cuda().eval()


def build_model(out, steps, max_seconds, seed):
    from pool import ROW, Pool
    pool = Pool(TOKENIZER, WORKERS, seed)       # forks its workers before CUDA is up
    import cases
    import evaluate
    import export
    import model as M
    import quantise
    import train
    from tokenizer import Tok
    m = M.Gemma4().reset(seed).cuda()
    log("parameters %d" % sum(p.numel() for p in m.parameters()))
    n = train.run(m, pool, steps, max_seconds, log)
    pool.close()
    log("steps %d, %.0f M tokens" % (n, n * 32 * ROW / 1e6))
    export.write_model(os.path.join(out, MODEL), m.c, m.state())
    stored, expected = export.read_state(os.path.join(out, MODEL)), quantise.rounded(m.state())
    if not all((stored[k] == expected[k]).all() for k in expected):
        raise RuntimeError("the file does not hold the rounded weights")
    tok = Tok(TOKENIZER)
    filed = cases.file_cases()
    cases.write_cases(filed, os.path.join(out, "heldout.jsonl"))
    questions = read_lines(QUESTIONS)
    results = {}
    for column, weights, show in (("Q4_0", stored, 3), ("f32", m.state(), 0)):
        net = load(weights)
        results[column] = evaluate.measure(net, tok, log, show)
        results["heldout.jsonl, " + column] = evaluate.score(net, tok, filed, log)
        results[column]["questions.jsonl"] = evaluate.answered(net, tok, questions, log)
        save_json(os.path.join(out, "model-results.json"), results)
        with open(os.path.join(out, "model-results.md"), "w", encoding="utf-8") as f:
            f.write(cases.markdown(results) + "\n")
    log("\n" + cases.markdown(results))


def build_assistant(out, steps, max_seconds, seed):
    from pool import Pool
    pool = Pool(TOKENIZER, WORKERS, seed + 100)
    import assistant as A
    import cases
    import evaluate
    import export
    import quantise
    from tokenizer import Tok
    tok = Tok(TOKENIZER)
    m = load(export.read_state(os.path.join(out, MODEL)))
    a = A.Assistant(m.c, ASSISTANT_HIDDEN, ASSISTANT_FFN).reset(seed).cuda()
    log("parameters %d" % sum(p.numel() for p in a.parameters()))
    n = A.teach(a, m, pool, steps, max_seconds, log)
    pool.close()
    log("steps %d" % n)
    state = {k: v.detach().float().cpu() for k, v in a.state_dict().items()}
    export.write_assistant(os.path.join(out, ASSISTANT), m.c, ASSISTANT_HIDDEN, ASSISTANT_FFN, state)
    asked = [c for c in cases.held_out(.15, seed=4242) if len(tok.encode(c["prompt"])) < 1500]
    evaluate.reply_to(m, tok, asked)
    results = {}
    for column, weights in (("Q4_0", quantise.rounded(state)), ("f32", state)):
        a.load_state_dict(weights)
        results[column] = A.acceptance(a, m, asked)
        for label, r in results[column].items():
            log("%s %-8s depth %s   tokens a round %s" % (column, label, " ".join("%.3f" % v for v in r["depth"]), r["round"]))
        save_json(os.path.join(out, "assistant-results.json"), results)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*", default=["model", "assistant"], help="model, assistant; both if none is given")
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "demo"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--assistant-steps", type=int, default=ASSISTANT_STEPS)
    parser.add_argument("--seed", type=int, default=SEED)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    if len(args.stages) > 1:        # a process each: the data workers have to fork before CUDA is up
        options = sys.argv[1:]
        for stage in args.stages:
            subprocess.run([sys.executable, os.path.abspath(__file__), stage] + [x for x in options if x not in args.stages], check=True)
    elif args.stages == ["model"]:
        build_model(args.out, args.steps, MAX_SECONDS, args.seed)
    else:
        if not os.path.exists(os.path.join(args.out, MODEL)):
            shutil.copy(os.path.join(ROOT, "models", MODEL), args.out)
        build_assistant(args.out, args.assistant_steps, ASSISTANT_SECONDS, args.seed)


if __name__ == "__main__":
    main()
