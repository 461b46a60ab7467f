"""Turn one documentation file into plain English text: the formats of scripts/train/prose_corpus.py.

A page is (title, blocks, links). A block is (kind, text); kind is "h" (heading), "p" (paragraph), "li" (list item), "row" (table row) or
"code". A link is a path inside the package. lxml parses HTML, DocBook and Mallard; pod2text and mandoc convert pod and man pages.
"""

import collections
import posixpath
import re
import subprocess
import unicodedata
from urllib.parse import unquote

import lxml.etree

MAX_CODE_LINES = 16  # of one example
MAX_TABLE_ROWS = 40
MAX_WORD = 80        # a longer word is a key, a hash or a drawing
STOPWORDS = frozenset("the of and to a in is that for it as be with are this by on or not can from an if you at which have has was will "
                      "but its all when they used use we he his there their more one may what so been would than any".split())

SKIP_TAGS = frozenset("script style nav header footer form svg button input select textarea noscript iframe object head template audio "
                      "video canvas math indexterm toc area map remark bookinfo articleinfo info copyright legalnotice".split())
SKIP_CLASSES = frozenset("""navheader navfooter navigation nav navbar navpanel sphinxsidebar sphinxsidebarwrapper related breadcrumbs
 breadcrumb breadcrumblist footer headerlink toc local topic-contents menu toolbar sidebar rst-footer-buttons wy-nav-side
 wy-nav-top genindex copyright noprint hidden edit-page linenos gutter linenodiv navrow nav-wrapper skip toplang bottomlang footer-wrapper
 nav-panel tocset navsettop navsetbottom versionbox navleft navright nav_header nav_footer NAVHEADER NAVFOOTER TOC anchor
 viewcode-link searchbox quicklinks sourcelink prev-next-bottom bd-sidebar bd-toc summary-toc ednav permalink header-anchor
 short-contents shortcontents element-number sidetoc menu-wrapper o_toc docs-source
 prev-next-area prev-next-footer prev-next-info navlinks sidebar-scrollbox chapter-toc page-nav mobile-nav-chapters nav-chapters
 navigation-header nav-path top-bar""".split())
BLOCK_TAGS = frozenset("""p div li dt dd blockquote section article main body center table tr td th ul ol dl caption figure figcaption
 details summary address fieldset hr html para simpara formalpara listitem term varlistentry variablelist itemizedlist orderedlist procedure step
 substeps note tip warning caution important example sect1 sect2 sect3 sect4 sect5 chapter book appendix preface refsect1 refsect2
 simplesect refentry refnamediv refsynopsisdiv partintro part glossentry glossdef glossterm question answer qandaentry abstract sidebar
 item steps terms list page epigraph informalexample member entry row tbody thead tgroup informaltable cmdsynopsis""".split())
HEAD_TAGS = frozenset("h1 h2 h3 h4 h5 h6 title subtitle".split())
CODE_TAGS = frozenset("pre programlisting screen synopsis literallayout code-block listing xmp funcsynopsis".split())
TABLE_TAGS = frozenset(("table", "informaltable"))
LIST_TAGS = frozenset(("ul", "ol", "dl", "table"))
NAVIGATION = re.compile(r"^(Next|Previous|Prev|Up):.{1,200}(\[Contents\]|\[Index\]|, *(Previous|Prev|Up):)"
                        r"|^\[? ?(<<?|Next|Contents|Top) ?\]")
SPACES = re.compile(r"\s+")
INVISIBLE = dict.fromkeys((0xAD, 0x200B, 0x200C, 0x200D, 0x2060, 0xFEFF, 0xFFFC, 0xB6, 0xF0C1), None)


def decode(data):
    """Bytes of a text or HTML file as a string: UTF-8 if they are UTF-8, otherwise Windows-1252."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("cp1252", errors="ignore")


def squeeze(text):
    """One line in NFC without invisible characters, doubled blanks and over-long words."""
    text = SPACES.sub(" ", unicodedata.normalize("NFC", text).translate(INVISIBLE)).strip()
    if len(text) > MAX_WORD:
        text = " ".join(word for word in text.split(" ") if len(word) <= MAX_WORD)
    return text


def code_block(text):
    """The first lines of a code example, without trailing blanks and control characters."""
    text = unicodedata.normalize("NFC", text).translate(INVISIBLE).replace("\t", "    ").replace("\xa0", " ").replace("\r", "")
    lines = [line.rstrip()[:160] for line in text.split("\n")]
    lines = [line for line in lines if line.strip()][:MAX_CODE_LINES]
    text = "\n".join("".join(c for c in line if c.isprintable()) for line in lines)
    return text if sum(c.isalpha() for c in text) > 0.4 * sum(not c.isspace() for c in text) else ""  # otherwise numbers or a drawing


def english_share(text):
    """The share of common English words among the words of a text: 0.3 to 0.5 for prose, below 0.2 for tables and listings."""
    words = re.findall(r"[^\W\d_]+|[\d_]+", text.lower())
    return sum(word in STOPWORDS for word in words) / len(words) if words else 0.0


class Markup:
    """Walks a parsed tree and collects blocks."""

    def __init__(self):
        self.blocks = []
        self.inline = []
        self.kind = "p"

    def flush(self):
        text = squeeze("".join(self.inline))
        self.inline.clear()
        if text and any(c.isalnum() for c in text) and not NAVIGATION.search(text):
            self.blocks.append((self.kind, text))
            self.kind = "p"

    def table(self, element):
        for number, row in enumerate(r for r in element.iter("tr", "row")):
            if number >= MAX_TABLE_ROWS:
                break
            cells = [squeeze("".join(cell.itertext())) for cell in row if isinstance(cell.tag, str)]
            text = " | ".join(cell for cell in cells if cell)
            if any(c.isalnum() for c in text):
                self.blocks.append(("row", text[:1000]))

    def walk(self, element):
        tag = element.tag
        if not isinstance(tag, str):
            return
        tag = tag.rsplit("}", 1)[-1]
        if tag in SKIP_TAGS or element.get("role") in ("navigation", "search", "banner") or element.get("hidden") is not None:
            return
        names = element.get("class")
        if names and not SKIP_CLASSES.isdisjoint(names.split()) and tag not in ("body", "html", "main", "article"):
            return
        if tag in CODE_TAGS:
            self.flush()
            text = code_block("".join(element.itertext()))
            if text:
                self.blocks.append(("code", text))
        elif tag in HEAD_TAGS:
            self.flush()
            text = squeeze(heading_text(element))
            if text:
                self.blocks.append(("h", text.strip("¶# ")))
        elif tag in ("guiseq", "menuchoice"):
            self.inline.append(" > ".join("".join(part.itertext()) for part in element if part.tag != "shortcut"))
        elif tag in LIST_TAGS and mostly_links(element):
            self.flush()
        elif tag in TABLE_TAGS and is_data_table(element):
            self.flush()
            self.table(element)
        else:
            self.children(element, tag)

    def children(self, element, tag):
        block = tag in BLOCK_TAGS
        if block:
            self.flush()
            if tag in ("li", "listitem", "item", "step"):
                self.kind = "li"
        if element.text:
            self.inline.append(element.text)
        if tag == "br":
            self.inline.append(" ")
        for child in element:
            self.walk(child)
            if child.tail:
                self.inline.append(child.tail)
        if block:
            self.flush()
            self.kind = "p"


def heading_text(element):
    """The text of a heading without the mark that links to the heading."""
    parts = [element.text or ""]
    for inner in element.iterdescendants():
        if isinstance(inner.tag, str) and inner.get("class") not in ("headerlink", "anchor"):
            parts += [inner.text or "", inner.tail or ""]
    return "".join(parts)


def mostly_links(element):
    """Whether a list is a table of contents or a menu."""
    total = linked = count = 0
    for text in element.itertext():
        total += len(text.strip())
    for link in element.iter("a"):
        if link.get("href"):
            count += 1
            linked += sum(len(text.strip()) for text in link.itertext())
    return count >= 3 and linked > 0.6 * total


def is_data_table(element):
    """Whether a table holds short cells. A table that holds paragraphs, code or another table is layout."""
    for inner in element.iter("table", "pre", "div", "p", "ul", "dl", "h1", "h2", "h3"):
        if inner is not element and inner.tag != "p":
            return False
    return True


def main_part(root):
    """The element that holds the page's own text."""
    for path in (".//main", ".//div[@role='main']", ".//article", ".//div[@class='body']", ".//div[@id='content']",
                 ".//div[@class='document']"):
        found = root.findall(path)
        if len(found) == 1 and sum(map(len, found[0].itertext())) > 200:
            return found[0]
    body = root.find(".//body")
    return root if body is None else body


def html_page(path, data):
    """The page of an HTML file."""
    text = decode(data)
    match = re.search(r"charset=[\"']?([\w-]+)", text[:2000])
    if match and match.group(1).lower() not in ("utf-8", "utf8"):
        try:
            text = data.decode(match.group(1), errors="ignore")
        except LookupError:
            pass
    parser = lxml.etree.HTMLParser(encoding="utf-8", remove_comments=True, remove_pis=True, huge_tree=True)
    try:
        root = lxml.etree.fromstring(text.encode("utf-8", "ignore"), parser)
    except (lxml.etree.XMLSyntaxError, ValueError):
        root = None
    if root is None:
        return "", [], []
    title = root.findtext(".//title") or ""
    main = main_part(root)
    links = []
    for link in main.iter("a"):
        href = link.get("href") or ""
        if href and not re.match(r"[a-z]+:|#|/", href):
            links.append(posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(href.split("#")[0].split("?")[0]))))
    markup = Markup()
    markup.walk(main)
    markup.flush()
    return squeeze(title), markup.blocks, links


def xml_page(path, data):
    """The page of a DocBook or Mallard file. An entity that a DTD defines becomes its name."""
    text = decode(data)
    text = re.sub(r"<!DOCTYPE.*?(\[.*?\]\s*)?>", "", text, count=1, flags=re.S)
    text = re.sub(r"&(?!(?:amp|lt|gt|quot|apos|#\d+|#x[0-9a-fA-F]+);)([\w.-]+);", lambda m: m.group(1).replace("-", " "), text)
    text = re.sub(r"^\s*<\?xml[^>]*\?>", "", text)
    try:
        root = lxml.etree.fromstring(text.encode("utf-8"), lxml.etree.XMLParser(recover=True, remove_comments=True, remove_pis=True,
                                                                                resolve_entities=False, huge_tree=True))
    except lxml.etree.XMLSyntaxError:
        return "", [], []
    if root is None:
        return "", [], []
    for element in root.iter():
        if isinstance(element.tag, str):
            element.tag = element.tag.rsplit("}", 1)[-1].replace(":", "-")
    markup = Markup()
    markup.walk(root)
    markup.flush()
    title = next((text for kind, text in markup.blocks if kind == "h"), "")
    return title, markup.blocks, []


def is_drawing(line):
    """Whether a line of a text file belongs to a table, a drawing or code rather than to a paragraph."""
    letters = sum(c.isalpha() or c == " " for c in line)
    return bool(re.search(r"\S   +\S|\t\S", line)) or letters < 0.7 * len(line)


def text_blocks(text):
    """Blocks of a plain text: paragraphs on one line, code and tables as they are."""
    blocks = []
    text = re.sub(r"(?m)^%$", "", re.sub(r".\x08", "", text)).replace("\r\n", "\n").replace("\f", "\n").expandtabs(8)
    for part in re.split(r"\n\s*\n", text):
        lines = [line.rstrip() for line in part.split("\n") if line.strip() and not re.fullmatch(r"\s*[-=*~^#+_.\"'`|]{3,}\s*", line)]
        if not lines:
            continue
        if len(lines) == 1 and len(lines[0]) < 70 and not lines[0].startswith("  "):
            blocks.append(("h" if len(lines[0]) < 60 else "p", squeeze(lines[0])))
            continue
        drawing = sum(is_drawing(line.strip()) for line in lines)
        longest = max(len(line) for line in lines)
        if drawing * 2 > len(lines) or (longest < 45 and len(lines) > 2):
            blocks.append(("code", code_block("\n".join(lines))))
            continue
        item = []
        for line in lines:
            if re.match(r"\s*([-*o•]|\d+[.)])\s", line) and item:
                blocks.append(("p", squeeze(" ".join(item))))
                item = []
            item.append(line.strip())
        blocks.append(("p", squeeze(" ".join(item))))
    return [block for block in blocks if any(c.isalnum() for c in block[1])]


def text_page(path, data):
    """The page of a plain text or reStructuredText or Markdown file."""
    text = decode(data)
    if re.search(r"\.(rst|rst\.txt)$", path):
        text = re.sub(r"(?m)^\.\. (?:_|toctree|index|contents|SPDX|kernel-doc|image|figure|highlight|include|\|).*(?:\n[ \t]+.*)*", "",
                      text)
        text = re.sub(r"(?m)^\s*:\w+:.*$", "", text)
        text = re.sub(r":[\w:-]+:`([^`<]*?)\s*(?:<[^`]*>)?`", r"\1", text).replace("``", "").replace("::\n", ":\n")
        text = re.sub(r"`([^`<\n]+)\s*<[^`]*>`_+", r"\1", text)
        text = re.sub(r"(?m)^\.\. (\w+):: *", "", text)
        text = re.sub(r"\*\*([^*\n]+)\*\*", r"\1", text)
    if re.search(r"\.md$", path):
        text = re.sub(r"<[^<>\n]*>", "", re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text))
        text = re.sub(r"\[([^\]\n]+)\](\([^)\n]*\)|\[[^\]\n]*\])", r"\1", text)
        text = re.sub(r"(?m)^#+ *(.*?) *#*$", r"\1\n", text).replace("**", "").replace("`", "")
    blocks = text_blocks(text)
    return (blocks[0][1] if blocks else ""), blocks, []


def info_page(path, data):
    """The page of an info file: its nodes in the order of the file."""
    blocks = []
    for node in decode(data).split("\x1f")[1:]:
        head, _, body = node.strip("\n").partition("\n")
        name = re.search(r"Node: ([^,\n]*)", head)
        if not name or re.search(r"(?i)index|licen[cs]e|copying|warranty", name.group(1)):
            continue
        body = re.sub(r"(?ms)^\* Menu:.*?(?=\n\n(?! ?\*)|\Z)", "", body)
        body = re.sub(r"(?m)^\* .*::.*\n?", "", body)
        body = re.sub(r"\*[Nn]ote ([^:]*)::", r"\1", body)
        blocks += text_blocks(body)
    return (blocks[0][1] if blocks else ""), blocks, []


def filtered(command, data):
    """The standard output of a command that reads the bytes from its standard input."""
    return subprocess.run(command, input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=120, check=False).stdout


def pod_page(path, data):
    return text_page(path, filtered(["pod2text", "-u"], data))


def man_page(path, data):
    return html_page(path, filtered(["mandoc", "-T", "html", "-O", "fragment"], data))


def dict_page(path, data):
    """The page of a dictd database: definitions in the order of the file."""
    return text_page(path, re.sub(rb"[{}]", b"", data))


def pdf_page(path, data):
    """The page of a PDF: without the first and last lines that sheets share, and with words joined that a line's end divides."""
    text = filtered(["pdftotext", "-enc", "UTF-8", "-", "-"], data).decode("utf-8")
    sheets = [sheet.strip("\n").split("\n") for sheet in text.split("\f")]
    edges = collections.Counter(re.sub(r"[\d\W]+", "", line) for sheet in sheets for line in sheet[:2] + sheet[-2:])
    lines = []
    for sheet in sheets:
        for number, line in enumerate(sheet):
            at_edge = number < 2 or number >= len(sheet) - 2
            if not (at_edge and edges[re.sub(r"[\d\W]+", "", line)] > 3 and line.strip()) and not re.search(r"(\. ?){4,} *\d*$", line):
                lines.append(line)
    text = re.sub(r"(\w)[-\u00ad]\n([a-z])", r"\1\2", "\n".join(lines))
    blocks = text_blocks(text)
    return (blocks[0][1] if blocks else ""), blocks, []


PARSERS = {"html": html_page, "xml": xml_page, "text": text_page, "info": info_page, "pod": pod_page, "man": man_page, "dict": dict_page,
           "pdf": pdf_page}


def page_text(blocks):
    """The text of a page: paragraphs that an empty line separates, list items and rows on lines of their own."""
    parts = []
    last = ""
    for kind, text in blocks:
        if kind == "li":
            text = "- " + text
        tight = kind == last and kind in ("li", "row")
        if parts:
            parts.append("\n" if tight else "\n\n")
        parts.append(text)
        last = kind
    return "".join(parts)
