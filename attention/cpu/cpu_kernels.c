// attention/cpu/cpu_kernels.c - chooses the table of vector loops for this processor.
#include "attention/cpu/cpu_kernels.h"
#include "backend/cpu/cpu_ops.h"

#include <string.h>

extern const sl_attn_kernels sl_attn_kernels_portable;
#if defined(__x86_64__)
extern const sl_attn_kernels sl_attn_kernels_avx2, sl_attn_kernels_avx512;
#endif

static const sl_attn_kernels *const all[] = {
#if defined(__x86_64__)
    &sl_attn_kernels_avx512,
    &sl_attn_kernels_avx2,
#endif
    &sl_attn_kernels_portable,
};

const sl_attn_kernels *sl_attn_kernels_named(const char *isa) {
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!strcmp(all[i]->isa, isa) && sl_cpu_has(isa)) return all[i];
    return NULL;
}

const sl_attn_kernels *sl_attn_kernels_best(void) {
    return sl_attn_kernels_named(sl_cpu_isa());
}
