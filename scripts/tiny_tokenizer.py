"""The embedded model's tokenizer: byte-level BPE in Llama 3's shape, trained on the generator's own text.

tiny_documents.py encodes text with this tokenizer. `train_tiny.py --tokenizer new` trains a new one with the tokenizers library."""

import collections
import json
import random
import re

from tiny_text import ADJS, JOBS, KEY_ADJS, KEY_NOUNS, NAMES, NOUNS, PLACES, SURN, coded_word, filler_sentence, noise_unit, story_sentences

KADJ = [ADJS.index(w) for w in KEY_ADJS]
KNOUN = [NOUNS.index(w) for w in KEY_NOUNS]

LLAMA3_PAT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The same pattern for ASCII text, for Python's re module. The corpus is ASCII.
ASCII_PAT = re.compile(
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\nA-Za-z0-9]?[A-Za-z]+|[0-9]{1,3}|"
    r" ?[^\sA-Za-z0-9]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    re.ASCII,
)
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def byte_unicode_map():
    bs = list(range(33, 127)) + list(range(161, 173)) + list(range(174, 256))
    cs = bs[:]
    n = 0
    for b in range(256):
        if b not in bs:
            bs.append(b)
            cs.append(256 + n)
            n += 1
    return {b: chr(c) for b, c in zip(bs, cs)}


B2U = byte_unicode_map()
U2B = {u: b for b, u in B2U.items()}


def b2u(bs):
    return "".join(B2U[b] for b in bs)


def u2b(s):
    return bytes(U2B[c] for c in s)


def bpe_train_lib(words, n_new):
    from tokenizers import Tokenizer, models, trainers, pre_tokenizers, Regex

    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3_PAT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tr = trainers.BpeTrainer(
        vocab_size=256 + n_new, special_tokens=[], show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tk.train_from_iterator((w.decode() for w, c in words.items() for _ in range(c)), tr)
    ms = json.loads(tk.to_str())["model"]["merges"]
    ms = [m.split(" ") if isinstance(m, str) else m for m in ms]
    return [(u2b(a), u2b(b)) for a, b in ms]


class Tok:
    """Ids 0 to 255 are bytes. Then follows one id for each distinct merge result. Special tokens are at the end of the vocabulary."""

    def __init__(self, merges, vocab_size, n_special=16):
        self.merges = merges
        self.vocab_size = vocab_size
        self.vocab = {bytes([b]): b for b in range(256)}
        for a, b in merges:
            if a + b not in self.vocab:
                self.vocab[a + b] = len(self.vocab)
        self.n_special = n_special
        self.specials = SPECIALS + ["<|reserved_special_token_%d|>" % i for i in range(n_special - len(SPECIALS))]
        base = vocab_size - n_special
        assert len(self.vocab) <= base, (len(self.vocab), base)
        self.filler_ids = list(range(len(self.vocab), base))  # only if a small corpus has too few pairs
        self.sid = {s: base + i for i, s in enumerate(self.specials)}
        self.bos, self.eos, self.soh, self.eoh, self.eot = [self.sid[s] for s in SPECIALS]
        self.inv = {i: t for t, i in self.vocab.items()}
        self.rank = {m: r for r, m in reversed(list(enumerate(merges)))}
        self.cache = {}

    def bpe(self, w):
        if w in self.vocab:
            return [self.vocab[w]]  # ignore_merges = true, as in Llama 3
        t = [bytes([b]) for b in w]
        while len(t) > 1:
            r, j = min((self.rank.get(p, 1 << 30), j) for j, p in enumerate(zip(t, t[1:])))
            if r == 1 << 30:
                break
            a, b = self.merges[r]
            u = []
            j = 0
            while j < len(t):
                if j + 1 < len(t) and t[j] == a and t[j + 1] == b:
                    u.append(a + b)
                    j += 2
                else:
                    u.append(t[j])
                    j += 1
            t = u
        return [self.vocab[x] for x in t]

    def encode(self, text):
        out = []
        c = self.cache
        for m in ASCII_PAT.findall(text):
            ids = c.get(m)
            if ids is None:
                ids = self.bpe(m.encode())
                if len(c) < 400000:
                    c[m] = ids
            out += ids
        return out

    def decode(self, ids):
        s = []
        buf = b""
        inv_s = {i: s for s, i in self.sid.items()}
        for i in ids:
            i = int(i)
            if i in inv_s:
                s.append(buf.decode("utf-8", "replace"))
                buf = b""
                s.append(inv_s[i])
            else:
                buf += self.inv.get(i, b"?")
        s.append(buf.decode("utf-8", "replace"))
        return "".join(s)

    # ---- HF files

    def hf_json(self):
        vocab = {b2u(t): i for t, i in self.vocab.items()}
        for i in self.filler_ids:
            vocab["<|unused_%d|>" % i] = i

        def st(s):
            return {"SpecialToken": {"id": s, "type_id": 0}}

        def sq(x, t):
            return {"Sequence": {"id": x, "type_id": t}}

        bos = SPECIALS[0]
        return {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": [
                {
                    "id": i,
                    "content": s,
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": False,
                    "special": True,
                }
                for s, i in self.sid.items()
            ],
            "normalizer": None,
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": LLAMA3_PAT}, "behavior": "Isolated", "invert": False},
                    {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
                ],
            },
            "post_processor": {
                "type": "Sequence",
                "processors": [
                    {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True},
                    {
                        "type": "TemplateProcessing",
                        "single": [st(bos), sq("A", 0)],
                        "pair": [st(bos), sq("A", 0), {"SpecialToken": {"id": bos, "type_id": 1}}, sq("B", 1)],
                        "special_tokens": {bos: {"id": bos, "ids": [self.bos], "tokens": [bos]}},
                    },
                ],
            },
            "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": True,
                "vocab": vocab,
                "merges": [b2u(a) + " " + b2u(b) for a, b in self.merges],
            },
        }

    CHAT_TEMPLATE = (
        "{{- bos_token }}{%- for message in messages %}"
        "{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}"
        "{%- endfor %}{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}"
    )

    def hf_config(self, max_len):
        return {
            "added_tokens_decoder": {
                str(i): {
                    "content": s,
                    "lstrip": False,
                    "normalized": False,
                    "rstrip": False,
                    "single_word": False,
                    "special": True,
                }
                for s, i in self.sid.items()
            },
            "bos_token": SPECIALS[0],
            "eos_token": SPECIALS[1],
            "chat_template": self.CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_input_names": ["input_ids", "attention_mask"],
            "model_max_length": max_len,
            "tokenizer_class": "PreTrainedTokenizerFast",
        }

    @staticmethod
    def load(path):
        j = json.load(open(path))
        ms = [m.split(" ") if isinstance(m, str) else m for m in j["model"]["merges"]]
        sp = j["added_tokens"]
        return Tok([(u2b(a), u2b(b)) for a, b in ms], max(t["id"] for t in sp) + 1, len(sp))


# the wording of every document kind
T_INTRO_N = (
    "Some special magic numbers are hidden in the text below. Remember them, because there will be questions about them later."
)
T_INTRO_Q = "Read the notes below. There will be questions about people and places."
T_INTRO_V = "The text below sets some variables. Keep track of their values."
T_INTRO_F = "Read the coded words below and count how often each one appears."
T_INTRO_M = "Read the text below. There will be questions about it later."
T_END = " This is the end of the text.\n"
T_NEEDLE = " One of the special magic numbers for%s is:"
T_Q_A = "What is the special magic number for%s mentioned in the text?"
T_Q_B = "What is the special magic number for%s?"
T_Q_B2 = "The special magic number for%s is:"
T_ANS = " Answer:"
T_Q_MV = "What are all the special magic numbers for%s mentioned in the text?"
T_Q_MQ = "What are the special magic numbers for%s mentioned in the text?"
T_Q_V = "Which variables hold"
T_Q_F = "Which three coded words appear most often?"

LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def bpe_corpus(seed=1):
    """Returns {pre-token bytes: count} of a sample of the corpus, without digits, variable names and most coded words."""
    r = random.Random(seed)
    cnt = collections.Counter()

    def add(s, k=1):
        for m in ASCII_PAT.findall(s):
            if not any(ch.isdigit() for ch in m):
                cnt[m] += k

    for _ in range(6000):
        add(" " + filler_sentence(r))
    for _ in range(700):
        add(" ".join(story_sentences(r)) + "\n")
    for _ in range(400):
        add(" " + " ".join(noise_unit(r)))
    for _ in range(3000):
        key = "%s-%s" % (
            (ADJS[r.choice(KADJ)], NOUNS[r.choice(KNOUN)]) if r.random() < 0.8 else (r.choice(ADJS), r.choice(NOUNS))
        )
        add(T_NEEDLE % (" " + key) + "; " + key)
        add(" " + key, 4)
        add(T_Q_A % (" " + key) + T_ANS + " ." + "\n")
        add(T_Q_B % (" " + key) + " " + T_Q_B2 % (" " + key))
    for _ in range(1500):
        n1, n2 = (r.choice(NAMES) + " " + r.choice(SURN) for _ in range(2))
        add(" %s works in %s as a %s." % (n1, r.choice(PLACES), r.choice(JOBS)))
        add(" %s lives with %s. %s lives in %s." % (n1, n2, n2, r.choice(PLACES)))
        add("Where does %s work? Answer: %s.\n" % (n1, r.choice(PLACES)))
        add("Where does %s live? Answer: with %s in %s.\n" % (n1, n2, r.choice(PLACES)))
        add("What is the job of %s? Answer: %s.\n" % (n1, r.choice(JOBS)))
    for t in (T_INTRO_N, T_INTRO_Q, T_INTRO_V, T_INTRO_F, T_INTRO_M, T_END, T_Q_V, T_Q_MV, T_Q_MQ, T_Q_F):
        add(t, 300)
    add(" VAR =", 3000)
    add(" VAR = VAR", 1500)
    add(" ...", 300)
    add("\n\n", 1000)
    for _ in range(60):
        add(" " + coded_word(r))
    # count^0.7, so that the words of the templates do not take the whole small vocabulary
    return {w.encode(): max(1, int(round(c**0.7))) for w, c in cnt.items()}


def train_tokenizer(vocab_size, n_special):
    return Tok(bpe_train_lib(bpe_corpus(), vocab_size - 256 - n_special), vocab_size, n_special)
