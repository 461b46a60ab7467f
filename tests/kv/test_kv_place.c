// tests/kv/test_kv_place.c - where the rows of K and V lie and what fits (kv_place.h, engine_place.c).
#include "engine/engine_internal.h"
#include "kv/kv_place.h"
#include "tests/test.h"

#include <string.h>

static sl_error err;

#define GIB ((size_t)1 << 30)

// Llama-3.1-8B: 131,072 bytes of K and V a row. Quantised keys in 4 bits: 16 KB and steps of each page, layer and KV head.
static const sl_kv_demand llama8b = {.row = 131072,
                                     .proposing = (size_t)32 * 8 * (16384 + 512),
                                     .fixed = 17 * GIB,
                                     .n_ctx = 1 << 20,
                                     .n_sequences = 1,
                                     .spare_frames = 2,
                                     .streamed = 4096,
                                     .hot_share = 0.05};

static void places(void) {
    const sl_kv_room h200 = {.gpu = 139 * GIB, .host = 200 * GIB};
    sl_kv_demand d = llama8b;
    sl_kv_layout l;
    // A million rows: 128 GiB of K and V and 16.5 GiB of quantised keys.
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_AUTO, &l, &err), err);
    CHECK(l.place == SL_KV_OFFLOADED && l.host == 128 * GIB && l.newest == (size_t)3 * 256 * 131072 && l.fixed == 17 * GIB);
    CHECK(l.n_frames == 3 && l.streamed == 4 * GIB);
    CHECK(l.proposing == (size_t)4096 * 32 * 8 * 16896);
    CHECK_INT(l.hot_rows, (1 << 20) / 20);
    CHECK(l.hot == (size_t)l.hot_rows * (d.row + d.row / 30));
    // 512k rows fit on the GPU; SL_KV_OFFLOADED keeps them on the host.
    d.n_ctx = 1 << 19;
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_AUTO, &l, &err), err);
    CHECK(l.place == SL_KV_GPU && l.host == 0 && l.newest == 64 * GIB && l.streamed == 0 && l.hot == 0 && l.hot_rows == 0);
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_OFFLOADED, &l, &err), err);
    CHECK(l.place == SL_KV_OFFLOADED && l.host == 64 * GIB);
}

// The limits in the message fit, and one page or one sequence more does not.
static void check_limits(sl_kv_demand d, const sl_kv_room *room, sl_kv_place place, long long n_ctx, long long n_sequences) {
    sl_kv_demand x = d;
    sl_kv_layout l;
    for (int more = 0; more < 2; more++) {
        x = d, x.n_ctx = (int)(n_ctx + 256 * more);
        if (x.n_ctx > 0) CHECK_INT(sl_kv_place_rows(&x, room, place, &l, &err) == 0, !more);
        x = d, x.n_sequences = (int)n_sequences + more;
        if (x.n_sequences > 0) CHECK_INT(sl_kv_place_rows(&x, room, place, &l, &err) == 0, !more);
    }
}

static void refusals(void) {
    static const struct {
        sl_kv_room room;
        sl_kv_place place;
        int n_ctx, n_sequences;
        const char *part;
    } cases[] = {
        {{.gpu = 139 * GIB, .host = 100 * GIB},
         SL_KV_AUTO,
         1 << 20,
         1,
         "K and V in host memory: n_ctx 1048576 with 1 sequence(s) does not fit"},
        {{.gpu = 139 * GIB, .host = 300 * GIB}, SL_KV_GPU, 1 << 20, 1, "K and V on the GPU: n_ctx 1048576 with 1"},
        {{.gpu = 139 * GIB, .host = 300 * GIB}, SL_KV_OFFLOADED, 1 << 19, 6, "K and V in host memory: n_ctx 524288 with 6"},
        {{.gpu = 10 * GIB, .host = 300 * GIB}, SL_KV_AUTO, 4096, 1, "(17.00 GiB) leave 0.00"},
        {{.gpu = 80 * GIB, .host = 300 * GIB, .gpu_most = 1 * GIB}, SL_KV_AUTO, 1 << 18, 1, "leave 1.00"},
        {{.gpu = 80 * GIB, .host = 0}, SL_KV_AUTO, 1 << 20, 1, "128.00 GiB in host memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_kv_demand d = llama8b;
        sl_kv_layout l;
        long long ctx[2], sequences[2];
        int n_ctx;
        d.n_ctx = cases[i].n_ctx, d.n_sequences = cases[i].n_sequences;
        int rc = sl_kv_place_rows(&d, &cases[i].room, cases[i].place, &l, &err);
        CHECK_INT(rc, SL_ERR_MEMORY);
        if (!strstr(err.message, cases[i].part)) FAIL("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].part);
        const char *limits = strstr(err.message, "GPU, n_ctx ");
        CHECK(limits);
        CHECK_INT(sscanf(limits, "GPU, n_ctx %lld fits, or %lld sequence(s) of %d; in host memory, n_ctx %lld, or %lld",
                         &ctx[0], &sequences[0], &n_ctx, &ctx[1], &sequences[1]),
                  5);
        check_limits(d, &cases[i].room, SL_KV_GPU, ctx[0], sequences[0]);
        check_limits(d, &cases[i].room, SL_KV_OFFLOADED, ctx[1], sequences[1]);
    }
}

// ---- random numbers, against what kv_place.h says ----

typedef struct bytes {
    double gpu, host; // of the cache on the GPU without hot rows; of the host
} bytes;

static bytes needed(const sl_kv_demand *d, sl_kv_place place, long long n_ctx, long long n_sequences) {
    double pages = (double)((n_ctx + 255) / 256), page = 256.0 * (double)d->row, all = pages * (double)n_sequences;
    bytes b = {.gpu = all * (double)d->proposing};
    if (place == SL_KV_GPU)
        b.gpu += all * page;
    else
        b.gpu += (double)(n_sequences + d->spare_frames) * page + pages * 256 * (double)d->streamed, b.host = all * page;
    return b;
}

static int fits(const sl_kv_demand *d, const sl_kv_room *room, bytes b) {
    double most = (double)room->gpu - (double)d->fixed;
    if (most < 0) return 0;
    if (room->gpu_most && (double)room->gpu_most < most) most = (double)room->gpu_most;
    return b.gpu <= most && b.host <= (double)room->host;
}

static size_t any(uint64_t *seed, double most) {
    return (size_t)(test_uniform(seed) * most);
}

static void random_numbers(void) {
    uint64_t seed = test_seed;
    int n_places[3] = {0};
    for (int round = 0; round < 3000; round++) {
        const sl_kv_demand d = {.row = 64 + any(&seed, 1000),
                                .proposing = any(&seed, 20000),
                                .fixed = any(&seed, 1e6),
                                .n_ctx = 1 + (int)any(&seed, 6000),
                                .n_sequences = 1 + (int)any(&seed, 4),
                                .spare_frames = (int)any(&seed, 3),
                                .streamed = any(&seed, 300),
                                .hot_share = any(&seed, 3) ? test_uniform(&seed) : 1};
        const sl_kv_room room = {
            .gpu = any(&seed, 3e7), .host = any(&seed, 3e7), .gpu_most = any(&seed, 3) ? 0 : 1 + any(&seed, 1e7)};
        const sl_kv_place asked = (sl_kv_place)(round % 3);
        const bytes on_gpu = needed(&d, SL_KV_GPU, d.n_ctx, d.n_sequences),
                    offloaded = needed(&d, SL_KV_OFFLOADED, d.n_ctx, d.n_sequences);
        const int can_gpu = fits(&d, &room, on_gpu), can_host = fits(&d, &room, offloaded);
        const sl_kv_place want = can_gpu && asked != SL_KV_OFFLOADED ? SL_KV_GPU
                                 : can_host && asked != SL_KV_GPU    ? SL_KV_OFFLOADED
                                                                     : SL_KV_AUTO;
        sl_kv_layout l;
        int rc = sl_kv_place_rows(&d, &room, asked, &l, &err);
        CHECK_INT(rc, want == SL_KV_AUTO ? SL_ERR_MEMORY : 0);
        n_places[want]++;
        for (int place = SL_KV_GPU; place <= SL_KV_OFFLOADED; place++) {
            long long most = sl_kv_largest_ctx(&d, &room, (sl_kv_place)place);
            CHECK_INT(most % 256, 0);
            if (most) CHECK(fits(&d, &room, needed(&d, (sl_kv_place)place, most, d.n_sequences)));
            CHECK(!fits(&d, &room, needed(&d, (sl_kv_place)place, most + 256, d.n_sequences)));
        }
        if (rc) continue;
        const bytes b = want == SL_KV_GPU ? on_gpu : offloaded;
        CHECK_INT(l.place, want);
        CHECK((double)(l.proposing + l.newest + l.streamed) == b.gpu && (double)l.host == b.host && l.fixed == d.fixed);
        CHECK((double)l.n_frames * 256 * (double)d.row == (double)l.newest && !(want == SL_KV_GPU && l.streamed));
        // As many hot rows as asked for, if they fit; a row has at most a 30th more bytes for its tag.
        double all = (double)((d.n_ctx + 255) / 256 * 256 * d.n_sequences), left = (double)room.gpu - (double)d.fixed;
        double wanted = want == SL_KV_OFFLOADED ? d.hot_share * all : 0, each = (double)(d.row + d.row / 30);
        if (room.gpu_most && (double)room.gpu_most < left) left = (double)room.gpu_most;
        CHECK((double)l.hot == (double)l.hot_rows * each && l.hot_rows <= wanted && b.gpu + (double)l.hot <= left);
        CHECK(l.hot_rows > wanted - 1 || b.gpu + (double)l.hot + each > left);
    }
    for (int i = 0; i < 3; i++) CHECK(n_places[i] > 100);
}

// ---- the context of an engine with K and V in the memory of its backend, which is free_bytes ----

static size_t free_bytes;
static size_t given_memory(const sl_backend *be) {
    (void)be;
    return free_bytes;
}
static size_t placed_bytes(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut) {
    size_t size = 0;
    (void)be, (void)cut;
    for (int i = 0; i < n; i++) size += sl_weight_bytes(weights[i]);
    return size;
}
static void count_line(void *ctx, const char *line) {
    ++*(int *)ctx;
    CHECK(strstr(line, "because no more fit into memory"));
}

// The numbers of a message: GiB of a part, GiB that are missing, and what fits.
static void check_message(const sl_engine *e, double row, double fixed, int n_ctx, int fits) {
    double gib = 1 << 30, kv, rest, free, missing;
    int asked, n, ctx, sequences, of;
    if (fits == 0) {
        CHECK_INT(
            sscanf(err.message, "cpu: weights and scratch memory need %lf GiB, %lf are free: %lf", &rest, &free, &missing), 3);
        CHECK_NEAR(missing, fixed > (double)free_bytes ? (fixed - (double)free_bytes) / gib : 0.01, 0.006);
        kv = 0;
    } else {
        CHECK_INT(sscanf(err.message,
                         "cpu: n_ctx %d does not fit into memory with %d sequence(s): %lf GiB of KV cache and %lf GiB of "
                         "weights and scratch memory, %lf GiB free: %lf GiB are missing. The largest that fits is n_ctx %d, "
                         "or %d sequence(s) of %d",
                         &asked, &n, &kv, &rest, &free, &missing, &ctx, &sequences, &of),
                  9);
        CHECK(asked == n_ctx && of == n_ctx && ctx == fits && n == e->n_sequences);
        CHECK_NEAR(kv, row * n_ctx * n / gib, 0.006);
        CHECK_NEAR(missing, kv + rest - free, 0.02);
        CHECK_INT(sequences, (int)(((double)free_bytes - fixed) / row / n_ctx));
    }
    CHECK_NEAR(rest, fixed / gib, 0.006);
    CHECK_NEAR(free, (double)free_bytes / gib, 0.006);
}

static void contexts(void) {
    sl_model *model;
    sl_attn_plan plan;
    uint64_t seed = test_seed;
    int n_results[3] = {0};
    CHECK_OK(sl_model_load("models/tiny", &(sl_model_options){.flags = SL_MODEL_NO_TOKENIZER}, &model, &err), err);
    const sl_config *c = sl_model_config(model);
    CHECK_OK(sl_attn_plan_init(&plan, c->n_layers, &(sl_attn_spec){.method = sl_attn_find("dense")}, &err), err);
    size_t row = 4 * (size_t)c->n_layers * c->n_kv_heads * c->head_dim, weights = 0;
    for (size_t n = 0; n < 1000; n++) CHECK(sl_align(n) % 256 == 0 && sl_align(n) >= n && sl_align(n) < n + 256);
    for (int i = 0; i < sl_tensors_count(model->tensors); i++) weights += sl_tensors_at(model->tensors, i)->n_bytes;
    for (int round = 0; round < 600; round++) {
        static const int limits[] = {131072, 32767, 32768, 300};
        static const char *const places[] = {NULL, "gpu", "auto", "host", "GPU"}; // a CPU has no place to choose
        sl_backend be = *sl_cpu_memory();
        int n_lines = 0, default_chunk = round % 2 ? 2048 : 512, limit = limits[round / 2 % 4];
        model->config.n_ctx = limit;
        be.is_device = round % 2, be.free_memory = given_memory, be.placed_bytes = placed_bytes;
        sl_engine e = {.model = model,
                       .device = {.backend = &be, .attention = &sl_host_attn_runner},
                       .n_sequences = 1 + (int)any(&seed, 40),
                       .log = {count_line, &n_lines}};
        sl_engine_options o = {.n_ctx = round % 3 ? 1 + (int)any(&seed, limit > 40000 ? 40000 : limit) : 0,
                               .prefill_chunk = round % 5 ? 0 : 1 + (int)any(&seed, 4000)};
        int chunk = o.prefill_chunk ? o.prefill_chunk : o.n_ctx && o.n_ctx < default_chunk ? o.n_ctx : default_chunk;
        if (chunk > limit) chunk = limit;
        int rows = chunk > e.n_sequences ? chunk : e.n_sequences, wanted = o.n_ctx ? o.n_ctx : limit < 32768 ? limit : 32768;
        size_t fixed = (192 << 20) + c->arch->scratch_size(c, &be, rows) + (size_t)e.n_sequences * c->n_vocab * 8;
        fixed += be.is_device ? weights : sl_model_bytes_to_allocate(model);
        free_bytes = round % 7 ? fixed + any(&seed, 40000.0 * (double)row * e.n_sequences) : any(&seed, (double)fixed);
        int fits = free_bytes > fixed ? (int)((free_bytes - fixed) / row / (size_t)e.n_sequences / 256 * 256) : 0;
        if (fits > limit) fits = limit;
        for (int i = 0; i < 5 && !be.is_device; i++) {
            o.kv_cache = places[i];
            if (i > 1) CHECK_INT(sl_engine_place(&e, &o, &plan, &err), SL_ERR_ARG);
        }
        o.kv_cache = places[round / 2 % 2];
        int rc = sl_engine_place(&e, &o, &plan, &err), is_good = fits > 0 && (!o.n_ctx || o.n_ctx <= fits);
        CHECK_INT(rc, is_good ? 0 : SL_ERR_MEMORY);
        CHECK(e.prefill_chunk == chunk && e.device.pass.max_rows == rows && e.device.kv.place == SL_KV_GPU);
        CHECK_INT(n_lines, is_good && wanted > fits);
        n_results[is_good + n_lines]++;
        if (is_good)
            CHECK_INT(e.n_ctx, wanted < fits ? wanted : fits);
        else
            check_message(&e, (double)row, (double)fixed, wanted, fits);
    }
    CHECK(n_results[0] > 20 && n_results[1] > 20 && n_results[2] > 20);
    sl_attn_plan_free(&plan), sl_model_free(model);
}

static const test_case cases[] = {
    {"contexts", 0, contexts}, {"random-numbers", 0, random_numbers}, {"places", 0, places}, {"refusals", 0, refusals}, {0},
};
const test_suite suite_kv_place = {"kv_place", cases};
