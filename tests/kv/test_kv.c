// tests/kv/test_kv.c - pages: ownership, sharing, copy on write, exhaustion. Page extras: built once, and again after rows
// have changed.
#include "backend/backend.h"
#include "kv/kv_extras.h"
#include "kv/kv_offload.h"
#include "tests/test.h"

#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, HEADS = 2, DIM = 16 };
static sl_error err;

// 1: pools are in the memory of a device. This device has the memory of the CPU, builds blocks with the functions of the CPU,
// and checks the sizes of what is released.
static int on_device, n_allocated;

static void *counted_alloc(const sl_backend *be, size_t size) {
    (void)be;
    size_t *p = calloc(1, 256 + size);
    CHECK(p != NULL);
    *p = size;
    n_allocated++;
    return (char *)p + 256;
}

static void counted_release(const sl_backend *be, void *p, size_t size) {
    (void)be;
    if (!p) return;
    CHECK_INT(*(size_t *)((char *)p - 256), size);
    free((char *)p - 256);
    n_allocated--;
}

static void *no_stream(const sl_backend *be) {
    (void)be;
    return NULL;
}

static const sl_backend *memory(void) {
    static sl_backend device;
    device = *sl_cpu_memory();
    device.is_device = 1, device.stream = no_stream;
    device.alloc = device.alloc_host = counted_alloc, device.release = device.release_host = counted_release;
    return on_device ? &device : sl_cpu_memory();
}

static sl_kv_pool pool_of(int n_pages) {
    sl_kv_pool pool;
    CHECK_OK(sl_kv_pool_init(&pool, memory(), LAYERS, HEADS, DIM, n_pages, &err), err);
    return pool;
}

static bf16 *k_at(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int h, int j) {
    sl_kv_view view = sl_kv_view_of(pool, seq, layer, j + 1);
    return (bf16 *)sl_kv_row_at(sl_kv_k_run(&view, HEADS, DIM, j / SL_PAGE, h), DIM, j % SL_PAGE).data;
}
static bf16 *v_at(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int h, int j) {
    return sl_kv_layer(pool, layer).v + (k_at(pool, seq, layer, h, j) - sl_kv_layer(pool, layer).k);
}

static bf16 value(int tag, int layer, int h, int j) {
    return (bf16)(tag * 10007 + layer * 4099 + h * 2053 + j);
}

static void append(sl_kv_pool *pool, sl_kv_seq *seq, int n, int tag) { // appends until the sequence has n rows
    CHECK_OK(sl_kv_reserve(pool, seq, n, &err), err);
    for (int j = seq->n_tokens; j < n; j++)
        for (int layer = 0; layer < LAYERS; layer++)
            for (int h = 0; h < HEADS; h++)
                for (int d = 0; d < DIM; d++) {
                    k_at(pool, seq, layer, h, j)[d] = value(tag, layer, h, j);
                    v_at(pool, seq, layer, h, j)[d] = value(tag + 1, layer, h, j);
                }
    seq->n_tokens = n;
}

static void check_rows(const sl_kv_pool *pool, const sl_kv_seq *seq, int from, int to, int tag) {
    for (int j = from; j < to; j++)
        for (int layer = 0; layer < LAYERS; layer++)
            for (int h = 0; h < HEADS; h++) {
                CHECK_INT(k_at(pool, seq, layer, h, j)[DIM - 1], value(tag, layer, h, j));
                CHECK_INT(v_at(pool, seq, layer, h, j)[0], value(tag + 1, layer, h, j));
            }
}

static void exhaustion(void) {
    sl_kv_pool pool = pool_of(3);
    sl_kv_seq a = {0}, b = {0}, c = {0};
    append(&pool, &a, 500, 1);
    CHECK_ERR(sl_kv_reserve(&pool, &b, 257, &err), err, SL_ERR_MEMORY, "1 free of 3");
    CHECK_INT(b.n_pages, 0);
    CHECK_INT(pool.n_free, 1);
    append(&pool, &b, 256, 2);
    CHECK_ERR(sl_kv_fork(&pool, &a, &c, 300, &err), err, SL_ERR_MEMORY, "0 free");
    CHECK_INT(c.n_pages, 0);
    check_rows(&pool, &a, 0, 500, 1);
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b), sl_kv_seq_free(&pool, &c);
    CHECK_INT(pool.n_free, 3);
    sl_kv_pool_free(&pool);
}

// ---- page extras: a digest of the page's K and V; a chained kind adds the digest of the previous page ----

static int n_built; // several threads may add to it

static uint64_t digest(uint64_t h, const bf16 *x) {
    for (int i = 0; i < SL_PAGE * DIM; i++) h = (h ^ x[i]) * 0x100000001b3u;
    return h;
}
static size_t digest_size(int arg, int head_dim) {
    (void)arg, (void)head_dim;
    return 64;
}
static void digest_build(const sl_kv_page *page, void *out) {
    uint64_t h = (uint64_t)page->arg + (page->before ? *(const uint64_t *)page->before : 0);
    *(uint64_t *)out = digest(digest(h, page->k.data), page->v.data);
    __atomic_add_fetch(&n_built, 1, __ATOMIC_RELAXED);
}

// What a device does, from the comments of sl_kv_device_build.
static void build_all(const sl_kv_device_build *b, int is_chained, int span, void (*build)(const sl_kv_page *page, void *out)) {
    const size_t rows = SL_PAGE * DIM;
    for (int i = 0; i < b->n * b->n_kv_heads; i++) {
        int at = i / b->n_kv_heads, h = i % b->n_kv_heads, before = is_chained ? b->before[at] : -1;
        const void *parts[SL_KV_SPAN_MOST];
        sl_kv_run k_parts[SL_KV_SPAN_MOST];
        sl_kv_page page = {.arg = b->arg, .head_dim = b->head_dim, .layer = b->layer, .h = h};
        page.first = (b->index[at] + 1 - (span ? span : 1)) * SL_PAGE;
        if (before >= 0) page.before = (char *)b->data + (before * HEADS + h) * b->size;
        for (int j = 0; j < span; j++) {
            parts[j] = (const char *)b->of + (b->parts[at * span + j] * HEADS + h) * b->of_size;
            k_parts[j] = sl_kv_bf16_run(b->k + (b->from[at * span + j] * HEADS + h) * rows);
        }
        if (span) page.parts = parts, page.k_parts = k_parts;
        size_t block = span ? 0 : (b->from[at] * HEADS + h) * rows;
        if (!span) page.k = sl_kv_bf16_run(b->k + block), page.v = sl_kv_bf16_run(b->v + block);
        build(&page, (char *)b->data + ((span ? b->slots : b->pages)[at] * HEADS + h) * b->size);
    }
}
static void plain_device(const sl_kv_device_build *b) {
    build_all(b, 0, 0, digest_build);
}
static void chained_device(const sl_kv_device_build *b) {
    build_all(b, 1, 0, digest_build);
}

static const sl_kv_extra_kind plain = {
    .name = "digests", .size = digest_size, .build = digest_build, .build_device = plain_device};
static const sl_kv_extra_kind chained = {
    .name = "chained digests", .chained = 1, .size = digest_size, .build = digest_build, .build_device = chained_device};
static const sl_kv_need kinds[] = {{&plain, 1}, {&plain, 2}, {&chained, 1}};
enum { N_KINDS = 3 };

// Builds all kinds in all layers. Checks every block against the rows of the sequence. Checks that `pages` pages were built,
// with one build per layer, head and kind.
static void check_extras(sl_kv_pool *pool, const sl_kv_seq *seq, int pages) {
    n_built = 0;
    for (int i = 0; i < N_KINDS; i++)
        for (int layer = 0; layer < LAYERS; layer++) {
            CHECK_OK(sl_kv_keep(pool, kinds[i], &err), err);
            sl_kv_build(pool, seq, layer, kinds[i]);
            sl_kv_view view = sl_kv_view_of(pool, seq, layer, seq->n_tokens + 1); // with the row of the next token
            for (int h = 0; h < HEADS; h++) {
                uint64_t before = 0;
                for (int page = 0; page < seq->n_tokens / SL_PAGE; page++) {
                    const bf16 *k = k_at(pool, seq, layer, h, page * SL_PAGE), *v = v_at(pool, seq, layer, h, page * SL_PAGE);
                    uint64_t want = digest(digest((uint64_t)kinds[i].arg + before, k), v);
                    if (*(const uint64_t *)sl_kv_extra(&view, kinds[i], page, h) != want)
                        FAIL("%s %d, layer %d, page %d, head %d: the block does not fit the rows", kinds[i].kind->name,
                             kinds[i].arg, layer, page, h);
                    if (kinds[i].kind->chained) before = want;
                }
            }
        }
    CHECK_INT(n_built, pages * N_KINDS * LAYERS * HEADS);
}

static void extras_built_once(void) {
    sl_kv_pool pool = pool_of(9);
    sl_kv_seq a = {0}, b = {0};
    append(&pool, &a, 255, 1);
    check_extras(&pool, &a, 0); // no full page
    append(&pool, &a, 600, 1);
    check_extras(&pool, &a, 2);
    check_extras(&pool, &a, 0);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 600, &err), err);
    check_extras(&pool, &b, 0); // the extras of shared pages exist
    append(&pool, &b, 1024, 3);
    check_extras(&pool, &b, 2);
    append(&pool, &a, 768, 5);
    check_extras(&pool, &a, 1);
    check_extras(&pool, &b, 0);
    sl_kv_seq_free(&pool, &a);
    check_extras(&pool, &b, 0); // the sequence that built the extras is gone
    sl_kv_seq_free(&pool, &b);
    sl_kv_pool_free(&pool);
}

static void extras_built_anew(void) {
    sl_kv_pool pool = pool_of(5);
    sl_kv_seq a = {0}, b = {0};
    append(&pool, &a, 768, 1);
    check_extras(&pool, &a, 3);
    sl_kv_truncate(&pool, &a, 300); // within the second page: rows 300 to 511 are written again, in place
    append(&pool, &a, 768, 3);
    check_extras(&pool, &a, 2);
    sl_kv_truncate(&pool, &a, 512); // at the end of a page: no row of the page changes
    append(&pool, &a, 768, 5);
    check_extras(&pool, &a, 1);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 768, &err), err);
    sl_kv_truncate(&pool, &b, 300);
    append(&pool, &b, 768, 7); // b's second page is a copy, its third page is new
    check_extras(&pool, &b, 2);
    check_extras(&pool, &a, 0);
    int32_t last = b.pages[2];
    sl_kv_seq_free(&pool, &b);
    append(&pool, &b, 256, 9); // a page that was free before
    CHECK(b.pages[0] == last || b.pages[0] != a.pages[0]);
    check_extras(&pool, &b, 1);
    sl_kv_truncate(&pool, &b, 0);
    append(&pool, &b, 256, 11);
    check_extras(&pool, &b, 1);
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b);
    sl_kv_pool_free(&pool);
}

// ---- spans ----

enum { SPAN = 3 };

static void span_build(const sl_kv_page *page, void *out) {
    uint64_t h = (uint64_t)page->first;
    CHECK(!page->k.data && !page->v.data && page->first % (SPAN * SL_PAGE) == 0);
    for (int i = 0; i < SPAN; i++) h = h * 31 + *(const uint64_t *)page->parts[i] + ((const bf16 *)page->k_parts[i].data)[i];
    *(uint64_t *)out = h;
    __atomic_add_fetch(&n_built, 1, __ATOMIC_RELAXED);
}
static void spans_device(const sl_kv_device_build *b) {
    build_all(b, 0, SPAN, span_build);
}
static const sl_kv_extra_kind spans = {.name = "digests of spans",
                                       .span = SPAN,
                                       .of = &plain,
                                       .size = digest_size,
                                       .build = span_build,
                                       .build_device = spans_device};
static const sl_kv_need of_pages = {&plain, 1}, of_spans = {&spans, 1};

// Builds the spans of the sequence, checks every block, and checks that n_new spans were built.
static void check_spans(sl_kv_pool *pool, const sl_kv_seq *seq, int n_new) {
    int n = 0;
    for (int layer = 0; layer < LAYERS; layer++) {
        CHECK_OK(sl_kv_keep(pool, of_pages, &err), err);
        CHECK_OK(sl_kv_keep(pool, of_spans, &err), err);
        sl_kv_build(pool, seq, layer, of_pages);
        n_built = 0;
        sl_kv_build(pool, seq, layer, of_spans);
        n += n_built;
        sl_kv_view view = sl_kv_view_of(pool, seq, layer, seq->n_tokens + 1);
        CHECK_INT(sl_kv_n_spans(&view, SPAN), seq->n_tokens / SL_PAGE / SPAN);
        const int32_t *slots = sl_kv_extra_slots(pool, of_spans);
        size_t size;
        const char *blocks = sl_kv_extra_layer(pool, of_spans, layer, &size);
        CHECK(size == 64 && (slots != NULL) == on_device);
        for (int h = 0; h < HEADS; h++)
            for (int span = 0; span < sl_kv_n_spans(&view, SPAN); span++) {
                uint64_t want = (uint64_t)span * SPAN * SL_PAGE;
                for (int i = 0; i < SPAN; i++) {
                    const bf16 *k = k_at(pool, seq, layer, h, (span * SPAN + i) * SL_PAGE),
                               *v = v_at(pool, seq, layer, h, (span * SPAN + i) * SL_PAGE);
                    want = want * 31 + digest(digest(1, k), v) + k[i];
                }
                const void *block = sl_kv_extra(&view, of_spans, (span + 1) * SPAN - 1, h);
                if (slots) CHECK(block == blocks + (slots[seq->pages[(span + 1) * SPAN - 1]] * HEADS + h) * size);
                if (*(const uint64_t *)block != want)
                    FAIL("layer %d, span %d, head %d: the block does not fit the rows", layer, span, h);
            }
    }
    CHECK_INT(n, n_new * LAYERS * HEADS);
}

// The blocks of n spans of one sequence lie side by side, in the lowest slots.
static void check_compact(const sl_kv_pool *pool, const sl_kv_seq *seq, int n) {
    sl_kv_view view = sl_kv_view_of(pool, seq, 0, seq->n_tokens + 1);
    for (int span = 1; span < n; span++)
        CHECK_INT((const char *)sl_kv_extra(&view, of_spans, (span + 1) * SPAN - 1, 0) -
                      (const char *)sl_kv_extra(&view, of_spans, span * SPAN - 1, 0),
                  HEADS * 64);
}

static void spans_of_sequences(void) {
    sl_kv_pool pool = pool_of(30);
    sl_kv_seq a = {0}, b = {0}, c = {0};
    append(&pool, &a, SPAN * SL_PAGE - 1, 1);
    check_spans(&pool, &a, 0);
    append(&pool, &a, SPAN * SL_PAGE, 1);
    check_spans(&pool, &a, 1);
    append(&pool, &a, 9 * SL_PAGE + 7, 3);
    check_spans(&pool, &a, 2);
    check_spans(&pool, &a, 0);
    check_compact(&pool, &a, 3);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 7 * SL_PAGE + 9, &err), err); // shares two spans and one page of the third
    check_spans(&pool, &b, 0);
    append(&pool, &b, 9 * SL_PAGE, 5);
    check_spans(&pool, &b, 1);
    check_spans(&pool, &a, 0);
    sl_kv_truncate(&pool, &a, 4 * SL_PAGE + 100); // within the second span, whose pages b still holds
    append(&pool, &a, 12 * SL_PAGE, 7);
    check_spans(&pool, &a, 3);
    check_spans(&pool, &b, 0);
    CHECK_OK(sl_kv_copy(&pool, &b, &c, 6 * SL_PAGE, &err), err);
    check_spans(&pool, &c, 2);
    sl_kv_seq_free(&pool, &b);
    sl_kv_seq_free(&pool, &a);
    append(&pool, &b, 9 * SL_PAGE, 11); // takes the slots of the spans that no sequence holds
    check_spans(&pool, &b, 3);
    check_spans(&pool, &c, 0);
    sl_kv_truncate(&pool, &b, 6 * SL_PAGE); // a cut at the end of a span keeps the span
    check_spans(&pool, &b, 0);
    sl_kv_truncate(&pool, &b, 6 * SL_PAGE - 1);
    append(&pool, &b, 6 * SL_PAGE, 13);
    check_spans(&pool, &b, 1);
    sl_kv_seq_free(&pool, &b), sl_kv_seq_free(&pool, &c);
    sl_kv_pool_free(&pool);
}

// Many sequences that share all but the last page of a span: each of them has a span of its own.
static void spans_of_forks(void) {
    enum { FORKS = 24 };
    int most = on_device ? (FORKS + SPAN) / 8 + SL_KV_SPARE_SLOTS : FORKS; // the spans that have a block
    sl_kv_pool pool = pool_of(FORKS + SPAN);
    sl_kv_seq a = {0}, forks[FORKS] = {0};
    append(&pool, &a, (SPAN - 1) * SL_PAGE, 1);
    for (int i = 0; i < FORKS; i++) {
        CHECK_OK(sl_kv_fork(&pool, &a, &forks[i], (SPAN - 1) * SL_PAGE, &err), err);
        append(&pool, &forks[i], SPAN * SL_PAGE, i + 3);
        if (i < most) check_spans(&pool, &forks[i], 1);
        for (int layer = 0; layer < LAYERS && i >= most; layer++) {
            sl_kv_build(&pool, &forks[i], layer, of_pages), sl_kv_build(&pool, &forks[i], layer, of_spans);
            CHECK_INT(sl_kv_extra_slots(&pool, of_spans)[forks[i].pages[SPAN - 1]], -1);
        }
    }
    for (int i = 0; i < most; i++) check_spans(&pool, &forks[i], 0);
    for (int i = 0; i < FORKS; i++) sl_kv_seq_free(&pool, &forks[i]);
    sl_kv_seq_free(&pool, &a);
    sl_kv_pool_free(&pool);
}

// ---- random calls ----

enum { POOL = 9, RANDOM_SEQS = 4, MOST_ROWS = 5 * SL_PAGE };

static size_t number_size(int arg, int head_dim) {
    return 64 * (size_t)arg + 0 * (size_t)head_dim;
}
static void number_share(int arg, int head_dim, uint32_t seed, int layer, int head, void *out) {
    (void)head_dim;
    *(uint64_t *)out = seed * 1000003ull + (uint64_t)(arg * 10000 + layer * 100 + head);
}
static void number_build(const sl_kv_page *page, void *out) { // with its place and the shared number of its head
    uint64_t place = (uint64_t)(page->first * 1000 + page->layer * 10 + page->h);
    *(uint64_t *)out = digest(digest(*(const uint64_t *)page->shared + place, page->k.data), page->v.data);
}
static const sl_kv_extra_kind numbers = {
    .name = "numbers", .size = number_size, .shared_size = number_size, .share = number_share, .build = number_build};
static const sl_kv_need of_numbers[] = {{&numbers, 1}, {&numbers, 2}};

typedef struct tagged { // a sequence and the tag of each row
    sl_kv_seq seq;
    int tags[MOST_ROWS];
} tagged;

static void check_blocks(sl_kv_pool *pool, const sl_kv_seq *seq) {
    const sl_kv_need needs[] = {of_pages, kinds[2], of_spans, of_numbers[0], of_numbers[1]};
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < (on_device ? 3 : 5); i++) sl_kv_build(pool, seq, layer, needs[i]);
        sl_kv_view view = sl_kv_view_of(pool, seq, layer, seq->n_tokens + 1);
        for (int h = 0; h < HEADS; h++) {
            uint64_t before = 0, span = 0;
            for (int page = 0; page < seq->n_tokens / SL_PAGE; page++) {
                const bf16 *k = k_at(pool, seq, layer, h, page * SL_PAGE), *v = v_at(pool, seq, layer, h, page * SL_PAGE);
                uint64_t own = digest(digest(1, k), v);
                before = digest(digest(1 + before, k), v);
                if (page % SPAN == 0) span = (uint64_t)page * SL_PAGE;
                span = span * 31 + own + k[page % SPAN];
                CHECK(*(const uint64_t *)sl_kv_extra(&view, of_pages, page, h) == own);
                CHECK(*(const uint64_t *)sl_kv_extra(&view, kinds[2], page, h) == before);
                if (page % SPAN == SPAN - 1) CHECK(*(const uint64_t *)sl_kv_extra(&view, of_spans, page, h) == span);
                for (int arg = 1; arg <= 2 && !on_device; arg++) {
                    uint64_t shared;
                    number_share(arg, DIM, 77, layer, h, &shared);
                    CHECK(*(const uint64_t *)sl_kv_shared(&view, of_numbers[arg - 1], h) == shared);
                    shared += (uint64_t)(page * SL_PAGE * 1000 + layer * 10 + h);
                    CHECK(*(const uint64_t *)sl_kv_extra(&view, of_numbers[arg - 1], page, h) == digest(digest(shared, k), v));
                }
            }
        }
    }
}

// Rows, blocks and counts of pages after the call on sequence `which`.
static void check_state(sl_kv_pool *pool, tagged *all, int which) {
    int refs[POOL] = {0}, n_free = 0;
    for (int i = 0; i < RANDOM_SEQS; i++) {
        const tagged *t = &all[i];
        CHECK_INT(t->seq.n_pages, (t->seq.n_tokens + SL_PAGE - 1) / SL_PAGE);
        for (int j = 0; j < t->seq.n_pages; j++) refs[t->seq.pages[j]]++;
        for (int j = 0, end; j < t->seq.n_tokens; j = end) {
            for (end = j; end < t->seq.n_tokens && t->tags[end] == t->tags[j];) end++;
            check_rows(pool, &t->seq, j, j + 1, t->tags[j]), check_rows(pool, &t->seq, end - 1, end, t->tags[j]);
        }
    }
    for (int i = 0; i < POOL; i++) {
        CHECK_INT(pool->refs[i], refs[i]);
        n_free += !refs[i];
    }
    CHECK_INT(pool->n_free, n_free);
    check_blocks(pool, &all[which].seq);
}

static void random_calls(void) {
    sl_kv_pool pool = pool_of(POOL);
    static tagged all[RANDOM_SEQS];
    const sl_kv_need needs[] = {of_pages, kinds[2], of_spans, of_numbers[0], of_numbers[1]};
    uint64_t seed = test_seed;
    int n_full = 0;
    pool.seed = 77;
    for (int i = 0; i < (on_device ? 3 : 5); i++) CHECK_OK(sl_kv_keep(&pool, needs[i], &err), err);
    if (on_device) CHECK_ERR(sl_kv_keep(&pool, needs[3], &err), err, SL_ERR_UNSUPPORTED, "\"numbers\": a GPU cannot build it");
    for (int round = 0; round < (on_device ? 300 : 500); round++) {
        int i = (int)(RANDOM_SEQS * test_uniform(&seed)), to = (i + 1 + round % (RANDOM_SEQS - 1)) % RANDOM_SEQS;
        tagged *t = &all[i];
        int n = (int)(test_uniform(&seed) * (MOST_ROWS + 1)), what = (int)(7 * test_uniform(&seed)), old = t->seq.n_tokens;
        if (what % 2) n = n / SL_PAGE * SL_PAGE;
        if (what < 3) { // append
            if (n < old) n = n % 3 ? old + 1 : old;
            if (n > MOST_ROWS) continue;
            int is_shared = n > old && old % SL_PAGE && pool.refs[t->seq.pages[old / SL_PAGE]] > 1;
            int more = (n + SL_PAGE - 1) / SL_PAGE - t->seq.n_pages + is_shared, is_full = more > pool.n_free;
            if (is_full) CHECK_INT(sl_kv_reserve(&pool, &t->seq, n, &err), SL_ERR_MEMORY);
            n_full += is_full;
            int32_t newest = t->seq.n_pages ? t->seq.pages[t->seq.n_pages - 1] : 0;
            if (!is_full) append(&pool, &t->seq, n, round);
            if (n == old && n) CHECK_INT(t->seq.pages[t->seq.n_pages - 1], newest); // no row comes, so no page is copied
            for (int j = old; j < n && !is_full; j++) t->tags[j] = round;
        } else if (what < 5) {
            sl_kv_truncate(&pool, &t->seq, n < old ? n : old / 2);
        } else {
            int is_copy = what == 6, more, n_free;
            sl_kv_seq_free(&pool, &all[to].seq);
            n_free = pool.n_free;
            if (n > old) n = old;
            more = (n + SL_PAGE - 1) / SL_PAGE - (is_copy ? 0 : n / SL_PAGE);
            int rc = (is_copy ? sl_kv_copy : sl_kv_fork)(&pool, &t->seq, &all[to].seq, n, &err);
            CHECK_INT(rc, more > n_free ? SL_ERR_MEMORY : 0);
            n_full += rc != 0;
            memcpy(all[to].tags, t->tags, sizeof t->tags);
            if (rc) continue;
            for (int j = 0; j < n / SL_PAGE; j++) CHECK_INT(all[to].seq.pages[j] == t->seq.pages[j], !is_copy);
            i = to;
        }
        check_state(&pool, all, i);
    }
    CHECK(n_full > 5);
    for (int i = 0; i < RANDOM_SEQS; i++) check_blocks(&pool, &all[i].seq), sl_kv_seq_free(&pool, &all[i].seq);
    sl_kv_pool_free(&pool);
}

static void most_extras(void) {
    sl_kv_pool pool = pool_of(2);
    for (int twice = 0; twice < 2; twice++) // the second time, the pool has them
        for (int i = 0; i < SL_KV_EXTRAS; i++) CHECK_OK(sl_kv_keep(&pool, (sl_kv_need){&plain, i}, &err), err);
    CHECK_ERR(sl_kv_keep(&pool, (sl_kv_need){&plain, SL_KV_EXTRAS}, &err), err, SL_ERR_MEMORY, "already has 32 page extras");
    sl_kv_pool_free(&pool);
}

// A pool with rows in host memory: a device builds blocks from the pages that it stages, few at a time.
static void staged_blocks(void) {
    enum { PAGES = 8, STAGED = 5 };
    sl_kv_pool pool;
    sl_kv_seq seq = {0};
    CHECK_OK(sl_kv_pool_init_offloaded(&pool, memory(), LAYERS, HEADS, DIM, 2 * PAGES, 4, STAGED, 100, &err), err);
    CHECK_OK(sl_kv_reserve(&pool, &seq, PAGES * SL_PAGE, &err), err);
    seq.n_tokens = PAGES * SL_PAGE;
    const sl_kv_need needs[] = {of_pages, kinds[2], of_spans};
    for (int i = 0; i < 3; i++) CHECK_OK(sl_kv_keep(&pool, needs[i], &err), err);
    for (int layer = 0; layer < LAYERS; layer++) {
        for (int i = 0; i < PAGES * HEADS * SL_PAGE * 2 * DIM; i++)
            sl_kv_offloaded_row(&pool, layer, seq.pages[i / (HEADS * SL_PAGE * 2 * DIM)], i / (SL_PAGE * 2 * DIM) % HEADS,
                                i / (2 * DIM) % SL_PAGE)[i % (2 * DIM)] = (bf16)(i * 31 + layer);
        for (int i = 0; i < 3; i++) sl_kv_build(&pool, &seq, layer, needs[i]);
        sl_kv_view view = sl_kv_view_of(&pool, &seq, layer, seq.n_tokens + 1);
        for (int h = 0; h < HEADS; h++)
            for (int page = 0; page < PAGES; page++) {
                static bf16 k[SL_PAGE * DIM], v[SL_PAGE * DIM];
                static uint64_t span, before;
                for (int j = 0; j < SL_PAGE; j++) {
                    const bf16 *row = sl_kv_offloaded_row(&pool, layer, seq.pages[page], h, j);
                    memcpy(k + j * DIM, row, DIM * sizeof *k), memcpy(v + j * DIM, row + DIM, DIM * sizeof *v);
                }
                if (page % SPAN == 0) span = (uint64_t)page * SL_PAGE;
                uint64_t own = digest(digest(1, k), v);
                before = digest(digest(1 + (page ? before : 0), k), v);
                CHECK(*(const uint64_t *)sl_kv_extra(&view, kinds[2], page, h) == before);
                span = span * 31 + own + k[page % SPAN];
                CHECK(*(const uint64_t *)sl_kv_extra(&view, of_pages, page, h) == own);
                if (page % SPAN == SPAN - 1) CHECK(*(const uint64_t *)sl_kv_extra(&view, of_spans, page, h) == span);
            }
    }
    sl_kv_seq_free(&pool, &seq);
    sl_kv_pool_free(&pool);
}

static void extras_on_a_device(void) {
    on_device = 1;
    extras_built_once(), extras_built_anew(), spans_of_sequences(), spans_of_forks();
    random_calls(), most_extras(), staged_blocks();
    CHECK_INT(n_allocated, 0);
    on_device = 0;
}

static const test_case cases[] = {
    {"extras-on-a-device", 0, extras_on_a_device},
    {"most-extras", 0, most_extras},
    {"random-calls", 0, random_calls},
    {"spans", 0, spans_of_sequences},
    {"spans-of-forks", 0, spans_of_forks},
    {"exhaustion", 0, exhaustion},
    {"extras-built-once", 0, extras_built_once},
    {"extras-built-anew", 0, extras_built_anew},
    {0},
};
const test_suite suite_kv = {"kv", cases};
