// tests/fuzz/fuzz_prompts.c - chat templates, pasted texts, and files of conversations, prompts and questions.
#include "cli/chat/pastes.h"
#include "cli/chat/messages_file.h"
#include "cli/eval/eval_records.h"
#include "cli/records.h"
#include "tests/fuzz/fuzz.h"
#include "tokenizer/chat/chat.h"
#include "tokenizer/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

// ---- chat ----

// What every prompt promises: spans in ascending order within the text.
static void check_prompt(const sl_prompt *p) {
    size_t end = 0;
    for (size_t i = 0; i < p->n_plain; i++) {
        FUZZ_CHECK(p->plain[i].from >= end && p->plain[i].from < p->plain[i].to && p->plain[i].to <= p->text.n, "a span");
        end = p->plain[i].to;
    }
}

static void render(const sl_chat_template *t, const json_t *messages, const json_t *tools) {
    sl_prompt p = {0};
    sl_error err = {0};
    FUZZ_CHECK(messages != NULL, "memory");
    if (fuzz_ok(sl_chat_render(t, NULL, &(sl_chat_request){.messages = messages, .tools = tools}, &p, &err), &err))
        check_prompt(&p);
    sl_prompt_free(&p);
}

// Renders messages that contain the input, with built-in templates.
static void render_all(const char *data, size_t n) {
    static const char *const names[] = {"llama2", "llama3.1", "mistral-v3", "qwen3", "gemma", "command-r"};
    const char *mid = memchr(data, '\n', n);
    size_t first = mid ? (size_t)(mid - data) : n / 2;
    const sl_message m[] = {
        {"system", data, first}, {"user", data, n}, {"assistant", data + first, n - first}, {"user", data, n}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sl_chat_template *t = NULL;
        json_t *messages = sl_chat_messages(m + (n & 1), 4 - (int)(n & 1));
        sl_error err = {0};
        FUZZ_CHECK(!sl_chat_load(&SL_FOLDER(fuzz_dir()), names[i], &t, &err), err.message);
        render(t, messages, NULL);
        json_decref(messages);
        sl_chat_template_free(t);
    }
}

void fuzz_chat(const char *data, size_t n) {
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json", "chat_template.json",
                                        "special_tokens_map.json", NULL};
    sl_chat_template *t = NULL;
    sl_error err = {0};
    fuzz_files(data, n, names[0], names);
    if (fuzz_ok(sl_chat_load(&SL_FOLDER(fuzz_dir()), NULL, &t, &err), &err)) {
        const sl_message m[] = {{"user", "Hello <|x|>", 11}, {"assistant", data, n}, {"user", "\xc3\xa9", 2}};
        json_t *messages = sl_chat_messages(m, 3),
               *tools = json_pack("[{s:{s:s,s:{s:[s,i,f,b,n]}}}]", "function", "name", "f", "parameters", "a", "b", 1, 0.5, 1);
        render(t, messages, tools);
        json_decref(messages);
        json_decref(tools);
    }
    sl_chat_template_free(t);
    fuzz_remove_files(names);
    if (n && data[0] != '{') render_all(data, n);
}

// An expression language: a template that sees values of every type. The limits are low, because libFuzzer counts time and
// memory.
void fuzz_jinja(const char *data, size_t n) {
    static const char values[] = "{\"s\":\"Hello, <|World|>\",\"u\":\"h\xc3\xa9 \xe6\x97\xa5 "
                                 "\xf0\x9f\x98\x80\",\"n\":5,\"f\":2.5,\"l\":[3,1,2],\"t\":true,\"x\":null,"
                                 "\"d\":{\"b\":1,\"a\":[1,{\"c\":\"d\"}],\"role\":\"user\"},\"m\":[{\"role\":\"user\","
                                 "\"content\":\"Hi\"},{\"role\":\"assistant\"}]}";
    json_t *variables = json_loads(values, 0, NULL);
    sl_jinja *t = NULL;
    sl_jinja_output out = {0};
    sl_error err = {0};
    FUZZ_CHECK(variables != NULL, "memory");
    if (fuzz_ok(sl_jinja_parse("input", data, n, &t, &err), &err)) {
        const sl_jinja_input in = {.marked = variables, .limits = {.most_steps = 200000, .most_bytes = 64 << 20}};
        if (fuzz_ok(sl_jinja_render(t, &in, &out, &err), &err))
            for (size_t i = 0; out.marks && i < out.text.n; i++) FUZZ_CHECK(out.marks[i] <= 1, "a mark");
    }
    sl_jinja_output_free(&out);
    sl_jinja_free(t);
    json_decref(variables);
}

// ---- conversations ----

// A paste comes out of its label unchanged.
static void paste(const char *data, size_t n) {
    cli_pastes pastes = {0};
    sl_text text = {0}, out = {0};
    sl_error err = {0};
    const char *label;
    FUZZ_CHECK(!sl_text_append(&text, data, n, &err), "memory");
    cli_paste_clean(&text);
    FUZZ_CHECK(!memchr(text.data, '\r', text.n) && strlen(text.data) == text.n, text.data);
    size_t size = text.n;
    FUZZ_CHECK(!cli_pastes_add(&pastes, &text, &label, &err), "memory");
    FUZZ_CHECK(cli_pastes_label_at_end(&pastes, label, strlen(label)) == strlen(label), label);
    FUZZ_CHECK(!cli_pastes_expand(&pastes, label, &out, &err), "memory");
    FUZZ_CHECK(out.n == size && !memcmp(out.data, pastes.items[0].text.data, size), out.data);
    sl_text_free(&out);
    cli_pastes_clear(&pastes);
}

// A file of messages, and what the program writes for it.
void fuzz_conversation(const char *data, size_t n) {
    static const char name[] = "conversation.json";
    sl_messages turns = {0}, again = {0};
    sl_error err = {0};
    paste(data, n);
    fuzz_write(name, data, n);
    if (fuzz_ok(cli_messages_read(fuzz_path(name), &turns, &err), &err)) {
        FUZZ_CHECK(!cli_messages_write(fuzz_path(name), &turns, &err), err.message);
        FUZZ_CHECK(!cli_messages_read(fuzz_path(name), &again, &err), err.message);
        FUZZ_CHECK(turns.n == again.n, "another number of messages");
        for (int i = 0; i < turns.n; i++) {
            const sl_message *a = &turns.items[i], *b = &again.items[i];
            FUZZ_CHECK(a->role == b->role && a->n == b->n && !memcmp(a->content, b->content, a->n), "a message");
        }
        sl_messages_clear(&again);
    }
    sl_messages_clear(&turns);
    fuzz_remove(name);
}

// ---- prompts ----

static void tokenize(cli_records *r, const sl_tokenizer *tok, const json_t *record) {
    sl_ids ids = {0};
    sl_error err = {0};
    int n_shared;
    if (fuzz_ok(cli_records_tokenize(r, tok, record, &ids, &n_shared, &err), &err))
        FUZZ_CHECK(n_shared >= 0 && (size_t)n_shared <= ids.n, "what context and question share");
    sl_ids_free(&ids);
}

static void read_prompts(const sl_tokenizer *tok, int plain) {
    cli_records r;
    json_t *record;
    sl_error err = {0};
    int n, n_read = 0;
    FUZZ_CHECK(!cli_records_open(&r, fuzz_path("prompts"), plain, &err), err.message);
    if (fuzz_ok(cli_records_check(&r, &n, &err), &err)) {
        for (; fuzz_ok(cli_records_next(&r, &record, &err), &err) && record; n_read++) {
            const char *attn = cli_record_attn(record);
            FUZZ_CHECK(!attn || *attn, "attn");
            cli_record_sequence(record, 0, n_read);
            tokenize(&r, tok, record);
            json_decref(record);
        }
        FUZZ_CHECK(n_read == n, "the number of lines");
    }
    cli_records_close(&r);
}

void fuzz_jsonl(const char *data, size_t n) {
    static sl_tokenizer *tok;
    sl_error err = {0};
    if (!tok) FUZZ_CHECK(!sl_tokenizer_load(&SL_FOLDER("tests/vocabularies/bpe"), &tok, &err), err.message);
    fuzz_write("prompts", data, n);
    read_prompts(tok, 0);
    read_prompts(tok, 1);
    fuzz_remove("prompts");
}

// ---- questions ----

static void check_item(const eval_item *item) {
    char extracted[EVAL_EXTRACT];
    FUZZ_CHECK(item->n_predict > 0 && item->grader != GRADE_NONE && eval_grader_name(item->grader), "an item");
    FUZZ_CHECK(json_array_size(item->references) > 0, "references");
    for (size_t i = 0; i < json_array_size(item->references); i++) {
        const json_t *text = json_array_get(item->references, i);
        FUZZ_CHECK(json_is_string(text) && json_string_length(text) > 0, "a reference");
        double score = eval_grade(item->grader, json_string_value(text), json_string_length(text), item->references, extracted);
        FUZZ_CHECK(score >= 0 && score <= 1 && memchr(extracted, 0, EVAL_EXTRACT), "a score");
    }
    const char *prompt = item->question.data ? item->question.data : "";
    double score = eval_grade(item->grader, prompt, item->question.n, item->references, extracted);
    FUZZ_CHECK(score >= 0 && score <= 1 && memchr(extracted, 0, EVAL_EXTRACT), "a score");
}

void fuzz_questions(const char *data, size_t n) {
    static const char *const procedures[] = {"gsm8k-boxed", "mmlu-boxed", "gsm8k", "mmlu"};
    const eval_procedure *procedure = n % 8 < 4 ? eval_procedure_find(procedures[n % 8]) : NULL;
    eval_records r;
    sl_error err = {0};
    fuzz_write("questions.jsonl", data, n);
    eval_grader grader = procedure ? procedure->grader : GRADE_NONE;
    if (fuzz_ok(eval_records_read(fuzz_path("questions.jsonl"), grader, procedure, -1, &r, &err), &err)) {
        FUZZ_CHECK(r.n > 0, "no questions");
        for (int i = 0; i < r.n; i++) {
            FUZZ_CHECK(r.at[i].task && r.at[i].text.n_items == 1 && r.at[i].text.items[0].question.n > 0, "a question");
            check_item(r.at[i].text.items);
        }
        eval_records_free(&r);
    }
    fuzz_remove("questions.jsonl");
}
