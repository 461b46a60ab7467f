// tests/engine/test_kv.c - pages: ownership, sharing, copy on write, exhaustion. Page extras: built once, and again after rows
// have changed.
#include "engine/kv/kv_extras.h"
#include "tests/test.h"

#include <string.h>

enum { LAYERS = 2, HEADS = 2, DIM = 16 };
static sl_error err;

static sl_kv_pool pool_of(int n_pages) {
    sl_kv_pool pool;
    CHECK_OK(sl_kv_pool_init(&pool, sl_cpu_memory(), LAYERS, HEADS, DIM, n_pages, &err), err);
    return pool;
}

static bf16 *k_at(const sl_kv_pool *pool, const sl_kv_seq *seq, int layer, int h, int j) {
    sl_kv_view view = sl_kv_view_of(pool, seq, layer, j + 1);
    return sl_kv_layer(pool, layer).k + sl_kv_block(&view, HEADS, DIM, j / SL_PAGE, h) + (size_t)(j % SL_PAGE) * DIM;
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

static void lengths(void) {
    static const struct { int n, pages; } want[] = {{1, 1}, {255, 1}, {256, 1}, {257, 2}, {512, 2}, {513, 3}};
    sl_kv_pool pool = pool_of(4);
    for (int i = 0; i < 6; i++) {
        sl_kv_seq seq = {0};
        append(&pool, &seq, want[i].n, i);
        CHECK_INT(seq.n_pages, want[i].pages);
        CHECK_INT(pool.n_free, 4 - want[i].pages);
        check_rows(&pool, &seq, 0, want[i].n, i);
        sl_kv_truncate(&pool, &seq, want[i].n / 2);
        CHECK_INT(seq.n_pages, (want[i].n / 2 + 255) / 256);
        sl_kv_seq_free(&pool, &seq);
        CHECK_INT(pool.n_free, 4);
    }
    CHECK_INT(sl_kv_bytes_per_token(LAYERS, HEADS, DIM), LAYERS * HEADS * DIM * 2 * 2);
    sl_kv_pool_free(&pool);
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

static void forks(void) {
    sl_kv_pool pool = pool_of(8);
    sl_kv_seq a = {0}, b = {0};
    append(&pool, &a, 600, 1);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 550, &err), err);
    CHECK_INT(pool.n_free, 4); // two pages shared, the third copied
    CHECK(b.pages[0] == a.pages[0] && b.pages[1] == a.pages[1] && b.pages[2] != a.pages[2]);
    check_rows(&pool, &b, 0, 550, 1);
    append(&pool, &b, 600, 5);
    check_rows(&pool, &a, 0, 600, 1); // b's rows do not change a
    check_rows(&pool, &b, 550, 600, 5);
    sl_kv_seq_free(&pool, &a);
    check_rows(&pool, &b, 0, 550, 1); // b keeps the shared pages
    sl_kv_seq_free(&pool, &b);
    CHECK_INT(pool.n_free, 8);
    sl_kv_pool_free(&pool);
}

static void copies(void) {
    sl_kv_pool pool = pool_of(6);
    sl_kv_seq a = {0}, b = {0}, c = {0};
    append(&pool, &a, 600, 1);
    CHECK_OK(sl_kv_copy(&pool, &a, &b, 512, &err), err);
    CHECK_INT(pool.n_free, 1); // the copy shares no page
    check_rows(&pool, &b, 0, 512, 1);
    append(&pool, &b, 600, 5);
    check_rows(&pool, &a, 0, 600, 1);
    check_rows(&pool, &b, 512, 600, 5);
    CHECK_ERR(sl_kv_copy(&pool, &a, &c, 1, &err), err, SL_ERR_MEMORY, "0 free");
    CHECK_INT(c.n_pages, 0);
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b), sl_kv_seq_free(&pool, &c);
    CHECK_INT(pool.n_free, 6);
    sl_kv_pool_free(&pool);
}

static void copy_on_write(void) { // truncates within a shared page, then appends: the other sequence keeps its rows
    sl_kv_pool pool = pool_of(3);
    sl_kv_seq a = {0}, b = {0};
    append(&pool, &a, 512, 1);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 512, &err), err);
    CHECK_INT(pool.n_free, 1);
    sl_kv_truncate(&pool, &b, 300);
    append(&pool, &b, 400, 7);
    check_rows(&pool, &a, 0, 512, 1);
    check_rows(&pool, &b, 0, 300, 1);
    check_rows(&pool, &b, 300, 400, 7);
    CHECK_INT(pool.n_free, 0);
    sl_kv_truncate(&pool, &a, 100);
    CHECK_INT(pool.n_free, 1); // no other sequence holds a's second page
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b);
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
    *(uint64_t *)out = digest(digest(h, page->k), page->v);
    __atomic_add_fetch(&n_built, 1, __ATOMIC_RELAXED);
}
static const sl_kv_extra_kind plain = {.name = "digests", .size = digest_size, .build = digest_build},
                              chained = {.name = "chained digests", .chained = 1, .size = digest_size, .build = digest_build};
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

static void extras_of_a_fork(void) { // a fork copies a part of a page; the copy gets its extras when it is full
    sl_kv_pool pool = pool_of(6);
    sl_kv_seq a = {0}, b = {0};
    append(&pool, &a, 512, 1);
    check_extras(&pool, &a, 2);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 400, &err), err);
    check_extras(&pool, &b, 0);
    for (int n = 401; n < 512; n += 37) append(&pool, &b, n, 3), check_extras(&pool, &b, 0);
    append(&pool, &b, 512, 3);
    check_extras(&pool, &b, 1);
    check_extras(&pool, &a, 0);
    sl_kv_truncate(&pool, &a, 400); // a fork of a truncated page; both sequences then append
    sl_kv_seq_free(&pool, &b);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 400, &err), err);
    append(&pool, &a, 512, 5), append(&pool, &b, 512, 7);
    check_extras(&pool, &a, 1);
    check_extras(&pool, &b, 1);
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b);
    sl_kv_pool_free(&pool);
}

// ---- spans ----

enum { SPAN = 3 };

static void span_build(const sl_kv_page *page, void *out) {
    uint64_t h = (uint64_t)page->first;
    CHECK(!page->k && !page->v && page->first % (SPAN * SL_PAGE) == 0);
    for (int i = 0; i < SPAN; i++) h = h * 31 + *(const uint64_t *)page->parts[i] + page->k_parts[i][i];
    *(uint64_t *)out = h;
    __atomic_add_fetch(&n_built, 1, __ATOMIC_RELAXED);
}
static const sl_kv_extra_kind spans = {
    .name = "digests of spans", .span = SPAN, .of = &plain, .size = digest_size, .build = span_build};
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
        for (int h = 0; h < HEADS; h++)
            for (int span = 0; span < sl_kv_n_spans(&view, SPAN); span++) {
                uint64_t want = (uint64_t)span * SPAN * SL_PAGE;
                for (int i = 0; i < SPAN; i++) {
                    const bf16 *k = k_at(pool, seq, layer, h, (span * SPAN + i) * SL_PAGE),
                               *v = v_at(pool, seq, layer, h, (span * SPAN + i) * SL_PAGE);
                    want = want * 31 + digest(digest(1, k), v) + k[i];
                }
                if (*(const uint64_t *)sl_kv_extra(&view, of_spans, (span + 1) * SPAN - 1, h) != want)
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
    enum { FORKS = 12 };
    sl_kv_pool pool = pool_of(FORKS + SPAN);
    sl_kv_seq a = {0}, forks[FORKS] = {0};
    append(&pool, &a, (SPAN - 1) * SL_PAGE, 1);
    for (int i = 0; i < FORKS; i++) {
        CHECK_OK(sl_kv_fork(&pool, &a, &forks[i], (SPAN - 1) * SL_PAGE, &err), err);
        append(&pool, &forks[i], SPAN * SL_PAGE, i + 3);
        check_spans(&pool, &forks[i], 1);
    }
    for (int i = 0; i < FORKS; i++) check_spans(&pool, &forks[i], 0);
    for (int i = 0; i < FORKS; i++) sl_kv_seq_free(&pool, &forks[i]);
    sl_kv_seq_free(&pool, &a);
    sl_kv_pool_free(&pool);
}

static const test_case cases[] = {
    {"spans", 0, spans_of_sequences},
    {"spans-of-forks", 0, spans_of_forks},
    {"lengths", 0, lengths},
    {"exhaustion", 0, exhaustion},
    {"copies", 0, copies},
    {"forks", 0, forks},
    {"copy-on-write", 0, copy_on_write},
    {"extras-built-once", 0, extras_built_once},
    {"extras-built-anew", 0, extras_built_anew},
    {"extras-of-a-fork", 0, extras_of_a_fork},
    {0},
};
const test_suite suite_kv = {"kv", cases};
