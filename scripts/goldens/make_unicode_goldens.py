#!/usr/bin/env python3
"""Makes tests/goldens/unicode.json: what the Python package tokenizers does with every code point.

    python3 scripts/goldens/make_unicode_goldens.py  needs tokenizers==0.23.3 and unicodedataplus==16.0.0

A result is a list of hashes (FNV-1a, 32 bits), one for each 4096 code points without the surrogates.
  properties  one byte for each code point: 1 if it has the property, which a pre-tokenizer shows
  nfc         the bytes of form C of one text, which has each character before U+0301, and between U+035D and U+0334
And form C of other texts, with the hash of its bytes:
  nfc_pairs   the two characters of each decomposition of Unicode 16, a pair on each line
  nfc_texts   400 texts of marks, letters with marks, and parts of Hangul syllables"""
import json
import os
import random

import tokenizers
import unicodedataplus as ucd
from tokenizers import Regex, normalizers, pre_tokenizers

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests/goldens/unicode.json")
BLOCK = 4096
POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
BLOCKS = [[c for c in POINTS if c // BLOCK == b] for b in range(0x110000 // BLOCK)]


def hashed(data):
    h = 0x811C9DC5
    for byte in data:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


def hashes(bytes_of_block):
    return [hashed(bytes_of_block(block)) for block in BLOCKS if block]


def begins(pre, text):
    """One byte for each character of the text: 1 if a piece begins there."""
    out = bytearray(len(text))
    for _, (first, _) in pre.pre_tokenize_str(text):
        out[first] = 1
    return out


def removed(pre, block):  # the characters that the pre-tokenizer leaves out
    text = "".join(f"a{chr(c)}" for c in block) + "a"
    out = bytearray(b"\1" * len(text))
    for _, (first, last) in pre.pre_tokenize_str(text):
        out[first:last] = bytes(last - first)
    return out[1::2]


def isolated(pre, block):  # the characters that are a piece of their own
    return begins(pre, "".join(f"a{chr(c)}" for c in block) + "a")[1::2]


def joined(pre, block):  # the characters that stay in the piece of a letter
    return bytes(1 - x - y for x, y in zip(isolated(pre, block), removed(pre, block)))


def properties():
    return {"white": hashes(lambda block: removed(pre_tokenizers.WhitespaceSplit(), block)),
            "word": hashes(lambda block: joined(pre_tokenizers.Whitespace(), block)),
            "numeric": hashes(lambda block: isolated(pre_tokenizers.Digits(individual_digits=True), block)),
            "punctuation": hashes(lambda block: isolated(pre_tokenizers.Punctuation(), block))}


def form_c(text):
    return normalizers.NFC().normalize_str(text)


def nfc():
    pairs = []
    for c in POINTS:
        parts = ucd.decomposition(chr(c)).split()
        if len(parts) == 2 and parts[0][0] != "<":
            pairs.append("".join(chr(int(x, 16)) for x in parts))
    rng = random.Random(9)
    marks = [chr(c) for c in POINTS if ucd.combining(chr(c))]
    parts = [x for pair in pairs for x in pair] + [form_c(pair) for pair in pairs]
    hangul = [chr(c) for c in (0x1100, 0x1112, 0x1113, 0x1161, 0x1175, 0x1176, 0x11A7, 0x11A8, 0x11C2, 0x11C3, 0xAC00, 0xAC01, 0xD7A3)]
    texts = ["".join(rng.choice(rng.choice((marks, marks, parts, parts, parts, hangul, "aAe"))) for _ in range(rng.randint(2, 9)))
             for _ in range(400)]
    joined = "\n".join(pairs)
    return {"nfc": hashes(lambda block: form_c("".join(f"{chr(c)}\u0301x\u035d{chr(c)}\u0334" for c in block)).encode()),
            "nfc_pairs": [joined, hashed(form_c(joined).encode())],
            "nfc_texts": [[text, hashed(form_c(text).encode())] for text in texts]}


def main():
    if tokenizers.__version__ != "0.23.3":
        raise SystemExit(f"tokenizers {tokenizers.__version__}, expected 0.23.3")
    root = {"properties": properties(), **nfc()}
    with open(OUT, "w", encoding="utf-8") as f:
        json.dump(root, f, separators=(",", ":"), ensure_ascii=False)
        f.write("\n")
    print(OUT)


if __name__ == "__main__":
    main()
