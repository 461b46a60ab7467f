#!/usr/bin/env python3
"""Makes tests/chat/rows.jsonl: the prompts that Jinja writes with the chat templates of tests/chat.

    python3 scripts/goldens/make_chats.py     needs jinja2; tests do not

The templates are our own spellings of published templates, with branches for tools. A line of rows.jsonl is a conversation,
{messages, prompts, refused}. A prompt is {template, date, expected}; refused names the templates that refuse the messages."""
import datetime
import json
import os
from importlib.metadata import version

from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

FOLDER = os.path.join(os.path.dirname(__file__), "../..", "tests", "chat")
EOS = {"llama3": "<|eot_id|>", "llama3.1": "<|eot_id|>", "llama3.2": "<|eot_id|>", "chatml": "<|im_end|>", "qwen2.5": "<|im_end|>"}
OPTIONS = {"qwen3-no-think": ("qwen3", {"enable_thinking": False})}  # a template of Sleigh's: a Jinja text, with variables set
DATE = "20 Feb 2025"
WHITE = "".join(chr(c) for c in range(0x110000) if chr(c).isspace())
TURNS = {"s": ("system", "You are a helpful assistant"), "u": ("user", "Hello"), "a": ("assistant", "Hi there"),
         "S": ("system", "  Be brief.\n"), "U": ("user", " \tHi,\t日本 🚀 naïve\n\nline two \u3000\n"), "A": ("assistant", "\n\u2003ok \xa0 "),
         "e": ("user", ""), "E": ("assistant", ""), "q": ("user", "it's \"quoted\" {{ bos_token }} \\n <s></s> [INST]"), "t": ("tool", "x"),
         "k": ("assistant", "<think>\n\nWhy?\n\n</think>\n\nBecause.\n"), "K": ("assistant", "a<think>b<think>\nc</think>d</think>\n\ne"),
         "m": ("assistant", "<think>\n\n</think>\n\nok"), "o": ("assistant", "\n\nno thoughts"), "O": ("assistant", "open <think> only"),
         "x": ("assistant", "\n</think>"), "r": ("user", "<tool_response>\n7\n</tool_response>"), "R": ("user", "<tool_response>7"),
         "w": ("user", WHITE + "x" + WHITE), "W": ("assistant", WHITE), "n": ("user", "\u200b\u180ex\ufeff")}
ORDERS = ["u", "su", "uau", "suau", "suauau", "SUAU", "U", "SUA", "ua", "seEe", "w", "nWw", "sq", "qEq", "uu", "au", "suu", "saua", "uaa", "ss", "s", "uasu", "ut",
          "uku", "sukuKu", "umuoUOuxu", "uk", "uK", "um", "uo", "uO", "ux", "ukr", "ukrk", "uKrmro", "ukRa", "suka", "uaka", "rk", "k"]


def conversation(order):
    return [{"role": TURNS[c][0], "content": TURNS[c][1]} for c in order]


def refuse(message):
    raise TemplateError(message)


def render(name, jinja, messages, date):
    """Renders as transformers does. None: the template refuses the messages."""
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    env.globals.update(raise_exception=refuse, strftime_now=lambda form: datetime.date(2031, 3, 9).strftime(form))
    names = {"bos_token": "<|begin_of_text|>" if name.startswith("llama3") else "<s>", "eos_token": EOS.get(name, "</s>")}
    names.update(OPTIONS.get(name, (name, {}))[1])
    if date:
        names["date_string"] = date
    try:
        return env.from_string(jinja).render(messages=messages, add_generation_prompt=True, **names)
    except TemplateError:
        return None


def asked(name, order):
    """Only templates that refuse the role "tool" get a conversation with this role, because Sleigh has three roles."""
    return "t" not in order or name in ("mistral-v0", "mistral-v1", "mistral-v7")


def write_rows(name, rows):
    with open(os.path.join(FOLDER, name), "w") as f:
        for row in rows:
            f.write(json.dumps({k: v for k, v in row.items() if v is not None}, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    templates = {f[:-len(".jinja")]: open(os.path.join(FOLDER, f)).read() for f in sorted(os.listdir(FOLDER)) if f.endswith(".jinja")}
    templates.update({name: templates[text] for name, (text, _) in OPTIONS.items()})
    templates = dict(sorted(templates.items()))
    rows, n = [], 0
    for order in ORDERS:
        prompts, refused = [], []
        for name in filter(lambda name: asked(name, order), templates):
            for date in [DATE] if name == "llama3.2" else [None, DATE] if name == "llama3.1" and order == "suau" else [None]:
                text = render(name, templates[name], conversation(order), date)
                same = next((p for p in prompts if p["expected"] == text), None)
                if text is None:
                    refused.append(name)
                elif same and date is None:
                    same["template"] += " " + name
                else:
                    prompts.append({"template": name, **({"date": date} if date else {}), "expected": text})
        n += len(prompts) + len(refused)
        rows.append({"messages": conversation(order), "prompts": prompts, "refused": refused})
    write_rows("rows.jsonl", rows)
    with open(os.path.join(FOLDER, "README.md"), "w") as f:
        f.write("# Chat templates in our own spelling\n\n`scripts/goldens/make_chats.py` wrote the prompts with jinja2 "
                f"{version('jinja2')}.\nThe script describes the files.\n")
    print(f"{len(templates)} templates, {len(rows)} conversations, {n} prompts or refusals")


if __name__ == "__main__":
    main()
