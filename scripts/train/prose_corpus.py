#!/usr/bin/env python3
"""Build a corpus of English books from Debian's documentation packages.

The packages, their licences and their limits are in scripts/train/prose_packages.txt. apt-get downloads the packages into --cache; nothing is
installed. Each package gives one book or several: a folder of the package whose pages are joined in the order of its table of contents.
Paragraphs that occur twice, pages that are not English prose, and listings are removed. Whole books are set apart for testing.

  DIR/train/NAME.txt, DIR/test/NAME.txt   one UTF-8 text a book
  DIR/books.json                          [{name, title, package, version, licence, split, bytes}, ...]
"""

import argparse
import bz2
import collections
import concurrent.futures
import gzip
import hashlib
import json
import lzma
import pathlib
import pickle
import posixpath
import random
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.parse
import zlib

try:
    import prose_extract
except ImportError as missing:
    sys.exit(f"prose_corpus: {missing}; install python3-lxml and run /usr/bin/python3 scripts/train/prose_corpus.py")

SCRIPTS = pathlib.Path(__file__).resolve().parent
EXTRACTOR = (SCRIPTS / "prose_extract.py").read_text(encoding="utf-8")
MEGABYTE = 1000 * 1000
BYTES_PER_TOKEN = 3.7
MIN_BOOK = 20 * 1000       # bytes: a shorter text is not a book
LARGE_BOOK = 3 * MEGABYTE  # a larger book is split by its folders
MIN_PART = 150 * 1000
MIN_PROSE = 0.26           # the least share of common words on a page
MIN_PAGE = 200             # bytes: a shorter page is a menu
SHORT = 50                 # characters of a paragraph that may be a name or a cell
MAX_SHORT = 6              # short paragraphs in a row that stay
MIN_TEST = 140 * 1000      # bytes: 32k tokens and a margin
LICENCES = {  # the name in the table of packages: what the package's copyright file says
    "Apache": r"(?i)apache", "Artistic": r"(?i)artistic", "Boost": r"\bBSL\b|Boost Software",
    "BSD": r"\bBSD|Redistribution and use in source",
    "CC-BY": r"(?i)CC-BY|Creative Commons Attribution", "CC-BY-SA": r"(?i)CC-BY-SA|Share ?-?Alike", "CC0": "CC0",
    "EPL": r"\bEPL\b|Eclipse Public", "GFDL": r"\bG?FDL\b|Free\s+Documentation\s+License", "GPL": r"\bA?GPL|General\s+Public\s+Licen[sc]e",
    "ISC": r"\bISC\b", "LGPL": r"\bLGPL|(Lesser|Library) General Public", "LPPL": r"(?i)\bLPPL|LaTeX Project Public",
    "MIT": r"\bMIT\b|\bExpat\b|\bX11\b|Permission is hereby granted", "MPL": r"\bMPL\b|Mozilla Public",
    "OPL": r"\bOPL\b|Open Publication", "PostgreSQL": "PostgreSQL", "PSF": r"\bPSF\b|Python Software Foundation|\bPYTHON\b",
    "public-domain": r"(?i)public[ -]domain|copyright for the King James", "other": "."}
NOT_LATIN = re.compile("[^\\x00-\u024f\u2000-\u22ff]")
DULL_FOLDERS = frozenset("usr share doc help info gtk-doc devhelp man html en c HTML C docs manual books en-us text".split() + [""])
LANGUAGES = (r"(ar|bg|bn|ca|cs|da|de|el|es|fa|fi|fr|he|hi|hr|hu|id|it|ja|ko|lt|nb|nl|nn|no|pl|pt|ro|ru|sk|sl|sq|sr|sv|th|tr|uk|vi|zh"
             r"|(pt|zh)[-_][a-z]{2})")
SKIP_PAGES = re.compile(  # indexes, licences and lists of changes; folders of code; API pages of one class; other languages
    r"(?i)(^|/)(genindex|py-modindex|modindex|search|searchindex|theindex|doc-index|docindex|classindex|namespaces|annotated|hierarchy"
    r"|globals|functions|copying|copyright|licen[cs]es?|legal[_-]?(notice)?|changelog|changes|news|gfdl|gpl|lgpl|fdl|bookindex|index-all"
    r"|sitemap|colophon|allclasses.*|ix\d+|bk\d+ix\d+|[a-z]*[_-]?index[_-][a-z0-9]+"
    r"|(concept|function|variable|command|general|keyword|key)[_-]index|.*gnu[_-]free[_-]documentation.*|.*general[_-]public[_-]licen.*"
    r"|release[_-]?notes.*|manindex|idx|readme\.debian|authors?|todo|install|contributors|acknowledg.*)(\.(x?html?|txt|rst|md))?(\.txt)?$"
    r"|(^|/)(_modules|_sources|_static|_images|examples?|releasenotes|locale|javadoc|api-?docs?|translations|autosummary|licenses)/"
    r"|usr/share/help/(?!C/)|usr/share/gnome/help/[^/]+/(?!C/)|(^|/)(group__|namespace|dir_[0-9a-f]{8})[^/]*\.html$"
    r"|-members\.html$|_8[a-z]+(_source)?\.html$|_source\.html$|(^|/)(class|struct|union)[a-z0-9_]+\.html$|\.html\.[a-z]{2}(_[a-z]+)?$"
    rf"|(^|/){LANGUAGES}/|\.{LANGUAGES}\.(html|txt)")
KINDS = (("html", re.compile(r"\.x?html?$|/index\.cache$")), ("info", re.compile(r"\.info(-\d+)?$")), ("pod", re.compile(r"\.pod$")),
         ("xml", re.compile(r"\.(docbook|page)$|usr/share/(gnome/)?help/[^/]*/?C/.*\.xml$")),
         ("man", re.compile(r"usr/share/man/man\d/[^/]*$")), ("dict", re.compile(r"\.dict$")),
         ("pdf", re.compile(r"\.pdf$")),
         ("text", re.compile(r"usr/share/(doc|vim|games|info|jargon)/.*(\.(txt|rst|md|text)|/[^./]+)$")))


def fail(message):
    sys.exit(f"prose_corpus: {message}")


def need_tools(*tools):
    for tool, package in tools:
        if not shutil.which(tool):
            fail(f"{tool}: not found; install the package {package}")


def read_packages(path):
    """The table of packages: [{package, licence, cap, kind, only, skip, prose, test}] in the order of the file."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = line.split()
        if len(fields) < 2 or not set(fields[1].split(",")) <= set(LICENCES):
            fail(f"{path}:{number}: licences {' '.join(fields[1:2])}, expected names of LICENCES")
        row = {"package": fields[0], "licence": fields[1], "cap": 15.0, "kind": None, "only": None, "skip": None, "test": None,
               "prose": MIN_PROSE}
        for option in fields[2:]:
            key, sep, value = option.partition("=")
            if not sep or key not in ("cap", "kind", "only", "skip", "test", "prose"):
                fail(f"{path}:{number}: option {option}, expected cap=MB, kind=NAME, only=REGEX, skip=REGEX, prose=SHARE or test=BOOK,BOOK")
            row[key] = float(value) if key in ("cap", "prose") else value
        rows.append(row)
    return rows


def package_files(deb, kinds):
    """{path: bytes} of a package's files of some kinds and its copyright file. Expanded files lose the suffix of the compression."""
    files = {}
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(deb)], stdout=subprocess.PIPE) as process:
        with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
            for member in archive:
                path = member.name.lstrip("./")
                if not member.isreg() or member.size > 80 * MEGABYTE or not path.startswith("usr/"):
                    continue
                plain = re.sub(r"\.(gz|bz2|xz|dz)$", "", path)
                if not any(pattern.search(plain) for kind, pattern in KINDS if kind in kinds) and not path.endswith("/copyright"):
                    continue
                data = archive.extractfile(member).read()
                try:
                    if path.endswith((".gz", ".dz")):
                        data = gzip.decompress(data)
                    elif path.endswith(".bz2"):
                        data = bz2.decompress(data)
                    elif path.endswith(".xz"):
                        data = lzma.decompress(data)
                except (OSError, EOFError):
                    continue
                files[plain] = data
    return files


def natural(path):
    """A key that sorts numbers inside a path by value."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", path.lower())]


def toc_score(path):
    name = posixpath.basename(path).lower()
    order = ("toc.html", "contents.html", "index.html", "index.htm", "book1.html", "master.html", "manual.html")
    return (path.count("/"), order.index(name) if name in order else len(order), len(name), path)


def reading_order(pages):
    """Page names in the order of the tables of contents: a page, then the pages that it links to first, each with its own."""
    order = []
    claimed = set()

    def visit(path):
        stack = [path]
        while stack:
            path = stack.pop()
            order.append(path)
            children = []
            for link in pages[path][2]:
                if link in pages and link not in claimed:
                    claimed.add(link)
                    children.append(link)
            stack.extend(reversed(children))

    roots = [path for path in sorted(pages, key=toc_score) if toc_score(path)[1] < 6]
    for path in roots + sorted(pages, key=natural):
        if path not in claimed:
            claimed.add(path)
            visit(path)
    return order


def bible_pages(deb):
    """{chapter: page} of the King James Bible. The program bible of the package bible-kjv reads the text, which is compressed."""
    program = next(deb.parent.glob("bible-kjv_*.deb"))
    pages = {}
    chapter = None
    with tempfile.TemporaryDirectory() as folder:
        for archive in (deb, program):
            subprocess.run(["dpkg-deb", "-x", str(archive), folder], check=True)
        command = [f"{folder}/usr/bin/bible", "-p", f"{folder}/usr/lib", "-f", "gen1:1-rev22:21"]
        text = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=300).stdout.decode("latin-1")
    for line in text.splitlines():
        verse = re.match(r"([0-9A-Z][A-Za-z]+)(\d+):(\d+) (.*)", line)
        if verse:
            name = f"{verse.group(1)} {verse.group(2)}"
            if name != chapter:
                chapter = name
                blocks = [("h", name)]
                pages[f"usr/{len(pages):04d}"] = (name, blocks, [])
            blocks.append(("row", f"{verse.group(3)} {verse.group(4)}"))
    return pages


def parse_files(files, row):
    """{path: page} of the files of a package that hold prose."""
    files = {path: data for path, data in files.items()
             if (not row["only"] or re.search(row["only"], path)) and not (row["skip"] and re.search(row["skip"], path))}
    cached = {posixpath.dirname(path) for path in files if path.endswith("/index.cache")}  # KDE's HTML of the same DocBook files
    kinds = {}
    for path, data in files.items():
        if path.endswith(".docbook") and posixpath.dirname(path) in cached:
            continue
        if SKIP_PAGES.search(path) or not data:
            continue
        kind = next((kind for kind, pattern in KINDS if pattern.search(path)), None)
        kinds.setdefault(kind, {})[path] = data
    size = {kind: sum(map(len, group.values())) for kind, group in kinds.items()}
    if row["kind"]:
        chosen = row["kind"].split(",")
    else:
        chosen = [kind for kind in ("xml", "html", "pod", "dict") if size.get(kind, 0) > 30000]
        chosen = chosen or [kind for kind in ("info", "pdf", "text", "man") if size.get(kind, 0) > 30000][:1]
    pages = {}
    for kind in chosen:
        for path, data in kinds.get(kind, {}).items():
            if len(data) > 40 * MEGABYTE:
                continue
            pages[path] = prose_extract.PARSERS[kind](path, data)
    return pages


def split_books(texts, order):
    """[(folder, paths)]: one book for a package, or one for each large folder if the package is large."""
    def size(paths):
        return sum(len(texts[path][1]) for path in paths)

    def split(paths, depth):
        root = posixpath.commonpath([posixpath.dirname(path) for path in paths])
        if size(paths) <= LARGE_BOOK or depth > 3:
            return [(root, paths)]
        parts = {}
        for path in paths:
            rest = posixpath.relpath(path, root)
            parts.setdefault(rest.split("/")[0] if "/" in rest else "", []).append(path)
        large = {name: group for name, group in parts.items() if name and size(group) >= MIN_PART}
        if not large or (len(large) == 1 and len(parts) == 1):
            return [(root, paths)]
        in_large = set().union(*large.values())
        rest = [path for path in paths if path not in in_large]
        books = [book for group in large.values() for book in split(group, depth + 1)]
        return ([(root, rest)] if rest else []) + books

    return split(order, 0) if order else []


def package_pages(deb, row):
    """{"copyright": text, "pages": [(path, title, text, share of common words)]} of a package, in reading order."""
    sys.setrecursionlimit(10000)
    files = package_files(deb, row["kind"].split(",") if row["kind"] else [kind for kind, _ in KINDS])
    copyright_path = next((path for path in files if re.fullmatch(r"usr/share/doc/[^/]+/copyright", path)), None)
    licence_text = prose_extract.decode(files.pop(copyright_path)) if copyright_path else ""
    pages = bible_pages(deb) if row["kind"] == "bible" else parse_files(files, row)
    result = []
    for path in reading_order(pages):
        title, blocks, _ = pages[path]
        text = prose_extract.page_text(blocks)
        if len(text) >= MIN_PAGE and len(NOT_LATIN.findall(text)) < 0.05 * len(text):
            result.append((path, title, text, prose_extract.english_share(text)))
    return {"copyright": licence_text, "pages": result}


def package_books(package, row):
    """[(name, title, [page text, ...])] of a package, before duplicates are removed."""
    texts = {path: (title, text, share) for path, title, text, share in package["pages"] if share >= row["prose"]}
    cap = row["cap"] * MEGABYTE
    total = sum(len(text) for _, text, _ in texts.values())
    for path in sorted(texts, key=lambda path: texts[path][2]):
        if total <= cap:
            break
        total -= len(texts[path][1])
        del texts[path]
    books = []
    for folder, paths in split_books(texts, list(texts)):
        parts = [part for part in folder.split("/") if part not in DULL_FOLDERS and not row["package"].startswith(part)]
        name = re.sub(r"[^a-z0-9.+-]+", "-", "-".join([row["package"]] + parts).lower())
        title = next((texts[path][0] for path in paths if texts[path][0]), name)
        books.append((name, prose_extract.squeeze(title)[:100], [texts[path][1] for path in paths]))
    return [book for book in books if sum(map(len, book[2])) >= MIN_BOOK]


def cached_package(deb, row, cache):
    """The path of the parsed package in the cache. The key covers all that decides the parse."""
    options = [row["kind"], row["only"], row["skip"]]
    key = hashlib.sha1("\n".join([deb.name, repr(options), SKIP_PAGES.pattern, repr(KINDS), EXTRACTOR])
                       .encode()).hexdigest()[:16]
    path = cache / "pages" / f"{row['package']}-{key}.pickle"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(pickle.dumps(package_pages(deb, row)))
        part.rename(path)
    return str(path)


def download(rows, cache):
    """Fetches the packages that the cache lacks. Returns {package: path of the .deb}."""
    debs = cache / "debs"
    debs.mkdir(parents=True, exist_ok=True)

    def found():
        return {path.name.split("_")[0]: path for path in sorted(debs.glob("*.deb"))}

    wanted = [row["package"] for row in rows] + (["bible-kjv"] if any(row["kind"] == "bible" for row in rows) else [])
    missing = [package for package in wanted if package not in found()]
    groups = [missing[first:first + 20] for first in range(0, len(missing), 20)] + [[package] for package in missing]
    for group in groups:  # apt-get downloads no package of a group of which it lacks one: each package alone follows
        group = [package for package in group if package not in found()]
        if group:
            subprocess.run(["apt-get", "download", "-qq", *group], cwd=debs, check=False, stderr=subprocess.DEVNULL)
    lost = [package for package in missing if package not in found()]
    if lost:
        print(f"apt has no {' '.join(lost)}: the corpus lacks these packages", file=sys.stderr)
    return found()


def paragraph_key(text):
    """Equal for paragraphs that differ in blanks, case or numbers only."""
    return hashlib.blake2b(re.sub(r"[\W\d_]+", " ", text.lower()).encode(), digest_size=8).digest()


class Shingles:
    """A sample of the runs of eight words of the test books. It finds paragraphs that differ from a test paragraph in a few words."""

    WORDS = 8
    BASE = 1000003
    MASK = (1 << 64) - 1
    SAMPLE = 4  # one run in four is kept: those whose hash is a multiple of 4

    def __init__(self):
        self.seen = set()
        self.top = pow(self.BASE, self.WORDS, 1 << 64)

    def runs(self, text):
        value = 0
        hashes = [zlib.crc32(word.encode()) for word in re.findall(r"\w+", text.lower())]
        found = []
        for number, word in enumerate(hashes):
            value = (value * self.BASE + word) & self.MASK
            if number >= self.WORDS:
                value = (value - hashes[number - self.WORDS] * self.top) & self.MASK
            if number >= self.WORDS - 1 and (value >> 20) % self.SAMPLE == 0:
                found.append(value)
        return found

    def add(self, text):
        self.seen.update(self.runs(text))

    def share(self, text):
        """The share of the text's runs that occur in the added texts (0 if the text is too short to tell)."""
        found = self.runs(text)
        return sum(run in self.seen for run in found) / len(found) if len(found) >= 4 else 0.0


def page_edges(pages):
    """Short paragraphs at the first or the last three places of many pages: navigation, not text."""
    counts = collections.Counter()
    for page in pages:
        parts = page.split("\n\n")
        counts.update(set(part for part in parts[:3] + parts[-3:] if len(part) < 80))
    return {part for part, count in counts.items() if count >= 8 and count > 0.3 * len(pages)}


def without_lists(parts):
    """Paragraphs without the tail of each run of short ones: names, keywords and table cells that the markup wrote as paragraphs."""
    kept = []
    run = 0
    for part in parts:
        run = run + 1 if len(part) < SHORT and part[-1] not in ".?!:" else 0
        if run <= MAX_SHORT:
            kept.append(part)
    return kept


def unique_text(book, seen, shingles):
    """The text of a book without navigation and without the paragraphs that this book or an earlier book has."""
    edges = page_edges(book["pages"])
    kept = []
    for page in book["pages"]:
        for part in page.split("\n\n"):
            if not part or part in edges:
                continue
            if len(part) >= 60:
                key = paragraph_key(part)
                if key in seen or (shingles and len(part) >= 120 and shingles.share(part) > 0.5):
                    continue
                seen.add(key)
            elif kept and kept[-1] == part:
                continue
            kept.append(part)
    return "\n\n".join(without_lists(kept)) + "\n"


def remove_duplicates(books, test_names):
    """Sets the text of every book and drops the books that are mostly copies. The test books come first, so that they stay whole."""
    seen = set()
    shingles = Shingles()
    kept = []
    for split in ("test", "train"):
        for book in books:
            if (book["name"] in test_names) != (split == "test"):
                continue
            size = sum(len(page) for page in book["pages"])
            book["split"] = split
            book["text"] = unique_text(book, seen, shingles if split == "train" else None)
            if len(book["text"]) < max(MIN_BOOK, 0.35 * size):
                print(f"dropped {book['name']}: {len(book['text'])} of {size} characters are its own")
                continue
            if split == "test":
                shingles.add(book["text"])
            kept.append(book)
    return kept


def write_corpus(books, out):
    """Writes the folder beside its final place and renames it, so that a reader never sees half a corpus."""
    if out.exists() and not (out / "books.json").exists():
        fail(f"{out}: found a folder without books.json, expected a corpus or no folder")
    part = out.with_name(out.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    table = []
    for split in ("train", "test"):
        (part / split).mkdir(parents=True)
    for book in books:
        data = book["text"].encode()
        (part / book["split"] / (book["name"] + ".txt")).write_bytes(data)
        table.append({key: book[key] for key in ("name", "title", "package", "version", "licence", "split")} | {"bytes": len(data)})
    (part / "books.json").write_text(json.dumps(table, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    if out.exists():
        shutil.rmtree(out)
    part.rename(out)
    return table


def print_counts(table):
    for split in ("train", "test"):
        rows = [row for row in table if row["split"] == split]
        size = sum(row["bytes"] for row in rows)
        print(f"{split}: {len(rows)} books, {size / MEGABYTE:.1f} MB, about {size / BYTES_PER_TOKEN / 1e6:.1f} million tokens, "
              f"{len({row['package'] for row in rows})} packages")
    for row in table:
        if row["split"] == "test":
            print(f"  test {row['name']:50s} {row['bytes'] / 1000:6.0f} kB  {row['title'][:60]}")


def version_of(deb):
    return urllib.parse.unquote(deb.name.split("_")[1])


def read_books(rows, cache, jobs):
    """The books of the packages in the order of the table. Prints a line for each package."""
    debs = download(rows, cache)
    rows = [row for row in rows if row["package"] in debs]
    books = []
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        parsed = [pool.submit(cached_package, debs[row["package"]], row, cache) for row in rows]
        for row, job in zip(rows, parsed):
            package = pickle.loads(pathlib.Path(job.result()).read_bytes())
            for name in row["licence"].split(","):
                if package["copyright"] and not re.search(LICENCES[name], package["copyright"]):
                    print(f"{row['package']}: the copyright file does not name the licence {name}", file=sys.stderr)
            found = package_books(package, row)
            for name, title, pages in found:
                books.append({"name": name, "title": title, "package": row["package"], "version": version_of(debs[row["package"]]),
                              "licence": row["licence"], "pages": pages})
            size = sum(len(page) for _, _, pages in found for page in pages)
            print(f"{row['package']:32s} {len(found):3d} books {size / MEGABYTE:7.2f} MB", flush=True)
    counts = collections.Counter()
    for book in books:
        counts[book["name"]] += 1
        if counts[book["name"]] > 1:
            book["name"] += f"-{counts[book['name']]}"
    return books


def build(rows, cache, out, jobs):
    """Builds the corpus in the folder out. Returns the table of books."""
    books = read_books(rows, cache, jobs)
    test_names = {name for row in rows if row["test"] for name in row["test"].split(",")}
    lost = sorted(test_names - {book["name"] for book in books})
    if lost:
        fail(f"test book {lost[0]}: found no such book, expected a book of the packages")
    kept = remove_duplicates(books, test_names)
    for book in kept:
        if book["split"] == "test" and len(book["text"].encode()) < MIN_TEST:
            fail(f"test book {book['name']}: found {len(book['text'].encode())} bytes, expected at least {MIN_TEST}")
    return write_corpus(kept, out)


def markdown(table):
    """The list of packages as a table for docs/corpus.md."""
    lines = ["| package | version | licences | books | MB | test book |", "|---|---|---|---|---|---|"]
    for package in sorted({row["package"] for row in table}):
        rows = [row for row in table if row["package"] == package]
        tests = ", ".join(row["name"] for row in rows if row["split"] == "test")
        lines.append(f"| {package} | {rows[0]['version']} | {rows[0]['licence'].replace(',', ', ')} | {len(rows)} "
                     f"| {sum(row['bytes'] for row in rows) / MEGABYTE:.2f} | {tests} |")
    return "\n".join(lines) + "\n"


def sample_deb(folder, package, files):
    """Writes a package with some files. Returns its path."""
    root = folder / package
    control = f"Package: {package}\nVersion: 1.0\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: a sample\n"
    for path, data in {"DEBIAN/control": control.encode(), f"usr/share/doc/{package}/copyright": b"License: MIT\n", **files}.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    deb = folder / f"{package}_1.0_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(root), str(deb)], check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(root)
    return deb


def check_formats(check):
    """Compares the blocks of small files with the expected blocks."""
    def blocks(kind, path, data):
        return prose_extract.PARSERS[kind](path, data)[1]

    docbook = b"""<?xml version="1.0"?><!DOCTYPE book [<!ENTITY kate "Kate">]><book><title>A &kate; book</title><chapter><title>One</title>
        <para>Choose <menuchoice><guimenu>File</guimenu><guimenuitem>Open</guimenuitem></menuchoice> to open it.</para>
        <itemizedlist><listitem><para>first</para></listitem></itemizedlist><indexterm>key</indexterm><screen>ls\n\n-l</screen></chapter></book>"""
    check("DocBook", blocks("xml", "a.docbook", docbook) == [("h", "A kate book"), ("h", "One"), ("p", "Choose File > Open to open it."),
                                                             ("li", "first"), ("code", "ls\n-l")])
    text = b"Title\n=====\n\nThe first line of a paragraph that is long enough\nand its second line which is also long.\n\n  +--+--+\n  |  |  |\n"
    check("text", blocks("text", "usr/share/doc/a/a.txt", text) == [
        ("h", "Title"), ("p", "The first line of a paragraph that is long enough and its second line which is also long.")])
    check("Markdown", blocks("text", "usr/share/doc/a/a.md", b"# Head #\nSee the [guide](g.md) of **all** that it has to say about `code`, "
                             b"which is long.\n")[1] == ("p", "See the guide of all that it has to say about code, which is long."))
    check("Unicode", prose_extract.squeeze("e\u0301 \u00ad\u200b a\u00a0 b") == "\u00e9 a b")


def self_test():
    """Builds a corpus from packages that this function writes, without a network, and compares the books with the expected texts."""
    words = (SCRIPTS.parents[1] / "tests" / "prose" / "excerpt.txt").read_text(encoding="utf-8").split()
    rng = random.Random(1)

    def page(title, body, links=""):
        return (f"<html><head><title>{title}</title></head><body><div class='navheader'><a href='x.html'>Next</a> page of the guide</div>"
                f"<h1>{title}<a class='headerlink' href='#x'>¶</a></h1>{links}{body}<script>not text</script></body></html>").encode()

    def chapter(name, count):
        return "".join(f"<p>{name} {' '.join(rng.choice(words) for _ in range(60))}</p>\n" for _ in range(count))

    fish, bird = chapter("salmon", 300), chapter("robin", 300)
    nearly_fish = "".join(line.replace(" the ", " THE one ", 1) + "\n" for line in fish.split("\n")[:20])
    contents = "<ul><li><a href='b.html'>One</a></li><li><a href='a.html'>Two</a></li><li><a href='c.html'>Three</a></li></ul>"
    table = "<table>" + "".join(f"<tr><td>key {n}</td><td>the value of the key</td></tr>" for n in range(60)) + "</table>"
    code = "<pre>" + "\n".join(f"line {n} of code" for n in range(50)) + "</pre>"
    guide = {"usr/share/doc/guide-doc/html/index.html": page("Guide", chapter("start", 1), contents),
             "usr/share/doc/guide-doc/html/a.html": page("Second", bird + table),
             "usr/share/doc/guide-doc/html/b.html": page("First", fish + code),
             "usr/share/doc/guide-doc/html/c.html": page("Third", "<p>" + "x1 = y2; " * 200 + "</p>"),
             "usr/share/doc/guide-doc/html/genindex.html": page("Index", chapter("index", 50))}
    info = b"This is sample.info\n\x1f\nFile: sample.info,  Node: Top,  Next: One,  Up: (dir)\n\nSample\n******\n\n" \
        + b"* Menu:\n\n* One::  first\n" + b"\x1f\nFile: sample.info,  Node: One,  Prev: Top\n\n1 One\n=====\n\n" \
        + re.sub("<p>|</p>", "\n", chapter("donkey", 200) + nearly_fish).encode()
    failures = []

    def check(name, condition):
        if not condition:
            failures.append(name)

    check_formats(check)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        debs = folder / "cache" / "debs"
        debs.mkdir(parents=True)
        sample_deb(debs, "guide-doc", guide)
        sample_deb(debs, "copy-doc", {path.replace("guide-doc", "copy-doc"): data for path, data in guide.items()})
        sample_deb(debs, "info-doc", {"usr/share/info/sample.info.gz": gzip.compress(info, mtime=0)})
        (folder / "packages.txt").write_text("# a comment\ncopy-doc MIT\nguide-doc MIT test=guide-doc\ninfo-doc MIT cap=1\n")
        rows = read_packages(folder / "packages.txt")
        sizes = []
        for _ in range(2):
            sizes.append({row["name"]: row for row in build(rows, folder / "cache", folder / "out", 1)})
        check("equal runs", sizes[0] == sizes[1])
        check("the copy is dropped", sorted(sizes[0]) == ["guide-doc", "info-doc"])
        check("split", sizes[0]["guide-doc"]["split"] == "test" and sizes[0]["info-doc"]["split"] == "train")
        check("version", sizes[0]["guide-doc"]["version"] == "1.0")
        text = (folder / "out" / "test" / "guide-doc.txt").read_text(encoding="utf-8")
        check("bytes", len(text.encode()) == sizes[0]["guide-doc"]["bytes"])
        check("order of the contents", 0 <= text.find("Guide") < text.find("\nFirst\n") < text.find("\nSecond\n"))
        check("no navigation", "page of the guide" not in text and "not text" not in text and "¶" not in text)
        check("no index", "index " not in text)
        check("no symbols", "y2" not in text)
        check("short code", "line 15 of code" in text and "line 16 of code" not in text)
        check("short tables", "key 39 | the value" in text and "key 40" not in text)
        text = (folder / "out" / "train" / "info-doc.txt").read_text(encoding="utf-8")
        check("no paragraph of a test book", "donkey" in text and "salmon" not in text)
        check("info", text.startswith("Sample\n\n1 One\n\ndonkey ") and "Menu" not in text and "\x1f" not in text)
    for name in failures:
        print(f"FAILED {name}")
    print(f"self-test: {len(failures)} failures")
    return len(failures) != 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("build/prose"), help="folder of the corpus (default: build/prose)")
    parser.add_argument("--cache", type=pathlib.Path, default=pathlib.Path("build/prose-cache"),
                        help="folder of the packages and of their parsed pages (default: build/prose-cache)")
    parser.add_argument("--jobs", type=int, default=2, help="processes that parse packages (default: 2)")
    parser.add_argument("--only", nargs="+", metavar="PACKAGE", help="read only these packages of the table")
    parser.add_argument("--markdown", type=pathlib.Path, metavar="FILE", help="write the table of packages to this file")
    parser.add_argument("--self-test", action="store_true", help="build a small corpus from samples, without a network")
    args = parser.parse_args()
    if args.self_test:
        return self_test()
    need_tools(("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("mandoc", "mandoc"), ("pdftotext", "poppler-utils"), ("pod2text", "perl"))
    rows = read_packages(SCRIPTS / "prose_packages.txt")
    if args.only:
        rows = [row for row in rows if row["package"] in args.only]
    table = build(rows, args.cache, args.out, args.jobs)
    print_counts(table)
    if args.markdown:
        args.markdown.write_text(markdown(table), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
