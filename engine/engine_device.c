// engine/engine_device.c - the device of an engine: what a name such as "cuda:1" means, and its backend.
#include "engine/engine_device.h"

#include <stdio.h>
#include <string.h>

#ifdef SLEIGH_CUDA
#include "backend/cuda/cuda.h"
#endif

enum { ON_CPU = -1 };

// *index: the GPU that the name means, or ON_CPU. device NULL: "cpu"
static int parse_device(const char *device, int *index, sl_error *err) {
    int n = 0;
    char end;
    *index = ON_CPU;
#ifdef SLEIGH_CUDA
    n = sl_cuda_count();
#endif
    if (!device || !strcmp(device, "cpu") || (!strcmp(device, "auto") && n == 0)) return 0;
    *index = 0;
    if (strcmp(device, "auto") && strcmp(device, "cuda") && (sscanf(device, "cuda:%d%c", index, &end) != 1 || *index < 0))
        return sl_fail(err, SL_ERR_ARG, "{device} %.40s: expected auto, cpu, cuda or cuda:N", device);
#ifdef SLEIGH_CUDA
    if (n == 0) return sl_fail(err, SL_ERR_DEVICE, "{device} %.40s: no GPU was found; use {device} cpu", device);
    if (*index < n) return 0;
    return sl_fail(err, SL_ERR_DEVICE, "{device} %.40s: there are %d GPUs: cuda:0 to cuda:%d", device, n, n - 1);
#else
    return sl_fail(err, SL_ERR_DEVICE, "{device} %.40s: this build has no CUDA backend; use {device} cpu", device);
#endif
}

int sl_device_check(const char *device, sl_error *err) {
    int index;
    return parse_device(device, &index, err);
}

int sl_device_is_gpu(const char *device) {
    int index;
    return parse_device(device, &index, NULL) == 0 && index != ON_CPU;
}

int sl_device_name(const char *device, char *buf, size_t size, sl_error *err) {
    int index, rc = parse_device(device, &index, err);
    if (rc) return rc;
    snprintf(buf, size, "cpu");
#ifdef SLEIGH_CUDA
    if (index != ON_CPU) rc = sl_cuda_name(index, buf, size, err);
#endif
    return rc;
}

int sl_device_arithmetic(const char *device, char *buf, size_t size, sl_error *err) {
    int index, rc = parse_device(device, &index, err);
    if (rc || index != ON_CPU) return rc ? rc : sl_device_name(device, buf, size, err);
    rc = sl_cpu_choose(err);
    if (!rc) sl_cpu_arithmetic(buf, size);
    return rc;
}

int sl_device_open(sl_device *d, const sl_engine_options *o, sl_error *err) {
    int index, rc = parse_device(o->device, &index, err);
    d->attention = &sl_host_attn_runner;
    if (!rc) rc = sl_cpu_check_threads(o->n_threads, err);
    if (!rc) rc = sl_kv_formats_parse(o->kv_cache_dtype, o->cache_type_k, o->cache_type_v, &d->formats, err);
    if (!rc) rc = sl_cpu_choose(err);
    if (rc || index == ON_CPU) return rc ? rc : sl_cpu_open(o->n_threads, &d->backend, err);
    if (d->formats.k != d->formats.v)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "{cache_type_k} is %s and {cache_type_v} is %s, expected the same type on a GPU; the CPU ({device} cpu) "
                       "offers both",
                       sl_formats[d->formats.k].name, sl_formats[d->formats.v].name);
#ifdef SLEIGH_CUDA
    d->attention = &sl_cuda_attn_runner;
    rc = sl_cuda_init(index, &d->backend, err);
#endif
    return rc;
}

void sl_device_close(sl_device *d) {
    sl_kv_pool_free(&d->pool);
    sl_device_free_buffers(d);
    sl_model_weights_free(&d->draft_weights);
    sl_model_weights_free(&d->weights);
    if (d->backend && d->backend->free) d->backend->free(d->backend);
}
