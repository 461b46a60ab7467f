// tests/support/given_table.c - see given_table.h.
#include "tests/support/given_table.h"
#include "tests/support/run_cli.h"

#include <stdio.h>

const char *given_table_spill(const char *name, const char *attn, const char *points, const char *prefill) {
    static char paths[4][256], text[4096];
    static int i;
    char *path = paths[i++ % 4];
    snprintf(path, sizeof paths[0], "%s", in_tmp(name));
    int n = snprintf(text, sizeof text,
                     "{\"format\": \"sleigh attention calibration 1\", \"device\": \"cpu\", \"date\": \"2026-11-21\", "
                     "\"n_heads\": 8, \"n_kv_heads\": 2, \"head_dim\": 128, \"query_deviation\": 4, \"attn\": [%s], "
                     "\"points\": [%s]%s%s}",
                     attn, points, *prefill ? ", \"prefill\": " : "", prefill);
    spill(path, text, (size_t)n);
    return path;
}
