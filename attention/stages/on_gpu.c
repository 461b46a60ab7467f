// attention/stages/on_gpu.c - which specifications the kernels of a GPU offer (attention.h: sl_attn_on_gpu and its neighbours).
#include "attention/stages/stages.h"

#ifdef SLEIGH_CUDA

int sl_attn_on_gpu(const sl_attn_spec *spec) {
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    if (!ops || !ops->decode || (ops->supports && ops->supports(spec, NULL)) || sl_budget_is_by_variance(spec) ||
        sl_tile_of(spec) != SL_TILE || sl_adds_values(spec))
        return 0;
    if (!spec->plus) return 1;
    // joined.cu and bernoulli.cu have the samplers of the SANTA family after every first method but saap and saap-kmeans.
    return spec->method->stages->draw != &sl_draw_visited && spec->plus->cuda && spec->plus->stages->draw->sampler;
}

// 1: the kernels of a table of the method (offloaded, bytes) offer a specification that its other kernels offer too. NULL: the
// method has no such table.
static int offers(const sl_attn_cuda_ops *table, const sl_attn_spec *spec) {
    return table && sl_attn_on_gpu(spec) && !spec->plus && !(table->supports && table->supports(spec, NULL));
}

int sl_attn_on_offloaded_rows(const sl_attn_spec *spec) {
    return spec->method->cuda && offers(spec->method->cuda->offloaded, spec);
}

int sl_attn_on_byte_rows(const sl_attn_spec *spec) {
    return spec->method->cuda && offers(spec->method->cuda->bytes, spec);
}

int sl_attn_prefills_on_gpu(const sl_attn_spec *spec) {
    const sl_attn_cuda_ops *ops = spec->method->cuda;
    int repairs = sl_attn_has(spec, "repair") && sl_attn_get(spec, "repair") > 0; // of sample
    return ops && !repairs && (ops->prefill || ops->mask);
}

#else // a build without CUDA has no kernels

int sl_attn_on_gpu(const sl_attn_spec *spec) {
    (void)spec;
    return 0;
}

int sl_attn_on_offloaded_rows(const sl_attn_spec *spec) {
    return sl_attn_on_gpu(spec);
}

int sl_attn_on_byte_rows(const sl_attn_spec *spec) {
    return sl_attn_on_gpu(spec);
}

int sl_attn_prefills_on_gpu(const sl_attn_spec *spec) {
    return sl_attn_on_gpu(spec);
}

#endif
