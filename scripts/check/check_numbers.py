#!/usr/bin/env python3
"""Checks that the library writes and reads numbers only with base/number.h.

printf and strtod depend on the locale of the program that embeds the library: with a decimal comma they write and read other
texts. The script lists calls of them that handle numbers with a decimal point. sl_fail and sl_engine_log are safe. Commands
(cli) run in the locale "C".

Usage: scripts/check/check_numbers.py
"""
import pathlib
import re
import sys

FOLDERS = ("attention", "backend", "base", "engine", "grammar", "kv", "models", "server", "tokenizer")
READS = re.compile(r"(?<!\w)(strtod|strtof|strtold|atof)\s*\(")
CALL = re.compile(r"(?<!\w)(snprintf|sprintf|fprintf|printf|asprintf|vsnprintf)\s*\(")
FLOAT = re.compile(r"%[-+#0]*[\d*]*(\.[\d*]*)?[eEfFgGaA]")


def strings_of_call(text, start):
    """The string literals from `start` to the parenthesis that ends the call."""
    depth, quoted, i, out = 0, False, start, []
    while i < len(text):
        c = text[i]
        if quoted:
            out.append(c)
            if c == "\\":
                i += 1
            quoted = c != '"'
        elif c == '"':
            quoted = True
        elif c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
            if depth == 0:
                break
        i += 1
    return "".join(out)


def main():
    faults = 0
    for folder in FOLDERS:
        for path in sorted(pathlib.Path(folder).rglob("*.[ch]")):
            if path.as_posix() == "base/number.c":
                continue
            text = path.read_text()
            found = [(m.start(), m[1]) for m in READS.finditer(text)]
            found += [(m.start(), m[1]) for m in CALL.finditer(text) if FLOAT.search(strings_of_call(text, m.end() - 1))]
            for at, name in sorted(found):
                line = text.count("\n", 0, at) + 1
                print(f"{path}:{line}: {name}: expected sl_print, sl_strtod or sl_number_text (base/number.h)")
                faults += 1
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
