// tests/server/test_serve_ranks.c - a server whose model lies in several ranks: another rank takes the steps of rank 0 without
// its clock and its clients, and notices a difference; then real ranks (serve_ranks.py has the cases).
#include "server/serve/serve_ranks.h"
#include "tests/server/serve_fixture.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sl_error err;

// ---- another rank, from the messages of rank 0 ----

enum { SEED = 0x5eed1234, N_IDS = 300 };

// Requests that depend on all that ranks must share: ids, a seed, a grammar, stop strings, the prefix cache, conversations, and
// a client that leaves.
static void ask_all(void) {
    char body[8192];
    int at = snprintf(body, sizeof body, "{\"max_tokens\": 8, \"temperature\": 1, \"seed\": %d, \"prompt\": [", SEED);
    for (int i = 0; i < N_IDS; i++) at += snprintf(body + at, sizeof body - (size_t)at, "%s%d", i ? "," : "", 100 + i);
    snprintf(body + at, sizeof body - (size_t)at, "]}");
    for (int i = 0; i < 2; i++) {
        json_t *v = server_post("/v1/completions", 200, body);
        const json_t *n = server_member(v, "usage/prompt_tokens_details/cached_tokens");
        CHECK_INT(json_integer_value(n), i ? 256 : 0);
    }
    server_post("/v1/chat/completions", 200,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}], \"max_tokens\": 30, \"temperature\": 1.5, "
                "\"response_format\": {\"type\": \"json_object\"}, \"conversation_id\": \"a\"}");
    server_post("/v1/completions", 200,
                "{\"prompt\": [\"One\", \"Two\"], \"n\": 2, \"max_tokens\": 20, \"stop\": [\"e\"], \"logprobs\": 1, "
                "\"echo\": true, \"conversation_id\": null}");
    server_post("/v1/completions", 200,
                "{\"prompt\": \"One\", \"max_tokens\": 0, \"echo\": true, \"attn\": \"santa-prop:S=8\", \"priority\": 2}");
    server_post("/v1/completions", 400, "{\"prompt\": \"One\", \"attn\": \"santa-prp\"}");
    close(server_sample_open("/v1/completions", "\"prompt\": \"One\", \"max_tokens\": 1500, \"ignore_eos\": true", 1, 1));
    server_wait("vllm:num_requests_running", 0);
}

static char *copy_of_recording(size_t *n) {
    const sl_text *t = server_recording();
    char *copy = malloc(t->n);
    CHECK(copy != NULL);
    memcpy(copy, t->data, t->n);
    *n = t->n;
    return copy;
}

// Changes bits of a byte, and expects an error with this text.
static void check_altered(size_t at, int bits, int code, const char *part) {
    size_t n;
    char *bytes = copy_of_recording(&n);
    CHECK(at < n);
    bytes[at] = (char)(bytes[at] ^ bits);
    CHECK_INT(server_follow(bytes, n, &err), code);
    CHECK_HAS(err.message, part);
    free(bytes);
}

// Changes the first occurrence of a number.
static void check_noticed(int32_t number, const char *part) {
    const sl_text *t = server_recording();
    size_t at = 0;
    while (at + sizeof number <= t->n && memcmp(t->data + at, &number, sizeof number)) at++;
    check_altered(at, 1, SL_ERR_FORMAT, part);
}

// The bytes that follow a note.
static size_t n_behind(const char *at, uint32_t kind) {
    serve_opened head;
    int32_t n_ids;
    size_t n = sizeof head;
    if (kind != SERVE_RANKS_OPEN) return 0;
    memcpy(&head, at, sizeof head);
    for (int i = 0; i < head.n_prompts; i++) {
        memcpy(&n_ids, at + n, sizeof n_ids);
        n += sizeof n_ids + (size_t)n_ids * sizeof(int32_t);
    }
    return n + head.n_body;
}

// The place of the first note of a kind, and the number of such notes.
static size_t find_notes(uint32_t kind, int *n_notes) {
    const sl_text *t = server_recording();
    serve_message m;
    serve_note note;
    size_t first = 0;
    *n_notes = 0;
    for (size_t at = 0, end; at < t->n;) {
        memcpy(&m, t->data + at, sizeof m);
        at += sizeof m;
        for (end = at + m.n_bytes; at < end;) {
            memcpy(&note, t->data + at, sizeof note);
            if (note.kind == kind && !(*n_notes)++) first = at;
            at += sizeof note;
            at += n_behind(t->data + at, note.kind);
        }
    }
    return first;
}

static void check_notes(void) {
    enum { OPENED = sizeof(serve_note) };
    static const struct {
        uint32_t kind;
        size_t at; // of the first such note
        int bits, code;
        const char *part;
    } cases[] = {
        {SERVE_RANKS_OPEN, OPENED + offsetof(serve_opened, n_body) + 3, 1, SL_ERR_FORMAT, "shorter than it says"},
        {SERVE_RANKS_OPEN, OPENED + offsetof(serve_opened, n_body), 1, SL_ERR_ARG, "a request that rank 0 has accepted: "},
        {SERVE_RANKS_ADD, offsetof(serve_note, request), 1, SL_ERR_FORMAT, "a request that this rank does not have"},
        {SERVE_RANKS_ADD, offsetof(serve_note, rc), 1, SL_ERR_FORMAT, "the result 1 on rank 0, and 0 here: no error"},
        {SERVE_RANKS_FREE, offsetof(serve_note, kind), 64, SL_ERR_FORMAT, "has the kind 67, which this rank does not know"},
    };
    int n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t at = find_notes(cases[i].kind, &n);
        CHECK(n > 0);
        check_altered(at + cases[i].at, cases[i].bits, cases[i].code, cases[i].part);
    }
    find_notes(SERVE_RANKS_CANCEL, &n);
    CHECK(n <= 1); // of the client that leaves; none if it left before its answer began
}

static void follow(void) {
    server_start(&(server_settings){.is_recorded = 1, .keep_conversations = 2});
    ask_all();
    server_end();
    const sl_text *all = server_recording();
    CHECK_OK(server_follow(all->data, all->n, &err), err);
    check_noticed(100 + N_IDS / 2, "the steps of this rank differ from those of rank 0"); // an id of a prompt
    check_noticed(SEED, "the steps of this rank differ from those of rank 0");            // the tokens that it samples
    check_notes();
    CHECK_INT(server_follow(all->data + 8, all->n - 8, &err), SL_ERR_FORMAT);
    CHECK_HAS(err.message, "the ranks are not at the same place");
    server_stop();
}

// ---- real ranks ----

static void run_script(const char *name) {
    char command[4096];
    snprintf(command, sizeof command, "exec python3 tests/server/serve_ranks.py '%s' '%s' %s", cli_binary(), tiny(), name);
    const result r = run_shell(command, (const char *const[]){NULL});
    if (r.code) FAIL("%s: %s", name, r.err);
}

static void two_ranks(void) {
    run_script("two");
}

static void four_ranks(void) {
    run_script("four");
}

static void ends(void) {
    run_script("ends");
}

const test_suite suite_serve_ranks = {
    "serve_ranks",
    (const test_case[]){{"follow", 0, follow}, {"two", 0, two_ranks}, {"four", 0, four_ranks}, {"ends", 0, ends}, {0}}};
