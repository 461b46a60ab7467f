"""Measurements in parts, for scripts that keep the figures of a page of results/ (prose_results.py, saap_results.py, sparse_prefill.py).

A part runs one command of the program and keeps the figures of its output as one JSON in --results: the command, the day, the seconds, and
the figures. It does not run again while its command, its input and its model are the same. Parts can run in several processes, which share
a folder."""
import collections
import concurrent.futures
import datetime
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time

Part = collections.namedtuple("Part", "name command input model keep")  # input, model None: the command has none


def count(size):
    """'32k' -> 32768"""
    return int(size.removesuffix("k")) * (1024 if size.endswith("k") else 1)


# ---- the command line ----

def add_options(p, work, results, without=""):
    """The options that the scripts share. without: a part that does not run by default."""
    p.add_argument("--sleigh", default="build/sleigh")
    p.add_argument("--work", default=work, help="folder of inputs and of the messages of parts")
    p.add_argument("--results", default=results)
    p.add_argument("--part", nargs="+", action="extend", default=[], metavar="PART", help="by default every part" + without)
    p.add_argument("--device", default="auto")
    p.add_argument("--jobs", type=int, default=1, help="parts that run at the same time; their messages go to .log files in --work")
    p.add_argument("-t", "--threads", type=int, default=0)
    p.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    p.set_defaults(shown_work=work)


def parsed(p, words):
    a = p.parse_args(words)
    a.work = os.path.normpath(a.work)  # `shown` compares it with the folders of files
    a.input = lambda name: os.path.join(a.work, name + ".jsonl")
    return a


def place_flags(args, device=None):
    """The flags of the program for --device and --threads."""
    device = device or args.device
    return ([] if device == "auto" else ["--device", device]) + (["-t", str(args.threads)] if args.threads else [])


# ---- files ----

def write_lines(path, lines):
    with open(path + ".part", "w") as f:
        f.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    os.replace(path + ".part", path)
    print(f"{path}: {len(lines)} lines, {os.path.getsize(path) / 2**20:.1f} MiB", file=sys.stderr)


def hash_of(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()[:16]


def weights_of(model):
    """The file of weights: the model itself, or a file of its folder."""
    return model if os.path.isfile(model) else os.path.join(model, "model.safetensors")


# ---- figures that are kept ----

def rounded(x):
    """Six digits are enough for a page."""
    if isinstance(x, float):
        return float(f"{x:.6g}")
    if isinstance(x, list):
        return [rounded(v) for v in x]
    return {k: rounded(v) for k, v in x.items()} if isinstance(x, dict) else x


PROGRAM = ("version", "commit", "device", "n_params", "dtype")


def of_document(doc, **figures):
    return {**{k: doc[k] for k in PROGRAM if k in doc}, "seed": doc.get("seed"), **figures}


# ---- runs ----

def shown(args, part):
    """The command as a reader types it in the repository."""
    names = {word: f"{args.shown_work}/{os.path.basename(word)}" for word in part.command if os.path.dirname(word) == args.work}
    names[args.sleigh] = "build/sleigh"
    return " ".join(shlex.quote(names.get(word, word)) for word in part.command)


def print_commands(args, parts):
    for part in parts:
        print(f"{part.name}: {shown(args, part)}")


def document_of(text):
    """A program prints one document, or a JSON line for each row."""
    lines = text.splitlines()
    return json.loads(text) if len(lines) == 1 or not lines[0].endswith("}") else {"rows": [json.loads(line) for line in lines]}


def run_part(args, part):
    """Runs a part unless its file is there. Returns the reason of a failure."""
    path = os.path.join(args.results, part.name.replace(":", "-") + ".json")
    try:
        key = {"command": shown(args, part), "input": part.input and hash_of(part.input),
               "model": part.model and hash_of(weights_of(part.model))}
    except OSError as e:
        return f"{part.name}: {e}; the script's help tells how inputs are made"
    if os.path.exists(path):
        with open(path) as f:
            before = json.load(f)
        if {k: before.get(k) for k in key} == key:
            print(f"{part.name}: {path} is there", file=sys.stderr)
            return None
    print(f"{part.name}: {key['command']}", file=sys.stderr, flush=True)
    start = time.monotonic()
    out, log = (os.path.join(args.work, os.path.basename(path).replace(".json", end)) for end in (".out", ".log"))
    with open(out, "w") as o, open(log, "w") as e:
        run = subprocess.run(part.command, stdout=o, stderr=e if args.jobs > 1 else None)
    if run.returncode:
        return f"{part.name}: exit {run.returncode}" + (f"; {log} has the reason" if args.jobs > 1 else "")
    with open(out) as f:
        kept = {"part": part.name, **key, "date": datetime.date.today().isoformat(), "seconds": round(time.monotonic() - start, 1),
                "result": rounded(part.keep(document_of(f.read())))}
    with open(path + ".part", "w") as f:
        json.dump(kept, f, separators=(",", ":"))
        f.write("\n")
    os.replace(path + ".part", path)
    os.remove(out)
    print(f"{part.name}: {kept['seconds']} s, {path}", file=sys.stderr, flush=True)
    return None


def chosen(parts, names):
    """The parts that the names select: `methods` selects methods:4k, methods:8k, ..."""
    for name in names:
        if not any(p == name or p.startswith(name + ":") for p in parts):
            sys.exit(f"--part {name}: expected one of {' '.join(parts)}")
    return [p for p in parts.values() if not names or any(p.name == n or p.name.startswith(n + ":") for n in names)]


def run_all(args, parts):
    """Runs the parts, args.jobs at the same time. Ends the program with the reasons of the failures."""
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        faults = [fault for fault in pool.map(lambda part: run_part(args, part), parts) if fault]
    if faults:
        sys.exit("\n".join(faults))


def only_inputs(args):
    """Takes the part "inputs", which the script makes itself, out of args.part. Returns True if args.part named no other part."""
    if "inputs" not in args.part:
        return False
    args.part.remove("inputs")
    return not args.part


def run_chosen(args, parts):
    """Runs the parts that args.part names; with --list, prints their commands instead."""
    parts = chosen(parts, args.part)
    if args.list:
        return print_commands(args, parts)
    os.makedirs(args.results, exist_ok=True)
    return run_all(args, parts)


# ---- for self-tests ----

def expect(right, what):
    if not right:
        sys.exit(f"{os.path.basename(sys.argv[0])}: self-test: {what}")
