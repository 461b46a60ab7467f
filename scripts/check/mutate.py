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
and the faults that it reaches: the code, kernels too, writes them into a file. Then every fault meets the cases that reach it, until one
fails: the quick cases that reach few faults come first, and --budget limits the seconds. So the kill rate is a lower bound. With
--sanitizers, survivors meet the cases a second time in a build with sanitizers, as in CI. With --gpu the faults are in CUDA code, and cases
run in groups.

A fault is killed when a case fails, crashes or takes ten times its time. A fault that does not compile does not count.
scripts/check/mutations.txt remembers what a person found out about survivors: "equivalent" ones, which change no result, do not count. --idle
lists, from a results file, the cases that killed nothing, with their times.

The faults whose cases take the least time come first, so the rate of an interrupted run is not the rate of its sample. An interrupted run
continues from its results file. CI does not run this, because it takes long."""
import argparse
import collections
import csv
import glob
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
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
MOST, MOST_ON_GPU = 600, 120  # seconds of a case without a fault

FIRST, SECOND = 5, 25  # seconds of cases in the first group of cases on a GPU, and in the first two groups
MARK, RECORD = b"sleigh's mutant\0", -2  # of scripts/check/mutant.h
PROGRAMS, LIBRARY = ("sleigh", "sleigh-test"), "libsentencepiece.so.0"  # the library: with PORTABLE=1


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
        """Runs cases. Returns why they failed (None: they passed), the seconds, and the set of cases that passed."""
        start, name = time.time(), names[0] if len(names) == 1 else f"{len(names)} cases"
        words = [f"{build}/sleigh-test", "--fail-fast", *(["--gpu"] if self.args.gpu else []), *names]
        # A build with sanitizers needs more addresses than there is memory, and one with CUDA too.
        limited = not self.args.gpu and not build.endswith("-san")
        status, out = self.command(words, folder, timeout, dict(env, SLEIGH_BIN=f"{build}/sleigh"), limited)
        passed, failed = set(re.findall(r"^ok +(\S+)", out, re.M)), re.search(r"^FAIL +(\S+)", out, re.M)
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
    if not runner.args.gpu:
        return [f"OPT={flags} {switch}"]
    # The word of mutant.h must stand in the program as it is, not compressed.
    return [f"OPT={flags} {switch} -Wl,--wrap=cudaMalloc", f"CUDA_OPT={switch} --compress-mode none"]


def with_word(folder, build, job, number):
    """Copies the programs of `build` with a fault's number in the word that kernels read. Returns the folder of the copy."""
    copy = f"{build}-{job}"
    os.makedirs(os.path.join(folder, copy), exist_ok=True)
    if os.path.exists(os.path.join(folder, build, LIBRARY)):
        shutil.copy2(os.path.join(folder, build, LIBRARY), os.path.join(folder, copy))
    for name in PROGRAMS:
        with open(os.path.join(folder, build, name), "rb") as f:
            parts = f.read().split(MARK)
        word = number.to_bytes(8, "little", signed=True)
        write(os.path.join(folder, copy, name), MARK.join([parts[0], *(word + x[8:] for x in parts[1:])]))
        os.chmod(os.path.join(folder, copy, name), 0o755)
    return copy


def whole_gpu_cases():
    """Names of the cases that compare the memory or the time of a GPU, and so fail beside other programs."""
    return {x for path in glob.glob("tests/**/*.c", root_dir=mutations.ROOT, recursive=True)
            for x in re.findall(r'WHOLE_GPU_CASE\("([^"]+)"', mutations.read(path))}


def cases_of(runner, folder, build):
    """Cases of the CPU, or with --gpu those that need a GPU, not alone."""
    status, out = runner.command([f"{build}/sleigh-test", "--list", *(["--gpu"] if runner.args.gpu else [])], folder, 60)
    cases, alone = [x for x in out.split() if "/" in x and x.startswith(tuple(runner.args.cases) or "")], whole_gpu_cases()
    return [x for x in cases if (x.split("/")[1] not in alone if runner.args.gpu else not x.startswith(("cuda_", "scripts/")))]


def baseline(runner, folder, n, build):
    """Runs every case without a fault. Returns {case: (seconds, numbers of the faults that it reaches)}."""
    cases, done, lock, on_gpu = cases_of(runner, folder, build), {}, threading.Lock(), runner.args.gpu
    build = with_word(folder, build, "reached", RECORD) if on_gpu else build

    def work(case, job):
        file = os.path.join(files, str(job))
        with open(file, "wb") as f:
            f.write(bytes(n))
        why, seconds, passed = runner.test(folder, [case], MOST_ON_GPU if on_gpu else MOST, {"SLEIGH_MUTANTS_REACHED": file}, build)
        with open(file, "rb") as f:
            reached = {i for i, x in enumerate(f.read(n)) if x}
        if why:
            say(f"without a fault: {case} fails and is left out")
        elif passed:
            with lock:
                done[case] = (seconds, reached)

    with tempfile.TemporaryDirectory(dir="/dev/shm") as files:  # a GPU cannot write to a file on a disk
        runner.each(work, cases)
    say(f"without a fault: {len(done)} of {len(cases)} cases pass, {sum(x[0] for x in done.values()):.0f} s of tests")
    # Less the start of CUDA, because it is needed once for a group of cases.
    start = min((seconds for seconds, _ in done.values()), default=0) - 0.1 if on_gpu else 0
    return {x: (done[x][0] - start, done[x][1]) for x in cases if x in done}


def reaching(number, known):
    """The cases that reach a fault, quick ones that reach few faults first."""
    return sorted((x for x in known if number in known[x][1]), key=lambda x: known[x][0] * (8 + len(known[x][1])))


def try_cases(runner, folder, number, known, build):
    """Runs the cases that reach a fault until one fails. Returns why it failed (None: all passed), and the number of cases that ran."""
    sanitizers, spent, tried = build.endswith("-san"), 0.0, 0
    slower = 5 if sanitizers else 1
    for case in reaching(number, known):
        if spent + known[case][0] * slower > runner.args.budget:
            continue
        limit, env = max(LEAST, TIMES * slower * known[case][0]), {"SLEIGH_MUTANT": str(number)}
        why, seconds, _ = runner.test(folder, [case], limit, env, build)
        spent, tried = spent + seconds, tried + 1
        # A second time, because the load of the machine can fail a case, and the sanitizers' slowness too.
        again = dict(env, SLEIGH_MUTANT="-1") if sanitizers else env
        if why and bool(runner.test(folder, [case], limit, again, build)[0]) != sanitizers:
            return why, tried
    return None, tried


def try_groups(runner, folder, number, known, build):
    """As try_cases, but a process runs a group of cases, because the start of a GPU takes longer than most cases. If a group fails or takes
    too long, the case that was running runs again alone, with the limit of a case."""
    groups, total, spent, tried, env = [[], [], []], 0.0, 0.0, 0, {"SLEIGH_MUTANT": str(number)}
    for case in reaching(number, known):
        if total + known[case][0] <= runner.args.budget:
            groups[(total >= FIRST) + (total >= SECOND)].append(case)
            total += known[case][0]
    while groups and spent < runner.args.budget:
        group = groups.pop(0)
        if not group:
            continue
        why, seconds, passed = runner.test(folder, group, LEAST + 3 * sum(known[x][0] for x in group), env, build)
        left = [x for x in known if x in group and x not in passed]  # in the order in which they run
        spent, tried = spent + seconds, tried + len(group) - len(left)
        if why:  # a second time, because the load of the machine can fail or delay a case
            case = why if why in known else (left or group)[0]
            why, seconds, _ = runner.test(folder, [case], max(LEAST, TIMES * known[case][0]), env, build)
            spent, tried = spent + seconds, tried + 1
            if why:
                return why, tried
            groups.insert(0, [x for x in left if x != case])
    return None, tried


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
        for name in (*PROGRAMS, LIBRARY):
            path = os.path.join(folder, build, name)
            if os.path.exists(path):
                shutil.copy2(path, args.work)
        return
    records, _ = load(args.results, args.seed)
    known = baseline(runner, folder, n, build)
    append(results, {"cases": {x: [round(s, 2), len(r)] for x, (s, r) in known.items()}, "seed": args.seed})
    todo, lock, done = [i for i in faults if faults[i]["key"] not in records], threading.Lock(), [0]
    todo.sort(key=lambda i: sum(known[x][0] for x in reaching(i, known)))

    def work(number, job, build=build):
        copy, start = with_word(folder, build, job, number) if args.gpu else build, time.time()
        why, tried = (try_groups if args.gpu else try_cases)(runner, folder, number, known, copy)
        x = dict(faults[number], build=os.path.basename(build), result="killed" if why else "survived", by=why or "", tried=tried,
                 reaching=len(reaching(number, known)), seconds=round(time.time() - start, 1))
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


# ---- a check, which CI runs ----

# Stands in for the programs of a build: each case sleeps and reaches faults. A fault may have a case that fails, crashes or never ends.
FAKE = """#!/bin/sh
exec python3 - "$0" "$@" <<'END'
import os, sys, time
CASES = {"a/slow": (0.5, [1, 2, 3]), "a/quick": (0, [0, 1, 2]), "a/late": (0, [4]), "a/faulty": (0, [5]), "a/skipped": (0, [6])}
EFFECTS = {(0, "a/quick"): "FAIL", (1, "a/slow"): "FAIL", (3, "a/slow"): "crash", (4, "a/late"): "never"}
with open(sys.argv[1], "rb") as f:
    on_gpu = int.from_bytes(f.read().split(b"sleigh's " + b"mutant" + bytes(1))[1][:8], "little", signed=True)
fault = on_gpu if "--gpu" in sys.argv else int(os.environ.get("SLEIGH_MUTANT", -1))
for name, (seconds, reaches) in CASES.items():
    if "--list" in sys.argv:
        print(name)
    elif name in sys.argv:
        if "SLEIGH_MUTANTS_REACHED" in os.environ and (on_gpu == -2) == ("--gpu" in sys.argv):
            with open(os.environ["SLEIGH_MUTANTS_REACHED"], "r+b") as f:
                for number in reaches:
                    f.seek(number)
                    f.write(bytes([1]))
        effect = EFFECTS.get((fault, name), {"a/faulty": "FAIL", "a/skipped": "skip"}.get(name, "ok"))
        if effect == "crash":
            os.abort()
        time.sleep(1000 if effect == "never" else seconds)
        print(effect, name, flush=True)
        if effect == "FAIL":
            sys.exit(1)
END
"""
# {number of the fault: (why it was killed, the cases that ran, the cases that reach it)}
FAKE_RESULTS = {0: ("a/quick", 1, 1), 1: ("a/slow", 2, 2), 2: ("", 2, 2), 3: ("crash in a/slow", 1, 1), 4: ("time limit of a/late", 1, 1),
                5: ("", 0, 0), 6: ("", 0, 0)}


def self_test(args):
    """Measures the faults of FAKE. Returns one complaint for each result that is wrong."""
    global LEAST, FIRST
    LEAST, FIRST, args.jobs, out = 3, 0.05, 4, []  # a/slow is not in the first group
    with tempfile.TemporaryDirectory() as args.built:
        for name in PROGRAMS:
            write(os.path.join(args.built, name), FAKE.encode() + MARK + bytes(8))
            os.chmod(os.path.join(args.built, name), 0o755)
        faults = {i: {"key": str(i), "folder": "cuda", "path": "", "line": 0, "why": ""} for i in FAKE_RESULTS}
        write(os.path.join(args.built, "faults.json"), json.dumps({"seed": args.seed, "drawn": len(faults), "faults": faults}))
        for args.gpu in (False, True):
            results = os.path.join(args.built, f"results-{args.gpu}")
            run(Runner(args), args, results)
            got = {int(key): (x["by"], x["tried"], x["reaching"]) for key, x in load([results])[0].items()}
            out += [f"gpu {args.gpu}, fault {i}: {got.get(i)}, expected {x}" for i, x in FAKE_RESULTS.items() if got.get(i) != x]
    return out


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
    p.add_argument("--self-test", action="store_true", help="measure a program that stands in for a build, and check the results")
    args = p.parse_args()
    if args.gpu and args.sanitizers:
        p.error("--sanitizers is for the CPU: expected no --gpu")
    if args.jobs < 1 or args.sample < 1:
        p.error("expected -j N and --sample N with N >= 1")
    return args


def main():
    args = arguments()
    if args.self_test:
        complaints = self_test(args)
        print("\n".join(complaints) or "all results are right")
        return bool(complaints)
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
