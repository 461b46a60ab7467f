// attention/registry.c - the list of methods. A new one is its own file and a line here.
#include "attention/attention.h"

#include <string.h>

extern const sl_attn_method sl_method_dense, sl_method_santa, sl_method_santa_strat, sl_method_santa_sys, sl_method_santa_prop,
    sl_method_santa_flash;

const sl_attn_method *const sl_attn_methods[] = {
    &sl_method_dense,
    &sl_method_santa,
    &sl_method_santa_strat,
    &sl_method_santa_sys,
    &sl_method_santa_prop,
    &sl_method_santa_flash,
    NULL,
};

const sl_attn_method *sl_attn_find(const char *name) {
    for (int i = 0; sl_attn_methods[i]; i++)
        if (!strcmp(sl_attn_methods[i]->name, name)) return sl_attn_methods[i];
    return NULL;
}
