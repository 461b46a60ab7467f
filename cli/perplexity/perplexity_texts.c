// cli/perplexity/perplexity_texts.c - see perplexity_texts.h.
#include "cli/perplexity/perplexity_texts.h"
#include "base/json.h"
#include "cli/io.h"

#include <stdlib.h>

// ---- input ----

int perplexity_open_input(const cli_input_options *o, perplexity_input *in, sl_error *err) {
    int n_lines;
    if (!o->jsonl) {
        int rc = cli_read_input(o, &in->text, err);
        if (!rc && !in->text.n) return sl_fail(err, SL_ERR_FORMAT, "the text is empty");
        return rc ? rc : cli_check_text(o->file, &in->text, err);
    }
    int rc = cli_records_open(&in->records, o->jsonl, CLI_RECORDS_TEXTS, err);
    return rc ? rc : cli_records_check(&in->records, &n_lines, err);
}

void perplexity_close_input(perplexity_input *in) {
    cli_records_close(&in->records);
    sl_text_free(&in->text);
}

// ---- texts ----

static int add_text(perplexity *p, const char *text, size_t n, json_t *id, sl_error *err) {
    perplexity_text *grown = realloc(p->texts, (p->n_texts + 1) * sizeof *grown);
    if (!grown) return sl_fail(err, SL_ERR_MEMORY, "text %d: out of memory", p->n_texts);
    p->texts = grown;
    grown[p->n_texts] = (perplexity_text){.id = id ? json_incref(id) : NULL};
    return sl_tokenize(sl_model_tokenizer(p->run.model), text, n, SL_TOK_BOS, &grown[p->n_texts++].ids, err);
}

static int check_length(const perplexity *p, const perplexity_text *t, sl_error *err) {
    if (t->ids.n >= (size_t)p->n_ctx) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "the text has %zu tokens; expected at least %d, the window size", t->ids.n, p->n_ctx);
}

static int add_line(perplexity *p, json_t *record, sl_error *err) {
    const json_t *text = sl_json_get(record, "text");
    json_t *id = sl_json_get(record, "id"), *index = json_integer(p->n_texts);
    int rc = add_text(p, json_string_value(text), json_string_length(text), id ? id : index, err);
    json_decref(index);
    return rc ? rc : check_length(p, &p->texts[p->n_texts - 1], err);
}

static int add_lines(perplexity *p, cli_records *r, sl_error *err) {
    json_t *record;
    int rc;
    while (!(rc = cli_records_next(r, &record, err)) && record) {
        rc = cli_records_at_line(r, r->n_lines, add_line(p, record, err), err);
        json_decref(record);
        if (rc) return rc;
    }
    return rc || p->n_texts ? rc : sl_fail(err, SL_ERR_FORMAT, "%s: expected texts, found none", r->path);
}

// ---- sizes ----

static int set_windows(perplexity *p, sl_error *err) {
    const cli_perplexity_flags *o = p->o;
    int limit = sl_model_config(p->run.model)->n_ctx;
    p->n_ctx = o->run->limits.n_ctx ? o->run->limits.n_ctx : limit < 512 ? limit : 512;
    p->stride = o->perplexity->stride ? o->perplexity->stride : p->n_ctx;
    if (p->stride > p->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--stride %d: expected at most %d, the window size", p->stride, p->n_ctx);
    if (o->perplexity->score >= p->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--score %d: expected at most %d, because the first token of a window is not scored",
                       o->perplexity->score, p->n_ctx - 1);
    return 0;
}

static int set_scored(perplexity *p, sl_error *err) {
    const cli_perplexity_flags *o = p->o;
    int is_dense = sl_attn_plan_is_dense(&p->run.requested);
    p->first = o->perplexity->score ? p->n_ctx - 1 - o->perplexity->score : p->n_ctx / 2;
    if (o->perplexity->dense_prefix > p->first)
        return sl_fail(err, SL_ERR_ARG, "--dense-prefix %d: expected at most %d, so that --attn predicts every scored token",
                       o->perplexity->dense_prefix, p->first);
    p->n_dense = o->perplexity->dense_prefix >= 0 ? o->perplexity->dense_prefix : is_dense ? p->n_ctx : p->first;
    if (o->perplexity->histories.n && p->n_dense != p->n_ctx)
        return sl_fail(err, SL_ERR_ARG,
                       "--history: expected dense attention in every layer and no --dense-prefix, because "
                       "prefills score the tokens");
    return 0;
}

static int set_histories(perplexity *p, sl_error *err) {
    const cli_ints *list = &p->o->perplexity->histories;
    int n_score = p->n_ctx - 1 - p->first;
    p->segment = p->o->perplexity->segment ? p->o->perplexity->segment : 512;
    if (p->segment > n_score) p->segment = n_score;
    if (p->o->perplexity->segment && !list->n) return sl_fail(err, SL_ERR_ARG, "flag --segment needs --history");
    p->n_histories = list->n ? list->n : 1;
    for (int i = 0; i < p->n_histories; i++) {
        perplexity_history *h = &p->histories[i];
        h->n_tokens = list->n ? list->at[i] : CLI_ALL;
        snprintf(h->name, sizeof h->name, h->n_tokens == CLI_ALL ? "all" : "%d", h->n_tokens);
        if (h->n_tokens > p->first + 1)
            return sl_fail(err, SL_ERR_ARG, "--history %d: expected at most %d, the tokens of a window before the scored ones",
                           h->n_tokens, p->first + 1);
    }
    return 0;
}

// A text of --file that is shorter than a window is one window, unless flags say which positions are scored.
static int shorten(perplexity *p, sl_error *err) {
    enum { LEAST = 4 }; // tokens of a window: two of context, one that is scored, and one that is only predicted
    const perplexity_text *t = &p->texts[0];
    int n = (int)t->ids.n;
    if (t->ids.n >= (size_t)p->n_ctx) return 0;
    if (p->o->perplexity->score || p->o->perplexity->histories.n) return check_length(p, t, err);
    if (n < LEAST) return sl_fail(err, SL_ERR_FORMAT, "the text has %d tokens; expected at least %d", n, LEAST);
    cli_say("window: the text has %d tokens, fewer than the %d of --ctx-size; it is one window of %d tokens", n, p->n_ctx, n);
    p->n_ctx = n;
    if (p->stride > n) p->stride = n;
    return set_scored(p, err);
}

static void cut(perplexity *p) {
    for (int i = 0; i < p->n_texts; i++) {
        perplexity_text *t = &p->texts[i];
        t->n_windows = (int)((t->ids.n - p->n_ctx) / p->stride) + 1;
        if (p->o->perplexity->windows && t->n_windows > p->o->perplexity->windows) t->n_windows = p->o->perplexity->windows;
        p->n_planned += t->n_windows;
    }
    p->groups_are_texts = p->n_texts >= CLI_MIN_GROUPS;
}

int perplexity_cut_texts(perplexity *p, perplexity_input *in, sl_error *err) {
    sl_ids bos = {0};
    int rc = sl_tokenize(sl_model_tokenizer(p->run.model), "", 0, SL_TOK_BOS, &bos, err);
    p->has_bos = bos.n == 1;
    sl_ids_free(&bos);
    if (!rc) rc = set_windows(p, err);
    if (!rc) rc = set_scored(p, err);
    if (!rc) rc = set_histories(p, err);
    if (!rc && p->o->input->jsonl) rc = add_lines(p, &in->records, err);
    if (!rc && !p->o->input->jsonl) rc = add_text(p, in->text.data ? in->text.data : "", in->text.n, NULL, err);
    if (!rc && !p->o->input->jsonl) rc = shorten(p, err);
    if (!rc) cut(p);
    return rc;
}

void perplexity_free_texts(perplexity *p) {
    for (int i = 0; i < p->n_texts; i++) {
        json_decref(p->texts[i].id);
        sl_ids_free(&p->texts[i].ids);
    }
    free(p->texts);
}
