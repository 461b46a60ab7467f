"""The acceptance of drafts by length of the context, for scripts/measure/drafts.py: measures rows, and writes tables, a picture and the
arithmetic of a GPU.

A pass has four drafts wherever it can (least=4:most=4), and every draft step of a sampled method draws (--exact-below off). So the counts say
which share of first, second, third and fourth drafts become tokens, whatever passes cost. The verifier is dense attention.

prose: the pages of docs/; code: the C files of engine/; both go on at the temperature 0.8, with another seed for each answer. copies: the
prompt ends with a passage that occurred before, and greedy decoding goes on with it. needles: questions about a text with facts
(scripts/train/tiny_text.py), answered greedily, without the end of the text: what follows an answer is counted too."""
import datetime
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path += [os.path.join(ROOT, "scripts"), os.path.join(ROOT, "scripts", "train")]
import sleigh_runs  # noqa: E402
import tiny_text  # noqa: E402

ROWS = os.path.join(ROOT, "results", "speculation", "acceptance.jsonl")
N_DRAFTS = 4
METHODS = ["santa-is:S=32", "santa-is:S=64", "santa-is:S=128", "streaming:window=2048"]
INT4_METHODS = ["dense", "santa-is:S=64", "streaming:window=2048"]
KINDS = {"prose": 0.8, "code": 0.8, "needles": 0, "copies": 0}  # temperatures
ANSWERS = {"prose": (3, 96), "code": (3, 96), "needles": (8, 26), "copies": (3, 96)}  # answers, and tokens of each
PASSAGE = 96  # tokens of a passage that the end of a prompt repeats


def sources():
    words = f"least={N_DRAFTS}:most={N_DRAFTS}"
    return [f"ngram:{words}", *(f"self:{words}:attn={m}" for m in METHODS), *(f"self:{words}:attn={m}:weights=int4" for m in INT4_METHODS)]


def short(draft):
    """The name of a source in a table: "santa-is:S=64, int4"."""
    return draft.split("attn=")[-1].replace(":weights=int4", ", int4") if "attn=" in draft else "ngram"


# ---- measuring ----


def run(args, command):
    p = subprocess.run([args.sleigh, *command], capture_output=True, text=True, check=False)
    if p.returncode:
        sys.exit(f"{' '.join(command)}\n{p.stderr}")
    return p.stdout


def ids_of(args, text):
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        return run(args, ["tokenize", "-m", args.model, "--bos", "-f", f.name]).strip().split(",")


def joined(pattern):
    texts = []
    for path in sorted(glob.glob(os.path.join(ROOT, pattern))):
        with open(path, encoding="utf-8") as f:
            texts.append(f.read())
    return "".join(texts)


def beginning(ids, n, what):
    if len(ids) < n:
        sys.exit(f"a prompt of {n} tokens: {what} has only {len(ids)}")
    return ids[:n]


def needle_prompts(args, n, n_answers):
    """Prompts of at most n tokens, one for each question. tiny_text counts tokens of its own model, so the length is adjusted once."""
    words = n
    for _ in range(2):
        context, questions = tiny_text.task_context("needle", random.Random(1), words, n_answers)
        prompts = [ids_of(args, context + question) for question, _ in questions]
        words = int(0.995 * words * n / max(map(len, prompts)))
    if max(map(len, prompts)) > n:
        sys.exit(f"needles: {max(map(len, prompts))} tokens, expected at most {n}")
    return prompts


def prompts_of(args, kind, n):
    n_answers, _ = ANSWERS[kind]
    if kind == "needles":
        return needle_prompts(args, n, n_answers)
    pattern = "engine/*.c" if kind == "code" else "docs/*.md"
    ids = beginning(ids_of(args, joined(pattern)), n, pattern)
    if kind != "copies":
        return [ids] * n_answers
    begins = [(n - 2 * PASSAGE) * (i + 1) // (n_answers + 1) for i in range(n_answers)]
    return [ids[:n - PASSAGE] + ids[b:b + PASSAGE] for b in begins]


def generate(args, kind, prompt, seed, n_ctx, cache, draft):
    _, n_tokens = ANSWERS[kind]
    flags = ["--draft", draft] if draft else []
    with tempfile.NamedTemporaryFile("w", suffix=".ids") as f:
        f.write(",".join(prompt))
        f.flush()
        out = run(args, ["generate", "-m", args.model, "--device", args.on, "-t", str(args.threads), "--ids", f.name, "-n", str(n_tokens), "--ignore-eos",
                         "-o", "json", "--seed", str(seed), "-c", str(n_ctx), "--exact-below", "off", "--temp", str(KINDS[kind]), *cache, *args.flags.split(),
                         *flags])
    return json.loads(out)


def measure_one(args, kind, n, out):
    """Rows of all sources for texts of a kind, whose answers end at n tokens."""
    _, n_tokens = ANSWERS[kind]
    prompts = prompts_of(args, kind, n - n_tokens)
    with tempfile.TemporaryDirectory() as folder:
        cache = ["--prompt-cache", os.path.join(folder, "session")]
        plain = []
        for i, prompt in enumerate(prompts):
            plain.append(generate(args, kind, prompt, i + 1, n, cache, None))
            if i == 0:
                cache.append("--prompt-cache-ro")
        for draft in sources():
            answers = [generate(args, kind, prompt, i + 1, n, cache, draft) for i, prompt in enumerate(prompts)]
            counts = [a["drafts"] for a in answers]
            row = {"date": datetime.date.today().isoformat(), "commit": args.commit, "device": args.device, "model": args.name, "flags": args.flags,
                   "kind": kind, "context": n, "draft": draft, "answers": len(answers)}
            row |= {key: sum(c[key] for c in counts) for key in ("steps", "draft_steps", "drafted", "accepted")}
            row["accepted_at"] = [sum(at) for at in zip(*(c["accepted_at"] for c in counts))]
            row["same"] = sum(all(a[key] == b[key] for key in ("text", "ids", "logits", "stopped")) for a, b in zip(answers, plain))
            out.write(json.dumps(row) + "\n")
            out.flush()
            print(json.dumps(row), file=sys.stderr)


def measure(args):
    os.makedirs(os.path.dirname(ROWS), exist_ok=True)
    with open(ROWS, "a", encoding="utf-8") as out:
        for n in [int(c[:-1]) * 1024 if c.endswith("k") else int(c) for c in args.contexts.split(",")]:
            for kind in args.kinds.split(","):
                measure_one(args, kind, n, out)
