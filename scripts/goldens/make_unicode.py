#!/usr/bin/env python3
"""Writes the tables of Unicode that Sleigh's tokenizers use: tokenizer/unicode/unicode_tables.c and tokenizer/unicode/nfc_tables.c.

    python3 scripts/goldens/make_unicode.py  needs unicodedataplus==16.0.0 and regex==2024.11.6; the build and the tests need neither

The tables have the versions of Unicode that the Python package tokenizers 0.23.3 has. Its parts have different versions:
  Oniguruma (patterns)          16   general categories, White_Space, Alphabetic, scripts, case folding
  NFC                            9   decompositions and combining classes of the characters that Unicode 9 has
  char::is_numeric (Digits)     17   N of Unicode 16 and the 13 characters in NUMERIC_17
  is_punctuation (Punctuation)   8   P of the characters that Unicode 8 has, and the two characters in PUNCTUATION_8

scripts/goldens/make_unicode_goldens.py asks tokenizers itself for all code points, so the tests show whether these versions are right."""
import os

import regex
import unicodedataplus as ucd

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
POINTS = range(0x110000)
SCRIPTS = "Arabic Cyrillic Devanagari Greek Han Hangul Hebrew Hiragana Katakana Latin Thai".split()
CATEGORIES = "Cc Cf Cn Co Cs Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl Zp Zs".split()
NUMERIC_17 = [*range(0x11DE0, 0x11DEA), *range(0x16FF4, 0x16FF7)]  # Tolong Siki digits, Chinese small numbers
PUNCTUATION_8 = [0x166D, 0x111C9]  # later versions give these characters another category
UNICODE, NFC, PUNCTUATION = (16, 0), (9, 0), (8, 0)
FOLD = regex.UNICODE | regex.IGNORECASE


def age(c):
    text = ucd.age(chr(c))
    return tuple(int(x) for x in text.split(".")) if text[0].isdigit() else (99, 0)


def ranges(points):
    out = []
    for c in sorted(points):
        if out and out[-1][1] == c - 1:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def is_char(c):
    return not 0xD800 <= c < 0xE000


def matches(pattern):
    found = regex.compile(pattern)
    return {c for c in POINTS if is_char(c) and found.fullmatch(chr(c))}


# ---- C ----

def rows(items):
    """Writes the items in lines of at most 126 characters."""
    lines, line = [], "   "
    for item in items:
        if len(line) + len(item) + 2 > 126:
            lines.append(line)
            line = "   "
        line += " " + item + ","
    return "\n".join(lines + [line]) + "\n"


def array(kind, name, items):
    """An array and its length, NAME_n."""
    items = list(items)
    return f"const {kind} {name}[] = {{\n{rows(items)}}};\nconst size_t {name}_n = {len(items)};\n"


def code_set(name, points):
    found = ranges(points)
    items = (f"{{{a:#x}, {b:#x}}}" for a, b in found)
    return (f"static const sl_code_range {name}[] = {{\n{rows(items)}}};\n"
            f"const sl_code_set sl_{name} = {{{name}, {len(found)}}};\n")


def write(name, what, parts):
    path = os.path.join(ROOT, "tokenizer", name)
    with open(path, "w", encoding="ascii") as f:
        f.write(f"// tokenizer/{name} - {what}\n// scripts/goldens/make_unicode.py writes this file. Do not edit it.\n// clang-format off\n"
                '#include "tokenizer/unicode/unicode_tables.h"\n\n')
        f.write("\n".join(parts))
    print(path)


# ---- Unicode 16: what patterns use ----

def category_runs(category):
    out = []
    for c in POINTS:
        if not out or out[-1][1] != category[c]:
            out.append((c, category[c]))
    return [f"{c << 5 | CATEGORIES.index(name):#x}" for c, name in out]


def simple_folds():
    """The pairs (character, its simple case folding). regex leaves out I, because Turkish folds I to another letter."""
    for c in POINTS:
        folded = regex._regex.fold_case(FOLD, chr(c)) if is_char(c) else ""
        if c == ord("I"):
            folded = "i"
        if c != 0x130 and len(folded) == 1 and folded != chr(c):
            yield c, ord(folded)


def fold_runs(pairs):
    """Joins the pairs to runs {first, last, step, distance} of equal distances, with steps of 1 or 2."""
    runs = []
    for c, to in pairs:
        if runs:
            first, last, step, distance = runs[-1]
            if to - c == distance and c - last in (1, 2) and step in (0, c - last):
                runs[-1] = (first, c, c - last, distance)
                continue
        runs.append((c, c, 0, to - c))
    return [f"{{{a:#x}, {b:#x}, {step or 1}, {d}}}" for a, b, step, d in runs]


def has_long_fold(c):
    return is_char(c) and (c == 0x130 or len(regex._regex.fold_case(FOLD | regex.FULLCASE, chr(c))) > 1)


def unicode_tables():
    category = [ucd.category(chr(c)) for c in POINTS]
    of = lambda *names: {c for c in POINTS if category[c] in names}
    alphabetic, upper, lower = (matches(rf"\p{{{name}}}") for name in ("Alphabetic", "Uppercase", "Lowercase"))
    letters = of("Lu", "Ll", "Lt", "Lm", "Lo", "Nl")
    if not letters <= alphabetic or matches(r"\p{L}") != letters - of("Nl") or not of("Lu") <= upper or not of("Ll") <= lower:
        raise SystemExit("unicodedataplus and regex have different versions of Unicode")
    punctuation = {c for c in POINTS if category[c][0] == "P" and age(c) <= PUNCTUATION} | {*PUNCTUATION_8}
    script = [ucd.script(chr(c)) for c in POINTS]
    return [array("uint32_t", "sl_category_runs", category_runs(category)),
            array("char *const", "sl_category_names", (f'"{name}"' for name in CATEGORIES)),
            code_set("white_space", matches(r"\p{White_Space}")),
            code_set("other_alphabetic", alphabetic - letters),
            code_set("other_uppercase", upper - of("Lu")),
            code_set("other_lowercase", lower - of("Ll")),
            code_set("numeric_17", NUMERIC_17),
            code_set("punctuation_8", punctuation | {ord(c) for c in "$+<=>^`|~"}),
            array("sl_fold_run", "sl_fold_runs", fold_runs(simple_folds())),
            code_set("long_folds", (c for c in POINTS if has_long_fold(c))),
            *(code_set(f"script_{name.lower()}", (c for c in POINTS if script[c] == name)) for name in SCRIPTS),
            array("sl_script", "sl_scripts", (f'{{"{name}", &sl_script_{name.lower()}}}' for name in SCRIPTS))]


# ---- Unicode 9: form C ----

def canonical(c):
    """The code points of the canonical decomposition of one step, or ()."""
    text = ucd.decomposition(chr(c)) if is_char(c) else ""
    return () if not text or text.startswith("<") else tuple(int(x, 16) for x in text.split())


def composes(c, parts):
    """Whether form C joins the parts again."""
    return len(parts) == 2 and ucd.normalize("NFC", "".join(map(chr, parts))) == chr(c)


def nfc_tables():
    old = [c for c in POINTS if is_char(c) and age(c) <= NFC]
    pairs = [(c, canonical(c)) for c in old if canonical(c)]
    class_runs, before = [], 0
    for c in POINTS:
        now = ucd.combining(chr(c)) if is_char(c) and age(c) <= NFC else 0
        if now != before:
            class_runs.append(f"{c << 8 | now:#x}")
        before = now
    # A text of other characters is in form C. The letters of Hangul that end a syllable join by rule.
    second = {parts[1] for c, parts in pairs if composes(c, parts)} | {*range(0x1161, 0x1176), *range(0x11A8, 0x11C3)}
    changed = {c for c, parts in pairs if not composes(c, parts)} | {c for c in old if ucd.combining(chr(c))} | second
    joins = sorted((parts, place) for place, (c, parts) in enumerate(pairs) if composes(c, parts))
    return [code_set("nfc_changed", changed), array("uint32_t", "sl_class_runs", class_runs),
            array("sl_decomposition", "sl_decompositions",
                  (f"{{{c:#x}, {parts[0]:#x}, {parts[1] if len(parts) > 1 else 0:#x}}}" for c, parts in pairs)),
            array("uint16_t", "sl_compositions", (str(place) for _, place in joins))]


def main():
    if ucd.unidata_version != "16.0.0":
        raise SystemExit(f"unicodedataplus has Unicode {ucd.unidata_version}, expected 16.0.0")
    write("unicode_tables.c", "properties of code points, for the patterns of pre-tokenizers.", unicode_tables())
    write("nfc_tables.c", "decompositions and combining classes, for Unicode's normalisation form C.", nfc_tables())


if __name__ == "__main__":
    main()
