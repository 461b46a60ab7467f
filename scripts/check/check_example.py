#!/usr/bin/env python3
"""Follows docs/add-an-attention.md by copy and paste, in a copy of the tree, and runs the tests of the method that the page adds.

    scripts/check/check_example.py [--build build] [--gpu]

A block ```c FILE adds its text to FILE, which must not exist in the tree. A block ```diff FILE changes FILE: its lines with ' ' and '-'
must occur once, and the lines with ' ' and '+' replace them. The rest of the last line stays. The copy also has the objects of --build,
so `make` compiles only what the page changes. Then the commands of the blocks ```sh run; those of the block that needs a GPU only with
--gpu."""
import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile

from check_commands import commands_of
from check_names import ROOT, tracked

PAGE = "docs/add-an-attention.md"
GPU = "needs a GPU"  # the reason of blocks that do not run


def blocks_of(page):
    """(info, file, text) of every fenced block that names a file."""
    with open(page, encoding="utf-8") as f:
        return re.findall(r"^```(c|diff) (\S+)\n(.*?)^```$", f.read(), re.M | re.S)


def copy_tree(folder, build):
    """The files of the tree without documents, and the objects of the build, with their times."""
    for name in tracked():  # without git: every file
        if name and os.path.isfile(name) and not name.startswith(("docs/", "build/", ".git/")):
            os.makedirs(os.path.dirname(os.path.join(folder, name)), exist_ok=True)
            shutil.copy2(name, os.path.join(folder, name))
    for at, folders, names in os.walk(build):
        folders[:] = [x for x in folders if x not in ("san", "debug", "portable", "deb", "fuzz", "cpu", "venv") or at != build]
        to = os.path.join(folder, "build", os.path.relpath(at, build))
        os.makedirs(to, exist_ok=True)
        for name in names:
            if name.endswith((".o", ".d", ".a")) or name == "flags":
                shutil.copy2(os.path.join(at, name), os.path.join(to, name))


def apply(folder, kind, name, text):
    path = os.path.join(folder, name)
    if kind == "c":
        if os.path.exists(name):
            sys.exit(f"{PAGE}: {name} exists in the tree; the example must be a file that does not")
        with open(path, "a", encoding="utf-8") as f:
            f.write(text)
        return
    lines = text.splitlines(keepends=True)
    old = "".join(x[1:] for x in lines if x[0] in " -").removesuffix("\n")
    new = "".join(x[1:] for x in lines if x[0] in " +").removesuffix("\n")
    with open(path, encoding="utf-8") as f:
        source = f.read()
    if source.count(old) != 1:
        sys.exit(f"{PAGE}: these lines occur {source.count(old)} times in {name}, expected once:\n{old}")
    times = os.stat(path)
    with open(path, "w", encoding="utf-8") as f:
        f.write(source.replace(old, new))
    # A declaration that is added to a header changes no object. With the header's old time, `make` does not compile every
    # kernel again (5 minutes on two cores).
    changed = [x for x in lines if x[0] != " "]
    if name.endswith(".h") and all(x.startswith("+extern ") for x in changed):
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def run(command, folder):
    print(command, flush=True)
    env = {k: v for k, v in os.environ.items() if k not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL", "BUILD", "SLEIGH_BIN")}
    done = subprocess.run(["bash", "-c", command], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    print("\n".join("    " + x for x in done.stdout.split("\n")[-12:]), flush=True)
    if done.returncode:
        sys.exit(f"{PAGE}: exit code {done.returncode}: {command}")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--build", default="build", help="folder of the objects")
    p.add_argument("--gpu", action="store_true", help="also run the commands that need a GPU")
    a = p.parse_args()
    build = os.path.abspath(a.build)
    os.chdir(ROOT)
    cuda = os.path.exists(os.path.join(build, "attention/cuda/lists/subset.cu.o"))
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(folder, build)
        for kind, name, text in sorted(blocks_of(PAGE), key=lambda x: x[0]):  # new files first
            apply(folder, kind, name, text)
        for c in commands_of(PAGE)[0]:
            if a.gpu or c.reason != GPU:
                # -o: the objects of --build are good, also where it has other flags.
                run(f"make -j2 -o build/flags CUDA={int(cuda)} all" if c.text == "make" else c.text, folder)


if __name__ == "__main__":
    main()
