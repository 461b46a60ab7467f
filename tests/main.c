// tests/main.c - the test runner (test.h). A case runs in this process, or with -j in one of several processes. A failed check
// jumps back to the runner.
#define _GNU_SOURCE
#include "tests/support/gpu.h"
#include "tests/support/threads.h"
#include "tests/test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// clang-format off
#define SUITES(X) \
    X(scripts) X(package) /* the longest cases: no process waits for them at the end */ \
    X(json) X(sessions) X(streams) X(drafts) X(draft_checks) X(draft_faults) X(draft_weights) X(guided) X(plans) X(exact_below) X(scheduler) X(observation) X(edges) X(unbound) X(config) X(fields) X(model_settings) \
    X(dequant) X(gguf) X(gguf_keys) X(gguf_model) \
    X(kv) X(loader) X(kv_rows) X(kv_formats) X(kv_cache_types) X(kv_scales) X(kv_place) X(kv_offload) X(bucket_file) X(bit_file) X(host_memory) \
    X(weights) X(quantise) X(quant) X(rope) X(fuzz) X(backend) X(prefill_product) X(formats) X(packed) X(unicode) X(patterns) X(tekken) X(tokenizer) X(added_tokens) X(pipelines) \
    X(vocabularies) X(sentencepiece) X(grammar) X(json_schema) X(jinja) X(chat) X(chat_mistral) X(sampler) X(kernels) X(host_cpus) \
    X(thread_pool) X(ranks) X(number) X(cli_messages) X(attention) X(randomness) X(draws) X(estimators) X(long) X(pps) \
    X(certified) X(formulas) X(proposals) X(importance) X(sparse) X(saap) X(saap_is) X(bernoulli) X(vattention) X(predictors) \
    X(vattention_bounds) X(compositions) X(extremes) X(bounds) X(sinks) X(means) X(masks) X(sparse_prefill) X(model) X(model_goldens) \
    X(real_model) X(prefill_methods) X(thresholds) X(session_file) X(dummy) X(step) X(path) X(finite) \
    X(attention_spread) X(embed) X(examples) X(cli) X(cli_answer) X(cli_grammar) X(cli_inspect) X(line_screen) X(cli_output) \
    X(cli_chat) X(prompt_cache) X(cli_jsonl) X(cli_drafts) X(cli_exact) X(cli_prefill) X(cli_parallel) X(cli_bench) X(cli_cliffs) X(cli_compare) X(cli_eval) \
    X(cli_meter) X(cli_perplexity) X(cli_plot) X(cli_reproduce) X(cli_manual) X(cli_parts) X(cli_quantize) X(cli_habits) X(cli_flags) \
    X(figures_bench) X(figures_compare) X(figures_eval) X(figures_tune) X(plot_figures) X(cli_rope) X(cli_hub) \
    X(cli_model_path) X(cli_ranks) X(cli_team) X(rank_sums) X(cli_interrupt) X(cli_faults) X(layer_budgets) X(attn_profile) X(cli_tune) X(progress) X(eval) \
    X(http) X(http_streams) X(http_hostile) X(page) X(serve) X(serve_drafts) X(serve_formats) X(serve_calls) X(serve_load) X(serve_slots) X(serve_conversations) X(serve_ranks) X(serve_clients) \
    X(intervals) X(auto) X(auto_prefill) X(strips) X(cli_auto) X(cuda_ops) X(cuda_linear) X(cuda_quant) X(cuda_fp8) X(cuda_norm) X(cuda_decode) \
    X(cuda_prefill) X(cuda_sampler) X(cuda_engine) X(cuda_devices) X(cuda_ranks) X(cli_team_cuda) X(cuda_bernoulli) X(cuda_joined) X(cuda_bits) X(cuda_byte_rows) X(cuda_carried) \
    X(cuda_extras) X(cuda_extremes) X(cuda_is) X(cuda_masks) X(cuda_same_masks) X(cuda_long) X(cuda_means) \
    X(cuda_observe) X(cuda_pps) X(cuda_santa) X(cuda_saap) X(cuda_sparse) X(cuda_take_all) X(cuda_take_known) \
    X(cuda_tiny) X(cuda_vattention) X(cuda_naive) X(cuda_naive_layers) X(cuda_offload) \
    X(api_calls) X(api_requests) X(api_replies) X(api_turns)
// clang-format on
#define DECLARE(NAME) extern const test_suite suite_##NAME;
#define ADDRESS(NAME) &suite_##NAME,

SUITES(DECLARE)

static const test_suite *const suites[] = {SUITES(ADDRESS)};

uint64_t test_seed = 20261121;

static jmp_buf back;
static char reason[2048];
static char tmp_dir[64];
enum { PASSED = 1, FAILED, SKIPPED };

void test_fail(const char *file, int line, const char *fmt, ...) {
    int n = snprintf(reason, sizeof reason, "%s:%d: ", file, line);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason + n, sizeof reason - n, fmt, ap);
    va_end(ap);
    longjmp(back, FAILED);
}

void test_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(reason, sizeof reason, fmt, ap);
    va_end(ap);
    longjmp(back, SKIPPED);
}

const char *test_shared(void) {
    const char *dir = getenv("SLEIGH_SHARED");
    return dir ? dir : "../shared";
}

const char *test_tmp(void) {
    if (!tmp_dir[0]) {
        strcpy(tmp_dir, "/tmp/sleigh-test-XXXXXX");
        if (!mkdtemp(tmp_dir)) FAIL("cannot make a folder in /tmp");
    }
    return tmp_dir;
}

static void remove_tmp(void) {
    if (!tmp_dir[0]) return;
    char cmd[96];
    snprintf(cmd, sizeof cmd, "rm -rf '%s'", tmp_dir);
    if (system(cmd)) fprintf(stderr, "could not remove %s\n", tmp_dir);
    tmp_dir[0] = 0;
}

double test_uniform(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) * 0x1p-53;
}

static uint64_t draws;

void test_draw_from(uint64_t seed) {
    draws = seed;
}

double test_draw(void) {
    return test_uniform(&draws);
}

int test_below(int n) {
    return (int)(test_draw() * n);
}

double test_normal(uint64_t *state) { // Box and Muller
    double u = 1 - test_uniform(state), v = test_uniform(state);
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static int missing(int needs) { // 1: skipped, with the reason set
    if ((needs & NEEDS_GPU) && !gpu_present()) return snprintf(reason, sizeof reason, "needs a GPU build and a GPU");
    if ((needs & NEEDS_TWO_GPUS) && gpu_count() < 2) return snprintf(reason, sizeof reason, "needs two GPUs");
    if ((needs & NEEDS_SHARED) && access(test_shared(), R_OK))
        return snprintf(reason, sizeof reason, "needs %s (set SLEIGH_SHARED)", test_shared());
    if (SANITIZED && (needs & NEEDS_SPEED)) return snprintf(reason, sizeof reason, "takes tens of seconds with sanitizers");
    return 0;
}

static int run_case(const test_case *c) {
    if (missing(c->needs)) return SKIPPED;
    int result = setjmp(back);
    if (result == 0) {
        c->fn();
        result = PASSED;
    }
    remove_tmp();
    gpu_free_all();
    return result;
}

static int selected(const char *name, char **prefixes, int n) {
    for (int i = 0; i < n; i++)
        if (!strncmp(name, prefixes[i], strlen(prefixes[i]))) return 1;
    return n == 0;
}

// ---- the chosen cases ----

typedef struct chosen {
    char name[128];
    const test_case *c;
} chosen;

static chosen *cases;
static int n_cases;

static void choose(char **prefixes, int n_prefixes, int gpu_only) {
    for (size_t s = 0; s < sizeof suites / sizeof *suites; s++)
        for (const test_case *c = suites[s]->cases; c->name; c++) {
            chosen x = {.c = c};
            snprintf(x.name, sizeof x.name, "%s/%s", suites[s]->name, c->name);
            if (!selected(x.name, prefixes, n_prefixes) || (gpu_only && !(c->needs & NEEDS_GPU))) continue;
            cases = realloc(cases, (n_cases + 1) * sizeof *cases);
            cases[n_cases++] = x;
        }
}

static int run_chosen(const chosen *x) {
    test_threads(1); // a case may leave more
    struct timespec t0, t1;
    clock_gettime(CLOCK_MONOTONIC, &t0);
    int result = run_case(x->c);
    clock_gettime(CLOCK_MONOTONIC, &t1);
    double seconds = t1.tv_sec - t0.tv_sec + 1e-9 * (t1.tv_nsec - t0.tv_nsec);
    if (result == PASSED)
        printf("ok    %-52s %6.2f s\n", x->name, seconds);
    else
        printf("%s  %-52s %s\n", result == FAILED ? "FAIL" : "skip", x->name, reason);
    fflush(stdout);
    return result;
}

// ---- several processes ----

enum {
    MOST_JOBS = 256,
    GPU_JOBS = 8, // processes on one GPU; each takes half a gigabyte of its memory
};

// Memory that all processes share.
typedef struct board {
    atomic_int next[3];     // next case to take: without a GPU, with a GPU, with a whole GPU
    atomic_int count[4];    // cases with each result
    int running[MOST_JOBS]; // the case that each process runs; -1: none
    int fail_fast;          // the first failure ends the run
} board;

static void run_on(board *b, int job, int i) {
    b->running[job] = i;
    // Most prompts of tests are short. The commands of a case draw nevertheless, unless it passes the flag.
    setenv("SLEIGH_EXACT_BELOW", "off", 1);
    atomic_fetch_add(&b->count[run_chosen(&cases[i])], 1);
    b->running[job] = -1;
    if (b->fail_fast && b->count[FAILED])
        for (int kind = 0; kind < 3; kind++) atomic_store(&b->next[kind], n_cases);
}

static int kind_of(const test_case *c) { // index into board.next
    return c->needs & NEEDS_WHOLE_GPU ? 2 : !!(c->needs & NEEDS_GPU);
}

// Runs cases of a kind until none is left.
static void work(board *b, int job, int kind) {
    for (int i; (i = atomic_fetch_add(&b->next[kind], 1)) < n_cases;)
        if (kind_of(cases[i].c) == kind) run_on(b, job, i);
}

static pid_t start_job(board *b, int job, int whole_gpu) {
    pid_t pid = fork();
    if (pid) return pid;
    static char lines[1 << 16]; // full buffering keeps the lines of a case together
    setvbuf(stdout, lines, _IOFBF, sizeof lines);
    for (int kind = 1; !whole_gpu && kind >= 0; kind--)
        if (kind == 0 || job < GPU_JOBS) work(b, job, kind);
    if (whole_gpu) work(b, job, 2);
    exit(0);
}

// A case that ends its process counts as failed. A new process runs the other cases.
static void run_jobs(board *b, int n_jobs, int whole_gpu) {
    pid_t pids[MOST_JOBS];
    int n_live = n_jobs, status;
    fflush(stdout);
    for (int job = 0; job < n_jobs; job++) pids[job] = start_job(b, job, whole_gpu);
    while (n_live > 0) {
        pid_t pid = wait(&status);
        int job = 0;
        while (job < n_jobs && pids[job] != pid) job++;
        if (pid < 0 || job == n_jobs) exit((perror("sleigh-test: processes"), 1));
        int i = b->running[job];
        if (i >= 0 || status) { // the process ended within a case, or a sanitizer found a leak at the end
            printf("FAIL  %-52s ended its process (status 0x%x)\n", i >= 0 ? cases[i].name : "sleigh-test", status);
            fflush(stdout);
            atomic_fetch_add(&b->count[FAILED], 1);
        }
        if (i < 0) {
            n_live--;
            continue;
        }
        b->running[job] = -1;
        pids[job] = start_job(b, job, whole_gpu);
    }
}

static int usage(void) {
    return fprintf(stderr, "usage: sleigh-test [--list] [--seed N] [--gpu] [--fail-fast] [-j N] [PREFIX...]\n"), 2;
}

int main(int argc, char **argv) {
    int list = 0, gpu_only = 0, fail_fast = 0, n_jobs = 1, n_prefixes = 0;
    char **prefixes = argv + 1;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--list"))
            list = 1;
        else if (!strcmp(argv[i], "--gpu"))
            gpu_only = 1;
        else if (!strcmp(argv[i], "--fail-fast"))
            fail_fast = 1;
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            test_seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "-j") && i + 1 < argc)
            n_jobs = atoi(argv[++i]);
        else if (argv[i][0] == '-')
            return usage();
        else
            prefixes[n_prefixes++] = argv[i];
    }
    if (n_jobs < 1 || n_jobs > MOST_JOBS) return usage();
    choose(prefixes, n_prefixes, gpu_only);
    for (int i = 0; list && i < n_cases; i++) puts(cases[i].name);
    if (list) return 0;
    board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b == MAP_FAILED) return perror("mmap"), 1;
    for (int i = 0; i < MOST_JOBS; i++) b->running[i] = -1;
    b->fail_fast = fail_fast;
    printf("seed %llu\n", (unsigned long long)test_seed);
    if (n_jobs == 1) {
        for (int i; (i = atomic_fetch_add(&b->next[0], 1)) < n_cases;) run_on(b, 0, i);
    } else {
        run_jobs(b, n_jobs, 0);
        run_jobs(b, 1, 1);
    }
    printf("%d passed, %d failed, %d skipped\n", b->count[PASSED], b->count[FAILED], b->count[SKIPPED]);
    return b->count[FAILED] > 0;
}
