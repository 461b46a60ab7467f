// cli/bench/cmd_bench_draft.c - sleigh bench draft: what drafts can gain. It times decode passes over 1 to 9 rows of one
// session, or of each of --batch sessions, which verify 0 to 8 drafts. With --draft it also generates text with and without
// drafts.
//
// A pass begins at a multiple of 256 tokens, so that its rows lie in one page of the KV cache, and the session is cut back
// after it. Texts continue random sentences in the language of the embedded model; without a tokenizer, random ids. Decoding is
// greedy and never generates an end token. Plain decoding and the drafts take turns, and a text with drafts must have the ids
// and the logits of plain decoding.
#include "cli/attn/attn_list.h"
#include "cli/bench/cmd_bench.h"
#include "cli/eval/eval_prose.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/output/summary.h"
#include "cli/process.h"
#include "cli/run/attn_flags.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/run/prompt_ids.h"
#include "engine/draft/draft_counts.h"
#include "engine/draft/draft_spec.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_PASSES = 5, MOST_ROWS = 9, PASSES = 20, TOKENS = 128, TEXTS = 3, MOST_DRAFTS = 16 };
static const int pass_rows[N_PASSES] = {1, 2, 3, 5, MOST_ROWS};

typedef struct made { // a generated text
    double ms;
    sl_ids ids;
    uint64_t logits;
    sl_draft_counts counts;
} made;

typedef struct bench {
    const cli_bench_flags *o;
    cli_attn_list attn;
    cli_ints depths;
    char *drafts[1 + MOST_DRAFTS]; // [n_drafts]; the first one, NULL, is plain decoding
    int n_drafts, n_gen, n_most;   // n_most: drafts of a step
    const char *weights;           // of the drafts that name a format; NULL: none does
    sl_model *model, *draft_model; // draft_model NULL: none
    sl_engine *engine;
    sl_session **sessions; // [n_seqs] of a pass; texts use the first one
    int n_seqs;
    cli_model_name name;
    const char *device;
    char backend[256];
    sl_ids prompt; // enough for the deepest test
    sl_logit_bias no_end[SL_MAX_EOS];
    cli_rows rows;
    cli_progress progress;
    int done, total; // tests
} bench;

// ---- set-up ----

// Adds the drafts of a list with commas.
static int add_drafts(bench *b, const char *list, sl_error *err) {
    sl_draft_spec spec;
    int rc = 0;
    for (const char *p = list; !rc && p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
        char *word = strndup(p, strcspn(p, ","));
        if (!word) return sl_fail(err, SL_ERR_MEMORY, "--draft: out of memory");
        rc = b->n_drafts > MOST_DRAFTS ? sl_fail(err, SL_ERR_ARG, "--draft: expected at most %d drafts", MOST_DRAFTS)
                                       : sl_draft_parse(word, &spec, err);
        if (rc) {
            free(word);
            return rc;
        }
        if (spec.most > b->n_most) b->n_most = spec.most;
        if (spec.weights && b->weights && strcmp(spec.weights, b->weights))
            rc = sl_fail(err, SL_ERR_ARG, "--draft: weights=%s and weights=%s: expected one format of all drafts", b->weights,
                         spec.weights);
        if (spec.weights) b->weights = spec.weights;
        b->drafts[b->n_drafts++] = word;
    }
    return rc;
}

static int check_flags(const cli_bench_flags *o, sl_error *err) {
    static const char *const others[] = {"--n-prompt", "--prompt-gen", "--ragged",      "--copy",     "--phase",
                                         "--plot",     "--hot-hits",   "--memory-rate", "--kv-cache", NULL};
    const char *other = cli_given_flag(o->given, others);
    if (other) return sl_fail(err, SL_ERR_ARG, "bench draft: expected no flag %s", other);
    if (o->bench->n_gens.n > 1) return sl_fail(err, SL_ERR_ARG, "bench draft: --n-gen: expected one number");
    if (o->bench->batches.n > 1) return sl_fail(err, SL_ERR_ARG, "bench draft: --batch: expected one number");
    if (o->bench->batches.n && o->bench->batches.at[0] > 1 && o->run->drafts.drafts.n)
        return sl_fail(err, SL_ERR_ARG, "bench draft: --batch %d: texts have one sequence; expected no --draft with it",
                       o->bench->batches.at[0]);
    if (!strcmp(o->bench->fill, "random") && o->run->drafts.drafts.n)
        return sl_fail(err, SL_ERR_ARG, "bench draft: --fill random makes no text; expected no --draft with it");
    return 0;
}

static int make_plan(bench *b, sl_error *err) {
    const cli_bench_options *o = b->o->bench;
    int rc = check_flags(b->o, err);
    b->depths = o->depths.n ? o->depths : (cli_ints){.at = {512}, .n = 1};
    b->n_gen = o->n_gens.n ? o->n_gens.at[0] : TOKENS;
    b->n_drafts = 1, b->n_most = SL_DRAFT_MOST, b->n_seqs = o->batches.n ? o->batches.at[0] : 1;
    cli_sort_ints(&b->depths);
    if (!rc && b->n_gen < 1) rc = sl_fail(err, SL_ERR_ARG, "--n-gen 0: expected a whole number, 1 or more");
    if (!rc) rc = cli_attn_list_parse("--attn", &b->o->run->attention.attns, &b->attn, err);
    for (int i = 0; !rc && i < b->o->run->drafts.drafts.n; i++) rc = add_drafts(b, b->o->run->drafts.drafts.items[i], err);
    return rc;
}

// Rows of the session before a test: a multiple of 256, and one row at depth 0, because decoding needs a token.
static int held_at(int depth) {
    return depth < 256 ? 1 : depth / 256 * 256;
}

static int most_rows(const bench *b) {
    return held_at(b->depths.at[b->depths.n - 1]) + b->n_gen + MOST_ROWS + 1;
}

// Random sentences, or random ids without a tokenizer.
static int make_prompt(bench *b, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(b->model);
    uint32_t seed = b->o->run->sampling.seed;
    sl_text text = {0};
    int n = most_rows(b);
    if (!tok) return cli_random_ids(seed, 0, n, sl_model_n_vocab(b->model), &b->prompt, err);
    prose p = prose_begin(seed, "draft", 0, (uint32_t)n, err);
    for (int i = 0; !p.rc && text.n < (size_t)n * 8; i++) {
        if (i) prose_put(&p, &text, " ", 1);
        prose_sentence(&p, &text);
    }
    int rc = p.rc ? p.rc : sl_tokenize(tok, text.data, text.n, SL_TOK_BOS, &b->prompt, err);
    if (!rc && b->prompt.n < (size_t)n) rc = sl_fail(err, SL_ERR_FORMAT, "the tokenizer made too few tokens of the prompt");
    sl_text_free(&text);
    return rc;
}

static int new_engine(bench *b, sl_error *err) {
    sl_engine_options options = cli_engine_options(b->o->run, b->device);
    options.n_ctx = most_rows(b), options.n_sequences = b->n_seqs;
    options.n_draft = b->n_most, options.draft_weights = b->weights, options.draft_model = b->draft_model;
    int rc = cli_exact_below(&b->o->run->attention, &options.exact_below, err);
    if (!rc) rc = sl_engine_new(b->model, &options, &b->engine, err);
    if (!rc) sl_engine_describe(b->engine, b->backend, sizeof b->backend);
    if (!rc && !(b->sessions = calloc((size_t)b->n_seqs, sizeof *b->sessions)))
        rc = sl_fail(err, SL_ERR_MEMORY, "%d sessions: out of memory", b->n_seqs);
    for (int i = 0; !rc && i < b->n_seqs; i++) rc = sl_session_new(b->engine, (uint32_t)i, &b->sessions[i], err);
    return rc;
}

static int open_bench(bench *b, sl_error *err) {
    sl_config config;
    const cli_run_options *o = b->o->run;
    int rc = cli_need_model(&o->model, err);
    if (!rc) rc = cli_check_device(&o->device, err);
    if (!rc) rc = make_plan(b, err);
    if (!rc) rc = cli_read_config(o, &config, err);
    if (!rc && most_rows(b) > config.n_ctx)
        rc = sl_fail(err, SL_ERR_ARG, "--depth %d: expected at most %d, because a test adds %d tokens and the context holds %d",
                     b->depths.at[b->depths.n - 1], config.n_ctx - b->n_gen - MOST_ROWS - 1, b->n_gen + MOST_ROWS + 1,
                     config.n_ctx);
    if (!rc) b->device = cli_pick_device(o, b->attn.specs, b->attn.n);
    unsigned flags = cli_is_dummy(&o->model) ? SL_MODEL_NO_TOKENIZER : 0; // its text would mean nothing
    if (!rc) rc = cli_load_model(o, b->device, flags, &b->model, err);
    if (!rc) rc = cli_load_draft_model(&o->drafts, &b->draft_model, err);
    if (rc) return rc;
    cli_model_name_of(b->model, o->model.path, &b->name);
    for (int i = 0; i < config.n_eos; i++) b->no_end[i] = (sl_logit_bias){.id = config.eos[i], .bias = -INFINITY};
    rc = make_prompt(b, err);
    return rc ? rc : new_engine(b, err);
}

static void close_bench(bench *b) {
    for (int i = 0; b->sessions && i < b->n_seqs; i++) sl_session_free(b->sessions[i]);
    free(b->sessions);
    sl_engine_free(b->engine);
    sl_model_free(b->draft_model);
    sl_model_free(b->model);
    sl_ids_free(&b->prompt);
    cli_attn_list_free(&b->attn);
    for (int i = 1; i < b->n_drafts; i++) free(b->drafts[i]);
}

// ---- tests ----

static int check_interrupt(sl_error *err) {
    return cli_interrupted() ? sl_fail(err, SL_ERR_IO, "interrupted") : 0;
}

static int fill_one(const bench *b, sl_session *s, int held, sl_error *err) {
    int n = sl_session_n_tokens(s);
    if (!strcmp(b->o->bench->fill, "random") && held > 1) {
        int rc = sl_session_truncate(s, 0, err);
        return rc ? rc : sl_session_fill(s, held, err);
    }
    return n == held ? 0 : sl_prefill(s, b->prompt.data + n, held - n, NULL, err);
}

static int fill(const bench *b, int held, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < b->n_seqs; i++) rc = fill_one(b, b->sessions[i], held, err);
    return rc;
}

static int repetitions(const bench *b, int otherwise) {
    return b->o->bench->repetitions ? b->o->bench->repetitions : otherwise;
}

// ms: [N_PASSES][n], of passes that take turns.
static int time_passes(bench *b, int held, int n, double *ms, sl_error *err) {
    int rc = 0;
    for (int i = -1; !rc && i < n; i++) // the first round warms up
        for (int j = 0; !rc && j < N_PASSES; j++) {
            double start = sl_now_ms();
            rc = sl_decode_rows(b->sessions, b->n_seqs, b->prompt.data + held, pass_rows[j], err);
            if (i >= 0) ms[j * n + i] = sl_now_ms() - start;
            for (int k = 0; !rc && k < b->n_seqs; k++) rc = sl_session_truncate(b->sessions[k], held, err);
            if (!rc) rc = check_interrupt(err);
        }
    return rc;
}

static int run_text(bench *b, const char *draft, int held, made *out, sl_error *err) {
    sl_generation g = sl_generation_default();
    sl_stream *stream;
    sl_session *session = b->sessions[0];
    g.sampling = (sl_sampling){.temp = 0, .top_p = 1, .repeat_penalty = 1, .bias = b->no_end};
    g.sampling.n_bias = sl_model_config(b->model)->n_eos;
    g.max_tokens = b->n_gen, g.draft = draft;
    int rc = sl_session_truncate(session, held - 1, err), n;
    if (!rc) rc = sl_decode(&session, 1, b->prompt.data + held - 1, err); // makes logits
    if (!rc) rc = sl_stream_new(session, &g, &stream, err);
    if (rc) return rc;
    rc = sl_stream_begin(stream, 0, err);
    double start = sl_now_ms();
    while (!rc && sl_stream_is_running(stream)) {
        rc = sl_streams_step(&stream, 1, err);
        if (!rc) rc = check_interrupt(err);
    }
    out->ms = sl_now_ms() - start;
    out->ids.n = 0;
    const int32_t *ids = sl_stream_ids(stream, &n);
    for (int i = 0; !rc && i < n; i++) rc = sl_ids_push(&out->ids, ids[i], err);
    out->counts = sl_stream_draft_counts(stream);
    out->logits = sl_logits_hash(sl_session_last_logits(session), sl_model_n_vocab(b->model));
    sl_stream_free(stream);
    return rc ? rc : sl_session_truncate(session, held, err);
}

static int check_text(const bench *b, int draft, const made *plain, const made *own, sl_error *err) {
    if (own->logits == plain->logits && own->ids.n == plain->ids.n &&
        !memcmp(own->ids.data, plain->ids.data, plain->ids.n * sizeof *plain->ids.data))
        return 0;
    return sl_fail(err, SL_ERR_FORMAT, "--draft %.80s: found other tokens or logits (%016llx) than without drafts (%016llx)",
                   b->drafts[draft], (unsigned long long)own->logits, (unsigned long long)plain->logits);
}

// ---- rows ----

// places: accepted drafts by their place, which the row takes over.
static int add_row(bench *b, int held, const char *attn, const char *test, int n_rows, const double figures[5], json_t *places,
                   sl_error *err) {
    static const char *const keys[] = {"ms", "ratio", "step_tokens", "acceptance", "speedup"};
    json_t *row = json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:s, s:o}", "version", SLEIGH_VERSION, "commit", cli_commit(),
                            "device", b->backend, "attn", attn, "depth", held, "batch", b->n_seqs, "test", test, "rows",
                            n_rows ? json_integer(n_rows) : json_null());
    for (int i = 0; row && i < 5; i++) json_object_set_new(row, keys[i], cli_number(figures[i]));
    if (row) json_object_set(row, "accepted_at", places);
    json_decref(places);
    return cli_rows_add(&b->rows, row, err);
}

static int passes(bench *b, int held, int attn, sl_error *err) {
    int n = repetitions(b, PASSES);
    double *ms = calloc((size_t)n * N_PASSES, sizeof *ms), one = NAN;
    int rc = ms ? time_passes(b, held, n, ms, err) : sl_fail(err, SL_ERR_MEMORY, "times of passes: out of memory");
    for (int j = 0; !rc && j < N_PASSES; j++) {
        char test[32];
        double median = cli_median(ms + j * n, n);
        if (j == 0) one = median;
        snprintf(test, sizeof test, "%d row%s", pass_rows[j], cli_s(pass_rows[j]));
        rc = add_row(b, held, b->attn.names[attn], test, pass_rows[j], (double[]){median, median / one, NAN, NAN, NAN},
                     json_null(), err);
    }
    free(ms);
    return rc;
}

static int add_text_row(bench *b, int held, int attn, int draft, double ms, double plain_ms, const made *m, sl_error *err) {
    const sl_draft_counts *c = &m->counts;
    double n_steps = (double)c->n_steps, drafted = (double)c->n_draft_tokens, accepted = (double)c->n_accepted_tokens;
    const double figures[] = {ms / b->n_gen, NAN, draft ? 1 + accepted / n_steps : 1, draft ? accepted / drafted : NAN,
                              plain_ms / ms};
    return add_row(b, held, b->attn.names[attn], draft ? b->drafts[draft] : "text", 0, figures,
                   draft ? sl_draft_places_json(c, sl_engine_n_draft(b->engine)) : json_null(), err);
}

static int texts(bench *b, int held, int attn, sl_error *err) {
    made of[1 + MOST_DRAFTS] = {{0}};
    int n = repetitions(b, TEXTS), rc = 0;
    double *ms = calloc((size_t)n * (1 + MOST_DRAFTS), sizeof *ms), plain = 0;
    if (!ms) return sl_fail(err, SL_ERR_MEMORY, "times of texts: out of memory");
    for (int i = 0; !rc && i < n; i++)
        for (int j = 0; !rc && j < b->n_drafts; j++) {
            rc = run_text(b, b->drafts[j], held, &of[j], err);
            ms[j * n + i] = of[j].ms;
            if (!rc && j) rc = check_text(b, j, &of[0], &of[j], err);
        }
    for (int j = 0; !rc && j < b->n_drafts; j++) {
        double median = cli_median(ms + j * n, n);
        if (j == 0) plain = median;
        rc = add_text_row(b, held, attn, j, median, plain, &of[j], err);
    }
    for (int j = 0; j < b->n_drafts; j++) sl_ids_free(&of[j].ids);
    free(ms);
    return rc;
}

static int run_all(bench *b, sl_error *err) {
    int rc = 0;
    b->total = b->depths.n * b->attn.n;
    cli_progress_begin(&b->progress, "bench draft", "tests");
    for (int i = 0; !rc && i < b->depths.n; i++) {
        int held = held_at(b->depths.at[i]);
        rc = fill(b, held, err);
        for (int j = 0; !rc && j < b->attn.n; j++) {
            rc = sl_engine_set_attention(b->engine, b->attn.names[j], err);
            if (!rc) rc = passes(b, held, j, err);
            if (!rc && b->n_drafts > 1) rc = texts(b, held, j, err);
            cli_progress_update(&b->progress, ++b->done, b->total);
        }
    }
    cli_progress_end(&b->progress);
    return rc;
}

int cmd_bench_draft(const cli_bench_flags *o, sl_error *err) {
    const int has_text = o->run->drafts.drafts.n > 0, is_batch = o->bench->batches.n && o->bench->batches.at[0] > 1;
    const cli_column columns[] = {
        {.title = "depth", .key = "depth"},
        {.title = "batch", .key = "batch", .hidden = !is_batch},
        {.title = "attention", .key = "attn"},
        {.title = "test", .key = "test"},
        {.title = has_text ? "ms / pass or token" : "ms", .key = "ms", .digits = 3},
        {.title = "x one row", .key = "ratio", .digits = 2},
        {.title = "tokens / step", .key = "step_tokens", .digits = 2, .hidden = !has_text},
        {.title = "accepted %", .key = "acceptance", .digits = 1, .scale = 100, .hidden = !has_text},
        {.title = "speedup", .key = "speedup", .digits = 3, .hidden = !has_text},
    };
    bench b = {.o = o};
    b.rows = (cli_rows){.format = o->output->format, .columns = columns, .n_columns = sizeof columns / sizeof *columns};
    int rc = open_bench(&b, err);
    b.rows.model = &b.name;
    if (!rc) {
        fprintf(stderr, "backend: %s\n", b.backend);
        cli_catch_interrupt(1);
        rc = run_all(&b, err);
        int ended = cli_rows_end(&b.rows, rc ? NULL : err);
        if (!rc) rc = ended ? ended : cli_flush(err);
    }
    close_bench(&b);
    return rc;
}
