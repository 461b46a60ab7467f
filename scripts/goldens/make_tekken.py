#!/usr/bin/env python3
"""Makes tests/vocabularies/tekken and tests/goldens/tekken.json: Mistral's tekken.json, and what mistral-common computes with it.

    python3 scripts/goldens/make_tekken.py  needs mistral-common==1.13.1; tests do not

tests/vocabularies/tekken/tekken.json  a small file in the form of version 13: it names its special tokens, and more ranks than it
                                       uses. The ranks are those of tests/vocabularies/bpe/ranks.model.
tests/vocabularies/tekken/vectors.jsonl  {text, ids}; the same ids without "special_tokens", as in version 3
tests/goldens/tekken.json  for the published tekken_240718.json of the package mistral-common: special tokens, and
                           vectors [text, ids] of 240 texts, decoded: [ids, text]"""
import base64
import json
import os
import random
import tempfile

import mistral_common
from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SMALL = os.path.join(ROOT, "tests/vocabularies/tekken")
PUBLISHED = os.path.join(os.path.dirname(mistral_common.__file__), "data/tekken_240718.json")
N_SPECIAL, N_RANKS = 30, 500
NAMES = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
         "[TOOL_CALLS]", "[IMG]", "<pad>", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"]


def write(path, rows):
    with open(path, "w", encoding="utf-8") as f:
        f.write(rows)
    print(path, os.path.getsize(path))


def small_files():
    with open(os.path.join(ROOT, "tests/vocabularies/bpe/ranks.model"), encoding="ascii") as f:
        tokens = [line.split()[0] for line in f]
    tokens = [base64.b64decode(t) for t in tokens]
    tokens = [bytes([b]) for b in range(256)] + [t for t in tokens if len(t) > 1]
    vocab = []
    for rank, token in enumerate(tokens):
        try:
            text = token.decode()
        except UnicodeDecodeError:
            text = None
        vocab.append({"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": text})
    with open(PUBLISHED, encoding="utf-8") as f:
        pattern = json.load(f)["config"]["pattern"]
    config = {"pattern": pattern, "num_vocab_tokens": len(vocab), "default_vocab_size": N_SPECIAL + N_RANKS,
              "default_num_special_tokens": N_SPECIAL, "version": "v13"}
    special = [{"rank": i, "token_str": name, "is_control": name not in ("[THINK]", "[/THINK]")} for i, name in enumerate(NAMES)]
    write(os.path.join(SMALL, "tekken.json"), json.dumps({"config": config, "vocab": vocab, "special_tokens": special}, indent=0))
    with tempfile.TemporaryDirectory() as folder:
        old = os.path.join(folder, "tekken.json")
        write(old, json.dumps({"config": {**config, "version": "v3"}, "vocab": vocab}))
        return Tekkenizer.from_file(os.path.join(SMALL, "tekken.json")), Tekkenizer.from_file(old)


def texts():
    rng = random.Random(7)
    words = ("The old River's bank I'll they've HTTPServer camelCase it\u2019s caf\u00e9 cafe\u0301 \u0440\u0435\u043a\u0430 \u03c0\u03bf\u03c4\u03b1\u03bc\u03cc\u03c2 "
             "\u0646\u0647\u0631 \u0928\u0926\u0940 \u0e41\u0e21\u0e48 \u6cb3\u5ddd \u304b\u308f \uac15 \U0001f600\U0001f44d\U0001f3fd \U0001d7d8 \u0663\u0664 \u00b2\u00bc "
             "1234567 3.14 a1b2 foo_bar() {x: [1,2]}; // </a> https://a.b/c?d=e \u2026 \u20ac5 [INST] </s> <s> \u01c5 \u00a0 \u3000 \u2028 \x00 \ufffd \u1c89 \ua7cd "
             "don't WE'RE \n\n/ //\n").split(" ")
    blanks = [" "] * 10 + ["", "  ", "    ", "\n", "\n\n", "\r\n", "\t"]
    return ["", " ", "a", "\n", "hello world"] + ["".join(rng.choice(words) + rng.choice(blanks) for _ in range(1 + i % 9)) for i in range(235)]


def main():
    os.makedirs(SMALL, exist_ok=True)
    new, old = small_files()
    all_texts = texts()
    rows = [json.dumps({"text": t, "ids": new.encode(t, False, False)}, separators=(",", ":"), ensure_ascii=False)
            for t in all_texts[:120]]
    assert [old.encode(t, True, True)[1:-1] for t in all_texts] == [new.encode(t, False, False) for t in all_texts]
    write(os.path.join(SMALL, "vectors.jsonl"), "\n".join(rows) + "\n")
    real = Tekkenizer.from_file(PUBLISHED)
    names = [real.id_to_piece(i) for i in range(24)] + [real.id_to_piece(999)]
    rng = random.Random(8)
    decoded = []
    for text in all_texts[5:45]:
        ids = [1, *real.encode(text, False, False), 4, rng.randrange(1000, 131072), 2]
        decoded.append([ids, real.decode(ids), real.decode(ids, SpecialTokenPolicy.KEEP)])
    decoded = [row for row in decoded if "\ufffd" not in row[1]]
    root = {"n_words": real.n_words, "bos": real.bos_id, "eos": real.eos_id, "specials": names,
            "vectors": [[t, real.encode(t, False, False)] for t in all_texts], "decoded": decoded}
    write(os.path.join(ROOT, "tests/goldens/tekken.json"), json.dumps(root, separators=(",", ":"), ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
