// engine/schedule/scheduler_ranks.c - the schedulers of ranks that share a model (engine/engine_ranks.c). Each rank has one,
// and runs the same steps. This file has what shows a difference between them, and what they exchange.
#include "base/hash.h"
#include "engine/schedule/scheduler_internal.h"
#include "engine/stream.h"

// ---- the trace ----

void sl_scheduler_note(sl_scheduler *s, const sl_job *j, sl_event event, const int32_t *ids, int n) {
    const int32_t head[] = {(int32_t)j->number, (int32_t)event, (int32_t)sl_stream_result(j->stream).stop, n};
    s->trace = sl_fnv1a(s->trace, head, sizeof head);
    if (n) s->trace = sl_fnv1a(s->trace, ids, (size_t)n * sizeof *ids);
}

uint64_t sl_scheduler_trace(const sl_scheduler *s) {
    const int32_t pages[] = {s->engine->device.pool.n_free, s->tree ? sl_prefix_n_pages(s->tree) : 0};
    return sl_fnv1a(s->trace, pages, sizeof pages);
}

// ---- errors ----

int sl_scheduler_lose(sl_scheduler *s, const sl_error *why) {
    if (!sl_engine_is_own_error(s->engine, why->code)) return 0;
    s->lost = *why;
    return 1;
}

const sl_error *sl_scheduler_error(const sl_scheduler *s) {
    return &s->lost;
}

// ---- work ----

void sl_job_sum_work(sl_job *j) {
    if (!j->on_change || !j->scheduler->engine->comm) return;
    const sl_attn_stats *all = sl_stream_attn_stats(j->stream);
    if (all) j->work = *all;
}

const sl_attn_stats *sl_job_work(const sl_job *j, sl_attention_work *work) {
    const sl_engine *e = j->scheduler->engine;
    const sl_attn_stats *stats = e->device.backend->is_device ? NULL : e->comm ? &j->work : sl_stream_attn_stats(j->stream);
    if (stats) *work = sl_attention_work_of(stats);
    return stats;
}
