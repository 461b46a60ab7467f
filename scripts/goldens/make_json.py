#!/usr/bin/env python3
"""Writes tests/goldens/json.jsonl: texts, and what Python's json reads from them.

One line for each text: {"text": the text, "value": what sl_json_parse must give, or null where Python's json refuses the text}.
A value that Jansson cannot hold is the string "\\u0000\\u0001" and the value's text (base/json_lenient.h). An integer of
more than 64 bits, a real beyond a double's range, NaN, Infinity, -Infinity, and a text with half a surrogate pair are such
values.

    python3 scripts/goldens/make_json.py
"""
import json
import math
import re

MARK = "\0\1"
TEXTS = [
    # numbers of any size
    '{"a": 1000000000000000019884624838656, "b": 2}',
    '{"a": 9223372036854775807, "b": 9223372036854775808, "c": -9223372036854775808, "d": -9223372036854775809}',
    '{"a": 123456789012345678, "b": 1234567890123456789, "c": 12345678901234567890}',
    '{"a": [1e308, 1e309, -1e309, 1e-400, 1E+400, 2.5e-3, 17976931348623157' + "0" * 292 + ".0, 1" + "0" * 309 + ".5]}",
    '{"a": NaN, "b": [Infinity, -Infinity, {"c": NaN}], "d": "NaN", "Infinity": "-Infinity"}',
    '{"a":NaN,"b":-Infinity}',
    '{"a": -0, "b": -0.0, "c": 0.5, "d": 1e5}',
    # texts that look like numbers, and escapes before a quote
    '{"a": "1e999 NaN 1000000000000000019884624838656", "b": "\\\\", "c": "\\"NaN", "d": "\\\\\\"1e999"}',
    # names that occur twice
    '{"a": 1, "a": 2, "b": {"c": 1, "c": NaN}, "a": {"d": 3}}',
    '{"a": NaN, "a": 5}',
    # surrogates
    '{"a": "\\ud83d\\ude00", "b": "x\\ud83dy", "c": "\\ude00", "d": "\\ud83d\\uD83D\\uDE00"}',
    '{"a": "\\\\ud83d", "b": "\\\\\\ud83d", "c": "\\ud83d\\n", "d": "\\ud7ff\\ue000"}',
    '{"a": "\\u0000", "b": "\\u0000x", "c": "x\\u0000"}',
    # an empty name, blanks of every kind
    '{"": 1,\t"b"\n:\r\n[ ] , "c": {}}',
    # refused
    '{"a": nan}', '{"a": -NaN}', '{"a": +1}', '{"a": 01}', '{"a": 1.}', '{"a": .5}', '{"a": 1e}', '{"a": -}', '{"a": 1-2}',
    '{"a": 1e999e}', '{"a": 1e999x}', '{"a": NaNN}', '{"a": Infinity1}', '{"a": --Infinity}', '{NaN: 1}', '{1e999: 1}',
    '{"a": 1000000000000000019884624838656 1}', '{"a": "\\ud83"}', '{"a": "\\x"}', '{"a": "tab\there"}', '{"a": 1,}', '{"a" 1}',
    '{"a": 1} x', '{"a": [1, 2}', '{"a": "b', '{"a": "b\\', "", "{", '{"a": NaN',
]


def number(text):
    value = int(text) if re.fullmatch(r"-?\d+", text) else float(text)
    if isinstance(value, int):
        return value if -2**63 <= value < 2**63 else MARK + text
    return value if math.isfinite(value) else MARK + text


def marked(value):
    if isinstance(value, dict):
        return {name: marked(v) for name, v in value.items()}
    if isinstance(value, list):
        return [marked(v) for v in value]
    if isinstance(value, str) and re.search("[\ud800-\udfff]", value):
        return MARK + re.sub("[\ud800-\udfff]", lambda m: "\\u%04x" % ord(m[0]), value)
    return value


def read(text):
    try:
        value = json.loads(text, parse_int=number, parse_float=number, parse_constant=lambda name: MARK + name)
    except ValueError:
        return None
    return marked(value)


with open("tests/goldens/json.jsonl", "w") as out:
    for text in TEXTS:
        out.write(json.dumps({"text": text, "value": read(text)}) + "\n")
