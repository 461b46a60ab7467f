// tests/tokenizer/test_chat.c - chat templates: which texts are recognised, which prompts are written, what is refused.
#include "tokenizer/chat.h"
#include "tests/test.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_error err;

static const sl_message conversation[] = {
    {"system", "You are a helpful assistant", 27},
    {"user", "Hello", 5},
    {"assistant", "Hi there", 8},
    {"user", "Who are you", 11},
};

#define H(role) "<|start_header_id|>" role "<|end_header_id|>\n\n"
#define DATED(date) "<|begin_of_text|>" H("system") "Cutting Knowledge Date: December 2023\nToday Date: " date "\n\n"
#define TURNS3 H("user") "Hello<|eot_id|>" H("assistant") "Hi there<|eot_id|>" H("user") "Who are you<|eot_id|>" H("assistant")
#define CHATML                                                                                                                 \
    "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi " \
    "there<|im_end|>\n<|im_start|>user\nWho are you<|im_end|>\n<|im_start|>assistant\n"
static const struct {
    const char *name, *want;
} written[] = {
    {"llama3", "<|begin_of_text|>" H("system") "You are a helpful assistant<|eot_id|>" TURNS3},
    {"llama3.1", DATED("26 Jul 2024") "You are a helpful assistant<|eot_id|>" TURNS3},
    {"llama3.2", DATED("20 Feb 2025") "You are a helpful assistant<|eot_id|>" TURNS3},
    {"llama2",
     "<s>[INST] <<SYS>>\nYou are a helpful assistant\n<</SYS>>\n\nHello [/INST] Hi there </s><s>[INST] Who are you [/INST]"},
    {"mistral-v1", "<s> [INST] You are a helpful assistant\n\nHello [/INST] Hi there</s> [INST] Who are you [/INST]"},
    {"mistral-v3", "<s>[INST] Hello[/INST] Hi there</s>[INST] You are a helpful assistant\n\nWho are you[/INST]"},
    {"mistral-v3-tekken", "<s>[INST]Hello[/INST]Hi there</s>[INST]You are a helpful assistant\n\nWho are you[/INST]"},
    {"mistral-v7",
     "<s>[SYSTEM_PROMPT] You are a helpful assistant[/SYSTEM_PROMPT][INST] Hello[/INST] Hi there</s>[INST] Who are you[/INST]"},
    {"chatml", CHATML},
    {"qwen2.5", CHATML},
    {"qwen3", CHATML},
    {"qwen3-no-think", CHATML "<think>\n\n</think>\n\n"},
    {"qwen3-thinking", CHATML "<think>\n"},
};

static void expect(const char *name, const sl_message *m, int n, const char *date, const char *want) {
    sl_text out = {0};
    CHECK(sl_chat_find(name));
    CHECK_OK(sl_chat_render(sl_chat_find(name), m, n, date, &out, &err), err);
    if (strcmp(out.data, want)) FAIL("%s: got \"%s\", expected \"%s\"", name, out.data, want);
    sl_text_free(&out);
}

static void standard_conversation(void) {
    for (size_t i = 0; i < sizeof written / sizeof *written; i++)
        expect(written[i].name, conversation, 4, strcmp(written[i].name, "llama3.2") ? NULL : "20 Feb 2025", written[i].want);
    expect("mistral-v0", conversation + 1, 3, NULL, "<s>[INST] Hello [/INST]Hi there</s>[INST] Who are you [/INST]");
    expect("qwen2.5", conversation + 1, 1, NULL,
           "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful "
           "assistant.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    expect("qwen3", conversation + 1, 1, NULL, "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n");
    static const sl_message thoughts[] = {
        {"user", "Hello", 5}, {"assistant", "<think>\nWhy\0?\n</think>\n\nHi", 26}, {"user", "Bye", 3}};
    expect("qwen3", thoughts, 3, NULL,
           "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHi<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n"
           "<|im_start|>assistant\n");
    expect("llama3.1", conversation + 1, 1, NULL, DATED("26 Jul 2024") "<|eot_id|>" H("user") "Hello<|eot_id|>" H("assistant"));
    static const sl_message blanks[] = {
        {"user", "\xe2\x80\x83\xc2\xa0 a b\xc3\xa9 \n\xe3\x80\x80", 16}}; // em space, no-break space, ideographic space
    expect("llama3", blanks, 1, NULL, "<|begin_of_text|>" H("user") "a b\xc3\xa9<|eot_id|>" H("assistant"));
    for (size_t i = 0; i < sizeof written / sizeof *written; i++) CHECK(strstr(sl_chat_names(), written[i].name));
}

static void refused_orders(void) {
    static const char *const strict[] = {"llama2", "mistral-v0", "mistral-v1", "mistral-v3", "mistral-v3-tekken"};
    static const sl_message twice[] = {{"user", "a", 1}, {"user", "b", 1}}, odd[] = {{"tool", "a", 1}};
    for (int i = 0; i < 5; i++) {
        sl_text out = {0};
        CHECK_ERR(sl_chat_render(sl_chat_find(strict[i]), twice, 2, NULL, &out, &err), err, SL_ERR_ARG,
                  "expected \"assistant\"");
        sl_text_free(&out);
    }
    sl_text out = {0};
    CHECK_ERR(sl_chat_render(sl_chat_find("mistral-v0"), conversation, 4, NULL, &out, &err), err, SL_ERR_ARG, "system message");
    CHECK_ERR(sl_chat_render(sl_chat_find("mistral-v7"), odd, 1, NULL, &out, &err), err, SL_ERR_ARG, "\"tool\"");
    CHECK_ERR(sl_chat_render(sl_chat_find("qwen3"), odd, 1, NULL, &out, &err), err, SL_ERR_ARG, "\"tool\"");
    sl_text_free(&out);
}

static void write_file(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0);
    fclose(f);
}

static void remove_file(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    CHECK(!unlink(path));
}

static void loading(void) {
    static const char jinja[] =
        "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
        "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
    const sl_chat_template *t;
    CHECK_OK(sl_chat_load(&SL_FOLDER("models/tiny"), &t, &err), err);
    CHECK_STR(sl_chat_name(t), "llama3");
    CHECK_ERR(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err, SL_ERR_UNSUPPORTED, "template_name");
    write_file("tokenizer_config.json", "{\"chat_template\":\"{{ bos_token }}hello\"}");
    CHECK_ERR(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err, SL_ERR_UNSUPPORTED, "llama3.1, llama3.2");
    json_t *list = json_pack("{s:[{s:s,s:s},{s:s,s:s}]}", "chat_template", "name", "tool_use", "template", "x", "name",
                             "default", "template", jinja);
    char *text = json_dumps(list, 0);
    write_file("tokenizer_config.json", text);
    CHECK_OK(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err);
    CHECK_STR(sl_chat_name(t), "chatml");
    write_file("chat_template.jinja", "something else");
    CHECK_ERR(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err, SL_ERR_UNSUPPORTED, "not one that Sleigh knows");
    write_file("chat_template.jinja", jinja);
    CHECK_OK(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err);
    remove_file("chat_template.jinja");
    CHECK(!json_object_set_new(list, "chat_template", json_sprintf("%s", jinja)));
    free(text);
    text = json_dumps(list, 0);
    write_file("tokenizer_config.json", text);
    write_file("chat_template.json", "{\"chat_template\":null}"); // null: the loader reads the next file
    CHECK_OK(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err);
    CHECK_STR(sl_chat_name(t), "chatml");
    write_file("chat_template.json", "{\"chat_template\":[{\"name\":\"default\",\"template\":null}]}");
    CHECK_OK(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err);
    write_file("chat_template.json", "{\"chat_template\":7}");
    CHECK_ERR(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err, SL_ERR_FORMAT, "chat_template.json: the chat template is not a string");
    CHECK(!json_object_set_new(list, "chat_template", json_stringn("{{ bos_token }}\0x", 17)));
    char *nul = json_dumps(list, 0); // only the part before the NUL would be read, and it is not a template
    write_file("chat_template.json", nul);
    CHECK_ERR(sl_chat_load(&SL_FOLDER(test_tmp()), &t, &err), err, SL_ERR_FORMAT, "without NUL");
    free(nul);
    free(text);
    json_decref(list);
}

// Templates of other models that look like a known one, and other spellings of known ones. For each text, the prompts of Jinja
// 3.1 were compared with its prompts for the published template.
static void relatives(void) {
    static const struct {
        const char *jinja, *like; // like: the known template that writes the same prompts; NULL: none
    } texts[] = {
        // Llama-3-Instruct
        {"{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + "
         "message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% "
         "set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
         "llama3"},
        // ChatML over several lines, one string
        {"{% for message in messages -%}\n    {# a turn #}\n    {{- \"<|im_start|>\" + message.role + \"\\n\" + "
         "message.content + \"<|im_end|>\\n\" -}}\n{% endfor %}\n{%- if add_generation_prompt -%}\n    {{- "
         "'<|im_start|>assistant\\n' -}}\n{%- endif %}\n",
         "chatml"},
        // Qwen2: a default system message
        {"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\\nYou are "
         "a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
         "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
         NULL},
        // ChatML with an empty line between turns
        {"{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' | trim + "
         "'\\n\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
         NULL},
        // ChatML with a BOS before it
        {"{{ bos_token }}{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
         "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
         NULL},
        // Mistral 7B v0.1: a blank after the reply
        {"{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
         "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
         "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' "
         "%}{{ message['content'] + eos_token + ' ' }}{% else %}{{ raise_exception('Only user and assistant roles are "
         "supported!') }}{% endif %}{% endfor %}",
         NULL},
        // Mistral: a blank before the reply
        {"{{ bos_token }}{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ "
         "raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}{% if "
         "message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}{% elif message['role'] == 'assistant' "
         "%}{{ ' ' + message['content'] + eos_token}}{% else %}{{ raise_exception('Only user and assistant roles are "
         "supported!') }}{% endif %}{% endfor %}",
         NULL},
        // Llama 3 with a default system message
        {"{% set loop_messages = messages %}{% if messages[0]['role'] != 'system' %}{{ bos_token + "
         "'<|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>' }}{% endif %}{% for message in loop_messages "
         "%}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + "
         "'<|eot_id|>' %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
         NULL},
        // Llama 3 without BOS
        {"{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
         "message['content'] | trim + '<|eot_id|>' %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
         NULL},
        // Llama 3 with the end of text after a finished conversation
        {"{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
         "message['content'] | trim + '<|eot_id|>' }}{% endfor %}{% if add_generation_prompt %}{{ "
         "'<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% else %}{{ eos_token }}{% endif %}",
         "llama3"},
    };
    const sl_chat_template *t;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        int rc = sl_chat_detect(texts[i].jinja, &t, &err);
        if (!texts[i].like) {
            if (!rc) FAIL("case %zu: recognised as %s, expected a refusal", i, sl_chat_name(t));
            CHECK(rc == SL_ERR_UNSUPPORTED && strstr(err.message, "not one that Sleigh knows"));
        } else {
            CHECK_OK(rc, err);
            CHECK_STR(sl_chat_name(t), texts[i].like);
        }
    }
    static const char *const broken[] = {
        "{% if", "{{ 'a }}", "{% if x %}", "{% endif %}", "{% for x in y %}{% endif %}", "{# a", "{% else %}{% elif a %}", ""};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++)
        CHECK_ERR(sl_chat_detect(broken[i], &t, &err), err, SL_ERR_UNSUPPORTED, "template_name");
    char deep[2001] = "";
    for (int i = 0; i < 200; i++) memcpy(deep + 10 * i, "{% if x %}", 11);
    CHECK_ERR(sl_chat_detect(deep, &t, &err), err, SL_ERR_UNSUPPORTED, "template_name");
}

// ---- tests/chat: our own spellings of the templates, with Jinja's prompts (scripts/make_chats.py) ----

#define CHATS "tests/chat/"
static const char *const known[] = {"llama2",     "llama3",     "llama3.1",          "llama3.2",       "mistral-v0",
                                    "mistral-v1", "mistral-v3", "mistral-v3-tekken", "mistral-v7",     "chatml",
                                    "qwen2.5",    "qwen3",      "qwen3-first",       "qwen3-thinking", "qwen3-no-think"};
enum { N_KNOWN = sizeof known / sizeof *known };

static void read_template(const char *name, char *text, size_t size) {
    char path[128];
    snprintf(path, sizeof path, CHATS "%s.jinja", name);
    FILE *f = fopen(path, "rb");
    if (!f) FAIL("%s: cannot be opened", path);
    size_t n = fread(text, 1, size - 1, f);
    CHECK(n > 0 && n < size - 1);
    text[n] = 0;
    fclose(f);
}

static const char *template_of_file(const char *name) { // qwen3-first: the text of Qwen3's first release
    return strcmp(name, "qwen3-first") ? name : "qwen3";
}

static void own_templates(void) {
    static char text[8192];
    for (int i = 0; i < N_KNOWN; i++) {
        const sl_chat_template *t;
        if (!strcmp(known[i], "qwen3-no-think")) continue; // it has the text of qwen3, and only the user can choose it
        read_template(known[i], text, sizeof text);
        CHECK_OK(sl_chat_detect(text, &t, &err), err);
        CHECK_STR(sl_chat_name(t), template_of_file(known[i]));
    }
}

static void own_changes(void) { // a text that writes other prompts must not be recognised
    static char text[8192], changed[8192];
    FILE *f = fopen(CHATS "changes.jsonl", "r");
    int n = 0, n_same = 0;
    CHECK(f != NULL);
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(row), n++) {
        const char *name = json_string_value(json_object_get(row, "template")),
                   *from = json_string_value(json_object_get(row, "from")), *to = json_string_value(json_object_get(row, "to"));
        int same = json_is_true(json_object_get(row, "same"));
        const sl_chat_template *t;
        read_template(name, text, sizeof text);
        const char *at = strstr(text, from);
        if (!at) FAIL("%s: no %s", name, from);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
        int rc = sl_chat_detect(changed, &t, &err);
        if (same ? rc || strcmp(sl_chat_name(t), template_of_file(name)) : rc != SL_ERR_UNSUPPORTED)
            FAIL("%s with %s: %s", name, to, rc ? err.message : sl_chat_name(t));
        n_same += same;
    }
    fclose(f);
    CHECK(n >= 30 && n_same >= 8);
}

static int read_messages(const json_t *list, sl_message m[16]) {
    int n = (int)json_array_size(list);
    CHECK(n <= 16);
    for (int i = 0; i < n; i++) {
        const json_t *c = json_object_get(json_array_get(list, i), "content");
        m[i] = (sl_message){json_string_value(json_object_get(json_array_get(list, i), "role")), json_string_value(c),
                            json_string_length(c)};
    }
    return n;
}

static void expect_refused(const char *name, const sl_message *m, int n) {
    sl_text out = {0};
    if (sl_chat_render(sl_chat_find(name), m, n, NULL, &out, &err) != SL_ERR_ARG)
        FAIL("%s writes \"%s\", expected a refusal", name, out.data);
    sl_text_free(&out);
}

static void own_rows(void) {
    FILE *f = fopen(CHATS "rows.jsonl", "r");
    int n = 0, n_refused = 0, seen[N_KNOWN] = {0};
    CHECK(f != NULL);
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(row)) {
        const json_t *prompts = json_object_get(row, "prompts"), *refused = json_object_get(row, "refused");
        sl_message m[16];
        int n_messages = read_messages(json_object_get(row, "messages"), m);
        for (size_t i = 0; i < json_array_size(prompts); i++) {
            const json_t *p = json_array_get(prompts, i);
            const char *names = json_string_value(json_object_get(p, "template")),
                       *date = json_string_value(json_object_get(p, "date"));
            for (int k = 0; k < N_KNOWN; k++) {
                const char *at = strstr(names, known[k]), *end = at ? at + strlen(known[k]) : NULL;
                if (!at || (at > names && at[-1] != ' ') || (*end && *end != ' ')) continue;
                expect(template_of_file(known[k]), m, n_messages, date, json_string_value(json_object_get(p, "expected")));
                seen[k]++, n++;
            }
        }
        for (size_t i = 0; i < json_array_size(refused); i++, n_refused++)
            expect_refused(template_of_file(json_string_value(json_array_get(refused, i))), m, n_messages);
    }
    fclose(f);
    for (int k = 0; k < N_KNOWN; k++) CHECK(seen[k] >= 4);
    CHECK(n > 350 && n_refused > 30);
}

// ---- ../shared: published templates, with Jinja's prompts ----

static json_t *next_row(FILE *f) {
    return json_loadf(f, JSON_DISABLE_EOF_CHECK | JSON_ALLOW_NUL, NULL);
}

static FILE *open_rows(const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/tokenizers/%s", test_shared(), name);
    FILE *f = fopen(path, "r");
    if (!f) FAIL("%s: cannot be opened", path);
    return f;
}

static const char *our_name(const char *theirs) { // NULL: Sleigh must refuse it
    if (!strcmp(theirs, "llama2-chat")) return "llama2";
    if (!strcmp(theirs, "mistral-nemo-2407")) return "mistral-v3-tekken";
    return sl_chat_find(theirs) ? theirs : NULL;
}

static void published_templates(void) {
    FILE *f = open_rows("chat-templates.jsonl");
    int n = 0;
    for (json_t *row; (row = next_row(f)); n++, json_decref(row)) {
        const char *theirs = json_string_value(json_object_get(row, "template")), *want = our_name(theirs);
        const sl_chat_template *t;
        int rc = sl_chat_detect(json_string_value(json_object_get(row, "jinja")), &t, &err);
        if (!want && rc != SL_ERR_UNSUPPORTED) FAIL("%s: recognised as %s, expected a refusal", theirs, sl_chat_name(t));
        if (want && (rc || strcmp(sl_chat_name(t), want)))
            FAIL("%s: %s, expected %s", theirs, rc ? err.message : sl_chat_name(t), want);
    }
    CHECK(n > 10);
    fclose(f);
}

// Makes one change to a published text. The text stays recognised if the change is in a branch that our prompts never take.
static void changed_templates(void) {
    static const struct {
        const char *name, *from, *to;
        int stays;
    } changes[] = {
        {"llama3.1", "Environment: ipython\\n", "Environment: python\\n", 1},
        {"llama3.1", "\"Do not use variables.\\n\\n\"", "\"Use no variables.\\n\\n\"", 1},
        {"llama3.1", "\"Today Date: \"", "\"Date: \"", 0},
        {"llama3.1", "\"26 Jul 2024\"", "\"26 July 2024\"", 0},
        {"llama3.1", "{%- set system_message = \"\" %}", "{%- set system_message = \"Be brief.\" %}", 0},
        {"llama3.1", "messages[0]['content']|trim", "messages[0]['content']", 0},
        {"llama3.1", "{{- \"Cutting Knowledge", "{{- \"detailed thinking off\\nCutting Knowledge", 0},
        {"llama3.2", "strftime_now(\"%d %b %Y\")", "strftime_now(\"%d %B %Y\")", 0},
        {"llama3.2", "{{- system_message }}", "{{- system_message + \"\\n\" }}", 0},
        {"qwen2.5", "You may call one or more functions", "Functions may be called", 1},
        {"qwen2.5", "{%- for message in messages %}", "{{- \"\\n\" }}{%- for message in messages %}", 0},
        {"qwen2.5", "not loop.first", "not loop.last", 0},
        {"mistral-v3", "loop.last and system_message", "loop.first and system_message", 0},
        {"mistral-v3-tekken", "message[\"content\"] + eos_token", "message[\"content\"] + \" \" + eos_token", 0},
        {"mistral-v7", "' ' + message['content'] + eos_token", "message['content'] + eos_token", 0},
        {"mistral-v1", "' ' + message['content'] + eos_token", "' ' + message['content'] + eos_token + ' '", 0},
        {"llama2-chat", "' ' + eos_token", "eos_token", 0},
    };
    FILE *f = open_rows("chat-templates.jsonl");
    size_t n = 0;
    for (json_t *row; (row = next_row(f)); json_decref(row)) {
        const char *name = json_string_value(json_object_get(row, "template")),
                   *jinja = json_string_value(json_object_get(row, "jinja"));
        for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
            if (strcmp(changes[i].name, name)) continue;
            static char text[8192];
            const char *at = strstr(jinja, changes[i].from);
            const sl_chat_template *t;
            if (!at) FAIL("%s: no %s", name, changes[i].from);
            snprintf(text, sizeof text, "%.*s%s%s", (int)(at - jinja), jinja, changes[i].to, at + strlen(changes[i].from));
            int rc = sl_chat_detect(text, &t, &err);
            if (changes[i].stays ? rc || strcmp(sl_chat_name(t), our_name(name)) : rc != SL_ERR_UNSUPPORTED)
                FAIL("%s with %s: %s", name, changes[i].to, rc ? err.message : sl_chat_name(t));
            n++;
        }
    }
    CHECK_INT(n, sizeof changes / sizeof *changes);
    fclose(f);
}

static void rendered_rows(void) {
    FILE *f = open_rows("chat.jsonl");
    int n = 0;
    for (json_t *row; (row = next_row(f)); json_decref(row)) {
        const char *name = our_name(json_string_value(json_object_get(row, "template")));
        if (!name || strcmp(json_string_value(json_object_get(row, "engine")), "jinja")) continue;
        const json_t *list = json_object_get(row, "messages"),
                     *date = json_object_get(json_object_get(row, "vars"), "date_string");
        sl_message m[16];
        int n_messages = read_messages(list, m);
        expect(name, m, n_messages, date ? json_string_value(date) : "26 Jul 2024",
               json_string_value(json_object_get(row, "expected")));
        n++;
    }
    CHECK(n >= 40);
    fclose(f);
}

static const test_case cases[] = {
    {"standard-conversation", 0, standard_conversation},
    {"refused-orders", 0, refused_orders},
    {"loading", 0, loading},
    {"relatives", 0, relatives},
    {"own-templates", 0, own_templates},
    {"own-changes", 0, own_changes},
    {"own-rows", 0, own_rows},
    {"published-templates", NEEDS_SHARED, published_templates},
    {"changed-templates", NEEDS_SHARED, changed_templates},
    {"rendered-rows", NEEDS_SHARED, rendered_rows},
    {0},
};
const test_suite suite_chat = {"chat", cases};
