// backend/cuda/cuda_sampling.c - token sampling: uploads the settings, launches the sampler, downloads the ids.
//
// An event marks the end of the download. sl_cuda_sampled_ids waits for the event only, so the GPU works on the next step while
// the host reads the ids.
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_sampler.h"

#include <string.h>

enum { TOGETHER = 16 }; // rows of a launch: enough for all multiprocessors, and scratch memory has a limit

// Makes room for n rows: scratch memory, settings and ids on the device, ids in pinned memory. Steps with drafts have many
// numbers of rows, so more than one row gets room for many. Returns 1 on failure.
static int grow(sl_cuda *c, int n, int n_vocab) {
    size_t ws = sl_cuda_sampler_workspace(n > 1 ? TOGETHER : 1, n_vocab);
    if (!c->sampled && sl_cuda_keep_error(c, cudaEventCreateWithFlags(&c->sampled, cudaEventDisableTiming), "event")) return 1;
    if (ws > c->sample_ws_size) {
        sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "sampling");
        cudaFree(c->sample_ws);
        c->sample_ws = NULL;
        c->sample_ws_size = 0;
        if (sl_cuda_keep_error(c, cudaMalloc(&c->sample_ws, ws), "scratch memory for sampling")) return 1;
        c->sample_ws_size = ws;
    }
    if (n <= c->sample_rows) return 0;
    n = (n + 63) / 64 * 64;
    sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "sampling");
    cudaFree(c->settings);
    cudaFreeHost(c->sampled_ids);
    c->settings = NULL;
    c->sampled_ids = NULL;
    c->sample_rows = 0;
    if (sl_cuda_keep_error(c, cudaMalloc(&c->settings, n * (sizeof(sl_cuda_sampling) + sizeof(int32_t))), "sampling")) return 1;
    if (sl_cuda_keep_error(c, cudaHostAlloc((void **)&c->sampled_ids, n * sizeof(int32_t), 0), "sampling")) return 1;
    c->sample_rows = n;
    return 0;
}

// Uploads the allowed tokens of the rows that have some: settings[i].allowed. Returns 1 on failure.
static int upload_allowed(const sl_backend *be, const uint32_t *const *allowed, int n_rows, int n_vocab,
                          sl_cuda_sampling *settings) {
    sl_cuda *c = sl_cuda_of(be);
    size_t n = ((size_t)n_vocab + 31) / 32, n_limited = 0;
    for (int i = 0; i < n_rows; i++) n_limited += allowed[i] != NULL;
    if (n_limited * n > c->allowed_words) {
        sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "sampling");
        cudaFree(c->allowed);
        c->allowed = NULL, c->allowed_words = 0;
        if (sl_cuda_keep_error(c, cudaMalloc((void **)&c->allowed, n_rows * n * sizeof(uint32_t)), "sampling")) return 1;
        c->allowed_words = n_rows * n;
    }
    uint32_t *to = c->allowed;
    for (int i = 0; i < n_rows; i++) {
        if (!allowed[i]) continue;
        sl_cuda_upload(be, to, allowed[i], n * sizeof *to);
        settings[i].allowed = to;
        to += n;
    }
    return 0;
}

void sl_cuda_sample_rows(const sl_backend *be, const float *logits, const sl_row *rows, const sl_sampling *const *sampling,
                         const uint32_t *const *allowed, int n_rows, int n_vocab, int32_t *ids) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_sampling settings[n_rows];
    sl_cuda_use(c);
    if (grow(c, n_rows, n_vocab)) return;
    memset(settings, 0, sizeof settings);
    for (int i = 0; i < n_rows; i++) settings[i] = sl_cuda_sampling_of(sampling[i]);
    if (upload_allowed(be, allowed, n_rows, n_vocab, settings)) return;
    sl_cuda_upload(be, c->settings, settings, sizeof settings);
    int32_t *host_ids = (int32_t *)((sl_cuda_sampling *)c->settings + c->sample_rows);
    for (int i = 0; i < n_rows; i += TOGETHER)
        sl_cuda_sample(logits + (size_t)i * n_vocab, rows + i, (sl_cuda_sampling *)c->settings + i,
                       n_rows - i < TOGETHER ? n_rows - i : TOGETHER, n_vocab, ids + i, host_ids + i, c->sample_ws, c->stream);
    sl_cuda_keep_error(
        c, cudaMemcpyAsync(c->sampled_ids, host_ids, n_rows * sizeof *host_ids, cudaMemcpyDeviceToHost, c->stream), "sampling");
    sl_cuda_keep_error(c, cudaEventRecord(c->sampled, c->stream), "sampling");
}

int sl_cuda_sampled_ids(const sl_backend *be, int32_t *ids, int n, sl_error *err) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaGetLastError(), "launch");
    if (!c->first_error.code) sl_cuda_keep_error(c, cudaEventSynchronize(c->sampled), "sampling");
    if (!c->first_error.code) sl_cuda_ranks_check(c, &c->first_error);
    if (c->first_error.code) return sl_cuda_finish(be, err);
    memcpy(ids, c->sampled_ids, n * sizeof *ids);
    return 0;
}

void sl_cuda_sampling_free(sl_cuda *c) {
    cudaFree(c->sample_ws);
    cudaFree(c->settings);
    cudaFree(c->allowed);
    cudaFreeHost(c->sampled_ids);
    if (c->sampled) cudaEventDestroy(c->sampled);
}
