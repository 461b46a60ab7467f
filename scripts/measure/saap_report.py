#!/usr/bin/env python3
"""Writes results/saap.md and its picture from the figures that scripts/measure/saap_results.py keeps.

    python3 scripts/measure/saap_report.py [--results results/saap] [-o results/saap.md] [--no-picture]

The page has a section for each part that is in the folder; a part that is not there leaves no trace. The page includes the file notes.md of
the folder, which people write."""
import argparse
import collections
import json
import os
import re
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from prose_report import Page, run_report, show, tokens
from sleigh_runs import draw, head_of_parts
from sparse_prefill_report import Kept, commands, number, percent

TEXTS = {"needle": "texts of the training's kind", "numbers": "numbers", "code": "C source"}
# A family of methods is a curve; the pattern takes its parameter.
FAMILIES = (("saap", r"saap:l=(\d+)"), ("saap-kmeans", r"saap-kmeans:l=(\d+)"), ("saap-kmeans, rope=1", r"saap-kmeans:l=(\d+):rope=1"),
            ("saap-is", r"saap-is:(?:S=\d+:)?l=(\d+)"), ("streaming", r"streaming:sink=(\d+).*"), ("quest", r"quest:tokens=(\d+)"),
            ("santa-is", r"santa-is:S=(\d+)"))
DEFAULT_L = "32"  # names of methods leave out default values
GOAL = 3.5        # times the speed of dense attention
GOAL_SIZE = "1 x 171k"


def spelled(attn):
    """The name of a method with its value of l."""
    name, *rest = attn.split(":")
    if name.startswith("saap") and not any(word.startswith("l=") for word in rest):
        rest.insert(0, f"l={DEFAULT_L}")
    if name == "saap-is":  # 'saap-is' and 'saap-is:S=256' are the same
        rest = sorted((word for word in rest if word != "S=256"), key=lambda word: not word.startswith("l="))
    if name == "santa-is" and not rest:
        rest = ["S=256"]
    return ":".join([name, *rest])


def family(attn):
    """('saap', 32) of 'saap', ('quest', 512) of 'quest:tokens=512'."""
    for name, pattern in FAMILIES:
        m = re.fullmatch(pattern, spelled(attn))
        if m:
            return name, int(m.group(1))
    return attn, 0


def order(row):
    name, value = family(row["attn"])
    names = [f for f, _ in FAMILIES]
    return names.index(name) if name in names else -1, value


# ---- kept figures ----

def heads(kept):
    """{length: {text: part}} of the outputs of heads, the shortest length first."""
    out = collections.defaultdict(dict)
    for name, part in kept.parts.items():
        if name.startswith("heads:"):
            out[name.split(":")[1]][name.split(":")[2]] = part
    return {size: {text: out[size][text] for text in TEXTS if text in out[size]} for size in sorted(out, key=tokens)}


def rows_of(part):
    return sorted(part["result"]["methods"], key=order)


def keys_share(part, row):
    """Rows of K that a head reads, divided by the rows of the text."""
    n = part["result"]["n_prompt"]
    return row["k_rows"] / (sum(n) / len(n))


# ---- sections ----

def answer(kept):
    """Errors and bytes of the longest texts of the first kind."""
    size, of_text = list(heads(kept).items())[-1]
    text, part = next(iter(of_text.items()))
    of = {spelled(row["attn"]): row for row in rows_of(part)}
    found = [f"`{name}` has an error of {of[name]['l2']:.3f} and reads {percent(of[name]['bytes_share'])}% of the bytes"
             for name in ("saap:l=32", "saap-is:l=32", "santa-is:S=256") if name in of]
    return f"At {size} tokens ({TEXTS[text]}), {'; '.join(found)}."


def begin(page, kept):
    made = collections.defaultdict(list)
    for part in kept.parts.values():
        r = part["result"]
        made[f"{part['date']}, sleigh {r['version']}, commit {r['commit']}, {r['device']}"].append(part["part"])
    page.say("# Buckets: saap, saap-kmeans, saap-is")
    page.say(head_of_parts(list(kept.parts.values()), "Which error do methods with learned buckets of keys have for the bytes that they read?",
                           answer(kept), "saap_results.py"))
    page.say("`scripts/measure/saap_report.py` wrote this page from the figures in `results/saap`, which `scripts/measure/saap_results.py` measured with the\n"
             "commands of each section. The model is the embedded one with its bucket file (C = 256, width 256, layer 0 dense).")
    notes = kept.notes()
    if notes:
        page.out.append(notes.replace("sparse-prefill/notes.md", "saap/notes.md"))
    page.say("## How to read the tables")
    page.say("- The **error** is the relative L2 error of a head's output, a mean over layers, heads and steps. Dense attention decodes, and every method\n"
             "  runs on its states. **KL** is the divergence of the next token from dense attention's, in nats, where the method decodes.\n"
             "- **Bytes** are the KV bytes that a method reads, as a share of dense attention's: rows, index, centroids or classifier. **Keys** are the\n"
             "  rows of K that a head reads, as a share of all rows. `quest` and `santa-is` propose from other data, so their keys count the rows that\n"
             "  they score exactly.\n"
             "- saap methods read every row of layer 0, and the last 2,047 rows of the other layers. So 1/4 of all bytes is the least at any length.\n"
             "- Texts: `needle`, questions of the training's kind with other seeds; `numbers`, multiples of a prime; `code`, C source of this tree. The\n"
             "  classifier and the centroids were not trained on the last two.")
    page.say("Measured on:\n\n" + "\n".join(f"- {how}: {', '.join(what)}" for how, what in made.items()))


def error_tables(page, kept):
    for size, of_text in heads(kept).items():
        page.say(f"## Error of heads at {size}")
        page.say("Each cell has the error, the bytes and the keys.")
        rows = {text: {spelled(row["attn"]): row for row in rows_of(part)} for text, part in of_text.items()}
        methods = [spelled(row["attn"]) for row in rows_of(next(iter(of_text.values())))]
        page.table(["method", *(TEXTS[text] for text in of_text)],
                   [[f"`{attn}`", *(f"{rows[text][attn]['l2']:.4f}; {percent(rows[text][attn]['bytes_share'])}%; "
                                    f"{percent(keys_share(of_text[text], rows[text][attn]))}%" for text in of_text)] for attn in methods])
        page.say("KL of the next tokens, and the share of steps with the same most likely token:")
        page.table(["method", *(TEXTS[text] for text in of_text)],
                   [[f"`{attn}`", *(f"{number(rows[text][attn]['kl'])}; {percent(rows[text][attn]['top1'])}%" for text in of_text)] for attn in methods])
        commands(page, of_text.values())


def holds(page, kept):
    """Where saap has a large error: does saap-is have a smaller one with the same l?"""
    body = []
    for size, of_text in heads(kept).items():
        for text, part in of_text.items():
            errors = collections.defaultdict(dict)
            for row in rows_of(part):
                name, value = family(row["attn"])
                errors[name][value] = row
            for l in sorted(set(errors["saap"]) & set(errors["saap-is"])):
                a, b = errors["saap"][l], errors["saap-is"][l]
                body.append([size, TEXTS[text], str(l), f"{a['l2']:.4f}", f"{b['l2']:.4f}", f"{b['l2'] / a['l2']:.2f}" if a["l2"] else "-",
                             f"{100 * (b['bytes_share'] - a['bytes_share']):+.1f}"])
    if body:
        page.say("## Does saap-is hold where saap fails?")
        page.say("The error of saap-is (S = 256), and that of saap, with the same l. A ratio below 1 says that the draws help. The last column is what they\n"
                 "cost, in points of dense attention's bytes.")
        page.table(["tokens", "text", "l", "saap", "saap-is", "ratio", "more bytes"], body)


def scores(page, kept):
    for size, parts in kept.of("score").items():
        rows, part = collections.defaultdict(dict), parts[0]
        for row in part["result"]["rows"]:
            rows[spelled(row["attn"])][row["task"]] = row
        tasks = [task for task in rows["dense"] if task != "all"]
        page.say(f"## Answers at {size}")
        page.say(f"Share of right answers in percent: {', '.join(tasks)} ({rows['dense']['all']['samples']} questions in all). The method decodes the question\n"
                 "too. The last columns have the 95% interval of all tasks, and the difference to dense attention on the same questions.")
        body = []
        for attn in sorted(rows, key=lambda attn: order({"attn": attn})):
            last = rows[attn]["all"]
            gap = show(tuple(last[k] for k in ("difference", "difference_low", "difference_high")), 1, 100) if attn != "dense" else "-"
            body.append([f"`{attn}`", percent(last["kv_bytes_share"]), *(percent(rows[attn][task]["score"]) for task in tasks),
                         show((last["score"], last["score_low"], last["score_high"]), 1, 100), gap])
        page.table(["method", "bytes %", *tasks, "all", "difference, points"], body)
        commands(page, parts)


def times(page, kept):
    parts = [kept.parts[name] for name in ("kernels", "kernels-batch") if name in kept.parts]
    if not parts:
        return
    us, sizes = collections.defaultdict(dict), []
    for part in parts:
        for row in part["result"]["rows"]:
            sizes += [row["size"]] if row["size"] not in sizes else []
            us[spelled(row["attn"])][row["size"]] = row
    page.say(f"## Time on {parts[0]['result']['device']}")
    page.say("Attention of one layer in the shape of Llama-3.1-8B (32 heads, 8 KV heads of 128), C = 1024, width 1024, random keys, in microseconds. The\n"
             "times include the classifier or the centroids' scores. fa2: FlashAttention-2; fa3: FlashAttention-3; cudnn: cuDNN, all through PyTorch.")
    body = [[f"`{attn}`", *(f"{of[size]['us']:.1f}" if size in of else "-" for size in sizes)] for attn, of in us.items()]
    peers = kept.parts.get("peers")
    found = {f"{row['batch']} x {row['n'] >> 10}k": row for row in peers["result"]["rows"]} if peers else {}
    for name in ("fa2_us", "fa3_us", "cudnn_us"):
        if any(name in row for row in found.values()):
            body.append([name.removesuffix("_us"), *(f"{found[size][name]:.1f}" if size in found and name in found[size] else "-" for size in sizes)])
    page.table(["method", *sizes], body)
    if GOAL_SIZE in us["dense"]:
        dense = us["dense"][GOAL_SIZE]["us"]
        page.say(f"Speed at {GOAL_SIZE} in multiples of dense attention (the goal for saap:l=32 is {GOAL:g}): "
                 + ", ".join(f"{attn} {dense / of[GOAL_SIZE]['us']:.2f}" for attn, of in us.items() if attn != "dense" and GOAL_SIZE in of) + ".")
    commands(page, parts + ([peers] if peers else []))


# ---- the picture ----

def curves(rows, x, y):
    """{family: points}, a family with one point as well."""
    out = collections.defaultdict(list)
    for row in rows:
        if row["attn"] != "dense":
            out[family(row["attn"])[0]].append((100 * x(row), y(row)))
    return {name: sorted(points) for name, points in out.items()}


def picture(page, kept, args):
    panels = []
    for size, parts in kept.of("score").items():
        rows = [row for row in parts[0]["result"]["rows"] if row["task"] == "all"]
        panels.append((f"{size}: right answers", "KV bytes read, % of dense attention", "score, %", "lines",
                       curves(sorted(rows, key=order), lambda r: r["kv_bytes_share"], lambda r: 100 * r["score"])))
    for size, of_text in list(heads(kept).items())[-1:]:
        for i, (text, part) in enumerate(of_text.items()):
            axes = "log-y lines" if i or not panels else "log-y lines new-row"
            panels.append((f"{size}: error, {TEXTS[text]}", "KV bytes read, % of dense attention", "relative L2 error of heads", axes,
                           curves([row for row in rows_of(part) if row["l2"] > 0], lambda r: r["bytes_share"], lambda r: r["l2"])))
    if not panels:
        return
    path = os.path.splitext(args.output)[0] + ".svg"
    if args.picture:
        draw(args.sleigh, path, "buckets", panels)
    page.say(f"![score and error against bytes read]({os.path.basename(path)})")


def report(kept, args):
    page = Page()
    begin(page, kept)
    picture(page, kept, args)
    times(page, kept)
    holds(page, kept)
    scores(page, kept)
    error_tables(page, kept)
    return "".join(page.out).rstrip() + "\n"


# ---- self-test ----

def invented_parts():
    def method(attn, l2, share):
        return {"attn": attn, "l2": l2, "bytes_share": share, "k_rows": 100, "kl": 0.01, "top1": 0.9}

    def score(attn, task, x, share):
        return {"attn": attn, "task": task, "samples": 4, "score": x, "score_low": x - 0.1, "score_high": x, "difference": x - 1, "difference_low": x - 1,
                "difference_high": x - 1, "kv_bytes_share": share}

    parts = {
        "heads:4k:code": {"prompts": ["a"], "n_prompt": [400], "methods": [method("saap", 0.2, 0.3), method("saap-is:S=256", 0.1, 0.4), method("quest:tokens=512", 0.3, 0.1)]},
        "score:4k": {"rows": [score(a, t, x, s) for a, x, s in (("dense", 1, 1), ("saap:l=2", 0.5, 0.3)) for t in ("fwe", "all")]},
        "kernels": {"rows": [{"attn": a, "size": "1 x 171k", "us": us} for a, us in (("dense", 200), ("saap", 50))]},
        "peers": {"rows": [{"batch": 1, "n": 175104, "fa2_us": 210.0}]},
    }
    return {name: {"part": name, "command": f"build/sleigh {name}", "date": "2026-01-01", "result": {"version": "0", "commit": "c", "device": "d", **r}}
            for name, r in parts.items()}


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        for name, part in invented_parts().items():
            with open(os.path.join(folder, name.replace(":", "-") + ".json"), "w") as f:
                json.dump(part, f)
        text = report(Kept(folder), argparse.Namespace(picture=False, output="saap.md"))
    for line in ("| `saap:l=32` | 0.2000; 30.0%; 25.0% |", "| 4k | C source | 32 | 0.2000 | 0.1000 | 0.50 | +10.0 |",
                 "| `saap:l=2` | 30.0 | 50.0 | 50.0 (40.0 to 50.0) | -50.0 (-50.0 to -50.0) |", "| `dense` | 100.0 | 100.0 | 100.0 (90.0 to 100.0) | - |",
                 "| `saap:l=32` | 50.0 |", "| fa2 | 210.0 |", "saap:l=32 4.00."):
        if line not in text:
            sys.exit(f"saap_report: self-test: expected {line!r} in\n{text}")


if __name__ == "__main__":
    run_report(__doc__, "saap", "saap_results.py", Kept, report, self_test)
