#!/usr/bin/env python3
"""Makes tests/goldens/templates.jsonl: what Jinja writes, set up as transformers does, for templates of many kinds.

    build/venv/bin/python scripts/goldens/make_templates.py     needs transformers and jinja2; tests do not

The first line is {contexts, conversations, values}. Each other line is a template and its results:
  {text, result}       a template with the values of the context "language", or of {context}: the lists of tests/chat/language.json, products of
                       its lists, and 500 templates that this script makes from a seed; at the time {now} in seconds, or at NOW.
                       result: a text; null: an error; false: an error of syntax
  {text, each}         a form of tests/chat/language.json: each operator, filter, test, method and kind of slice, with arguments of the right and
                       of the wrong type; each: [for each value of {values} as v the result; 0: Python writes an address there]
  {file | name, results}   a template of tests/chat/families, or a built-in one; results: [for each conversation the FNV-1a of the text,
                       or null]
"""
import copy
import datetime
import glob
import json
import os
import random
import re

import jinja2
import transformers.utils.chat_template_utils as templates

ROOT = os.path.join(os.path.dirname(__file__), "../..")
NOW = 1732800000  # seconds; the tests set TZ=UTC
os.environ["TZ"] = "UTC"


class Clock(datetime.datetime):
    seconds = NOW

    @classmethod
    def now(cls, tz=None):
        return datetime.datetime.fromtimestamp(cls.seconds)


templates.datetime = Clock

LANGUAGE = {"s": "Hello World", "e": "", "n": 5, "neg": -3, "f": 2.5, "big": 1e20, "small": 1e-7, "l": [3, 1, 2], "ls": ["b", "A", "c"],
            "d": {"b": 1, "a": [1, 2], "items": 7}, "t": True, "x": None, "u": "héllo wörld ß? 日本語 😀", "sp": "  a b \t c \n",
            "ws": "a,b,,c", "q": "it's \"q\"\n\t\\ \x01\x7f é\u200b",
            "messages": [{"role": "system", "content": " Sys "}, {"role": "user", "content": "Hi <b>"},
                         {"role": "assistant", "content": "Yo",
                          "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": 1, "y": "z"}}}]}],
            "tools": [{"type": "function", "function": {"name": "get", "description": "d", "parameters": {
                "type": "object", "properties": {"p": {"type": "string", "enum": ["a", "b"]}, "n": {"type": "number", "minimum": 0.5}},
                "required": ["p"]}}}]}
STATEMENTS = {"s": "Hello", "l": [3, 1, 2], "d": {"b": 1, "a": {"c": 2}}, "t": True, "x": None,
              "messages": [{"role": "system", "content": "Sys"}, {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather <b>& more</b>", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "A city"}, "unit": {"type": "string", "enum": ["c", "f"]},
                                     "days": {"type": ["integer", "null"], "default": 3}, "tags": {"type": "array", "items": {"type": "string"}},
                                     "o": {"type": "object", "properties": {"a": {"type": "number"}}, "additionalProperties": {"type": "boolean"}}},
    "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "description": "Now", "parameters": {"type": "object", "properties": {}, "required": []}}}


def call(number, name="weather", arguments={"city": "Zürich", "days": 2.0, "l": [1, "x"], "n": None}):
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


U, A = {"role": "user", "content": " Hello <|im_end|> \n"}, {"role": "assistant", "content": "Hi there "}
CALLED = [U, {"role": "assistant", "content": "Let me see", "tool_calls": [call(1), call(2, "clock", {})]},
          {"role": "tool", "content": "21", "tool_call_id": "abcdefgh1"}, {"role": "tool", "content": "noon", "tool_call_id": "abcdefgh2"},
          {"role": "assistant", "content": "Done"}, U]
THOUGHT = {"role": "assistant", "content": "<think>\nWhy\n</think>\n\nBecause", "reasoning_content": "R\n", "thinking": "R\n"}
DIALOGUES = [[U], [{"role": "system", "content": "Be brief. /no_think"}, U], [U, A, {"role": "user", "content": "日本 🚀 it's \"quoted\""}],
             [{"role": "system", "content": ""}, U, A, U, A],
             [U, {"role": "assistant", "tool_calls": [call(1)]},
              {"role": "tool", "content": "{\"t\": 21}", "tool_call_id": "abcdefgh1", "name": "weather"}],
             CALLED, [U, THOUGHT, U], [U, THOUGHT],
             [{"role": "user", "content": [{"type": "text", "text": " one "}, {"type": "image"}, {"type": "text", "text": "two"}]}],
             [U, U], [A], []]
OPTIONS = {"enable_thinking": False, "documents": [{"title": "T", "text": "x"}, {"title": "U", "text": "é"}], "reasoning_effort": "high",
           "thinking_budget": 700, "add_generation_prompt": False}


def conversations():
    out = []
    for i, messages in enumerate(DIALOGUES):
        for tools in [None, [WEATHER, CLOCK]] if i in (0, 1, 4, 5) else [None]:
            for options in [{}, OPTIONS] if i % 3 == 0 else [{}]:
                out.append({"messages": messages, "tools": tools, "documents": None, "add_generation_prompt": True, "bos_token": "<s>",
                            "eos_token": "</s>", "blank": " ", **options})
    return out


def render(text, context):
    """The text; None: an error; False: an error of syntax."""
    try:
        return templates._cached_compile_jinja_template(text).render(**copy.deepcopy(context))  # indent may change a list
    except jinja2.TemplateAssertionError:  # an unknown filter or test
        return None
    except (jinja2.TemplateSyntaxError, SyntaxError):
        return False
    except Exception:
        return None


def fnv1a(text):
    h = 0xCBF29CE484222325
    for b in text.encode():
        h = (h ^ b) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def builtin_templates():
    """{name: text} of tokenizer/chat/chat_builtin.c."""
    source = open(os.path.join(ROOT, "tokenizer/chat/chat_builtin.c"), encoding="utf-8").read()
    part = re.compile(r'"((?:[^"\\]|\\.)*)"|\b([A-Z][A-Z0-9_]+)\b')
    macros = {}

    def value(code):
        return "".join(macros[m[2]] if m[2] else re.sub(r"\\(.)", lambda e: "\n" if e[1] == "n" else e[1], m[1]) for m in part.finditer(code))

    for m in re.finditer(r"#define (\w+) \\\n((?:.*\\\n)*.*\n)", source):
        macros[m[1]] = value(unescape(m[2]))
    return {m[1]: value(unescape(m[2])) for m in re.finditer(r'\.name = "([^"]+)".*?\.text =\n(.*?)\},\n', source, re.S)}


def unescape(code):
    return code.replace("\\\n", "\n")


# ---- templates from a seed ----

# Jinja computes a slice of a constant in another way than a slice of a variable.
SLICED = ["s", "l", "u", "ls", "m.content", "e", "x", "zz", "d.a", "tools", "s ~ n", "messages"]

class Maker:
    """Makes random templates of the kinds that chat templates use."""

    def __init__(self, seed):
        self.r = random.Random(seed)

    def pick(self, *options):
        return self.r.choice(options)

    def atom(self):
        return self.pick("s", "u", "n", "f", "l", "ls", "d", "t", "x", "e", "zz", "m.content", "m.role", "m['content']", "d.a", "d['b']", "ns.a",
                         "'text'", "\"it's\"", "'a\\nb'", "3", "0", "-2", "1.5", "true", "none", "[1, 'b', none]", "{'k': s, 'n': n}", "(1, 2)",
                         "messages", "tools", "messages[0].role", "tools[0].function.name", "loop.index0" if self.in_loop else self.pick("q", "v", "y"))

    def expression(self, depth):
        if depth <= 0:
            return self.atom()
        x, y = self.expression(depth - 1), self.expression(depth - 2)
        return self.pick(
            lambda: f"{x} {self.pick('+', '-', '*', '~', '==', '!=', '<', '>=', 'and', 'or', 'in', 'not in', '%', '//')} {y}",
            lambda: f"({x}) | {self.filter(y)}", lambda: f"({x}) | {self.filter(y)}", lambda: f"({x}).{self.method(y)}",
            lambda: f"({x}) is {self.pick('', 'not ')}{self.test(y)}", lambda: f"{x} if {y} else {self.atom()}", lambda: f"not {x}",
            lambda: f"({self.pick(*SLICED)})[{self.pick('0', '-1', '1:', ':2', '::-1', 'n', repr('a'), '1:-1')}]", lambda: f"[{x}, {y}]",
            lambda: f"f({x}{self.pick('', ', b=' + self.atom())})", lambda: f"{{'a': {x}}}.a", lambda: f"({x} ~ {y})")()

    def filter(self, y):
        return self.pick("trim", "upper", "lower", "title", "capitalize", "length", "list", "first", "last", "string", "int", "float", "abs",
                         "tojson", "tojson(indent=2)", "join", "join(', ')", "sort", "reverse | list", "unique | list", "sum", "min", "max",
                         f"default({y})", f"default({y}, true)", "replace('l', 'L')", "indent(2)", "items | list", "dictsort",
                         "map('string') | list", "map(attribute='role') | list", "selectattr('role', 'equalto', 'user') | list",
                         "select('string') | list", "reject('none') | join('-')", "round(1)", "batch(2) | list", "escape", "count",
                         "rejectattr('tool_calls', 'defined') | map(attribute='content') | join")

    def method(self, y):
        return self.pick("strip()", "lstrip('H ')", "split()", "split('l')", "split('l', 1)", "rsplit(' ', 1)", "startswith('H')", "endswith(s)",
                         "replace('o', '0')", "upper()", "title()", "find('l')", "count('l')", "items()", "keys() | list", "values() | list",
                         "get('a')", f"get('zz', {y})", "splitlines()", "join(ls)", "index(1)", "content", "role", "format(n)", "a", "zz")

    def test(self, y):
        return self.pick("defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "boolean", "odd", "even",
                         f"eq({y})", f"in {self.pick('l', 'ls', 's', 'd')}", "divisibleby 3", "true", "false", "integer", "float", "lower", "callable")

    def tag(self, open_, body, close):
        left, right = self.pick("", "-", ""), self.pick("", "-", "")
        return f"{open_[:2]}{left}{open_[2:]}{right}{close}{body}"

    def block(self, depth):
        out = []
        for _ in range(self.r.randint(1, 3)):
            out.append(self.pick("", "\n", "  ", " text ", "\n    ", "<|im_start|>", "\n\n"))
            out.append(self.statement(depth))
        return "".join(out) + self.pick("", "\n", " ")

    def statement(self, depth):
        e = lambda d=2: self.expression(self.r.randint(0, d))
        dash = lambda: self.pick("", "-", "")
        b = lambda code: "{%" + dash() + f" {code} " + dash() + "%}"
        printed = "{{" + dash() + f" {e(3)} " + dash() + "}}"
        if depth <= 0:
            return printed
        kind = self.r.randrange(9)
        if kind < 3:
            return printed
        if kind == 3:
            return b(f"if {e()}") + self.block(depth - 1) + (b(f"elif {e()}") + self.block(depth - 1) if self.r.random() < 0.4 else "") + (
                b("else") + self.block(depth - 1) if self.r.random() < 0.5 else "") + b("endif")
        if kind == 4:
            outer, self.in_loop = self.in_loop, True
            body = self.block(depth - 1) + self.pick("", "{{ loop.index }}", "{{ ',' if not loop.last }}", b("set ns.a = loop.index"),
                                                     "{% if loop.first %}{% continue %}{% endif %}", "{% if loop.index > 1 %}{% break %}{% endif %}")
            self.in_loop = outer
            return b(f"for m in {self.pick('messages', 'messages', 'l', 'ls', 's', 'd', 'tools', 'messages[1:]')}"
                     + self.pick("", "", " if m != 1", " if m is mapping")) + body + (b("else") + "none" if self.r.random() < 0.2 else "") + b("endfor")
        if kind == 5:
            return b(f"set {self.pick('v', 'y', 'y', 'ns.a')} = {e()}")
        if kind == 6:
            return b("set w") + self.block(depth - 1) + b("endset") + "{{ w }}"
        if kind == 7:
            return b(f"filter {self.pick('upper', 'trim', 'replace(' + repr('e') + ', ' + repr('E') + ')', 'indent(2, true)')}") + self.block(depth - 1) + b("endfilter")
        return "{#" + dash() + " note " + dash() + "#}"

    def template(self):
        self.in_loop = False
        head = "{% set ns = namespace(a=0) %}{% macro f(a, b=2) %}[{{ a }}|{{ b }}]{% endmacro %}{% set m = messages[1] %}"
        return head + self.block(3)


VALUES = ["Hello World", "", " a,b \t c\n", "h\u00e9llo \u00df l", "12", "-3.7e2", "A1b", 5, -3, 0, True, None, 2.5, -0.5, 1e20, [3, 1, 2], [],
          ["b", "A", "c"], [[1, 2], [3]], {"b": 1, "a": [1, 2]}, {}, [{"r": "u", "n": 1}, {"r": "a", "n": 0}, {"n": 2}]]
ADDRESS = re.compile(r"0x[0-9a-f]{6}|<class|<generator|<Loop|<Macro|Markup\(|<built-in")
# Noon and midnight, days of one and two digits, the last and the first day of a year, a leap day, a year below 2000.
DATES = [0, 951782399, 951868800, 1704067199, 1704067200, 1709208000, 1732800000, 1735689599, 1740787445, 946684799, 1757289906, 4102444800]
DATE = "{{ strftime_now('" + " ".join("%" + x for x in "d e m H I M S y j Y F T a A b h B p % -d -m -H -I -M -S -y -j".split()) + "') }}"


def products(p):
    """Expressions from the lists of `products`: what a number, a format, a key, an escape and so on mean, right and wrong."""
    out = [f"{json.dumps(x, ensure_ascii=False)}|{f}" for x in p["sigmas"] for f in ("lower", "title", "capitalize")]
    out += [f"{x!r}|{f}" for x in p["texts"] for f in ("int", "int(3, 16)", "int(base=0)", "int(base=2)", "float", "float(7)")]
    out += [f"({x})|{f}" for x in p["floats"] for f in ("string", "int", "abs", "tojson")]
    out += [f"({x})|round({n}{m})" for x in p["rounded"] for n in ("", "0", "1", "2", "22", "'a'")
            for m in ("", *((", 'ceil'", ", 'floor'", ", 'up'") if n else ("'ceil'", "method='floor'", "method='up'")))]
    out += [f"'%{spec}|' {op}" for spec in p["specs"]
            for op in ("% 42", "% -3.75", "% 'h\u00e9l'", "|format(7)", "% [1]", "% (1, 2)", "% {'a': 1}")]
    out += [f"'{{:{spec}}}'.format({x})" for spec in p["formats"] for x in ("42", "-3.75", "'h\u00e9l'", "none", "[1]")]
    out += [f"{template!r}.format(s, n, d, a=l, k='>5')" for template in p["format_texts"]]
    out += [f"({x})[{key}]" for x in ("s", "l", "d", "n", "x", "zz") for key in p["keys"]]
    out += [f"{{0: 'i', 1.5: 'f', none: 'n', '': 'e', true: 't', (1, 2): 'p'}}[{key}]" for key in p["keys"] if ":" not in key]
    out += [f"{quote}a{x}b{quote}" for x in p["escapes"] for quote in ("'", '"')]
    out += p["literals"] + [f"[{x}, 1]" for x in p["literals"]] + [f"-{x}" for x in p["literals"]]
    out += [f + of for f in p["functions"] for of in p["of_range"]]
    # Sleigh takes arguments of these two that Python refuses.
    out += [f"'Hello l'.{m}{c}" for m in p["methods"] for c in p["calls"]
            if not (m == "splitlines" and c != "()") and "partition(sep" not in m + c]
    out += [f"({x})|tojson({c})" for x in p["jsons"] for c in p["json_calls"]]
    out += [f"zz {op} {y}" for op in ("==", "!=", "<", "+", "~", "in", "and", "is") for y in ("zz", "x", "s", "0", "defined", "[zz]")]
    return out + [f"{y} {op} zz" for op in ("==", "!=", "in", "~", "or") for y in ("zy", "x", "[zz]", "''")]


def spaced(p):
    """Templates with blanks before and after each kind of tag."""
    return [left + tag + right + ("{% endif %}" if "if" in tag and "endif" not in tag else "") + "!"
            for left in p["blanks"] for tag in p["tags"] for right in p["blanks"]]


def is_golden(result):
    """False: a text with an address, or an endless text."""
    return not (isinstance(result, str) and (ADDRESS.search(result) or len(result) > 1500))


def on_each(text):
    results = [render(text, {"v": v}) for v in VALUES]
    return [result if is_golden(result) else 0 for result in results]


def generated(n):
    """n templates of which at least two thirds render."""
    out, seed, n_errors = [], 0, 0
    while len(out) < n:
        seed += 1
        text = Maker(seed).template()
        result = render(text, LANGUAGE)
        if not is_golden(result):
            continue
        if not isinstance(result, str):
            n_errors += 1
            if n_errors > n // 3:
                continue
        out.append((text, result))
    return out


def main():
    language = json.load(open(os.path.join(ROOT, "tests/chat/language.json"), encoding="utf-8"))
    chats = conversations()
    rows = [{"contexts": {"language": LANGUAGE, "statements": STATEMENTS}, "conversations": chats, "values": VALUES}]
    expressions = language["expressions"] + products(language["products"])
    texts = ["{{ " + x + " }}" for x in expressions] + language["templates"] + spaced(language["products"])
    made = [(text, render(text, LANGUAGE)) for text in texts]
    made = [(text, result) for text, result in made if is_golden(result)] + generated(500)
    rows += [{"text": text, "result": result} for text, result in made]
    rows += [{"text": text, "context": "statements", "result": render(text, STATEMENTS)} for text in language["statements"]]
    for Clock.seconds in DATES:
        rows.append({"text": DATE, "now": Clock.seconds, "result": render(DATE, {})})
    Clock.seconds = NOW
    rows += [{"text": text, "each": on_each(text)} for text in language["forms"]]
    files = sorted(glob.glob(os.path.join(ROOT, "tests/chat/families/*.jinja")))
    named = [("file", os.path.basename(f), open(f, encoding="utf-8").read()) for f in files]
    named += [("name", name, text) for name, text in builtin_templates().items()]
    n = 0
    for kind, name, text in named:
        results = [render(text, c) for c in chats]
        n += sum(isinstance(x, str) for x in results)
        rows.append({kind: name, "results": [fnv1a(x) if isinstance(x, str) else None for x in results]})
    with open(os.path.join(ROOT, "tests/goldens/templates.jsonl"), "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(made) + len(language['statements'])} templates and expressions, {len(language['forms'])} forms x {len(VALUES)} values; "
          f"{len(named)} templates of families x {len(chats)} conversations, {n} prompts")


if __name__ == "__main__":
    main()
