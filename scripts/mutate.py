#!/usr/bin/env python3
"""The mutation run: breaks the program in one place at a time and reports the breaks that the test suite does not notice.

    python3 scripts/mutate.py -j 2 --results build/mutate.jsonl               # everything except the CUDA kernels
    python3 scripts/mutate.py --gpu -j 4 --results build/mutate-gpu.jsonl     # the CUDA kernels, on a machine with a GPU
    python3 scripts/mutate.py --report --results build/mutate.jsonl --results build/mutate-gpu.jsonl

Mutations are written by hand in scripts/mutations/*.txt (kind "hand"; mutants.py describes the format), or generated with fixed
operators (kind "made"; --made is their number, --seed chooses them). The run applies each mutation to a copy of the tree under --work,
builds it, and runs the suites that should notice it. A mutation is killed when a test fails, crashes or takes ten times its time. A
mutation that does not compile does not count. First the unmutated tree must pass the same suites.

The exit status is 1 when less than --goal of the built, non-equivalent mutations is killed, or when a survivor has no explanation. The
run appends each result to the first --results file, and an interrupted run continues from this file. A mutation that survived an
earlier state of the tree runs again; a killed mutation does not. CI does not run this, because it takes hours."""
import argparse
import collections
import concurrent.futures
import csv
import fcntl
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import mutants

BUILD = "build/mutate-objects"  # in each copy
MAKE = (f"BUILD={BUILD}", "OPT=-O3 -g0 -Wno-error")
MEMORY = 16 << 30  # address space of a test on a CPU, because a mutant may allocate any amount
TIMES, LEAST = 10, 60  # a test run may take ten times as long as without a mutation, and a minute


def say(text):
    print(text, file=sys.stderr, flush=True)


# ---- copies of the tree ----


def mirror(source, to):
    """Makes the folder `to` equal to `source`. Copies only files that differ, with the times of the source files."""
    os.makedirs(to, exist_ok=True)
    wanted = {x.name: x for x in os.scandir(source)}
    have = {x.name: x for x in os.scandir(to)}
    for name in have.keys() - wanted.keys():
        path = os.path.join(to, name)
        shutil.rmtree(path) if have[name].is_dir(follow_symlinks=False) else os.remove(path)
    for name, entry in wanted.items():
        path = os.path.join(to, name)
        if entry.is_dir(follow_symlinks=False):
            mirror(entry.path, path)
            continue
        a, b = entry.stat(), have[name].stat() if name in have else None
        if b is None or (a.st_mtime_ns, a.st_size) != (b.st_mtime_ns, b.st_size):
            shutil.copy2(entry.path, path)


def copy_tree(to):
    """Copies the tracked files to the folder. Equal files are not touched, so that make builds only what changed. Returns a hash
    of all files except documents and this program."""
    state, paths = hashlib.sha256(), mutants.tracked()
    for path in paths:
        target = os.path.join(to, path)
        with open(os.path.join(mutants.ROOT, path), "rb") as f:
            data = f.read()
        if not re.match(r"docs/|scripts/mut|.*\.md$", path):
            state.update(path.encode() + b"\0" + hashlib.sha256(data).digest())
        if os.path.exists(target):
            with open(target, "rb") as f:
                if f.read() == data:
                    continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with open(target, "wb") as f:
            f.write(data)
        shutil.copymode(os.path.join(mutants.ROOT, path), target)
    known = set(paths)
    for folder, folders, files in os.walk(to):
        folders[:] = [x for x in folders if os.path.join(folder, x) != os.path.join(to, "build")]
        for name in files:
            path = os.path.join(folder, name)
            if os.path.relpath(path, to) not in known:
                os.remove(path)
    return state.hexdigest()[:12]


# ---- commands ----


class Runner:
    def __init__(self, args):
        self.args, self.lock, self.running = args, threading.Lock(), set()
        self.env = dict(os.environ, SLEIGH_BIN=f"{BUILD}/sleigh", OMP_WAIT_POLICY="passive")
        shared = os.environ.get("SLEIGH_SHARED", os.path.join(mutants.ROOT, "../shared"))
        if os.path.isdir(shared):
            self.env["SLEIGH_SHARED"] = os.path.abspath(shared)

    def command(self, words, folder, timeout, limited=False):
        """Returns exit status (None at the time limit) and output. Ends all processes that the command started."""
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))) if limited else None
        with self.lock:
            p = subprocess.Popen(words, cwd=folder, env=self.env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limit)
            self.running.add(p)
        try:
            out = p.communicate(timeout=timeout)[0]
            status = p.returncode
        except subprocess.TimeoutExpired:
            status, out = None, b""
        self.end(p)
        with self.lock:
            self.running.discard(p)
        return status, out.decode(errors="replace")

    def end(self, p):
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        p.wait()
        p.stdout.close()

    def make(self, folder, jobs):
        words = ["make", f"-j{jobs}", *MAKE, *self.args.make, "all"]
        if not self.args.gpu:
            words.insert(2, "CUDA=0")
        return self.command(words, folder, 1800)

    def suite(self, folder, name, timeout):
        """Returns the name of the failed case (or None), the seconds, and the cases that passed."""
        words = [f"{BUILD}/sleigh-test", "--fail-fast", *(["--gpu"] if self.args.gpu else []), name]
        start = time.time()
        status, out = self.command(words, folder, timeout, not self.args.gpu)
        seconds = time.time() - start
        passed = re.findall(r"^ok +(\S+)", out, re.M)
        failed = re.search(r"^FAIL +(\S+) *(.*)", out, re.M)
        if status is None:
            return f"time limit of {name}", seconds, passed
        if failed:
            return failed[1], seconds, passed
        if status:
            last = out.strip().splitlines()[-1:]
            return f"crash in {name} ({': '.join([str(status), *last])[:200]})", seconds, passed
        return None, seconds, passed


def unmutated(runner, base, names):
    """Returns the seconds of each suite on the unmutated tree. Ends the program when a suite fails."""
    say("unmutated tree: build")
    status, out = runner.make(base, os.cpu_count() or 1)
    if status != 0:
        sys.exit(f"mutate.py: the unmutated tree does not build:\n{out[-4000:]}")
    times = {}
    with concurrent.futures.ThreadPoolExecutor(runner.args.jobs) as pool:
        for i, (name, done) in enumerate(zip(names, pool.map(lambda x: runner.suite(base, x, 3600), names)), 1):
            failed, times[name], passed = done
            say(f"unmutated tree: {i}/{len(names)} {name}: {failed or f'{len(passed)} passed'}, {times[name]:.1f} s")
            if failed or not passed:
                sys.exit(f"mutate.py: the unmutated tree does not pass {name}: {failed or 'no case ran'}")
    return times


# The kernel files of each suite.
KERNELS = {"cuda_santa/": "santa.cu", "cuda_pps/": "pps.cu", "cuda_is/": "santa_is.cu dense_q.cu", "cuda_sparse/": "sparse.cu quest.cu",
           "cuda_bernoulli/": "bernoulli.cu", "cuda_vattention/": "vattention.cu"}


def keep_far_objects(folder, mutation):
    """--near: after a change of a device header, make builds only the kernels of the named suites. The other objects get a newer
    time. Without such a suite make builds all kernels."""
    near = " ".join(KERNELS.get(x, "") for x in mutation.suites).split()
    if not mutation.path.startswith("attention/cuda/") or not mutation.path.endswith(".cuh") or not near:
        return
    objects = os.path.join(folder, BUILD, "attention/cuda")
    later = time.time() + 60
    for name in os.listdir(objects):
        if name.endswith(".cu.o") and name[:-2] not in near:
            os.utime(os.path.join(objects, name), (later, later))


def attempt(runner, mutation, base, folder, times):
    """Runs one mutation in a copy of the tree and returns its record."""
    record = dict(mutation.row(), result="survived", by="", seconds=0)
    start = time.time()
    mirror(base, folder)
    path = os.path.join(folder, mutation.path)
    with open(path, encoding="utf-8") as f:
        text = f.read()
    with open(path, "w", encoding="utf-8") as f:
        f.write(mutation.apply(text))
    if runner.args.near:
        keep_far_objects(folder, mutation)
    status, out = runner.make(folder, runner.args.make_jobs)
    if status != 0:
        error = re.search(r"^.*\berror\b.*$", out, re.M)
        record.update(result="not built", by=error[0].strip()[:200] if error else "make failed")
    else:
        for name in sorted(mutation.suites, key=times.get):
            failed, _, _ = runner.suite(folder, name, max(LEAST, TIMES * times[name]))
            if failed:
                record.update(result="killed", by=failed)
                break
    record["seconds"] = round(time.time() - start, 1)
    return record


# ---- results ----


def load(paths):
    """Returns the last record of each mutation, and the times of the unmutated suites for each state of the tree."""
    records, times = {}, {}
    for path in paths:
        if not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as f:
            for line in f:
                try:
                    x = json.loads(line)
                except ValueError:
                    continue  # an interrupted run wrote only a part of this line
                if "times" in x:
                    times.setdefault(x["tree"], {}).update(x["times"])
                elif x["key"] not in records or x["result"] != "not run":
                    records[x["key"]] = x
    return records, times


def append(path, record):
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def verdict(mutation, records):
    x = records.get(mutation.key())
    if x is None:
        return "not tried"
    if mutation.equivalent and x["result"] == "survived":
        return "equivalent"
    return x["result"]


COLUMNS = ("killed", "survived", "equivalent", "not built", "not tried")


def report(mutations, records, args):
    """Prints the table and the survivors. Returns 1 when the goal is met."""
    counts = {}
    for m in mutations:
        for row in ((m.folder, m.kind), (m.folder, "all"), ("all", m.kind), ("all", "all")):
            counts.setdefault(row, collections.Counter())[verdict(m, records)] += 1
    rows = []
    for folder in (*mutants.FOLDERS, "all"):
        for kind in ("hand", "made", "all"):
            c = counts.get((folder, kind))
            if c:
                tried = c["killed"] + c["survived"]
                rows.append({"folder": folder, "kind": kind, **{x: c[x] for x in COLUMNS},
                             "kill rate": round(100 * c["killed"] / tried, 1) if tried else None})
    survivors = [dict(m.row(), explanation=m.explained or "unexplained") for m in mutations
                 if verdict(m, records) == "survived"]
    equal = [dict(m.row(), explanation=m.equivalent) for m in mutations if verdict(m, records) == "equivalent"]
    if args.output == "json":
        print(json.dumps({"seed": args.seed, "folders": rows, "survivors": survivors, "equivalent": equal}, indent=1))
    elif args.output == "csv":
        w = csv.DictWriter(sys.stdout, list(rows[0]))
        w.writeheader()
        w.writerows(rows)
    else:
        print(f"Seed of the generated mutations: {args.seed}\n")
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        for r in rows:
            print("| " + " | ".join("" if x is None else f"{x}%" if k == "kill rate" else str(x) for k, x in r.items()) + " |")
        for title, some in (("Survivors", survivors), ("Equivalent", equal)):
            print(f"\n{title}: {len(some)}\n")
            for x in some:
                print(f"- `{x['path']}` ({x['kind']}, {x['why']}): {x['explanation']}")
                print("".join(f"\n      {sign} {y}" for sign, y in changed_lines(x)))
    last = counts[("all", "all")]
    tried = last["killed"] + last["survived"]
    if last["not tried"]:
        say(f"{last['not tried']} mutations were not tried")
    return tried and last["killed"] >= args.goal * tried and all(m.explained for m in mutations
                                                                 if verdict(m, records) == "survived")


def changed_lines(x):
    return [(sign, y) for sign, text in (("-", x["old"]), ("+", x["new"])) for y in text.split("\n") if y.strip()]


def listing(mutations, args):
    rows = [m.row() for m in mutations]
    if args.output == "json":
        print(json.dumps(rows, indent=1))
    elif args.output == "csv":
        w = csv.DictWriter(sys.stdout, list(rows[0]))
        w.writeheader()
        w.writerows(dict(r, suites=" ".join(r["suites"])) for r in rows)
    else:
        print(f"{len(rows)} mutations; seed of the generated ones: {args.seed}")
        for x in rows:
            print(f"\n{x['key']} {x['folder']} {x['kind']} {x['path']}: {x['why']} [{' '.join(x['suites'])}]")
            print("\n".join(f"    {sign} {y}" for sign, y in changed_lines(x)))


# ---- the run ----


def every_suite(gpu):
    names = [x for x in re.findall(r"X\((\w+)\)", mutants.read("tests/main.c")) if x not in ("NAME", "scripts")]
    return [x + "/" for x in names if x.startswith("cuda_") == gpu]


def run(mutations, records, times_of, args):
    work, results = os.path.abspath(args.work), args.results[0] if args.results else None
    base, runner, end = os.path.join(work, "base"), Runner(args), time.time() + 60 * args.minutes
    os.makedirs(work, exist_ok=True)
    held = open(os.path.join(work, "lock"), "w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        sys.exit(f"mutate.py: another run uses the folder {work}; pass another folder with --work")
    tree = copy_tree(base)
    for m in mutations:
        m.suites = every_suite(args.gpu) if args.all_suites else [x if "/" in x else x + "/" for x in m.suites]

    def is_done(m):
        x = records.get(m.key())
        return x and not (x["result"] == "survived" and (args.retry or x["tree"] != tree or x["suites"] != m.suites))

    todo = [m for m in mutations if not is_done(m)]
    say(f"{len(mutations)} mutations, {len(todo)} to try; tree {tree}; seed {args.seed}")
    if not todo:
        return
    times = times_of.get(tree, {})
    missing = sorted({x for m in todo for x in m.suites} - times.keys())
    try:
        times.update(unmutated(runner, base, missing))
        append(results, {"tree": tree, "times": {x: times[x] for x in missing}})
        queue, lock, trouble = collections.deque(todo), threading.Lock(), []

        def job(number):
            while time.time() < end and not trouble:
                with lock:
                    if not queue:
                        return
                    m = queue.popleft()
                try:
                    x = attempt(runner, m, base, os.path.join(work, f"job{number}"), times)
                except Exception as e:  # shown by the main thread
                    trouble.append(e)
                    return
                x["tree"] = tree
                with lock:
                    records[m.key()] = x
                    append(results, x)
                    done = len(todo) - len(queue)
                    say(f"{done}/{len(todo)} {x['result']}: {m.path}: {m.why} ({x['by']}) {x['seconds']} s")

        threads = [threading.Thread(target=job, args=(i,), daemon=True) for i in range(args.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(1)
        if trouble:
            raise trouble[0]
    finally:
        with runner.lock:
            for p in list(runner.running):
                os.killpg(p.pid, signal.SIGKILL)
        if not args.keep:
            for name in os.listdir(work):
                if re.fullmatch(r"base|job\d+", name):
                    shutil.rmtree(os.path.join(work, name), ignore_errors=True)


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("-j", "--jobs", type=int, default=1, help="mutations at a time, each in another copy of the tree")
    p.add_argument("--make-jobs", type=int, help="compilers at a time in each job (default: cores / jobs)")
    p.add_argument("--make", action="append", default=[], metavar="VAR=VALUE", help="pass this to make; may be repeated")
    p.add_argument("--gpu", action="store_true", help="run the mutations of CUDA kernels, with nvcc and a GPU; without this flag, all others")
    p.add_argument("--near", action="store_true",
                   help="with --gpu: after a change of a header, build only the kernels of the named suites (faster)")
    p.add_argument("--work", default=os.path.join(mutants.ROOT, "build/mutate"), help="folder of the copies")
    p.add_argument("--keep", action="store_true", help="keep the copies for the next run")
    p.add_argument("--results", action="append", default=[], metavar="FILE",
                   help="JSON lines: the first file is read and appended to, further files are only read")
    p.add_argument("--retry", action="store_true", help="try survivors again")
    p.add_argument("--all-suites", action="store_true", help="run all suites on each mutation, not only the suites that it names")
    p.add_argument("--made", type=int, default=120, metavar="N", help="number of generated mutations (default %(default)s)")
    p.add_argument("--seed", type=int, default=20261121, help="seed of the generated mutations (default %(default)s)")
    p.add_argument("--only", default="", metavar="TEXT", help="only mutations whose folder, path, kind or key begins with this")
    p.add_argument("--part", default="1/1", metavar="I/N", help="only part I of N, to share the work among machines")
    p.add_argument("--minutes", type=float, default=1e6, help="begin no more mutations after this time")
    p.add_argument("--goal", type=float, default=0.92, help="share of mutations to kill (default %(default)s)")
    p.add_argument("-o", "--output", choices=("md", "json", "csv"), default="md")
    p.add_argument("--list", action="store_true", help="print the mutations")
    p.add_argument("--report", action="store_true", help="print the table of all --results files and run nothing")
    p.add_argument("--self-test", action="store_true", help="check the catalogue against the tree")
    args = p.parse_args()
    args.make_jobs = args.make_jobs or max(1, (os.cpu_count() or 1) // args.jobs)
    if args.jobs < 1 or not re.fullmatch(r"[1-9]\d*/[1-9]\d*", args.part):
        p.error("expected -j N with N >= 1 and --part I/N")
    return args


def main():
    args = arguments()
    if args.self_test:
        complaints = mutants.check()
        print("\n".join(complaints) or f"{len(mutants.hand_written())} mutations written by hand, all current")
        return bool(complaints)
    try:
        mutations = mutants.hand_written()
        mutations += mutants.made(args.made, args.seed)
    except mutants.Stale as stale:
        sys.exit(f"mutate.py: {stale}")
    if not (args.list or args.report):
        mutations = [m for m in mutations if (m.folder == "cuda") == args.gpu]
    part, parts = map(int, args.part.split("/"))
    mutations = [m for i, m in enumerate(mutations) if i % parts == part - 1
                 and any(x.startswith(args.only) for x in (m.folder, m.path, m.kind, m.key()))]
    if not mutations:
        sys.exit(f"mutate.py: no mutation for --only {args.only} --part {args.part}")
    if args.list:
        listing(mutations, args)
        return 0
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutate.py: terminated"))  # ends running commands too
    records, times = load(args.results)
    if not args.report:
        run(mutations, records, times, args)
    return 0 if report(mutations, records, args) else 1


if __name__ == "__main__":
    sys.exit(main())
