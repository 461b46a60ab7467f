// tests/server/test_serve_slots.c - POST /slots/ID: prompts saved, restored in another server, and erased; with the bits of a
// prompt alone. Then every refusal.
#include "tests/server/serve_fixture.h"
#include "tests/support/models.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { N = 700, N_LONGER = 760, PAGE = 256 };

static const char sparse[] = "vertical-slash:columns=20:slashes=40";

static long long integer(const json_t *v, const char *key) {
    const json_t *n = json_object_get(v, key);
    if (!json_is_integer(n)) FAIL("no integer %s in %s", key, json_dumps(v, JSON_ENCODE_ANY));
    return json_integer_value(n);
}

static server_settings with_files(void) {
    return (server_settings){.slot_save_path = test_tmp(), .n_sequences = 2};
}

static const int32_t *prompt_ids(void) {
    static int32_t ids[N_LONGER];
    int32_t *made = test_ids(N_LONGER, 900, test_seed + 3);
    memcpy(ids, made, sizeof ids);
    free(made);
    return ids;
}

// Completes the first n ids. more: further fields, with a comma before them. Returns the cached tokens.
static long long complete(int n, const char *more, char hash[24]) {
    char body[16384];
    const int32_t *ids = prompt_ids();
    int at = snprintf(body, sizeof body,
                      "{\"max_tokens\": 3, \"seed\": 5, \"temperature\": 0, \"ignore_eos\": true%s, \"prompt\": [", more);
    for (int i = 0; i < n; i++) at += snprintf(body + at, sizeof body - (size_t)at, "%s%d", i ? "," : "", ids[i]);
    snprintf(body + at, sizeof body - (size_t)at, "]}");
    json_t *usage = json_object_get(server_post("/v1/completions", 200, body), "usage");
    const json_t *answers = json_object_get(json_object_get(usage, "attention"), "answers");
    if (hash) snprintf(hash, 24, "%s", json_string_value(json_object_get(json_array_get(answers, 0), "logits_hash")));
    return integer(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

// The hash of the same prompt in a server without a cached row. The server must run.
static void check_alone(int n, const char *prefill, const char *hash) {
    char want[24];
    server_question q = {.ids = prompt_ids(), .n = n, .max_tokens = 3, .prefill = prefill, .seed = 5};
    q.sampling = sl_model_sampling(server_model());
    q.sampling.temp = 0;
    sl_logit_bias bias[8];
    q.sampling.bias = bias;
    for (int id = 0; id < sl_model_n_vocab(server_model()) && q.sampling.n_bias < 8; id++)
        if (sl_model_is_eos(server_model(), id)) bias[q.sampling.n_bias++] = (sl_logit_bias){id, -INFINITY};
    snprintf(want, sizeof want, "%016llx", (unsigned long long)server_answer_alone(&q).hash);
    CHECK_STR(hash, want);
}

static json_t *act(int slot, const char *action, int status, const char *body) {
    char path[64];
    snprintf(path, sizeof path, "/slots/%d?action=%s", slot, action);
    return server_post(path, status, body);
}

static const char *message_of(const json_t *v) {
    return json_string_value(json_object_get(json_object_get(v, "error"), "message"));
}

// ---- the life of a file ----

static void save_and_restore(void) {
    server_settings o = with_files();
    char hash[24], want[24];
    struct stat st;
    server_start(&o);
    CHECK_INT(complete(N, ", \"id_slot\": 1, \"cache_prompt\": true", NULL), 0);
    json_t *saved = act(1, "save", 200, "{\"filename\": \"a prompt.bin\"}");
    CHECK_INT(integer(saved, "id_slot"), 1);
    CHECK_INT(integer(saved, "n_saved"), 2 * PAGE);
    CHECK(!stat(in_tmp("a prompt.bin"), &st) && integer(saved, "n_written") == st.st_size);
    CHECK_STR(json_string_value(json_object_get(saved, "filename")), "a prompt.bin");
    CHECK(json_real_value(json_object_get(json_object_get(saved, "timings"), "save_ms")) > 0);
    CHECK_INT(complete(N_LONGER, "", want), 2 * PAGE);
    server_stop();

    server_start(&o); // another server: only the new tokens are prefilled, and no bit changes
    json_t *restored = act(0, "restore", 200, "{\"filename\": \"a prompt.bin\"}");
    CHECK_INT(integer(restored, "n_restored"), 2 * PAGE);
    CHECK_INT(integer(restored, "n_read"), st.st_size);
    CHECK(json_real_value(json_object_get(json_object_get(restored, "timings"), "restore_ms")) > 0);
    server_wait("sleigh_kv_pages_cached", 2);
    CHECK_INT(complete(N_LONGER, ", \"id_slot\": 0", hash), 2 * PAGE);
    CHECK_STR(hash, want);
    check_alone(N_LONGER, NULL, hash);
    // the restored prompt can be saved and erased too
    CHECK_INT(integer(act(0, "save", 200, "{\"filename\": \"again\"}"), "n_saved"), 2 * PAGE);
    CHECK_INT(integer(act(0, "erase", 200, "{}"), "n_erased"), 2 * PAGE);
    CHECK_INT(integer(act(0, "erase", 200, ""), "n_erased"), 0);
    server_wait("sleigh_kv_pages_cached", 0);
    CHECK_INT(complete(N_LONGER, ", \"id_slot\": 0", hash), 0);
    CHECK_STR(hash, want);
    server_stop();
}

// A file keeps the methods of its prefill: only prompts with these methods find its rows.
static void sparse_prefill(void) {
    server_settings o = with_files();
    char more[128], hash[24];
    snprintf(more, sizeof more, ", \"attn_prefill\": \"%s\"", sparse);
    server_start(&o);
    complete(N, more, NULL); // without id_slot: the first free slot
    CHECK_INT(integer(act(0, "save", 200, "{\"filename\": \"sparse\"}"), "n_saved"), 2 * PAGE);
    server_stop();
    server_start(&o);
    CHECK_INT(integer(act(1, "restore", 200, "{\"filename\": \"sparse\"}"), "n_restored"), 2 * PAGE);
    CHECK_INT(complete(N_LONGER, "", NULL), 0); // dense
    CHECK_INT(complete(N_LONGER, more, hash), 2 * PAGE);
    check_alone(N_LONGER, sparse, hash);
    server_stop();
}

static void salts(void) {
    server_settings o = with_files();
    server_start(&o);
    complete(N, ", \"cache_salt\": \"one\"", NULL);
    act(0, "save", 200, "{\"filename\": \"salted\"}");
    act(0, "erase", 200, "{}");
    act(0, "restore", 200, "{\"filename\": \"salted\", \"cache_salt\": \"two\"}");
    CHECK_INT(complete(N, "", NULL), 0);
    CHECK_INT(complete(N, ", \"cache_salt\": \"one\"", NULL), 0);
    CHECK_INT(complete(N, ", \"cache_salt\": \"two\"", NULL), 2 * PAGE);
    server_stop();
}

// Pages that a longer prompt or a running answer needs stay.
static void erase_shared(void) {
    server_settings o = with_files();
    server_start(&o);
    complete(N, ", \"id_slot\": 0", NULL);
    complete(PAGE + 10, ", \"id_slot\": 1", NULL); // the first page is that of slot 0 too
    CHECK_INT(integer(act(1, "erase", 200, "{}"), "n_erased"), 0);
    CHECK_INT(complete(N, "", NULL), 2 * PAGE);
    CHECK_INT(integer(act(0, "erase", 200, "{}"), "n_erased"), 2 * PAGE);
    server_stop();
}

// A cache that running answers need has no room for a file; without them, older prompts make room.
static void no_room(void) {
    server_settings o = with_files();
    server_start(&o);
    complete(N, "", NULL);
    act(0, "save", 200, "{\"filename\": \"two-pages\"}");
    server_stop();
    o.n_ctx = o.kv_tokens = 3 * PAGE;
    server_start(&o);
    complete(600, ", \"cache_salt\": \"other\"", NULL); // its pages are in the way
    act(0, "restore", 200, "{\"filename\": \"two-pages\"}");
    CHECK_INT(complete(600, "", NULL), 2 * PAGE);
    server_wait("vllm:num_requests_running", 0);
    int fd = server_open("POST", "/v1/completions", "{\"prompt\": \"a\", \"max_tokens\": 600, \"ignore_eos\": true}");
    server_wait("vllm:num_requests_running", 1);
    json_t *e = act(0, "restore", 503, "{\"filename\": \"two-pages\"}");
    CHECK(strstr(message_of(e), "no room for 512 tokens beside the running answers"));
    CHECK_INT(server_read(fd).status, 200);
    server_stop();
    o.n_ctx = o.kv_tokens = PAGE;
    server_start(&o);
    e = act(0, "restore", 400, "{\"filename\": \"two-pages\"}");
    CHECK(strstr(message_of(e), "the session has 512 tokens, and n_ctx is 256"));
    server_stop();
}

// ---- refusals ----

// No message names the server's folder.
static void refuse(const char *path, int status, const char *body, const char *part) {
    json_t *v = server_post(path, status, body);
    const char *message = message_of(v);
    if (!message || !strstr(message, part)) FAIL("%s %s: \"%s\" lacks \"%s\"", path, body, message ? message : "", part);
    if (strstr(message, test_tmp())) FAIL("%s %s: \"%s\" has the server's folder", path, body, message);
}

static void refusals(void) {
    static const char save[] = "/slots/0?action=save", restore[] = "/slots/0?action=restore";
    static const char *const names[] = {"",   "../x",    "a/b",       "a\\\\b", "..",  ".",  "a..b",    " a",         "a ",
                                        "a.", ".hidden", "a\\u0007b", "a:b",    "a|b", "a*", "C:\\\\x", "/etc/passwd"};
    char body[512], name[256] = "";
    server_settings o = with_files();
    server_start(NULL);
    refuse(save, 501, "{\"filename\": \"a\"}", "slot_save_path: not given, so this server saves no slots");
    CHECK_STR(json_string_value(json_object_get(json_object_get(act(0, "erase", 501, "{}"), "error"), "type")),
              "not_supported_error");
    CHECK_INT(complete(10, ", \"id_slot\": 9", NULL), 0); // no effect without the flag
    server_stop();
    server_start(&o);
    CHECK_INT(server_ask("GET", "/slots/0", NULL).status, 405);
    refuse("/slots/0", 400, "{}", "action: found none, expected save, restore or erase");
    refuse("/slots/0?action=load", 400, "{}", "action: found load");
    refuse("/slots/2?action=save", 400, "{\"filename\": \"a\"}", "/slots/2: expected a slot from 0 to 1");
    refuse("/slots/-1?action=save", 400, "{}", "expected a slot");
    refuse("/slots/x?action=save", 400, "{}", "expected a slot");
    refuse("/slots/?action=save", 400, "{}", "expected a slot");
    refuse(save, 400, "", "expected an object with \"filename\"");
    refuse(save, 400, "{}", "filename: expected a name, found none");
    refuse(save, 400, "{\"filename\": 3}", "filename is an integer, expected a string");
    refuse(save, 400, "{\"filename\": \"a\", \"file\": \"b\"}", "file");
    refuse(save, 400, "{\"filename\": \"a\", \"cache_salt\": \"b\"}", "cache_salt: only restore has it");
    memset(name, 'a', 201);
    snprintf(body, sizeof body, "{\"filename\": \"%s\"}", name);
    refuse(save, 400, body, "at most 200 bytes");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(body, sizeof body, "{\"filename\": \"%s\"}", names[i]);
        refuse(save, 400, body, "filename: expected a");
        refuse(restore, 400, body, "filename: expected a");
    }
    refuse(save, 400, "{\"filename\": \"a\"}", "slot 0: no prompt has been prefilled in it");
    complete(100, ", \"id_slot\": 0", NULL);
    refuse(save, 400, "{\"filename\": \"a\"}", "no full page (256 tokens) of the prompt of 100 tokens");
    refuse("/v1/completions", 400, "{\"prompt\": \"a\", \"id_slot\": 2}", "id_slot 2: expected -1 to 1");
    refuse(restore, 400, "{\"filename\": \"nothing\"}", "nothing: No such file");
    complete(N, ", \"id_slot\": 0", NULL);
    CHECK_INT(mkdir(in_tmp("folder"), 0777), 0);
    refuse(save, 500, "{\"filename\": \"folder\"}", "folder: ");
    server_stop();
}

// Writes the file anew with `from` replaced by `to` of equal length.
static void forge(const char *file, const char *name, const char *from, const char *to, size_t cut) {
    size_t n;
    char *bytes = (char *)slurp(in_tmp(file), &n), *at = memmem(bytes, n, from, strlen(from));
    CHECK(at && strlen(from) == strlen(to));
    memcpy(at, to, strlen(to));
    spill(in_tmp(name), bytes, n - cut);
}

static void damaged_files(void) {
    static const char restore[] = "/slots/1?action=restore";
    server_settings o = with_files();
    server_start(&o);
    complete(N, ", \"id_slot\": 1", NULL);
    act(1, "save", 200, "{\"filename\": \"good\"}");
    act(1, "erase", 200, "{}");
    forge("good", "cut", "sleigh-session-3", "sleigh-session-3", 100);
    forge("good", "old", "sleigh-session-3", "sleigh-session-1", 0);
    forge("good", "other", "\"weights\":\"fnv1a:", "\"weights\":\"fnv1b:", 0);
    forge("good", "machine", "\"arithmetic\":\"", "\"arithmetix\":\"", 0);
    forge("good", "methods", "\"prefill\":\"0\"", "\"prefill\":\"x\"", 0);
    spill(in_tmp("text"), "not a file of a session", 23);
    refuse(restore, 400, "{\"filename\": \"cut\"}", "cut");
    refuse(restore, 400, "{\"filename\": \"old\"}", "metadata format is sleigh-session-1");
    refuse(restore, 400, "{\"filename\": \"other\"}", "metadata weights is fnv1b");
    refuse(restore, 400, "{\"filename\": \"machine\"}", "metadata arithmetic is missing");
    refuse(restore, 400, "{\"filename\": \"methods\"}", "metadata prefill is x");
    refuse(restore, 400, "{\"filename\": \"text\"}", "text");
    server_wait("sleigh_kv_pages_cached", 0);
    act(1, "restore", 200, "{\"filename\": \"good\"}");
    CHECK_INT(complete(N, "", NULL), 2 * PAGE);
    server_stop();
}

static void flags(void) {
    result r = RUN("serve", "-m", "models/tiny", "--slot-save-path", in_tmp("none"));
    check_error(&r, 1, "none: No such file or directory");
    spill(in_tmp("file"), "", 0);
    r = RUN("serve", "-m", "models/tiny", "--slot-save-path", in_tmp("file"));
    check_error(&r, 2, "file: expected a folder");
    r = RUN("serve", "-m", "models/tiny", "--slot-save-path", test_tmp(), "--no-prefix-cache");
    check_error(&r, 2, "--slot-save-path saves the prefix cache; expected no --no-prefix-cache");
}

static const test_case cases[] = {
    {"save-and-restore", NEEDS_NOTHING, save_and_restore},
    {"sparse-prefill", NEEDS_NOTHING, sparse_prefill},
    {"salts", NEEDS_NOTHING, salts},
    {"erase-shared", NEEDS_NOTHING, erase_shared},
    {"no-room", NEEDS_NOTHING, no_room},
    {"refusals", NEEDS_NOTHING, refusals},
    {"damaged-files", NEEDS_NOTHING, damaged_files},
    {"flags", NEEDS_NOTHING, flags},
    {0},
};
extern const test_suite suite_serve_slots;
const test_suite suite_serve_slots = {"serve_slots", cases};
