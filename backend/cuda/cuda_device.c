// backend/cuda/cuda_device.c - one GPU: properties, stream, memory, and the first error of a step.
//
// Copies and clears are queued on the backend's stream. Only sl_cuda_release, sl_cuda_download and sl_cuda_finish wait.
#include "backend/cuda/cuda.h"
#include "backend/cuda/cuda_backend.h"
#include "backend/cuda/cuda_error.h"
#include "backend/cuda/cuda_ops.h"

#include <stdio.h>

#ifndef SLEIGH_CUDA_ARCH
#define SLEIGH_CUDA_ARCH "unknown"
#endif

void sl_cuda_use(const sl_cuda *c) {
    cudaSetDevice(c->index);
}

// ---- errors ----

int sl_cuda_keep_error(sl_cuda *c, cudaError_t rc, const char *what) {
    if (rc == cudaSuccess) return 0;
    sl_error later;
    sl_cuda_check(rc, what, c->first_error.code ? &later : &c->first_error);
    return 1;
}

int sl_cuda_ranks_check(const sl_cuda *c, sl_error *err) {
    const sl_cuda_ranks *r = c->ranks;
    if (!r || !r->fault || !r->fault->missing) return 0;
    return sl_fail(
        err, SL_ERR_DEVICE,
        "rank %d of the %d that share the model has sent no part of a sum for %d s: its GPU hangs, or its process waits",
        r->fault->missing - 1, r->exchange.n, (int)(r->exchange.limit_ms / 1000));
}

int sl_cuda_finish(const sl_backend *be, sl_error *err) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaGetLastError(), "launch");
    sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "step");
    if (!c->first_error.code) sl_cuda_ranks_check(c, &c->first_error);
    if (!c->first_error.code) return 0;
    if (err) *err = c->first_error;
    int rc = c->first_error.code;
    c->first_error.code = SL_OK;
    return rc;
}

// ---- branches ----

void sl_cuda_branch_out(sl_cuda *c) {
    static const char what[] = "kernels beside each other";
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaEventRecord(c->branch_events[0], c->stream), what);
    for (int i = 0; i < SL_BRANCHES; i++)
        sl_cuda_keep_error(c, cudaStreamWaitEvent(c->branches[i], c->branch_events[0], 0), what);
}

void sl_cuda_branch_in(sl_cuda *c) {
    static const char what[] = "kernels beside each other";
    for (int i = 0; i < SL_BRANCHES; i++) {
        sl_cuda_keep_error(c, cudaEventRecord(c->branch_events[i], c->branches[i]), what);
        sl_cuda_keep_error(c, cudaStreamWaitEvent(c->stream, c->branch_events[i], 0), what);
    }
}

// ---- the GPU ----

int sl_cuda_count(void) {
    int n = 0;
    if (cudaGetDeviceCount(&n) == cudaSuccess) return n;
    cudaGetLastError();
    return 0;
}

int sl_cuda_name(int index, char *buf, size_t size, sl_error *err) {
    struct cudaDeviceProp props;
    int rc = sl_cuda_check(cudaGetDeviceProperties(&props, index), "reading the GPU's properties", err);
    if (!rc) snprintf(buf, size, "%s", props.name);
    return rc;
}

// The GPU's generation, as CUDA_ARCH of the Makefile names it. The kernels for 9.0 use instructions of 90a.
static const char *arch_of(const struct cudaDeviceProp *props, char buf[16]) {
    snprintf(buf, 16, "%d%d%s", props->major, props->minor, props->major == 9 ? "a" : "");
    return buf;
}

void sl_cuda_describe(const sl_backend *be, char *buf, size_t size) {
    const sl_cuda *c = sl_cuda_of(be);
    int runtime = 0;
    cudaRuntimeGetVersion(&runtime);
    int n = snprintf(buf, size, "%s, sm_%d%d, CUDA %d.%d, cuBLASLt %zu", c->props.name, c->props.major, c->props.minor,
                     runtime / 1000, runtime % 1000 / 10, cublasLtGetVersion());
    char arch[16];
    if (n >= 0 && (size_t)n < size && c->ptx_version / 10 != c->props.major)
        snprintf(buf + n, size - n, ", slow kernels of sm_%d (build with: make CUDA_ARCH=%s)", c->ptx_version,
                 arch_of(&c->props, arch));
}

// Checks that this build has kernels for the GPU: machine code of its generation, or PTX that the driver compiles.
static int check_kernels(sl_cuda *c, sl_error *err) {
    char arch[16];
    cudaError_t rc = sl_cuda_ops_version(&c->ptx_version);
    if (rc != cudaErrorNoKernelImageForDevice && rc != cudaErrorInvalidDeviceFunction)
        return sl_cuda_check(rc, "loading the kernels", err);
    cudaGetLastError();
    return sl_fail(err, SL_ERR_UNSUPPORTED,
                   "%s has compute capability %d.%d, but this build has kernels for CUDA_ARCH=\"%s\" only; build with: "
                   "make CUDA_ARCH=%s",
                   c->props.name, c->props.major, c->props.minor, SLEIGH_CUDA_ARCH, arch_of(&c->props, arch));
}

int sl_cuda_device_open(sl_cuda *c, sl_error *err) {
    int rc = sl_cuda_check(cudaSetDevice(c->index), "choosing the GPU", err);
    if (!rc) rc = sl_cuda_check(cudaGetDeviceProperties(&c->props, c->index), "reading the GPU's properties", err);
    if (!rc && c->props.major < 8)
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s has compute capability %d.%d, but 8.0 or more is needed; use {device} cpu",
                     c->props.name, c->props.major, c->props.minor);
    if (!rc) rc = check_kernels(c, err);
    if (!rc) rc = sl_cuda_check(cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "stream", err);
    if (!rc) rc = sl_cuda_check(cudaStreamCreateWithFlags(&c->aside, cudaStreamNonBlocking), "stream", err);
    if (!rc) rc = sl_cuda_check(cudaEventCreateWithFlags(&c->aside_event, cudaEventDisableTiming), "event", err);
    for (int i = 0; !rc && i < SL_BRANCHES; i++) {
        rc = sl_cuda_check(cudaStreamCreateWithFlags(&c->branches[i], cudaStreamNonBlocking), "stream", err);
        if (!rc) rc = sl_cuda_check(cudaEventCreateWithFlags(&c->branch_events[i], cudaEventDisableTiming), "event", err);
    }
    return rc;
}

void sl_cuda_device_close(sl_cuda *c) {
    for (int i = 0; i < SL_BRANCHES; i++) {
        if (c->branch_events[i]) cudaEventDestroy(c->branch_events[i]);
        if (c->branches[i]) cudaStreamDestroy(c->branches[i]);
    }
    if (c->aside_event) cudaEventDestroy(c->aside_event);
    if (c->aside) cudaStreamDestroy(c->aside);
    if (c->stream) cudaStreamDestroy(c->stream);
}

// Other folders launch kernels on this stream. A launch goes to the current device, so this function also sets the device.
void *sl_cuda_stream(const sl_backend *be) {
    sl_cuda_use(sl_cuda_of(be));
    return sl_cuda_of(be)->stream;
}

// ---- memory ----

size_t sl_cuda_free_memory(const sl_backend *be) {
    sl_cuda_use(sl_cuda_of(be));
    const sl_cuda_ranks *ranks = sl_cuda_of(be)->ranks;
    size_t free = 0, total = 0;
    return cudaMemGetInfo(&free, &total) == cudaSuccess ? free / (size_t)(ranks ? ranks->n_sharing : 1) : 0;
}

void *sl_cuda_alloc(const sl_backend *be, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    void *p = NULL;
    sl_error unused;
    sl_cuda_use(c);
    if (sl_cuda_check(cudaMalloc(&p, size), "memory", &unused)) return NULL;
    return sl_cuda_keep_error(c, cudaMemsetAsync(p, 0, size, c->stream), "memory") ? NULL : p;
}

void sl_cuda_release(const sl_backend *be, void *p, size_t size) {
    (void)size;
    sl_cuda *c = sl_cuda_of(be);
    if (!p) return;
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "release");
    sl_cuda_keep_error(c, cudaFree(p), "release");
}

// With unified addressing, kernels read the memory at the host's address.
void *sl_cuda_alloc_host(const sl_backend *be, size_t size) {
    void *p = NULL, *on_device = NULL;
    sl_error unused;
    sl_cuda_use(sl_cuda_of(be));
    if (sl_cuda_check(cudaHostAlloc(&p, size, cudaHostAllocMapped), "host memory", &unused)) return NULL;
    if (!sl_cuda_check(cudaHostGetDevicePointer(&on_device, p, 0), "host memory", &unused) && on_device == p) return p;
    cudaFreeHost(p);
    return NULL;
}

void sl_cuda_release_host(const sl_backend *be, void *p, size_t size) {
    (void)size;
    sl_cuda *c = sl_cuda_of(be);
    if (!p) return;
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "release");
    sl_cuda_keep_error(c, cudaFreeHost(p), "release");
}

void sl_cuda_copy(const sl_backend *be, void *to, size_t to_pitch, const void *from, size_t from_pitch, size_t width,
                  size_t height) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, height, cudaMemcpyDeviceToDevice, c->stream),
                       "copy");
}

void sl_cuda_clear(const sl_backend *be, void *p, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaMemsetAsync(p, 0, size, c->stream), "clear");
}

// The source is pageable memory, so CUDA has read all of it when the call returns.
void sl_cuda_upload(const sl_backend *be, void *to, const void *from, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, c->stream), "upload");
}

void sl_cuda_download(const sl_backend *be, void *to, const void *from, size_t size) {
    sl_cuda *c = sl_cuda_of(be);
    sl_cuda_use(c);
    sl_cuda_keep_error(c, cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, c->stream), "download");
    sl_cuda_keep_error(c, cudaStreamSynchronize(c->stream), "download");
}
