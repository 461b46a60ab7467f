"""Byte-level BPE in Llama 3's shape: the split into pre-tokens, a trainer, and a tokenizer that reads and writes Hugging Face's files.

This module needs only the standard library. The trainer chooses the merges that the tokenizers library chooses. If the trainer gets no
pre-token with a digit, no merge contains a digit, and every digit is a token."""

import collections
import functools
import heapq
import json
import re
import sys
import unicodedata

LLAMA3_PAT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIALS = ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]


def pattern_for_re(letters, numbers, blanks):
    """LLAMA3_PAT for Python's re module, which has no \\p{L}. Each argument is the inside of a character class."""
    return re.compile(
        rf"(?:'[s\u017fS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n{letters}{numbers}]?[{letters}]+|[{numbers}]{{1,3}}|"
        rf" ?[^{blanks}{letters}{numbers}]+[\r\n]*|[{blanks}]*[\r\n]+|[{blanks}]+(?![^{blanks}])|[{blanks}]+"
    )


ASCII_PAT = pattern_for_re("A-Za-z", "0-9", r"\t-\r ")


@functools.lru_cache(None)
def unicode_pattern():
    ranges = {"L": [], "N": []}
    for code in range(sys.maxunicode + 1):
        found = ranges.get(unicodedata.category(chr(code))[0])
        if found and found[-1][1] == code - 1:
            found[-1][1] = code
        elif found is not None:
            found.append([code, code])
    letters, numbers = ("".join(f"{chr(a)}-{chr(b)}" for a, b in ranges[kind]) for kind in "LN")
    return pattern_for_re(letters, numbers, r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000")


def pre_tokens(text):
    return (ASCII_PAT if text.isascii() else unicode_pattern()).findall(text)


def has_digit(pre_token):
    """Pre-tokens with a digit consist of characters of the category N."""
    return unicodedata.category(pre_token[0])[0] == "N"


# ---- the byte-level alphabet


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


# ---- the trainer


def train_merges(words, n_new):
    """Returns merges [(bytes, bytes)] that add n_new tokens to the 256 bytes. `words` is {pre-token as bytes: count}.

    Each merge joins the pair of neighbours with the highest count. The first pair wins among equal counts: pairs are ordered by the ids of
    their parts, bytes by their character in the byte-level alphabet. Fewer merges come back if no pair is left."""
    tokens = [bytes([b]) for b in sorted(range(256), key=lambda b: B2U[b])]
    id_of = {t: i for i, t in enumerate(tokens)}
    spelled = [[id_of[w[i : i + 1]] for i in range(len(w))] for w in words]
    counts = list(words.values())
    pair_count, where = collections.Counter(), collections.defaultdict(set)  # a pair is a << 32 | b
    for w, (ids, count) in enumerate(zip(spelled, counts)):
        for a, b in zip(ids, ids[1:]):
            pair_count[a << 32 | b] += count
            where[a << 32 | b].add(w)
    heap = [(-count, pair) for pair, count in pair_count.items()]
    heapq.heapify(heap)
    merges = []
    while heap and len(tokens) < 256 + n_new:
        count, pair = heapq.heappop(heap)
        if -count != pair_count.get(pair, 0):  # counts fall without a change of the heap
            if pair_count.get(pair, 0) > 0:
                heapq.heappush(heap, (-pair_count[pair], pair))
            continue
        if count == 0:
            break
        a, b = pair >> 32, pair & 0xFFFFFFFF
        merges.append((tokens[a], tokens[b]))
        joined = id_of.setdefault(tokens[a] + tokens[b], len(tokens))
        if joined == len(tokens):
            tokens.append(tokens[a] + tokens[b])
        risen = set()
        for w in where.pop(pair):
            old, count = spelled[w], counts[w]
            spelled[w] = new = joined_pair(old, a, b, joined)
            for x, y in zip(old, old[1:]):
                pair_count[x << 32 | y] -= count
            for x, y in zip(new, new[1:]):
                pair_count[x << 32 | y] += count
                if x == joined or y == joined:
                    where[x << 32 | y].add(w)
                    risen.add(x << 32 | y)
        del pair_count[pair]
        for p in risen:
            heapq.heappush(heap, (-pair_count[p], p))
    return merges


def joined_pair(ids, a, b, joined):
    """ids, in which `joined` stands in place of each a that precedes b."""
    out, i, n = [], 0, len(ids)
    while i < n:
        if ids[i] == a and i + 1 < n and ids[i + 1] == b:
            out.append(joined)
            i += 2
        else:
            out.append(ids[i])
            i += 1
    return out


# ---- the tokenizer


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
        for m in pre_tokens(text):
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

    def hf_files(self, max_len):
        """Returns {name: content} of the files of a Hugging Face folder that describe a tokenizer."""
        return {
            "tokenizer.json": self.hf_json(),
            "tokenizer_config.json": self.hf_config(max_len),
            "special_tokens_map.json": {"bos_token": SPECIALS[0], "eos_token": SPECIALS[1]},
        }

    @staticmethod
    def load(path):
        with open(path, encoding="utf-8") as f:
            j = json.load(f)
        ms = [m.split(" ") if isinstance(m, str) else m for m in j["model"]["merges"]]
        sp = j["added_tokens"]
        return Tok([(u2b(a), u2b(b)) for a, b in ms], max(t["id"] for t in sp) + 1, len(sp))
