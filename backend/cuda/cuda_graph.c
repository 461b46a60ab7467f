// backend/cuda/cuda_graph.c - records decode steps as CUDA graphs, one graph for each key (sl_step_key).
//
// A recording keeps the addresses and the grids of its launches. Tokens, positions and page tables lie in device memory, so one
// recording serves every step of its key. With several ranks (cuda_ranks.h) every step begins with the exchange slot 0.
#include "backend/cuda/cuda_backend.h"

#include <string.h>

// Number of the recording that was replayed least recently. Precondition: n_graphs > 0.
static int oldest_graph(const sl_cuda *c) {
    int oldest = 0;
    for (int i = 1; i < c->n_graphs; i++)
        if (c->graphs[i].used < c->graphs[oldest].used) oldest = i;
    return oldest;
}

static void drop_graph(sl_cuda *c, int i) {
    cudaGraphExecDestroy(c->graphs[i].exec);
    c->graphs[i] = c->graphs[--c->n_graphs];
}

// Recordings take memory of the GPU, which the KV cache may have taken: an older recording makes room.
static cudaError_t instantiate(sl_cuda *c, cudaGraphExec_t *exec, cudaGraph_t graph) {
    cudaError_t rc = cudaGraphInstantiate(exec, graph, 0);
    while (rc == cudaErrorMemoryAllocation && c->n_graphs > 0) {
        cudaGetLastError(); // clears it
        drop_graph(c, oldest_graph(c));
        rc = cudaGraphInstantiate(exec, graph, 0);
    }
    return rc;
}

static cudaGraphExec_t record(sl_cuda *c, void (*forward)(const struct sl_batch *batch), const struct sl_batch *batch) {
    static const char what[] = "recording a step";
    cudaGraph_t graph = NULL;
    cudaGraphExec_t exec = NULL;
    if (sl_cuda_keep_error(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), what)) return NULL;
    forward(batch);
    if (sl_cuda_keep_error(c, cudaStreamEndCapture(c->stream, &graph), what)) return NULL;
    sl_cuda_keep_error(c, instantiate(c, &exec, graph), what);
    cudaGraphDestroy(graph);
    return exec;
}

static int is_same(sl_step_key a, sl_step_key b) {
    return a.n == b.n && a.first == b.first && a.plan == b.plan && !memcmp(a.exact_rows, b.exact_rows, sizeof a.exact_rows);
}

void sl_cuda_run_step(const sl_backend *be, sl_step_key key, void (*forward)(const struct sl_batch *batch),
                      const struct sl_batch *batch) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    c->n_steps++;
    sl_cuda_ranks_begin_step(c);
    for (int i = 0; i < c->n_graphs; i++) {
        if (!is_same(c->graphs[i].key, key)) continue;
        c->graphs[i].used = c->n_steps;
        sl_cuda_keep_error(c, cudaGraphLaunch(c->graphs[i].exec, c->stream), "replaying a step");
        if (c->ranks) c->ranks->next_slot = c->graphs[i].next_slot;
        return;
    }
    // The first step of a key runs without a recording. This step may grow buffers, and so make recordings invalid. It also
    // loads the kernels; CUDA does not allow that within a recording.
    forward(batch);
    if (c->first_error.code) return;
    int next_slot = c->ranks ? c->ranks->next_slot : 0;
    if (c->ranks) c->ranks->next_slot = 0; // where a replay begins; what is recorded does not run, and ends as this step
    cudaGraphExec_t exec = record(c, forward, batch);
    if (c->ranks) c->ranks->next_slot = next_slot;
    if (!exec) return;
    if (c->n_graphs == SL_MAX_GRAPHS) drop_graph(c, oldest_graph(c));
    int i = c->n_graphs++;
    c->graphs[i].key = key, c->graphs[i].exec = exec, c->graphs[i].used = c->n_steps, c->graphs[i].next_slot = next_slot;
}

void sl_cuda_forget(const sl_backend *be) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    cudaStreamSynchronize(c->stream);
    while (c->n_graphs > 0) cudaGraphExecDestroy(c->graphs[--c->n_graphs].exec);
}
