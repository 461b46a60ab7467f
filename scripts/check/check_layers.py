#!/usr/bin/env python3
"""Checks that the sources depend on each other in one direction (CONTRIBUTING.md, "Where things are").

    scripts/check/check_layers.py                reads the #include lines
    scripts/check/check_layers.py BUILD_FOLDER   also reads the symbols of the objects in BUILD_FOLDER

A file may include files of its layer and of lower layers. Only a test may include everything. The includes must not form a circle.
With a build folder the script checks calls in the same way: an object may need symbols of its layer and of lower layers, and no two
objects of the library may need each other (ONE_PART names the exception). Prints one line for each violation, and exits with 1 when there is one.
"""

import glob
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# From the lowest to the highest. The longest prefix that fits a path decides.
LAYERS = [
    ("sleigh.h", ["engine/sleigh.h"]),
    ("base", ["base/"]),
    ("backend", ["backend/"]),
    ("kv, tokenizer", ["kv/", "tokenizer/"]),
    ("grammar", ["grammar/"]),
    ("devices", ["backend/cpu/", "backend/cuda/"]),
    ("attention", ["attention/"]),
    ("models", ["models/"]),
    ("engine", ["engine/"]),
    ("server", ["server/"]),
    ("cli", ["cli/"]),
    ("tests", ["tests/"]),
]
SOURCES = (".c", ".cc", ".cu", ".h", ".cuh")

# The files of an interpreter call each other: an expression is made of expressions. They count as one file in the check of calls.
ONE_PART = ["tokenizer/jinja/"]


def layer_of(path):
    """The index in LAYERS."""
    fits = [(len(p), i) for i, (_, prefixes) in enumerate(LAYERS) for p in prefixes if path.startswith(p)]
    return max(fits)[1] if fits else None


def sources():
    for top in sorted({prefix.split("/")[0] for _, prefixes in LAYERS for prefix in prefixes}):
        for folder, _, names in sorted(os.walk(os.path.join(ROOT, top))):
            for name in sorted(names):
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def includes(path):
    with open(os.path.join(ROOT, path), encoding="utf-8") as f:
        return re.findall(r'^\s*#\s*include\s+"([^"]+)"', f.read(), re.M)


def circles(graph):
    """The strongly connected components of more than one node (Tarjan's algorithm), each as a sorted list."""
    index, low, stack, on_stack, out = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for to in sorted(graph.get(node, ())):
            if to not in index:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in on_stack:
                low[node] = min(low[node], index[to])
        if low[node] == index[node]:
            part = []
            while not part or part[-1] != node:
                part.append(stack.pop())
                on_stack.discard(part[-1])
            if len(part) > 1 or node in graph.get(node, ()):
                out.append(sorted(part))

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return out


def check_includes():
    faults, graph = [], {}
    for path in sources():
        graph[path] = set()
        for to in includes(path):
            if not os.path.exists(os.path.join(ROOT, to)):
                faults.append(f"{path}: includes {to}, which does not exist; expected a path from the root of the tree")
                continue
            graph[path].add(to)
            if layer_of(to) is None or layer_of(path) < layer_of(to):
                faults.append(f"{path} (layer {LAYERS[layer_of(path)][0]}) includes {to} (layer {LAYERS[layer_of(to)][0]})")
    faults += ["a circle of includes: " + " ".join(part) for part in circles(graph)]
    names = {}
    for path in graph:
        names.setdefault(os.path.basename(path), []).append(path)
    faults += ["one file name, several files: " + " ".join(p) for _, p in sorted(names.items()) if len(p) > 1 and not is_main(p)]
    return faults


def is_main(paths):
    return all(os.path.basename(p) == "main.c" for p in paths)


def symbols(build):
    """Returns, for each source file of the library and the commands, the global symbols that its object defines and those that it needs."""
    files = [p for p in sources() if not p.startswith("tests/")]
    objects = [(p, os.path.join(build, p + ".o")) for p in files if os.path.exists(os.path.join(build, p + ".o"))]
    objects += [(p, o) for p in files if p.endswith(".cu") for o in glob.glob(os.path.join(build, p[:-3] + ".*.cu.o"))]  # compiled again
    of_object = {o: p for p, o in objects}
    out = {p: (set(), set()) for p, _ in objects}
    if not objects:
        return out
    lines = subprocess.run(["nm", "-A", "-g", *of_object], capture_output=True, text=True, check=True).stdout.splitlines()
    for line in lines:  # FILE:VALUE KIND NAME, or FILE: U NAME
        defined, needed = out[of_object[line.split(":", 1)[0]]]
        kind, name = line.split()[-2:]
        if kind == "U":
            needed.add(name)
        elif kind.isupper() and kind not in "VWu":
            defined.add(name)
    return out


def part_of(path):
    return next((p for p in ONE_PART if path.startswith(p)), path)


def check_objects(build):
    table = symbols(build)
    if not table:
        return [f"{build}: holds no objects"]
    home = {name: path for path, (defined, _) in table.items() for name in defined}
    faults, graph = [], {}
    for path, (_, needed) in table.items():
        calls = {home[name] for name in needed if name in home} - {path}
        graph.setdefault(part_of(path), set()).update({part_of(to) for to in calls} - {part_of(path)})
        for to in sorted(calls):
            if layer_of(path) < layer_of(to):
                what = " ".join(sorted(n for n in needed if home.get(n) == to)[:3])
                faults.append(f"{path} (layer {LAYERS[layer_of(path)][0]}) needs {what} of {to} (layer {LAYERS[layer_of(to)][0]})")
    return faults + ["a circle of calls: " + " ".join(part) for part in circles(graph)]


def main():
    faults = check_includes()
    for build in sys.argv[1:]:
        faults += check_objects(build)
    for line in faults:
        print(line)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
