#!/usr/bin/env python3
"""Runs the commands that README.md and the pages of docs/ print, exactly as printed, and checks that each of them succeeds.

    scripts/check/check_commands.py [--sleigh build/sleigh] [--list] [PAGE...]      without pages: README.md, CONTRIBUTING.md, docs/*.md

A command stands in a block that begins with ```sh. The commands of a page run in their order, in one new folder with links to the
binary, to models/, scripts/ and examples/, so the tree stays clean. A block that tests cannot run has a comment on the line before it:

    <!-- not run: needs a GPU -->

The script does not run the commands of this block, but it checks that their flags occur in the help of `sleigh`. A command in any other
place of a page is an error, because no test would run it. The last line of the output counts commands: passed, failed, skipped."""
import argparse
import collections
import glob
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
REASON = re.compile(r"^\s*<!-- not run: (.+?) -->\s*$")
FENCE = re.compile(r"^\s*```(\w*)")
COMMAND = re.compile(r"^\s+(build/sleigh|build/portable|sleigh [a-z]|make\b|python3 scripts/|scripts/\w|cmake|gnuplot )")
HANGS = 900  # seconds: a command that takes longer has failed; the usual time is below a minute

Command = collections.namedtuple("Command", "page line text reason")  # reason: why tests do not run it, or None


def commands_of(page):
    """The commands of a page, and the lines with commands that no test would find."""
    found, stray = [], []
    fence, reason, joined, start = None, None, "", 0
    with open(os.path.join(ROOT, page), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            line = line.rstrip("\n")
            if FENCE.match(line):
                fence = None if fence is not None else FENCE.match(line)[1]
                if fence is None:
                    reason = None
            elif fence is None:
                if REASON.match(line):
                    reason = REASON.match(line)[1]
                elif line.strip():
                    reason = None
                if COMMAND.match(line):
                    stray.append(f"{page}:{number}: a command outside a block ```sh: {line.strip()}")
            elif fence == "sh" and (joined or (line.strip() and not line.startswith("#"))):
                start = start if joined else number
                joined += line
                if line.endswith("\\"):
                    joined += "\n"
                    continue
                found.append(Command(page, start, joined.strip(), reason))
                joined = ""
    return found, stray


def words_of(text):
    """The words of a command without its comment."""
    lexer = shlex.shlex(text.replace("\\\n", " "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


class Helps:
    """The flags that `sleigh COMMAND --help` prints."""

    def __init__(self, sleigh):
        self.sleigh, self.known = sleigh, {}

    def flags(self, command):
        if command not in self.known:
            run = subprocess.run([self.sleigh, command, "--help"], capture_output=True, text=True)
            # --[no-]perf is --perf and --no-perf.
            text = re.sub(r"--\[no-\]([\w-]+)", r"--\1, --no-\1", run.stdout)
            self.known[command] = None if run.returncode else set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", text))
        return self.known[command]

    def fault(self, text):
        """The first wrong word of a `sleigh` command, or None."""
        words = words_of(text)
        if not words or os.path.basename(words[0]) != "sleigh" or len(words) < 2:
            return None
        flags = self.flags(words[1])
        if flags is None:
            return f"unknown command {words[1]}"
        for word in words[2:]:
            if word in ("|", ">", "<", ";", "&", "&&"):
                break
            if re.match(r"^--?[A-Za-z]", word) and word.split("=")[0] not in flags:
                return f"unknown flag {word}"
        return None


def prepare(folder, sleigh):
    """Links the binary, and the folders that commands read."""
    for name in ("build", "bin", "home", "results"):
        os.makedirs(os.path.join(folder, name))
    for place in ("build", "bin"):
        os.symlink(sleigh, os.path.join(folder, place, "sleigh"))
    for name in ("models", "scripts", "examples"):
        if os.path.exists(os.path.join(ROOT, name)):
            os.symlink(os.path.join(ROOT, name), os.path.join(folder, name))


def run(command, folder):
    """Runs one command. Returns its exit code and what it wrote to stderr."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SLEIGH_", "XDG_"))}
    env.update(HOME=os.path.join(folder, "home"), PATH=os.path.join(folder, "bin") + os.pathsep + env["PATH"])
    with open(os.path.join(folder, "stderr"), "w+b") as said:
        child = subprocess.Popen(["bash", "-c", command.text], cwd=folder, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                 stderr=said, start_new_session=True)
        try:
            code = child.wait(timeout=HANGS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            code = f"none after {HANGS} s"
        said.seek(0)
        return code, said.read().decode(errors="replace").replace("\r", "\n").strip().split("\n")[-5:]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("pages", nargs="*", metavar="PAGE")
    p.add_argument("--sleigh", default=os.path.join(ROOT, "build/sleigh"))
    p.add_argument("--list", action="store_true", help="print the commands, and run nothing")
    a = p.parse_args()
    sleigh = os.path.abspath(a.sleigh)
    os.chdir(ROOT)
    pages = a.pages or ["README.md", "CONTRIBUTING.md"] + sorted(glob.glob("docs/*.md"))
    helps = Helps(sleigh)
    total = collections.Counter()
    for page in pages:
        commands, faults = commands_of(page)
        ran, reasons = 0, collections.Counter()
        with tempfile.TemporaryDirectory() as folder:
            prepare(folder, sleigh)
            for c in commands:
                if a.list:
                    print(f"{c.page}:{c.line}: {'not run, ' + c.reason if c.reason else 'run'}: {c.text}")
                    continue
                wrong = helps.fault(c.text)
                if wrong:
                    faults.append(f"{c.page}:{c.line}: {wrong}: {c.text}")
                elif c.reason:
                    reasons[c.reason] += 1
                else:
                    begin = time.time()
                    code, said = run(c, folder)
                    if code:
                        faults.append("\n    ".join([f"{c.page}:{c.line}: exit code {code}: {c.text}"] + said))
                    else:
                        ran += 1
                        print(f"{c.page}:{c.line}: {time.time() - begin:.1f} s: {c.text}", flush=True)
        for fault in faults:
            print(fault)
        if commands and not a.list:
            why = "; ".join(f"{n} not run: {reason}" for reason, n in reasons.items())
            print(f"  {page}: {ran} commands ran{'; ' if why else ''}{why}", flush=True)
        total.update(passed=ran, failed=len(faults), skipped=reasons.total())
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    sys.exit(total["failed"] > 0)


if __name__ == "__main__":
    main()
