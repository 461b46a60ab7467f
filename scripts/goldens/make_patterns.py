#!/usr/bin/env python3
"""Makes tests/goldens/patterns.json: the pieces into which the Python package tokenizers splits texts by patterns.

    python3 scripts/goldens/make_patterns.py  needs tokenizers==0.23.3; tests do not

  syntax     [pattern, text, lengths]: one pattern for each rule of the syntax. lengths: the characters of each piece,
             negative for the text between two matches
  texts      300 texts
  families   name: [pattern, hashes]: the patterns of current models, and one hash for the pieces of ten texts
  points     name: for each 4096 code points, the hash of the pieces of one text, which has each character after a, 1 and a blank
  classes    [pattern, hashes]: one byte for each code point: 1 if the pattern matches it. The bytes of 4096 code points have a
             hash, and the hashes of 65536 code points (4 bytes each, lowest first) have a hash

A hash is FNV-1a with 32 bits, over one byte for each character: 1 if a piece begins at this character."""
import json
import os
import random

import tokenizers
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

OUT = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "tests/goldens/patterns.json")
BLOCK = 4096
BLOCKS = [b for b in ([c for c in range(first, first + BLOCK) if not 0xD800 <= c < 0xE000] for first in range(0, 0x110000, BLOCK)) if b]

CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
START = r"[^\r\n\p{L}\p{N}]?"
NO_HAN = r"&&[^\p{Han}]]"
LLAMA3 = CONTRACTIONS + rf"|{START}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
FAMILIES = {
    "llama3": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
    "qwen3.5": LLAMA3.replace("{1,3}", "").replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"\s\p{L}", r"\s\p{L}\p{M}"),
    "gpt2": GPT2,
    "tekken": rf"{START}{UPPER}*{LOWER}+|{START}{UPPER}+{LOWER}*|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
    "o200k": rf"{START}{UPPER}*{LOWER}+{CONTRACTIONS}?|{START}{UPPER}+{LOWER}*{CONTRACTIONS}?|\p{{N}}{{1,3}}|"
             rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{SPACES}",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|"
              r"\s+(?!\S)|\s",
    "deepseek": "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
                " ?[\\p{P}\\p{S}]+[\\r\\n]*|" + SPACES,
    "deepseek-digits": r"\p{N}{1,3}",
    "deepseek-cjk": "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "deepseek-llm-letters": "\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0370-\u0373"
                            "\u1e00-\u1f15\u2c00-\u2c7b\ufb00-\ufb06\uff21-\uff3a\U00010400-\U0001044f\U0001e900-\U0001e943]+",
    "deepseek-llm-marks": "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    "deepseek-llm-end": r"\s+$",
    "deepseek-llm-lines": r"[\r\n]",
    "falcon": r"[0-9][0-9][0-9]",
    "bloom": " ?[^(\\s|[.,!?\u2026\u3002\uff0c\u3001\u0964\u06d4\u060c])]+",
    "seed": r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|"
            + SPACES,
    "bailing": r"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + SPACES,
    "kimi": rf"[\p{{Han}}]+|{START}{UPPER[:-1]}{NO_HAN}*{LOWER[:-1]}{NO_HAN}+{CONTRACTIONS}?|{START}{UPPER[:-1]}{NO_HAN}+"
            rf"{LOWER[:-1]}{NO_HAN}*{CONTRACTIONS}?|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{SPACES}",
    "digits-from-the-right": r"(?=(\d{3})+(?!\d))",
    "digits-in-groups": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?:\P{N}|$))",
    "chameleon": r"<sentinel:[0-9]+>|(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z|([\t\n]|    |  )|[\p{P}!-/:-@\[-`{-~]",
    "korean": "[\uac00-\ud7a3\u3131-\u318e]+|[\uff01\u2026\u201c\u201d\u2018\u2019\u2014\uff1a\uff1b\uff0c\u3001-\u303f]+|\\p{Hangul}+",
    "words": r"\w+|[^\w\s]+",
    "edges": r"\b",
    "lines": r"(?:\r?\n|\r)+|[^\r\n]+",
    "named": r"[[:alpha:]]+|[[:digit:]]{1,3}|[[:punct:]]+|[[:space:]]+",
}
ALL_POINTS = ["llama3", "qwen2", "gpt2", "tekken", "deepseek", "o200k", "edges"]
CLASSES = [r"\w", r"\W", r"[\w]", r"[^\w]", r"\d", r"\s", r"[\S]", r"\h", ".", r"(?m:.)", r"\p{^Lu}", r"[\p{L}&&[^\p{Lu}]]",
           r"[^\p{L}&&a-z]", r"(?i:\p{Lu})", r"(?i:\P{Lu})", r"(?i:[^\p{Lu}])", r"(?i:[^\P{Lu}])", r"(?i:[^\p{L}])", "(?i:k)", "(?i:[a-z])",
           "(?i:[\u0100-\u012f\u0132-\u0148\u014a-\u017f])", "(?i:[\u0370-\u038f\u0391-\u03af\u03b1-\u03ff])", "(?i:[^\u0100-\uffff])",
           "(?i:[\U00010400-\U0001044f])", r"\p{C}", r"\p{Cn}", r"\p{Co}",
           *(rf"[[:{name}:]]" for name in "alpha alnum word upper lower digit punct blank cntrl space xdigit".split()),
           *(rf"\p{{{name}}}" for name in "Arabic Cyrillic Devanagari Greek Han Hangul Hebrew Hiragana Katakana Latin Thai".split()),
           *(rf"\p{{{name}}}" for name in "L M N P S Z Cc Cf Ll Lm Lo Lt Lu Mc Me Mn Nd Nl No Pc Pd Pe Pf Pi Po Ps Sc Sk Sm So Zl "
                                          "Zp Zs".split())]
SYNTAX = [
    ("a{2}?b", "b ab aab"), ("ca{1,2}?", "caa"), ("ca{2,}?", "caaa"), ("ca{,2}?", "caa"), ("ca{2}+b", "caaaab caab cab"),
    ("ca{1,2}+a", "caaaa"), ("(?:ca?){1,2}+a", "cacaca"), (r"\p{L}{2}+", "abcde"), ("a{,}", "a{,}a"), ("a{x", "a{xa"), ("a{", "a{"), ("}]", "}]"),
    ("a{0}b", "ab"), ("a*+b", "aab"), ("a++b|a", "aaba"), ("a?+b", "aab"), ("[a-]", "a-b"), ("[-a]", "a-b"), ("[]a]", "]ab"), ("[^]a]", "]ab"),
    ("[+--]", "+,-."), ("[--a]", "-.ab"), (r"[a\-z]", "a-bz"), (r"[\d-]", "1-a"), ("[a&b]", "a&b"), ("[a^]", "^ab"), ("[^^]", "^a"),
    ("[a[bc]d]", "abcde"), ("[a[^b-y]]", "abyz"), (r"[^\Sx]", "a x"), (r"[\s\S]", "a b"), (r"[^\s\S]", "a b"), ("[[:^alpha:]]", "a1b"),
    ("[[:alpha:][:digit:]]+", "a1 -b"), (r"[a\]b]", "a]bc"), ("[:alpha:]+", "alps:h"), (r"[\b\t]", "\b\tb"), (r"\/\-\ \#", "/- #a"),
    (r"\x41|\x{e9}|\u00ea", "A\u00e9\u00eaa"), (r"\t|\r|\n|\f|\v|\a|\e", "\t\r\n\f\v\a\x1ba"), (r"\bfoo", "foo a\u00b2foo _foo foo"),
    (r"o\b", "oo o2 o\u00b2 o"), (r"o\B", "oo o2 o\u00b2 o"), ("^a", "aa\na\nb"), ("b$", "bb\nb\nb"), ("$", "a\n\nb"), ("^", "a\n\nb\n"), (r"\Aa", "aa"),
    (r"a\Z", "a\na\n"), (r"a\z", "a\na"), (r"a\z", "a\na\n"), ("a|", "bab"), ("|a", "bab"), ("x*", "axxb"), ("a??", "aab"), ("(?=b)|b", "abb"),
    ("(?<=a)b|", "abab"), ("(?<=a|bc)d", "ad bcd d"), ("(?<!a|bc)d", "ad bcd d"), ("(?<=a{2})d", "ad aad"), ("(?m:a.)b", "a\nb ab"),
    ("a.b", "a\nb a\rb"), ("(?>a+)b", "aab"), ("(?>a|ab)c", "abc ac"), ("(a|b)+c", "abc"), ("(?i)a|b", "aABb"), ("(?i:\u201ca|\u2014)", "\u201cA\u2014b"), (r"\x{0001f600}b|\u00e9", "\U0001f600b\u00e9a"),
    ("(?i:a(?-i:b))", "ab AB Ab"), ("(?i:'s|k)", "'S '\u017f \u212a"), ("(?i:[^k])", "kK\u212aa"), (r"(?i:\p{Lu})", "aA"), ("(?i:it's)", "IT'\u017f"),
    ("(?i:s|s)t", "\ufb06st"), (r"\p{Lu}\p{^Lu}\P{Lu}", "Aab AAa"), ("(?!a)[a-c]+", "abcab"), ("()a", "ba"), ("(?:)*a", "aa"), ("[&a]&&", "&&&a&&"),
    (r"\p{Han}+", "a\u6f22\u5b57b"), ("a(?=\\z|b)", "ac ab a"), ("\U0001f600+", "a\U0001f600\U0001f600b"), ("[\U0001f600-\U0001f64f]", "a\U0001f601b"),
]
ATOMS = ["a", "[ab]", "(?i:A)", r"\x61", r"\p{Ll}", ".", "(?:ab?)", "(ab|a)", "(?>a|ab)", "(?:(?=a)a)", "(?m:.)"]  # a quantifier may follow each
QUANTIFIERS = ["*", "+", "?", "*?", "+?", "??", "*+", "++", "?+", "{2}", "{1,2}", "{2,}", "{,2}", "{0,1}", "{2}?", "{1,2}?", "{2}+", "{1,2}+"]
SYNTAX += [(f"b?{atom}{quantifier}b|c", "aaabb caab\nabaca") for atom in ATOMS for quantifier in QUANTIFIERS]


def hashed(data):
    h = 0x811C9DC5
    for byte in data:
        h = (h ^ byte) * 0x01000193 & 0xFFFFFFFF
    return h


def splitter(pattern, behavior="isolated"):
    return Split(Regex(pattern), behavior)


def begins(split, text):
    out = bytearray(len(text))
    for _, (first, _) in split.pre_tokenize_str(text):
        out[first] = 1
    return out


def lengths(pattern, text):
    kept = {first for _, (first, _) in splitter(pattern, "removed").pre_tokenize_str(text)}
    return [first - last if first in kept else last - first for _, (first, last) in splitter(pattern).pre_tokenize_str(text)]


def class_hashes(pattern):
    split = splitter(pattern, "removed")
    out = []
    for block in BLOCKS:
        text = "".join(map(chr, block))
        member = bytearray(b"\1" * len(text))
        for _, (first, last) in split.pre_tokenize_str(text):
            member[first:last] = bytes(last - first)
        out.append((block[0] >> 16, hashed(member).to_bytes(4, "little")))
    return [hashed(b"".join(h for plane, h in out if plane == p)) for p in range(17)]


def family(pattern, texts):
    begin = [begins(splitter(pattern), text) for text in texts]
    return [pattern, [hashed(b"".join(begin[i:i + 10])) for i in range(0, len(texts), 10)]]


def point_hashes(pattern):
    split = splitter(pattern)
    return [hashed(begins(split, "".join(f"a{chr(c)}1{chr(c)} {chr(c)}" for c in block))) for block in BLOCKS]


def texts():
    rng = random.Random(43)
    words = ("The old river's Bank I'll they've WE'RE it'\u017f don\u2019t caf\u00e9 cafe\u0301 na\u00efve \u00dcber stra\u00dfe STRASSE \u0130stanbul "
             "\u0440\u0435\u043a\u0430 \u03c0\u03bf\u03c4\u03b1\u03bc\u03cc\u03c2 \u05e0\u05d4\u05e8 \u0646\u0647\u0631 \u0928\u0926\u0940 "
             "\u0e41\u0e21\u0e48\u0e19\u0e49\u0e33 \u6cb3\u5ddd \u304b\u308f \u30ab\u30ef \uac15 \U0001f600\U0001f44d\U0001f3fd "
             "\U0001d7d8\U0001d7d9 \u0663\u0664\u0665 \u00b2\u00b3\u00bc \u2167 1234567 12 3.14 0x1F a1b2 __init__ foo_bar() {x: [1,2]}; "
             "// /* */ <|im_start|> <s> https://a.b/c?d=e&f=g \u2026 \u201cquoted\u201d \u2014 \u20ac5 $x += 'd' 'T 's\n \uff21\uff22\uff11\uff12 "
             "\u1e9e \u01c5 \u02b0 \u0b95\u0bcd \u1100\u1161 \u200b\u200d\ufeff \u00a0 \u3000 \u2028 \u0085 \u180e \x1c \x00 \u0378 \ue000 \U0010ffff "
             "\U00011de0 \U0001fae9 \ua7cd").split(" ")
    blanks = [" "] * 12 + ["", "", "  ", "   ", "\n", "\n\n", "\r\n", " \n ", "\t", "\u00a0", " \u3000"]
    out = []
    for i in range(300):
        n = 1 + i % 12
        out.append("".join(rng.choice(words) + rng.choice(blanks) for _ in range(n)))
    return out


def main():
    if tokenizers.__version__ != "0.23.3":
        raise SystemExit(f"tokenizers {tokenizers.__version__}, expected 0.23.3")
    t = texts()
    root = {"syntax": [[pattern, text, lengths(pattern, text)] for pattern, text in SYNTAX],
            "texts": t,
            "families": {name: family(pattern, t) for name, pattern in FAMILIES.items()},
            "classes": [[pattern, class_hashes(pattern)] for pattern in CLASSES],
            "points": {name: point_hashes(FAMILIES[name]) for name in ALL_POINTS}}
    with open(OUT, "w", encoding="ascii") as f:
        json.dump(root, f, separators=(",", ":"))
        f.write("\n")
    print(OUT, os.path.getsize(OUT))


if __name__ == "__main__":
    main()
