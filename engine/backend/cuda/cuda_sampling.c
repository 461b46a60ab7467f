// engine/backend/cuda/cuda_sampling.c - the backend's token sampling: settings up, ids down, and an event between the draw and
// the step behind it.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/cuda_sampler.h"

#include <string.h>

// Room for n rows: settings and ids on the device, ids in pinned memory.
static int grow(sl_cuda *c, int n, int n_vocab) {
    size_t ws = sl_cuda_sampler_workspace(n, n_vocab);
    if (!c->drawn && sl_cuda_note(c, cudaEventCreateWithFlags(&c->drawn, cudaEventDisableTiming), "event")) return 1;
    if (ws > c->draw_ws_size) {
        sl_cuda_note(c, cudaStreamSynchronize(c->stream), "sampling");
        cudaFree(c->draw_ws);
        c->draw_ws = NULL;
        c->draw_ws_size = 0;
        if (sl_cuda_note(c, cudaMalloc(&c->draw_ws, ws), "scratch memory for sampling")) return 1;
        c->draw_ws_size = ws;
    }
    if (n <= c->draw_rows) return 0;
    sl_cuda_note(c, cudaStreamSynchronize(c->stream), "sampling");
    cudaFree(c->sampling);
    cudaFreeHost(c->drawn_ids);
    c->sampling = NULL;
    c->drawn_ids = NULL;
    c->draw_rows = 0;
    // The settings, and behind them the ids that the host is told.
    if (sl_cuda_note(c, cudaMalloc(&c->sampling, n * (sizeof(sl_cuda_sampling) + sizeof(int32_t))), "sampling")) return 1;
    if (sl_cuda_note(c, cudaHostAlloc((void **)&c->drawn_ids, n * sizeof(int32_t), 0), "sampling")) return 1;
    c->draw_rows = n;
    return 0;
}

void sl_cuda_draw(const sl_backend *be, const float *logits, const sl_row *rows, const sl_sampling *const *sampling, int n_rows,
                  int n_vocab, int32_t *ids) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_sampling settings[n_rows];
    if (grow(c, n_rows, n_vocab)) return;
    memset(settings, 0, sizeof settings);
    for (int i = 0; i < n_rows; i++) settings[i] = sl_cuda_sampling_of(sampling[i]);
    be->upload(be, c->sampling, settings, sizeof settings);
    int32_t *told = (int32_t *)((sl_cuda_sampling *)c->sampling + c->draw_rows);
    sl_cuda_sample(logits, rows, c->sampling, n_rows, n_vocab, ids, told, c->draw_ws, c->stream);
    sl_cuda_note(c, cudaMemcpyAsync(c->drawn_ids, told, n_rows * sizeof *told, cudaMemcpyDeviceToHost, c->stream), "sampling");
    sl_cuda_note(c, cudaEventRecord(c->drawn, c->stream), "sampling");
}

int sl_cuda_drawn(const sl_backend *be, int32_t *ids, int n, sl_error *err) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_note(c, cudaGetLastError(), "launch");
    if (!c->failed.code) sl_cuda_note(c, cudaEventSynchronize(c->drawn), "sampling");
    if (c->failed.code) return be->finish(be, err);
    memcpy(ids, c->drawn_ids, n * sizeof *ids);
    return 0;
}

void sl_cuda_draw_free(sl_cuda *c) {
    cudaFree(c->draw_ws);
    cudaFree(c->sampling);
    cudaFreeHost(c->drawn_ids);
    if (c->drawn) cudaEventDestroy(c->drawn);
}
