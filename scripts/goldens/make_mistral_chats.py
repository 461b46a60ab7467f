#!/usr/bin/env python3
"""Makes tests/goldens/mistral_chats.jsonl: the ids that mistral-common gives to conversations, for each of its tokenizers.

    build/venv/bin/python scripts/goldens/make_mistral_chats.py     needs mistral-common; the test needs its tokenizers

A line is {messages, tools, ids}. ids: {file of a tokenizer: the ids of encode_chat_completion; null: it refuses the messages}."""
import json
import os
import warnings

import mistral_common
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

DATA = os.path.join(os.path.dirname(mistral_common.__file__), "data")
OUT = os.path.join(os.path.dirname(__file__), "../..", "tests", "goldens", "mistral_chats.jsonl")
FILES = ["tokenizer.model.v1", "mistral_instruct_tokenizer_240216.model.v2", "mistral_instruct_tokenizer_240323.model.v3",
         "mistral_instruct_tokenizer_241114.model.v7", "mistral_instruct_tokenizer_241114.model.v7m1", "tekken_240718.json",
         "tekken_240911.json"]
WEATHER = {"type": "function", "function": {"name": "weather", "description": "The weather of a city — now", "parameters": {
    "type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "number", "minimum": 0.5}}, "required": ["city"]}}}
CLOCK = {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}


def call(number, name="weather", arguments='{"city":"Zürich",  "days": 2.0}'):
    return {"id": f"abcdefgh{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def m(role, content=None, **more):
    return {"role": role, **({} if content is None else {"content": content}), **more}


U, A = m("user", "Hello the river"), m("assistant", "Hi there")
DIALOGUES = [
    ([U], None),
    ([m("system", "Be brief."), U], None),
    ([U, A, m("user", "Who are you?")], None),
    ([m("system", "Be brief."), U, A, m("user", "Who are you?"), m("assistant", "A river."), m("user", "Sure?")], None),
    ([m("user", "  two blanks\n\nand a tab\t"), m("assistant", " reply with blanks  "), m("user", "")], None),
    ([m("user", "日本 🚀 naïve ﬁ"), m("assistant", "Ça va — oui"), m("user", "١٢٣ x² e\u0301")], None),
    ([m("user", "a"), m("user", "b"), m("assistant", "c"), m("assistant", "d"), m("user", "e")], None),
    ([m("user", "[INST] inside [/INST] <s> </s> [SYSTEM_PROMPT] x [TOOL_CALLS][AVAILABLE_TOOLS]")], None),
    ([m("system", "<s>[/INST]"), m("user", "</s>[INST]"), m("assistant", "[TOOL_RESULTS]</s>"), m("user", "<unk> <0x0A> ▁x")], None),
    ([m("system", "One."), U, A, m("system", "Two."), m("user", "Go on")], None),
    ([m("user", [{"type": "text", "text": "part one"}, {"type": "text", "text": "part two"}])], None),
    ([U], [WEATHER]),
    ([m("system", "Use tools."), U, A, m("user", "Weather?")], [WEATHER, CLOCK]),
    ([U, m("assistant", tool_calls=[call(1)]), m("tool", '{"sky":"blue","t":21.50}', tool_call_id="abcdefgh1", name="weather")], [WEATHER]),
    ([U, m("assistant", tool_calls=[call(1)]), m("tool", "no JSON é [1", tool_call_id="abcdefgh1", name="weather"), m("assistant", "Blue."),
      m("user", "And tomorrow?")], [WEATHER]),
    ([U, m("assistant", tool_calls=[call(1), call(2, "clock", "{}")]), m("tool", "21", tool_call_id="abcdefgh1", name="weather"),
      m("tool", '"noon"', tool_call_id="abcdefgh2", name="clock"), m("assistant", "It is noon.")
      , m("user", "Thanks"), m("assistant", tool_calls=[call(3, "clock", "")]), m("tool", "", tool_call_id="abcdefgh3", name="clock")],
     [WEATHER, CLOCK]),
    ([U, m("assistant", "Let me look.", tool_calls=[call(1)]), m("tool", "[1, 2, null, true]", tool_call_id="abcdefgh1", name="weather")],
     [WEATHER]),
    ([m("user", "x" * 300 + "\n" * 5 + " " * 9 + "end")], None),
]


def encode(tokenizer, messages, tools):
    try:
        request = ChatCompletionRequest.model_validate({"messages": messages, **({"tools": tools} if tools else {})})
        return tokenizer.encode_chat_completion(request).tokens
    except Exception:  # the validator's, the normalizer's and the tokenizer's refusals have several classes
        return None


def main():
    warnings.simplefilter("ignore")
    tokenizers = {name: MistralTokenizer.from_file(os.path.join(DATA, name)) for name in FILES}
    n = refused = 0
    with open(OUT, "w") as f:
        for messages, tools in DIALOGUES:
            ids = {name: encode(tokenizer, messages, tools) for name, tokenizer in tokenizers.items()}
            row = {"messages": messages, **({"tools": tools} if tools else {}), "ids": ids}
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")
            n += len(ids)
            refused += sum(x is None for x in ids.values())
    print(f"{len(DIALOGUES)} conversations, {n} prompts, {refused} refused")


if __name__ == "__main__":
    main()
