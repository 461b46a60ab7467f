// tests/fuzz/fuzz_prompts.c - chat templates, pasted texts, and files of conversations, prompts and questions.
#include "engine/cli/chat/pastes.h"
#include "engine/cli/chat/turns.h"
#include "engine/cli/eval/eval_records.h"
#include "engine/cli/records.h"
#include "tests/fuzz/fuzz.h"
#include "tokenizer/chat.h"
#include "tokenizer/jinja.h"

#include <stdlib.h>
#include <string.h>

// ---- chat ----

static void render(const sl_chat_template *t, const sl_message *m, int n) {
    sl_text text = {0};
    sl_error err = {0};
    fuzz_ok(sl_chat_render(t, m, n, "1 Jan 2025", &text, &err), &err);
    sl_text_free(&text);
}

// Renders messages that contain the input, with every template.
static void render_all(const char *data, size_t n) {
    static const char *const names[] = {"llama2",     "llama3",     "llama3.1",       "llama3.2",          "mistral-v0",
                                        "mistral-v1", "mistral-v3", "mistral-v7",     "mistral-v3-tekken", "chatml",
                                        "qwen2.5",    "qwen3",      "qwen3-no-think", "qwen3-thinking"};
    const char *mid = memchr(data, '\n', n);
    size_t first = mid ? (size_t)(mid - data) : n / 2;
    const sl_message m[] = {
        {"system", data, first}, {"user", data, n}, {"assistant", data + first, n - first}, {"user", data, n}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const sl_chat_template *t = sl_chat_find(names[i]);
        FUZZ_CHECK(t != NULL, names[i]);
        render(t, m + (n & 1), 4 - (int)(n & 1));
        render(t, m, (int)(n % 5));
    }
}

void fuzz_chat(const char *data, size_t n) {
    static const char *const names[] = {"chat_template.jinja", "tokenizer_config.json", "chat_template.json", NULL};
    const sl_chat_template *t = NULL;
    sl_error err = {0};
    sl_text form = {0};
    char *jinja = strndup(data, n);
    FUZZ_CHECK(jinja != NULL, "memory");
    fuzz_ok(sl_jinja_reduce(jinja, &form, &err), &err);
    sl_text_free(&form);
    free(jinja);
    err = (sl_error){0};
    fuzz_files(data, n, names[0], names);
    if (fuzz_ok(sl_chat_load(&SL_FOLDER(fuzz_dir()), &t, &err), &err)) FUZZ_CHECK(t && sl_chat_find(sl_chat_name(t)) == t, "a template");
    if (n && data[0] != '{') render_all(data, n);
    fuzz_remove_files(names);
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
    chat_turns turns = {0}, again = {0};
    sl_error err = {0};
    paste(data, n);
    fuzz_write(name, data, n);
    if (fuzz_ok(chat_turns_read(fuzz_path(name), &turns, &err), &err)) {
        FUZZ_CHECK(!chat_turns_write(fuzz_path(name), &turns, &err), err.message);
        FUZZ_CHECK(!chat_turns_read(fuzz_path(name), &again, &err), err.message);
        FUZZ_CHECK(turns.n == again.n, "another number of messages");
        for (int i = 0; i < turns.n; i++) {
            const chat_turn *a = &turns.items[i], *b = &again.items[i];
            FUZZ_CHECK(a->role == b->role && a->text.n == b->text.n && !memcmp(a->text.data, b->text.data, a->text.n),
                       "a message");
        }
        chat_turns_clear(&again);
    }
    chat_turns_clear(&turns);
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
