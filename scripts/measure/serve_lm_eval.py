#!/usr/bin/env python3
"""Scores texts with lm-eval through `sleigh serve`, and with `sleigh perplexity`, and compares the numbers. Needs lm-eval (0.9 GB with all
that it needs, so the test suite does not have it):

    python3 -m venv build/lm-eval && build/lm-eval/bin/pip install lm-eval tenacity
    build/lm-eval/bin/python scripts/measure/serve_lm_eval.py -m tiny
    build/lm-eval/bin/python scripts/measure/serve_lm_eval.py -m SmolLM2-135M-Instruct.Q4_1.gguf

lm-eval is its own program with `--model local-completions`, without a network. It takes the tokenizer of the server. The task "rolling"
scores every token of a text after BOS: `sleigh perplexity -c N --score N-1` of the same text scores the same tokens. The task "choice"
scores two continuations of a context: `sleigh perplexity` scores the tokens of the continuation. Both programs print the sum of the
logarithms; the table compares them with 6 digits. Exits with 1 if a number differs."""
import argparse
import json
import os
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import sleigh_server  # noqa: E402

TEXTS = [
    "The hidden number of the bay is 48213. What is the hidden number of the bay? Answer: 48213.",
    "The house stood at the end of the road, and nobody had lived there for years.\n\nIn spring the river came up to its door.",
    "A function returns 0 or a negative error. The reason goes to the caller: file, tensor or option, found, expected.",
    "Größe, naïve, 東京, 3.14159 and 2^10 = 1024; \"quotes\", tabs\tand (brackets) [too] {all}.",
]
CHOICES = [
    ("The hidden number of the bay is 48213. What is the hidden number of the bay? Answer:", [" 48213", " 71954"], 0),
    ("The hidden number of the farm is 30577. What is the hidden number of the farm? Answer:", [" 30577", " 12"], 0),
    ("The sky is", [" blue", " of the"], 0),
]


def write_tasks(folder, bos):
    def rows(name, values):
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as f:
            f.writelines(json.dumps(v) + "\n" for v in values)
        return path
    texts = rows("texts.jsonl", [{"text": t} for t in TEXTS])
    choices = rows("choices.jsonl", [{"context": bos + c, "choices": list(v), "gold": g} for c, v, g in CHOICES])
    # JSON is YAML.
    tasks = {
        "rolling": {"dataset_kwargs": {"data_files": {"test": texts}}, "output_type": "loglikelihood_rolling", "doc_to_text": "",
                    "doc_to_target": "{{text}}", "metric_list": [{"metric": "byte_perplexity"}]},
        "choice": {"dataset_kwargs": {"data_files": {"test": choices}}, "output_type": "multiple_choice", "doc_to_text": "{{context}}",
                   "doc_to_choice": "choices", "doc_to_target": "gold", "target_delimiter": "", "metric_list": [{"metric": "acc"}]},
    }
    for name, task in tasks.items():
        task |= {"task": "sleigh_" + name, "dataset_path": "json", "test_split": "test", "metadata": {"version": 1}}
        with open(os.path.join(folder, name + ".yaml"), "w", encoding="utf-8") as f:
            json.dump(task, f)


def run_lm_eval(folder, server, args):
    """{task: the responses of each document}, and lm-eval's results."""
    out = os.path.join(folder, "out")
    model = f"model=m,base_url={server.url}/v1/completions,max_length=2048,num_concurrent={args.concurrent}"
    if args.tokenizer:
        model += f",tokenizer_backend=huggingface,tokenizer={args.tokenizer}"
    env = os.environ | {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": os.path.join(folder, "hf")}
    run = subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model, "--include_path",
                          folder, "--tasks", "sleigh_rolling,sleigh_choice", "--output_path", out, "--log_samples"], env=env,
                         capture_output=True, text=True, check=False)
    if run.returncode:
        sys.exit(f"lm-eval failed:\n{run.stderr[-4000:]}")
    samples, results = {}, {}
    for folder_name, _, names in os.walk(out):
        for name in names:
            path = os.path.join(folder_name, name)
            with open(path, encoding="utf-8") as f:
                if name.startswith("samples_sleigh_"):
                    task = name.split("_")[2]
                    docs = sorted((json.loads(line) for line in f), key=lambda v: v["doc_id"])
                    samples[task] = [v["filtered_resps"] for v in docs]
                elif name.startswith("results_"):
                    results = json.load(f)
    return samples, results


def output_of(args, *words, text):
    return subprocess.run([args.sleigh, words[0], "-q", "-m", args.model, "-f", "-", "-o", "json", *words[1:]], input=text, capture_output=True,
                          check=True, text=True).stdout


def perplexity(args, text, context=""):
    """(tokens, their mean negative logarithm): of a text behind its context, without the first token."""
    def count(t):
        return json.loads(output_of(args, "tokenize", "--bos", text=t))["n_tokens"]
    n = count(context + text)
    scored = n - count(context) if context else n - 1
    row = json.loads(output_of(args, "perplexity", "-c", str(n), "--score", str(scored), text=context + text))
    assert row["scored"] == scored
    return scored, row["nll"]


def compare(args, bos, samples):
    """A row for each text that both programs scored."""
    adds_bos = json.loads(output_of(args, "tokenize", "--bos", text="a"))["n_tokens"] > json.loads(output_of(args, "tokenize", text="a"))["n_tokens"]
    first = "" if adds_bos else bos

    def row(task, name, ours, theirs):
        n, nll = ours
        theirs = float(f"{-theirs / n:.9g}")  # the digits of `perplexity`
        return {"task": task, "text": name, "tokens": n, "lm-eval": theirs, "sleigh perplexity": nll, "equal": theirs == nll}
    rows = [row("rolling", i, perplexity(args, first + t), float(samples["rolling"][i][0])) for i, t in enumerate(TEXTS)]
    for i, (context, choices, _) in enumerate(CHOICES):
        rows += [row("choice", f"{i}: {c.strip()}", perplexity(args, c, first + context), float(samples["choice"][i][k][0]))
                 for k, c in enumerate(choices)]
    return rows


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("-m", "--model", default="tiny")
    p.add_argument("--tokenizer", help="a folder with a tokenizer of Hugging Face, in place of the server's")
    p.add_argument("--concurrent", type=int, default=4)
    p.add_argument("-o", "--output", choices=("md", "json"), default="md")
    args = p.parse_args()
    with sleigh_server.Server(args.sleigh, args.model, "-c", "4k", "-np", str(args.concurrent)) as server, tempfile.TemporaryDirectory() as folder:
        bos = json.loads(server.get("/tokenizer_info")[1])["bos_token"]
        write_tasks(folder, bos)
        samples, results = run_lm_eval(folder, server, args)
        rows = compare(args, bos, samples)
    print(sleigh_server.table(rows, args.output))
    print(f"lm-eval {results['lm_eval_version']}, accuracy of the choices {results['results']['sleigh_choice']['acc,none']:.3f}", file=sys.stderr)
    sys.exit(not all(row["equal"] for row in rows))


if __name__ == "__main__":
    main()
