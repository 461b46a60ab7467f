// cli/shards.c - see shards.h. An empty string ends the results of a unit.
#include "cli/shards.h"
#include "cli/process.h"

static int team_size(const cli_shards *s) {
    return s->team > 1 ? s->team : 1;
}

// The first rank of the team that does a unit.
static int first_rank_of(const cli_shards *s, int unit) {
    int n = team_size(s);
    return unit % (sl_ranks_n(s->ranks) / n) * n;
}

int cli_shards_is_mine(const cli_shards *s, int unit) {
    int n = team_size(s);
    return first_rank_of(s, unit) == sl_ranks_rank(s->ranks) / n * n;
}

// Takes the results that are next. wait_ms: for the first of them
static int take_next(cli_shards *s, double wait_ms, sl_error *err) {
    sl_text result = {0};
    int rc = 0, got = 1;
    while (!rc && got && s->n_taken < s->n_units) {
        rc = sl_ranks_receive(s->ranks, first_rank_of(s, s->n_taken), wait_ms, &result, &got, err);
        wait_ms = 0;
        if (!rc && got && result.n) rc = s->take(s->ctx, result.data, result.n, err);
        s->n_taken += !rc && got && !result.n;
    }
    sl_text_free(&result);
    return rc;
}

static int pass_on(cli_shards *s, const void *data, size_t n, sl_error *err) {
    if (sl_ranks_rank(s->ranks) % team_size(s)) return 0;
    int rc = sl_ranks_send(s->ranks, 0, data, n, err);
    return rc || sl_ranks_rank(s->ranks) ? rc : take_next(s, 0, err);
}

int cli_shards_give(cli_shards *s, const void *data, size_t n, sl_error *err) {
    return s->ranks ? pass_on(s, data, n, err) : s->take(s->ctx, data, n, err);
}

int cli_shards_end_unit(cli_shards *s, sl_error *err) {
    if (s->ranks) return pass_on(s, "", 0, err);
    s->n_taken++;
    return 0;
}

int cli_shards_finish(cli_shards *s, sl_error *err) {
    int rc = 0;
    while (!rc && !sl_ranks_rank(s->ranks) && s->n_taken < s->n_units) {
        rc = take_next(s, 100, err);
        if (!rc && cli_interrupt_came()) rc = sl_fail(err, SL_ERR_CANCELLED, "interrupted");
    }
    return rc;
}
