"""The acceptance of drafts by length of the context, for scripts/measure/drafts.py: measures rows, and writes tables, a picture and the
arithmetic of a GPU.

A pass has four drafts wherever it can (least=4:most=4), and every draft step of a sampled method draws (--exact-below off). So the counts say
which share of first, second, third and fourth drafts become tokens, whatever passes cost. The verifier is dense attention.

prose: the pages of docs/; code: the C files of engine/; both go on at the temperature 0.8, at the same place for all lengths, with another
seed for each answer. copies: the prompt ends with a passage that occurred before, and greedy decoding goes on with it. needles: questions about
a text with facts (scripts/train/tiny_text.py), answered greedily, without the end of the text: what follows an answer is counted too."""
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


def ending(ids, n, end, what):
    """BOS and the n - 1 tokens before token `end`: contexts of all lengths go on at the same place of the text."""
    if len(ids) < end:
        sys.exit(f"a prompt that ends at token {end}: {what} has only {len(ids)}")
    return ids[:1] + ids[end - n + 1:end]


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
    n_answers, n_tokens = ANSWERS[kind]
    if kind == "needles":
        return needle_prompts(args, n, n_answers)
    pattern = "engine/*.c" if kind == "code" else "docs/*.md"
    ids = ending(ids_of(args, joined(pattern)), n, args.end - n_tokens, pattern)
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
            for kind in args.kinds.split(",") if args.kinds else KINDS:
                measure_one(args, kind, n, out)


# ---- the page ----

# Times of a model of Llama-3.1-8B's shape on one H200, in ms (commit 56c1e9ab, 1 December 2026), by sequences x tokens. PASSES: of a bf16 pass with dense
# attention, by rows of each sequence (bench draft). DRAFT_STEPS: of a decode step with the method and the weights of a source:
# bench decode -m models/llama-3.1-8b --load-format dummy --device cuda -n 32 -r 3 --fill random --exact-below off [--weights int4] -d .. -b .. --attn ..
PASSES = {"1 x 30k": {1: 4.78, 2: 4.86, 3: 4.98, 5: 5.32}, "6 x 30k": {1: 9.68, 2: 10.35, 3: 11.09, 5: 13.10},
          "1 x 127k": {1: 7.87, 2: 7.93, 3: 7.96, 5: 8.91}}
DRAFT_STEPS = {"1 x 30k": {"santa-is:S=64, int4": 2.22, "streaming:window=2048, int4": 1.75, "santa-is:S=64": 4.37},
               "6 x 30k": {"santa-is:S=64, int4": 3.25, "streaming:window=2048, int4": 2.33, "santa-is:S=64": 5.34},
               "1 x 127k": {"santa-is:S=64, int4": 2.76, "streaming:window=2048, int4": 1.75, "santa-is:S=64": 4.94}}
CONTEXTS = {"1 x 30k": 32768, "6 x 30k": 32768, "1 x 127k": 61440}  # of the acceptance that a setting takes
LONGER = {"1 x 30k": 1.15, "6 x 30k": 1.25}  # what a pass of 5 rows should take at most, in passes of one row
EXPECTED = {"1 x 30k": 1.5, "6 x 30k": 1.65, "1 x 127k": 1.65}  # before the measurement, with the acceptance ASSUMED and santa-is:S=64, int4
ASSUMED = 0.92  # an acceptance of every draft, for comparison


def load():
    with open(ROWS, encoding="utf-8") as f:
        return [json.loads(line) for line in f]


def first(row):
    """The share of first drafts that were accepted."""
    return row["accepted_at"][0] / row["draft_steps"] if row["draft_steps"] else None


def step_tokens(row, n_drafts):
    """Tokens of a pass with n_drafts drafts."""
    return 1 + sum(row["accepted_at"][:n_drafts]) / row["draft_steps"]


def gain(setting, ms, tokens_of):
    """(speed-up, drafts) of the best number of drafts. tokens_of: of a pass with a number of drafts."""
    passes = PASSES[setting]
    return max((tokens_of(k) * passes[1] / (k * ms + passes[k + 1]), k) for k in (1, 2, 4))


def answer(rows):
    own = [r for r in rows if r["model"] == "prose" and r["kind"] == "prose" and short(r["draft"]) == "santa-is:S=64"]
    shares = ", ".join(f"{100 * first(r):.0f}% at {r['context'] // 1024}k" for r in own)
    return f"Of four drafts a pass with `santa-is:S=64` on prose, the first is accepted in {shares} tokens."


def table(rows):
    contexts = sorted({r["context"] for r in rows})
    text = ["| text | drafts | " + " | ".join(f"{c // 1024}k: first, tokens" for c in contexts) + " |", "|---" * (2 + len(contexts)) + "|"]
    for kind in KINDS:
        for draft in sources():
            cells = []
            for c in contexts:
                row = next((r for r in rows if (r["kind"], r["context"], r["draft"]) == (kind, c, draft)), None)
                cell = "-" if not row or not row["draft_steps"] else f"{100 * first(row):.0f}%, {step_tokens(row, N_DRAFTS):.2f}"
                if row and draft.startswith("ngram"):
                    cell += f" ({100 * row['draft_steps'] / row['steps']:.0f}% of passes)"
                cells.append(cell)
            if set(cells) != {"-"}:
                text.append(f"| {kind} | `{short(draft)}` | " + " | ".join(cells) + " |")
    return text


def arithmetic(rows):
    text = ["## What this gives on an H200", "",
            "No model that we have both accepts drafts and has the size of an 8B model, so this table is arithmetic, not a measurement. It takes measured",
            "times of an 8B shape on one H200 and the acceptance that the prose model has at 32k tokens, or at 60k for the rows of 127k. A pass is a bf16",
            "pass with dense attention ([docs/drafts.md](../docs/drafts.md)); a draft is a decode step with the method and the weights of the source",
            "(`bench decode --exact-below off --fill random`, commit 56c1e9ab). The speed-up is (tokens of a pass) x (plain step) / (drafts x draft time +",
            "pass time) for the best of 1, 2 and 4 drafts, whose number is in brackets. The last column takes an acceptance of",
            f"{ASSUMED:.2f} for every draft instead, as the 8B model may have: rounding to 4 bits changes a model of 6 million weights more.", "",
            f"| sequences x tokens | drafts | time of a draft | prose | code | needles | copies | acceptance {ASSUMED:.2f} |", "|---|---|---|---|---|---|---|---|"]
    assumed = {}
    for setting, steps in DRAFT_STEPS.items():
        for source, ms in steps.items():
            cells = []
            for kind in KINDS:
                row = next((r for r in rows if (r["model"], r["context"], r["kind"], short(r["draft"])) == ("prose", CONTEXTS[setting], kind, source)), None)
                cells.append("{:.2f} ({})".format(*gain(setting, ms, lambda k, row=row: step_tokens(row, k))) if row else "-")
            best = gain(setting, ms, lambda k: sum(ASSUMED**i for i in range(k + 1)))
            if source == "santa-is:S=64, int4":
                assumed[setting] = best[0]
            text.append(f"| {setting} | `{source}` | {ms:.2f} ms | " + " | ".join(cells) + " | {:.2f} ({}) |".format(*best))
    expected = ", ".join(f"{EXPECTED[s]:.2f} and {assumed[s]:.2f} at {s}" for s in PASSES)
    longer = ", ".join(f"{PASSES[s][5] / PASSES[s][1]:.2f} times at {s} (we wanted at most {LONGER[s]:.2f})" for s in LONGER)
    return text + ["", f"With `santa-is:S=64, int4` and an acceptance of {ASSUMED:.2f} we expected before the measurement, and find: {expected}.",
                   f"A pass of 5 rows of each sequence takes longer than a pass of one row: {longer}.",
                   "The linear layers of 30 rows take longer than reading their weights.",
                   "Where the speed-up is below 1, plain decoding is faster. The measured choice then makes no drafts."]


def picture_of(rows, model):
    """The name of a model's picture; None: its rows have one length."""
    if len({r["context"] for r in rows if r["model"] == model}) < 2:
        return None
    return f"speculation{'' if model == 'prose' else '-' + model.split('-')[0].lower()}.svg"


def where(rows):
    """Lines about the devices of the rows, if there are several, and about the lengths that a table lacks."""
    kinds = {}  # by model and context: of all rows, and of the rows of a GPU
    for r in rows:
        of_all, of_gpu = kinds.setdefault((r["model"], r["context"] // 1024), (set(), set()))
        of_all.add(r["kind"])
        if r["device"].startswith("cuda"):
            of_gpu.add(r["kind"])
    on_gpu = [f"{model} at {n}k" + ("" if of_gpu == of_all else f" ({', '.join(sorted(of_gpu))})")
              for (model, n), (of_all, of_gpu) in sorted(kinds.items()) if of_gpu]
    text = [f"Measured on a GPU: {', '.join(on_gpu)}; the rest on CPUs."] if on_gpu else []
    return text + ["At 60k tokens, and with the real model at 8k, the answers begin at other places of the text, so compare these columns with the others with care.",
                   "Only the embedded model (tiny), which was trained on needles alone, takes 128k tokens. Other lengths that a table lacks would take too long on a CPU."]


def page():
    rows = load()
    n_same, n = sum(r["same"] for r in rows), sum(r["answers"] for r in rows)
    text = ["## Acceptance by length of the context", "",
            f"`scripts/measure/drafts.py acceptance` kept these rows in `results/speculation/acceptance.jsonl`. Every pass has up to {N_DRAFTS} drafts, and every",
            "draft step of a sampled method draws (`--exact-below off`), so the figures do not depend on times. prose: the pages of docs/; code: the C",
            "files of engine/; both go on at the temperature 0.8, at the same place for all lengths. copies: a passage of the prompt goes on, greedily.",
            "needles: questions about facts in a generated text, greedily. first: the share of passes whose first draft was accepted. tokens: of a",
            f"pass, at most {1 + N_DRAFTS}; passes at the end of an answer or of a page have fewer drafts. Most cells have 40 to 110 passes,",
            "so a share has a standard error of up to 6%. int4: drafts also read copies of the weights in 4 bits.",
            f"{n_same} of {n} answers have the text, the ids and the logits of plain decoding.",
            *where(rows), ""]
    for model in dict.fromkeys(r["model"] for r in rows):
        own, picture = [r for r in rows if r["model"] == model], picture_of(rows, model)
        flags = own[0]["flags"]
        text += [f"### {model}", ""]
        if flags:
            text += [f"The model runs with `{flags}`: its file has 4 bits already, which copies cannot be made of. Rounding these numbers to 4 bits once more loses",
                     "much ([quantised.md](quantised.md)), so the rows of int4 say little about models in bf16.", ""]
        if picture:
            text += [f"![the share of first drafts that are accepted, by context]({picture})", ""]
        text += [*table(own), ""]
    return text + arithmetic(rows)


def draw(args, folder):
    rows = load()
    for model in dict.fromkeys(r["model"] for r in rows):
        panels, picture = [], picture_of(rows, model)
        for kind in KINDS:
            curves = {}
            for draft in sources():
                points = sorted((r["context"], 100 * first(r)) for r in rows if (r["model"], r["kind"], r["draft"]) == (model, kind, draft) and r["draft_steps"])
                if points:
                    curves[short(draft)] = points
            if curves:
                panels.append((kind, "tokens of context", "first drafts accepted, %", "log-x lines ticks", curves))
        if picture:
            sleigh_runs.draw(args.sleigh, os.path.join(folder, picture), f"{model}: acceptance of drafts by length", panels)
