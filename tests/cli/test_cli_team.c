// tests/cli/test_cli_team.c - --tensor-parallel-size: processes that share a model print what one process prints, to the bit;
// what they refuse; and their end when one of them fails.
#include "base/clock.h"
#include "tests/support/mpirun.h"
#include "tests/support/run_cli.h"
#include "tests/support/venv.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ARGS = 40, LIMIT_MS = 60000 };

// ---- equal bits ----

// A config whose random weights 2, 4 and 8 processes can share: 8 KV heads, an embedding that is tied to the head. type:
// "llama", or "qwen2", which has biases
static const char *wide(const char *architecture, const char *type) {
    static const char format[] =
        "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"hidden_size\": 128, \"num_hidden_layers\": "
        "2, "
        "\"num_attention_heads\": 16, \"num_key_value_heads\": 8, \"head_dim\": 64, \"intermediate_size\": 1024, "
        "\"vocab_size\": 1000, \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-05, \"rope_theta\": 10000.0, "
        "\"max_position_embeddings\": 4096, \"tie_word_embeddings\": true, \"bos_token_id\": 1, \"eos_token_id\": 2}";
    static char folder[256];
    char path[300], config[700];
    snprintf(folder, sizeof folder, "%s", in_tmp(type));
    snprintf(config, sizeof config, format, architecture, type);
    CHECK(!mkdir(folder, 0755));
    snprintf(path, sizeof path, "%s/config.json", folder);
    spill(path, config, strlen(config));
    return folder;
}

// A file of n sentences.
static const char *text_file(int n) {
    static char path[256];
    snprintf(path, sizeof path, "%s", in_tmp("text"));
    spill(path, long_text(n), strlen(long_text(n)));
    return path;
}

// Removes what differs between any two runs.
static void remove_times(json_t *value) {
    json_t *item;
    size_t i;
    const char *key;
    void *next;
    json_object_foreach_safe(value, next, key, item) {
        size_t n = strlen(key);
        if ((n > 3 && !strcmp(key + n - 3, "_ms")) || strstr(key, "tok_s") || !strcmp(key, "switch"))
            json_object_del(value, key);
        else
            remove_times(item);
    }
    json_array_foreach(value, i, item) remove_times(item);
}

static char *answer_of(const char *const *args, int n) {
    const char *all[ARGS];
    char number[8];
    int k = 0;
    for (; args[k]; k++) all[k] = args[k];
    snprintf(number, sizeof number, "%d", n);
    all[k++] = "-tp", all[k++] = number, all[k++] = "-t", all[k++] = "1", all[k] = NULL;
    CHECK(k < ARGS);
    result r = run_args(NULL, all);
    CHECK_GOOD(r);
    json_t *doc = document(&r);
    remove_times(doc);
    char *text = json_dumps(doc, JSON_SORT_KEYS | JSON_INDENT(1));
    json_decref(doc);
    CHECK(text != NULL);
    return text;
}

// ids, log-probabilities, hash of the logits, and what attention counted.
static void check_sizes(const char *const *args, int most) {
    char *one = answer_of(args, 1);
    CHECK(strlen(one) > 100);
    for (int n = 2; n <= most; n *= 2) {
        char *several = answer_of(args, n);
        if (strcmp(one, several)) FAIL("%d processes: %s\none: %s", n, several, one);
        free(several);
    }
    free(one);
}
#define CHECK_SIZES(most, ...) check_sizes((const char *const[]){__VA_ARGS__, "-o", "json", NULL}, most)
#define GENERATE "generate", "--random-prompt", "600", "-n", "6", "--ignore-eos", "--exact-below", "off", "--logprobs", "2"

static void methods(void) {
    static const char *const attns[] = {"dense",         "santa-prop:S=16",
                                        "santa-is:S=16", "santa-pps:S=16:budget=even",
                                        "quest",         "topk:k=8",
                                        "saap:l=2",      "saap-is:S=8",
                                        "saap-kmeans",   "vattention:predictor=buckets:bound=clt"};
    for (size_t i = 0; i < sizeof attns / sizeof *attns; i++)
        CHECK_SIZES(2, GENERATE, "-m", tiny(), "--temp", i == 0 ? "0" : "1", "--seed", "5", "--attn", attns[i]);
}

static void formats(void) {
    static const char *const weights[] = {"int8", "int4", "fp8"};
    for (int i = 0; i < 3; i++) CHECK_SIZES(2, GENERATE, "-m", tiny(), "--temp", "1", "--weights", weights[i]);
    CHECK_SIZES(2, GENERATE, "-m", tiny(), "--weights", "int4:group=64", "--activations", "float", "--kv-cache-dtype", "fp8");
}

static void more_ranks(void) {
    const char *model = wide("LlamaForCausalLM", "llama");
    CHECK_SIZES(8, GENERATE, "-m", model, "--load-format", "dummy", "--temp", "1", "--attn", "santa-prop:S=16");
    CHECK_SIZES(4, GENERATE, "-m", model, "--load-format", "dummy", "--weights", "int4", "--attn", "santa-is:S=8");
    CHECK_SIZES(8, GENERATE, "-m", model, "--load-format", "dummy", "--weights", "int8", "--weights-head", "bf16", "-ub",
                "100");
}

static void biases(void) {
    CHECK_SIZES(2, GENERATE, "-m", wide("Qwen2ForCausalLM", "qwen2"), "--load-format", "dummy", "--temp", "1");
}

// Weights that are made of packed tensors, and of the blocks of a GGUF file.
static void packed(void) {
    char path[256], line[1000];
    snprintf(path, sizeof path, "%s", in_tmp("packed"));
    result r = RUN("quantize", "-m", tiny(), "--out", path, "--weights", "int4:group=32");
    CHECK_GOOD(r);
    CHECK_SIZES(2, GENERATE, "-m", path);
    snprintf(path, sizeof path, "%s", in_tmp("blocks.gguf"));
    snprintf(line, sizeof line, "'%s' scripts/goldens/make_gguf.py model '%s' '%s' Q4_1", venv_python("gguf numpy"), tiny(),
             path);
    CHECK(!system(line));
    CHECK_SIZES(2, GENERATE, "-m", path);
}

// Rank 0's times choose the drafts of all ranks, which may be other drafts than those of one process: the tokens are the same.
static void drafts(void) {
    static const char *const specs[] = {"ngram:least=2", "self:least=2:most=3:attn=topk:k=40",
                                        "self:least=2:most=3:attn=topk:k=40:weights=int4", "auto"};
    static const char *const keys[] = {"text", "ids", "logits", "logprobs", "stopped", "n_generated"};
    json_int_t accepted = 0;
    char prompt[400];
    snprintf(prompt, sizeof prompt, "%.300s", long_text(8));
    result one =
        RUN("generate", "-m", tiny(), "-p", prompt, "-n", "40", "--seed", "5", "--logprobs", "2", "-t", "1", "-o", "json");
    json_t *want = document(&one);
    for (int i = 0; i < 4; i++) {
        result two = RUN("generate", "-m", tiny(), "-p", prompt, "-n", "40", "--seed", "5", "--logprobs", "2", "-t", "1", "-o",
                         "json", "-tp", "2", "--draft", specs[i]);
        json_t *got = document(&two);
        for (size_t k = 0; k < sizeof keys / sizeof *keys; k++)
            if (!json_object_get(want, keys[k]) || !json_equal(json_object_get(want, keys[k]), json_object_get(got, keys[k])))
                FAIL("%s: the field %s differs: %s", specs[i], keys[k], two.out);
        accepted += json_integer_value(json_object_get(json_object_get(got, "drafts"), "accepted"));
        json_decref(got);
    }
    CHECK(accepted > 20);
    json_decref(want);
}

// The figures of single heads, which all ranks send to each other.
static void heads(void) {
    CHECK_SIZES(2, "compare", "-m", tiny(), "-f", text_file(12), "-n", "3", "--attn", "santa-prop:S=8,topk:k=8", "--attention");
}

static void check_output(const char *input, const char *const *args, const char *const *more) {
    const char *all[ARGS];
    int n = 0;
    result r[2];
    for (; args[n]; n++) all[n] = args[n];
    for (int i = 0; i < 2; i++) {
        int k = n;
        for (int j = 0; i && more[j]; j++) all[k++] = more[j];
        all[k] = NULL;
        r[i] = run_args(input, all);
        CHECK_GOOD(r[i]);
    }
    CHECK_STR(r[1].out, r[0].out);
    CHECK(r[0].n_out > 0 && r[1].n_out == r[0].n_out);
    CHECK_HAS(r[1].err, "ranks: 2 processes share the model");
}
#define CHECK_OUTPUT(input, ...)                                                                                               \
    check_output(input, (const char *const[]){__VA_ARGS__, "-t", "1", NULL}, (const char *const[]){"-tp", "2", NULL})

// The logits after some steps, over a prefill of n_prompt tokens (fill NULL, which ends the flags) or over a filled cache.
static void check_bench(const char *n_prompt, const char *fill) {
    json_t *rows[2];
    const char *logits[2];
    for (int i = 0; i < 2; i++) {
        const char *const args[] = {"bench", "-m", tiny(), "-p", n_prompt, "-n",   "4",   "-b",          "2",
                                    "-r",    "1",  "-t",   "1",  "-o",     "json", "-tp", i ? "2" : "1", fill ? "--fill" : NULL,
                                    fill,    "-d", "300",  NULL};
        result r = run_args(NULL, args);
        rows[i] = document(&r);
        size_t n = json_array_size(rows[i]);
        CHECK_INT(n, fill ? 1 : 2);
        logits[i] = json_string_value(json_object_get(json_array_get(rows[i], n - 1), "logits"));
        CHECK(logits[i] != NULL);
    }
    CHECK_STR(logits[1], logits[0]);
    json_decref(rows[0]), json_decref(rows[1]);
}

static void commands(void) {
    CHECK_OUTPUT(NULL, "perplexity", "-m", tiny(), "-f", text_file(30), "-c", "128");
    CHECK_OUTPUT(NULL, "eval", "-m", tiny(), "--length", "600", "--task", "vt", "--samples", "2", "--attn", "dense,quest");
    CHECK_OUTPUT("Hello\nWhat \\\nis this?\n/temp 0\nAgain.\n", "chat", "-m", tiny(), "-n", "8"); // input of rank 0 alone
    CHECK_OUTPUT("The hidden number is", "generate", "-m", tiny(), "-n", "4");
    check_bench("32", NULL);
    check_bench("0", "random"); // the rows of a rank are those of its heads
}

// mpirun starts the ranks; of four ranks, two and two share a model, and the two teams share the texts.
static void launched(void) {
    need_mpi();
    static const char *const args[] = {"--length",       "600", "--task", "niah-single,vt", "--samples", "3", "--attn",
                                       "dense,topk:k=8", "-t",  "1"};
    const char *all[ARGS] = {"eval", "-m", tiny()};
    for (int i = 0; i < 10; i++) all[3 + i] = args[i];
    result one = run_args(NULL, all);
    all[13] = "-tp", all[14] = "2";
    result four = run_shell(MPIRUN "-q -np 4 \"$0\" \"$@\"", all);
    CHECK_GOOD(one);
    CHECK_GOOD(four);
    CHECK_STR(four.out, one.out);
    CHECK_HAS(four.err, "ranks: 4 in teams of 2, each with a model, share 6 texts");
    result r = RUN_SHELL(MPIRUN "-q -np 2 \"$0\" \"$@\"", "generate", "-m", tiny(), "-p", question, "-n", "8", "-tp", "2",
                         "--temp", "0", "--seed", "-1");
    CHECK_GOOD(r); // rank 0's seed is that of all
    CHECK_HAS(r.out, "48213");
}

// ---- what is refused ----

static void check_refused(int code, const char *part, const char *const *args) {
    result r = run_args("", args);
    CHECK_INT(r.code, code);
    CHECK_HAS(r.err, "sleigh: error: ");
    CHECK_HAS(r.err, part);
    CHECK_INT(r.n_out, 0);
    CHECK(strstr(strstr(r.err, "sleigh: error: ") + 1, "sleigh: error: ") == NULL); // one rank speaks for all
}
#define REFUSED(code, part, ...) check_refused(code, part, (const char *const[]){__VA_ARGS__, NULL})
#define SERVE "serve", "-m", tiny(), "--port", "0", "-tp", "2"
#define TINY "generate", "-m", tiny(), "-p", "Hello", "-n", "1"

static void refused(void) {
    REFUSED(2, "--tensor-parallel-size 3: expected 1, 2, 4 or 8", TINY, "-tp", "3");
    REFUSED(1, "this model has 2 KV heads (num_key_value_heads), which do not divide by 4", TINY, "-tp", "4");
    REFUSED(1, "this model has 384 columns of the MLP (intermediate_size); on the CPU, each rank needs a multiple of 128",
            "generate", "-m", "prose", "-p", "Hello", "-n", "1", "-tp", "2");
    REFUSED(2, "--prompt-cache is not offered with --tensor-parallel-size 2", TINY, "-tp", "2", "--prompt-cache",
            in_tmp("cache"));
    REFUSED(2, "--draft-model is not offered with --tensor-parallel-size 2", TINY, "-tp", "2", "--draft", "model",
            "--draft-model", tiny());
    REFUSED(2, "auto cannot be used with --tensor-parallel-size 2", TINY, "-tp", "2", "--attn", "auto");
    REFUSED(1, "--attn santa-pps: found a --budget that splits the draws over all heads of a layer, expected --budget even",
            TINY, "-tp", "2", "--attn", "santa-pps");
    REFUSED(1, "--attn magicpig: not offered", TINY, "-tp", "2", "--attn", "magicpig");
    REFUSED(1, "a sparse prefill is offered in one process only", TINY, "-tp", "2", "--attn-prefill", "sample");
    REFUSED(2, "--tensor-parallel-size 2: expected 1 with this command", "tune", "-m", tiny(), "-tp", "2");
    REFUSED(2, "--draft-model is not offered with --tensor-parallel-size 2", SERVE, "--draft-model", tiny());
    REFUSED(2, "--slot-save-path is not offered with --tensor-parallel-size 2", SERVE, "--slot-save-path", test_tmp());
    REFUSED(2, "auto cannot be used with --tensor-parallel-size 2", SERVE, "--attn", "auto");
    REFUSED(1, "a sparse prefill is offered in one process only", SERVE, "--attn-prefill", "sample");
    REFUSED(2, "--file /dev/null: expected a regular file, because each of the 2 ranks reads it", "generate", "-m", tiny(),
            "-f", "/dev/null", "-tp", "2");
    REFUSED(2, "--ids -: expected a regular file", "generate", "-m", tiny(), "--ids", "-", "-tp", "2");
    REFUSED(2, "attn is not offered with --tensor-parallel-size 2", "bench", "attn", "-tp", "2");
}

static void refused_launched(void) {
    need_mpi();
    static const char three[] = MPIRUN "-q -np 3 \"$0\" \"$@\"";
    result r = RUN_SHELL(three, "eval", "-m", tiny(), "--length", "600", "-tp", "2");
    CHECK_INT(r.code, 2);
    CHECK_HAS(r.err, "mpirun or srun has started 3 ranks; expected a multiple of --tensor-parallel-size 2");
    r = RUN_SHELL(MPIRUN "-q -np 4 \"$0\" \"$@\"", TINY, "-tp", "2");
    CHECK_INT(r.code, 2);
    CHECK_HAS(r.err, "mpirun or srun has started 4 ranks; expected 2, those of --tensor-parallel-size");
    r = RUN_SHELL(MPIRUN "-q -np 1 \"$0\" \"$@\" -n 1 : -np 1 \"$0\" \"$@\" -n 2", "generate", "-m", tiny(), "-p", "Hello",
                  "-tp", "2");
    CHECK_INT(r.code, 2);
    CHECK_HAS(r.err, "rank 1 of 2 (");
    CHECK_HAS(r.err, "has arguments = ");
}

static void real_model(void) { // 9 query heads, 3 KV heads
    REFUSED(1, "this model has 9 query heads (num_attention_heads), which do not divide by 2", "generate", "-m",
            venv_file(VENV_SMOLLM2), "-p", "Hello", "-n", "1", "-tp", "2");
}

static void inspected(void) {
    result r = RUN("inspect", "-m", "llama-3.1-8b", "--load-format", "dummy", "-tp", "8");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, "| each of 8 ranks has | 2.73 GiB of weights, 16.00 KiB of KV per token |");
    CHECK_HAS(r.out, "| weights | 16060522496 bytes, 14.96 GiB |"); // each tensor once
    CHECK_HAS(r.out, "| KV per token | 131072 bytes, 128.00 KiB |");
}

// ---- a rank that fails ----

static int is_alive(long process) {
    char path[64], text[300] = "";
    snprintf(path, sizeof path, "/proc/%ld/stat", process);
    FILE *f = fopen(path, "r");
    if (!f) return 0;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    const char *state = n ? strrchr(text, ')') : NULL;
    return state && state[2] != 'Z';
}

// A killed and a stopped rank, and Ctrl+C in the first rank.
static void hurt(void) {
    static const int signals[] = {SIGKILL, SIGSTOP, SIGINT};
    for (int i = 0; i < 3; i++) {
        const char *const args[] = {"generate",     "-m",  tiny(), "-p", "Hello", "-n", "120000",
                                    "--ignore-eos", "-tp", "2",    "-t", "1",     NULL};
        char part[80];
        char out[256];
        snprintf(out, sizeof out, "%s%d", in_tmp("out"), i);
        pid_t pid = start(NULL, 0, out, args);
        wait_for_bytes(pid, out, 200); // the ranks generate
        long child = child_of(pid);
        CHECK(child > 1);
        double begin = sl_now_ms();
        CHECK(!kill(signals[i] == SIGINT ? pid : (pid_t)child, signals[i]));
        result r = finish(pid, out);
        while (is_alive(child) && sl_now_ms() - begin < LIMIT_MS) usleep(1000);
        CHECK(!is_alive(child));
        CHECK(sl_now_ms() - begin < LIMIT_MS);
        CHECK_INT(r.code, signals[i] == SIGINT ? -SIGINT : 1);
        snprintf(part, sizeof part, "sleigh: error: rank 1 of 2 (");
        if (signals[i] == SIGINT)
            CHECK_HAS(r.err, "stopped: interrupted");
        else
            CHECK_HAS(r.err, part);
        if (signals[i] == SIGKILL) CHECK_HAS(r.err, " was killed by signal 9 (Killed) before the end of the run");
    }
}

static const test_case cases[] = {{"hurt", NEEDS_NOTHING, hurt},
                                  {"methods", NEEDS_NOTHING, methods},
                                  {"formats", NEEDS_NOTHING, formats},
                                  {"more_ranks", NEEDS_NOTHING, more_ranks},
                                  {"biases", NEEDS_NOTHING, biases},
                                  {"packed", NEEDS_NOTHING, packed},
                                  {"drafts", NEEDS_NOTHING, drafts},
                                  {"heads", NEEDS_NOTHING, heads},
                                  {"commands", NEEDS_NOTHING, commands},
                                  {"launched", NEEDS_NOTHING, launched},
                                  {"refused", NEEDS_NOTHING, refused},
                                  {"refused_launched", NEEDS_NOTHING, refused_launched},
                                  {"real_model", NEEDS_NOTHING, real_model},
                                  {"inspected", NEEDS_NOTHING, inspected},
                                  {0}};
extern const test_suite suite_cli_team;
const test_suite suite_cli_team = {"cli_team", cases};
