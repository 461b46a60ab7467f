"""Makes training documents of the embedded model: token arrays in which the answers are marked.

A document is a list of pieces: bytes that hold little-endian uint16 token ids. Pieces end where pre-tokens end, so that joined
pieces are the tokens of the joined text. scripts/train/train_tiny.py uses this module. Words, sentences and stories come from
tiny_text.py, and the wording of questions from tiny_tokenizer.py."""

import math
import random

import numpy as np

from tiny_text import ADJS, JOBS, NAMES, NOUNS, PLACES, SURN, coded_word, filler_sentence, noise_unit, story_sentences
from tiny_tokenizer import (
    KADJ,
    KNOUN,
    LETTERS,
    T_ANS,
    T_END,
    T_INTRO_F,
    T_INTRO_M,
    T_INTRO_N,
    T_INTRO_Q,
    T_INTRO_V,
    T_NEEDLE,
    T_Q_A,
    T_Q_B,
    T_Q_B2,
    T_Q_F,
    T_Q_MQ,
    T_Q_MV,
    T_Q_V,
)


def _dedup(items):
    return list(dict.fromkeys(items))


class Gen:
    def __init__(self, tok, seed, n_sent=20000, n_story=1200, chat_frac=0.08):
        self.tok = tok
        self.r = random.Random(seed)
        self.nr = np.random.default_rng(seed)
        self.chat_frac = chat_frac
        self.make_fixed_pieces()
        self.make_pools(n_sent, n_story)

    def make_fixed_pieces(self):
        tok, E = self.tok, self.E
        self.BOS = self.S(tok.bos)
        self.EOS = self.S(tok.eos)
        nn = E("\n\n")
        self.CH_USER = self.S(tok.soh) + E("user") + self.S(tok.eoh) + nn
        self.CH_ASST = self.S(tok.eot) + self.S(tok.soh) + E("assistant") + self.S(tok.eoh) + nn
        self.EOT = self.S(tok.eot)
        self.DOTNL = E(".\n")
        self.DOT = E(".")
        self.SP = E(" ")
        self.COMMA = E(",")
        self.COLON = E(":")
        self.SEMI = E(";")
        self.AND = E(" and")
        self.EQ = E(" =")
        self.ARROW = E(" ->")
        self.QM = E("?")
        self.ANS = (E(T_ANS), E("Answer:"))  # (plain text, start of a chat turn)

        def tmpl(t):
            return [E(x) for x in t.split("%s")]

        self.NEEDLE = tmpl(T_NEEDLE)
        self.QA = tmpl(T_Q_A)
        self.QB = tmpl(T_Q_B)
        self.QB2 = tmpl(" " + T_Q_B2)
        self.QB2C = tmpl(T_Q_B2)
        self.QMV = tmpl(T_Q_MV)
        self.QMQ = tmpl(T_Q_MQ)
        self.QV = E(T_Q_V)
        self.QF = E(T_Q_F)
        self.VAR = E(" VAR")
        self.DOTS = E(" ...")
        self.I = {k: E(t) for k, t in dict(N=T_INTRO_N, Q=T_INTRO_Q, V=T_INTRO_V, F=T_INTRO_F, M=T_INTRO_M).items()}
        self.END = E(T_END)
        self.D1 = [E(str(i)) for i in range(10)]
        self.D2 = [E("%02d" % i) for i in range(100)]
        self.D3 = [E("%03d" % i) for i in range(1000)]
        self.ADJ = [E(" " + a) for a in ADJS]
        self.NOUN = [E(" " + n) for n in NOUNS]
        self.HNOUN = [E("-" + n) for n in NOUNS]
        self.nkey = len(ADJS) * len(NOUNS)
        self.NAME = [E(" " + n) for n in NAMES]
        self.NAME0 = [E(n) for n in NAMES]
        self.SUR = [E(" " + s) for s in SURN]
        self.PLACE = [E(" " + p) for p in PLACES]
        self.JOB = [E(" " + j) for j in JOBS]
        self.P_WORKS = E(" works in")
        self.P_AS = E(" as a")
        self.P_LWITH = E(" lives with")
        self.P_LIN = E(" lives in")
        self.P_WITH = E(" with")
        self.P_IN = E(" in")
        self.Q_WHERE = E("Where does")
        self.Q_WORK = E(" work?")
        self.Q_LIVE = E(" live?")
        self.Q_JOB = E("What is the job of")

    def make_pools(self, n_sent, n_story):
        """Makes sentences, stories and coded words. They depend on the seed, so each worker of train_tiny.py has others."""
        E, r = self.E, self.r
        pool = []
        for i in range(n_sent):
            s = " " + filler_sentence(r)
            if i % 12 == 0:
                s += "\n" + filler_sentence(r)  # paragraph break inside a pool entry
            pool.append(E(s))
        self.pool = pool
        self.plen = np.array([len(p) // 2 for p in pool], np.int64)
        self.stories = []
        for _ in range(n_story):
            ss = story_sentences(r)
            self.stories.append([E(ss[0])] + [E(" " + s) for s in ss])  # first sentence without and with leading space
        self.coded = _dedup([coded_word(r) for _ in range(4000)])
        self.coded = [E(" " + w) for w in self.coded]
        self.needle_len = (
            int(np.mean([len(self.needle(self.key(r.randrange(self.nkey)), self.num7())) for _ in range(200)])) // 2 + 1
        )
        self.q_len = self.needle_len + 8

    # ---- small helpers
    def E(self, s):
        return np.array(self.tok.encode(s), np.uint16).tobytes()

    def S(self, i):
        return np.array([i], np.uint16).tobytes()

    def num7(self):
        n = self.r.randrange(1000000, 10000000)
        d3 = self.D3
        return self.SP + self.D1[n // 1000000] + d3[n // 1000 % 1000] + d3[n % 1000]

    def num(self, k):
        r = self.r
        return self.SP + self.D1[r.randrange(1, 10)] + b"".join([self.D1[r.randrange(10)] for _ in range(k - 1)])

    def key(self, i):
        return self.ADJ[i // len(self.HNOUN)] + self.HNOUN[i % len(self.HNOUN)]

    def keys(self, n):
        """Returns n distinct adjective-noun keys. Some calls use few adjectives and nouns, so that one of the words does not identify a key."""
        r = self.r
        if n >= 4 and r.random() < 0.3:
            m = int(math.ceil(math.sqrt(n * 1.5)))
            h = len(self.HNOUN)
            if m <= min(len(self.ADJ), h):
                a = r.sample(KADJ if m <= len(KADJ) else range(len(self.ADJ)), m)
                b = r.sample(KNOUN if m <= len(KNOUN) else range(h), m)
                return [self.key(a[i // m] * h + b[i % m]) for i in r.sample(range(m * m), n)]
        if n <= 2000 and r.random() < 0.75:
            h = len(self.HNOUN)
            m = len(KNOUN)
            return [self.key(KADJ[i // m] * h + KNOUN[i % m]) for i in r.sample(range(len(KADJ) * m), n)]
        return [self.key(i) for i in r.sample(range(self.nkey), n)]

    def needle(self, k, v):
        return self.NEEDLE[0] + k + self.NEEDLE[1] + v + self.DOT

    def loguni(self, a, b):
        return int(round(math.exp(self.r.uniform(math.log(a), math.log(b)))))

    def filler(self, kind, budget):
        """Returns a list of sentence pieces with at most `budget` tokens."""
        if budget < 4:
            return []
        r = self.r
        if kind == "noise":
            u = [self.E(" " + s) for s in noise_unit(r)]
            lens = [len(x) // 2 for x in u]
            tot = sum(lens)
            k = budget // tot
            out = u * k
            rem = budget - k * tot
            for x, l in zip(u, lens):
                if l > rem:
                    break
                out.append(x)
                rem -= l
            return out
        if kind == "story":
            out = []
            rem = budget
            while rem > 0:
                for x in r.choice(self.stories)[1:]:
                    l = len(x) // 2
                    if l > rem:
                        return out
                    out.append(x)
                    rem -= l
            return out
        idx = self.nr.integers(0, len(self.pool), budget // 6 + 8)
        c = np.cumsum(self.plen[idx])
        m = int(np.searchsorted(c, budget, "right"))
        pool = self.pool
        return [pool[i] for i in idx[:m].tolist()]

    def fkind(self):
        x = self.r.random()
        return "noise" if x < 0.2 else "story" if x < 0.3 else "varied"

        # ---- parts: each returns (facts, qas)
    # facts is a list of groups of pieces; the order in a group is fixed. qas is a list of (question, prefix, answer, tag). The text of
    # a qa is question + prefix + answer + terminator. prefix is a pair, for plain text and for chat: " Answer:" or a statement.

    def p_niah(self, n, nq, tag, form=None):
        r = self.r
        ks = self.keys(n)
        vs = [self.num7() for _ in range(n)]
        facts = [[self.needle(k, v)] for k, v in zip(ks, vs)]
        qas = []
        for i in r.sample(range(n), min(nq, n)):
            if form == "A" or (form is None and r.random() < 0.6):
                qas.append((self.QA[0] + ks[i] + self.QA[1], self.ANS, vs[i], tag))
            else:
                qas.append(
                    (
                        self.QB[0] + ks[i] + self.QB[1],
                        (self.QB2[0] + ks[i] + self.QB2[1], self.QB2C[0] + ks[i] + self.QB2C[1]),
                        vs[i],
                        tag,
                    )
                )
        return facts, qas

    def p_multivalue(self, groups, nv, tag):
        r = self.r
        facts = []
        qas = []
        for k in self.keys(groups):
            m = nv if nv else r.choice((2, 2, 3, 3, 4))
            vs = [self.num7() for _ in range(m)]
            facts.append([self.needle(k, v) for v in vs])
            qas.append((self.QMV[0] + k + self.QMV[1], self.ANS, self.COMMA.join(vs), tag))
        return facts, qas

    def p_multiquery(self, n, nq, m, tag):
        r = self.r
        ks = self.keys(n)
        vs = [self.num7() for _ in range(n)]
        facts = [[self.needle(k, v)] for k, v in zip(ks, vs)]
        qas = []
        order = r.sample(range(n), n)
        i = 0
        while i < n and len(qas) < nq:
            g = order[i : i + (m if m else r.choice((2, 3, 4)))]
            i += len(g)
            if len(g) < 2:
                break
            lst = self.COMMA.join([ks[j] for j in g[:-1]]) + self.AND + ks[g[-1]]
            ans = self.COMMA.join([ks[j] + self.COLON + vs[j] for j in g])
            qas.append((self.QMQ[0] + lst + self.QMQ[1], self.ANS, ans, tag))
        return facts, qas

    def people(self, n):
        ns = len(self.SUR)
        ids = self.r.sample(range(len(self.NAME) * ns), n)
        return [(self.NAME[i // ns] + self.SUR[i % ns]) for i in ids]

    def p_qa1(self, n, nq, tag):
        r = self.r
        facts = []
        qas = []
        for i, p in enumerate(self.people(n)):
            pl = r.choice(self.PLACE)
            jb = r.choice(self.JOB)
            facts.append([p + self.P_WORKS + pl + self.P_AS + jb + self.DOT])
            if i < nq:
                if r.random() < 0.6:
                    qas.append((self.Q_WHERE + p + self.Q_WORK, self.ANS, pl, tag))
                else:
                    qas.append((self.Q_JOB + p + self.QM, self.ANS, jb, tag))
        return facts, qas

    def p_qa2(self, n, nq, tag, onehop=0.3):
        """n pairs of people: A lives with B, B lives in PLACE. The answer names both facts: ' with B in PLACE'"""
        r = self.r
        facts = []
        qas = []
        ps = self.people(2 * n)
        for i in range(n):
            a, b = ps[2 * i], ps[2 * i + 1]
            pl = r.choice(self.PLACE)
            facts.append([a + self.P_LWITH + b + self.DOT])
            facts.append([b + self.P_LIN + pl + self.DOT])
            if i < nq:
                if r.random() < onehop:
                    qas.append((self.Q_WHERE + b + self.Q_LIVE, self.ANS, self.P_IN + pl, tag))
                else:
                    qas.append((self.Q_WHERE + a + self.Q_LIVE, self.ANS, self.P_WITH + b + self.P_IN + pl, tag))
        return facts, qas

    def p_vt(self, chains, hops, nq, tag):
        r = self.r
        facts = []
        qas = []
        hs = [hops if hops else r.randint(1, 4) for _ in range(chains)]
        ids = r.sample(range(26**3), sum(h + 1 for h in hs))
        o = 0
        vals = r.sample(range(10000, 100000), chains)
        for c, h in enumerate(hs):
            vs = [self.E(" " + LETTERS[i // 676] + LETTERS[i // 26 % 26] + LETTERS[i % 26]) for i in ids[o : o + h + 1]]
            o += h + 1
            n = vals[c]
            num = self.SP + self.D2[n // 1000] + self.D3[n % 1000]
            g = [self.VAR + vs[0] + self.EQ + num + self.DOT]
            for a, b in zip(vs[1:], vs):
                g.append(self.VAR + a + self.EQ + self.VAR + b + self.DOT)
            facts.append(g)
            if c < nq:
                qas.append((self.QV + num + self.QM, self.ANS, self.COMMA.join(vs), tag))
        return facts, qas

    # ---- composition

    def compose(self, L, intro, facts, qas, fkind, chat=None):
        """Returns (pieces, a list of bytes; spans of answers [(start, end, tag)]). The total length is at most L tokens."""
        r = self.r
        if chat is None:
            chat = r.random() < self.chat_frac
        head = self.BOS + (self.CH_USER if chat else b"") + self.I[intro]
        r.shuffle(qas)
        if chat:
            tail = [(q, self.CH_ASST + p[1], a, self.DOT + self.EOT, tag) for q, p, a, tag in qas]
        else:
            tail = [(q, p[0], a, self.DOTNL, tag) for q, p, a, tag in qas]
        sep = self.CH_USER if chat else b""
        fixed = (len(head) + len(self.END)) // 2 + 1 + sum(len(x) for g in facts for x in g) // 2
        cost = [(len(sep) + len(q) + len(p) + len(a) + len(t)) // 2 for q, p, a, t, _ in tail]
        while tail and fixed + sum(cost) > L:
            tail.pop()
            cost.pop()
        assert fixed + sum(cost) <= L, ("document does not fit", L, fixed, sum(cost))
        fill = self.filler(fkind, L - fixed - sum(cost)) if fkind else []
        # random interleaving; order inside a group is preserved
        items = []
        for g in facts:
            us = [r.random() for _ in g]
            if len(us) > 1:
                us.sort()
            items += zip(us, g)
        items.sort(key=lambda t: t[0])
        out = [head]
        S = len(fill)
        prev = 0
        for u, p in items:
            s = int(u * (S + 1))
            if s > prev:
                out += fill[prev:s]
                prev = s
            out.append(p)
        out += fill[prev:]
        out.append(self.END)
        pos = sum(map(len, out)) // 2
        spans = []
        for i, (q, p, a, t, tag) in enumerate(tail):
            pre = (sep if i else b"") + q + p
            out.append(pre)
            pos += len(pre) // 2
            spans.append((pos, pos + (len(a) + len(t)) // 2, tag))
            pos += (len(a) + len(t)) // 2
            out.append(a)
            out.append(t)
        out.append(self.EOS)
        return out, spans

    def budget(self, L):
        """Returns the tokens that the questions of a document of L tokens may take."""
        f = 0.42 if L <= 640 else 0.34 if L <= 1536 else 0.25 if L <= 4096 else 0.16 if L <= 12000 else 0.11
        return int(f * (L - 30))

    def nq(self, L, qlen, max_q, cap=96):
        return max(1, min(self.budget(L) // qlen, cap, max_q or 10**9))

    def doc(self, kind, L, max_q=None, ev=False):
        """Makes a document of at most L tokens. ev: for the evaluation (fixed wording, no chat template)."""
        if kind == "story":
            return self.d_story(L)
        if kind == "assoc":
            return self.d_assoc(L)
        if kind == "copy":
            return self.d_copy(L)
        if kind == "fwe":
            return self.d_fwe(L, ev)
        fk = ("varied" if self.r.random() < 0.75 else "story") if ev else self.fkind()
        chat = False if ev else None
        room = L - 48 - (24 if chat is None else 0)  # about the tokens of the introduction and the chat template
        if kind.startswith("niah_single"):
            fk = "noise" if kind.endswith("noise") else ("varied" if fk == "noise" else fk)
        if kind == "niah_needles":
            fk = None if ev else "varied"
        if kind.startswith("niah_"):
            intro, (f, q) = "N", self.niah_parts(kind, L, room, max_q, ev)
        elif kind.startswith("qa_"):
            intro, (f, q) = "Q", self.qa_parts(kind, L, room, max_q, ev)
        elif kind == "vt":
            intro, (f, q) = "V", self.vt_parts(kind, L, room, max_q, ev)
        elif kind == "mixed":
            intro, (f, q) = "M", self.mixed_parts(L)
        else:
            raise ValueError(kind)
        return self.compose(L, intro, f, q, fk, chat)

    def niah_parts(self, kind, L, room, max_q, ev):
        r, nl, ql = self.r, self.needle_len, self.q_len
        form = "A" if ev else None
        if kind in ("niah_single", "niah_single_noise"):
            return self.p_niah(1, 1, kind, form)
        if kind == "niah_multikey":
            nq = self.nq(L, ql, max_q)
            n = int(nq * r.uniform(1.0, 2.5)) + 1 if not ev else max(4, nq)
            return self.p_niah(max(1, min(n, (room - nq * ql) // nl)), nq, kind, form)
        if kind == "niah_needles":
            nq = self.nq(L, ql, max_q)
            n = max(1, (room - nq * (ql + 2)) // (nl + 1))
            return self.p_niah(min(n, self.nkey // 2), min(nq, n), kind, form)
        if kind == "niah_multivalue":
            per_q = ql + 18
            m = 4 if ev else 2.8
            nq = self.nq(L, per_q, max_q and max(1, max_q // 2))
            nq = max(1, min(nq, int((room) // (per_q + m * nl + 12))))
            return self.p_multivalue(nq, 2 if room < per_q + 4 * nl + 10 else 4 if ev else None, kind)
        if kind == "niah_multiquery":
            per_q = 15 + 3 * (nl + 2)
            nq = self.nq(L, per_q, max_q and max(1, max_q // 2))
            n = int(nq * (4 if ev else 3) * (1 if ev else r.uniform(1.0, 1.5)))
            n = max(2, min(n, int((room - nq * per_q * 1.2) // (nl + 1))))
            return self.p_multiquery(n, nq, 4 if ev else None, kind)
        raise ValueError(kind)

    def qa_parts(self, kind, L, room, max_q, ev):
        if kind == "qa_1hop":
            nq = self.nq(L, 20, max_q)
            n = int(nq * self.r.uniform(1.0, 2.5)) + 1 if not ev else nq * 2 + 2
            return self.p_qa1(max(1, min(n, (room - nq * 20) // 22)), nq, kind)
        nq = self.nq(L, 26, max_q)
        n = int(nq * self.r.uniform(1.0, 1.8)) + 1 if not ev else nq * 2 + 2
        return self.p_qa2(max(1, min(n, (room - nq * 28) // 36)), nq, kind, 0.0 if ev else 0.3)

    def vt_parts(self, kind, L, room, max_q, ev):
        hops = 4 if ev and L >= 512 else None
        nq = self.nq(L, 36, max_q and max(1, max_q // 2), 48)
        c = nq if ev else int(nq * self.r.uniform(1.0, 1.5))
        return self.p_vt(max(1, min(c, (room - nq * 40) // 70)), hops if room > 130 else 1, nq, kind)

    def mixed_parts(self, L):
        r, f, q = self.r, [], []
        w = self.budget(L) // 6
        n = max(1, w // self.q_len)
        for part in (
            self.p_niah(n + r.randint(0, n), n, "mixed"),
            self.p_multivalue(max(1, w // 56), None, "mixed"),
            self.p_multiquery(max(3, w // 30), max(1, w // 95), None, "mixed"),
            self.p_qa1(max(1, w // 18), max(1, w // 22), "mixed"),
            self.p_qa2(max(1, w // 28), max(1, w // 28), "mixed"),
            self.p_vt(max(1, w // 40), None, max(1, w // 40), "mixed"),
        ):
            f += part[0]
            q += part[1]
        r.shuffle(q)
        return f, q[:128]

    def d_story(self, L):
        r = self.r
        out = [self.BOS]
        rem = L - 2
        st = r.choice(self.stories)
        for x in st[:1] + st[2:]:
            l = len(x) // 2
            if l > rem:
                break
            out.append(x)
            rem -= l
        out.append(self.EOS)
        return out, []

    def d_assoc(self, L):
        """Returns n 'key: value.' pairs, then the keys again in random order with their values."""
        r = self.r
        style = r.randrange(3)
        sep, end = ((self.COLON, self.DOT), (self.EQ, self.SEMI), (self.ARROW, self.DOT))[style]
        kt = r.randrange(4)
        vt = r.randrange(3)
        klen = 4 if kt else 2
        n = max(2, int((L - 4) / (klen + 6) / r.uniform(1.8, 4.0)))
        if kt == 0:
            n = min(n, len(self.NOUN))
            ks = r.sample(self.NOUN, n)
        elif kt == 1:
            ks = self.keys(n)
        elif kt == 2:
            ks = self.people(min(n, 2000))
        else:
            ks = [self.E(" " + LETTERS[i // 676] + LETTERS[i // 26 % 26] + LETTERS[i % 26]) for i in r.sample(range(17576), n)]
        n = len(ks)
        if vt == 0:
            vs = [self.num(r.choice((2, 3, 4))) for _ in range(n)]
        elif vt == 1:
            vs = [r.choice(self.NOUN) for _ in range(n)]
        else:
            vs = [self.num7() for _ in range(n)]
        out = [self.BOS]
        pos = 1
        spans = []
        rem = L - 2
        i = 0
        order = list(range(n))
        while True:
            if i and i % n == 0:
                r.shuffle(order)
            j = order[i % n]
            k, v = ks[j], vs[j]
            l = (len(k) + len(sep) + len(v) + len(end)) // 2
            if l > rem:
                break
            out += (k, sep, v, end)
            s = pos + (len(k) + len(sep)) // 2
            if i >= n:
                spans.append((s, s + (len(v) + len(end)) // 2, "assoc"))
            pos += l
            rem -= l
            i += 1
        out.append(self.EOS)
        return out, spans

    def d_copy(self, L):
        """Returns a random sequence of words and numbers, repeated."""
        r = self.r
        m = r.randint(6, max(8, min(L // 8, 400)))
        pools = (self.NOUN, self.coded, self.ADJ, self.NAME)
        pl = r.choice(pools)
        seq = [r.choice(pl) if r.random() < 0.8 else self.num(r.choice((2, 3, 5))) for _ in range(m)] + [self.DOT]
        unit = b"".join(seq)
        ul = len(unit) // 2
        k = max(1, min((L - 2) // ul, r.randint(2, 4)))
        if ul * 2 > L - 2:
            unit = b"".join(seq[: max(2, len(seq) // 3)]) + self.DOT
            ul = len(unit) // 2
            k = max(1, min(2, (L - 2) // ul))
        if ul > L - 2:
            return [self.BOS, self.EOS], []
        spans = [(1 + ul * i, 1 + ul * (i + 1), "copy") for i in range(1, k)]
        return [self.BOS] + [unit] * k + [self.EOS], spans

    def d_fwe(self, L, ev=False):
        r = self.r
        head = self.BOS + self.I["F"]
        tailn = (len(self.END) + len(self.QF) + len(self.ANS[0])) // 2 + 22
        budget = L - len(head) // 2 - tailn
        V = max(12, min(L // 50, len(self.coded) - 1))
        words = r.sample(self.coded, V)
        dots = r.random() < 0.6
        if dots:
            words = [self.DOTS] + words
        k = np.arange(1, len(words) + 1, dtype=np.float64)
        alpha = 2.0 if ev else r.uniform(1.8, 2.4)
        p = k**-alpha
        p /= p.sum()
        ln = np.array([len(w) // 2 for w in words])
        N = budget / float((p * ln).sum())
        cnt = np.floor(N * p).astype(np.int64)
        o = 1 if dots else 0
        for i in (o + 2, o + 1, o):  # the top three must be strictly ordered
            if cnt[i] <= cnt[i + 1]:
                cnt[i] = cnt[i + 1] + 1
        while int((cnt * ln).sum()) > budget:
            big = int(np.argmax(cnt * ln)) if not (cnt[o + 3 :] > 0).any() else o + 3 + int(np.argmax(cnt[o + 3 :]))
            cnt[big] -= 1
        idx = np.repeat(np.arange(len(words)), cnt)
        self.nr.shuffle(idx)
        if dots and idx[-1] == 0:  # " ..." + "." would be one pre-token
            j = int(np.argmax(idx != 0))
            idx[-1], idx[j] = idx[j], idx[-1]
        out = [head] + [words[i] for i in idx.tolist()] + [self.DOT, self.END, self.QF, self.ANS[0]]
        a = self.COMMA.join(words[o : o + 3]) + self.DOTNL
        pos = sum(map(len, out)) // 2
        return out + [a, self.EOS], [(pos, pos + len(a) // 2, "fwe")]

    # ---- training sequences

    def mix(self, L):
        if L < 160:
            return MIX_TINY
        if L <= 768:
            return MIX_SHORT
        if L <= 6000:
            return MIX_MID
        return MIX_LONG

    def pick(self, L):
        m = self.mix(L)
        return self.r.choices(m[0], m[1])[0]

    def sequence(self, T):
        """Returns exactly T tokens and a mask, which is 1 at tokens of answers."""
        r = self.r
        toks = []
        pos = 0
        mask = np.zeros(T, np.uint8)

        def put(d):
            nonlocal pos
            b = b"".join(d[0])
            toks.append(b)
            for s, e, _ in d[1]:
                mask[pos + s : min(pos + e, T)] = 1
            pos += len(b) // 2

        if r.random() < (0.7 if T >= 4096 else 0.5):
            kind = self.pick(T)
            while kind == "story":
                kind = self.pick(T)  # a single story does not fill the context
            put(self.doc(kind, T))
        lo = 96 if T <= 2048 else 256
        while T - pos >= 96:
            rem = T - pos
            L = rem if rem <= lo + 32 else min(rem, self.loguni(lo, max(lo + 1, min(rem, T // 2 if T >= 4096 else T))))
            put(self.doc(self.pick(L), L))
        while pos < T:
            put(self.d_story(400))
        b = b"".join(toks)
        return np.frombuffer(b, np.uint16)[:T], mask


def _mk(d):
    return list(d.keys()), list(d.values())


MIX_TINY = _mk(dict(assoc=3, copy=1, story=2.5))
MIX_SHORT = _mk(
    dict(
        assoc=20,
        copy=6,
        niah_single_noise=2,
        niah_single=3,
        niah_multikey=18,
        niah_needles=12,
        niah_multivalue=7,
        niah_multiquery=7,
        qa_1hop=9,
        qa_2hop=7,
        vt=8,
        fwe=4,
        story=9,
    )
)
MIX_MID = _mk(
    dict(
        assoc=9,
        copy=3,
        niah_single_noise=3,
        niah_single=3,
        niah_multikey=15,
        niah_needles=12,
        niah_multivalue=8,
        niah_multiquery=7,
        qa_1hop=9,
        qa_2hop=8,
        vt=9,
        fwe=5,
        mixed=10,
        story=9,
    )
)
MIX_LONG = _mk(
    dict(
        assoc=4,
        copy=2,
        niah_single_noise=2,
        niah_single=2,
        niah_multikey=14,
        niah_needles=14,
        niah_multivalue=9,
        niah_multiquery=7,
        qa_1hop=8,
        qa_2hop=8,
        vt=9,
        fwe=5,
        mixed=26,
        story=0.001,
    )
)
EVAL_KINDS = [
    "niah_single_noise",
    "niah_single",
    "niah_multikey",
    "niah_needles",
    "niah_multivalue",
    "niah_multiquery",
    "qa_1hop",
    "qa_2hop",
    "vt",
    "fwe",
]
