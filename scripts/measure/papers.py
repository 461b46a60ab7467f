#!/usr/bin/env python3
"""Writes results/papers.md: every table and figure of the four papers, with our figure beside it.

    python3 scripts/measure/papers.py [-o results/papers.md]

results/papers/papers.json has the papers' numbers and, for each, the place of our number: a cell of a page of results/. This script reads the
cell, the command of its section and the model of its page, so a page that is measured again changes this page too. A place whose page,
section, row or column is not there is an error. The test of the script compares the page with the data.

The data: {"pages": {page: about}, "papers": [{"name", "title", "source", "tables": number, "figures": number, "related": [names of
items], "items": [item]}]}.
  about     {"model": words, "sections": {heading: {"model", "command"}}}: of our figures; "sections" has what differs
  related   items where ours is another quantity than the paper's, for example a KL in place of a score
The items of a paper must hold its tables 1 to `tables` and its figures 1 to `figures`. An item: {"item": "Table 1", "what": words,
"cases": [[case, the paper's number, place], ...], "why": words}.
  place     "PAGE.md # beginning of a heading # row # column", or "" where we have no figure
  row       the row's first cells, joined by "; ", or the beginning of the first cell
  column    the head of the column; "HEAD (2)": the second column with this head
  why       why the two numbers cannot be compared, or why there is none of ours; "" where they can be compared
An item without cases is a drawing, or has no figure of ours."""
import argparse
import json
import os
import re
import sys
import textwrap

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from sleigh_runs import head_lines

RULER = re.compile(r"\|[-| ]+\|$")
FIELD = re.compile(r"^- \*\*(\w+):\*\* (.*)$", re.MULTILINE)


# ---- pages of results ----

class Page:
    def __init__(self, root, name):
        path = os.path.join(root, name)
        if not os.path.exists(path):
            sys.exit(f"{path}: found no such page, which a place of results/papers/papers.json names")
        with open(path, encoding="utf-8") as f:
            self.text = f.read()
        self.name, self.fields = name, dict(FIELD.findall(self.text))

    def section(self, heading):
        """The lines below the first heading that begins with these words, up to the next heading of its level or above."""
        lines = self.text.splitlines()
        at = next((i for i, line in enumerate(lines) if line.lstrip("#").strip().startswith(heading) and line.startswith("#")), None)
        if at is None:
            sys.exit(f"results/{self.name}: found no heading that begins with \"{heading}\"")
        level = len(lines[at]) - len(lines[at].lstrip("#"))
        end = next((i for i in range(at + 1, len(lines)) if re.match(rf"#{{1,{level}}} ", lines[i])), len(lines))
        return lines[at + 1:end]

    def command(self, heading):
        """The first command of the section, else that of the page."""
        for line in self.section(heading):
            if re.match(r"(    |)(build/sleigh|python3|SIZES=|scripts/)", line):
                return line.strip()
        return self.fields.get("Command", "").strip("`")


def cells(line):
    return [cell.strip().strip("`") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def cell_at(page, heading, row, column):
    lines, whole, begun = [line for line in page.section(heading) if line.startswith("|")], [], []
    word, nth = re.fullmatch(r"(.*?)(?: \((\d)\))?", column).groups()
    for i, line in enumerate(lines[:-1]):
        columns = [at for at, cell in enumerate(cells(line)) if cell == word]
        if not RULER.match(lines[i + 1]) or len(columns) < int(nth or 1):
            continue
        for body in lines[i + 2:]:
            if RULER.match(body):
                break
            key = "; ".join(cells(body)) + ";"
            if key.startswith(row):
                (whole if key.startswith(row + ";") else begun).append(cells(body)[columns[int(nth or 1) - 1]])
    found = whole or begun
    if not found or (not whole and len(begun) > 1):
        sys.exit(f"results/{page.name}, section \"{heading}\": found {len(found)} rows \"{row}\" with a column \"{column}\", expected one")
    return found[0]


# ---- the page ----

def table(head, rows):
    return "\n".join(["| " + " | ".join(head) + " |", "|---" * len(head) + "|"] + ["| " + " | ".join(row) + " |" for row in rows])


class Report:
    def __init__(self, data, root):
        self.about, self.root, self.pages, self.commands = data["pages"], root, {}, []
        self.used = {}

    def ours(self, place):
        """(figure, model, command's number) of a place."""
        if not place:
            return "-", "", ""
        name, heading, row, column = (part.strip() for part in place.split(" # "))
        if name not in self.pages:
            self.pages[name] = Page(self.root, name)
        page = self.pages[name]
        if name not in self.about:
            sys.exit(f"results/papers/papers.json: \"pages\" lacks {name}")
        self.used[name] = page
        of_section = self.about[name].get("sections", {}).get(heading, {})
        command = (name, of_section.get("command") or page.command(heading))
        if command not in self.commands:
            self.commands.append(command)
        number = self.commands.index(command) + 1
        return cell_at(page, heading, row, column), of_section.get("model") or self.about[name]["model"], f"[{number}](#commands)"

    def paper(self, paper):
        rows, drawings, names = [], [], [item["item"] for item in paper["items"]]
        for word in ("Table", "Figure"):
            for i in range(1, paper[word.lower() + "s"] + 1):
                if names.count(f"{word} {i}") != 1:
                    sys.exit(f"results/papers/papers.json: {paper['name']}: found {names.count(f'{word} {i}')} items \"{word} {i}\", expected one")
        for item in paper["items"]:
            if not item.get("cases"):
                drawings.append([item["item"], item["what"], item["why"]])
            of_related = " (a related quantity)" if item["item"] in paper["related"] else ""
            for i, (case, theirs, place) in enumerate(item.get("cases", [])):
                figure, model, command = self.ours(place)
                first = i == 0
                rows.append([f"**{item['item']}** {item['what']}{of_related}" if first else "", case, theirs, figure, model, command, item["why"] if first else ""])
        n = paper["tables"] + paper["figures"]
        ours = {item["item"] for item in paper["items"] if item.get("cases") and re.fullmatch(r"(Table|Figure) \d+", item["item"])}
        related = set(paper["related"])
        if related - ours:
            sys.exit(f"results/papers/papers.json: {paper['name']}: \"related\" names {sorted(related - ours)}, which have no figure of ours")
        out = [f"## {paper['name']}",
               f"{paper['title']} ({paper['source']}). Of {n} tables and figures, {len(ours)} have a figure of ours, {len(related)} of them of a related quantity.",
               table(["table or figure", "case", "paper", "ours", "our model", "command", "not comparable because"], rows)]
        if drawings:
            out += ["Without a figure of ours:", table(["table or figure", "what it shows", "why"], drawings)]
        return out, len(ours), len(related), n


def page(data, root):
    report = Report(data, root)
    sections, n_ours, n_related, n = [], 0, 0, 0
    for paper in data["papers"]:
        out, ours, related, of = report.paper(paper)
        sections += out
        n_ours, n_related, n = n_ours + ours, n_related + related, n + of
    dates = [p.fields["Date"] for p in report.used.values() if "Date" in p.fields]
    commands = [f"{i + 1}. [{name}]({name}): `{command}`" for i, (name, command) in enumerate(report.commands)]
    out = ["# The four papers, table by table",
           head_lines("What do the tables and figures of the four papers say, and what do we measure for each?",
                      f"Of {n} tables and figures, {n_ours - n_related} have a figure of ours of the same quantity beside them (nearly all of another "
                      f"model and other tasks), and {n_related} one of a related quantity; for the other {n - n_ours} the page says why not.",
                      dates, [], "`python3 scripts/measure/papers.py`"),
           "The papers' numbers are in `results/papers/papers.json`. Our numbers come from the pages of this folder, which have their commits, commands and "
           "intervals: the script finds each number by the page, the heading, the row and the column. So the dates above are those of these pages.",
           "Read the last column first. The papers measure models of 7B to 30B parameters on public benchmarks; most of our figures are of small models, on "
           "tasks of `sleigh eval` or on natural text. So levels of accuracy cannot be compared. Orders of methods, slopes, errors of heads and shares of rows "
           "can, where the last column does not object.",
           *sections, "## Commands", "\n".join(commands)]
    return "\n\n".join(textwrap.fill(p, 140) if p[0] not in "#-|1" else p for p in out) + "\n"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", default="results/papers/papers.json")
    p.add_argument("-o", "--output", default="results/papers.md")
    a = p.parse_args()
    with open(a.data, encoding="utf-8") as f:
        data = json.load(f)
    text = page(data, "results")
    with open(a.output, "w", encoding="utf-8") as f:
        f.write(text)


if __name__ == "__main__":
    main()
