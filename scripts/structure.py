#!/usr/bin/env python3
"""Prints the structure of the tree: files of each folder, the largest files, the longest functions, as Markdown tables.

    scripts/structure.py [-n 10] [FOLDER of a tree]      without a folder: this tree

A function is a definition at the left margin, or in a namespace, that ends with a "}" at the same margin. A kernel is a function
marked __global__. Lines count from the first line of the signature to the closing brace."""
import argparse
import collections
import os
import re
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SOURCES = (".c", ".cc", ".cu", ".h", ".cuh")
SIGNATURE = re.compile(r"^(?!typedef|struct|enum|union|extern|namespace|#|//|\}|\s)[^;=]*?(\w+)\([^;]*$")


def sources(root):
    listed = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, text=True, check=True).stdout.split("\n")
    return [p for p in listed if p.endswith(SOURCES)]


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


def table(head, rows):
    print("| " + " | ".join(head) + " |\n|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(str(x) for x in row) + " |")
    print()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("tree", nargs="?", default=ROOT)
    p.add_argument("-n", type=int, default=10, help="rows of the tables of largest files and longest functions")
    a = p.parse_args()
    folders, sizes, found = collections.defaultdict(list), {}, []
    for path in sources(a.tree):
        with open(os.path.join(a.tree, path), encoding="utf-8") as f:
            lines = f.read().split("\n")
        sizes[path] = len(lines) - 1
        folders[os.path.dirname(path)].append(path)
        found += functions(path, lines)
    print("## Files of each folder\n")
    rows = [(f"`{folder}/`", len(paths), sum(sizes[x] for x in paths)) for folder, paths in sorted(folders.items())]
    table(("folder", "files", "lines"), rows + [("all", len(sizes), sum(sizes.values()))])
    print("## Largest files\n")
    table(("file", "lines"), [(f"`{x}`", n) for x, n in sorted(sizes.items(), key=lambda x: (-x[1], x[0]))[: a.n]])
    print("## Longest functions\n")
    found.sort(key=lambda x: (-x[0], x[2], x[1]))
    code = [x for x in found if not x[2].startswith("tests/")]
    table(("function", "file", "lines"), [(f"`{name}`" + (" (kernel)" if k else ""), f"`{path}`", n) for n, name, path, k in code[: a.n]])
    repeated = collections.defaultdict(list)
    for path in sizes:
        repeated[os.path.basename(path)].append(path)
    repeated = {k: v for k, v in repeated.items() if len(v) > 1 and k != "main.c"}
    print("## File names that occur more than once\n")
    table(("name", "files"), [(f"`{k}`", ", ".join(f"`{x}`" for x in v)) for k, v in sorted(repeated.items())]) if repeated else print("None.\n")


if __name__ == "__main__":
    main()
