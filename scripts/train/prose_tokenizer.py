#!/usr/bin/env python3
"""Trains the prose model's tokenizer on the books of scripts/train/prose_corpus.py, and writes the books as token ids.

    prose_tokenizer.py --corpus DIR --out models/prose train     tokenizer.json, tokenizer_config.json, special_tokens_map.json
    prose_tokenizer.py --corpus DIR --out models/prose encode    DIR/train.u16, DIR/test.u16, DIR/tokens.json
    prose_tokenizer.py self-test [--sleigh FILE] [--library]

The tokenizer is a byte-level BPE with Llama 3's pattern and 16 special tokens (scripts/train/bpe.py). A digit is always a token. The same books
give the same tokenizer. `self-test --library` compares merges and ids with the tokenizers library.

train.u16 and test.u16 hold little-endian uint16 ids: the books of the split in the order of their names, each followed by the
end-of-text token. tokens.json says where each book lies: {"train": [{"name", "first", "n_tokens"}, ...], "test": [...], "tokenizer"}.
n_tokens does not count the end-of-text token. "tokenizer" is the SHA-256 of tokenizer.json."""

import argparse
import array
import collections
import functools
import glob
import hashlib
import json
import multiprocessing
import os
import random
import re
import subprocess
import sys
import tempfile
import textwrap
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../measure"))
import bpe
from measured_parts import expect

VOCABULARY, N_SPECIAL = 8192, 16
PIECE = 1 << 16  # characters, approximately
CUT = re.compile(r"\n(?=[^\s\x1c-\x1f])")  # a pre-token ends here, whatever stands before and after


def pieces(text, size=PIECE):
    """Cuts the text at ends of lines. The tokens of the pieces are the tokens of the text."""
    at = 0
    while at < len(text):
        cut = CUT.search(text, min(at + size, len(text)))
        end = cut.end() if cut else len(text)
        yield text[at:end]
        at = end


def books(corpus, split):
    """Returns [(name, path)] in the order of names."""
    paths = sorted(glob.glob(os.path.join(glob.escape(corpus), split, "*.txt")))
    if not paths:
        raise SystemExit(f"prose_tokenizer: error: {os.path.join(corpus, split)}: found no *.txt, expected books (scripts/train/prose_corpus.py)")
    return [(os.path.basename(p)[: -len(".txt")], p) for p in paths]


def read_book(path):
    with open(path, encoding="utf-8", newline="") as f:
        try:
            return f.read()
        except UnicodeDecodeError as e:
            raise SystemExit(f"prose_tokenizer: error: {path}: byte {e.start} is not UTF-8") from None


def write_file(path, data):
    """Writes the whole file or nothing."""
    with open(path + ".part", "wb") as f:
        f.write(data)
    os.replace(path + ".part", path)


def write_json(path, data):
    write_file(path, (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode())


# ---- train


def count_pre_tokens(paths, sample):
    """Counts the pre-tokens without digits in about `sample` characters. Every book gives the same share, in pieces spread over the book."""
    total, seen, taken, counts = sum(os.path.getsize(p) for p in paths), 0, 0, collections.Counter()
    for path in paths:
        for piece in pieces(read_book(path)):
            if taken * total <= seen * sample:
                counts.update(bpe.pre_tokens(piece))
                taken += len(piece)
            seen += len(piece)
    return {word.encode(): n for word, n in counts.items() if not bpe.has_digit(word)}, taken


def train(corpus, out, vocabulary=VOCABULARY, sample=50_000_000, context=65536):
    begin = time.monotonic()
    words, taken = count_pre_tokens([p for _, p in books(corpus, "train")], sample)
    print(f"{len(words)} words in {taken / 1e6:.1f} million characters, {time.monotonic() - begin:.0f} s", flush=True)
    tok = bpe.Tok(bpe.train_merges(words, vocabulary - 256 - N_SPECIAL), vocabulary, N_SPECIAL)
    os.makedirs(out, exist_ok=True)
    for name, data in tok.hf_files(context).items():
        write_json(os.path.join(out, name), data)
    print(f"{len(tok.merges)} merges, {time.monotonic() - begin:.0f} s", flush=True)


# ---- encode


@functools.cache
def tokenizer_of(path):
    return bpe.Tok.load(path)


def encode_book(job):
    """Returns the ids of a book as the bytes of a file, and the bytes of its text."""
    tokenizer, path = job
    tok, text, ids = tokenizer_of(tokenizer), read_book(path), array.array("H")
    for piece in pieces(text):
        ids.extend(tok.encode(piece))
    if sys.byteorder == "big":
        ids.byteswap()
    return ids.tobytes(), len(text.encode())


def encode(corpus, out, processes=2):
    tokenizer, begin = os.path.join(out, "tokenizer.json"), time.monotonic()
    eos = tokenizer_of(tokenizer).eos.to_bytes(2, "little")
    with open(tokenizer, "rb") as f:
        index = {"tokenizer": hashlib.sha256(f.read()).hexdigest()}
    index_path = os.path.join(corpus, "tokens.json")
    if os.path.exists(index_path):
        os.remove(index_path)  # the old index does not match the files that follow
    with multiprocessing.Pool(processes) as pool:
        for split in ("train", "test"):
            found, path, n, n_bytes = books(corpus, split), os.path.join(corpus, split + ".u16"), 0, 0
            index[split] = []
            with open(path + ".part", "wb") as f:
                for (name, _), (ids, size) in zip(found, pool.imap(encode_book, [(tokenizer, p) for _, p in found])):
                    f.write(ids + eos)
                    index[split].append({"name": name, "first": n, "n_tokens": len(ids) // 2})
                    n, n_bytes = n + len(ids) // 2 + 1, n_bytes + size
            os.replace(path + ".part", path)
            print(f"{split}: {len(found)} books, {n_bytes} bytes, {n} tokens, {n_bytes / n:.3f} bytes per token, "
                  f"{time.monotonic() - begin:.0f} s", flush=True)  # fmt: skip
    write_json(index_path, index)


# ---- self-test


HARD = (
    "It's WE'LL they'\u017f don\u2019t na\u00efve \u00c4pfel 12345 \u00bd\u00b2\u0663 \u4e00\u4e8c\u4e09 \u2167 a\u00a0b \u2003 c\x85d\x1ce\u200bf "
    "\U0001f600\U0001d400 --- ...\r\n\r\n  x\t\ty   \n\n   \n z<|end_of_text|> e\u0301 \u0928\u093f \n \n\nend  "
)


def test_corpus(folder):
    """Two splits with other stories of tiny_text.py: paragraphs, wrapped paragraphs, lists, code; and a book on which tokenizers differ."""
    import tiny_text

    some = [chr(c) for c in (*range(9, 14), *range(28, 128), 0x85, 0xA0, *range(0xC0, 0x180), 0x660, 0x4E00, 0x2003, 0x2028, 0x1F600)]
    for split in ("train", "test"):
        os.makedirs(os.path.join(folder, split))
        for i in range(12):
            rng, parts = random.Random(f"{split} {i}"), []
            while len(parts) < 60:
                story = " ".join(tiny_text.story_sentences(rng))
                parts += [story, textwrap.fill(story, 78), "\n".join("* " + tiny_text.filler_sentence(rng) for _ in range(3))]
                parts.append(f"{len(parts)} {rng.choice(tiny_text.NOUNS).upper()}")
                parts.append("    for (i = 0; i < %d; i++)\n        x[i] += 1;" % rng.randrange(999))
            text = "\n\n".join(rng.sample(parts, len(parts)))
            if i == 11:
                text = HARD + "".join(rng.choice(some) for _ in range(20000)) + HARD * 3
            write_file(os.path.join(folder, split, f"book{i:02d}.txt"), text.encode())


def test_files(folder, model):
    """decode(ids) of every book is the book; the index tells where the book lies; pieces have the tokens of the whole text."""
    tok, n_split = tokenizer_of(os.path.join(model, "tokenizer.json")), 0
    with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as f:
        index = json.load(f)
    for split in ("train", "test"):
        with open(os.path.join(folder, split + ".u16"), "rb") as f:
            data = f.read()
        ids = [int.from_bytes(data[i : i + 2], "little") for i in range(0, len(data), 2)]
        for book in index[split]:
            text, first, n = read_book(os.path.join(folder, split, book["name"] + ".txt")), book["first"], book["n_tokens"]
            expect(tok.decode(ids[first : first + n]) == text, f"{split}/{book['name']}: the ids are not those of the text")
            expect(ids[first + n] == tok.eos, f"{split}/{book['name']}: no end-of-text token follows")
            whole = tok.encode(text)
            expect(whole == [i for p in pieces(text, 100) for i in tok.encode(p)], f"{book['name']}: pieces have other tokens")
            n_split += len(list(pieces(text, 100)))
        expect(sum(b["n_tokens"] + 1 for b in index[split]) == len(ids), f"{split}: the index does not cover the file")
    expect(n_split > 500, "the books were not cut")
    digits = [t for t in tok.vocab if len(t) > 1 and any(chr(b).isdigit() for b in t if b < 128)]
    expect(not digits, f"merges with digits: {digits[:3]}")


def test_library(folder, model):
    """The trainer and the tokenizer agree with the tokenizers library."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    splitter = [pre_tokenizers.Split(Regex(bpe.LLAMA3_PAT), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    words, _ = count_pre_tokens([p for _, p in books(folder, "train")], 10**9)
    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.Sequence(splitter)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + 1500, show_progress=False, initial_alphabet=alphabet)
    theirs.train_from_iterator((w.decode() for w, n in words.items() for _ in range(n)), trainer)
    merges = [m.split(" ") if isinstance(m, str) else m for m in json.loads(theirs.to_str())["model"]["merges"]]
    expect([(bpe.u2b(a), bpe.u2b(b)) for a, b in merges] == bpe.train_merges(words, 1500), "the trainer has other merges than the library")
    tokenizer = os.path.join(model, "tokenizer.json")
    tok, whole = tokenizer_of(tokenizer), Tokenizer.from_file(tokenizer)
    expect(whole.encode("a").ids == [tok.bos, *tok.encode("a")], "the library puts no <|begin_of_text|> first")
    with open(tokenizer, encoding="utf-8") as f:
        plain = Tokenizer.from_str(json.dumps(dict(json.load(f), added_tokens=[])))  # the strings of special tokens are plain text
    for _, path in books(folder, "test"):
        text = read_book(path)
        expect(plain.encode(text, add_special_tokens=False).ids == tok.encode(text), f"{path}: bpe.py and the library differ")


def test_sleigh(sleigh, folder, model):
    """`sleigh tokenize` has the ids of the files."""
    with open(os.path.join(folder, "test.u16"), "rb") as f:
        data = f.read()
    with open(os.path.join(folder, "tokens.json"), encoding="utf-8") as f:
        index = json.load(f)["test"]
    for book in index:
        path = os.path.join(folder, "test", book["name"] + ".txt")
        run = subprocess.run([sleigh, "tokenize", "-m", model, "--plain", "-f", path], capture_output=True, text=True)
        expect(run.returncode == 0, run.stderr.strip())
        ids = array.array("H", map(int, run.stdout.replace("\n", "").split(",")))
        first = 2 * book["first"]
        if sys.byteorder == "big":
            ids.byteswap()
        expect(ids.tobytes() == data[first : first + 2 * book["n_tokens"]], f"{path}: `sleigh tokenize` has other ids")


def test_faults(folder):
    """Bad input stops a run with one message that names the file."""
    bad = os.path.join(folder, "bad")
    for data, message in ((None, "expected books"), (b"One.\n\xff", "byte 5 is not UTF-8")):
        if data:
            os.makedirs(os.path.join(bad, "train"))
            write_file(os.path.join(bad, "train", "book.txt"), data)
        try:
            train(bad, os.path.join(bad, "model"))
            expect(False, "a bad corpus gives a tokenizer")
        except SystemExit as e:
            expect(message in str(e) and bad in str(e), f"expected a message with {message!r}, found {e}")
        expect(not os.path.exists(os.path.join(bad, "model")), "a failed run leaves files")


def self_test(sleigh, library):
    import tiny_tokenizer

    tiny = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..", "models", "tiny", "tokenizer.json")
    shipped = bpe.Tok.load(tiny)
    again = tiny_tokenizer.train_tokenizer(shipped.vocab_size, shipped.n_special)
    expect(again.merges == shipped.merges, "the trainer does not give the embedded model's tokenizer again")
    with tempfile.TemporaryDirectory() as folder:
        model, other = os.path.join(folder, "model"), os.path.join(folder, "other")
        test_corpus(folder)
        train(folder, model, 2048, 150_000)
        train(folder, other, 2048, 150_000)
        for name in os.listdir(model):
            expect(read_book(os.path.join(model, name)) == read_book(os.path.join(other, name)), f"{name}: two runs differ")
        test_faults(folder)
        encode(folder, model)
        test_files(folder, model)
        if library:
            test_library(folder, model)
        if sleigh:
            test_sleigh(sleigh, folder, model)
    print("self-test passed")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("action", choices=("train", "encode", "self-test"))
    p.add_argument("--corpus", default="build/prose", metavar="DIR", help="folder of scripts/train/prose_corpus.py (default: build/prose)")
    p.add_argument("--out", default="models/prose", metavar="DIR", help="folder of the model (default: models/prose)")
    p.add_argument("--context", type=int, default=65536, help="model_max_length of tokenizer_config.json (default: 65536)")
    p.add_argument("--sample", type=int, default=50_000_000, help="characters that `train` reads (default: 50 million)")
    p.add_argument("--sleigh", metavar="FILE", help="self-test: compare with `sleigh tokenize` of this binary")
    p.add_argument("--library", action="store_true", help="self-test: compare with the tokenizers library")
    a = p.parse_args()
    if a.action == "train":
        train(a.corpus, a.out, VOCABULARY, a.sample, a.context)
    elif a.action == "encode":
        encode(a.corpus, a.out)
    else:
        self_test(a.sleigh, a.library)


if __name__ == "__main__":
    main()
