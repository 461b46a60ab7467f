#!/usr/bin/env python3
"""Writes tests/goldens/blanks.json: where tokenizers of SentencePiece put a blank.

    python3 scripts/goldens/make_blanks.py       needs transformers 5.24.0, protobuf, sentencepiece 0.2.3, mistral-common 1.13.1

A row is a model file and a tokenizer_config.json. It holds a hash of each text's ids, as scripts/goldens/make_pipelines.py describes it,
and a hash of the text that transformers makes of the ids with special tokens. Rows with `mistral` are files of mistral-common, whose
encoder parses no special tokens. In transformers, `legacy` true belongs to its Mistral folders: its class for Llama folders does
not double the blank of a text that begins with one, which SentencePiece does."""
import json
import os
import shutil
import tempfile

os.environ["TRANSFORMERS_VERBOSITY"] = "error"
import make_pipelines
import mistral_common
from mistral_common.tokens.tokenizers.sentencepiece import SentencePieceTokenizer
from transformers import AutoTokenizer

ROOT = make_pipelines.ROOT
MISTRAL = os.path.join(os.path.dirname(mistral_common.__file__), "data")
FILES = ["tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "mistral_instruct_tokenizer_240323.model.v3",
         "mistral_instruct_tokenizer_241114.model.v7"]
CONFIGS = [("mistral", {}), ("mistral", {"legacy": True}), ("mistral", {"legacy": False}), ("llama", {"legacy": False}),
           ("llama", {"legacy": False, "add_prefix_space": True}), ("llama", {"legacy": True, "add_prefix_space": False}),
           ("llama", {"legacy": False, "add_prefix_space": False})]


def row(name, encodings, decoded, **fields):
    ids = "".join(make_pipelines.fnv("".join(f"{i}," for i in e).encode()) for e in encodings)
    texts = "".join("00000000" if "\ufffd" in t else make_pipelines.fnv(t.encode()) for t in decoded)
    return {"name": name, **fields, "ids": ids, "decoded": texts}


def of_transformers(model_type, config, texts):
    settings = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", **config}
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(os.path.join(ROOT, "tests", "vocabularies", "llama", "tokenizer.model"), folder)
        for name, value in (("tokenizer_config.json", settings), ("config.json", {"model_type": model_type})):
            with open(os.path.join(folder, name), "w", encoding="utf-8") as f:
                json.dump(value, f)
        tokenizer = AutoTokenizer.from_pretrained(folder)
    encodings = [tokenizer(t, add_special_tokens=False)["input_ids"] for t in texts]
    decoded = [tokenizer.decode(e, clean_up_tokenization_spaces=False) for e in encodings]
    return row(f"{model_type} {json.dumps(config)}", encodings, decoded, config=settings)


def of_mistral(name, texts):
    tokenizer = SentencePieceTokenizer(os.path.join(MISTRAL, name))
    encodings = [tokenizer.encode(t, bos=False, eos=False) for t in texts]
    return row(name, encodings, map(tokenizer.decode, encodings), mistral=name)


def main():
    texts = [t.replace("<m>", "<s>").replace("<r>", "</s>") for t in make_pipelines.texts(2, 320)]
    rows = [of_transformers(*c, texts) for c in CONFIGS] + [of_mistral(name, texts) for name in FILES]
    with open(os.path.join(ROOT, "tests", "goldens", "blanks.json"), "w", encoding="utf-8") as f:
        f.write(f'{{"texts":{make_pipelines.dump(texts)},\n"rows":[\n' + ",\n".join(map(make_pipelines.dump, rows)) + "]}\n")


if __name__ == "__main__":
    main()
