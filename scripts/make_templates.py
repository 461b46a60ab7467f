#!/usr/bin/env python3
"""Makes tests/goldens/templates.jsonl: what Jinja writes, set up as transformers does, for templates of many kinds.

    build/venv/bin/python scripts/make_templates.py     needs transformers and jinja2; tests do not

The first line is {contexts, conversations, values}. Each other line is a template and its results:
  {text, context, result}  expressions and statements of tests/chat/language.json, and 500 templates that this script makes from a seed;
                       dates, with the time `now` in seconds; result: a text; null: an error; false: an error of syntax
  {table}              [template, result] with the context "language": products of values and calls that this script makes
  {text, each}         forms of tests/chat/language.json: each operator, filter, test, method and kind of slice, with arguments of the right and of
                       the wrong type; each: [for each value of {values} as v the result,
                       or 0: Python writes an address there]
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

ROOT = os.path.join(os.path.dirname(__file__), "..")
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
    """{name: text} of tokenizer/chat_builtin.c."""
    source = open(os.path.join(ROOT, "tokenizer/chat_builtin.c"), encoding="utf-8").read()
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


SIGMAS = ["\u0391\u03a3", "\u0391'\u03a3", "'\u03a3", "'.\u03a3 \u03a3", "1.\u03a3", "\u0391.'\u03a3'.", "\u0391\u03a3.'\u0391", "\u03a3", "\u03a3\u0391", ".\u0391'\u03a3", "\u02b0\u03a3", "\u0391\u02b0\u03a3"]
TEXTS = ["", " ", "0", "7", "-12", "+5", " 42 ", "1_000", "_1", "1_", "1__0", "1_.5", "1._5", "0x1f", "0X1F", "0b101", "0o17", "07", "00", "1e3", "1E-2", "1e", "e1",
         ".5", "5.", ".", "-.5", "+-1", "1 2", "inf", "-Infinity", "nan", "zz", "9223372036854775807", "-9223372036854775808", "9" * 99, "1.5", "-0", "-0.0", "1e400", "12abc"]
FLOATS = ["0.0", "-0.0", "1e15", "1e16", "123456789012345678.0", "9999999999999998.0", "0.0001", "0.00001", "0.00012345", "1.5e-5", "1e22", "1e-7", "0.1", "1/3", "2/3", "100.0",
          "123.456", "5e-324", "1.7976931348623157e308", "1e300*1e10", "-1e300*1e10", "0.5", "1.5", "2.5", "-2.5", "1e23", "12345.678e3", "0.3", "2.675", "1e15+0.3"]
ROUNDED = ["2.5", "-2.5", "2.675", "1234.5678", "7", "-7", "1e20", "0.05", "15", "true", "'a'", "none", "zz"]
SPECS = ["d", "5d", "-5d", "05d", "+d", " d", "+05d", "-+6d", "x", "X", "o", "#x", "8x", "f", ".0f", ".2f", "8.3f", "-8.1f", "08.2f", "+.1f", " .1f", "e", ".3e", "g", ".3g", "s", "5s",
         "-5s", ".2s", "6.2s", "r", "i", "c", "%", "5%", "", "y", "*d", "l", "(a)s", "5", ".", ".60f", "F", "a"]
FORMATS = ["", "d", "5d", "<5d", ">5d", "^5d", "=5d", "*^7d", "\u00e9<5d", "05d", "+d", "-d", " d", "+05d", "=+6d", "x", "X", "o", ",", "b", "f", ".0f", ".2f",
           "8.3f", "<8.1f", "^9.1f", "08.2f", "+.1f", "e", ".3e", "g", ".3g", "s", "5", "5s", "<5s", ">5s", "^5s", "=5s", ".2s", "6.2s", "*>6", "0>4", "04", "z", "<", ".60f",
           "<<5", "}<5", "1000", "-5", "+s", "05s", "F"]
KEYS = ["''", "'a'", "'b'", "none", "1.5", "1.0", "true", "false", "0", "-1", "2", "99", "-99", "zz", "[]", "{}", "(1, 2)", "l", "s", "'items'", "'keys'", "'_'", "'__class__'", "'get'",
        "1:", "'a':", ":'a'", "1.5:", "none:none", "::0", "::none", "::-1", "-2:", ":-2", "5:1:-2", "-99:99", "99:-99:-1", "true:", "1:2:3", "::'a'", ":zz"]
ESCAPES = ["\\n", "\\t", "\\r", "\\\\", "\\'", "\\\"", "\\a", "\\b", "\\f", "\\v", "\\0", "\\12", "\\101", "\\1011", "\\8", "\\x41", "\\x4", "\\xg1", "\\u00e9", "\\u12", "\\U0001F600", "\\U00110000", "\\U0001F60",
           "\\q", "\\\n", "a\nb", "\\x00", "\\xe9", "\\377", "\\400", "\\x0a1"]
LITERALS = ["1_000", "1__0", "1_", "_1", "0x1F", "0xg", "0b101", "0b12", "0o17", "0o8", "1e3", "1E3", "1e+3", "1e-3", "1e", "1.", "1.5.2", ".5", "1.e3", "007", "0", "00", "1.5e2", "1_0.5_0", "1_0.5_",
            "9223372036854775807", "0x_f", "0b", "1x", "1.x", "1 .x", "1..x", "'a' 'b'", "'a' \"b\"", "'a' ~ 'b' 'c'", "'a'", "\"a\"", "'a\"", "True", "TRUE", "None", "False", "nonE"]
SPACED = ["a", " a", "\n a", " \n", "\t\n\n", "  \n  b\n "]
TAGS = ["{% if t %}", "{%- if t %}", "{% if t -%}", "{%- if t -%}", "{%+ if t %}", "{% if t +%}", "{{ s }}", "{{- s }}", "{{ s -}}", "{{- s -}}", "{# c #}", "{#- c #}", "{# c -#}", "{#- c -#}",
        "{% raw %}{{ x }}{% endraw %}", "{%- raw %} {{ x }} {% endraw -%}", "{% raw -%} {% y %} {%- endraw %}", "{% raw %}x", "{# c", "{% set y = 1 %}"]
FUNCTIONS = ["range(5)", "range(2, 5)", "range(5, 2)", "range(0, 10, 3)", "range(10, 0, -3)", "range(0, 5, 0)", "range(1.5)", "range('a')", "range()", "range(1, 2, 3, 4)", "range(true)"]
OF_RANGE = ["", "|list", "|length", "|first", "|last", "[0]", "[-1]", "[5]", "[1:]|list", " == range(5)", "|sum", "|max", "|tojson", "|sort", "|string", " is sequence", "|join(',')",
            "|reverse|list", "|random is defined", " and 1", "|batch(2)|list", "|list|tojson", "|map('string')|list", "+ [1]", "|unique|list", " is iterable"]
CALLS = ["('a')", "('l', 'L')", "('l', 'L', 1)", "('l', 'L', 0)", "('l', 'L', -1)", "('l', 2)", "('l', 0, 4)", "('l', -3)", "('l', -99, 99)", "('', 'x')", "()", "(none)", "(1)", "('l', none)", "('l', 1, none)", "(['a'])", "(('H', 'x'))",
         "((), 1)", "(sep='l')", "(sep='l', maxsplit=1)", "(none, 1)", "(' ', 0)", "(20)", "(20, '*')", "(3, '*')", "(20, '')", "(20, 'ab')", "(x=1)", "('l', 'L', 1, 2)", "('l', 1, 2, 3)", "(true)", "(zz)", "(1.5)", "('a', 'b', c=1)"]
METHODS = ["split", "rsplit", "splitlines", "strip", "lstrip", "rstrip", "replace", "find", "rfind", "index", "rindex", "count", "startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "join",
           "upper", "lower", "title", "capitalize", "swapcase", "center", "ljust", "rjust", "zfill", "isdigit", "isalpha", "isalnum", "isupper", "islower", "isspace", "format"]
JSON_CALLS = ["", "indent=0", "indent=1", "indent=none", "indent='--'", "indent=-1", "indent=true", "sort_keys=true", "separators=(',', ':')", "separators=(', ',)", "separators=none", "ensure_ascii=true", "indent=2, sort_keys=true", "2", "true, 2",
              "x=1", "separators=['', '']", "ensure_ascii=1, indent=3, separators=('<', '>'), sort_keys=1", "separators='ab'"]
JSONS = ["u", "q", "d", "[]", "{}", "[[], {}]", "{'b': {'z': 1, 'a': [1, {}]}, 'a': none}", "(1, 2.5, 1e100)", "{1: 2, none: 3, true: 4, 2.5: 6}", "{(1, 2): 3}", "1e300*1e10", "zz", "range(2)", "[zz]", "'\U0001f600\x7f\u2028/<&>'", "{1: 1, 'a': 2}"]

OTHERS = ["{% set ns = namespace(a=1) %}{{ 'a' in ns }}", "{% set ns = namespace(a=1) %}{{ ns }}{{ ns.b }}{{ ns['a'] }}", "{% for x in l %}{{ loop|length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.zz }}{{ loop['index'] }}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}", "{% for x in l %}{{ loop.cycle() }}{% endfor %}",
          "{% raw %}{{ x }}", "{{ a ? b }}", "{{ a ` b }}", "{{ $ }}", "{{ & }}", "{{ ! }}", "{{ a ! b }}", "{{ 1 2 }}", "{{ '", "{{ \"", "{{ }", "{% }", "{%", "{{", "{% for %}", "{% if %}", "{% set %}", "{% set a %}",
          "{% macro f(a=1, b) %}{{ b }}{% endmacro %}{{ f() }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, a=2) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(**{'a': 1}, a=2) }}",
          "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(**{1: 2}) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(*5) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(**5) }}", "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(b=1) }}",
          "{% macro f(a) %}{{ a }}{% endmacro %}{{ f(1, 2) }}", "{% macro f(a) %}{{ a }}{{ kwargs }}{% endmacro %}{{ f(1, b=2, c=3) }}", "{% macro f() %}{{ varargs }}{% endmacro %}{{ f(1, 2) }}", "{% macro f() %}{{ caller() }}{% endmacro %}{{ f() }}",
          "{% macro f() %}x{% endmacro %}{{ f.name }}{{ f.arguments }}{{ f.catch_kwargs }}{{ f.catch_varargs }}{{ f.caller }}{{ f.zz }}", "{% set a, b = [1] %}", "{% set a, b = [1, 2, 3] %}", "{% set a, b = 5 %}", "{% set a, b = 'xy' %}{{ a }}",
          "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [5] %}{% endfor %}", "{% for a in 5 %}{% endfor %}", "{% for a in none %}{% endfor %}", "{% for a in zz %}{% else %}e{% endfor %}",
          "{% break %}", "{% continue %}", "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in l %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% else %}no{% endfor %}", "{% macro f() %}{% break %}{% endmacro %}",
          "{% for x in l %}{% macro f() %}{% continue %}{% endmacro %}{% endfor %}", "{% for x in l %}{% endfor %}{% break %}", "{% for x in l recursive %}{% if x != 2 %}{{ loop([2]) }}{% endif %}{{ loop.depth }}{{ x }}{% endfor %}", "{% for x in l %}{{ loop([1]) }}{% endfor %}",
          "{% set s.a = 1 %}", "{% set zz.a = 1 %}", "{% set ns = namespace() %}{% set ns.a %}x{% endset %}{{ ns.a }}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns.b }}", "{% set ns = namespace([['a', 1]]) %}{{ ns.a }}", "{{ namespace(1) }}",
          "{% set x | upper %}ab{% endset %}{{ x }}", "{% set x | nope %}ab{% endset %}", "{% filter upper | replace('A', 'x') %}ab{% endfilter %}", "{% filter nope %}{% endfilter %}", "{% with %}a{% endwith %}", "{% with a = 1, b = a %}{{ b }}{% endwith %}",
          "{% with a %}{% endwith %}", "{% call f() %}{% endcall %}", "{% call s.upper() %}x{% endcall %}", "{% call 5 %}{% endcall %}", "{% generation %}a{% endgeneration %}", "{% do l %}", "{% do %}", "{% nope %}", "{% elif t %}", "{% else %}", "{% if t %}{% else %}{% elif t %}{% endif %}",
          "{% if t %}a{% elif %}{% endif %}", "{% endfor %}", "{% if t %}{% endfor %}", "{% for x in l %}{% endif %}", "{% for x in l if x > 1 %}{{ loop.index }}{{ loop.length }}{{ loop.last }}{{ x }}{% else %}e{% endfor %}", "{% for x in l if zz.y %}{% endfor %}"]
MORE = ["range(3) == range(0, 3)", "range(0) == range(5, 2)", "range(0, 1, 5) == range(0, 1, 7)", "range(0, 4, 2) == range(0, 4, 3)", "range(0, 4, 2) == range(0, 3, 2)", "range(1, 4) == range(0, 3)", "range(2) != [0, 1]", "range(5).start", "range(1, 9, 3).stop", "range(1, 9, 3).step",
        "range(9).zz", "3 in range(5)", "5 in range(5)", "'a' in range(5)", "1.0 in range(5)", "4 in range(0, 9, 3)", "{(1, [2]): 3}", "{[1]: 2}", "{(1, (2, 3)): 3}[(1, (2, 3))]", "{d: 1}", "{zz: 1}", "n // -1", "n % -1", "0 // -1", "-7 // 2", "-7 % 3", "7 % -3", "7 // -2",
        "-9223372036854775807 - 1", "(-9223372036854775807 - 1) // -1", "(-9223372036854775807 - 1) % -1", "(-9223372036854775807 - 1)|abs", "-(-9223372036854775807 - 1)", "9223372036854775807 + 1", "9223372036854775807 * 2", "3037000500 * 3037000500", "3037000499 * 3037000499", "2 ** 62",
        "2 ** 63", "2 ** 64", "(-2) ** 63", "0 ** 0", "0 ** -1", "0.0 ** -1", "(-8) ** 0.5", "2 ** 0.5", "10 ** -2", "10 ** 400", "10.0 ** 400", "1 ** 99999999", "(-1) ** 99999999", "7 ** 2 ** 0", "-2 ** 2", "5.5 // 2", "-5.5 // 2", "5.5 % -2", "5 % 0.0", "5 / 0.0", "5.0 // 0", "1e308 * 10", "1e308 * 10 - 1e308 * 10",
        "dict(**d)", "dict(d, a=5)", "dict([['a', 1]])", "dict([['a']])", "dict(5)", "dict('ab')", "dict(['ab'])", "s.replace('l')", "s.startswith()", "','.join()", "d.get()", "l.index()", "l.count()", "l.count(1)", "l.index(9)", "s.index('zz')", "s.find()", "d.items(1)", "d.keys().zz", "d['items']", "d.items", "d.get",
        "s|truncate", "s|truncate(5)", "s|truncate(5, true)", "s|truncate(5, true, '')", "s|truncate(3, true, '....')", "s|truncate(10, false, '..', 0)", "s|truncate(9, false, '..', 2)", "s|truncate(8, false, '..', 2)", "u|truncate(7, true, '\u2026', 0)", "s|truncate(-1)", "s|wordwrap(3)", "s|wordwrap(5, false)", "s|wordwrap", "s|center(20)", "s|center", "s|center(5)",
        "s|indent(2, true, true)", "ws|indent('> ', true)", "'a\n\nb'|indent(2)", "'a\n\nb'|indent(2, true, true)", "'a\n\nb'|indent(2, blank=true)", "'a\n'|indent", "s|replace('l')", "s|replace('l', 'L', 1)", "s|replace('', '-')", "s|replace('l', 'L', -1)", "s|replace('l', 'L', 0)", "s|replace(1, 2)", "n|replace('5', 'x')",
        "d|dictsort(by='value')", "d|dictsort(by='zz')", "d|dictsort(true)", "d|dictsort(false, 'key', true)", "{'B': 1, 'a': 2}|dictsort", "{'B': 1, 'a': 2}|dictsort(true)", "{1: 2, 'a': 3}|dictsort", "l|map", "l|map()", "messages|map(attribute='role', x=1)|list", "messages|map(attribute='zz', default='q')|list", "messages|map(attribute='zz')|list", "l|map('nope')|list",
        "messages|map(attribute='content.x')|list", "messages|map(attribute='tool_calls.0.type', default=1)|list", "ls|map('upper')|join", "l|map('add', 1)|list", "l|select|list", "l|select('gt', 1)|list", "l|select('nope')|list", "l|reject('odd')|list", "messages|selectattr('role')|list|length", "messages|selectattr|list", "messages|rejectattr('zz')|list|length",
        "messages|selectattr('role', 'eq')|list", "l|sum(1)", "l|sum(start=10)", "ls|sum", "messages|sum('zz')", "messages|sum(attribute='zz', start=2)", "tools|sum(attribute='n')", "l|sort(true)", "ls|sort(case_sensitive=true)", "ls|sort(reverse=true)", "messages|sort(attribute='role')|map(attribute='role')|list", "messages|sort(attribute='role,content')|length", "messages|sort(attribute='zz')", "[1, 'a']|sort",
        "ls|min", "ls|max", "[]|min", "[]|max", "ls|min(true)", "messages|max(attribute='role')", "['B', 'a', 'b', 'A']|unique|list", "['B', 'a', 'b', 'A']|unique(true)|list", "messages|unique(attribute='role')|list|length", "messages|groupby('role')", "messages|groupby('role')|map(attribute='grouper')|list", "messages|groupby('zz', default='q')|length", "l|batch(2)|list", "l|batch(2, 'x')|list", "l|batch(0)|list", "l|slice(2)|list", "l|slice(2, 'x')|list", "l|slice(0)|list",
        "l|join(', ', 'a')", "messages|join(',', 'role')", "messages|join(',', attribute='role')", "l|join(none)", "l|join(1)", "s|join('-')", "d|join", "n|join", "zz|join", "zz|default(1, 2, 3)", "''|default('x')", "''|default('x', true)", "zz|d('x')", "none|default('x')", "s|first", "[]|first", "[]|last", "''|first", "d|first", "d|last", "n|first", "(l|map('string'))|last", "l|random(1)", "s|list", "d|list", "n|list",
        "d|items|list", "zz|items|list", "l|items|list", "s|wordcount", "''|wordcount", "u|wordcount", "s|attr('upper')", "d|attr('b')", "d|attr('items')() | list", "s|string", "zz|string", "x|string", "s|escape", "'<&>\'\"'|e", "'<'|safe ~ '<'", "'<'|e|e", "'<'|forceescape", "'<b>x</b>  y'|striptags", "s|urlencode", "'a b&c/d\u00e9'|urlencode", "d|urlencode", "s|filesizeformat", "1000|filesizeformat", "1|filesizeformat", "1e6|filesizeformat", "1024|filesizeformat(true)", "s|pprint", "s|format(1)", "'%s'|format", "'%s'|format(1, 2)", "'%(a)s'|format(a=1)", "'%s'|format(1, a=2)",
        "namespace({1: 2})|string|length", "namespace({'': 2}) is defined", "namespace({none: 2}) is defined", "[zz] == [zz]", "[zz] == [zy]", "zz is sameas zz", "zz in [zy]", "[zz].index(zy)", "[zz, zy]|unique|list|length", "('<a'|e|list)[1] ~ '<'", "('<a'|e)[1] ~ '<'", "'<a'|e|first ~ '<'",
        "'<a'|e|list|join('<')", "'<a'|e|last ~ '<'", "1_000_", "1_0_", "1_", "1_a", "1_0a",
        "s is sameas s", "1 is sameas 1", "1.5 is sameas 1.5", "true is sameas true", "none is sameas x", "l is sameas l", "l is sameas [3, 1, 2]", "1 is sameas true", "n is divisibleby 0", "n is divisibleby(5)", "s is divisibleby 2", "f is odd", "f is even", "s is odd", "s is in(s)", "n is in 5", "s is lower", "'a' is upper", "'1' is lower", "n is upper", "s is escaped", "'a'|e is escaped", "'upper' is filter", "'nope' is filter", "'odd' is test", "'nope' is test", "1 is filter", "s is callable", "range is callable", "d.get is callable",
        "lipsum()", "lipsum(1)", "cycler()", "cycler(1, 2).current", "cycler(1, 2).reset()", "joiner()()", "joiner(1, 2)", "dict(1, 2)", "strftime_now('%Q')", "strftime_now('%')", "strftime_now('a%%b')", "strftime_now()", "strftime_now(1)", "raise_exception()", "raise_exception('a', 'b')", "raise_exception(1)", "zz()", "s()", "d.b()", "1()", "range.x", "varargs", "caller", "loop",
        "'}'.format()", "'{'.format()", "'{0'.format(1)", "'a}}b{{c'.format()", "'{9}'.format(1)", "'{!r}'.format('a')", "'{:}'.format(1)", "'{a}'.format(b=1)", "'%d' % 'a'", "'%d' % none", "'%x' % 1.5", "'%s %s' % (1,)", "'%s' % (1, 2)", "'%s' % ()", "'a' % 1", "'a' % {}", "'%%' % ()", "'100%' % ()", "'%(a)s %(b)s' % {'a': 1}", "'%(a' % {}", "'%(b)d' % {'b': 2}",
        "1 if t", "1 if x", "(1 if x) is undefined", "1 if t else", "not not t", "not 1 == 2", "1 < 2 < 3", "1 < 2 > 3", "1 == 1 != 2", "'a' in 'abc' in ['abc']", "1 < 'a'", "none < none", "[1, 2] < [1, 3]", "(1, 2) < (1, 2, 0)", "[1] < (1,)", "'a' < 'b'", "true < 2", "1 in none", "1 in 1", "1 in 'a'", "none in 'a'", "'' in ''", "'b' in d", "[] in d", "d in [d]",
        "l[0:2][1]", "l[::2]", "l[n]", "l[t]", "s[1:3, 2]", "l[1, 2]", "l[]", "l[:]", "l[::]", "l[:::]", "s.0", "l.0", "l.1.2", "d.a.0", "d.a[0]", "l.-1", "d.'a'", "d.", "d..a", "(l)", "(l,)", "()", "(,)", "[,]", "[1,]", "{,}", "{'a'}", "{'a': 1,}", "{'a': 1 'b': 2}", "{**d}", "[*l]", "f(*l)", "f(a=1, 2)", "f(,)", "s|", "s|1", "s|upper()", "s|upper(1)", "s is", "s is 1", "s is not", "s is not defined", "s is not lower", "a := 1", "lambda", "s ~", "~ s", "+ s", "- s", "-l", "+t", "-t", "not", "and 1", "1 and", "1 or or 2", "t and x", "x or e", "x and zz.y", "t or zz.y"]


def tables():
    """Templates of products: what a number, a format, a key, an escape and so on mean, right and wrong."""
    out = [f"{json.dumps(x, ensure_ascii=False)}|{f}" for x in SIGMAS for f in ("lower", "title", "capitalize")]
    out += [f"{x!r}|{f}" for x in TEXTS for f in ("int", "int(3, 16)", "int(base=0)", "int(base=2)", "float", "float(7)")]
    out += [f"({x})|{f}" for x in FLOATS for f in ("string", "int", "abs", "tojson")]
    out += [f"({x})|round({n}{m})" for x in ROUNDED for n in ("", "0", "1", "2", "22", "'a'") for m in ("", "'ceil'" if not n else ", 'ceil'", ", 'floor'" if n else "method='floor'", ", 'up'" if n else "method='up'")]
    out += [f"'%{spec}|' {op}" for spec in SPECS for op in ("% 42", "% -3.75", "% 'h\u00e9l'", "|format(7)", "% [1]", "% (1, 2)", "% {'a': 1}")]
    out += [f"'{{:{spec}}}'.format({x})" for spec in FORMATS for x in ("42", "-3.75", "'h\u00e9l'", "none", "[1]")]
    out += [f"{template!r}.format(s, n, d, a=l, k='>5')" for template in ("{}{}", "{0}{1}{0}", "{a}", "{2.b}", "{a[0]}", "{{}}", "{", "}", "{9}", "{zz}", "{!r}", "{0!s}", "{!x}", "{1:{k}}", "{}}", "{0", "{a[}", "{a.}")]
    out += [f"({x})[{key}]" for x in ("s", "l", "d", "n", "x", "zz") for key in KEYS]
    out += [f"{{0: 'i', 1.5: 'f', none: 'n', '': 'e', true: 't', (1, 2): 'p'}}[{key}]" for key in KEYS if ":" not in key]
    out += [f"{quote}a{x}b{quote}" for x in ESCAPES for quote in ("'", '"')]
    out += LITERALS + [f"[{x}, 1]" for x in LITERALS] + [f"-{x}" for x in LITERALS]
    out += [f + of for f in FUNCTIONS for of in OF_RANGE if "random" not in of]
    out += [f"{x}.{m}{c}" for m in METHODS for c in CALLS for x in ("'Hello l'",) if not (m == "splitlines" and c[1:-1]) and "partition(sep" not in m + c]
    out += [f"({x})|tojson({c})" for x in JSONS for c in JSON_CALLS]
    out += [f"zz {op} {y}" for op in ("==", "!=", "<", "+", "~", "in", "and", "is") for y in ("zz", "x", "s", "0", "defined", "[zz]")] + [f"{y} {op} zz" for op in ("==", "!=", "in", "~", "or") for y in ("zy", "x", "[zz]", "''")]
    rows = OTHERS + ["{{ " + text + " }}" for text in MORE + out]
    for left in SPACED:
        for tag in TAGS:
            for right in SPACED:
                rows.append(left + tag + right + ("{% endif %}" if "if" in tag and "endif" not in tag else "") + "!")
    return rows


def on_each(text):
    out = []
    for v in VALUES:
        result = render(text, {"v": v})
        out.append(0 if isinstance(result, str) and ADDRESS.search(result) else result)
    return out


def generated(n):
    """n templates of which at least two thirds render. Values with an address or an endless text are left out."""
    out, seed, n_errors = [], 0, 0
    while len(out) < n:
        seed += 1
        text = Maker(seed).template()
        result = render(text, LANGUAGE)
        if isinstance(result, str) and (ADDRESS.search(result) or len(result) > 1500):
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
    for key, context in (("expressions", LANGUAGE), ("statements", STATEMENTS)):
        for text in language[key]:
            text = "{{ " + text + " }}" if key == "expressions" else text
            rows.append({"text": text, "context": "language" if key == "expressions" else "statements", "result": render(text, context)})
    for text, result in generated(500):
        rows.append({"text": text, "context": "language", "result": result})
    for Clock.seconds in DATES:
        rows.append({"text": DATE, "context": "statements", "now": Clock.seconds, "result": render(DATE, {})})
    Clock.seconds = NOW
    made = [(text, render(text, LANGUAGE)) for text in tables()]
    made = [x for x in made if not (isinstance(x[1], str) and (ADDRESS.search(x[1]) or len(x[1]) > 1500))]
    rows += [{"table": made[i:i + 50]} for i in range(0, len(made), 50)]
    rows += [{"text": text, "each": on_each(text)} for text in language["forms"]]
    named = [("file", os.path.basename(f), open(f, encoding="utf-8").read()) for f in sorted(glob.glob(os.path.join(ROOT, "tests/chat/families/*.jinja")))]
    named += [("name", name, text) for name, text in builtin_templates().items()]
    n = 0
    for kind, name, text in named:
        results = [render(text, c) for c in chats]
        n += sum(isinstance(x, str) for x in results)
        rows.append({kind: name, "results": [fnv1a(x) if isinstance(x, str) else None for x in results]})
    with open(os.path.join(ROOT, "tests/goldens/templates.jsonl"), "w", encoding="utf-8") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
    print(f"{len(language['expressions'])} expressions, {len(language['statements'])} templates of statements, 500 from seeds, {len(made)} of tables, {len(language['forms'])} forms x {len(VALUES)} values; "
          f"{len(named)} templates of families x {len(chats)} conversations, {n} prompts")


if __name__ == "__main__":
    main()
