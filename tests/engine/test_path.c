// tests/engine/test_path.c - compares the paths drawn in docs/architecture.md with real backtraces at a kernel of the CPU.
//
// A case replaces one vector kernel by a probe and runs sl_step or sl_prefill on the embedded model. The probe's first call
// records a backtrace. addr2line turns the addresses into functions and files, inlined functions included. The page must name
// every function between the entry and the kernel, in the order of the calls, and no other function.
#include "attention/cpu/cpu_kernels.h"
#include "engine/engine.h"
#include "tests/support/models.h"
#include "tests/test.h"

#include <execinfo.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define PAGE "docs/architecture.md"

enum { MOST_FRAMES = 64, MOST_LINES = 128, PROMPT = 300, PROMPT_SEED = 17, WHY = 600 };

typedef struct frame {
    char function[80], file[200];
    int may_vanish; // of the page: the next call is the last action of the function, so an optimiser may reuse the frame
} frame;

typedef struct path {
    frame at[MOST_LINES]; // from the entry to the kernel
    int n;
} path;

static sl_error err;

// ---- the probe ----

static void *addresses[MOST_FRAMES];
static int n_addresses; // 0: the probe has not been called
static sl_attn_kernels real;

static void record(void) {
    if (!n_addresses) n_addresses = backtrace(addresses, MOST_FRAMES);
}

static void probe_score(const float *q, int group, sl_kv_run k, int n_rows, int head_dim, float scale, float *score,
                        int stride) {
    record();
    real.score(q, group, k, n_rows, head_dim, scale, score, stride);
}

static void probe_gemm(const float *a, int lda, const float *b, int ldb, int m, int n, int k, int accumulate, float *c,
                       int ldc) {
    record();
    real.gemm(a, lda, b, ldb, m, n, k, accumulate, c, ldc);
}

// The table of kernels lies in memory that is read-only after start-up: make it writable first.
static void set_kernels(void (*score)(const float *, int, sl_kv_run, int, int, float, float *, int),
                        void (*gemm)(const float *, int, const float *, int, int, int, int, int, float *, int)) {
    sl_attn_kernels *table = (sl_attn_kernels *)(uintptr_t)sl_attn_kernels_best();
    uintptr_t size = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)table / size * size;
    CHECK(mprotect((void *)first, (uintptr_t)(table + 1) - first, PROT_READ | PROT_WRITE) == 0);
    table->score = score;
    table->gemm = gemm;
}

// ---- from addresses to functions ----

typedef struct program {
    uintptr_t base, first, end; // load address; where its segments lie
} program;

static int find_program(struct dl_phdr_info *info, size_t size, void *to) {
    program *p = to;
    (void)size;
    *p = (program){.base = info->dlpi_addr, .first = UINTPTR_MAX};
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *h = &info->dlpi_phdr[i];
        if (h->p_type != PT_LOAD) continue;
        if (p->base + h->p_vaddr < p->first) p->first = p->base + h->p_vaddr;
        if (p->base + h->p_vaddr + h->p_memsz > p->end) p->end = p->base + h->p_vaddr + h->p_memsz;
    }
    return 1; // the program itself is the first entry
}

static int ends_with(const char *text, const char *end) { // whole names of a path
    size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end) && (n == m || text[n - m - 1] == '/');
}

static int is_foreign(const char *file) { // the probe, and the loop that runs tasks
    return ends_with(file, "tests/engine/test_path.c") || ends_with(file, "base/thread_pool.c");
}

static void drop_clone_suffix(char *name) { // run_layer.isra.0
    char *dot = strchr(name, '.');
    if (dot) *dot = 0;
}

// Adds a function below the last one. Parts of one function count once.
static void add(path *p, const char *function, const char *file) {
    frame *last = p->n ? &p->at[p->n - 1] : NULL;
    if (last && !strcmp(last->function, function) && !strcmp(last->file, file)) return;
    CHECK(p->n < MOST_LINES);
    snprintf(p->at[p->n].function, sizeof p->at[p->n].function, "%s", function);
    snprintf(p->at[p->n].file, sizeof p->at[p->n].file, "%s", file);
    p->at[p->n++].may_vanish = 0;
}

// The functions of the recorded backtrace from `entry` down, and the kernel below them.
static path trace(const char *entry, const void *kernel) {
    static char functions[MOST_LINES][80], files[MOST_LINES][200];
    char command[8192], self[400] = {0};
    program here = {0};
    path p = {0};
    int n = 0, at;
    dl_iterate_phdr(find_program, &here);
    CHECK(readlink("/proc/self/exe", self, sizeof self - 1) > 0);
    at = snprintf(command, sizeof command, "addr2line -f -i -e '%s' 0x%zx", self, (size_t)((uintptr_t)kernel - here.base));
    for (int i = 0; i < n_addresses; i++) { // a return address lies after the call
        uintptr_t call = (uintptr_t)addresses[i] - 1;
        if (call >= here.first && call < here.end)
            at += snprintf(command + at, sizeof command - at, " 0x%zx", (size_t)(call - here.base));
    }
    FILE *f = popen(command, "r");
    CHECK(f != NULL);
    while (n < MOST_LINES && fscanf(f, " %79[^\n] %199[^\n]", functions[n], files[n]) == 2) {
        drop_clone_suffix(functions[n]);
        files[n][strcspn(files[n], ":")] = 0;
        n++;
    }
    CHECK_INT(pclose(f), 0);
    while (n > 0 && strcmp(functions[n - 1], entry)) n--; // the test and its callers
    if (n == 0) FAIL("the backtrace does not reach %s", entry);
    for (int i = n - 1; i > 0; i--)
        if (!is_foreign(files[i])) add(&p, functions[i], files[i]);
    add(&p, functions[0], ""); // the kernel: sanitizers give its first line to the file that includes the template
    return p;
}

// ---- the page ----

// Reads the fenced block "```text TITLE" of the page. A line is a function, its file, and a remark: "(tail call)" marks a
// function whose frame may vanish.
static path read_page(const char *title) {
    char line[400], fence[100];
    path p = {0};
    FILE *f = fopen(PAGE, "r");
    if (!f) TEST_SKIP("needs %s", PAGE);
    snprintf(fence, sizeof fence, "```text %s\n", title);
    while (fgets(line, sizeof line, f) && strcmp(line, fence)) {
    }
    while (p.n < MOST_LINES && fgets(line, sizeof line, f) && strncmp(line, "```", 3)) {
        frame *to = &p.at[p.n];
        if (sscanf(line, "%79s %199s", to->function, to->file) != 2) continue;
        to->may_vanish = strstr(line, "(tail call)") != NULL;
        p.n++;
    }
    fclose(f);
    if (p.n == 0) FAIL("%s: no block \"```text %s\"", PAGE, title);
    return p;
}

static int is_same(const frame *page, const frame *real_frame) {
    if (strcmp(page->function, real_frame->function)) return 0;
    return !real_frame->file[0] || ends_with(real_frame->file, page->file);
}

// 1 when the page is right. Else says in why[WHY] what differs.
static int compare(const path *page, const path *found, char *why) {
    int j = 0;
    for (int i = 0; i < page->n; i++) {
        if (j < found->n && is_same(&page->at[i], &found->at[j]))
            j++;
        else if (!page->at[i].may_vanish) {
            snprintf(why, WHY, "the page has %.79s (%.100s) where the backtrace has %.79s (%.100s)", page->at[i].function,
                     page->at[i].file, j < found->n ? found->at[j].function : "nothing", j < found->n ? found->at[j].file : "");
            return 0;
        }
    }
    if (j == found->n) return 1;
    snprintf(why, WHY, "the page lacks %.79s (%.100s)", found->at[j].function, found->at[j].file);
    return 0;
}

// ---- the runs ----

static void need_addr2line(void) {
    if (system("addr2line --version >/dev/null 2>&1")) TEST_SKIP("needs addr2line (binutils)");
    if (access(PAGE, R_OK)) TEST_SKIP("needs %s", PAGE);
}

// Prefills PROMPT tokens and takes one step. with_step: records the step, else the prefill. attn: a method that scores by
// `score`
static path run_and_trace(const char *attn, int with_step) {
    model_fixture r = model_fixture_load("models/tiny", attn, (sl_engine_options){.n_ctx = 512, .n_threads = 1, .seed = 1});
    sl_session *s = model_fixture_session(&r, 1);
    sl_sampling greedy = sl_sampling_default();
    sl_sampler *sampler;
    int32_t *ids = test_ids(PROMPT, r.n_vocab, PROMPT_SEED), id;
    greedy.temp = 0;
    CHECK_OK(sl_sampler_new(&greedy, r.n_vocab, &sampler, &err), err);
    real = *sl_attn_kernels_best();
    n_addresses = 0;
    if (!with_step) set_kernels(real.score, probe_gemm);
    int rc = sl_prefill(s, ids, PROMPT, NULL, &err);
    if (with_step) set_kernels(probe_score, real.gemm);
    if (!rc) rc = sl_step(&s, 1, &sampler, &id, &err);
    set_kernels(real.score, real.gemm);
    CHECK_OK(rc, err);
    CHECK(n_addresses > 0);
    sl_sampler_free(sampler);
    sl_session_free(s);
    model_fixture_close(&r);
    free(ids);
    return with_step ? trace("sl_step", (void *)real.score) : trace("sl_prefill", (void *)real.gemm);
}

static void check_page(const char *title, const path *found) {
    char why[WHY];
    path page = read_page(title);
    if (compare(&page, found, why)) return;
    for (int i = 0; i < found->n; i++) printf("    %-24s %s\n", found->at[i].function, found->at[i].file);
    FAIL("%s, \"%s\": %s", PAGE, title, why);
}

static void step_with_a_sampled_method(void) {
    need_addr2line();
    path found = run_and_trace("santa-prop:S=16", 1);
    check_page("step on the CPU", &found);
}

static void prefill(void) {
    need_addr2line();
    path found = run_and_trace("dense", 0);
    check_page("prefill on the CPU", &found);
}

// The comparison notices another name, another file, a line too many and a line too few.
static void wrong_pages_are_found(void) {
    char why[WHY];
    need_addr2line();
    path page = read_page("step on the CPU"), found = run_and_trace("santa-prop:S=16", 1);
    for (int i = 0; i < page.n; i++) {
        path wrong = page;
        if (page.at[i].may_vanish) continue;
        strcpy(wrong.at[i].function, "sl_other");
        CHECK(!compare(&wrong, &found, why));
        wrong = page;
        strcpy(wrong.at[i].file, "engine/other.c");
        CHECK_INT(compare(&wrong, &found, why), i == page.n - 1); // the file of the kernel is functions_stand_in_their_files'
        wrong = page;
        memmove(&wrong.at[i], &wrong.at[i + 1], (size_t)(page.n - i - 1) * sizeof *wrong.at);
        wrong.n--;
        CHECK(!compare(&wrong, &found, why));
        wrong = page;
        memmove(&wrong.at[i + 1], &wrong.at[i], (size_t)(page.n - i) * sizeof *wrong.at);
        wrong.n++;
        CHECK(!compare(&wrong, &found, why));
    }
}

// The functions of every drawn path stand in the files that the page names. For the path on a GPU there is no other check.
static void functions_stand_in_their_files(void) {
    static const char *const titles[] = {"step on the CPU", "prefill on the CPU", "step on CUDA", "prefill on CUDA"};
    need_addr2line();
    for (size_t t = 0; t < sizeof titles / sizeof *titles; t++) {
        path page = read_page(titles[t]);
        for (int i = 0; i < page.n; i++) {
            char command[600];
            snprintf(command, sizeof command, "grep -qE '\\b%s(\\(|<|,|\\))' '%s'", page.at[i].function, page.at[i].file);
            if (system(command)) FAIL("%s: %s does not have %s", PAGE, page.at[i].file, page.at[i].function);
        }
    }
}

static const test_case cases[] = {
    {"step", NEEDS_NOTHING, step_with_a_sampled_method},
    {"prefill", NEEDS_NOTHING, prefill},
    {"wrong-pages-are-found", NEEDS_NOTHING, wrong_pages_are_found},
    {"names", NEEDS_NOTHING, functions_stand_in_their_files},
    {0},
};
extern const test_suite suite_path;
const test_suite suite_path = {"path", cases};
