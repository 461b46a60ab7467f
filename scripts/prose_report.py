#!/usr/bin/env python3
"""Writes docs/results/prose.md and its pictures from the figures that scripts/prose_results.py keeps.

    python3 scripts/prose_report.py [--results docs/results/prose] [-o docs/results/prose.md] [--no-pictures]

The page has a section for each part that is in the folder. Every figure comes from the folder, and so does every sentence that judges: a
claim holds if its 95% interval lies on the right side of the claimed figure, it does not hold if the interval lies on the wrong side, and
otherwise the books do not decide. The page includes the file notes.md of the folder, which people write.

Intervals are between books: Student's t of the means of the books. A ratio of two methods is paired by book."""
import argparse
import collections
import json
import math
import os
import re
import statistics
import sys
import tempfile

from reproduce import TABLE_28
from sleigh_runs import draw

TINY_PPS, TINY_IS = 0.70, 0.5  # docs/results/attention-error.md: mean errors of the embedded model, divided by santa-prop's
SANTA_TOP1 = 0.96  # the lowest share of TABLE_28
BUDGETS = (32, 64, 128, 256, 512)


# ---- intervals ----

def student(n):
    """The 97.5% quantile of Student's t with n - 1 degrees of freedom (Cornish-Fisher; error below 0.01 from n = 5)."""
    z, f = 1.959964, n - 1
    return z + (z**3 + z) / (4 * f) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * f**2) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * f**3)


def interval(values):
    """Mean, and the ends of its 95% interval."""
    mean, n = statistics.fmean(values), len(values)
    half = student(n) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
    return mean, mean - half, mean + half


def ratio(above, below):
    """Mean of `above` / mean of `below`, with the interval of the linear approximation; paired."""
    r, n = sum(above) / sum(below), len(above)
    half = student(n) * statistics.stdev(a - r * b for a, b in zip(above, below)) / math.sqrt(n) / statistics.fmean(below) if n > 1 else math.inf
    return r, r - half, r + half


def exp(i):
    return tuple(map(math.exp, i))


def at_most(i, claim):
    return "holds" if i[2] <= claim else "does not hold" if i[1] > claim else "not decided"


def at_least(i, claim):
    return "holds" if i[1] >= claim else "does not hold" if i[2] < claim else "not decided"


def show(i, digits=3, scale=1.0):
    """(0.5, 0.4, 0.6) -> '0.500 (0.400 to 0.600)'; digits < 0: significant digits."""
    def one(x):
        x *= scale
        return "-" if not math.isfinite(x) else f"{x:.{digits}f}" if digits >= 0 else f"{x:.{-digits}g}"
    return f"{one(i[0])} ({one(i[1])} to {one(i[2])})"


# ---- kept figures ----

class Kept:
    def __init__(self, folder):
        self.folder, self.parts = folder, {}
        for name in sorted(os.listdir(folder)):
            if name.endswith(".json"):
                with open(os.path.join(folder, name)) as f:
                    part = json.load(f)
                self.parts[part["part"]] = part

    def of(self, kind):
        """{length: [part, ...]} of a kind, the shortest length first."""
        found = collections.defaultdict(list)
        for name in sorted(self.parts):
            if name.split(":")[0] == kind:
                found[name.split(":")[1]].append(self.parts[name])
        return dict(sorted(found.items(), key=lambda item: tokens(item[0])))

    def one(self, kind):
        """{length: part}"""
        return {size: parts[0] for size, parts in self.of(kind).items()}

    def notes(self):
        path = os.path.join(self.folder, "notes.md")
        if not os.path.exists(path):
            return ""
        with open(path) as f:
            return f.read().strip() + "\n\n"


def tokens(size):
    """'32k' -> 32768"""
    return int(size.removesuffix("k")) * (1024 if size.endswith("k") else 1)


def rows_of(part):
    return {row["attn"]: row for row in part["result"]["methods"]}


def estimate(row, key, n):
    """The mean and its interval: from the row, or from the standard error between n books."""
    if f"{key}_low" in row:
        return row[key], row[f"{key}_low"], row[f"{key}_high"]
    half = student(n) * (row.get(f"{key}_se") or math.nan)
    return row[key], row[key] - half, row[key] + half


def share_of_bytes(row):
    """KV bytes read, divided by dense attention's."""
    return row["kv_bytes_share"] if row.get("kv_bytes_share") is not None else row["bytes_share"]


def curve_of(attn):
    """The curve of a method in a picture: methods of one curve differ only in a budget. 'santa-prop:S=32' -> 'santa-prop'."""
    return re.sub(r":(S|k|tokens|window|B|L|epsilon|bits)=[^:+]+", "", attn)


class Page:
    def __init__(self):
        self.out = []

    def say(self, text):
        self.out.append(text + "\n\n")

    def table(self, head, rows):
        self.out.append(f"| {' | '.join(head)} |\n|{'---|' * len(head)}\n")
        self.out.extend(f"| {' | '.join(row)} |\n" for row in rows)
        self.out.append("\n")

    def command(self, part):
        self.say(f"```text\n{part['command']}\n```")


def claims(page, kept):
    found = kept.one("methods")
    if not found:
        return
    rows = []
    for size, part in found.items():
        methods, n = rows_of(part), len(part["result"]["prompts"])
        prop = {s: methods[f"santa-prop:S={s}"] for s in BUDGETS}

        def add(claim, source, i, verdict, digits=2, scale=1.0):
            rows.append([claim, source, size, show(i, digits, scale), verdict])

        error = estimate(prop[128], "l2", n)
        add("santa-prop S=128: mean error of heads at most 0.131", "SANTA, Table 28, FWE (last layer, 32k)", error, at_most(error, 0.131), 3)
        for s in BUDGETS[2:]:
            top1 = tuple(prop[s][k] for k in ("top1", "top1_low", "top1_high"))
            add(f"santa-prop S={s}: top-1 agreement at least 96%", "SANTA, Table 28", top1, at_least(top1, SANTA_TOP1), 1, 100)
        for s in BUDGETS:
            r = errors_ratio(methods[f"santa-pps:S={s}"], prop[s], n)
            add(f"santa-pps S={s}: mean error at most {TINY_PPS:.2f} of santa-prop's at equal S", "embedded model, 8k two-hop", r,
                at_most(r, TINY_PPS))
        r = errors_ratio(methods["santa-is:S=256"], prop[128], n)
        add(f"santa-is S=256: mean error at most {TINY_IS:.2f} of santa-prop's at S=128", "embedded model", r, at_most(r, TINY_IS))
    page.say("## Claims")
    page.table(["claim", "measured first by", "tokens", "on prose (95% interval)", "verdict"], rows)


def errors_ratio(above, below, n):
    if "l2" in above["by_prompt"]:
        return ratio(above["by_prompt"]["l2"], below["by_prompt"]["l2"])
    r = above["l2"] / below["l2"]  # not paired, so the interval is wider
    half = student(n) * r * math.hypot(above["l2_se"] / above["l2"], below["l2_se"] / below["l2"])
    return r, r - half, r + half
