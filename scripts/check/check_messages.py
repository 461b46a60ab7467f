#!/usr/bin/env python3
"""Checks the texts of the library for programs that embed it: they name options by their fields, never flags of the command line.

    scripts/check/check_messages.py SLEIGH    SLEIGH: the binary, whose help lists all flags

1. No string of the library holds a flag such as --ctx-size. (attention/params.c writes the flags of `sleigh methods` as "--%s".)
2. The command line has a flag for each name in braces of a message ("{n_ctx} %d: ..."), by the table of cli/error_text.c.
Prints one line for each violation, and exits with 1 when there is one.
"""

import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
STRING = re.compile(r'//[^\n]*|"((?:[^"\\\n]|\\.)*)"')
COMMANDS = ["generate", "chat", "bench", "serve"]


def library():
    for top in ("attention", "backend", "base", "engine", "grammar", "kv", "models", "server", "tokenizer"):
        for folder, _, names in sorted(os.walk(os.path.join(ROOT, top))):
            for name in sorted(names):
                path = os.path.relpath(os.path.join(folder, name), ROOT)
                if name.endswith((".c", ".cc", ".cu", ".h", ".cuh")):
                    yield path


def flag_of(option, special):
    return special.get(option, "--" + option.replace("_", "-"))


def main():
    faults, options = [], {}
    for path in library():
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            text = f.read()
        for m in STRING.finditer(text):
            line = text.count("\n", 0, m.start()) + 1
            if re.search(r"(?<!-)--[A-Za-z]", m.group(1) or ""):
                faults.append(f'{path}:{line}: found a flag in "{m.group(1)}", expected the name of an option in braces')
        for call in re.finditer(r"\bsl_fail\((?:[^\";]|\"(?:[^\"\\]|\\.)*\")*;", text):
            for name in re.findall(r"\{([A-Za-z_]+)\}", call.group(0)):
                options.setdefault(name, f"{path}:{text.count(chr(10), 0, call.start()) + 1}")
    with open(os.path.join(ROOT, "cli/error_text.c"), encoding="utf-8") as f:
        special = dict(re.findall(r'\{"(\w+)", "([^"]+)"\}', f.read()))
    helps = [subprocess.run([sys.argv[1], c, "--help"], capture_output=True, text=True, check=True).stdout for c in COMMANDS]
    for name, where in sorted(options.items()):
        flag = re.search(r"--[A-Za-z-]+", flag_of(name, special)).group(0)
        if not any(re.search(re.escape(flag) + r"(?![A-Za-z-])", text) for text in helps):
            faults.append(f"{where}: the option {name} would be printed as {flag}, which is no flag")
    if len(options) < 10:
        faults.append(f"found {len(options)} names of options, expected at least 10: this script does not find the calls of sl_fail")
    for line in faults:
        print(line)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
