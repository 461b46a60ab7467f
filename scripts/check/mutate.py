#!/usr/bin/env python3
"""The mutation run: breaks the program in one place at a time and reports the faults that the test suite does not notice.

    build/venv/bin/python scripts/check/mutate.py --sample 300 --seed 7 -j 2 --results build/mutate.jsonl
        the code of the CPU; half an hour to an hour on two cores
    build/venv/bin/python scripts/check/mutate.py --sample 100 --seed 7 --gpu --build-only
    python3 scripts/check/mutate.py --gpu --built build/mutate -j 12 --results build/mutate-gpu.jsonl
        kernels: the second command, on a machine with a GPU, needs the tree and the folder that the first one made
    build/venv/bin/python scripts/check/mutate.py --report --seed 7 --results build/mutate.jsonl --results build/mutate-gpu.jsonl

mutations.py draws the faults from the syntax of every product file but generated tables. A seed counts once: after tests were written for
its survivors, only an unused seed measures the tests. One build holds all faults of the sample behind a switch (mutant.h), which an
environment variable sets, or for kernels a word in a copy of the program. Each test case runs once without a fault, which gives its time
and the faults that it reaches. Then every fault meets the cases that reach it, until one fails: the quick cases that reach few faults come
first, and --budget limits the seconds. So the kill rate is a lower bound. With --sanitizers, survivors meet the cases a second time in a
build with sanitizers, as in CI. With --gpu the faults are in CUDA code. Nothing tells which cases reach a fault in a kernel, so the cases
that need a GPU run in groups, those first whose names fit the file, and quick ones before slow ones.

A fault is killed when a case fails, crashes or takes ten times its time. A fault that does not compile does not count.
scripts/check/mutations.txt remembers what a person found out about survivors: "equivalent" ones, which change no result, do not count. --idle
lists, from a results file, the cases that killed nothing, with their times.

An interrupted run continues from its results file. CI does not run this, because it takes long."""
import argparse
import collections
import csv
import functools
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import mutations

BUILD = "build/objects"  # in the copy of the tree
# The last flag: an error within a macro of mutant.h has the line of the fault.
FLAGS = "-g1 -Wno-error -Wno-unused -Wno-missing-field-initializers -ftrack-macro-expansion=0"
ERROR = r"^([^\s:(]+)[:(](\d+)(?::\d+|\)): (?:fatal )?error"  # of gcc or nvcc
REFUSED = "-Werror=int-conversion -Werror=incompatible-pointer-types -Werror=format"
SANITIZERS = "-O2 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
MEMORY = 8 << 30  # address space of a test case, because a fault may allocate any amount
TIMES, LEAST = 10, 20  # a case may take ten times as long as without a fault, and 20 seconds

INSTANT, QUICK = 0.5, 3  # seconds of cases that run first on a GPU
MARK = b"sleigh's mutant\0"  # of scripts/check/mutant.h


def say(text):
    print(text, file=sys.stderr, flush=True)


def write(path, text):
    """Writes a file if its text differs, so that make builds only what changed."""
    data = text if isinstance(text, bytes) else text.encode()
    if os.path.exists(path):
        with open(path, "rb") as f:
            if f.read() == data:
                return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data)


def copy_tree(to):
    """Copies the tracked files to the folder and removes what is not tracked, except build/."""
    paths = mutations.tracked()
    for path in paths:
        with open(os.path.join(mutations.ROOT, path), "rb") as f:
            write(os.path.join(to, path), f.read())
        shutil.copymode(os.path.join(mutations.ROOT, path), os.path.join(to, path))
    for folder, folders, files in os.walk(to):
        folders[:] = [x for x in folders if os.path.join(folder, x) != os.path.join(to, "build")]
        for name in files:
            if os.path.relpath(os.path.join(folder, name), to) not in set(paths):
                os.remove(os.path.join(folder, name))


class Runner:
    """Runs commands in a copy of the tree and ends all processes that they started."""

    def __init__(self, args):
        self.args, self.lock, self.running, self.ended = args, threading.Lock(), set(), False
        self.env = dict(os.environ, SLEIGH_BIN=f"{BUILD}/sleigh", OMP_WAIT_POLICY="passive")
        for name, default in (("SLEIGH_SHARED", "../shared"), ("SLEIGH_VENV", "build/venv")):
            path = os.path.join(mutations.ROOT, os.environ.get(name, default))
            if os.path.isdir(path):
                self.env[name] = os.path.abspath(path)

    def command(self, words, folder, timeout, env=(), limited=False):
        """Returns the exit status (None at the time limit) and the output."""
        limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))) if limited else None
        with self.lock:
            if self.ended:
                raise InterruptedError
            p = subprocess.Popen(words, cwd=folder, env=dict(self.env, **dict(env)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=limit)
            self.running.add(p)
        try:
            out, status = p.communicate(timeout=timeout)[0], p.returncode
        except subprocess.TimeoutExpired:
            os.killpg(p.pid, signal.SIGKILL)
            out, status = p.communicate()[0], None  # what it printed before
        self.end(p)
        with self.lock:
            self.running.discard(p)
            if self.ended:  # a process that end_all killed has no result
                raise InterruptedError
        return status, out.decode(errors="replace")

    def end(self, p):
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass
        p.wait()
        p.stdout.close()

    def end_all(self):
        with self.lock:
            self.ended = True
            for p in self.running:
                try:
                    os.killpg(p.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def make(self, folder, settings, build=BUILD):
        settings = [f"BUILD={build}", *([] if self.args.gpu else ["CUDA=0"]), *settings, *self.args.make]
        return self.command(["make", "-k", f"-j{os.cpu_count() or 1}", *settings, "all"], folder, 3600)

    def test(self, folder, names, timeout, env=(), build=BUILD):
        """Runs cases. Returns why they failed (None: they passed), the seconds, and the cases that passed."""
        start, name = time.time(), names[0] if len(names) == 1 else f"{len(names)} cases"
        words = [f"{build}/sleigh-test", "--fail-fast", *(["--gpu"] if self.args.gpu else []), *names]
        # A build with sanitizers needs more addresses than there is memory, and one with CUDA too.
        limited = not self.args.gpu and not build.endswith("-san")
        status, out = self.command(words, folder, timeout, dict(env, SLEIGH_BIN=f"{build}/sleigh"), limited)
        passed, failed = re.findall(r"^ok +(\S+)", out, re.M), re.search(r"^FAIL +(\S+)", out, re.M)
        why = (f"time limit of {name}" if status is None else failed[1] if failed else f"crash in {name}" if status else None)
        return why, time.time() - start, passed

    def each(self, work, todo):
        """Calls work(item, number of the job) for every item, in --jobs threads."""
        queue, trouble = collections.deque(todo), []

        def job(number):
            while not trouble:
                try:
                    item = queue.popleft()
                except IndexError:
                    return
                try:
                    work(item, number)
                except Exception as e:  # shown by the main thread
                    trouble.append(e)

        threads = [threading.Thread(target=job, args=(i,), daemon=True) for i in range(self.args.jobs)]
        for t in threads:
            t.start()
        for t in threads:
            while t.is_alive():
                t.join(1)
        if trouble:
            raise trouble[0]


# ---- one build with switches ----


def build_with_switches(runner, folder, chosen):
    """Builds all faults behind switches. Returns the numbers of the faults that compile."""
    texts = {}
    for m in chosen:  # the copy, because somebody may edit the tree
        with open(os.path.join(folder, m.path), encoding="utf-8") as f:
            texts[m.path] = f.read()
    left = set(range(len(chosen)))
    while True:
        files = collections.defaultdict(list)
        for number, m in enumerate(chosen):
            files[m.path] += [(number, m)] if number in left else []
        for path, some in files.items():
            write(os.path.join(folder, path), mutations.with_switches(texts[path], some))
        status, out = runner.make(folder, switch_flags(runner, len(chosen), f"-O3 {FLAGS} {REFUSED}"))
        if status == 0:
            return sorted(left)
        wrong, spots = set(), re.findall(ERROR, out, re.M)
        for path, line in spots:
            for number, m in files.get(os.path.normpath(path), ()):
                if m.line <= int(line) <= m.line + m.n_lines:
                    wrong.add(number)
        if not wrong:
            errors = "\n".join(re.findall(r"^.*(?:error|\*\*\*).*$", out, re.M))
            sys.exit(f"mutate.py: the build with switches fails outside of the faults:\n{errors}")
        say(f"build with switches: {len(wrong)} faults do not compile")
        left -= wrong


def switch_flags(runner, n, flags):
    """Settings of make for a build with n faults."""
    switch = f"-DSL_N_MUTANTS={n} -include scripts/check/mutant.h"
    # The word of mutant.h must stand in the program as it is, not compressed.
    return [f"OPT={flags} {switch}", *([f"CUDA_OPT={switch} --compress-mode none"] if runner.args.gpu else [])]


def with_word(folder, build, job, number):
    """Copies the programs of `build` with a fault's number in the word that kernels read. Returns the folder of the copy."""
    copy = f"{build}-{job}"
    os.makedirs(os.path.join(folder, copy), exist_ok=True)
    for name in ("sleigh", "sleigh-test"):
        with open(os.path.join(folder, build, name), "rb") as f:
            parts = f.read().split(MARK)
        word = number.to_bytes(8, "little", signed=True)
        write(os.path.join(folder, copy, name), MARK.join([parts[0], *(word + x[8:] for x in parts[1:])]))
        os.chmod(os.path.join(folder, copy, name), 0o755)
    return copy


def cases_of(runner, folder, build):
    """Cases of the CPU, or with --gpu those that need a GPU."""
    status, out = runner.command([f"{build}/sleigh-test", "--list", *(["--gpu"] if runner.args.gpu else [])], folder, 60)
    return [x for x in out.split() if "/" in x and (runner.args.gpu or not x.startswith(("cuda_", "scripts/")))
            and x.startswith(tuple(runner.args.cases) or "")]


def baseline(runner, folder, n, build):
    """Runs every case without a fault. Returns {case: (seconds, numbers of the faults that it reaches)}."""
    cases, done, lock = cases_of(runner, folder, build), {}, threading.Lock()
    def work(case, job):
        file = os.path.join(folder, f"build/reached-{job}")
        with open(file, "wb") as f:
            f.write(bytes(n))
        why, seconds, passed = runner.test(folder, [case], 600, {"SLEIGH_MUTANTS_REACHED": file}, build)
        with open(file, "rb") as f:
            reached = {i for i, x in enumerate(f.read(n)) if x}
        if why:
            say(f"without a fault: {case} fails and is left out")
        elif passed:
            with lock:
                done[case] = (seconds, reached)

    runner.each(work, cases)
    say(f"without a fault: {len(done)} of {len(cases)} cases pass, {sum(x[0] for x in done.values()):.0f} s of tests")
    return done


def try_cases(runner, folder, number, _, known, build):
    """Runs the cases that reach a fault until one fails. Returns a record."""
    cases = sorted((x for x in known if number in known[x][1]), key=lambda x: known[x][0] * (8 + len(known[x][1])))
    sanitizers = build.endswith("-san")
    slower, spent, tried = 5 if sanitizers else 1, 0.0, 0
    for case in cases:
        if spent + known[case][0] * slower > runner.args.budget:
            continue
        limit, env = max(LEAST, TIMES * slower * known[case][0]), {"SLEIGH_MUTANT": str(number)}
        why, seconds, _ = runner.test(folder, [case], limit, env, build)
        spent, tried = spent + seconds, tried + 1
        # A second time, because the load of the machine can fail a case, and the sanitizers' slowness too.
        again = dict(env, SLEIGH_MUTANT="-1") if sanitizers else env
        if why and bool(runner.test(folder, [case], limit, again, build)[0]) != sanitizers:
            return {"result": "killed", "by": why, "tried": tried, "reaching": len(cases), "seconds": round(spent, 1)}
    return {"result": "survived", "by": "", "tried": tried, "reaching": len(cases), "seconds": round(spent, 1)}


# ---- on a GPU ----


def whole_gpu_cases():
    """Names of the cases that compare the memory or the time of a GPU, and so fail beside other programs."""
    return {x for path in mutations.tracked() if path.startswith("tests/") and path.endswith(".c")
            for x in re.findall(r'WHOLE_GPU_CASE\("([^"]+)"', mutations.read(path))}


def times_on_gpu(runner, folder, n, build):
    """Runs all cases that need a GPU without a fault. Returns {case: (seconds, all numbers)}."""
    words = [f"{build}/sleigh-test", "--gpu", "-j", str(runner.args.jobs), *runner.args.cases]
    status, out = runner.command(words, folder, 3600, {"SLEIGH_BIN": f"{build}/sleigh"})
    passed = re.findall(r"^ok +(\S+) +([\d.]+) s$", out, re.M)
    for name in re.findall(r"^FAIL +(\S+)", out, re.M):
        say(f"without a fault: {name} fails and is left out")
    say(f"without a fault: {len(passed)} cases pass, {sum(float(s) for _, s in passed):.0f} s of tests")
    seconds, alone = dict(passed), whole_gpu_cases()
    return {x: (float(seconds[x]), set(range(n))) for x in cases_of(runner, folder, build)  # in the order of runs
            if x in seconds and x.split("/")[1] not in alone}


@functools.cache
def cuda_includes():
    """{CUDA file: the files that it includes}."""
    files = [x for x in mutations.tracked() if x.endswith((".cu", ".cuh"))]
    return {x: set(re.findall(r'^#include "(.*)"', mutations.read(x), re.M)) for x in files}


def fitting(path):
    """The words in the names of a file and of the CUDA files that include it."""
    includes, found = cuda_includes(), {path}
    while True:
        more = {x for x in includes if includes[x] & found} - found
        if not more:
            break
        found |= more
    names = [x for x in found if x.endswith(".cu")] or [path]
    return {word for x in names for word in re.split(r"[_.]", os.path.basename(x))} - {"cuda", "cu", "c", "long", "host"}


def try_groups(runner, folder, number, row, known, build):
    """Runs the cases in groups, each in one process, because the start of a GPU takes longer than most cases: quick ones whose names
    fit the file, other quick ones, longer ones that fit, slow ones that fit, and the rest. If a group takes too long, the case that
    was running runs again alone, with the limit of a case."""
    words, groups, spent, tried = fitting(row["path"]), ([], [], [], [], [], []), 0.0, 0
    for case, (seconds, _) in known.items():
        fits = bool(words & set(case.split("/")[0].split("_")))
        groups[(0 if fits else 1) if seconds < INSTANT else (2 if fits else 4) if seconds < QUICK else 3 if fits else 5].append(case)
    for group in filter(None, groups):
        left, env = runner.args.budget - spent, {"SLEIGH_MUTANT": str(number)}
        if left <= 0:
            break
        why, seconds, passed = runner.test(folder, group, left + LEAST, env, build)
        spent, tried = spent + seconds, tried + len(passed)
        if why and why.startswith("time limit of"):
            why = next((x for x in group if x not in passed), None)
        if why in known:  # a second time, because the load of the machine can fail or delay a case
            why = runner.test(folder, [why], max(LEAST, TIMES * known[why][0]), env, build)[0]
        if why:
            return {"result": "killed", "by": why, "tried": tried, "reaching": len(known), "seconds": round(spent, 1)}
    return {"result": "survived", "by": "", "tried": tried, "reaching": len(known), "seconds": round(spent, 1)}


def built(runner, args):
    """Builds the sample in --work, or reads what --build-only left in --built. Returns the folder where tests run, the folder of the
    programs, {number: row of the fault}, and the number of faults drawn."""
    if args.built:
        with open(os.path.join(args.built, "faults.json"), encoding="utf-8") as f:
            made = json.load(f)
        args.seed = made["seed"]
        return mutations.ROOT, os.path.abspath(args.built), {int(i): row for i, row in made["faults"].items()}, made["drawn"]
    # More than the sample, because a quarter of the faults does not compile.
    chosen = mutations.sample(3 * args.sample // 2, args.seed, args.gpu, args.only)
    folder = os.path.join(os.path.abspath(args.work), "tree")
    copy_tree(folder)
    counted = build_with_switches(runner, folder, chosen)[:args.sample]
    say(f"{len(counted)} faults of {len(chosen)} drawn: the others do not compile, or were not needed; expected {args.sample}")
    faults = {i: dict(chosen[i].row(), seed=args.seed) for i in counted}
    write(os.path.join(args.work, "faults.json"), json.dumps({"seed": args.seed, "drawn": len(chosen), "faults": faults}))
    return folder, BUILD, faults, len(chosen)


def run(runner, args, results):
    folder, build, faults, n = built(runner, args)
    if args.build_only:
        for name in ("sleigh", "sleigh-test", "libsentencepiece.so.0"):
            path = os.path.join(folder, build, name)
            if os.path.exists(path):  # the library: with PORTABLE=1
                shutil.copy2(path, args.work)
        return
    records, _ = load(args.results, args.seed)
    known = (times_on_gpu if args.gpu else baseline)(runner, folder, n, build)
    append(results, {"cases": {x: [round(s, 2), len(r)] for x, (s, r) in known.items()}, "seed": args.seed})
    todo, lock, done = [i for i in faults if faults[i]["key"] not in records], threading.Lock(), [0]

    def work(number, job, build=build):
        copy = with_word(folder, build, job, number) if args.gpu else build
        row = faults[number]
        x = dict(row, build=os.path.basename(build), **(try_groups if args.gpu else try_cases)(runner, folder, number, row, known, copy))
        with lock:
            done[0] += 1
            records[x["key"]] = x
            append(results, x)
            say(f"{done[0]}/{len(todo)} {x['result']}: {x['path']}:{x['line']}: {x['why']} ({x['by'] or x['tried']}) {x['seconds']} s")

    runner.each(work, todo)
    if not args.sanitizers:
        return
    survived = {x["key"] for x in records.values() if x["result"] == "survived" and not x["build"].endswith("-san")}
    again = [i for i in faults if faults[i]["key"] in survived]
    say(f"{len(again)} survivors meet the cases under sanitizers")
    status, out = runner.make(folder, switch_flags(runner, n, f"{SANITIZERS} {FLAGS}"), BUILD + "-san")
    if status:
        sys.exit(f"mutate.py: the build with sanitizers fails:\n{out[-3000:]}")
    todo, done = again, [0]
    runner.each(lambda number, job: work(number, job, BUILD + "-san"), todo)


# ---- results ----


def append(path, record):
    if path:
        with open(path, "a", encoding="utf-8") as f:
            f.write(json.dumps(record) + "\n")


def load(paths, seed=None):
    """Returns the records of the faults (of one seed) and the cases of the last run."""
    records, cases = {}, {}
    for path in paths:
        if os.path.exists(path):
            with open(path, encoding="utf-8") as f:
                for line in f:
                    try:
                        x = json.loads(line)
                    except ValueError:
                        continue  # an interrupted run wrote only a part of this line
                    if seed is not None and x["seed"] != seed:
                        continue
                    if "cases" in x:
                        cases = x["cases"]
                    else:
                        records[x["key"]] = x
    return records, cases


def wilson(k, n):
    """95% confidence interval of a share (Wilson's score interval)."""
    z, p = 1.96, k / n
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def report(records, args):
    known = mutations.judged()
    rows, survivors, counts = [], [], collections.defaultdict(collections.Counter)
    for x in records.values():
        verdict, reason = known.get((x["path"], x["old"], x["new"]), ("", ""))
        result = "equivalent" if x["result"] == "survived" and verdict == "equivalent" else x["result"]
        counts[x["folder"]][result] += 1
        counts["all"][result] += 1
        if result == "survived":
            survivors.append(dict(x, reason=reason))
    for folder in (*mutations.FOLDERS, "all"):
        c = counts[folder]
        n = c["killed"] + c["survived"]
        if n:
            low, high = wilson(c["killed"], n)
            rows.append({"folder": folder, "killed": c["killed"], "survived": c["survived"], "equivalent": c["equivalent"],
                         "kill rate": f"{100 * c['killed'] / n:.1f}%", "95% interval": f"{100 * low:.1f} to {100 * high:.1f}%"})
    if not rows:
        sys.exit("mutate.py: no fault of this sample compiles and changes a result")
    survivors.sort(key=lambda x: (x["path"], x["line"]))
    if args.output == "json":
        print(json.dumps({"folders": rows, "survivors": survivors}, indent=1))
    elif args.output == "csv":
        w = csv.DictWriter(sys.stdout, list(rows[0]))
        w.writeheader()
        w.writerows(rows)
    else:
        print("| " + " | ".join(rows[0]) + " |\n|" + "---|" * len(rows[0]))
        print("\n".join("| " + " | ".join(map(str, r.values())) + " |" for r in rows))
        print(f"\nSurvivors: {len(survivors)}\n")
        for x in survivors:
            print(f"- `{x['path']}:{x['line']}` ({x['why']}): {x['reason'] or 'no reason known'}\n\n      - {x['old']}\n      + {x['new']}")
    n = counts["all"]["killed"] + counts["all"]["survived"]
    return n and counts["all"]["killed"] >= args.goal * n and all(x["reason"] for x in survivors)


def idle(records, cases):
    """Prints the cases that killed no fault although they reach some, the slowest first."""
    useful = {x["by"].split(" ")[-1] for x in records.values()}
    for case, (seconds, reached) in sorted(cases.items(), key=lambda x: -x[1][0]):
        if case not in useful and reached:
            print(f"{seconds:8.2f} s  reaches {reached:4} faults  {case}")


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--sample", type=int, default=300, metavar="N", help="number of faults that compile (default %(default)s)")
    p.add_argument("--seed", type=int, default=1, help="of the sample; --report and --idle read the results of this seed")
    p.add_argument("-j", "--jobs", type=int, default=1, help="test cases at a time")
    p.add_argument("--make", action="append", default=[], metavar="VAR=VALUE", help="pass this to make; may be repeated")
    p.add_argument("--gpu", action="store_true", help="faults of CUDA code; without this flag, faults of all other code")
    p.add_argument("--build-only", action="store_true", help="build the sample in --work and run no test")
    p.add_argument("--built", metavar="FOLDER", help="test what --build-only left in this folder")
    p.add_argument("--only", default="", metavar="PATH", help="only files whose path begins with this")
    p.add_argument("--cases", action="append", default=[], metavar="PREFIX",
                   help="only test cases whose name begins with this; may be repeated")
    p.add_argument("--budget", type=float, default=60, metavar="S", help="seconds of tests for each fault (default %(default)s)")
    p.add_argument("--sanitizers", action="store_true", help="on the CPU, try survivors again in a build with sanitizers")
    p.add_argument("--work", default=os.path.join(mutations.ROOT, "build/mutate"), help="folder of the copies of the tree")
    p.add_argument("--results", action="append", default=[], metavar="FILE",
                   help="JSON lines: the first file is read and appended to, further files are only read")
    p.add_argument("--goal", type=float, default=0.9, help="share of faults to kill, for the exit status (default %(default)s)")
    p.add_argument("-o", "--output", choices=("md", "json", "csv"), default="md")
    p.add_argument("--list", action="store_true", help="print the faults and run nothing")
    p.add_argument("--report", action="store_true", help="print the table of all --results files and run nothing")
    p.add_argument("--idle", action="store_true", help="print the cases that killed nothing and run nothing")
    args = p.parse_args()
    if args.gpu and args.sanitizers:
        p.error("--sanitizers is for the CPU: expected no --gpu")
    if args.jobs < 1 or args.sample < 1:
        p.error("expected -j N and --sample N with N >= 1")
    return args


def main():
    args = arguments()
    if args.report or args.idle:
        records, cases = load(args.results, args.seed)
        if not records:
            sys.exit(f"mutate.py: no results of seed {args.seed}; pass --results FILE and --seed of a run")
        if args.idle:
            idle(records, cases)
            return 0
        return 0 if report(records, args) else 1
    if args.list:
        for m in mutations.sample(args.sample, args.seed, args.gpu, args.only):
            print(f"{m.key} {m.path}:{m.line} {m.why}\n    - {m.old_line}\n    + {m.new_line}")
        return 0
    results, runner = args.results[0] if args.results else None, Runner(args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutate.py: terminated"))  # ends running commands too
    try:
        run(runner, args, results)
    finally:
        runner.end_all()
    return 0 if args.build_only or report(load(args.results, args.seed)[0], args) else 1


if __name__ == "__main__":
    sys.exit(main())
