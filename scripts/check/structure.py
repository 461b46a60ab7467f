#!/usr/bin/env python3
"""Prints the structure of the tree as Markdown: files of each folder, the largest files, the longest functions.

    scripts/check/structure.py [-n 10]                                        of this tree
    scripts/check/structure.py --before f5e3eec > results/structure.md   of an earlier commit and of this tree

Only C, C++ and CUDA files count. A function begins with a signature at the left margin and ends with a "}" there. Its lines count
from the signature to that brace. A kernel is a function marked __global__. Tests count as files, but not as longest functions."""
import argparse
import collections
import os
import re
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "scripts"))
from sleigh_runs import head_lines

SOURCES = (".c", ".cc", ".cu", ".h", ".cuh")
SIGNATURE = re.compile(r"^(?!typedef|struct|enum|union|extern|namespace|#|//|\}|\s)[^;=]*?(\w+)\([^;]*$")


def read_tree(commit):
    """{path: lines} of the sources of a commit; None: of the working tree."""
    git = ["git", "-C", ROOT]
    listing = ["ls-tree", "-r", "--name-only", commit] if commit else ["ls-files"]
    names = subprocess.run(git + listing, capture_output=True, text=True, check=True).stdout.split("\n")
    out = {}
    for path in (x for x in names if x.endswith(SOURCES)):
        if commit:
            text = subprocess.run(git + ["show", f"{commit}:{path}"], capture_output=True, text=True, check=True).stdout
        elif os.path.exists(os.path.join(ROOT, path)):
            with open(os.path.join(ROOT, path), encoding="utf-8") as f:
                text = f.read()
        else:
            continue
        out[path] = text.split("\n")[:-1]
    return out


def functions(path, lines):
    """Yields (lines, name, path, is_kernel)."""
    start = name = None
    for i, line in enumerate(lines):
        line = re.sub(r"__\w+__\([^)]*\)", "", line)  # __launch_bounds__(...), __attribute__((...
        if start is None:
            match = SIGNATURE.match(line)
            if match and not line.startswith("static const"):
                start, name = i, match.group(1)
            elif line.startswith("template"):
                start, name = i, None
        elif name is None and (match := SIGNATURE.match(line)):
            name = match.group(1)
        if start is None:
            continue
        if line.startswith("}") or (i == start and line.rstrip().endswith("}")):
            if name:
                yield i - start + 1, name, path, any("__global__" in x for x in lines[start : start + 4])
            start = name = None
        elif line.rstrip().endswith(";") and not line.startswith((" ", "\t")):  # a declaration
            start = name = None


class Tree:
    def __init__(self, commit):
        files = read_tree(commit)
        self.sizes = {path: len(lines) for path, lines in files.items()}
        self.folders, by_name = collections.defaultdict(list), collections.defaultdict(list)
        for path in files:
            self.folders[os.path.dirname(path)].append(path)
            by_name[os.path.basename(path)].append(path)
        found = [x for path, lines in files.items() for x in functions(path, lines) if not path.startswith("tests/")]
        self.functions = sorted(found, key=lambda x: (-x[0], x[2], x[1]))
        self.largest = sorted(self.sizes.items(), key=lambda x: (-x[1], x[0]))
        self.repeated = {k: v for k, v in sorted(by_name.items()) if len(v) > 1 and k != "main.c"}

    def summary(self):
        fullest = max(self.folders, key=lambda x: len(self.folders[x]))
        lines, name, path, _ = self.functions[0]
        return [("source files", len(self.sizes)), ("lines", sum(self.sizes.values())), ("folders with sources", len(self.folders)),
                ("most files in one folder", f"{len(self.folders[fullest])} (`{fullest}/`)"),
                ("file names that occur more than once", len(self.repeated)),
                ("largest file", f"{self.largest[0][1]} lines (`{self.largest[0][0]}`)"),
                ("longest function outside tests", f"{lines} lines (`{name}`, `{path}`)"),
                ("functions outside tests of more than 60 lines", sum(x[0] > 60 for x in self.functions))]

    def answer(self):
        """The main figures in one line."""
        return (f"{len(self.sizes)} source files with {sum(self.sizes.values())} lines; the largest file has {self.largest[0][1]} lines, and the longest "
                f"function outside tests {self.functions[0][0]} lines.")


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(x) for x in row) + " |")
    print()


def details(tree, n, title):
    print(f"## Longest functions{title}\n")
    rows = [(f"`{name}`" + (" (kernel)" if kernel else ""), f"`{path}`", lines) for lines, name, path, kernel in tree.functions[:n]]
    table(("function", "file", "lines"), rows)
    print(f"## Largest files{title}\n")
    table(("file", "lines"), [(f"`{path}`", lines) for path, lines in tree.largest[:n]])
    print(f"## File names that occur more than once{title}\n")
    if tree.repeated:
        table(("name", "files"), [(f"`{k}`", ", ".join(f"`{x}`" for x in v)) for k, v in tree.repeated.items()])
    else:
        print("None, except `main.c`.\n")
    print(f"## Files of each folder{title}\n")
    rows = [(f"`{x}/`", len(paths), sum(tree.sizes[p] for p in paths)) for x, paths in sorted(tree.folders.items())]
    table(("folder", "files", "lines"), rows)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--before", metavar="COMMIT", help="also print this commit's structure")
    p.add_argument("-n", type=int, default=5, help="rows of the tables of functions and files (default 5)")
    a = p.parse_args()
    now = Tree(None)
    head = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    command = "`scripts/check/structure.py" + (f" --before {a.before} > results/structure.md`" if a.before else "`")
    print("# Structure of the tree\n")
    print(head_lines("How many files, lines and long functions does the tree have?", now.answer(), [time.strftime("%Y-%m-%d")], [a.before, head],
                     command) + "\n")
    if not a.before:
        table(("", "now"), now.summary())
        details(now, a.n, "")
        return
    old = Tree(a.before)
    print(f"Before: commit {a.before}. After: commit {head}. `scripts/check/structure.py` says what counts.\n")
    table(("", "before", "after"), [(what, x, y) for (what, x), (_, y) in zip(old.summary(), now.summary())])
    details(now, a.n, ", after")
    details(old, a.n, ", before")


if __name__ == "__main__":
    main()
