// server/serve/serve_metrics.c - see serve_metrics.h.
#include "server/serve/serve_metrics.h"
#include "base/number.h"

#include <math.h>
#include <string.h>

// vLLM's buckets.
static const double first_token[] = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75,
                                     1,     2.5,   5,    7.5,  10,   20,   40,   80,  160,  640, 2560};
static const double between[] = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80};
static const double whole[] = {0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
static const double lengths[] = {1,    2,    5,    10,    20,    50,    100,    200,    500,
                                 1000, 2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000};
static const double steps[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384};

typedef struct family {
    const char *name, *help;
    const double *bounds; // [n]
    int n;
} family;

#define BOUNDS(LIST) LIST, sizeof LIST / sizeof *LIST

static const family families[SERVE_N_HISTOGRAMS] = {
    [SERVE_TTFT] = {"vllm:time_to_first_token_seconds", "Time from a request to its first token.", BOUNDS(first_token)},
    [SERVE_TOKEN_GAP] = {"vllm:inter_token_latency_seconds", "Time between two tokens of an answer.", BOUNDS(between)},
    [SERVE_TOKEN_MEAN] = {"vllm:request_time_per_output_token_seconds", "Mean time between the tokens of an answer.",
                          BOUNDS(between)},
    [SERVE_E2E] = {"vllm:e2e_request_latency_seconds", "Time from a request to the end of an answer.", BOUNDS(whole)},
    [SERVE_QUEUE] = {"vllm:request_queue_time_seconds", "Time for which an answer waited for its turn.", BOUNDS(whole)},
    [SERVE_PREFILL] = {"vllm:request_prefill_time_seconds", "Time from the turn of an answer to its first token.",
                       BOUNDS(whole)},
    [SERVE_DECODE] = {"vllm:request_decode_time_seconds", "Time from the first token to the last.", BOUNDS(whole)},
    [SERVE_PROMPT_TOKENS] = {"vllm:request_prompt_tokens", "Tokens of the prompt of an answer.", BOUNDS(lengths)},
    [SERVE_ANSWER_TOKENS] = {"vllm:request_generation_tokens", "Tokens of an answer.", BOUNDS(lengths)},
    [SERVE_STEP_TOKENS] = {"vllm:iteration_tokens_total", "Tokens of a step: prefilled, fed and generated.", BOUNDS(steps)},
};

void serve_observe(serve_metrics *m, serve_histogram h, double value) {
    int i = 0;
    while (i < families[h].n && value > families[h].bounds[i]) i++;
    m->histograms[h].counts[i]++;
    m->histograms[h].sum += value;
}

// ---- text ----

typedef struct printer {
    sl_text *out;
    const char *model; // the label, escaped
    int rc;
    sl_error *err;
} printer;

__attribute__((format(printf, 2, 3))) static void put(printer *p, const char *fmt, ...) {
    char line[512];
    va_list args;
    va_start(args, fmt);
    sl_vprint(line, sizeof line, fmt, args);
    va_end(args);
    if (!p->rc) p->rc = sl_text_append(p->out, line, strlen(line), p->err);
}

static void head(printer *p, const char *name, const char *type, const char *help) {
    put(p, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void one(printer *p, const char *name, const char *type, double value, const char *help) {
    char number[SL_NUMBER_TEXT];
    head(p, name, type, help);
    put(p, "%s{model_name=\"%s\"} %s\n", name, p->model, sl_number_text(value, number));
}

static void histogram(printer *p, const family *f, const struct serve_histogram_data *d) {
    char number[SL_NUMBER_TEXT];
    uint64_t n = 0;
    head(p, f->name, "histogram", f->help);
    for (int i = 0; i <= f->n; i++) {
        n += d->counts[i];
        put(p, "%s_bucket{le=\"%s\",model_name=\"%s\"} %llu\n", f->name,
            i < f->n ? sl_number_text(f->bounds[i], number) : "+Inf", p->model, (unsigned long long)n);
    }
    put(p, "%s_sum{model_name=\"%s\"} %s\n", f->name, p->model, sl_number_text(d->sum, number));
    put(p, "%s_count{model_name=\"%s\"} %llu\n", f->name, p->model, (unsigned long long)n);
}

static void print_vllm(printer *p, const serve_metrics *m, const serve_gauges *g) {
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    static const char success[] = "vllm:request_success_total";
    const sl_scheduler_stats *s = &m->scheduler;
    one(p, "vllm:num_requests_running", "gauge", s->n_prefilling + s->n_decoding, "Answers that run.");
    one(p, "vllm:num_requests_waiting", "gauge", g->n_waiting, "Requests that wait for their turn.");
    one(p, "vllm:kv_cache_usage_perc", "gauge", s->n_pages ? (double)m->n_held / s->n_pages : 0,
        "Share of the KV cache that running answers hold; 1 is all of it.");
    one(p, "vllm:num_preemptions_total", "counter", 0, "Answers that lost their rows; Sleigh takes no rows away.");
    one(p, "vllm:prefix_cache_queries_total", "counter", (double)s->query_tokens,
        "Prompt tokens looked up in the prefix cache.");
    one(p, "vllm:prefix_cache_hits_total", "counter", (double)s->hit_tokens, "Prompt tokens found in the prefix cache.");
    one(p, "vllm:prompt_tokens_total", "counter", (double)(s->prompt_tokens + s->hit_tokens), "Tokens of prompts.");
    one(p, "vllm:prompt_tokens_cached_total", "counter", (double)s->hit_tokens, "Prompt tokens that came from the cache.");
    one(p, "vllm:generation_tokens_total", "counter", (double)s->generated_tokens, "Generated tokens.");
    head(p, success, "counter", "Answers by the reason of their end.");
    for (int i = 0; i < SERVE_N_REASONS; i++)
        put(p, "%s{finished_reason=\"%s\",model_name=\"%s\"} %llu\n", success, reasons[i], p->model,
            (unsigned long long)m->reasons[i]);
}

static void print_drafts(printer *p, const serve_metrics *m) {
    static const char per_place[] = "vllm:spec_decode_num_accepted_tokens_per_pos_total", counter[] = "counter";
    const sl_draft_counts *d = &m->drafts;
    if (!m->n_draft) return;
    one(p, "vllm:spec_decode_num_drafts_total", counter, (double)d->n_drafts, "Steps with drafts of ended answers.");
    one(p, "vllm:spec_decode_num_draft_tokens_total", counter, (double)d->n_draft_tokens, "Drafts of these steps.");
    one(p, "vllm:spec_decode_num_accepted_tokens_total", counter, (double)d->n_accepted_tokens, "Of these, accepted drafts.");
    head(p, per_place, counter, "Accepted drafts by their place in the step.");
    for (int i = 0; i < m->n_draft; i++)
        put(p, "%s{model_name=\"%s\",position=\"%d\"} %llu\n", per_place, p->model, i, (unsigned long long)d->accepted_at[i]);
}

static void print_own(printer *p, const serve_metrics *m, const serve_gauges *g) {
    static const char counter[] = "counter", gauge[] = "gauge";
    one(p, "sleigh_rows_read_total", counter, (double)m->rows, "Rows of V that decode steps of ended answers read.");
    one(p, "sleigh_dense_rows_total", counter, (double)m->dense_rows, "Rows of V that dense attention would have read.");
    one(p, "sleigh_kv_bytes_read_total", counter, (double)m->bytes, "Bytes of the KV cache that these steps read.");
    one(p, "sleigh_dense_kv_bytes_total", counter, (double)m->dense_bytes, "Bytes that dense attention would have read.");
    one(p, "sleigh_heads_total", counter, (double)m->heads, "Query heads of these steps.");
    one(p, "sleigh_exact_heads_total", counter, (double)m->exact_heads,
        "Of these, heads that attended to every row because the sequence had few.");
    one(p, "sleigh_stated_errors_total", counter, (double)m->layer_steps, "Errors of layers that methods stated.");
    one(p, "sleigh_certified_total", counter, (double)m->certified, "Of these, errors within the bound of the request.");
    one(p, "sleigh_stated_error_sum_total", counter, m->stated_error, "Sum of the stated errors.");
    one(p, "sleigh_stated_error_max", gauge, m->stated_error_max, "The largest stated error.");
    one(p, "sleigh_decode_steps_total", counter, (double)m->scheduler.n_steps, "Decode steps.");
    one(p, "sleigh_kv_pages", gauge, m->scheduler.n_pages, "Pages of the KV cache.");
    one(p, "sleigh_kv_pages_free", gauge, m->scheduler.n_free, "Free pages.");
    one(p, "sleigh_kv_pages_cached", gauge, m->scheduler.n_cached, "Pages that only the prefix cache holds.");
    one(p, "sleigh_cancelled_total", counter, (double)m->reasons[SERVE_ABORT], "Answers whose client left.");
    one(p, "sleigh_connections", gauge, (double)g->connections, "Open connections.");
    one(p, "sleigh_clients_gone_total", counter, (double)g->gone, "Requests whose client left or was too slow.");
    one(p, "sleigh_timeouts_total", counter, (double)g->timeouts, "Connections closed for a slow header or body.");
    one(p, "sleigh_refused_total", counter, (double)g->refused,
        "Requests that a limit refused: of the HTTP server, or of the queue.");
}

int serve_metrics_print(const serve_metrics *m, const serve_gauges *g, sl_text *out, sl_error *err) {
    char model[256];
    size_t n = 0;
    for (const char *c = g->model; *c && n + 2 < sizeof model; c++) {
        if (*c == '"' || *c == '\\') model[n++] = '\\';
        model[n++] = *c;
    }
    model[n] = 0;
    printer p = {.out = out, .model = model, .err = err};
    print_vllm(&p, m, g);
    print_drafts(&p, m);
    for (int i = 0; i < SERVE_N_HISTOGRAMS; i++) histogram(&p, &families[i], &m->histograms[i]);
    print_own(&p, m, g);
    return p.rc;
}
