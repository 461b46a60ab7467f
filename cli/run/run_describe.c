// cli/run/run_describe.c - the plans of a run as text, and the lines on stderr that say what a run does: model, backend, K and
// V, attention, sampling.
#include "cli/io.h"
#include "cli/run/run.h"
#include "base/number.h"

#include <limits.h>
#include <stdarg.h>
#include <string.h>

// ---- plans ----

// Appends to buf; cuts the text at `size`.
__attribute__((format(printf, 3, 4))) static void append(char *buf, size_t size, const char *fmt, ...) {
    size_t n = strlen(buf);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(buf + n, size - n, fmt, ap);
    va_end(ap);
}

void cli_plan_format(const sl_attn_plan *plan, char *buf, size_t size) {
    char text[256], next[256];
    *buf = 0;
    for (int i = 0, first = 0; i < plan->n_layers; i++) {
        sl_attn_format(&plan->layer[i], text, sizeof text);
        if (i + 1 < plan->n_layers) sl_attn_format(&plan->layer[i + 1], next, sizeof next);
        if (i + 1 < plan->n_layers && !strcmp(text, next)) continue;
        if (first) append(buf, size, " ");
        if (first == 0 && i + 1 == plan->n_layers)
            append(buf, size, "%s", text);
        else if (first == i)
            append(buf, size, "%d=%s", i, text);
        else
            append(buf, size, "%d-%d=%s", first, i, text);
        first = i + 1;
    }
}

char *cli_plan_text(const sl_attn_plan *plan) {
    char text[CLI_ATTN_TEXT];
    cli_plan_format(plan, text, sizeof text);
    return strdup(text);
}

void cli_run_format_attention(const cli_run *run, char *buf, size_t size) {
    cli_plan_format(&run->plan, buf, size);
}

void cli_run_format_prefill(const cli_run *run, char *buf, size_t size) {
    cli_plan_format(run->n_kv == INT_MAX ? &run->requested_prefill : &run->prefill, buf, size); // no prompt yet: auto
}

void cli_run_describe_attention(const cli_run *run, FILE *out) {
    char text[CLI_ATTN_TEXT];
    cli_plan_format(run->n_kv == INT_MAX ? &run->requested : &run->plan, text, sizeof text); // no prompt yet: show auto
    fprintf(out, "attention: %s\n", text);
}

// ---- the other lines ----

static void describe_sampling(const sl_sampling *s, FILE *out) {
    char text[3][SL_NUMBER_TEXT];
    if (s->temp == 0)
        fprintf(out, "sampling: greedy (temp 0)");
    else
        fprintf(out, "sampling: temp %s, top-k %d, top-p %s, min-p %s", sl_float_text(s->temp, text[0]), s->top_k,
                sl_float_text(s->top_p, text[1]), sl_float_text(s->min_p, text[2]));
    if (s->repeat_penalty != 1) fprintf(out, ", repeat-penalty %s", sl_float_text(s->repeat_penalty, text[0]));
    if (s->presence_penalty != 0) fprintf(out, ", presence-penalty %s", sl_float_text(s->presence_penalty, text[0]));
    if (s->frequency_penalty != 0) fprintf(out, ", frequency-penalty %s", sl_float_text(s->frequency_penalty, text[0]));
    if (s->repeat_penalty != 1 || s->presence_penalty != 0 || s->frequency_penalty != 0)
        fprintf(out, " over the last %d", s->repeat_last_n);
    if (s->n_bias) fprintf(out, ", %d logit biases", s->n_bias);
    fprintf(out, ", seed %u\n", s->seed);
}

static void describe_kv(const sl_kv_layout *kv, FILE *out) {
    char text[5][32];
    if (kv->place != SL_KV_OFFLOADED) return;
    fprintf(
        out,
        "KV cache: %s of host memory; on the GPU %s to choose rows, %s for the newest pages, %s for hot rows, %s to stream a "
        "layer of a prefill\n",
        cli_bytes((double)kv->host, text[0]), cli_bytes((double)kv->proposing, text[1]), cli_bytes((double)kv->newest, text[2]),
        cli_bytes((double)kv->hot, text[3]), cli_bytes((double)kv->streamed, text[4]));
}

void cli_run_describe(const cli_run *run, FILE *out) {
    const sl_config *c = sl_model_config(run->model);
    char buf[256];
    sl_engine_describe(run->engine, buf, sizeof buf);
    fprintf(out, "model: %s: %s, %d layers, hidden %d, context %d of %d tokens%s\n", run->options->model.path, c->model_type,
            c->n_layers, c->hidden, sl_engine_n_ctx(run->engine), c->n_ctx,
            sl_model_is_dummy(run->model) ? ", dummy weights: its text has no meaning" : "");
    fprintf(out, "backend: %s\n", buf);
    describe_kv(sl_engine_kv_layout(run->engine), out);
    if (c->is_rope_changed) {
        sl_config_describe_rope(c, buf, sizeof buf);
        fprintf(out, "rope: %s\n", buf);
    }
    cli_run_describe_attention(run, out);
    describe_sampling(&run->sampling, out);
}
