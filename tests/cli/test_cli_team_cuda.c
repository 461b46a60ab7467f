// tests/cli/test_cli_team_cuda.c - --tensor-parallel-size on a GPU: the decode steps of processes that share a model have the
// bits of one process, over one and the same cache (--fill random); all commands run; and the end of a run when a rank fails.
// With fewer GPUs than ranks, the ranks share a GPU.
#include "base/clock.h"
#include "tests/support/gpu.h"
#include "tests/support/run_cli.h"

#ifdef SLEIGH_CUDA
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGS = 40, LIMIT_MS = 10000 };

// A config of random weights, with 16 query heads and 8 KV heads.
static const char *config_of(const char *architecture, const char *type, int hidden, int n_ffn, int n_vocab) {
    static const char format[] =
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": %d, \"num_hidden_layers\": "
        "2, "
        "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 64, \"intermediate_size\": %d, "
        "\"vocab_size\": %d, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "
        "\"max_position_embeddings\": 4096, \"tie_word_embeddings\": true, \"bos_token_id\": 1, \"eos_token_id\": 2}";
    static char folder[256];
    char path[300], config[700];
    snprintf(folder, sizeof folder, "%s", in_tmp(type));
    snprintf(config, sizeof config, format, architecture, type, hidden, n_ffn, n_vocab);
    mkdir(folder, 0755);
    snprintf(path, sizeof path, "%s/config.json", folder);
    spill(path, config, strlen(config));
    return folder;
}

// One whose weights 2, 4 and 8 processes can share.
static const char *wide(const char *architecture, const char *type, int n_vocab) {
    return config_of(architecture, type, 128, 1024, n_vocab);
}

static result run_ranks(const char *input, const char *const *args, int n) {
    const char *all[ARGS];
    char number[8];
    int k = 0;
    for (; args[k]; k++) all[k] = args[k];
    snprintf(number, sizeof number, "%d", n);
    all[k++] = "--device", all[k++] = "cuda", all[k++] = "-tp", all[k++] = number, all[k] = NULL;
    CHECK(k < ARGS);
    result r = run_args(input, all);
    CHECK_GOOD(r);
    if (n > 1) CHECK_HAS(r.err, " processes share the model");
    return r;
}

// The hash of the logits after some decode steps; the text is the caller's.
static char *hash_of(const char *const *args, int n) {
    result r = run_ranks(NULL, args, n);
    json_t *doc = document(&r);
    const char *hash = json_string_value(json_object_get(json_array_get(doc, 0), "logits"));
    CHECK(hash && strlen(hash) == 16);
    char *copy = strdup(hash);
    json_decref(doc);
    return copy;
}

static void check_sizes(int most, const char *const *args) {
    char *one = hash_of(args, 1);
    for (int n = 2; n <= most; n *= 2) {
        char *several = hash_of(args, n);
        if (strcmp(one, several)) {
            char line[1000] = "";
            for (int i = 0; args[i]; i++) strncat(strcat(line, " "), args[i], 100);
            FAIL("%d processes: logits %s, one process: %s:%s", n, several, one, line);
        }
        free(several);
    }
    free(one);
}
#define CHECK_SIZES(most, ...) check_sizes(most, (const char *const[]){__VA_ARGS__, NULL})
// The memory rate is given: to measure it, each process would take 4.5 GiB of the GPU.
#define DECODE "bench", "-d", "700", "--fill", "random", "-p", "0", "-n", "3", "-r", "1", "--memory-rate", "4000", "-o", "json"

static void methods(void) {
    static const char *const attns[] = {"dense", "santa-prop:S=16", "santa-is:S=16", "quest", "saap:l=2", "saap-is:S=8"};
    for (int i = 0; i < 6; i++) CHECK_SIZES(2, DECODE, "-m", tiny(), "--attn", attns[i], "-b", i % 2 ? "3" : "1");
}

static void more_ranks(void) {
    const char *model = wide("LlamaForCausalLM", "llama", 1024);
    CHECK_SIZES(4, DECODE, "-m", model, "--load-format", "dummy", "--attn", "dense", "-b", "20");
    CHECK_SIZES(8, DECODE, "-m", model, "--load-format", "dummy", "--attn", "santa-prop:S=16");
}

static void formats(void) {
    static const char *const weights[] = {"int4", "int8", "fp8"};
    static const char *const attns[] = {"dense", "santa-prop:S=16", "santa-is:S=16"};
    const char *model = wide("LlamaForCausalLM", "llama", 1024);
    for (int i = 0; i < 3; i++)
        CHECK_SIZES(4, DECODE, "-m", model, "--load-format", "dummy", "--weights", weights[i], "--attn", attns[i], "-b", "3");
    CHECK_SIZES(2, DECODE, "-m", tiny(), "--weights", "int4", "--kv-cache-dtype", "fp8");
}

static void biases(void) {
    CHECK_SIZES(2, DECODE, "-m", wide("Qwen2ForCausalLM", "qwen2", 1000), "--load-format", "dummy");
}

static void commands(void) {
    char text[256];
    snprintf(text, sizeof text, "%s", in_tmp("text"));
    spill(text, long_text(20), strlen(long_text(20)));
    result r =
        run_ranks(NULL, (const char *const[]){"generate", "-m", tiny(), "-p", question, "-n", "8", "--temp", "0", NULL}, 2);
    CHECK_HAS(r.out, "48213");
    r = run_ranks("Hello\n/temp 0\nAgain.\n", (const char *const[]){"chat", "-m", tiny(), "-n", "4", NULL}, 2);
    CHECK(r.n_out > 0);
    r = run_ranks(NULL, (const char *const[]){"perplexity", "-m", tiny(), "-f", text, "-c", "128", NULL}, 2);
    CHECK(r.n_out > 0);
    r = run_ranks(NULL,
                  (const char *const[]){"eval", "-m", tiny(), "--length", "600", "--task", "niah-single", "--samples", "1",
                                        "--attn", "dense,quest", NULL},
                  2);
    CHECK_HAS(r.out, "100");
    r = run_ranks(
        NULL,
        (const char *const[]){"compare", "-m", tiny(), "-f", text, "-n", "2", "--attn", "santa-prop:S=8", "--attention", NULL},
        2);
    CHECK_HAS(r.out, "santa-prop");
}

// Drafts of ranks give the tokens of ranks without drafts.
static void drafts(void) {
    static const char *const specs[] = {NULL, "ngram:least=2", "self:least=2:most=3:attn=santa-is:S=64",
                                        "self:least=2:most=3:attn=dense:weights=int4"};
    static const char *const keys[] = {"text", "ids", "logits", "logprobs"};
    char prompt[400];
    json_t *docs[4];
    json_int_t accepted = 0;
    snprintf(prompt, sizeof prompt, "%.300s", long_text(8));
    for (int i = 0; i < 4; i++) {
        const char *const args[] = {"generate", "-m", tiny(),   "-p",      prompt,
                                    "-n",       "30", "--seed", "5",       "--logprobs",
                                    "2",        "-o", "json",   "--draft", specs[i] ? specs[i] : "none",
                                    NULL};
        result r = run_ranks(NULL, args, 2);
        docs[i] = document(&r);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++) {
            const json_t *want = json_object_get(docs[0], keys[k]);
            if (!want || !json_equal((json_t *)want, json_object_get(docs[i], keys[k])))
                FAIL("%s: the field %s differs: %s", specs[i], keys[k], r.out);
        }
        accepted += json_integer_value(json_object_get(json_object_get(docs[i], "drafts"), "accepted"));
    }
    CHECK(accepted > 10);
    for (int i = 0; i < 4; i++) json_decref(docs[i]);
}

static void serve(void) {
    char command[1000];
    snprintf(command, sizeof command, "exec python3 tests/server/serve_ranks.py '%s' '%s' gpu", cli_binary(), tiny());
    const result r = run_shell(command, (const char *const[]){NULL});
    if (r.code) FAIL("%s", r.err);
}

static void refused(void) {
    result r = RUN("generate", "-m", tiny(), "-p", "Hello", "-n", "1", "-tp", "2", "--device", "cuda", "--kv-cache", "host");
    check_error(&r, 1, "--kv-cache host: found --tensor-parallel-size 2; expected --kv-cache gpu with it");
    const char *model = wide("LlamaForCausalLM", "llama", 1000);
    r = RUN("bench", "-p", "8", "-n", "1", "-m", model, "--load-format", "dummy", "--weights", "int8", "--weights-head", "int8",
            "-tp", "2", "--device", "cuda");
    check_error(&r, 1, "lm_head.weight has 1000 rows; on a GPU, the rows of a quantised weight must be a multiple of 16");
    model = config_of("LlamaForCausalLM", "llama", 128, 1152, 1000);
    r = RUN("bench", "-p", "8", "-n", "1", "-m", model, "--load-format", "dummy", "-tp", "2", "--device", "cuda");
    check_error(
        &r, 1,
        "this model has 1152 columns of the MLP (intermediate_size); on a GPU, each rank needs a multiple of 128 of them");
    model = config_of("LlamaForCausalLM", "llama", 144, 1024, 1000);
    r = RUN("bench", "-p", "8", "-n", "1", "-m", model, "--load-format", "dummy", "-tp", "2", "--device", "cuda");
    check_error(&r, 1, "--tensor-parallel-size 2: hidden_size 144; on a GPU, ranks need a multiple of 32");
}

// ---- a rank that fails ----

// A killed and a stopped rank. The GPU of the other rank waits for its sum meanwhile.
static void hurt(void) {
    static const int signals[] = {SIGKILL, SIGSTOP};
    for (int i = 0; i < 2; i++) {
        const char *const args[] = {"generate",     "-m",  tiny(), "-p",       "Hello", "-n", "120000",
                                    "--ignore-eos", "-tp", "2",    "--device", "cuda",  NULL};
        char out[256];
        snprintf(out, sizeof out, "%s%d", in_tmp("out"), i);
        pid_t pid = start(NULL, 0, out, args);
        wait_for_bytes(pid, out, 100); // the ranks generate
        long child = child_of(pid);
        CHECK(child > 1);
        double begin = sl_now_ms();
        CHECK(!kill((pid_t)child, signals[i]));
        result r = finish(pid, out);
        CHECK(sl_now_ms() - begin < LIMIT_MS);
        CHECK_INT(r.code, 1);
        CHECK_HAS(r.err, "sleigh: error: rank 1 of 2 (");
    }
}
#endif

// Cases with many exchanges have the whole GPU: ranks take turns with all processes on it, and wait in kernels.
static const test_case cases[] = {GPU_CASE("hurt", hurt),
                                  WHOLE_GPU_CASE("methods", methods),
                                  WHOLE_GPU_CASE("more_ranks", more_ranks),
                                  WHOLE_GPU_CASE("formats", formats),
                                  GPU_CASE("biases", biases),
                                  GPU_CASE("commands", commands),
                                  GPU_CASE("drafts", drafts),
                                  GPU_CASE("serve", serve),
                                  GPU_CASE("refused", refused),
                                  {0}};
extern const test_suite suite_cli_team_cuda;
const test_suite suite_cli_team_cuda = {"cli_team_cuda", cases};
