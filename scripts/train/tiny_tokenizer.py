"""The embedded model's tokenizer: byte-level BPE in Llama 3's shape, trained on the generator's own text.

tiny_documents.py encodes text with this tokenizer. `train_tiny.py --tokenizer new` trains a new one."""

import collections
import random

import bpe
from bpe import Tok
from tiny_text import ADJS, JOBS, KEY_ADJS, KEY_NOUNS, NAMES, NOUNS, PLACES, SURN, coded_word, filler_sentence, noise_unit, story_sentences

KADJ = [ADJS.index(w) for w in KEY_ADJS]
KNOUN = [NOUNS.index(w) for w in KEY_NOUNS]


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
        for m in bpe.pre_tokens(s):
            if not bpe.has_digit(m):
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
    return Tok(bpe.train_merges(bpe_corpus(), vocab_size - 256 - n_special), vocab_size, n_special)
