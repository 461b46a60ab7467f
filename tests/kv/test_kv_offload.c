// tests/kv/test_kv_offload.c - rows in host memory (kv_offload.h), on the CPU's memory: pages move between frames and the host,
// and every row keeps its value through steps, forks, cuts, prefills and a lack of frames.
#include "backend/backend.h"
#include "attention/extras/hot_order.h"
#include "kv/kv_offload.h"
#include "kv/kv_extras.h"
#include "tests/test.h"

#include <string.h>

enum { LAYERS = 3, HEADS = 2, DIM = 16, FRAMES = 4, STAGED = 16 };
static sl_error err;

static sl_kv_pool pool_of(int n_pages, int n_frames) {
    sl_kv_pool pool;
    CHECK_OK(sl_kv_pool_init_offloaded(&pool, sl_cpu_memory(), LAYERS, HEADS, DIM, n_pages, n_frames, STAGED, 100, &err), err);
    return pool;
}

static bf16 value(int tag, int is_v, int layer, int h, int j, int d) {
    return (bf16)(tag * 10007 + is_v * 5003 + layer * 4099 + h * 2053 + j * 17 + d);
}

// Row j of a sequence as a step reads it: by the entry of the page table, in the frame or on the host.
static bf16 *row_of(const sl_kv_pool *pool, const sl_kv_seq *seq, int is_v, int layer, int h, int j) {
    int32_t entry = sl_kv_entry(pool, seq, j / SL_PAGE);
    if (j / SL_PAGE < seq->n_tokens / SL_PAGE) {
        CHECK(pool->offload->frame_of[seq->pages[j / SL_PAGE]] < 0);
        return sl_kv_offloaded_row(pool, layer, entry, h, j % SL_PAGE) + (is_v ? DIM : 0);
    }
    CHECK_INT(entry, pool->offload->frame_of[seq->pages[j / SL_PAGE]]);
    sl_kv_rows rows = sl_kv_layer(pool, layer);
    return (is_v ? rows.v : rows.k) + ((size_t)(entry * HEADS + h) * SL_PAGE + j % SL_PAGE) * DIM;
}

static void put(const sl_kv_pool *pool, const sl_kv_seq *seq, int j, int tag) {
    for (int is_v = 0; is_v < 2; is_v++)
        for (int layer = 0; layer < LAYERS; layer++)
            for (int h = 0; h < HEADS; h++)
                for (int d = 0; d < DIM; d++) row_of(pool, seq, is_v, layer, h, j)[d] = value(tag, is_v, layer, h, j, d);
}

// Decodes until the sequence has n rows.
static void step_to(sl_kv_pool *pool, sl_kv_seq *seq, int n, int tag) {
    while (seq->n_tokens < n) {
        CHECK_OK(sl_kv_reserve(pool, seq, seq->n_tokens + 1, &err), err);
        sl_kv_hold(pool, seq);
        put(pool, seq, seq->n_tokens, tag);
        seq->n_tokens++;
    }
}

// Checks rows [from, to) where a step reads them.
static void check_rows(sl_kv_pool *pool, sl_kv_seq *seq, int from, int to, int tag) {
    CHECK_OK(sl_kv_reserve(pool, seq, seq->n_tokens + 1, &err), err);
    sl_kv_hold(pool, seq);
    for (int j = from; j < to; j++)
        for (int is_v = 0; is_v < 2; is_v++)
            for (int layer = 0; layer < LAYERS; layer++)
                for (int h = 0; h < HEADS; h++)
                    for (int d = 0; d < DIM; d++)
                        CHECK_INT(row_of(pool, seq, is_v, layer, h, j)[d], value(tag, is_v, layer, h, j, d));
}

static int n_framed(const sl_kv_pool *pool) {
    int n = 0;
    for (int i = 0; i < pool->offload->n_frames; i++) {
        int32_t page = pool->offload->page_of[i];
        if (page >= 0) CHECK_INT(pool->offload->frame_of[page], i);
        n += page >= 0;
    }
    for (int i = 0; i < pool->n_pages; i++)
        if (pool->offload->frame_of[i] >= 0) CHECK_INT(pool->offload->page_of[pool->offload->frame_of[i]], i);
    return n;
}

static void steps(void) {
    static const int lengths[] = {1, 255, 256, 257, 511, 512, 513, 700};
    sl_kv_pool pool = pool_of(6, FRAMES);
    sl_kv_seq seq = {0};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        step_to(&pool, &seq, lengths[i], 1);
        CHECK_INT(n_framed(&pool), 1); // a full page stays in its frame until the next step
        check_rows(&pool, &seq, 0, lengths[i], 1);
        CHECK_INT(n_framed(&pool), 1);
    }
    sl_kv_write_out(&pool, &seq);
    CHECK_INT(n_framed(&pool), 0);
    check_rows(&pool, &seq, 0, 700, 1); // the newest page comes back
    sl_kv_seq_free(&pool, &seq);
    CHECK_INT(n_framed(&pool), 0);
    CHECK_INT(pool.n_free, 6);
    sl_kv_pool_free(&pool);
}

static void forks(void) {
    sl_kv_pool pool = pool_of(12, FRAMES);
    sl_kv_seq a = {0}, b = {0}, c = {0}, other = {0};
    step_to(&pool, &other, 1, 4); // takes frame 0
    step_to(&pool, &a, 600, 1);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 550, &err), err); // the copied page is in a frame of a
    CHECK_OK(sl_kv_fork(&pool, &a, &c, 300, &err), err); // the copied page is on the host
    step_to(&pool, &b, 800, 2);
    step_to(&pool, &c, 520, 3);
    check_rows(&pool, &a, 0, 600, 1);
    check_rows(&pool, &b, 0, 550, 1), check_rows(&pool, &b, 550, 800, 2);
    check_rows(&pool, &c, 0, 300, 1), check_rows(&pool, &c, 300, 520, 3);
    check_rows(&pool, &other, 0, 1, 4);
    sl_kv_seq_free(&pool, &other);
    sl_kv_seq_free(&pool, &a);
    check_rows(&pool, &b, 0, 550, 1);
    sl_kv_seq_free(&pool, &b), sl_kv_seq_free(&pool, &c);
    CHECK_INT(pool.n_free, 12);
    CHECK_INT(n_framed(&pool), 0);
    sl_kv_pool_free(&pool);
}

static void fork_of_a_full_page(void) { // the last page is full and still in a's frame
    sl_kv_pool pool = pool_of(8, FRAMES);
    sl_kv_seq a = {0}, b = {0};
    step_to(&pool, &a, 512, 1);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 512, &err), err);
    step_to(&pool, &b, 530, 2);
    step_to(&pool, &a, 520, 1);
    check_rows(&pool, &a, 0, 520, 1);
    check_rows(&pool, &b, 0, 512, 1), check_rows(&pool, &b, 512, 530, 2);
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b);
    sl_kv_pool_free(&pool);
}

static void cuts(void) {
    sl_kv_pool pool = pool_of(8, FRAMES);
    sl_kv_seq a = {0}, b = {0};
    step_to(&pool, &a, 700, 1);
    sl_kv_truncate(&pool, &a, 300); // into a page on the host
    CHECK_INT(n_framed(&pool), 0);
    step_to(&pool, &a, 900, 2);
    check_rows(&pool, &a, 0, 300, 1), check_rows(&pool, &a, 300, 900, 2);
    CHECK_OK(sl_kv_fork(&pool, &a, &b, 768, &err), err);
    sl_kv_truncate(&pool, &b, 520); // into a shared page: the next step copies it
    step_to(&pool, &b, 600, 3);
    check_rows(&pool, &a, 300, 900, 2);
    check_rows(&pool, &b, 0, 300, 1), check_rows(&pool, &b, 300, 520, 2), check_rows(&pool, &b, 520, 600, 3);
    sl_kv_seq_free(&pool, &a), sl_kv_seq_free(&pool, &b);
    sl_kv_pool_free(&pool);
}

static void few_frames(void) { // more sequences than frames take turns
    enum { N = 7 };
    sl_kv_pool pool = pool_of(3 * N, SL_KV_SPARE_FRAMES + 1);
    sl_kv_seq seqs[N] = {{0}};
    for (int n = 40; n <= 640; n += 40)
        for (int s = 0; s < N; s++) step_to(&pool, &seqs[s], n - s, s);
    for (int s = 0; s < N; s++) check_rows(&pool, &seqs[s], 0, 640 - s, s);
    CHECK_INT(n_framed(&pool), SL_KV_SPARE_FRAMES + 1);
    for (int s = 0; s < N; s++) sl_kv_seq_free(&pool, &seqs[s]);
    sl_kv_pool_free(&pool);
}

static void batch_keeps_its_frames(void) { // also when each of its sequences first copies a shared page
    enum { N = 3 };
    sl_kv_pool pool = pool_of(4 * N + 4, N + SL_KV_SPARE_FRAMES);
    sl_kv_seq a = {0}, seqs[N] = {{0}};
    step_to(&pool, &a, 512, 1);
    for (int s = 0; s < N; s++) {
        CHECK_OK(sl_kv_fork(&pool, &a, &seqs[s], 512, &err), err);
        sl_kv_truncate(&pool, &seqs[s], 300 + s);
    }
    for (int s = 0; s < N; s++) {
        CHECK_OK(sl_kv_reserve(&pool, &seqs[s], seqs[s].n_tokens + 1, &err), err);
        sl_kv_hold(&pool, &seqs[s]);
    }
    for (int s = 0; s < N; s++) CHECK(pool.offload->frame_of[seqs[s].pages[1]] >= 0);
    for (int s = 0; s < N; s++) check_rows(&pool, &seqs[s], 0, 300 + s, 1);
    for (int s = 0; s < N; s++) sl_kv_seq_free(&pool, &seqs[s]);
    sl_kv_seq_free(&pool, &a);
    sl_kv_pool_free(&pool);
}

// A prefill of rows [n_tokens, n), pass by pass, as engine/kv_stream.c runs it.
static void prefill_to(sl_kv_pool *pool, sl_kv_seq *seq, int n, int chunk, int tag) {
    CHECK_OK(sl_kv_reserve(pool, seq, n, &err), err);
    while (seq->n_tokens < n) {
        int from = seq->n_tokens, end = from + chunk < n ? from + chunk : n, first = from / SL_PAGE;
        sl_kv_write_out(pool, seq);
        for (int layer = 0; layer < LAYERS; layer++) {
            sl_kv_rows rows = sl_kv_staged(pool, layer);
            memset(rows.k, 0x5a, (size_t)STAGED * HEADS * SL_PAGE * DIM * sizeof(bf16));
            if (layer % 2)
                sl_kv_bring_aside(pool, layer, seq->pages, (from + SL_PAGE - 1) / SL_PAGE);
            else
                sl_kv_bring(pool, layer, seq->pages, (from + SL_PAGE - 1) / SL_PAGE, 0);
            for (int j = 0; j < from; j++)
                for (int h = 0; h < HEADS; h++) {
                    size_t at = ((size_t)(j / SL_PAGE * HEADS + h) * SL_PAGE + j % SL_PAGE) * DIM;
                    CHECK_INT(rows.k[at + 3], value(tag, 0, layer, h, j, 3));
                    CHECK_INT(rows.v[at + DIM - 1], value(tag, 1, layer, h, j, DIM - 1));
                }
            for (int j = from; j < end; j++)
                for (int h = 0; h < HEADS; h++)
                    for (int d = 0; d < DIM; d++) {
                        size_t at = ((size_t)(j / SL_PAGE * HEADS + h) * SL_PAGE + j % SL_PAGE) * DIM + d;
                        rows.k[at] = value(tag, 0, layer, h, j, d), rows.v[at] = value(tag, 1, layer, h, j, d);
                    }
            sl_kv_write_rows(pool, layer, seq->pages + first, (end - 1) / SL_PAGE + 1 - first, first);
        }
        seq->n_tokens = end;
    }
}

static void prefills(void) {
    static const int chunks[] = {100, 256, 300, 4000};
    for (int i = 0; i < 4; i++) {
        sl_kv_pool pool = pool_of(STAGED, FRAMES);
        sl_kv_seq seq = {0};
        prefill_to(&pool, &seq, 500, chunks[i], 1);
        CHECK_INT(n_framed(&pool), 0);
        step_to(&pool, &seq, 600, 1);
        prefill_to(&pool, &seq, 1300, chunks[i], 1); // writes the frame out first
        check_rows(&pool, &seq, 0, 1300, 1);
        sl_kv_seq_free(&pool, &seq);
        sl_kv_pool_free(&pool);
    }
}

static void many_pages(void) { // more pages than one move takes
    enum { PAGES = 2 * SL_MOVE_MOST + 3 };
    sl_kv_pool pool;
    CHECK_OK(sl_kv_pool_init_offloaded(&pool, sl_cpu_memory(), 1, 1, DIM, PAGES, FRAMES, PAGES, 0, &err), err);
    int32_t pages[PAGES];
    for (int i = 0; i < PAGES; i++) pages[i] = (int32_t)(i * 2 % PAGES); // PAGES is odd: every page once
    sl_kv_rows rows = sl_kv_staged(&pool, 0);
    for (size_t i = 0; i < (size_t)PAGES * SL_PAGE * DIM; i++) rows.k[i] = (bf16)(i / DIM), rows.v[i] = (bf16)(i / DIM + 7);
    sl_kv_write_rows(&pool, 0, pages, PAGES, 0);
    for (int i = 0; i < PAGES; i++) {
        const bf16 *row = sl_kv_offloaded_row(&pool, 0, pages[i], 0, 200);
        CHECK_INT(row[1], (bf16)(i * SL_PAGE + 200));
        CHECK_INT(row[DIM], (bf16)(i * SL_PAGE + 207));
    }
    memset(rows.k, 0, (size_t)PAGES * SL_PAGE * DIM * sizeof(bf16));
    sl_kv_bring(&pool, 0, pages + 1, PAGES - 1, 1);
    CHECK_INT(rows.k[0], 0);
    for (size_t i = SL_PAGE * DIM; i < (size_t)PAGES * SL_PAGE * DIM; i++) CHECK_INT(rows.k[i], (bf16)(i / DIM));
    sl_kv_pool_free(&pool);
}

// The device's version of a page changes whenever its rows on the host change, and is never 0 for a page with rows.
static void versions(void) {
    sl_kv_pool pool = pool_of(6, FRAMES);
    sl_kv_seq a = {0}, b = {0};
    step_to(&pool, &a, 600, 1);
    uint32_t first = pool.offload->versions[a.pages[0]], second = pool.offload->versions[a.pages[1]];
    CHECK(first && second && pool.offload->versions[a.pages[2]] == 0); // page 2 was not written to the host
    check_rows(&pool, &a, 0, 600, 1);
    CHECK(pool.offload->versions[a.pages[0]] == first);
    sl_kv_truncate(&pool, &a, 300);
    step_to(&pool, &a, 600, 2);
    CHECK(pool.offload->versions[a.pages[0]] == first && pool.offload->versions[a.pages[1]] != second);
    int32_t page = a.pages[0];
    sl_kv_seq_free(&pool, &a);
    prefill_to(&pool, &b, 6 * SL_PAGE, 4000, 3); // takes every page again
    CHECK(pool.offload->versions[page] != first && pool.offload->versions[page] != 0);
    sl_kv_publish(&pool, &b);
    CHECK_INT(pool.offload->versions[b.pages[4]], (uint32_t)pool.versions[b.pages[4]]);
    pool.versions[b.pages[4]] = 1ull << 32; // the device has the low half, and 0 would be no version
    sl_kv_publish(&pool, &b);
    CHECK(pool.offload->versions[b.pages[4]] != 0);
    sl_kv_seq_free(&pool, &b);
    sl_kv_pool_free(&pool);
}

// Without a free frame, the page that was held least recently leaves its frame.
static void turns_of_frames(void) {
    enum { SEQS = 7 };
    sl_kv_pool pool = pool_of(SEQS, FRAMES);
    sl_kv_seq seqs[SEQS] = {0};
    uint64_t seed = test_seed;
    int held[SEQS] = {0}, n_held = 0;
    for (int time = 1; time < 400; time++) {
        int s = (int)(SEQS * test_uniform(&seed)), oldest = -1;
        if (seqs[s].n_tokens == SL_PAGE) continue;
        for (int i = 0; i < SEQS; i++)
            if (held[i] && (oldest < 0 || held[i] < held[oldest])) oldest = i;
        if (!held[s] && n_held++ == FRAMES) held[oldest] = 0, n_held = FRAMES;
        held[s] = time;
        step_to(&pool, &seqs[s], seqs[s].n_tokens + 1, s);
        for (int i = 0; i < SEQS; i++)
            if (seqs[i].n_tokens) CHECK_INT(pool.offload->frame_of[seqs[i].pages[0]] >= 0, held[i] > 0);
        CHECK_INT(n_framed(&pool), n_held);
    }
    for (int i = 0; i < SEQS; i++) check_rows(&pool, &seqs[i], 0, seqs[i].n_tokens, i), sl_kv_seq_free(&pool, &seqs[i]);
    sl_kv_pool_free(&pool);
}

// The staged pages of a layer are not those of the layer before.
static void two_layers(void) {
    sl_kv_pool pool = pool_of(6, FRAMES);
    size_t n = (size_t)STAGED * HEADS * SL_PAGE * DIM;
    CHECK(sl_kv_staged(&pool, 1).k == sl_kv_staged(&pool, 0).k + n && sl_kv_staged(&pool, 1).v == sl_kv_staged(&pool, 0).v + n);
    CHECK(sl_kv_staged(&pool, 2).k == sl_kv_staged(&pool, 0).k);
    sl_kv_staged(&pool, 1).v[n - 1] = 5; // the last element
    sl_kv_pool_free(&pool);
}

// Layers have separate arrays of hot rows, one after the other.
static void hot_layers(void) {
    sl_kv_pool pool = pool_of(6, FRAMES);
    sl_kv_hot_rows a = sl_kv_hot_layer(&pool, 0), b = sl_kv_hot_layer(&pool, 1);
    CHECK_INT(a.n_sets, 100 / SL_KV_HOT_WAYS);
    CHECK_INT(a.imposed, -1);
    CHECK_INT(b.tags - a.tags, HEADS * a.n_sets * SL_KV_HOT_WAYS);
    CHECK_INT(b.order - a.order, HEADS * a.n_sets);
    CHECK_INT(b.rows - a.rows, HEADS * a.n_sets * SL_KV_HOT_WAYS * 2 * DIM);
    CHECK(a.versions == b.versions && a.tags[0] == 0 && a.order[0] == 0);
    sl_kv_pool_free(&pool);
}

// The order of a set against a list of the ways, the most recent one first.
static void hot_order(void) {
    int list[SL_HOT_WAYS];
    uint32_t order = 0;
    uint64_t seed = test_seed;
    for (int i = 0; i < SL_HOT_WAYS; i++) list[i] = i;
    for (int i = 0; i < 1000; i++) {
        CHECK_INT(sl_hot_oldest(order), list[SL_HOT_WAYS - 1]);
        int way = i % 3 ? (int)(test_uniform(&seed) * SL_HOT_WAYS) : list[SL_HOT_WAYS - 1], at = 0;
        while (list[at] != way) at++;
        memmove(list + 1, list, at * sizeof *list);
        list[0] = way;
        order = sl_hot_used(order, way);
    }
}

static const test_case cases[] = {
    {"turns-of-frames", 0, turns_of_frames},
    {"steps", 0, steps},
    {"forks", 0, forks},
    {"fork-of-a-full-page", 0, fork_of_a_full_page},
    {"cuts", 0, cuts},
    {"few-frames", 0, few_frames},
    {"batch-keeps-its-frames", 0, batch_keeps_its_frames},
    {"prefills", 0, prefills},
    {"many-pages", 0, many_pages},
    {"versions", 0, versions},
    {"two-layers", 0, two_layers},
    {"hot-layers", 0, hot_layers},
    {"hot-order", 0, hot_order},
    {0},
};
const test_suite suite_kv_offload = {"kv_offload", cases};
