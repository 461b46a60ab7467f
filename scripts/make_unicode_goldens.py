#!/usr/bin/env python3
"""Makes tests/goldens/unicode.json: what the Python package tokenizers does with every code point.

    python3 scripts/make_unicode_goldens.py  needs tokenizers==0.23.3

A result is a list of hashes (FNV-1a, 32 bits), one for each 4096 code points without the surrogates.
  properties  one byte for each code point: 1 if it has the property, which a pre-tokenizer shows
  patterns    the pattern, and the hashes of its pieces: for each code point c and each context of CONTEXTS, one byte for each
              character of the text: 1 if a piece begins there
  nfc         the bytes of the NFC form of each text of NFC_CONTEXTS, and a zero byte"""
import json
import os

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "tests/goldens/unicode.json")
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


def main():
    if tokenizers.__version__ != "0.23.3":
        raise SystemExit(f"tokenizers {tokenizers.__version__}, expected 0.23.3")
    root = {"properties": properties()}
    with open(OUT, "w", encoding="ascii") as f:
        json.dump(root, f, separators=(",", ":"))
        f.write("\n")
    print(OUT)


if __name__ == "__main__":
    main()
