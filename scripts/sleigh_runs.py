"""Runs build/sleigh and reads its output, for the other scripts."""
import json
import os
import re
import subprocess
import sys

# All methods run on one device, so that their figures are comparable.
os.environ.setdefault("SLEIGH_DEVICE", "cpu")


def run_jsonl(sleigh, model, path, attn, n_predict=24, threads=0, extra=()):
    """Runs `sleigh generate --jsonl` greedily, and yields one result object for each line as it is printed. Every step draws."""
    cmd = [sleigh, "generate", "-m", model, "--jsonl", path, f"--attn={attn}", "--exact-below", "off", "--temp", "0", "-n", str(n_predict),
           "--stop", "\n", "--no-perf", *extra]
    if threads:
        cmd += ["-t", str(threads)]
    with subprocess.Popen(cmd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as p:
        for line in p.stdout:
            yield json.loads(line)
        err = p.stderr.read()
    if p.returncode:
        sys.exit(f"{' '.join(cmd)}: exit {p.returncode}\n{err}")


def model_line(sleigh, model):
    """The line above a table: `model: tiny (llama, 5.51 M parameters, bf16)`."""
    p = subprocess.run([sleigh, "inspect", "-m", model], capture_output=True, text=True)
    if p.returncode:
        sys.exit(p.stderr)
    return p.stdout.split("\n", 1)[0]


def run_generate(sleigh, model, prompt_path, attn, n_predict, threads, extra=()):
    """Runs `sleigh generate` on a file. Returns the text, and a dict of the lines on stderr: {text before the colon: text after it}."""
    cmd = [sleigh, "generate", "-m", model, "-f", prompt_path, f"--attn={attn}", "--temp", "0", "-n", str(n_predict),
           "-t", str(threads), "--no-display-prompt", *extra]
    p = subprocess.run(cmd, capture_output=True, text=True)
    if p.returncode:
        sys.exit(f"{' '.join(cmd)}: exit {p.returncode}\n{p.stderr}")
    stats = {}
    for line in p.stderr.splitlines():
        key, _, rest = line.partition(":")
        stats[key.strip()] = rest.strip()
    return p.stdout, stats


def number_before(text, unit):
    """Returns the number before `unit` in a line: number_before('3 ms, 20.5 tok/s', 'tok/s') == 20.5."""
    m = re.search(r"([-+0-9.eE]+)\s*" + re.escape(unit), text)
    if not m:
        sys.exit(f"no number before {unit!r} in {text!r}")
    return float(m.group(1))


def head_lines(question, answer, dates, commits, command):
    """The five lines that begin a page of results/, below its title. dates, commits: of all parts of the measurement."""
    days, known = sorted(set(dates)), list(dict.fromkeys(c for c in commits if c and c != "-"))
    facts = {"Question": question, "Answer": answer, "Date": " to ".join(dict.fromkeys((days[0], days[-1]))),
             "Commit": ", ".join(known) or "not recorded", "Command": command}
    return "\n".join(f"- **{name}:** {text}" for name, text in facts.items())


def bytes_and_kl(figures):
    """A sentence about methods; figures: {method: (share of the KV bytes that it reads, KL from dense attention)}."""
    return "; ".join(f"`{name}` reads {100 * share:.1f}% of the KV bytes and has a KL of {kl:.4f} nats" for name, (share, kl) in figures.items()) + "."


def head_of_parts(parts, question, answer, script):
    """The five lines of a page from the kept parts that `script` measured."""
    results = [part["result"] for part in parts]
    return head_lines(question, answer, [part["date"] for part in parts], [r.get("commit") for r in results], f"`python3 scripts/measure/{script}`")


def draw(sleigh, picture, title, panels):
    """Writes the data file of a picture (its format: cli/output/plot_data.h) and draws the picture with `sleigh plot`. panels: tuples
    of title, label of x, label of y, words for the axes, {curve: [(x, y), ...]}."""
    data = os.path.splitext(picture)[0] + ".dat"
    with open(data, "w") as f:
        f.write(f"# title: {title}\n")
        for name, x_label, y_label, axes, curves in panels:
            f.write(f"# panel: {name}\n# x: {x_label}; y: {y_label}\n# axes: {axes}\n")
            for curve, points in curves.items():
                f.write(f"# curve: {curve}\n" + "".join(" ".join(f"{v:.9g}" for v in point) + "\n" for point in points) + "\n\n")
    if subprocess.run([sleigh, "plot", data, "-o", picture]).returncode:
        sys.exit(f"{picture} was not drawn; its figures are in {data}")
