// tests/tokenizer/test_chat_mistral.c - prompts of Mistral's own folders have the ids of mistral-common
// (scripts/goldens/make_mistral_chats.py).
#include "tests/support/venv.h"
#include "tests/test.h"
#include "tokenizer/chat/chat.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ROWS "tests/goldens/mistral_chats.jsonl"

static sl_error err;

static const struct {
    const char *file, *name, *template;
} files[] = {
    {"tokenizer.model.v1", "tokenizer.model.v1", "mistral-v1"},
    {"mistral_instruct_tokenizer_240216.model.v2", "tokenizer.model.v2", "mistral-v2"},
    {"mistral_instruct_tokenizer_240323.model.v3", "tokenizer.model.v3", "mistral-v3"},
    {"mistral_instruct_tokenizer_241114.model.v7", "tokenizer.model.v7", "mistral-v7"},
    {"mistral_instruct_tokenizer_241114.model.v7m1", "tokenizer.model.v7m1", "mistral-v7"},
    {"tekken_240718.json", "tekken.json", "mistral-v3-tekken"},
    {"tekken_240911.json", "tekken.json", "mistral-v3-tekken"},
};

// A folder as Mistral ships it: a tokenizer, and no template.
static const char *make_folder(int i) {
    static char dir[512];
    char to[600], from[1200];
    snprintf(dir, sizeof dir, "%s/%d", test_tmp(), i);
    snprintf(to, sizeof to, "%s/%s", dir, files[i].name);
    snprintf(from, sizeof from, "%s/%s", venv_file(VENV_MISTRAL), files[i].file);
    CHECK(!mkdir(dir, 0777) && !symlink(from, to));
    return dir;
}

static void expect_ids(const char *file, int row, const sl_ids *ids, const json_t *want) {
    size_t n = json_array_size(want), i = 0;
    while (i < n && i < ids->n && ids->data[i] == json_integer_value(json_array_get(want, i))) i++;
    if (i < n || i < ids->n)
        FAIL("%s, line %d: id %zu is %d, expected %lld (%zu ids, expected %zu)", file, row, i, i < ids->n ? ids->data[i] : -1,
             i < n ? json_integer_value(json_array_get(want, i)) : -1, ids->n, n);
}

static int check_file(int k) {
    const char *dir = make_folder(k);
    sl_tokenizer *tok = NULL;
    sl_chat_template *t = NULL;
    int n = 0, line = 1;
    CHECK_OK(sl_tokenizer_load(&SL_FOLDER(dir), &tok, &err), err);
    CHECK_OK(sl_chat_load(&SL_FOLDER(dir), NULL, &t, &err), err);
    CHECK_STR(sl_chat_name(t), files[k].template);
    CHECK_INT(sl_chat_end_of_turn(t, tok), sl_tokenizer_eos(tok));
    FILE *f = fopen(ROWS, "r");
    CHECK(f != NULL);
    for (json_t *row; (row = json_loadf(f, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(row), line++) {
        const json_t *want = json_object_get(json_object_get(row, "ids"), files[k].file);
        const sl_chat_request r = {.messages = json_object_get(row, "messages"), .tools = json_object_get(row, "tools")};
        sl_prompt p = {0};
        sl_ids ids = {0};
        if (json_is_null(want)) continue; // mistral-common's rules for messages are stricter than the prompt's form
        int rc = sl_chat_render(t, tok, &r, &p, &err);
        if (!rc) rc = sl_chat_tokenize(t, tok, &p, &ids, &err);
        if (rc) FAIL("%s, line %d: %s", files[k].file, line, err.message);
        expect_ids(files[k].file, line, &ids, want);
        sl_prompt_free(&p);
        sl_ids_free(&ids);
        n++;
    }
    fclose(f);
    sl_chat_template_free(t);
    sl_tokenizer_free(tok);
    return n;
}

static void sentencepiece(void) {
    int n = 0;
    venv_file(VENV_MISTRAL);
    for (int k = 0; k < 5; k++) n += check_file(k);
    CHECK(n >= 60);
}

static void tekken(void) {
    int n = 0;
    venv_file(VENV_MISTRAL);
    for (int k = 5; k < 7; k++) n += check_file(k);
    CHECK(n >= 24);
}

static const test_case cases[] = {
    {"sentencepiece", 0, sentencepiece},
    {"tekken", 0, tekken},
    {0},
};
extern const test_suite suite_chat_mistral;
const test_suite suite_chat_mistral = {"chat_mistral", cases};
