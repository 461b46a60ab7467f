#!/usr/bin/env python3
"""Checks that every source file or page that a page or a comment names exists, and that a reader finds every page of docs/
and results/.

    scripts/check/check_names.py [FILE...]      without files: README.md, CONTRIBUTING.md, docs/*.md, .ci/run, the scripts
    scripts/check/check_names.py --sources      the comments of the C, C++ and CUDA files

In pages and in .ci/run the script checks every word, and in other files the words of comments. A name with a folder is a path from the
root of the tree, or from the folder of the page. A name without a folder is a file of any folder. `*` means any part of a name, and
{a,b} means one of several words. Names in results/ are not checked, because a measurement names the files of an earlier commit.
No line may be a mark of an unfinished merge. A block ```c FILE quotes lines of FILE, or makes a file that does not exist.

Without files, the script also checks the links of all pages, and follows the names of pages from docs/index.md: they must lead to every
page of docs/ and results/. Each page of results/ must begin with five lines, and its question and answer must be a row of
results/README.md. The script prints one line for each fault, and then exits with 1."""
import fnmatch
import functools
import glob
import itertools
import os
import re
import subprocess
import sys

FIVE_LINES = re.compile("# .*\n\n" + "".join(rf"- \*\*{x}:\*\* (.+)\n" for x in ("Question", "Answer", "Date", "Commit", "Command")))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NAME = re.compile(r"(?<![\w/$<~.-])((?:[\w*{},.-]+/)*[\w*{},.-]*\w\.(?:c|cc|cu|cuh|h|py|sh|md))(?![\w/(])")


def tracked():
    """The files of the tree, new ones included."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.returncode == 0:
        return run.stdout.split("\n")
    return [os.path.relpath(os.path.join(at, x), ROOT) for at, _, names in os.walk(ROOT) for x in names]


def words(name):
    """a{b,c}d as abd, acd."""
    parts = [x[1:-1].split(",") if x.startswith("{") else [x] for x in re.findall(r"\{[^}]*\}|[^{]+", name)]
    return ["".join(x) for x in itertools.product(*parts)]


@functools.cache
def matches(pattern, files):
    if "*" not in pattern:
        return pattern in files
    return any(fnmatch.fnmatch(x, pattern) for x in files)


def exists(name, page, files, names):
    if "/" not in name:
        return matches(name, names)
    return any(matches(p, files) for p in (name, os.path.normpath(os.path.join(os.path.dirname(page), name))))


def text_to_check(page, line):
    """The part of a line that names files."""
    if page.endswith(".md") or page == ".ci/run":
        return line
    mark = "#" if page.endswith((".py", ".sh")) else "//"
    at = re.search(rf"(^|\s){mark}( |$)", line)
    return line[at.end() :] if at else ""


def pages_without_a_way():
    """The pages of docs/ and results/ to which no chain of names leads from docs/index.md."""
    pages = {x for x in tracked() if x.startswith(("docs/", "results/")) and x.endswith(".md") and os.path.exists(x)}
    found, queue = {"docs/index.md"}, ["docs/index.md"]
    while queue:
        page = queue.pop()
        with open(page, encoding="utf-8") as f:
            names = {y for x in NAME.findall(f.read()) for y in (x, os.path.normpath(os.path.join(os.path.dirname(page), x)))}
        reached = (names & pages) - found
        found |= reached
        queue += reached
    return sorted(pages - found)


def anchors(page):
    """The names of a page's headings in links, as GitHub makes them."""
    with open(page, encoding="utf-8") as f:
        text = re.sub(r"```.*?```", "", f.read(), flags=re.S)
    return {re.sub(r"[^\w\- ]", "", x.strip().lower()).replace(" ", "-") for x in re.findall(r"^#+ (.*)$", text, re.M)}


def broken_links():
    """(page, target) of each link between pages whose file or heading does not exist."""
    for page in [x for x in tracked() if x.endswith(".md") and os.path.exists(x)]:
        with open(page, encoding="utf-8") as f:
            targets = re.findall(r"\]\(([^)\s:]+)\)", f.read())
        for target in targets:
            name, _, heading = target.partition("#")
            path = os.path.normpath(os.path.join(os.path.dirname(page), name)) if name else page
            if not os.path.exists(path) or (heading and heading not in anchors(path)):
                yield page, target


def faults_of_results():
    """(page, fault) of each page of results/ without the five lines (scripts/sleigh_runs.py) or without its row in the index."""
    index = "results/README.md"
    with open(index, encoding="utf-8") as f:
        rows = f.read().split("\n")
    for page in [x for x in tracked() if x.startswith("results/") and x.endswith(".md") and x != index and os.path.exists(x)]:
        with open(page, encoding="utf-8") as f:
            text = f.read()
        head, name = FIVE_LINES.match(text), page.removeprefix("results/")
        if text.startswith("## "):  # a section that a script includes into a page
            continue
        if not head:
            yield page, "expected five lines below the title: Question, Answer, Date, Commit, Command"
        elif (row := f"| [{name}]({name}) | {head[1]} | {head[2]} |") not in rows:
            yield index, f"lacks the row {row}"


def main():
    os.chdir(ROOT)
    files, faults = frozenset(tracked()), 0
    names = frozenset(os.path.basename(x) for x in files)
    pages = sys.argv[1:]
    if pages == ["--sources"]:
        pages = [x for x in sorted(files) if x.endswith((".c", ".cc", ".cu", ".cuh", ".h"))]
    elif not pages:
        pages = ["README.md", "CONTRIBUTING.md", ".ci/run"]
        pages += sorted(glob.glob("docs/*.md") + glob.glob("scripts/**/*.sh", recursive=True) + glob.glob("scripts/**/*.py", recursive=True))
    for page in pages:
        with open(page, encoding="utf-8") as f:
            lines = f.readlines()
            quoted = re.findall(r"^```c (\S+)\n(.*?)^```$", "".join(lines), re.M | re.S)
            made = {x for x, _ in quoted if x not in files}  # a page's example (check_example.py)
            known, bases = files | made, names | {os.path.basename(x) for x in made}
            for name, text in quoted:
                if name in files and text not in open(name, encoding="utf-8").read():
                    print(f"{page}: {name} does not contain the lines that the page quotes")
                    faults += 1
            for number, line in enumerate(lines, 1):
                if line.startswith(("<<<<<<< ", ">>>>>>> ")):
                    print(f"{page}:{number}: a merge left this line")
                    faults += 1
                for name in NAME.findall(text_to_check(page, line)):
                    name = name.removeprefix("build/")
                    if re.search(r"NAME|FILE", name):  # a placeholder
                        continue
                    if not all(exists(x, page, known, bases) for x in words(name)):
                        print(f"{page}:{number}: {name} does not exist")
                        faults += 1
    if not sys.argv[1:]:
        for page in pages_without_a_way():
            print(f"{page}: no page that docs/index.md leads to names it")
            faults += 1
        for page, target in broken_links():
            print(f"{page}: the link ({target}) leads nowhere")
            faults += 1
        for page, fault in faults_of_results():
            print(f"{page}: {fault}")
            faults += 1
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
