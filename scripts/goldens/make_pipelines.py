#!/usr/bin/env python3
"""Makes tokenizer.json files with every step that Sleigh reads, and the ids of texts that the package tokenizers gives.

    python3 scripts/goldens/make_pipelines.py                                      writes tests/goldens/pipelines.json; needs tokenizers 0.23.3
    python3 scripts/goldens/make_pipelines.py --seed 7 --texts 200 --out FILE      other texts: a test compares them too

A pipeline is a file of tests/vocabularies (base) with other fields (patch, model). With first_added it has the tokens `added` too,
with ids from first_added on. The file holds a hash of each text's ids, not the
ids: FNV-1a (32 bits) of the ids in decimal, with a comma after each. `decoded` is the hash of the text that the ids decode to with
special tokens, for pipelines with a decoder of their own; 0 where the text holds U+FFFD, because Sleigh gives the bytes."""
import argparse
import copy
import json
import os
import random

from tokenizers import Tokenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BEHAVIORS = ["Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"]
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
WORDS = dict(BYTES, use_regex=True)
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|"
          r"\s+")
DECODED = ("pre-words", "norm-", "unknown", "legacy", "metaspace-decoder", "decoder-")
SPLIT_TEXTS = [  # joined at random
    " ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", "a", "b", "o", "e", "ou", "hello", "Hello", "river", "the river", "'s", "don't",
    "I'LL", "1", "12", "345", "7", "q", "z", "Q", "é", "e\u0301", "ö", "é!", "e\u0301!", "你好", "你", "日本語", "\U0001f9a5", "👍🏽",
    "\u0301", "\u200b", "\u00a0", "\u3000", "\u2028", "½", "²", "Ⅻ", "٣", "!", "?", "...", ",", "_", "-", "<", ">", "(x)", "{a: 1}",
    "<tool_", "_x>", "<m>", " <m> ", "<r>", "<r>  <m>", "<lr>", "<w>", " <w> ", "<nw>", " <nw>", "<n>", " b>", "<nl>", " <nl>  ",
    "<s>", "</s>", "<|eot_id|>", "<unk>", "▁", "▁▁", "xy", "\0", "ﬁ", "가각", "नमस्ते", "שלום", "العربية", "def f(x):", "  return x",
    "\u180e", "\ufeff", "ab", "aab", "aeiou", "ⓧ"]


def added(text, **flags):
    token = {"id": 0, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {**token, **flags}


ADDED = [added("<tool_", special=False, normalized=True), added("_x>", special=False), added("<m>", lstrip=True),
         added("<r>", rstrip=True), added("<lr>", lstrip=True, rstrip=True, special=False), added("<w>", single_word=True),
         added("<nw>", single_word=True, normalized=True, special=False), added("<n>", normalized=True),
         added("é!", normalized=True, special=False), added(" b>", special=False), added("<r>  <m>"),
         added("<nl>", normalized=True, lstrip=True, rstrip=True, special=False)]


# ---- steps ----

def sequence(*steps, field="pretokenizers"):
    return {"type": "Sequence", field: list(steps)}


def split(pattern, behavior, invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def digits(individual):
    return {"type": "Digits", "individual_digits": individual}


def punctuation(behavior):
    return {"type": "Punctuation", "behavior": behavior}


def metaspace(scheme, splits=True):
    return {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": splits}


def replace(pattern, content, kind="String"):
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def pre_tokenizers():
    """(name, pre_tokenizer) of byte-level pipelines"""
    yield "words", WORDS
    yield "prefix", dict(WORDS, add_prefix_space=True)
    yield "llama3-prefix", sequence(split(LLAMA3, "Isolated"), dict(BYTES, add_prefix_space=True))
    yield "smollm", sequence(digits(True), WORDS)
    yield "digits", sequence(digits(False), WORDS)
    yield "falcon", sequence(punctuation("Contiguous"), WORDS, digits(False), split("[0-9][0-9][0-9]", "Isolated"))
    yield "deepseek", sequence(split("[\r\n]", "Isolated"), split(r"\s?\p{L}+", "Isolated"), split(r"\s?\p{P}+", "Isolated"),
                               split("[一-龥]+", "Isolated"), digits(True), BYTES)
    yield "whitespace", sequence({"type": "Whitespace"}, BYTES)
    yield "whitespace-split", sequence({"type": "WhitespaceSplit"}, dict(WORDS, add_prefix_space=True))
    yield "nested", sequence(sequence(digits(True)), sequence(sequence(punctuation("Isolated")), BYTES))
    yield "empty-matches", sequence(split(r"a*|\s*(?=b)", "Isolated"), BYTES)
    for behavior in BEHAVIORS:
        yield f"punctuation-{behavior}", sequence(punctuation(behavior), BYTES)
        yield f"digits-or-nothing-{behavior}", sequence(split(r"\d{0,2}", behavior), BYTES)
        for invert in (False, True):
            name = f"{behavior}-{'inverted' if invert else 'plain'}"
            yield f"vowels-{name}", sequence(split("\\d|[aeiou ]", behavior, invert), BYTES)
            yield f"runs-{name}", sequence(split(r"[ab]+|\s+", behavior, invert), digits(True), WORDS)
            yield f"string-{name}", sequence(split("o", behavior, invert, "String"), split(" ", behavior, invert, "String"), BYTES)


def normalizers():
    """(name, normalizer) of byte-level pipelines"""
    yield "nfc", {"type": "NFC"}
    yield "several", sequence({"type": "NFC"}, replace("o", "oo"), replace(r"\s+", " ", "Regex"), field="normalizers")
    yield "strip", {"type": "Strip", "strip_left": True, "strip_right": True}
    yield "strip-left", sequence({"type": "Strip", "strip_left": True, "strip_right": False}, replace("e", "E"), field="normalizers")
    yield "prepend", {"type": "Prepend", "prepend": "xy"}
    yield "strip-prepend", sequence({"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "xy"},
                                    field="normalizers")
    yield "none", sequence(field="normalizers")


def small_model(alphabet, without, words, **fields):
    """A vocabulary of single characters without some of them, and of words that merges make of them."""
    vocab = {c: i for i, c in enumerate(["<u>"] + [c for c in alphabet if c not in without])}
    merges = []
    for word in words:
        for k in range(2, len(word) + 1):
            if word[:k] not in vocab:
                vocab[word[:k]] = len(vocab)
                merges.append([word[:k - 1], word[k - 1]])
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": "", "end_of_word_suffix": "",
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": merges, **fields}


def byte_pipelines():
    base = {"base": "bpe"}
    for name, step in pre_tokenizers():
        yield {**base, "name": f"pre-{name}", "patch": {"pre_tokenizer": step}}
    for name, step in normalizers():
        yield {**base, "name": f"norm-{name}", "patch": {"normalizer": step}}
    yield {**base, "name": "dropout-0", "patch": {}, "model": {"ignore_merges": False, "dropout": 0.0}}
    alphabet = [chr(c) for c in [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x144)]]
    words = ["Ġthe", "river", "hello", "ou", "ĠĠ", "Ġ12"]
    for name, fields in (("missing-bytes", {}), ("unknown", {"unk_token": "<u>"}), ("unknown-fused", {"unk_token": "<u>", "fuse_unk": True})):
        model = small_model(alphabet, "qzQ7ÃĊĢď", words, **fields)
        yield {**base, "name": name, "patch": {"model": model, "post_processor": None, "added_tokens": []}}


def char_pipelines():
    base = {"base": "llama"}
    legacy = sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"), field="normalizers")
    for scheme in ("always", "first", "never"):
        for splits in (True, False):
            yield {**base, "name": f"metaspace-{scheme}-{splits}", "patch": {"normalizer": None, "pre_tokenizer": metaspace(scheme, splits)}}
        yield {**base, "name": f"metaspace-decoder-{scheme}",
               "patch": {"normalizer": None, "pre_tokenizer": metaspace(scheme), "decoder": metaspace(scheme)}}
        yield {**base, "name": f"metaspace-in-{scheme}", "patch": {
            "normalizer": None, "pre_tokenizer": sequence(digits(True), metaspace(scheme), punctuation("MergedWithNext"))}}
    yield {**base, "name": "old-metaspace", "patch": {
        "normalizer": None, "pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False, "prepend_scheme": "never"}}}
    yield {**base, "name": "words-metaspace", "patch": {
        "normalizer": None, "pre_tokenizer": sequence({"type": "WhitespaceSplit"}, metaspace("first"))}}
    yield {**base, "name": "legacy", "patch": {}}
    yield {**base, "name": "legacy-nfc", "patch": {"normalizer": sequence(legacy["normalizers"][0], {"type": "NFC"},
                                                                         legacy["normalizers"][1], field="normalizers")}}
    for name, fields in (("not-fused", {"fuse_unk": False}), ("no-fallback", {"byte_fallback": False}), ("ignore-merges", {"ignore_merges": True}),
                         ("no-fallback-not-fused", {"byte_fallback": False, "fuse_unk": False}),
                         ("nothing-unknown", {"byte_fallback": False, "unk_token": None})):
        yield {**base, "name": name, "patch": {}, "model": fields}
    for fuse in (True, False):  # some bytes have a token
        alphabet = [chr(c) for c in [*range(33, 127), 0x2581]] + [f"<0x{b:02X}>" for b in range(256) if b not in (0xF0, 0xE4, 0xC3)]
        model = small_model(alphabet, "qzQ7", ["▁the", "river", "hello", "▁▁"], unk_token="<u>", byte_fallback=True, fuse_unk=fuse)
        yield {**base, "name": f"some-bytes-{fuse}", "patch": {"model": model, "post_processor": None, "added_tokens": []}}
    crossing = small_model([chr(c) for c in [*range(33, 127), 0x2581]], "", ["e▁r", "▁the"], unk_token="<u>")
    yield {**base, "name": "merges-across-words", "patch": {"model": crossing, "post_processor": None, "added_tokens": []}}
    blanks = replace("▁", " ")
    decoders = {"strip-each": (blanks, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
                "regex": (replace("▁+", " ", "Regex"), replace("e", "E"), {"type": "ByteFallback"}, {"type": "Fuse"})}
    for name, steps in decoders.items():
        yield {**base, "name": f"decoder-{name}", "patch": {"decoder": sequence(*steps, field="decoders")}}


# ---- the file ----

def base_file(pipeline):
    with open(os.path.join(ROOT, "tests", "vocabularies", pipeline["base"], "tokenizer.json"), encoding="utf-8") as f:
        return json.load(f)


def patched(pipeline):
    data = base_file(pipeline)
    data.update(copy.deepcopy(pipeline["patch"]))
    data["model"].update(pipeline.get("model", {}))
    first = pipeline.get("first_added")
    data["added_tokens"] += [{**t, "id": first + i} for i, t in enumerate(ADDED)] if first is not None else []
    return data


def with_added(pipeline):
    """The pipeline with ADDED, with the ids that tokenizers gives them: one after another."""
    out = {**pipeline, "name": pipeline["name"] + "+added", "first_added": 0}
    ids = Tokenizer.from_str(json.dumps(patched(out)))
    out["first_added"] = ids.token_to_id(ADDED[0]["content"])
    assert [ids.token_to_id(t["content"]) for t in ADDED] == [out["first_added"] + i for i in range(len(ADDED))]
    return out


def pipelines():
    for pipeline in [*byte_pipelines(), *char_pipelines()]:
        yield pipeline
        yield with_added(pipeline)


def texts(seed, n):
    r = random.Random(seed)
    out = ["", *SPLIT_TEXTS]
    ranges = [(1, 0x2FF), (0x300, 0x2FFF), (0x3000, 0xD7FF), (0xE000, 0x1FFFF)]
    while len(out) < n:
        parts = [r.choice(SPLIT_TEXTS) if r.random() < 0.85 else chr(r.randint(*r.choice(ranges))) for _ in range(r.randint(1, 9))]
        out.append("".join(parts))
    return out[:n]


def fnv(data):
    h = 2166136261
    for byte in data:
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return f"{h:08x}"


def dump(value):
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def hashes(pipeline, strings):
    tokenizer = Tokenizer.from_str(json.dumps(patched(pipeline)))
    ids, decoded = "", ""
    for encoding in tokenizer.encode_batch(strings, add_special_tokens=False):
        text = tokenizer.decode(encoding.ids, skip_special_tokens=False)
        ids += fnv("".join(f"{i}," for i in encoding.ids).encode())
        decoded += "00000000" if "\ufffd" in text else fnv(text.encode())
    return {**pipeline, "ids": ids, **({"decoded": decoded} if pipeline["name"].startswith(DECODED) else {})}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, default=200)
    parser.add_argument("--out", default=os.path.join(ROOT, "tests", "goldens", "pipelines.json"))
    args = parser.parse_args()
    strings = texts(args.seed, args.texts)
    rows = [hashes(p, strings) for p in pipelines()]
    with open(args.out, "w", encoding="utf-8") as f:
        f.write(f'{{"texts":{dump(strings)},\n"added":{dump(ADDED)},\n"pipelines":[\n' + ",\n".join(map(dump, rows)) + "]}\n")
    print(f"{len(rows)} pipelines, {len(strings)} texts")


if __name__ == "__main__":
    main()
