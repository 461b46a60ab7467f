#!/usr/bin/env python3
"""Writes tokenizer/jinja/jinja_cases.c: the upper, lower and title case of characters, as Python's str.upper, str.lower and str.title give it.

    python3 scripts/goldens/make_jinja_tables.py     needs Python 3.11, whose Unicode is 14; the builds do not run it

A run {first, last, step, distance} says that the case of first, first + step, ... last is the character + distance. A special entry
has the text of a case with several characters. Title cases are listed only where they differ from upper cases."""
import os
import unicodedata

PATH = os.path.join(os.path.dirname(__file__), "../..", "tokenizer", "jinja_cases.c")


def mapping(fn, other=None):
    """{code: text} of the characters that fn changes, or that fn changes in another way than `other`."""
    found = {}
    for c in range(0x80, 0x110000):
        if not 0xD800 <= c < 0xE000 and fn(chr(c)) != (other(chr(c)) if other else chr(c)):
            found[c] = fn(chr(c))
    return found


def runs(mapped):
    single = {c: ord(t) - c for c, t in mapped.items() if len(t) == 1}
    out = []
    for c in sorted(single):
        last = out[-1] if out else None
        if last and last[3] == single[c] and (last[0] == last[1] and c - last[1] in (1, 2) or c - last[1] == last[2]):
            last[2] = c - last[1]
            last[1] = c
        else:
            out.append([c, c, 1, single[c]])
    return out


def table(name, rows):
    lines, line = [], "   "
    for row in rows:
        text = " {" + ", ".join(row) + "},"
        if len(line) + len(text) > 126:
            lines.append(line)
            line = "   "
        line += text
    return f"static const {name}[] = {{\n" + "\n".join(lines + [line]) + "\n};\n\n"


def quote(text):
    out, after_escape = '"', False
    for b in text.encode():
        if b >= 0x80:
            out += f"\\x{b:02x}"
        else:
            out += ('""' if after_escape and chr(b) in "0123456789abcdefABCDEF" else "") + chr(b)
        after_escape = b >= 0x80
    return out + '"'


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    cases = [("upper", mapping(str.upper)), ("lower", mapping(str.lower)), ("title", mapping(str.title, str.upper))]
    out = ("// tokenizer/jinja/jinja_cases.c - upper, lower and title cases of characters above U+007F (Unicode 14, as in Python 3.11).\n"
           "// scripts/goldens/make_jinja_tables.py writes this file. Do not edit it.\n// clang-format off\n"
           '#include "tokenizer/jinja/jinja_internal.h"\n\n#include <string.h>\n\n'
           "typedef struct case_run {\n    uint32_t first, last;\n    int step, distance;\n} case_run;\n"
           "typedef struct case_special {\n    uint32_t c;\n    const char *text;\n} case_special;\n\n")
    for name, mapped in cases:
        out += table(f"case_run {name}_runs", [(hex(a), hex(b), str(s), str(d)) for a, b, s, d in runs(mapped)])
        special = [(hex(c), quote(t)) for c, t in sorted(mapped.items()) if len(t) > 1]
        out += table(f"case_special {name}_specials", special or [("0", '""')])
    out += '''#define N(array) (sizeof(array) / sizeof *(array))

static size_t find_case(const case_run *runs, size_t n_runs, const case_special *specials, size_t n_specials, uint32_t c,
                        uint32_t *single, const char **text) {
    for (size_t i = 0; i < n_specials; i++)
        if (specials[i].c == c) return *text = specials[i].text, 1;
    size_t low = 0, high = n_runs;
    while (low < high) {
        size_t mid = (low + high) / 2;
        if (runs[mid].last < c)
            low = mid + 1;
        else
            high = mid;
    }
    for (; low < n_runs && runs[low].first <= c; low++) // two runs with a step of 2 may overlap
        if (c <= runs[low].last && (c - runs[low].first) % (uint32_t)runs[low].step == 0)
            return *single = c + (uint32_t)runs[low].distance, 1;
    return 0;
}

const char *sl_j_case_of(uint32_t c, j_case to, uint32_t *single) {
    const char *text = NULL;
    *single = c;
    if (to == J_LOWER) {
        find_case(lower_runs, N(lower_runs), lower_specials, N(lower_specials), c, single, &text);
    } else if (to != J_TITLE ||
               !find_case(title_runs, N(title_runs), title_specials, N(title_specials), c, single, &text)) {
        find_case(upper_runs, N(upper_runs), upper_specials, N(upper_specials), c, single, &text);
    }
    return text;
}
'''
    with open(PATH, "w") as f:
        f.write(out)
    print({name: (len(runs(m)), sum(len(t) > 1 for t in m.values())) for name, m in cases})


if __name__ == "__main__":
    main()
