// cli/output/stats.c - see stats.h.
#include "cli/output/stats.h"
#include "cli/error_text.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUFFER = 1 << 20 }; // bytes; a step of a large model writes a thousand lines

// Parses a method; errors name the flag.
static int parse_shadow(const char *text, sl_attn_spec *spec, sl_error *err) {
    sl_error why;
    int rc = sl_attn_parse(text, spec, &why);
    return rc ? sl_fail(err, rc, "--stats-attn %.200s: %.700s", text, cli_error_text(&why)) : 0;
}

int cli_stats_open(cli_stats *stats, const cli_stats_options *o, sl_error *err) {
    *stats = (cli_stats){.path = o->path, .n_shadows = o->attns.n, .n_seeds = o->n_seeds, .with_error = o->error};
    if (!o->path) {
        const char *alone = o->attns.n ? "--stats-attn" : o->error ? "--stats-error" : NULL;
        if (!alone && o->n_seeds_given == CLI_BY_FLAG) alone = "--stats-seeds";
        return alone ? sl_fail(err, SL_ERR_ARG, "flag %s needs --stats FILE", alone) : 0;
    }
    if (o->n_seeds_given == CLI_BY_FLAG && !o->attns.n)
        return sl_fail(err, SL_ERR_ARG, "flag --stats-seeds needs --stats-attn SPEC");
    stats->shadows = calloc(stats->n_shadows + 1, sizeof *stats->shadows);
    if (!stats->shadows) return sl_fail(err, SL_ERR_MEMORY, "--stats-attn: out of memory");
    int rc = 0;
    for (int i = 0; !rc && i < stats->n_shadows; i++) rc = parse_shadow(o->attns.items[i], &stats->shadows[i], err);
    if (!rc && !(stats->file = fopen(o->path, "w")))
        rc = sl_fail(err, SL_ERR_IO, "--stats: cannot write %s: %s", o->path, strerror(errno));
    if (rc)
        free(stats->shadows), stats->shadows = NULL;
    else
        setvbuf(stats->file, NULL, _IOFBF, BUFFER);
    return rc;
}

static void number(FILE *f, const char *name, double x) {
    if (isfinite(x))
        fprintf(f, ",\"%s\":%.9g", name, x);
    else
        fprintf(f, ",\"%s\":null", name);
}

static void write_record(void *ctx, const sl_attn_record *r) {
    cli_stats *stats = ctx;
    FILE *f = stats->file;
    if (stats->error) return;
    errno = 0;
    const sl_attn_report *p = r->report;
    char attn[256];
    sl_attn_format(r->spec, attn, sizeof attn);
    fprintf(f, "{\"sequence\":%u,\"position\":%u,\"layer\":%d,\"head\":%d,\"n_kv\":%d,\"attn\":\"%s\",\"seed\":%u", r->sequence,
            r->position, r->layer, r->head, r->n_kv, attn, r->seed);
    fprintf(f, ",\"k_rows\":%u,\"v_rows\":%u,\"samples\":%u,\"budget\":%u,\"bytes\":%llu,\"dense_bytes\":%llu", p->k_rows,
            p->v_rows, p->samples, p->budget, (unsigned long long)p->bytes, (unsigned long long)p->dense_bytes);
    number(f, "v_distinct", sl_attn_knows_distinct(p->v_rows, p->v_distinct) ? p->v_distinct : NAN);
    number(f, "features", p->features);
    number(f, "ess", p->ess);
    number(f, "score_bound", p->score_bound);
    number(f, "error_bound", p->error_bound);
    number(f, "kappa", p->kappa);
    number(f, "standard_error", p->standard_error);
    number(f, "largest_draw", p->largest_draw);
    number(f, "pareto_shape", p->pareto_shape);
    number(f, "stated_error", p->stated_error);
    number(f, "certified", isnan(p->stated_error) ? NAN : p->certified);
    fprintf(f, ",\"tries\":%u,\"fallback\":%u,\"exact\":%u,\"heavy_tail\":%u", p->tries, p->fallback, p->exact, p->heavy_tail);
    number(f, "kurtosis", p->kurtosis);
    number(f, "error", p->error);
    number(f, "cosine", p->cosine);
    number(f, "bias", p->bias);
    number(f, "layer_error", p->layer_error);
    fprintf(f, ",\"tiles\":%u}\n", p->tiles);
    if (ferror(f)) stats->error = errno ? errno : EIO;
}

void cli_stats_prefill(cli_stats *stats, const sl_prefill_record *r) {
    FILE *f = stats->file;
    const sl_prefill_report *p = r->report;
    char attn[256];
    if (!f || stats->error) return;
    errno = 0;
    sl_attn_format(r->spec, attn, sizeof attn);
    fprintf(f, "{\"sequence\":%u,\"position\":%d,\"n_tokens\":%d,\"layer\":%d,\"head\":%d,\"attn_prefill\":\"%s\"", r->sequence,
            r->position, r->n_tokens, r->layer, r->head, attn);
    fprintf(f, ",\"blocks\":%llu,\"dense_blocks\":%llu", (unsigned long long)p->visited, (unsigned long long)p->causal);
    number(f, "prefill_density", sl_prefill_density(p));
    number(f, "prefill_kept", sl_prefill_share(p->kept));
    number(f, "prefill_cra", sl_prefill_share(p->measured));
    number(f, "prefill_error", sl_prefill_error(p));
    number(f, "prefill_error_max", p->n_errors ? p->error_max : NAN);
    fprintf(f, "}\n");
    if (ferror(f)) stats->error = errno ? errno : EIO;
}

int cli_stats_observe(cli_stats *stats, sl_engine *engine, sl_error *err) {
    if (!stats->file) return 0;
    const sl_observer observer = {.fn = write_record,
                                  .ctx = stats,
                                  .with_error = stats->with_error,
                                  .shadows = stats->shadows,
                                  .n_shadows = stats->n_shadows,
                                  .n_seeds = stats->n_seeds};
    return sl_engine_observe(engine, &observer, err);
}

int cli_stats_check(const cli_stats *stats, sl_error *err) {
    return stats->error ? sl_fail(err, SL_ERR_IO, "--stats: cannot write %s: %s", stats->path, strerror(stats->error)) : 0;
}

int cli_stats_close(cli_stats *stats, sl_error *err) {
    free(stats->shadows);
    if (stats->file && fclose(stats->file) && !stats->error) stats->error = errno;
    int rc = cli_stats_check(stats, err);
    *stats = (cli_stats){0};
    return rc;
}
