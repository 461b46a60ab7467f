// engine/engine_ranks.c - the engine of a rank of a tensor-parallel run. Each rank has some heads, a part of the MLP and a part
// of the output head, and runs the same passes. The backend adds the parts of sums (sl_cpu_use_comm, sl_cuda_use_comm); this
// file brings the logits together, so that each rank samples the same token, and makes the ranks agree where they could differ:
// the context that fits into memory, a cancelled call, and the times by which drafts are chosen.
#include "backend/cpu/cpu_ranks.h"
#include "engine/engine_internal.h"

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda_ranks.h"
#include "backend/cuda/packed.h"
#endif

#include <stdlib.h>
#include <string.h>

// ---- start ----

static int check_options(const sl_engine *e, const sl_engine_options *o, sl_error *err) {
    int n = e->comm->n;
    if (e->device.backend->is_device && o->kv_cache && strcmp(o->kv_cache, "gpu"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{kv_cache} %s: found {tensor_parallel} %d; expected {kv_cache} gpu with it",
                       o->kv_cache, n);
    if (o->draft_model) return sl_engine_check_whole(e, "a draft model ({draft_model})", err);
    return 0;
}

#ifdef SLEIGH_CUDA
// SL_ERR_UNSUPPORTED: the rows of a quantised weight that one rank has would not be stored as those of the whole weight, and
// so would have other bits.
static int check_rows(const sl_engine *e, sl_error *err) {
    const sl_model_weights *w = &e->model->weights;
    for (int i = 0; i < w->n_tensors; i++) {
        const sl_weight *part = w->tensors[i].weight;
        if (w->tensors[i].cut == SL_CUT_ROWS && sl_formats[part->format].has_scale && part->n_rows % SL_PIECE_ROWS)
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{tensor_parallel} %d: %s has %d rows; on a GPU, the rows of a quantised weight must be a multiple of %d",
                e->comm->n, w->tensors[i].shape.name, part->n_rows * e->comm->n, SL_PIECE_ROWS * e->comm->n);
    }
    return 0;
}

static int join_gpus(sl_engine *e, sl_error *err) {
    sl_cuda_links links;
    int n = e->comm->n, rc = check_rows(e, err);
    if (rc) return rc;
    rc = sl_cuda_use_comm(e->device.backend, e->comm, &links, err);
    if (rc) return rc;
    if (links.n_sharing > 1)
        sl_engine_log(e, "%s GPU is shared by %d of the %d ranks: they take turns, which is slower than one rank",
                      links.n_sharing == n ? "one" : "this", links.n_sharing, n);
    if (links.is_one_each && !links.has_nccl)
        sl_engine_log(e, "prefills add their sums without NCCL (%.200s), which is slower", links.why_not.message);
    if (!links.has_peers)
        sl_engine_log(e, "a GPU cannot map the memory of another one: NCCL brings all parts of sums, which is slower");
    return 0;
}

static void gather_on_gpu(const sl_engine *e, int n, float *out) {
    sl_cuda_gather_logits(e->device.backend, n, e->model->config.n_vocab / e->comm->n, out);
}
#else
static int join_gpus(sl_engine *e, sl_error *err) { // there are no devices but the CPU
    (void)e, (void)err;
    SL_CHECK(!"a GPU");
}
static void gather_on_gpu(const sl_engine *e, int n, float *out) {
    (void)e, (void)n, (void)out;
    SL_CHECK(!"a GPU");
}
#endif

int sl_engine_join(sl_engine *e, const sl_engine_options *o, sl_error *err) {
    int n = e->model->part.shard.n;
    e->comm = e->model->comm;
    if (n > 1 && !e->comm)
        return sl_fail(err, SL_ERR_ARG, "the model is part %d of %d, and has no communicator", e->model->part.shard.rank, n);
    if (!e->comm) return 0;
    int rc = check_options(e, o, err);
    if (rc) return rc;
    if (e->device.backend->is_device) return join_gpus(e, err);
    e->part_logits = malloc((size_t)e->model->config.n_vocab / (size_t)n * sizeof *e->part_logits);
    if (!e->part_logits) return sl_fail(err, SL_ERR_MEMORY, "logits: out of memory");
    sl_cpu_use_comm(e->device.backend, e->comm);
    return 0;
}

void sl_engine_meet(const sl_engine *e) {
    int32_t own = 0, all[SL_MOST_RANKS];
    if (e->comm) sl_engine_gather(e, &own, sizeof own, all);
}

double sl_engine_share_time(const sl_engine *e, double ms) {
    if (e->comm) e->comm->broadcast(e->comm, &ms, sizeof ms);
    return ms;
}

int sl_engine_is_own_error(const sl_engine *e, int rc) {
    return e->comm && (rc == SL_ERR_MEMORY || rc == SL_ERR_DEVICE || rc == SL_ERR_IO);
}

int sl_model_threads(const sl_model *model, int n_threads) {
    int share = sl_cpu_cores() / sl_comm_n(model->comm);
    return n_threads > 0 ? n_threads : share > 1 ? share : 1;
}

int sl_engine_check_whole(const sl_engine *e, const char *what, sl_error *err) {
    if (!e->comm) return 0;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "{tensor_parallel} %d: %s is offered in one process only", e->comm->n, what);
}

// ---- methods ----

// What a method shares between KV heads; NULL: nothing.
static const char *shared_by_heads(const sl_attn_spec *spec) {
    for (int i = 0; i < 2; i++) {
        const sl_attn_method *m = i ? spec->plus : spec->method;
        if (m && !strcmp(m->name, "magicpig")) return "its hash functions are numbered by KV head";
    }
    if (sl_attn_certifies_layer(spec)) return "it states an error of all heads of a layer";
    return NULL;
}

// 1: the draws of a layer are split over its heads by what all heads measure.
static int splits_draws(const sl_attn_spec *spec) {
    return !sl_attn_states_error(spec) && sl_attn_has(spec, "budget") && !sl_attn_chooses(spec, "budget", "even");
}

int sl_engine_check_part(const sl_engine *e, const sl_attn_plan *plan, sl_error *err) {
    for (int i = 0; e->comm && i < plan->n_layers; i++) {
        const char *why = shared_by_heads(&plan->layer[i]);
        if (splits_draws(&plan->layer[i]))
            return sl_fail(
                err, SL_ERR_UNSUPPORTED,
                "{attn} %s: found a {budget} that splits the draws over all heads of a layer, expected {budget} even "
                "with {tensor_parallel} %d",
                plan->layer[i].method->name, e->comm->n);
        if (why)
            return sl_fail(err, SL_ERR_UNSUPPORTED, "{attn} %s: not offered with {tensor_parallel} %d: %s",
                           plan->layer[i].method->name, e->comm->n, why);
    }
    return 0;
}

// ---- results ----

void sl_engine_gather_logits(const sl_batch *b, int n, float *out) {
    const sl_engine *e = b->ranges[0].session->engine;
    if (e->device.backend->is_device) {
        gather_on_gpu(e, n, out);
        return;
    }
    size_t n_vocab = (size_t)e->model->config.n_vocab, part = n_vocab / (size_t)e->comm->n;
    for (int i = n - 1; i >= 0; i--) { // the last row first: the others lie before it
        memcpy(e->part_logits, out + (size_t)i * part, part * sizeof *out);
        e->comm->all_gather(e->comm, e->part_logits, part, out + (size_t)i * n_vocab);
    }
}

void sl_engine_gather(const sl_engine *e, const void *part, size_t size, void *all) {
    SL_CHECK(size % sizeof(float) == 0);
    e->comm->all_gather(e->comm, part, size / sizeof(float), all); // floats are only copied
}

const sl_attn_stats *sl_engine_sum_stats(const sl_engine *e, const sl_attn_stats *own, sl_attn_stats *all) {
    sl_attn_stats parts[SL_MOST_RANKS];
    if (!e->comm) return own;
    sl_engine_gather(e, own, sizeof *own, parts);
    *all = (sl_attn_stats){0};
    for (int i = 0; i < e->comm->n; i++) sl_attn_stats_add(all, &parts[i]);
    return all;
}
