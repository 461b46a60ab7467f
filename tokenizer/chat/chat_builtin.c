// tokenizer/chat/chat_builtin.c - the texts of the built-in chat templates. They write what the published templates of the
// models write for messages of the roles system, user and assistant. `blank` is a blank where the tokenizer writes none after a
// special token.
#include "tokenizer/chat/chat_builtin.h"

#include <stddef.h>
#include <string.h>

// clang-format off
#define NO_TOOLS \
    "{%- if tools %}{{ raise_exception(\"this built-in template has no form for tools\") }}{% endif -%}\n"

#define SYSTEM_FIRST \
    "{%- set turns = messages -%}\n" \
    "{%- if messages and messages[0].role == \"system\" -%}\n" \
    "{%- set system = messages[0].content -%}\n" \
    "{%- set turns = messages[1:] -%}\n" \
    "{%- endif -%}\n"

#define ALTERNATE \
    "{%- if message.role != (\"assistant\" if loop.index0 % 2 else \"user\") -%}\n" \
    "{{- raise_exception(\"after the optional system message, the roles user and assistant must alternate\") -}}\n" \
    "{%- endif -%}\n"

#define CHATML \
    "{%- for message in messages -%}\n" \
    "{{- \"<|im_start|>\" + message.role + \"\\n\" + message.content + \"<|im_end|>\\n\" -}}\n" \
    "{%- endfor -%}\n" \
    "{%- if add_generation_prompt %}{{ \"<|im_start|>assistant\\n\" }}{% endif -%}\n"

#define LLAMA3_TURNS \
    "{%- for message in messages -%}\n" \
    "{{- \"<|start_header_id|>\" + message.role + \"<|end_header_id|>\\n\\n\" + message.content | trim + \"<|eot_id|>\" -}}\n" \
    "{%- endfor -%}\n" \
    "{%- if add_generation_prompt %}{{ \"<|start_header_id|>assistant<|end_header_id|>\\n\\n\" }}{% endif -%}\n"

#define QWEN3 \
    "{%- set ns = namespace(last_query=messages | length - 1, searching=true) -%}\n" \
    "{%- for message in messages[::-1] -%}\n" \
    "{%- if ns.searching and message.role == \"user\" and not (message.content.startswith(\"<tool_response>\") and message.content.endswith(\"</tool_response>\")) -%}\n" \
    "{%- set ns.searching = false -%}\n" \
    "{%- set ns.last_query = messages | length - 1 - loop.index0 -%}\n" \
    "{%- endif -%}\n" \
    "{%- endfor -%}\n" \
    "{%- for message in messages -%}\n" \
    "{%- set content = message.content -%}\n" \
    "{{- \"<|im_start|>\" + message.role + \"\\n\" -}}\n" \
    "{%- if message.role == \"assistant\" -%}\n" \
    "{%- set thoughts = message.reasoning_content if message.reasoning_content is string else \"\" -%}\n" \
    "{%- if message.reasoning_content is not string and \"</think>\" in content -%}\n" \
    "{%- set thoughts = content.split(\"</think>\")[0].rstrip(\"\\n\").split(\"<think>\")[-1].lstrip(\"\\n\") -%}\n" \
    "{%- set content = content.split(\"</think>\")[-1].lstrip(\"\\n\") -%}\n" \
    "{%- endif -%}\n" \
    "{%- if loop.index0 > ns.last_query and (loop.last or thoughts) -%}\n" \
    "{{- \"<think>\\n\" + thoughts.strip(\"\\n\") + \"\\n</think>\\n\\n\" -}}\n" \
    "{%- set content = content.lstrip(\"\\n\") -%}\n" \
    "{%- endif -%}\n" \
    "{%- elif message.role not in [\"system\", \"user\"] -%}\n" \
    "{{- raise_exception(\"only the roles system, user and assistant are supported\") -}}\n" \
    "{%- endif -%}\n" \
    "{{- content + \"<|im_end|>\\n\" -}}\n" \
    "{%- endfor -%}\n" \
    "{%- if add_generation_prompt -%}\n" \
    "{{- \"<|im_start|>assistant\\n\" -}}\n"

#define MISTRAL \
    "{%- set ns = namespace(turns=[], system=[], last=\"\", first_user=-1, last_user=-1) -%}\n" \
    "{%- for message in messages -%}\n" \
    "{%- set content = message.content if message.content is string else (message.content or []) | map(attribute=\"text\") | join(\"\\n\\n\") -%}\n" \
    "{%- if message.role == \"system\" and version < 7 -%}\n" \
    "{%- if content %}{% set ns.system = ns.system + [content] %}{% endif -%}\n" \
    "{%- elif message.role == ns.last and message.role in [\"user\", \"assistant\"] -%}\n" \
    "{%- set old = ns.turns[-1] -%}\n" \
    "{%- set between = \"\\n\\n\" if old.content and content else \"\" -%}\n" \
    "{%- set ns.turns = ns.turns[:-1] + [{\"role\": old.role, \"content\": old.content + between + content, \"calls\": old.calls + (message.tool_calls or [])}] -%}\n" \
    "{%- else -%}\n" \
    "{%- set ns.turns = ns.turns + [{\"role\": message.role, \"content\": content, \"calls\": message.tool_calls or [], \"parsed\": message.parsed, \"name\": message.name, \"id\": message.tool_call_id}] -%}\n" \
    "{%- endif -%}\n" \
    "{%- set ns.last = message.role -%}\n" \
    "{%- endfor -%}\n" \
    "{%- if not ns.turns or (version < 7 and ns.turns[0].role != \"user\") -%}\n" \
    "{%- set ns.turns = [{\"role\": \"user\", \"content\": \"\", \"calls\": []}] + ns.turns -%}\n" \
    "{%- endif -%}\n" \
    "{%- for turn in ns.turns -%}\n" \
    "{%- if turn.role == \"user\" -%}\n" \
    "{%- set ns.last_user = loop.index0 -%}\n" \
    "{%- if ns.first_user < 0 %}{% set ns.first_user = loop.index0 %}{% endif -%}\n" \
    "{%- endif -%}\n" \
    "{%- endfor -%}\n" \
    "{%- set system = ns.system | join(\"\\n\\n\") + (\"\\n\\n\" if ns.system else \"\") -%}\n" \
    "{%- macro part(text) %}{{ blank + text if text else \"\" }}{% endmacro -%}\n" \
    "{{- bos_token -}}\n" \
    "{%- for turn in ns.turns -%}\n" \
    "{%- set content = turn.content -%}\n" \
    "{%- if turn.role == \"user\" and version == 1 -%}\n" \
    "{{- blank + \"[INST] \" + (system if loop.index0 == ns.first_user else \"\") + content + \" [/INST]\" -}}\n" \
    "{%- elif turn.role == \"user\" -%}\n" \
    "{%- if tools and loop.index0 == ns.last_user -%}\n" \
    "{{- \"[AVAILABLE_TOOLS]\" + blank + \"[\" -}}\n" \
    "{%- for tool in tools -%}\n" \
    "{{- {\"type\": \"function\", \"function\": {\"name\": tool.function.name, \"description\": tool.function.description or \"\", \"parameters\": tool.function.parameters or {}}} | tojson + (\", \" if not loop.last else \"\") -}}\n" \
    "{%- endfor -%}\n" \
    "{{- \"][/AVAILABLE_TOOLS]\" -}}\n" \
    "{%- endif -%}\n" \
    "{{- \"[INST]\" + part((system if loop.index0 == ns.last_user else \"\") + content) + \"[/INST]\" -}}\n" \
    "{%- elif turn.role == \"assistant\" -%}\n" \
    "{%- if not content and not turn.calls %}{{ raise_exception(\"a message of the assistant has neither content nor tool calls\") }}{% endif -%}\n" \
    "{%- if turn.calls and version == 1 %}{{ raise_exception(\"this version of Mistral's prompts has no tools\") }}{% endif -%}\n" \
    "{%- if turn.calls and content and version < 7 %}{{ raise_exception(\"a message of the assistant has both content and tool calls\") }}{% endif -%}\n" \
    "{%- if version == 1 -%}\n" \
    "{{- \" \" + content + eos_token -}}\n" \
    "{%- elif not (turn.calls and version == 2 and loop.index0 < ns.last_user) -%}\n" \
    "{{- part(content.rstrip(\" \")) -}}\n" \
    "{%- for call in turn.calls -%}\n" \
    "{%- set shown = {\"name\": call.function.name, \"arguments\": call.function.arguments} -%}\n" \
    "{%- if version > 2 and call.id and call.id != \"null\" %}{% set shown = dict(shown, id=call.id) %}{% endif -%}\n" \
    "{{- (\"[TOOL_CALLS]\" + blank + \"[\" if loop.first else \"\") + shown | tojson + (\"]\" if loop.last else \", \") -}}\n" \
    "{%- endfor -%}\n" \
    "{{- eos_token -}}\n" \
    "{%- endif -%}\n" \
    "{%- elif turn.role == \"tool\" and version > 1 -%}\n" \
    "{%- if version == 2 and loop.index0 > ns.last_user -%}\n" \
    "{{- \"[TOOL_RESULTS]\" + blank + [{\"name\": turn.name, \"content\": turn.parsed}] | tojson + \"[/TOOL_RESULTS]\" -}}\n" \
    "{%- elif version == 3 -%}\n" \
    "{{- \"[TOOL_RESULTS]\" + blank + {\"content\": turn.parsed, \"call_id\": turn.id} | tojson + \"[/TOOL_RESULTS]\" -}}\n" \
    "{%- elif version == 7 -%}\n" \
    "{{- \"[TOOL_RESULTS]\" + part(turn.id) + \"[TOOL_CONTENT]\" + part(content) + \"[/TOOL_RESULTS]\" -}}\n" \
    "{%- endif -%}\n" \
    "{%- elif turn.role == \"system\" -%}\n" \
    "{{- \"[SYSTEM_PROMPT]\" + part(content) + \"[/SYSTEM_PROMPT]\" -}}\n" \
    "{%- else -%}\n" \
    "{{- raise_exception(\"Mistral's prompts have no role \" + turn.role) -}}\n" \
    "{%- endif -%}\n" \
    "{%- endfor -%}\n"

const sl_chat_builtin sl_chat_builtins[] = {
    {.name = "llama2", .bos = "<s>", .eos = "</s>",
     .text =
         NO_TOOLS
         SYSTEM_FIRST
         "{%- for message in turns -%}\n"
         ALTERNATE
         "{%- if message.role == \"user\" -%}\n"
         "{%- set content = message.content -%}\n"
         "{%- if loop.first and system is defined %}{% set content = \"<<SYS>>\\n\" + system + \"\\n<</SYS>>\\n\\n\" + content %}{% endif -%}\n"
         "{{- bos_token + \"[INST] \" + content.strip() + \" [/INST]\" -}}\n"
         "{%- else -%}\n"
         "{{- \" \" + message.content.strip() + \" \" + eos_token -}}\n"
         "{%- endif -%}\n"
         "{%- endfor -%}\n"},
    {.name = "llama3", .bos = "<|begin_of_text|>", .eos = "<|eot_id|>",
     .markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         LLAMA3_TURNS},
    {.name = "llama3.1", .bos = "<|begin_of_text|>", .eos = "<|eot_id|>",
     .markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .text =
         NO_TOOLS
         "{{- bos_token + \"<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: \" -}}\n"
         "{{- date_string if date_string is defined else \"26 Jul 2024\" -}}\n"
         "{{- \"\\n\\n\" -}}\n"
         "{%- if messages and messages[0].role == \"system\" -%}\n"
         "{{- messages[0].content | trim -}}\n"
         "{%- set messages = messages[1:] -%}\n"
         "{%- endif -%}\n"
         "{{- \"<|eot_id|>\" -}}\n"
         LLAMA3_TURNS},
    {.name = "llama3.2", .bos = "<|begin_of_text|>", .eos = "<|eot_id|>",
     .markers = {"<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .text =
         NO_TOOLS
         "{{- bos_token + \"<|start_header_id|>system<|end_header_id|>\\n\\nCutting Knowledge Date: December 2023\\nToday Date: \" -}}\n"
         "{{- date_string if date_string is defined else strftime_now(\"%d %b %Y\") -}}\n"
         "{{- \"\\n\\n\" -}}\n"
         "{%- if messages and messages[0].role == \"system\" -%}\n"
         "{{- messages[0].content | trim -}}\n"
         "{%- set messages = messages[1:] -%}\n"
         "{%- endif -%}\n"
         "{{- \"<|eot_id|>\" -}}\n"
         LLAMA3_TURNS},
    {.name = "llama4", .bos = "<|begin_of_text|>", .eos = "<|eot|>",
     .markers = {"<|header_start|>", "<|header_end|>", "<|eot|>"},
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- for message in messages -%}\n"
         "{{- \"<|header_start|>\" + message.role + \"<|header_end|>\\n\\n\" + message.content | trim + \"<|eot|>\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|header_start|>assistant<|header_end|>\\n\\n\" }}{% endif -%}\n"},
    {.name = "mistral-v0", .bos = "<s>", .eos = "</s>",
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- for message in messages -%}\n"
         ALTERNATE
         "{%- if message.role == \"user\" -%}\n"
         "{{- \"[INST] \" + message.content + \" [/INST]\" -}}\n"
         "{%- elif message.role == \"assistant\" -%}\n"
         "{{- message.content + eos_token -}}\n"
         "{%- endif -%}\n"
         "{%- endfor -%}\n"},
    {.name = "mistral-v1", .bos = "<s>", .eos = "</s>",
     .text =
         "{%- set version = 1 -%}\n"
         MISTRAL},
    {.name = "mistral-v2", .bos = "<s>", .eos = "</s>",
     .markers = {"[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"},
     .text =
         "{%- set version = 2 -%}\n"
         MISTRAL},
    {.name = "mistral-v3", .bos = "<s>", .eos = "</s>",
     .markers = {"[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"},
     .text =
         "{%- set version = 3 -%}\n"
         MISTRAL},
    {.name = "mistral-v3-tekken", .bos = "<s>", .eos = "</s>",
     .markers = {"[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]"},
     .text =
         "{%- set version = 3 -%}\n"
         "{%- set blank = \"\" -%}\n"
         MISTRAL},
    {.name = "mistral-v7", .bos = "<s>", .eos = "</s>",
     .markers = {"[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .text =
         "{%- set version = 7 -%}\n"
         MISTRAL},
    {.name = "mistral-v7-tekken", .bos = "<s>", .eos = "</s>",
     .markers = {"[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_CALLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]"},
     .text =
         "{%- set version = 7 -%}\n"
         "{%- set blank = \"\" -%}\n"
         MISTRAL},
    {.name = "chatml", .bos = "", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>"},
     .text =
         NO_TOOLS
         CHATML},
    {.name = "smollm2", .bos = "", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>"},
     .text =
         NO_TOOLS
         "{%- if messages[0].role != \"system\" -%}\n"
         "{{- \"<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n\" -}}\n"
         "{%- endif -%}\n"
         CHATML},
    {.name = "qwen2.5", .bos = "", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>"},
     .text =
         NO_TOOLS
         "{%- if messages[0].role != \"system\" -%}\n"
         "{{- \"<|im_start|>system\\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\\n\" -}}\n"
         "{%- endif -%}\n"
         CHATML},
    {.name = "qwen3", .bos = "", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>"},
     .text =
         NO_TOOLS
         QWEN3
         "{%- if enable_thinking is defined and enable_thinking is false %}{{ \"<think>\\n\\n</think>\\n\\n\" }}{% endif -%}\n"
         "{%- endif -%}\n"},
    {.name = "qwen3-no-think", .bos = "", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>"},
     .text =
         NO_TOOLS
         QWEN3
         "{{- \"<think>\\n\\n</think>\\n\\n\" -}}\n"
         "{%- endif -%}\n"},
    {.name = "qwen3-thinking", .bos = "", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>"},
     .text =
         NO_TOOLS
         QWEN3
         "{{- \"<think>\\n\" -}}\n"
         "{%- endif -%}\n"},
    {.name = "gemma", .bos = "<bos>", .eos = "<end_of_turn>",
     .markers = {"<start_of_turn>", "<end_of_turn>"},
     .text =
         NO_TOOLS
         SYSTEM_FIRST
         "{{- bos_token -}}\n"
         "{%- for message in turns -%}\n"
         ALTERNATE
         "{{- \"<start_of_turn>\" + (\"model\" if message.role == \"assistant\" else message.role) + \"\\n\" -}}\n"
         "{%- if loop.first and system is defined %}{{ system + \"\\n\\n\" }}{% endif -%}\n"
         "{{- message.content | trim + \"<end_of_turn>\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<start_of_turn>model\\n\" }}{% endif -%}\n"},
    {.name = "phi3", .bos = "<s>", .eos = "<|endoftext|>",
     .markers = {"<|system|>", "<|user|>", "<|assistant|>", "<|end|>"},
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{{- \"<|\" + message.role + \"|>\\n\" + message.content + \"<|end|>\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{{- \"<|assistant|>\\n\" if add_generation_prompt else eos_token -}}\n"},
    {.name = "phi4", .bos = "<|endoftext|>", .eos = "<|im_end|>",
     .markers = {"<|im_start|>", "<|im_end|>", "<|im_sep|>"},
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{{- \"<|im_start|>\" + message.role + \"<|im_sep|>\" + message.content + \"<|im_end|>\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|im_start|>assistant<|im_sep|>\" }}{% endif -%}\n"},
    {.name = "zephyr", .bos = "<s>", .eos = "</s>",
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{{- \"<|\" + message.role + \"|>\\n\" + message.content + eos_token + \"\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|assistant|>\\n\" }}{% endif -%}\n"},
    {.name = "vicuna", .bos = "<s>", .eos = "</s>",
     .text =
         NO_TOOLS
         SYSTEM_FIRST
         "{{- bos_token -}}\n"
         "{%- if system is defined %}{{ system + \"\\n\\n\" }}{% endif -%}\n"
         "{%- for message in turns -%}\n"
         ALTERNATE
         "{{- \"USER: \" + message.content + \"\\n\" if message.role == \"user\" else \"ASSISTANT: \" + message.content + eos_token + \"\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"ASSISTANT:\" }}{% endif -%}\n"},
    {.name = "openchat", .bos = "<s>", .eos = "<|end_of_turn|>",
     .markers = {"<|end_of_turn|>"},
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- for message in messages -%}\n"
         "{{- \"GPT4 Correct \" + message.role.title() + \": \" + message.content + \"<|end_of_turn|>\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"GPT4 Correct Assistant:\" }}{% endif -%}\n"},
    {.name = "deepseek", .bos = "<｜begin▁of▁sentence｜>", .eos = "<｜end▁of▁sentence｜>",
     .markers = {"<｜end▁of▁sentence｜>"},
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- for message in messages -%}\n"
         "{%- if message.role == \"user\" -%}\n"
         "{{- \"User: \" + message.content + \"\\n\\n\" -}}\n"
         "{%- elif message.role == \"assistant\" -%}\n"
         "{{- \"Assistant: \" + message.content + eos_token -}}\n"
         "{%- else -%}\n"
         "{{- message.content + \"\\n\\n\" -}}\n"
         "{%- endif -%}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"Assistant:\" }}{% endif -%}\n"},
    {.name = "deepseek-r1", .bos = "<｜begin▁of▁sentence｜>", .eos = "<｜end▁of▁sentence｜>",
     .markers = {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- for message in messages -%}\n"
         "{%- if message.role == \"user\" -%}\n"
         "{{- \"<｜User｜>\" + message.content -}}\n"
         "{%- elif message.role == \"assistant\" -%}\n"
         "{{- \"<｜Assistant｜>\" + message.content.split(\"</think>\")[-1] + \"<｜end▁of▁sentence｜>\" -}}\n"
         "{%- else -%}\n"
         "{{- message.content -}}\n"
         "{%- endif -%}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<｜Assistant｜><think>\\n\" }}{% endif -%}\n"},
    {.name = "command-r", .bos = "<BOS_TOKEN>", .eos = "<|END_OF_TURN_TOKEN|>",
     .markers = {"<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"},
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- set names = {\"system\": \"SYSTEM\", \"user\": \"USER\", \"assistant\": \"CHATBOT\"} -%}\n"
         "{%- for message in messages -%}\n"
         "{{- \"<|START_OF_TURN_TOKEN|><|\" + names[message.role] + \"_TOKEN|>\" + message.content | trim + \"<|END_OF_TURN_TOKEN|>\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>\" }}{% endif -%}\n"},
    {.name = "granite", .bos = "<|end_of_text|>", .eos = "<|end_of_text|>",
     .markers = {"<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"},
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{{- \"<|start_of_role|>\" + message.role + \"<|end_of_role|>\" + message.content + \"<|end_of_text|>\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|start_of_role|>assistant<|end_of_role|>\" }}{% endif -%}\n"},
    {.name = "olmo2", .bos = "<|endoftext|>", .eos = "<|endoftext|>",
     .text =
         NO_TOOLS
         "{{- bos_token -}}\n"
         "{%- for message in messages -%}\n"
         "{{- \"<|\" + message.role + \"|>\\n\" + message.content -}}\n"
         "{{- (eos_token + (\"\" if loop.last else \"\\n\")) if message.role == \"assistant\" else \"\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|assistant|>\\n\" }}{% endif -%}\n"},
    {.name = "falcon3", .bos = "", .eos = "<|endoftext|>",
     .markers = {"<|system|>", "<|user|>", "<|assistant|>"},
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{{- \"<|\" + message.role + \"|>\\n\" + message.content -}}\n"
         "{{- (eos_token + (\"\" if loop.last else \"\\n\")) if message.role == \"assistant\" else \"\\n\" -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|assistant|>\\n\" }}{% endif -%}\n"},
    {.name = "exaone3", .bos = "[BOS]", .eos = "[|endofturn|]",
     .markers = {"[|endofturn|]", "[|system|]", "[|user|]", "[|assistant|]"},
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{%- if loop.first and message.role != \"system\" %}{{ \"[|system|][|endofturn|]\\n\" }}{% endif -%}\n"
         "{{- \"[|\" + message.role + \"|]\" + message.content + (\"\\n\" if message.role == \"user\" else \"[|endofturn|]\\n\") -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"[|assistant|]\" }}{% endif -%}\n"},
    {.name = "glm4", .bos = "", .eos = "<|endoftext|>",
     .markers = {"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>"},
     .text =
         NO_TOOLS
         "{{- \"[gMASK]<sop>\" -}}\n"
         "{%- for message in messages -%}\n"
         "{{- \"<|\" + message.role + \"|>\\n\" + message.content -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"<|assistant|>\" }}{% endif -%}\n"},
    {.name = "solar", .bos = "<s>", .eos = "</s>",
     .text =
         NO_TOOLS
         "{%- for message in messages -%}\n"
         "{{- \"### \" + message.role.title() + \":\\n\" + message.content + (\"\" if loop.last and message.role == \"assistant\" else \"\\n\\n\") -}}\n"
         "{%- endfor -%}\n"
         "{%- if add_generation_prompt %}{{ \"### Assistant:\\n\" }}{% endif -%}\n"},
    {0},
};
// clang-format on

const sl_chat_builtin *sl_chat_builtin_find(const char *name) {
    for (const sl_chat_builtin *t = sl_chat_builtins; t->name; t++)
        if (!strcmp(t->name, name)) return t;
    return NULL;
}

const char *sl_chat_names(void) {
    return "llama2, llama3, llama3.1, llama3.2, llama4, mistral-v0, mistral-v1, mistral-v2, mistral-v3, mistral-v3-tekken, "
           "mistral-v7, "
           "mistral-v7-tekken, chatml, smollm2, qwen2.5, qwen3, qwen3-no-think, qwen3-thinking, gemma, phi3, phi4, zephyr, "
           "vicuna, openchat, deepseek, deepseek-r1, command-r, granite, olmo2, falcon3, exaone3, glm4, solar";
}

void sl_chat_markers(void (*fn)(void *ctx, const char *marker), void *ctx) {
    // Other texts of this look, such as <|user|> and [INST], are tokens in some models and plain text in others.
    static const char *const markers[] = {"<|im_start|>",
                                          "<|im_end|>",
                                          "<|im_sep|>",
                                          "<|start_header_id|>",
                                          "<|end_header_id|>",
                                          "<|eot_id|>",
                                          "<|header_start|>",
                                          "<|header_end|>",
                                          "<|eot|>",
                                          "<start_of_turn>",
                                          "<end_of_turn>",
                                          "<|end_of_turn|>",
                                          "<｜User｜>",
                                          "<｜Assistant｜>",
                                          "<｜end▁of▁sentence｜>",
                                          "<|START_OF_TURN_TOKEN|>",
                                          "<|END_OF_TURN_TOKEN|>",
                                          "<|start_of_role|>",
                                          "<|end_of_role|>",
                                          "[|endofturn|]",
                                          "[gMASK]",
                                          "<sop>"};
    for (size_t i = 0; i < sizeof markers / sizeof *markers; i++) fn(ctx, markers[i]);
}
