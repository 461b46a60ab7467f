// tests/engine/test_finite.c - models whose logits become NaN: no token is sampled, no session changes, and the error names the
// place.
#include "engine/engine.h"
#include "tests/support/run_cli.h"
#include "tests/support/gpu.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;

enum { BAD = 77, B = 3 }; // BAD: a token whose embedding is NaN. B: sequences

// Copies the embedded model to the case's folder, with NaN in row `row` of tensor `name`. row -1: in all rows
static const char *broken_model(const char *name, int row) {
    static char dir[256];
    char from[300], to[300], key[128], *at;
    snprintf(dir, sizeof dir, "%s/broken", test_tmp());
    CHECK(!mkdir(dir, 0700));
    snprintf(to, sizeof to, "cp models/tiny/*.json %s", dir);
    CHECK(!system(to));
    snprintf(from, sizeof from, "models/tiny/model.safetensors");
    snprintf(to, sizeof to, "%s/model.safetensors", dir);
    FILE *f = fopen(from, "rb");
    CHECK(f && !fseek(f, 0, SEEK_END));
    long n = ftell(f);
    char *data = malloc((size_t)n + 1);
    rewind(f);
    CHECK(fread(data, 1, (size_t)n, f) == (size_t)n && !fclose(f));
    data[n] = 0;
    uint64_t header;
    unsigned long first, end, rows, columns;
    memcpy(&header, data, sizeof header);
    snprintf(key, sizeof key, "\"%s\"", name);
    at = strstr(data + 8, key);
    CHECK(at && at < data + 8 + header);
    const char *shape = strstr(at, "\"shape\":["), *offsets = strstr(at, "\"data_offsets\":[");
    CHECK(shape && offsets && sscanf(offsets, "\"data_offsets\":[%lu,%lu]", &first, &end) == 2);
    if (row >= 0) {
        CHECK(sscanf(shape, "\"shape\":[%lu,%lu]", &rows, &columns) == 2 && (unsigned long)row < rows);
        first += (unsigned long)row * columns * 2, end = first + columns * 2;
    }
    for (unsigned long i = first; i < end; i += 2) memcpy(data + 8 + header + i, &(uint16_t){0x7fc0}, 2);
    f = fopen(to, "wb");
    CHECK(f && fwrite(data, 1, (size_t)n, f) == (size_t)n && !fclose(f));
    free(data);
    return dir;
}

typedef struct batch {
    model_fixture on;
    sl_session *s[B];
    sl_sampler *samplers[B];
} batch;

// Sequences of 300 tokens. Sequence i has the token BAD at bad_at[i], unless bad_at[i] is negative.
static batch open_batch(const char *dir, const char *device, const char *attn, const int bad_at[B]) {
    sl_sampling greedy = sl_sampling_default();
    batch b = {.on = model_fixture_load(dir, attn, (sl_engine_options){.n_ctx = 1024, .n_sequences = B, .device = device})};
    greedy.temp = 0;
    for (int i = 0; i < B; i++) {
        int32_t *ids = test_ids(300, b.on.n_vocab, test_seed + i);
        for (int j = 0; j < 300; j++)
            if (ids[j] == BAD) ids[j]++;
        if (bad_at[i] >= 0) ids[bad_at[i]] = BAD;
        b.s[i] = model_fixture_session(&b.on, 10 + i);
        CHECK_OK(sl_prefill(b.s[i], ids, 300, NULL, &err), err);
        CHECK_OK(sl_sampler_new(&greedy, b.on.n_vocab, &b.samplers[i], &err), err);
        free(ids);
    }
    return b;
}

static void close_batch(batch *b) {
    for (int i = 0; i < B; i++) sl_session_free(b->s[i]), sl_sampler_free(b->samplers[i]);
    model_fixture_close(&b->on);
}

// The second of three sequences gets the token BAD, in its prompt or in a decode step.
static void try_batch(const char *device, const char *attn, int by_prompt) {
    const char *dir = broken_model("model.embed_tokens.weight", BAD);
    batch b = open_batch(dir, device, attn, (int[]){-1, by_prompt ? 123 : -1, -1});
    sl_session *good[2] = {b.s[0], b.s[2]};
    sl_sampler *samplers[2] = {b.samplers[0], b.samplers[2]};
    int32_t ids[B], want[2];
    const char *where = by_prompt ? "layer 0, KV head 0, position 123" : "layer 0, KV head 0, position 300";
    if (!by_prompt) CHECK_OK(sl_decode(b.s, B, (int32_t[]){5, BAD, 6}, &err), err);
    int n_tokens = sl_session_n_tokens(b.s[0]);
    float *before = malloc(b.on.n_vocab * sizeof *before);
    memcpy(before, sl_session_logits(b.s[0], NULL), b.on.n_vocab * sizeof *before);
    CHECK_OK(sl_session_check_logits(b.s[0], &err), err);
    CHECK_ERR(sl_session_check_logits(b.s[1], &err), err, SL_ERR_NOT_FINITE, where);
    CHECK_OK(sl_sample(good, 2, samplers, want, &err), err);
    for (int i = 0; i < 2; i++) { // twice, because the first error must not change a session
        CHECK_ERR(sl_sample(b.s, B, b.samplers, ids, &err), err, SL_ERR_NOT_FINITE, where);
        CHECK_ERR(sl_step(b.s, B, b.samplers, ids, &err), err, SL_ERR_NOT_FINITE, "sequence 11: ");
        for (int k = 0; k < B; k++) CHECK_INT(sl_session_n_tokens(b.s[k]), n_tokens);
        CHECK(!memcmp(before, sl_session_logits(b.s[0], NULL), b.on.n_vocab * sizeof *before));
    }
    CHECK_OK(sl_step(good, 2, samplers, ids, &err), err);
    for (int i = 0; i < 2; i++) CHECK_INT(ids[i], want[i]);
    CHECK_OK(sl_session_check_logits(b.s[0], &err), err);
    CHECK_INT(sl_session_n_tokens(b.s[0]), n_tokens + 1);
    free(before);
    close_batch(&b);
}

// A weight after the last layer's keys is NaN: all keys are finite, but the logits are not.
static void try_last_norm(const char *device) {
    batch b = open_batch(broken_model("model.norm.weight", -1), device, "dense", (int[]){-1, -1, -1});
    int32_t ids[B];
    CHECK_ERR(sl_sample(b.s, B, b.samplers, ids, &err), err, SL_ERR_NOT_FINITE, "1024 of 1024 logits after 300 tokens");
    CHECK_ERR(sl_step(b.s, B, b.samplers, ids, &err), err, SL_ERR_NOT_FINITE, "all keys of the cache are finite");
    close_batch(&b);
}

static void by_prompt_cpu(void) {
    try_batch("cpu", "dense", 1);
}
static void by_token_cpu(void) {
    try_batch("cpu", "santa-prop:S=32", 0);
}
static void last_norm_cpu(void) {
    try_last_norm("cpu");
}

// A method that skips the row of NaN has finite logits in later steps. But the step that appends the row must fail.
static void unread_row_cpu(void) {
    try_batch("cpu", "streaming:sink=1:window=8", 0);
}

// Commands end with an error that names the place. They write no figure, no answer and no file.
static void commands(void) {
    static char dir[256], out[300], npy[300], ids[300], prompt[300], attn[] = "dense,santa-prop:S=32";
    const char *from = broken_model("model.norm.weight", -1);
    snprintf(dir, sizeof dir, "%s", from);
    snprintf(out, sizeof out, "%s", in_tmp("out.jsonl")), snprintf(npy, sizeof npy, "%s", in_tmp("logits.npy"));
    snprintf(ids, sizeof ids, "%s", in_tmp("ids")), snprintf(prompt, sizeof prompt, "%s", in_tmp("prompts"));
    spill(ids, "1,2,3", 5), spill(prompt, "One.\nTwo.\n", 10);
    const struct {
        const char *args[16], *part;
    } cases[] = {
        {{"generate", "-m", dir, "-p", "The grass is", "-n", "4"}, "all keys of the cache are finite"},
        {{"generate", "-m", dir, "-p", "The grass is", "-n", "1"}, "1024 of 1024 logits"},
        {{"generate", "-m", dir, "--prompts", prompt, "--parallel", "2", "-n", "4"}, "1024 of 1024 logits"},
        {{"eval", "-m", dir, "--task", "niah-single", "--length", "300", "--samples", "1", "--attn", attn, "--out", out},
         "all keys of the cache are finite"},
        {{"bench", "decode", "-m", dir, "-d", "16", "-n", "2", "--memory-rate", "10", "-o", "csv"}, "1024 of 1024 logits"},
        {{"bench", "-m", dir, "-p", "16", "-n", "0", "-b", "2", "-r", "1", "-o", "csv"}, "1024 of 1024 logits after 16"},
        {{"compare", "-m", dir, "-p", "The grass is", "--attn", "topk:k=8", "-n", "4"}, "1024 of 1024 logits"},
        {{"perplexity", "-m", dir, "-f", ids, "-c", "4"}, "the logits after token 2 of a window"},
        {{"logits", "-m", dir, "--ids", ids, "-o", npy}, "the logits after token 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        result r = run_args(NULL, cases[i].args);
        check_error(&r, 1, cases[i].part);
        CHECK_HAS(r.err, "not finite");
        CHECK_INT(r.n_out, 0);
    }
    size_t n;
    const char *head = slurp(out, &n);
    CHECK_INT(count_of(head, n, '\n'), 1); // the line of the settings
    CHECK(access(npy, F_OK));
}

// One token of several is BAD. The position in the error counts from the beginning of the text, with any chunk size.
static void logits_command(void) {
    const char *dir = broken_model("model.embed_tokens.weight", BAD);
    spill(in_tmp("ids"), "5,6,7,8,77,6,9", 14);
    result r = RUN("logits", "-m", dir, "--ids", in_tmp("ids"), "-o", in_tmp("logits.npy"), "-ub", "2");
    check_error(&r, 1, "the logits after token 4 are not finite; ");
    CHECK(access(in_tmp("logits.npy"), F_OK));
    spill(in_tmp("ids"), "5,6,7,8,76,6,9", 14);
    r = RUN("logits", "-m", dir, "--ids", in_tmp("ids"), "-o", in_tmp("logits.npy"));
    CHECK_GOOD(r);
}

#ifdef SLEIGH_CUDA
static void by_prompt_gpu(void) {
    try_batch("cuda", "dense", 1);
}
static void by_token_gpu(void) {
    try_batch("cuda", "santa-prop:S=32", 0);
}
static void last_norm_gpu(void) {
    try_last_norm("cuda");
}
static void unread_row_gpu(void) {
    try_batch("cuda", "streaming:sink=1:window=8", 0);
}
#endif

static const test_case cases[] = {
    {"by-prompt", 0, by_prompt_cpu},
    {"by-token", 0, by_token_cpu},
    {"last-norm", 0, last_norm_cpu},
    {"unread-row", 0, unread_row_cpu},
    {"commands", 0, commands},
    {"logits-command", 0, logits_command},
    GPU_CASE("by-prompt-gpu", by_prompt_gpu),
    GPU_CASE("by-token-gpu", by_token_gpu),
    GPU_CASE("last-norm-gpu", last_norm_gpu),
    GPU_CASE("unread-row-gpu", unread_row_gpu),
    {0},
};
const test_suite suite_finite = {"finite", cases};
