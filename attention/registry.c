// attention/registry.c - the list of methods. A new method needs a file and one word in this list.
#include "attention/auto.h"

#include <string.h>

// clang-format off
#define METHODS(X)                                                                              \
    X(dense)                                                                                    \
    X(santa) X(santa_strat) X(santa_sys) X(santa_prop) X(santa_flash) X(santa_pps)              \
    X(santa_is) X(dense_q)                                                                      \
    X(bernoulli) X(bernoulli_group)                                                             \
    X(streaming) X(topk) X(topp) X(quest) X(magicpig) X(saap) X(saap_kmeans)         \
    X(saap_is) X(vattention) X(random)                                                          \
    X(sample) X(vertical_slash) X(xattention) X(threshold) X(oracle)                           \
    X(bigbird) X(hash_sparse) X(hyperattention)
// clang-format on

#define DECLARE(NAME) extern const sl_attn_method sl_method_##NAME;
#define ADDRESS(NAME) &sl_method_##NAME,

METHODS(DECLARE)

const sl_attn_method *const sl_attn_methods[] = {METHODS(ADDRESS) NULL};

const sl_attn_method *sl_attn_find(const char *name) {
    for (int i = 0; sl_attn_methods[i]; i++)
        if (!strcmp(sl_attn_methods[i]->name, name)) return sl_attn_methods[i];
    return strcmp(name, sl_method_auto.name) ? NULL : &sl_method_auto; // auto.c replaces it by a method of the list
}
