// models/arch.c - the list of architectures.
#include "models/arch.h"

#include <stdio.h>
#include <string.h>

// One word for each architecture: X(name) stands for the table sl_arch_name.
#define ARCHS(X)                                                                                                               \
    X(llama)                                                                                                                   \
    X(mistral)

#define X(name) extern const sl_arch sl_arch_##name;
ARCHS(X)
#undef X

#define X(name) &sl_arch_##name,
static const sl_arch *const archs[] = {ARCHS(X)};
#undef X

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
