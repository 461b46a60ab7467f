#!/usr/bin/env python3
"""The mutation run: breaks the program in one place at a time and reports the faults that the test suite does not notice.

    build/venv/bin/python scripts/mutate.py --sample 300 --seed 7 -j 2 --results build/mutate.jsonl
        the code of the CPU; half an hour to an hour on two cores
    build/venv/bin/python scripts/mutate.py --sample 100 --seed 7 --gpu -j 12 --results build/mutate-gpu.jsonl
        kernels, on a machine with a GPU
    build/venv/bin/python scripts/mutate.py --report --seed 7 --results build/mutate.jsonl --results build/mutate-gpu.jsonl

mutations.py draws the faults from the syntax of every product file but generated tables. A seed counts once: after tests were written for
its survivors, only an unused seed measures the tests. On the CPU one build holds all faults of the sample behind a switch that an
environment variable sets. Each test case runs once without a fault, which gives its time and the faults that it reaches. Then every fault
meets the cases that reach it, until one fails: the quick cases that reach few faults come first, and --budget limits the seconds. So the
kill rate is a lower bound. With --sanitizers, survivors meet the cases a second time in a build with sanitizers, as in CI. With --gpu
every fault is a build of its own, and the suites cuda_* run.

A fault is killed when a case fails, crashes or takes ten times its time. A fault that does not compile does not count.
scripts/mutations.txt remembers what a person found out about survivors: "equivalent" ones, which change no result, do not count. --idle
lists, from a results file, the cases that killed nothing, with their times.

An interrupted run continues from its results file. CI does not run this, because it takes long."""
import argparse
import collections
import concurrent.futures
import csv
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
FLAGS = "-g1 -Wno-error -Wno-unused -Wno-missing-field-initializers"
SANITIZERS = "-O2 -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
MEMORY = 8 << 30  # address space of a test case, because a fault may allocate any amount
TIMES, LEAST = 10, 20  # a case may take ten times as long as without a fault, and 20 seconds

SWITCH = """// The switch of the mutation run; every source file includes it.
#ifndef SL_MUTANT_H
#define SL_MUTANT_H
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
__attribute__((weak)) int sl_mutant_now = -1;
__attribute__((weak)) volatile char *sl_mutants_reached;
__attribute__((constructor)) static void sl_mutant_start(void) {
    const char *now = getenv("SLEIGH_MUTANT"), *file = getenv("SLEIGH_MUTANTS_REACHED");
    if (now) sl_mutant_now = atoi(now);
    if (!file || sl_mutants_reached) return;
    FILE *f = fopen(file, "r+b");
    if (!f) return;
    void *map = mmap(0, %(n)d, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
    if (map != MAP_FAILED) sl_mutants_reached = (volatile char *)map;
    fclose(f);
}
static inline int sl_mutant(int number) {
    if (sl_mutants_reached) sl_mutants_reached[number] = 1;
    return sl_mutant_now == number;
}
#endif
"""


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
            out, status = b"", None
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

    def make(self, folder, jobs, more=(), build=BUILD):
        settings = [f"BUILD={build}", *([] if self.args.gpu else ["CUDA=0"]), *more, *self.args.make]
        return self.command(["make", "-k", f"-j{jobs}", *settings, "all"], folder, 3600)

    def test(self, folder, name, timeout, env=(), build=BUILD):
        """Runs a case or a suite. Returns why it failed (None: it passed), the seconds, and the cases that passed."""
        start = time.time()
        words = [f"{build}/sleigh-test", "--fail-fast", *(["--gpu"] if self.args.gpu else []), name]
        # A build with sanitizers needs more addresses than there is memory.
        status, out = self.command(words, folder, timeout, dict(env, SLEIGH_BIN=f"{build}/sleigh"), not self.args.gpu and build == BUILD)
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


# ---- the CPU: one build with switches ----


def build_with_switches(runner, folder, chosen):
    """Builds all faults behind switches. Returns the numbers of the faults that compile."""
    header, texts = os.path.join(folder, "build/mutant.h"), {}
    write(header, SWITCH % {"n": len(chosen)})
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
        refused = "-Werror=int-conversion -Werror=incompatible-pointer-types -Werror=format"
        status, out = runner.make(folder, os.cpu_count() or 1, [f"OPT=-O3 {FLAGS} {refused} -include {header}"])
        if status == 0:
            return sorted(left)
        wrong, spots = set(), re.findall(r"^(\S+?):(\d+):\d+: (?:fatal )?error:", out, re.M)
        for path, line in spots:
            for number, m in files.get(os.path.normpath(path), ()):
                if m.line <= int(line) <= m.line + m.n_lines:
                    wrong.add(number)
        if not wrong:
            errors = "\n".join(re.findall(r"^.*(?:error|\*\*\*).*$", out, re.M))
            sys.exit(f"mutate.py: the build with switches fails outside of the faults:\n{errors}")
        say(f"build with switches: {len(wrong)} faults do not compile")
        left -= wrong


def cases_of(runner, folder):
    status, out = runner.command([f"{BUILD}/sleigh-test", "--list"], folder, 60)
    return [x for x in out.split() if "/" in x and not x.startswith(("cuda_", "scripts/"))]


def baseline(runner, folder, n):
    """Runs every case without a fault. Returns {case: (seconds, numbers of the faults that it reaches)}."""
    cases, done, lock = cases_of(runner, folder), {}, threading.Lock()

    def work(case, job):
        file = os.path.join(folder, f"build/reached-{job}")
        with open(file, "wb") as f:
            f.write(bytes(n))
        why, seconds, passed = runner.test(folder, case, 600, {"SLEIGH_MUTANTS_REACHED": file})
        if why:
            say(f"without a fault: {case} fails and is left out")
        elif passed:
            with open(file, "rb") as f:
                reached = {i for i, x in enumerate(f.read(n)) if x}
            with lock:
                done[case] = (seconds, reached)

    runner.each(work, cases)
    say(f"without a fault: {len(done)} of {len(cases)} cases pass, {sum(x[0] for x in done.values()):.0f} s of tests")
    return done


def try_cases(runner, folder, number, known, budget, build=BUILD):
    """Runs the cases that reach a fault until one fails. Returns a record."""
    cases = sorted((x for x in known if number in known[x][1]), key=lambda x: known[x][0] * (8 + len(known[x][1])))
    slower, spent, tried = 1 if build == BUILD else 5, 0.0, 0
    for case in cases:
        if spent + known[case][0] * slower > budget:
            continue
        limit, env = max(LEAST, TIMES * slower * known[case][0]), {"SLEIGH_MUTANT": str(number)}
        why, seconds, _ = runner.test(folder, case, limit, env, build)
        spent, tried = spent + seconds, tried + 1
        # A second time, because the load of the machine can fail a case, and the sanitizers' slowness too.
        again = dict(env, SLEIGH_MUTANT="-1") if build != BUILD else env
        if why and bool(runner.test(folder, case, limit, again, build)[0]) == (build == BUILD):
            return {"result": "killed", "by": why, "tried": tried, "reaching": len(cases), "seconds": round(spent, 1)}
    return {"result": "survived", "by": "", "tried": tried, "reaching": len(cases), "seconds": round(spent, 1)}


def run_cpu(runner, chosen, records, args, results):
    folder = os.path.join(os.path.abspath(args.work), "tree")
    copy_tree(folder)
    built = build_with_switches(runner, folder, chosen)
    counted = built[:args.sample]
    if len(counted) < args.sample:
        say(f"only {len(counted)} faults compile, expected {args.sample}")
    say(f"{len(counted)} faults of {len(chosen)} drawn: the others do not compile, or were not needed")
    known = baseline(runner, folder, len(chosen))
    append(results, {"cases": {x: [round(s, 2), len(r)] for x, (s, r) in known.items()}, "seed": args.seed})
    todo, lock, done = [i for i in counted if chosen[i].key not in records], threading.Lock(), [0]

    def work(number, build=BUILD):
        m = chosen[number]
        x = dict(m.row(), seed=args.seed, build=build, **try_cases(runner, folder, number, known, args.budget, build))
        with lock:
            done[0] += 1
            records[m.key] = x
            append(results, x)
            say(f"{done[0]}/{len(todo)} {x['result']}: {m.path}:{m.line}: {m.why} ({x['by'] or x['tried']}) {x['seconds']} s")

    runner.each(lambda number, _: work(number), todo)
    if not args.sanitizers:
        return
    again = [i for i in counted if records[chosen[i].key]["result"] == "survived" and records[chosen[i].key]["build"] == BUILD]
    build = BUILD + "-san"
    say(f"{len(again)} survivors meet the cases under sanitizers")
    status, out = runner.make(folder, os.cpu_count() or 1, [f"OPT={SANITIZERS} {FLAGS} -include {folder}/build/mutant.h"], build)
    if status:
        sys.exit(f"mutate.py: the build with sanitizers fails:\n{out[-3000:]}")
    todo, done = again, [0]
    runner.each(lambda number, _: work(number, build), todo)


# ---- kernels: one build for each fault ----


def mirror(source, to):
    """Makes the folder `to` equal to `source`. Copies only files that differ, with their times."""
    os.makedirs(to, exist_ok=True)
    wanted, have = {x.name: x for x in os.scandir(source)}, {x.name: x for x in os.scandir(to)}
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


def run_gpu(runner, chosen, records, args, results):
    work_folder = os.path.abspath(args.work)
    base = os.path.join(work_folder, "tree")
    copy_tree(base)
    status, out = runner.make(base, os.cpu_count() or 1)
    if status:
        sys.exit(f"mutate.py: the unmutated tree does not build:\n{out[-3000:]}")
    suites = sorted({x.split("/")[0] + "/" for x in runner.command([f"{BUILD}/sleigh-test", "--list"], base, 60)[1].split()
                     if x.startswith("cuda_")})
    times, lock = {}, threading.Lock()

    def time_suite(suite, _):
        why, times[suite], passed = runner.test(base, suite, 3600)
        if why or not passed:
            raise RuntimeError(f"the unmutated tree does not pass {suite}: {why or 'no case ran'}")

    runner.each(time_suite, suites)

    def work(m, job):
        with lock:
            if sum(x["result"] != "not built" for x in records.values()) >= args.sample:
                return
        folder = os.path.join(work_folder, f"job{job}")
        mirror(base, folder)
        with open(os.path.join(base, m.path), encoding="utf-8") as f:  # the copy, because somebody may edit the tree
            text = f.read()
        write(os.path.join(folder, m.path), mutations.applied(text, m))
        x, start = dict(m.row(), seed=args.seed, result="survived", by=""), time.time()
        if runner.make(folder, max(1, (os.cpu_count() or 1) // args.jobs), ["OPT=-O3 -g0 -Wno-error"])[0]:
            x["result"] = "not built"
        else:
            stem = re.sub(r"\..*", "", os.path.basename(m.path)).split("_")
            for suite in sorted(suites, key=lambda s: (not any(part in s for part in stem), times[s])):
                why, _, _ = runner.test(folder, suite, max(LEAST, TIMES * times[suite]))
                if why:
                    x.update(result="killed", by=why)
                    break
        x["seconds"] = round(time.time() - start, 1)
        with lock:
            records[m.key] = x
            append(results, x)
            say(f"{x['result']}: {m.path}:{m.line}: {m.why} ({x['by']}) {x['seconds']} s")

    runner.each(work, [m for m in chosen if m.key not in records])


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
    p.add_argument("-j", "--jobs", type=int, default=1, help="test cases, or with --gpu faults, at a time")
    p.add_argument("--make", action="append", default=[], metavar="VAR=VALUE", help="pass this to make; may be repeated")
    p.add_argument("--gpu", action="store_true",
                   help="faults of CUDA code, with nvcc and a GPU; without this flag, faults of all other code")
    p.add_argument("--only", default="", metavar="PATH", help="only files whose path begins with this")
    p.add_argument("--budget", type=float, default=60, metavar="S", help="seconds of tests for each fault on the CPU (default %(default)s)")
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
    # More than the sample, because a quarter of the faults does not compile.
    chosen = mutations.sample(3 * args.sample // 2, args.seed, args.gpu, args.only)
    if args.list:
        for m in chosen:
            print(f"{m.key} {m.path}:{m.line} {m.why}\n    - {m.old_line}\n    + {m.new_line}")
        return 0
    results, runner = args.results[0] if args.results else None, Runner(args)
    records, _ = load(args.results, args.seed)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("mutate.py: terminated"))  # ends running commands too
    try:
        (run_gpu if args.gpu else run_cpu)(runner, chosen, records, args, results)
    finally:
        runner.end_all()
    return 0 if report(records, args) else 1


if __name__ == "__main__":
    sys.exit(main())
