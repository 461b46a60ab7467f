// engine/engine_place.c - where K and V of an engine lie, and how long its context is: on the CPU, on the GPU, or in host
// memory with a part on the GPU (kv/kv_place.h). Everything here is computed before the engine allocates its memory.
#include "base/comm.h"
#include "base/host_memory.h"
#include "engine/engine_internal.h"
#include "kv/kv_offload.h"

#include <stdio.h>
#include <string.h>

enum {
    DEFAULT_CTX = 32768,
    DEFAULT_CHUNK = 512,
    DEFAULT_DEVICE_CHUNK = 2048,
    DEFAULT_OFFLOADED_CHUNK = 16384, // rows in host memory: every chunk streams all rows before it
    // What a backend allocates itself. A GPU needs scratch memory for a part of a packed weight (SL_WIDE) and for rows of fp8
    // (prefill_fp8.c).
    RESERVE_BYTES = 192 << 20
};

// ---- K and V in the backend's memory ----

// Bytes that this process can still allocate. Ranks of a tensor-parallel run on the CPU share the memory of one host.
static size_t free_of(const sl_model *model, const sl_backend *be) {
    int n = be->is_device || model->part.shard.n < 2 ? 1 : model->part.shard.n;
    return be->free_memory(be) / (size_t)n;
}

// Bytes that the engine will still allocate on this device, without the KV cache.
static size_t fixed_bytes(const sl_model *model, const sl_device *d, int n_step_rows, int max_rows) {
    const sl_config *c = &model->part;
    const sl_backend *be = d->backend;
    size_t weights = be->is_device ? sl_model_weights_placed_bytes(&model->weights, be) : sl_model_bytes_to_allocate(model);
    size_t scratch = c->arch->scratch_size(c, be, max_rows);
    return RESERVE_BYTES + weights + d->draft_bytes + scratch + 2 * (size_t)n_step_rows * c->n_vocab * sizeof(float);
}

// Tokens whose K and V fit beside the rest. A layer of one sequence also has a copy as bf16 (sl_pass_buffers.wide): of copy_ctx
// tokens, or, if copy_ctx is 0, of a sequence of the n_sharing ones that share the cache equally.
static size_t largest_cache(const sl_model *model, const sl_device *d, int n_step_rows, int max_rows, int n_sharing,
                            int copy_ctx) {
    const sl_config *c = &model->part;
    size_t fixed = fixed_bytes(model, d, n_step_rows, max_rows), all = free_of(model, d->backend);
    size_t row = sl_kv_bytes_per_token(c->n_layers, c->n_kv_heads, c->head_dim, d->formats);
    size_t wide = sl_device_wide_bytes(d, c);
    fixed += wide * copy_ctx;
    size_t room = all > fixed ? all - fixed : 0;
    return copy_ctx ? room / row : room / (row * n_sharing + wide) * n_sharing;
}

// The largest context of sequences that share a cache of `cache` tokens.
static int largest_ctx(const sl_model *model, size_t cache, int n_sequences) {
    size_t tokens = cache / n_sequences / SL_PAGE * SL_PAGE;
    return tokens < (size_t)model->config.n_ctx ? (int)tokens : model->config.n_ctx;
}

int sl_engine_largest_ctx(const sl_model *model, const char *device, int n_sequences, int *n_ctx, sl_error *err) {
    const sl_engine_options o = {.device = device, .n_sequences = n_sequences};
    if (n_sequences < 1) return sl_fail(err, SL_ERR_ARG, "{n_sequences} %d: expected at least 1", n_sequences);
    return sl_engine_largest_ctx_with(model, &o, n_ctx, err);
}

int sl_engine_largest_ctx_with(const sl_model *model, const sl_engine_options *o, int *n_ctx, sl_error *err) {
    sl_device d = {0};
    int n_sequences = o->n_sequences > 0 ? o->n_sequences : 1, rc = sl_device_open(&d, o, err);
    if (rc) return rc;
    int chunk = d.backend->is_device ? DEFAULT_DEVICE_CHUNK : DEFAULT_CHUNK;
    if (chunk > model->config.n_ctx) chunk = model->config.n_ctx;
    int n_step_rows = n_sequences * (1 + o->n_draft), most = chunk > n_step_rows ? chunk : n_step_rows;
    *n_ctx = largest_ctx(model, largest_cache(model, &d, n_step_rows, most, n_sequences, 0), n_sequences);
    if (d.backend->free) d.backend->free(d.backend);
    return 0;
}

static int no_room(const sl_engine *e, int n_ctx, int fits, sl_error *err) {
    const sl_config *c = &e->model->part;
    const sl_backend *be = e->device.backend;
    double gib = 1 << 30, free = (double)free_of(e->model, be) / gib;
    double fixed = fixed_bytes(e->model, &e->device, e->n_step_rows, e->device.pass.max_rows) / gib;
    size_t row = sl_kv_bytes_per_token(c->n_layers, c->n_kv_heads, c->head_dim, e->device.formats);
    double wide = (double)sl_device_wide_bytes(&e->device, c) * n_ctx / gib;
    double kv = (double)row * n_ctx * e->n_sequences / gib + wide;
    int most = (int)((free - fixed - wide) / (kv - wide) * e->n_sequences);
    const char *what = e->device.draft_bytes ? "weights, their copies for drafts" : "weights";
    if (fits <= 0)
        return sl_fail(err, SL_ERR_MEMORY, "%s: %s and scratch memory need %.2f GiB, %.2f are free: %.2f GiB are missing",
                       be->name, what, fixed, free, fixed - free > 0 ? fixed - free : 0.01);
    return sl_fail(err, SL_ERR_MEMORY,
                   "%s: {n_ctx} %d does not fit into memory with %d sequence(s): %.2f GiB of KV cache and %.2f GiB of %s "
                   "and scratch memory, %.2f GiB free: %.2f GiB are missing. The largest that fits is {n_ctx} %d, or %d "
                   "sequence(s) of %d",
                   be->name, n_ctx, e->n_sequences, kv, fixed, what, free, kv + fixed - free, fits, most > 0 ? most : 0, n_ctx);
}

// The context that the user wants, before memory limits it.
static int wanted_ctx(const sl_engine *e, const sl_engine_options *o) {
    int limit = e->model->config.n_ctx, most = o->kv_tokens && o->kv_tokens < DEFAULT_CTX ? o->kv_tokens : DEFAULT_CTX;
    return o->n_ctx ? o->n_ctx : limit < most ? limit : most;
}

static void log_smaller(const sl_engine *e, int fits) {
    sl_engine_log(e, "%s: the context has %d tokens instead of %d, because no more fit into memory", e->device.backend->name,
                  fits, e->n_ctx);
}

// Chooses n_ctx with K and V in the backend's memory.
static int choose_ctx(sl_engine *e, const sl_engine_options *o, sl_error *err) {
    int n_sharing = o->kv_tokens ? 1 : e->n_sequences;
    e->n_ctx = wanted_ctx(e, o);
    size_t most =
        largest_cache(e->model, &e->device, e->n_step_rows, e->device.pass.max_rows, n_sharing, o->kv_tokens ? e->n_ctx : 0);
    int fits = largest_ctx(e->model, most, n_sharing);
    if (fits > 0 && o->kv_tokens && (size_t)o->kv_tokens > most)
        return sl_fail(err, SL_ERR_MEMORY, "%s: kv_tokens %d does not fit into memory; the largest that fits is %zu",
                       e->device.backend->name, o->kv_tokens, most);
    if (fits <= 0 || o->n_ctx > fits) return no_room(e, e->n_ctx, fits, err);
    if (e->n_ctx > e->model->config.n_trained)
        sl_engine_log(e, "the context has %d tokens, and this model was trained on %d", e->n_ctx, e->model->config.n_trained);
    if (e->n_ctx <= fits) return 0;
    log_smaller(e, fits);
    e->n_ctx = fits;
    return 0;
}

// ---- K and V in host memory ----

static int parse_place(const char *text, sl_kv_place *out, sl_error *err) {
    static const char *const names[] = {[SL_KV_AUTO] = "auto", [SL_KV_GPU] = "gpu", [SL_KV_OFFLOADED] = "host"};
    *out = SL_KV_GPU;
    if (!text) return 0;
    for (int i = 0; i < 3; i++)
        if (!strcmp(text, names[i])) {
            *out = (sl_kv_place)i;
            return 0;
        }
    return sl_fail(err, SL_ERR_ARG, "{kv_cache} %.40s: expected gpu, host or auto", text);
}

int sl_engine_check_offloaded(const sl_attn_plan *plan, sl_error *err) {
    for (int i = 0; i < plan->n_layers; i++) {
        const sl_attn_spec *spec = &plan->layer[i];
        char where[32];
        snprintf(where, sizeof where, "layer %d", i);
        if (!sl_attn_on_offloaded_rows(spec)) return sl_attn_refuse_offloaded(spec, where, err);
        if (sl_attn_has(spec, "dense-layers") && i < (int)sl_attn_get(spec, "dense-layers"))
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{attn} %s: layer %d is dense ({dense-layers} %d), and with {kv_cache} host it would read every row over "
                "the bus; give the layer another method, such as {attn_layer} %d=quest",
                spec->method->name, i, (int)sl_attn_get(spec, "dense-layers"), i);
    }
    return 0;
}

// Bytes of a page's extras of all methods of the plan, over all layers and KV heads, and of the masses that a step stores.
static size_t proposing_of(const sl_engine *e, const sl_attn_plan *plan) {
    const sl_attn_geom *g = &e->geom;
    sl_kv_need needs[SL_MAX_NEEDS], seen[SL_KV_EXTRAS];
    int n_seen = 0;
    size_t bytes = 0, masses = (size_t)g->n_heads * (SL_PAGE / 32) * (sizeof(uint64_t) + 32 * sizeof(bf16));
    for (int i = 0; i < plan->n_layers; i++) {
        int n = e->device.attention->needs(&plan->layer[i], needs);
        for (int j = 0; j < n; j++) {
            int at = 0;
            while (at < n_seen && (seen[at].kind != needs[j].kind || seen[at].arg != needs[j].arg)) at++;
            if (at < n_seen || n_seen == SL_KV_EXTRAS) continue;
            seen[n_seen++] = needs[j];
            size_t size = needs[j].kind->size(needs[j].arg, g->head_dim);
            bytes += needs[j].kind->span ? size / 8 : size; // kv_extras.h
        }
    }
    return bytes * g->n_kv_heads * g->n_layers + masses;
}

static sl_kv_demand demand_of(const sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, int n_ctx) {
    const sl_config *c = &e->model->config;
    size_t row = sl_kv_bytes_per_token(c->n_layers, c->n_kv_heads, c->head_dim, e->device.formats);
    // The part of the scratch memory that grows with the context is in proposing_of.
    size_t scratch = e->device.attention->offloaded_scratch ? e->device.attention->offloaded_scratch(e, plan, SL_PAGE) : 0;
    return (sl_kv_demand){.row = row,
                          .proposing = proposing_of(e, plan),
                          .fixed = fixed_bytes(e->model, &e->device, e->n_step_rows, e->device.pass.max_rows) + scratch,
                          .n_ctx = n_ctx,
                          .n_sequences = e->n_sequences,
                          .n_pages = sl_kv_pages_of(o->kv_tokens),
                          .spare_frames = SL_KV_SPARE_FRAMES,
                          .streamed = 2 * row / c->n_layers, // two layers of one sequence
                          .hot_share = 0.05};
}

static sl_kv_room room_of(const sl_engine *e, const sl_engine_options *o) {
    return (sl_kv_room){.gpu = e->device.backend->free_memory(e->device.backend),
                        .host = o->host_memory ? o->host_memory : sl_host_memory_allowed(""),
                        .gpu_most = o->kv_gpu_memory};
}

// Tokens of a prefill pass, and rows of the largest step and of the largest pass.
static void choose_rows(sl_engine *e, const sl_engine_options *o, int default_chunk) {
    e->n_step_rows = e->n_sequences * (1 + e->n_draft);
    e->prefill_chunk = o->prefill_chunk ? o->prefill_chunk : default_chunk;
    if (e->prefill_chunk > e->model->config.n_ctx) e->prefill_chunk = e->model->config.n_ctx;
    if (o->n_ctx > 0 && e->prefill_chunk > o->n_ctx && !o->prefill_chunk) e->prefill_chunk = o->n_ctx;
    e->device.pass.max_rows = e->prefill_chunk > e->n_step_rows ? e->prefill_chunk : e->n_step_rows;
}

static long long pool_pages(const sl_engine *e, const sl_engine_options *o) {
    return o->kv_tokens ? sl_kv_pages_of(o->kv_tokens) : (long long)sl_kv_pages_of(e->n_ctx) * e->n_sequences;
}

static int place_offloaded(sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, sl_error *err) {
    int rc = sl_engine_check_offloaded(plan, err);
    if (rc) return rc;
    choose_rows(e, o, DEFAULT_OFFLOADED_CHUNK);
    e->n_ctx = wanted_ctx(e, o);
    const sl_kv_room room = room_of(e, o);
    sl_kv_demand d = demand_of(e, o, plan, e->n_ctx);
    long long fits = sl_kv_largest_ctx(&d, &room, SL_KV_OFFLOADED);
    if (!o->n_ctx && fits > 0 && fits < e->n_ctx) {
        log_smaller(e, (int)fits);
        d.n_ctx = e->n_ctx = (int)fits;
    }
    long long rows = pool_pages(e, o) * SL_PAGE * e->geom.n_kv_heads;
    if (rows >= SL_KV_OFFLOADED_ROWS)
        return sl_fail(err, SL_ERR_ARG,
                       "{n_ctx} %d with %d sequence(s): %lld rows of K in a layer's %d KV heads; expected fewer "
                       "than %d with {kv_cache} host",
                       e->n_ctx, e->n_sequences, rows, e->geom.n_kv_heads, SL_KV_OFFLOADED_ROWS);
    rc = sl_kv_place_rows(&d, &room, SL_KV_OFFLOADED, &e->device.kv, err);
    if (rc) return rc;
    if (e->n_ctx > e->model->config.n_trained)
        sl_engine_log(e, "the context has %d tokens, and this model was trained on %d", e->n_ctx, e->model->config.n_trained);
    return 0;
}

// The place with SL_KV_AUTO: the host, if the context does not fit on the GPU and the methods can read rows on the host.
static sl_kv_place choose_place(const sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan) {
    if (sl_engine_check_offloaded(plan, NULL)) return SL_KV_GPU;
    const sl_kv_room room = room_of(e, o);
    const sl_kv_demand d = demand_of(e, o, plan, wanted_ctx(e, o));
    sl_kv_layout l;
    return sl_kv_place_rows(&d, &room, SL_KV_AUTO, &l, NULL) ? SL_KV_OFFLOADED : l.place;
}

static int check_lengths(const sl_engine *e, const sl_engine_options *o, sl_error *err) {
    int limit = e->model->config.n_ctx;
    if (o->n_ctx < 0 || o->n_ctx > limit)
        return sl_fail(err, SL_ERR_ARG, "{n_ctx} %d: expected 1 to %d, this model's limit (%s)", o->n_ctx, limit,
                       sl_config_limit(&e->model->config));
    if (o->kv_tokens < 0 || (o->kv_tokens && o->n_ctx > o->kv_tokens))
        return sl_fail(err, SL_ERR_ARG, "kv_tokens %d: expected 0, or at least {n_ctx} (%d)", o->kv_tokens, o->n_ctx);
    return 0;
}

// The least context of all ranks.
static int least_ctx(const sl_engine *e) {
    int32_t own = e->n_ctx, all[SL_MOST_RANKS];
    if (!e->comm) return own;
    sl_engine_gather(e, &own, sizeof own, all);
    for (int i = 0; i < e->comm->n; i++) own = all[i] < own ? all[i] : own;
    return own;
}

int sl_engine_place(sl_engine *e, const sl_engine_options *o, const sl_attn_plan *plan, sl_error *err) {
    sl_kv_place place;
    int is_device = e->device.backend->is_device, rc = parse_place(o->kv_cache, &place, err);
    if (!rc) rc = check_lengths(e, o, err);
    if (rc) return rc;
    if (place != SL_KV_GPU && !is_device)
        return sl_fail(err, SL_ERR_ARG, "{kv_cache} %s: on the CPU, K and V are in host memory anyway; use {device} cuda",
                       o->kv_cache);
    if (e->device.formats.k != SL_BF16 && place == SL_KV_OFFLOADED)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "a KV cache of %s is not offered with {kv_cache} host; expected bf16 ({kv_cache_dtype}), or {kv_cache} gpu",
            sl_formats[e->device.formats.k].name);
    if (e->device.formats.k != SL_BF16 && place == SL_KV_AUTO)
        sl_engine_log(e, "kv_cache auto: gpu, because a KV cache of %s lies on the GPU only",
                      sl_formats[e->device.formats.k].name);
    if (e->device.formats.k != SL_BF16) place = SL_KV_GPU;
    choose_rows(e, o, is_device ? DEFAULT_DEVICE_CHUNK : DEFAULT_CHUNK);
    if (place != SL_KV_GPU) rc = sl_engine_need_buckets_of(e, plan, err); // the scratch memory depends on their number
    if (rc) return rc;
    if (place == SL_KV_AUTO) place = choose_place(e, o, plan);
    if (place == SL_KV_GPU) e->device.kv = (sl_kv_layout){.place = SL_KV_GPU};
    rc = place == SL_KV_OFFLOADED ? place_offloaded(e, o, plan, err) : choose_ctx(e, o, err);
    if (rc) return rc;
    e->n_ctx = least_ctx(e);
    e->device.n_pages = (int)pool_pages(e, o);
    return 0;
}

const sl_kv_layout *sl_engine_kv_layout(const sl_engine *e) {
    return &e->device.kv;
}

sl_kv_formats sl_engine_kv_formats(const sl_engine *e) {
    return e->device.formats;
}

int sl_engine_largest_ctx_offloaded(const sl_model *model, const sl_engine_options *o, int *n_ctx, sl_error *err) {
    sl_engine e = {.model = model, .n_sequences = o->n_sequences > 0 ? o->n_sequences : 1};
    const sl_config *c = &model->config;
    sl_attn_plan plan;
    sl_attn_spec spec;
    *n_ctx = 0;
    e.geom =
        (sl_attn_geom){.n_layers = c->n_layers, .n_heads = c->n_heads, .n_kv_heads = c->n_kv_heads, .head_dim = c->head_dim};
    int rc = sl_attn_parse(o->attn, &spec, err);
    if (!rc) rc = sl_attn_plan_init(&plan, c->n_layers, &spec, err);
    if (rc) return rc;
    rc = sl_device_open(&e.device, o, err);
    int asks = !rc && e.device.backend->is_device && sl_attn_on_offloaded_rows(&spec);
    if (asks) rc = sl_engine_need_buckets_of(&e, &plan, err);
    if (asks && !rc) {
        choose_rows(&e, o, DEFAULT_OFFLOADED_CHUNK);
        const sl_kv_room room = room_of(&e, o);
        const sl_kv_demand d = demand_of(&e, o, &plan, 1);
        long long fits = sl_kv_largest_ctx(&d, &room, SL_KV_OFFLOADED);
        *n_ctx = fits < c->n_ctx ? (int)fits : c->n_ctx;
    }
    sl_engine_close_buckets(&e);
    if (e.device.backend && e.device.backend->free) e.device.backend->free(e.device.backend);
    sl_attn_plan_free(&plan);
    return rc;
}
