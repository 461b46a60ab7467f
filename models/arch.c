// models/arch.c - the list of architectures. A new architecture needs one file, and one word in ARCHS.
#include "models/arch.h"

#include <stdio.h>
#include <string.h>

// clang-format off
#define ARCHS(X) X(llama) X(mistral) X(qwen2) X(qwen3)
// clang-format on

#define DECLARE(NAME) extern const sl_arch sl_arch_##NAME;
#define ADDRESS(NAME) &sl_arch_##NAME,

ARCHS(DECLARE)

static const sl_arch *const archs[] = {ARCHS(ADDRESS)};

enum { N_ARCHS = sizeof archs / sizeof *archs };

const sl_arch *sl_arch_find(const char *model_type) {
    for (int i = 0; i < N_ARCHS; i++)
        if (!strcmp(archs[i]->model_type, model_type)) return archs[i];
    return NULL;
}

void sl_arch_list(char *buf, size_t size) {
    size_t at = 0;
    for (int i = 0; i < N_ARCHS && at < size; i++)
        at += (size_t)snprintf(buf + at, size - at, "%s\"%s\"", i ? ", " : "", archs[i]->model_type);
}
