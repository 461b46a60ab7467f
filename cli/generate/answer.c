// cli/generate/answer.c - see answer.h.
#include "cli/generate/answer.h"
#include "cli/error_text.h"
#include "cli/io.h"
#include "cli/output/logprobs_json.h"
#include "cli/output/certificates.h"
#include "cli/output/prefill_fields.h"
#include "cli/output/print_json.h"
#include "cli/output/rows.h"
#include "cli/output/token_json.h"
#include "cli/process.h"
#include "cli/records.h"
#include "cli/run/draft_flags.h"
#include "engine/draft/draft_counts.h"
#include "engine/stream.h"

#include <math.h>

// ---- totals ----

cli_totals cli_totals_of(const cli_timeline *t) {
    return (cli_totals){.n_groups = 1,
                        .n_prompts = 1,
                        .n_prefill = t->n_prefill,
                        .n_feed = t->n_feed,
                        .n_steps = t->n_decode,
                        .n_decode = t->n_decode + t->n_more,
                        .n_generated = t->n_sampled,
                        .prefill_ms = t->prefill_ms,
                        .feed_ms = t->feed_ms,
                        .decode_ms = t->decode_ms,
                        .n_more = t->n_more,
                        .drafts = t->stream ? sl_stream_draft_counts(t->stream) : (sl_draft_counts){0}};
}

void cli_totals_add(cli_totals *to, const cli_totals *from) {
    to->n_groups += from->n_groups, to->n_prompts += from->n_prompts;
    to->n_prefill += from->n_prefill, to->n_feed += from->n_feed, to->n_steps += from->n_steps;
    to->n_decode += from->n_decode, to->n_more += from->n_more, to->n_generated += from->n_generated;
    sl_draft_counts_add(&to->drafts, &from->drafts);
    to->prefill_ms += from->prefill_ms, to->feed_ms += from->feed_ms, to->decode_ms += from->decode_ms;
}

static void print_drafts(const sl_draft_counts *c, FILE *out) {
    char line[256];
    if (!c->n_steps) return;
    sl_draft_counts_text(line, sizeof line, c, "a method");
    fprintf(out, "%s\n", line);
}

void cli_totals_print(const cli_totals *t, double load_ms, FILE *out) {
    double ms = t->prefill_ms + t->feed_ms + t->decode_ms;
    fprintf(out, "load: %.2f ms\n", load_ms);
    fprintf(out, "prefill: %.2f ms, %d token%s, %.2f tok/s\n", t->prefill_ms, t->n_prefill, cli_s(t->n_prefill),
            cli_per_second(t->n_prefill, t->prefill_ms));
    if (t->n_feed)
        fprintf(out, "feed: %.2f ms, %d token%s, %.2f tok/s\n", t->feed_ms, t->n_feed, cli_s(t->n_feed),
                cli_per_second(t->n_feed, t->feed_ms));
    fprintf(out, "decode: %.2f ms, %d token%s, %.2f tok/s\n", t->decode_ms, t->n_decode, cli_s(t->n_decode),
            cli_per_second(t->n_decode, t->decode_ms));
    fprintf(out, "step: %.3f ms per step of a sequence, %d step%s, %.2f sequences a step\n",
            t->n_steps ? t->decode_ms / t->n_steps : 0, t->n_steps, cli_s(t->n_steps),
            t->n_steps ? (double)(t->n_decode - t->n_more) / t->n_steps : 0);
    print_drafts(&t->drafts, out);
    fprintf(out, "token: %.3f ms per token of the whole batch\n", t->n_decode ? t->decode_ms / t->n_decode : 0);
    fprintf(out, "total: %.2f ms, %d prompt%s in %d group%s, %d token%s generated, %.2f tok/s\n", ms, t->n_prompts,
            cli_s(t->n_prompts), t->n_groups, cli_s(t->n_groups), t->n_generated, cli_s(t->n_generated),
            cli_per_second(t->n_generated, ms));
    fprintf(out, "peak_rss: %.1f MiB\n", cli_peak_mib());
}

// ---- the object ----

static json_t *share(double n, double dense) {
    return cli_number(dense > 0 ? n / dense : NAN);
}

// Adds all fields of `from` to `to` and releases `from`. NULL counts as an empty object.
static void put_all(json_t *to, json_t *from) {
    if (from) json_object_update(to, from);
    json_decref(from);
}

static json_t *counters_json(const sl_attn_stats *s) {
    json_t *out = json_object();
    double value;
    const char *name;
    for (int i = 0; out && (name = sl_attn_counter(s, i, &value)); i++)
        json_object_set_new(out, name,
                            value == floor(value) && value < 0x1p53 ? json_integer((json_int_t)value) : json_real(value));
    return out;
}

// The field `group`: the answers that were decoded together with this one.
static json_t *group_json(const cli_answer *a) {
    const sl_attn_stats *s = sl_engine_attn_stats(a->t->run->engine);
    const cli_totals *t = a->totals;
    json_t *out =
        json_pack("{s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:o, s:o, s:o, s:o, s:I, s:I, s:I}", "index", a->group, "size",
                  t->n_prompts, "steps", t->n_steps, "prefill_ms", t->prefill_ms, "feed_ms", t->feed_ms, "decode_ms",
                  t->decode_ms, "decode_tok_s", cli_per_second(t->n_decode, t->decode_ms), "k_rows_share",
                  share(s->k_rows, s->dense_k_rows), "v_rows_share", share(s->v_rows, s->dense_v_rows), "v_distinct_share",
                  sl_attn_knows_distinct(s->v_rows, s->v_distinct) ? share(s->v_distinct, s->dense_k_rows) : json_null(),
                  "kv_bytes_share", share(s->bytes, s->dense_bytes), "samples", (json_int_t)s->samples, "fetched_rows",
                  (json_int_t)s->fetched, "hot_rows", (json_int_t)s->hits);
    const sl_prefill_report prefill = sl_engine_prefill_total(a->t->run->engine);
    if (out) cli_prefill_put(out, &prefill);
    cli_certificates_put(out, s);
    json_object_set_new(out, "counters", counters_json(s));
    return out;
}

static json_t *counts_json(const cli_answer *a) {
    const cli_timeline *t = a->t;
    return json_pack("{s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f}", "n_prompt", (int)a->prompt->n, "n_prefill", t->n_prefill,
                     "n_feed", t->n_feed, "n_decode", t->n_decode, "n_generated", t->n_sampled, "prefill_ms", t->prefill_ms,
                     "feed_ms", t->feed_ms, "decode_ms", t->decode_ms, "decode_tok_s",
                     cli_per_second(t->n_decode + t->n_more, t->decode_ms));
}

static json_t *method_json(const cli_answer *a) {
    const cli_run *run = a->t->run;
    char attn[CLI_ATTN_TEXT], prefill[CLI_ATTN_TEXT], hash[24];
    cli_run_format_attention(run, attn, sizeof attn);
    cli_run_format_prefill(run, prefill, sizeof prefill);
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)cli_timeline_logits_hash(a->t));
    return json_pack("{s:s, s:s, s:I, s:I, s:s}", "attn", a->attn ? a->attn : attn, "attn_prefill",
                     a->attn_prefill ? a->attn_prefill : prefill, "seed", (json_int_t)run->options->sampling.seed, "seq",
                     (json_int_t)sl_session_sequence(a->t->session), "logits", hash);
}

static json_t *prefill_json(const cli_timeline *t) {
    const sl_config *c = sl_model_config(t->run->model);
    const sl_prefill_report total = cli_timeline_prefill_total(t);
    json_t *out = json_pack("{s:o}", "prefill_heads", cli_prefill_heads(t->prefill, c->n_layers, c->n_heads));
    if (out) cli_prefill_put(out, &total);
    return out;
}

static void put_optional(const cli_answer *a, json_t *out) {
    const sl_tokenizer *tok = sl_model_tokenizer(a->t->run->model);
    int n;
    const sl_token_logprobs *tokens = sl_stream_logprobs(a->t->stream, &n);
    const sl_attn_stats *work = sl_stream_attn_stats(a->t->stream);
    if (work) json_object_set_new(out, "counters", counters_json(work));
    if (a->t->n_logprobs >= 0) json_object_set_new(out, "logprobs", cli_logprobs_json(tokens, n, tok));
    const char *draft = cli_draft(&a->t->run->options->drafts);
    const sl_draft_counts drafts = sl_stream_draft_counts(a->t->stream);
    if (draft) json_object_set_new(out, "drafts", sl_draft_counts_json(&drafts, draft, a->t->run->drafts.n_draft));
    if (!a->with_prompt) return;
    json_object_set_new(out, "prompt", cli_ids_text_json(tok, a->prompt));
    json_object_set_new(out, "prompt_ids", cli_ids_json(a->prompt));
}

int cli_answer_json(const cli_answer *a, json_t **made, sl_error *err) {
    json_t *text = json_stringn(a->text->data, a->text->n);
    if (!text) return sl_fail(err, SL_ERR_FORMAT, "the answer is not UTF-8");
    int n;
    const int32_t *sampled = sl_stream_ids(a->t->stream, &n);
    const sl_ids ids = {.data = (int32_t *)sampled, .n = (size_t)n};
    json_t *out = json_pack("{s:i, s:o, s:s, s:o, s:o, s:s}", "index", a->index, "id",
                            a->id ? json_deep_copy(a->id) : json_integer(a->index), "model", a->model->name, "text", text,
                            "ids", cli_ids_json(&ids), "stopped", a->t->stopped);
    if (out) {
        put_all(out, counts_json(a));
        put_all(out, method_json(a));
        put_all(out, prefill_json(a->t));
        put_optional(a, out);
        json_object_set_new(out, "group", group_json(a));
    }
    *made = out;
    return out ? 0 : sl_fail(err, SL_ERR_MEMORY, "answer: out of memory");
}

int cli_answer_print(const cli_answer *a, sl_error *err) {
    json_t *out;
    int rc = cli_answer_json(a, &out, err);
    return rc ? rc : cli_print_json(out, JSON_COMPACT, err);
}

int cli_answer_set_prefill(cli_run *run, const json_t *record, sl_error *err) {
    sl_error why;
    int rc = cli_run_set_prefill(run, cli_record_attn_prefill(record), NULL, &why);
    return rc ? sl_fail(err, rc, "\"attn_prefill\": %.900s", cli_error_text(&why)) : 0;
}

int cli_answer_logprobs(const cli_output_options *o, const json_t *record) {
    const json_t *asked = cli_record_logprobs(record);
    return asked ? (int)json_integer_value(asked) : o->logprobs_given ? o->logprobs : -1;
}
