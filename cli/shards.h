// cli/shards.h - work that ranks share: rank i of n (or team i of n) does the units i, i + n, i + 2 n, ... Rank 0 takes the
// results of all ranks in the order in which one process makes them, so sums, files and tables are equal to the byte.
#ifndef SLEIGH_SHARDS_H
#define SLEIGH_SHARDS_H

#include "base/ranks.h"

typedef struct cli_shards {
    sl_ranks *ranks; // NULL: one process, whose results are taken at once
    int team;        // ranks that share a model and do a unit together; the first of them gives the results. 0: as 1
    int n_units;
    int (*take)(void *ctx, const char *data, size_t n, sl_error *err);
    void *ctx;
    int n_taken; // units whose results rank 0 has taken
} cli_shards;

int cli_shards_is_mine(const cli_shards *s, int unit);
// A result of the current unit, of at least one byte. Units are done in ascending order.
int cli_shards_give(cli_shards *s, const void *data, size_t n, sl_error *err);
int cli_shards_end_unit(cli_shards *s, sl_error *err);
// Rank 0 waits for the results of the other ranks. SL_ERR_CANCELLED: Ctrl+C
int cli_shards_finish(cli_shards *s, sl_error *err);

#endif
