#!/usr/bin/env python3
"""Puts facts between the sentences of real books, and asks for them: for the training of the prose model and for its evaluation.

    prose_needles.py --corpus DIR --kind needle --length 32k --samples 32 --seed 1 > needles.jsonl
    sleigh eval -m models/prose --jsonl needles.jsonl -n 32 -e --stop '\\n' --attn dense,santa-pps:S=128
    prose_needles.py self-test [--sleigh FILE]

The wording of facts and questions is that of scripts/train/tiny_text.py. DIR holds the files of `prose_tokenizer.py encode`. The lines come from
the test books alone: {"id", "kind", "book", "depth", "context", "question", "answer", "reference", "task", "grader"}. Each text holds
--facts facts (two-hop: pairs of facts), and the question asks for one of them. The depth of this one (two-hop: of the first of its pair)
goes evenly from the start to the end of the text over the samples. A prompt (with BOS) and --answer-tokens have at most --length tokens.

Training (scripts/train/train_prose.py) calls NeedleDocuments. This module works on token ids, because books are long: facts are inserted where
pre-tokens end, so that the ids of a document are the ids of its text."""

import argparse
import array
import bisect
import hashlib
import itertools
import json
import math
import mmap
import operator
import os
import random
import re
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../measure"))
import bpe
import prose_tokenizer
import tiny_text
from measured_parts import expect

MIX = {"needle": 0.65, "two-hop": 0.25, "one-hop": 0.1}  # shares of the kinds in training; other kinds of tiny_text.KINDS work too
FACTS_OF_QUESTION = {"two-hop": 2, "multiquery": 0}  # groups of facts that belong to a question; 0: any; other kinds: 1
GENERATED = 0.1  # share of training documents with generated sentences in place of a book, as in the tasks of `sleigh eval`
MAX_FACTS, MAX_QUESTIONS = 64, 48
# Places between two ids: after a full stop and before a blank; after a blank line; after a full stop and a newline.
SENTENCE, PARAGRAPH, LINE = 1, 2, 4
ABBREVIATIONS = {"mr", "mrs", "ms", "dr", "st", "vs", "prof", "no", "vol", "fig", "sec", "ch", "pp", "cf", "etc", "viz"}
GOLDEN = (5**0.5 - 1) / 2  # multiples of it, without their whole parts, are spread over 0 to 1 independently of the sample's order


def kinds_of_places(ids, ends, begins):
    """Returns ends[ids[i]] & begins[ids[i + 1]] for each i but the last one. numpy is faster, and Debian's python3 lacks it."""
    try:
        import numpy as np
    except ImportError:
        return bytes(map(operator.and_, map(ends.__getitem__, ids), map(begins.__getitem__, ids[1:])))
    ids, ends, begins = np.asarray(ids), np.frombuffer(ends, np.uint8), np.frombuffer(begins, np.uint8)
    return (ends[ids[:-1]] & begins[ids[1:]]).tobytes()


class Book:
    """The ids of a book, and the sorted indexes of the ids before which a paragraph or any place lies."""

    def __init__(self, ids, ends, begins, before_stop):
        ids = memoryview(ids)
        if ids.format != "H":
            raise ValueError(f"books: found elements of format {ids.format}, expected uint16")
        self.ids = ids
        kinds = kinds_of_places(ids, ends, begins)
        self.paragraphs = array.array("I", (m.end() for m in re.finditer(b"\2", kinds)))
        found = (m.end() for m in re.finditer(b"[\1\2\4]", kinds))
        self.places = array.array("I", (i for i in found if kinds[i - 1] == PARAGRAPH or (i > 1 and before_stop[ids[i - 2]])))


class Text:
    """A stretch of a book, or stretches of several books: ids, the places in them at which a fact may stand, and those of paragraphs.
    A text begins with a paragraph. It ends where a sentence or a paragraph ends, and its end is a place too."""

    def __init__(self):
        self.ids, self.places, self.paragraphs = array.array("H"), [], []

    def add(self, book, begin, end):
        shift = len(self.ids) - begin
        self.places += [i + shift for i in book.places[bisect.bisect_right(book.places, begin) : bisect.bisect_right(book.places, end)]]
        inside = book.paragraphs[bisect.bisect_right(book.paragraphs, begin) : bisect.bisect_left(book.paragraphs, end)]
        self.paragraphs += [i + shift for i in inside]
        self.ids.extend(book.ids[begin:end])

    def place(self, i):
        """The place next to i."""
        after = bisect.bisect_left(self.places, i)
        return min(self.places[max(after - 1, 0) : after + 1], key=lambda at: abs(at - i))


class Books:
    """`books` is a list of arrays of uint16 (array.array, numpy, memoryview)."""

    def __init__(self, tok, books):
        self.books, self.found, self.sum_lengths = list(books), {}, list(itertools.accumulate(map(len, books)))
        if not self.sum_lengths or not self.sum_lengths[-1]:
            raise ValueError("books: found no tokens")
        self.ends, self.begins, self.before_stop = (bytearray(tok.vocab_size) for _ in range(3))
        for text, i in tok.vocab.items():
            word = text.decode("utf-8", "replace").strip()
            self.ends[i] = {b".": SENTENCE, b".\n": LINE}.get(text, PARAGRAPH if text.endswith(b"\n\n") else 0)
            self.begins[i] = PARAGRAPH | LINE if text[:1].isupper() else SENTENCE if text[:1] == b" " and text[1:2].isupper() else 0
            self.before_stop[i] = len(word) > 1 and word[-1].isalnum() and word.lower() not in ABBREVIATIONS

    def book(self, i):
        """The book of index i. Its places are found when it is asked for the first time."""
        if i not in self.found:
            self.found[i] = Book(self.books[i], self.ends, self.begins, self.before_stop)
        return self.found[i]

    def text(self, rng, n, book=None, least=0.5):
        """Returns a text of at most n ids of book number `book`, or of books drawn with a probability proportional to their length.
        Draws again if a text has less than 0.97 n ids, and fails if after 200 draws the longest one has less than `least` n ids."""
        text, best = Text(), Text()
        for _ in range(200):
            chosen = self.book(bisect.bisect_right(self.sum_lengths, rng.randrange(self.sum_lengths[-1])) if book is None else book)
            room, starts = n - len(text.ids), chosen.paragraphs
            latest = bisect.bisect_right(starts, len(chosen.ids) - room)  # the starts before it have `room` ids behind them
            if latest:
                begin = starts[min(bisect.bisect_left(starts, rng.randrange(len(chosen.ids) - room + 1)), latest - 1)]
                places, limit = chosen.places, begin + room
            elif len(starts) > 1 and book is None:  # the book is too short: a paragraph of another book follows
                begin, places, limit = starts[0], starts, len(chosen.ids)
            else:
                continue
            end = places[bisect.bisect_right(places, limit) - 1]
            text.add(chosen, begin, end)
            if latest or len(text.ids) > 0.97 * n:
                if len(text.ids) > 0.97 * n:
                    return text
                best, text = max(best, text, key=lambda t: len(t.ids)), Text()
        if len(best.ids) < least * n:
            raise ValueError(f"books: found no {n} tokens with paragraphs")
        return best


class Fact:
    """The ids of a fact for each kind of place: inside a paragraph, with a leading blank, or as a paragraph or a line of its own."""

    def __init__(self, tok, text):
        alone = text.lstrip(" ")
        self.forms = {SENTENCE: tok.encode(text), PARAGRAPH: tok.encode(alone + "\n\n"), LINE: tok.encode(alone + "\n")}
        self.room = max(map(len, self.forms.values()))


def insert(books, ids, facts):
    """Inserts `facts`, a list of (place, Fact) in the order of places, into ids. Returns the joined ids."""
    out, done = array.array("H"), 0
    for at, fact in facts:
        out.extend(ids[done:at])
        out.extend(fact.forms[books.ends[ids[at - 1]]])
        done = at
    out.extend(ids[done:])
    return out


def read_books(corpus, tokenizer, split):
    """Returns [(name, ids)] of the books of a split. The ids lie in the file, which all processes share."""
    index_path, path = os.path.join(corpus, "tokens.json"), os.path.join(corpus, split + ".u16")
    with open(index_path, encoding="utf-8") as f:
        index = json.load(f)
    with open(tokenizer, "rb") as f:
        found = hashlib.sha256(f.read()).hexdigest()
    if found != index["tokenizer"]:
        raise ValueError(f"{index_path}: the ids come from another tokenizer than {tokenizer}; run `prose_tokenizer.py encode` again")
    with open(path, "rb") as f:
        ids = memoryview(mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)).cast("H")
    if sys.byteorder == "big":
        raise ValueError(f"{path}: expected a little-endian machine")
    n = sum(b["n_tokens"] + 1 for b in index[split])
    if n != len(ids):
        raise ValueError(f"{path}: found {len(ids)} tokens, expected {n}")
    return [(b["name"], ids[b["first"] : b["first"] + b["n_tokens"]]) for b in index[split]]


# ---- training


class NeedleDocuments:
    """Makes training documents. A process needs its own object, because the books lie in shared memory that cannot be sent.

    `books` is a folder with the files of `prose_tokenizer.py encode` (of which the training books are taken), or a list of arrays of
    uint16. Equal seeds give equal documents. A document is

        <|begin_of_text|> introduction, text with facts, the end's sentence, questions with answers <|end_of_text|>

    and, to fill the length, the beginning of another document without facts. Some questions may stand between paragraphs of the text, after
    the facts that they ask for."""

    def __init__(self, tokenizer_path, books, seed, mix=None):
        self.tok, self.rng, self.mix = bpe.Tok.load(tokenizer_path), random.Random(seed), mix or MIX
        if isinstance(books, (str, os.PathLike)):
            books = [ids for _, ids in read_books(books, tokenizer_path, "train")]
        sentences = [tiny_text.filler_sentence(self.rng) for _ in range(12000)]
        text = "\n\n".join(" ".join(sentences[i : i + 10]) for i in range(0, len(sentences), 10))
        sentences = array.array("H", self.tok.encode(text))
        self.books, self.generated, self.n_generated = Books(self.tok, books), len(books), len(sentences) // 2
        self.books.books.append(sentences)  # without a part in sum_lengths: no text draws it, except by its number

    def document(self, length, kind=None):
        """Returns (ids, answer): numpy arrays [length] of uint16 and of uint8. answer is 1 at the tokens of answers, 0 elsewhere."""
        import numpy as np

        ids, answer = self.arrays(length, kind)
        return np.frombuffer(ids, np.uint16), np.frombuffer(answer, np.uint8)

    def arrays(self, length, kind=None):
        """document() without numpy: array.array("H") and bytearray."""
        tok, rng = self.tok, self.rng
        kind = kind or rng.choices(list(self.mix), list(self.mix.values()))[0]
        intro = tok.encode(tiny_text.KINDS[kind][0] + "\n\n") if rng.random() < 0.8 else []
        end = tok.encode(tiny_text.END)
        most, room = 2 * min(MAX_FACTS, max(1, length // (80 if kind in ("needle", "one-hop") else 160))), 0
        while room < length // 4:
            most //= 2
            if not most:
                raise ValueError(f"length: found {length}, expected room for a fact and its question")
            groups, questions = self.facts_and_questions(kind, most)
            room = length - 2 - len(intro) - len(end) - sum(f.room for g in groups for f in g) - sum(len(q) + len(a) for q, a, _ in questions)
        text = self.books.text(rng, room, self.generated if rng.random() < GENERATED and room < self.n_generated else None)
        places = self.places_of_facts(text, groups)
        placed = [(at, 0, fact) for group, ats in zip(groups, places) for at, fact in zip(ats, group)]
        last, blocks = self.questions_by_place(text, places, questions)
        placed = sorted(placed + [(at, 1, block) for at, block in blocks.items()], key=lambda p: p[:2])

        out, answer, done = array.array("H", [tok.bos, *intro]), bytearray(), 0

        def ask(some):
            for question, reply, _ in some:
                out.extend(question)
                answer.extend(bytes(len(out) - len(answer)))
                out.extend(reply)
                answer.extend(b"\1" * len(reply))

        for at, is_block, what in placed:
            out.extend(text.ids[done:at])
            done = at
            ask(what) if is_block else out.extend(what.forms[self.books.ends[text.ids[at - 1]]])
        out.extend(text.ids[done:])
        out.extend(end)
        ask(last)
        out.append(tok.eos)
        if len(out) < length:
            out.append(tok.bos)
            out.extend(self.books.text(rng, length).ids[: length - len(out)])
        answer.extend(bytes(length - len(answer)))
        return out, answer

    def facts_and_questions(self, kind, most):
        """Returns groups of facts, for at most `most` questions, and questions: (ids, ids of the answer, the groups that it needs)."""
        rng = self.rng
        if rng.random() < 0.5:
            n = rng.randint((most + 1) // 2, most)
        else:
            n = round(math.exp(rng.uniform(0, math.log(most))))
        n_asked = min(MAX_QUESTIONS, n if rng.random() < 0.7 else rng.randint(1, n))
        if kind == "needle":
            keys = tiny_text.similar_keys if rng.random() < 0.3 else tiny_text.keys
            facts, questions = tiny_text.needles(rng, n, n_asked, digits=rng.choice((4, 5, 6, 7, 7)), keys=keys)
        else:
            facts, questions = tiny_text.KINDS[kind][1](rng, max(n, 4) if kind == "multiquery" else n, n_asked)
        per, encode = FACTS_OF_QUESTION.get(kind, 1), self.tok.encode
        needed = [range(per * i, per * i + per) if per else range(len(facts)) for i in range(len(questions))]
        questions = [(encode(q), encode(a + "\n"), groups) for (q, a), groups in zip(questions, needed)]
        rng.shuffle(questions)
        return [[Fact(self.tok, text) for text in group] for group in facts], questions

    def places_of_facts(self, text, groups):
        """Returns the places of each group's facts, in their order: anywhere, all in the last part of the text, or all in one region."""
        rng, begin, end = self.rng, 0, len(text.ids)
        form = rng.random()
        if form < 0.4:
            width = min(end, round(math.exp(rng.uniform(math.log(128), math.log(max(end, 129))))))
            begin = end - width if form < 0.2 else rng.randrange(end - width + 1)
            end = begin + width
        return [sorted(text.place(rng.randrange(begin, end)) for _ in group) for group in groups]

    def questions_by_place(self, text, places, questions):
        """Returns the questions at the end, and {place: questions} of those between paragraphs."""
        rng, last, blocks = self.rng, [], {}
        if len(text.ids) > 1024 and text.paragraphs and rng.random() < 0.5:
            blocks = {rng.choice(text.paragraphs): [] for _ in range(rng.randint(1, 3))}
        for question in questions:
            known = max(at for group in question[2] for at in places[group])
            where = [at for at in blocks if at >= known]
            (blocks[rng.choice(where)] if where and rng.random() < 0.6 else last).append(question)
        return last, blocks


# ---- evaluation


def text_of_a_test_book(books, found, rng, n, first):
    """Returns a text of n ids, or little less, and the name of its book: the first one from number `first` on that has such a text."""
    for i in range(first, first + len(found)):
        name, ids = found[i % len(found)]
        if len(ids) > n:
            try:
                return books.text(rng, n, i % len(found), 0.97), name
            except ValueError:
                continue  # a book without paragraphs
    raise ValueError(f"--length: found no test book with {n} tokens in paragraphs")


def evaluation(model, corpus, kind, length, samples, seed, n_facts, answer_tokens):
    """Yields the lines of the evaluation, and the number of tokens of each prompt."""
    tokenizer = os.path.join(model, "tokenizer.json")
    tok = bpe.Tok.load(tokenizer)
    found = read_books(corpus, tokenizer, "test")
    books, intro, end = Books(tok, [ids for _, ids in found]), tok.encode(tiny_text.KINDS[kind][0] + "\n\n"), tok.encode(tiny_text.END)
    for i in range(samples):
        rng = random.Random(f"{seed} {kind} {length} {i}")
        if kind == "needle":
            keys = rng.choice((tiny_text.keys, tiny_text.similar_keys))
            groups, [(question, reply)] = tiny_text.needles(rng, n_facts, 1, digits=rng.randint(5, 7), keys=keys)
        else:
            groups, [(question, reply)] = tiny_text.two_hop(rng, n_facts, 1)
        facts, n_asked = [Fact(tok, text) for [text] in groups], FACTS_OF_QUESTION.get(kind, 1)
        room = length - 1 - len(intro) - len(end) - sum(f.room for f in facts) - len(tok.encode(question)) - answer_tokens
        if room < 64:
            raise ValueError(f"--length {length}: expected at least {length + 64 - room} for {n_facts} facts")
        text, name = text_of_a_test_book(books, found, rng, room, seed + i)
        depths = [(i + 0.5) / samples, (0.25 + i * GOLDEN) % 1][:n_asked]
        depths += [rng.random() for _ in facts[n_asked:]]
        places = [text.place(int(depth * len(text.ids))) for depth in depths]
        joined = insert(books, text.ids, sorted(zip(places, facts), key=lambda p: p[0]))
        context = tok.decode([*intro, *joined, *end])
        answer = reply.strip(" .") if kind == "needle" else reply[reply.rindex(" in ") + 4 : -1]
        line = {"id": f"{kind}-{length}-{i}", "kind": kind, "book": name, "depths": [round(p / len(text.ids), 4) for p in places[:n_asked]]}
        line |= {"context": context, "question": question, "answer": answer, "reference": reply + "\n", "task": kind, "grader": "any"}
        yield line, 1 + len(intro) + len(joined) + len(end) + len(tok.encode(question))


# ---- self-test


TINY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../..", "models", "tiny")


def check_document(tok, ids, answer, length):
    """The ids are those of the text. Each answer follows from the facts before it. Returns the number of questions."""
    expect(len(ids) == len(answer) == length and ids[0] == tok.bos, "a document has another length or beginning")
    body = ids[1 : ids.index(tok.eos)]
    text = tok.decode(body)
    expect(array.array("H", tok.encode(text)) == body, f"the ids of a document are not those of its text: {text[:200]!r}")
    expect(not any(answer[len(body) + 1 :]), "an answer after the end")
    n, before, reply, done = 0, "", "", 1
    for found in re.finditer(b"\1+", answer):
        before, reply = before + reply + tok.decode(ids[done : found.start()]), tok.decode(ids[found.start() : found.end()])
        done = found.end()
        question = before[before.rindex("\n") + 1 :]
        n += 1
        key, value = re.fullmatch(r"W.*? (?:for|does|of) (.*?)(?: mentioned in the text| live| work)?\? Answer:", question)[1], reply[:-2]
        if "magic number" in question:
            right = before.count(f"One of the special magic numbers for {key} is:{value}.") == 1
        elif " live?" in question:
            other, place = re.fullmatch(r" with (.*) in (.*)", value).groups()
            right = before.count(f"{key} lives with {other}.") == 1 and before.count(f"{other} lives in {place}.") == 1
        else:
            place, job = re.search(rf"{key} works in (\w+) as a (\w+)\.", before).groups()
            right = value[1:] in (place, job)
        expect(right and reply.endswith(".\n"), f"{question}{reply!r} does not follow from the text")
    return n


def test_training(tokenizer, corpus):
    """Documents of many lengths, of books that are long enough and of many short books."""
    documents, again, other = (NeedleDocuments(tokenizer, corpus, seed) for seed in (3, 3, 4))
    n = [0, 0]
    for length in (512, 700, 2048, 2048, 12000):
        for kind in (None, *MIX):
            ids, answer = documents.arrays(length, kind)
            expect((ids, answer) == again.arrays(length, kind), "equal seeds give different documents")
            expect(ids != other.arrays(length, kind)[0], "different seeds give equal documents")
            some = check_document(documents.tok, ids, answer, length)
            n = [n[0] + some, n[1] + (some > 20)]
            expect(1 <= some <= MAX_QUESTIONS, f"{some} questions")
    expect(n[0] > 100 and n[1] > 0, f"long documents have few questions: {n}")
    with_blocks = 0
    for _ in range(60):
        ids, answer = documents.arrays(2048, "needle")
        text = documents.tok.decode(ids)
        with_blocks += 0 <= text.find("Answer:") < text.find("This is the end")
        check_document(documents.tok, ids, answer, 2048)
    expect(5 < with_blocks < 55, f"{with_blocks} of 60 documents have questions inside the text")


def test_evaluation(model, corpus):
    tok = bpe.Tok.load(os.path.join(model, "tokenizer.json"))
    tests = {name: tok.decode(ids) for name, ids in read_books(corpus, os.path.join(model, "tokenizer.json"), "test")}
    for kind, n_facts in (("needle", 8), ("two-hop", 4)):
        lines = list(evaluation(model, corpus, kind, 2048, 12, 5, n_facts, 32))
        expect(lines == list(evaluation(model, corpus, kind, 2048, 12, 5, n_facts, 32)), "equal seeds give different lines")
        depths = [line["depths"][0] for line, _ in lines]
        expect(sum(abs(d - (i + 0.5) / 12) for i, d in enumerate(depths)) < 12 * 0.1, f"depths are not spread: {depths}")
        for line, n in lines:
            whole = tok.encode(line["context"] + line["question"])
            expect(len(whole) + 1 == n and 1900 <= n <= 2048 - 32, f"found {len(whole) + 1} and {n} tokens, expected at most 2016")
            expect(len(tok.encode(line["reference"])) <= 32, "an answer is longer than its room")
            ids = array.array("H", [tok.bos, *whole, *tok.encode(line["reference"]), tok.eos])
            answer = bytearray(len(ids))
            answer[n:-1] = b"\1" * (len(ids) - n - 1)
            check_document(tok, ids, answer, len(ids))
            text = line["context"][len(tiny_text.KINDS[kind][0]) : -len(tiny_text.END)]
            parts = re.split(r"One of the special magic numbers for [\w-]+ is: \d+\.|\w+ \w+ lives (?:with \w+|in) \w+\.", text)
            bad = [p for p in parts if p.strip() not in tests[line["book"]]]
            expect(len(parts) == 9 and not bad, f"the text is not that of the test book: {bad}")



def test_faults(model, corpus):
    """A request that cannot be met raises an error with the reason."""
    tokenizer = os.path.join(model, "tokenizer.json")
    books = [array.array("H", [1, 2, 3]), array.array("I", [1, 2, 3])]
    for message, request in (
        ("another tokenizer", lambda: read_books(corpus, os.path.join(TINY, "tokenizer.json"), "test")),
        ("no test book", lambda: next(evaluation(model, corpus, "needle", 10**6, 1, 1, 16, 32))),
        ("expected at least", lambda: next(evaluation(model, corpus, "needle", 512, 1, 1, 64, 32))),
        ("expected room", lambda: NeedleDocuments(tokenizer, corpus, 1).arrays(64)),
        ("found no 500 tokens", lambda: Books(bpe.Tok.load(tokenizer), books[:1]).text(random.Random(1), 500)),
        ("expected uint16", lambda: Books(bpe.Tok.load(tokenizer), books[1:]).text(random.Random(1), 500)),
        ("found no tokens", lambda: Books(bpe.Tok.load(tokenizer), [])),
    ):
        try:
            request()
        except ValueError as e:
            expect(message in str(e), f"expected a message with {message!r}, found {e}")
        else:
            expect(False, f"expected an error with {message!r}")


def test_sleigh(sleigh, corpus):
    """`sleigh eval` reads the lines, and the embedded model answers them: the wording is that of its training."""
    prose_tokenizer.encode(corpus, TINY)
    path = os.path.join(corpus, "needles.jsonl")
    for kind in ("needle", "two-hop"):
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(line) + "\n" for line, _ in evaluation(TINY, corpus, kind, 640, 2, 1, 2, 32))
        flags = ["-m", TINY, "--jsonl", path, "-n", "32", "-e", "--stop", "\\n", "--attn", "dense", "-o", "json", "-q"]
        run = subprocess.run([sleigh, "eval", *flags], capture_output=True, text=True)
        expect(run.returncode == 0, run.stderr.strip())
        rows = json.loads(run.stdout)["rows"]
        expect((rows[0]["samples"], rows[0]["score"]) == (2, 1), f"the embedded model does not answer: {rows[0]}")


def self_test(sleigh):
    with tempfile.TemporaryDirectory() as corpus:
        model = os.path.join(corpus, "model")
        prose_tokenizer.test_corpus(corpus)
        prose_tokenizer.train(corpus, model, 2048, 10**6)
        prose_tokenizer.encode(corpus, model)
        tokenizer = os.path.join(model, "tokenizer.json")
        test_training(tokenizer, corpus)
        test_evaluation(model, corpus)
        test_faults(model, corpus)
        documents, begin, n = NeedleDocuments(tokenizer, corpus, 1), time.process_time(), 0
        while time.process_time() < begin + 0.5:
            n += len(documents.arrays(8192)[0])
        print(f"{n / (time.process_time() - begin):.0f} tokens a second in documents of 8192")
        if sleigh:
            test_sleigh(sleigh, corpus)
    print("self-test passed")


def size(text):
    return int(text[:-1]) * 1024 if text.lower().endswith("k") else int(text)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("action", nargs="?", choices=("self-test",))
    p.add_argument("--corpus", default="build/prose", metavar="DIR", help="default: build/prose")
    p.add_argument("--model", default="models/prose", metavar="DIR", help="folder of tokenizer.json (default: models/prose)")
    p.add_argument("--kind", choices=("needle", "two-hop"), default="needle")
    p.add_argument("--length", type=size, default=8192, help="tokens of prompt and answer; 8k is 8192 (default)")
    p.add_argument("--samples", type=int, default=32)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--facts", type=int, help="needles (default: 16), or pairs of facts (default: 8)")
    p.add_argument("--answer-tokens", type=int, default=32, help="room for the answer (default: 32)")
    p.add_argument("--sleigh", metavar="FILE", help="self-test: also run `sleigh eval` of this binary")
    a = p.parse_args()
    if a.action:
        return self_test(a.sleigh)
    n_facts = a.facts or (16 if a.kind == "needle" else 8)
    try:
        for line, _ in evaluation(a.model, a.corpus, a.kind, a.length, a.samples, a.seed, n_facts, a.answer_tokens):
            print(json.dumps(line, ensure_ascii=False))
    except (OSError, ValueError) as e:
        raise SystemExit(f"prose_needles: error: {e}") from None


if __name__ == "__main__":
    main()
