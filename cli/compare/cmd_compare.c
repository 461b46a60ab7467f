// cli/compare/cmd_compare.c - sleigh compare: compares methods with dense attention on the same prompts: answers,
// next-token distributions on the same tokens, and outputs of heads on the same states. compare_runs.c has the protocol.
#include "base/json.h"
#include "attention/auto.h"
#include "cli/commands.h"
#include "cli/compare/compare.h"
#include "cli/compare/compare_plot.h"
#include "cli/compare/compare_print.h"
#include "cli/compare/compare_rows.h"
#include "cli/compare/compare_runs.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/records.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/timeline.h"
#include "kv/kv.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- flags ----

static int check_flags(const cli_compare_flags *o, sl_error *err) {
    const cli_input_options *input = o->input;
    const char *reference = o->compare->reference;
    if (input->jsonl && reference)
        return sl_fail(err, SL_ERR_ARG, "flag --reference cannot be used with --jsonl; a line gives its \"reference\"");
    if (!o->compare->texts && !input->jsonl && !reference)
        return sl_fail(err, SL_ERR_ARG,
                       "--no-texts needs tokens to score: give --reference FILE, or --jsonl with \"reference\"");
    if (o->compare->texts && input->parallel > 1)
        return sl_fail(err, SL_ERR_ARG, "--parallel %d needs --no-texts: answers are generated one by one", input->parallel);
    int rc = cli_check_chat_flags(o->chat, o->given, err);
    if (rc) return rc;
    if (input->question_dense && !input->jsonl) return sl_fail(err, SL_ERR_ARG, "flag --question-dense needs --jsonl");
    return input->jsonl ? cli_records_check_flags(input, &o->run->ids, "--jsonl", err) : 0;
}

// ---- prompts ----

static compare_prompt *new_prompt(compare *c, sl_error *err) { // NULL: out of memory
    compare_prompt *grown = realloc(c->prompts, (c->n_prompts + 1) * sizeof *grown);
    if (!grown) {
        sl_fail(err, SL_ERR_MEMORY, "prompt %d: out of memory", c->n_prompts);
        return NULL;
    }
    c->prompts = grown;
    grown[c->n_prompts] = (compare_prompt){0};
    return &grown[c->n_prompts++];
}

static int check_length(const compare *c, const compare_prompt *p, sl_error *err) {
    size_t limit = (size_t)sl_model_config(c->run.model)->n_ctx, n = p->reference.n > p->ids.n ? p->reference.n : p->ids.n;
    if (!p->ids.n) return sl_fail(err, SL_ERR_FORMAT, "the prompt is empty, and the tokenizer of this model adds no BOS token");
    if (n <= limit) return 0;
    return sl_fail(err, SL_ERR_CONTEXT, "%s has %zu tokens; expected at most %zu, this model's context",
                   p->reference.n ? "the prompt with its reference" : "the prompt", n, limit);
}

// Sets the ids of context and question as one text, in the chat template if --chat is given.
static int set_prompt(compare *c, compare_prompt *p, const sl_text *context, const sl_text *asked, sl_error *err) {
    const eval_item item = {.question = *asked};
    return eval_prompt_ids(&c->prompter, context, &item, &p->ids, &p->n_dense, err);
}

// Tokenises the last prompt and its reference as one text.
static int set_reference(compare *c, compare_prompt *p, const char *text, size_t n, sl_error *err) {
    int rc = eval_prompt_continued(&c->prompter, text, n, &p->reference, err);
    p->n_before = cli_common_prefix(p->reference.data, p->reference.n, p->ids.data, p->ids.n);
    if (!rc && p->reference.n == (size_t)p->n_before)
        rc = sl_fail(err, SL_ERR_FORMAT, "expected a reference with at least one token");
    c->n_references++;
    return rc;
}

static int read_text(compare *c, const sl_text *text, const sl_text *reference, sl_error *err) {
    const cli_compare_flags *o = c->o;
    compare_prompt *p = new_prompt(c, err);
    if (!p) return SL_ERR_MEMORY;
    p->sequence = o->run->sampling.seq_id;
    int rc = set_prompt(c, p, &(sl_text){0}, text, err);
    if (o->input->dense_prefix >= 0) p->n_dense = o->input->dense_prefix;
    if (!rc && p->n_dense > (int)p->ids.n)
        rc = sl_fail(err, SL_ERR_ARG, "--dense-prefix %d: expected at most %zu, the number of prompt tokens",
                     o->input->dense_prefix, p->ids.n);
    if (!rc && o->compare->reference) rc = set_reference(c, p, reference->data ? reference->data : "", reference->n, err);
    return rc ? rc : check_length(c, p, err);
}

static sl_text lent_text(const json_t *record, const char *key) {
    const json_t *text = sl_json_get(record, key);
    return (sl_text){.data = (char *)json_string_value(text), .n = json_string_length(text)};
}

static int read_record(compare *c, const json_t *record, sl_error *err) {
    const json_t *reference = sl_json_get(record, "reference");
    const sl_text context = lent_text(record, "context"),
                  asked = lent_text(record, sl_json_get(record, "prompt") ? "prompt" : "question");
    compare_prompt *p = new_prompt(c, err);
    if (!p) return SL_ERR_MEMORY;
    p->sequence = cli_record_sequence(record, c->o->run->sampling.seq_id, c->n_prompts - 1);
    p->id = json_incref(sl_json_get(record, "id"));
    if (cli_record_attn(record))
        return sl_fail(err, SL_ERR_FORMAT, "\"attn\": not supported here; give the methods with --attn");
    if (cli_record_attn_prefill(record))
        return sl_fail(err, SL_ERR_FORMAT, "\"attn_prefill\": not supported here; give the methods with --attn-prefill");
    if (reference && !json_is_string(reference)) return sl_fail(err, SL_ERR_FORMAT, "\"reference\": expected a string");
    if (!reference && !c->o->compare->texts)
        return sl_fail(err, SL_ERR_FORMAT, "expected \"reference\", whose tokens --no-texts scores");
    int rc = set_prompt(c, p, &context, &asked, err);
    if (c->o->input->question_dense) p->n_dense = (int)p->ids.n;
    if (!rc && reference) rc = set_reference(c, p, json_string_value(reference), json_string_length(reference), err);
    return rc ? rc : check_length(c, p, err);
}

static int read_records(compare *c, cli_records *r, sl_error *err) {
    json_t *record;
    int rc;
    while (!(rc = cli_records_next(r, &record, err)) && record) {
        rc = cli_records_at_line(r, r->n_lines, read_record(c, record, err), err);
        json_decref(record);
        if (rc) return rc;
    }
    return rc || c->n_prompts ? rc : sl_fail(err, SL_ERR_FORMAT, "%s: expected prompts, found none", r->path);
}

// ---- the engine ----

static int pages(size_t n_tokens) {
    return (int)((n_tokens + SL_PAGE - 1) / SL_PAGE);
}

static int batch_of(const compare *c) { // prompts whose next tokens are decoded together
    return c->o->input->parallel < c->n_prompts ? c->o->input->parallel : c->n_prompts;
}

// Opens an engine with a context for the longest prompt and its answer, and with pages for the forks of the dense path. Forks
// share the pages of their prefix, so long prompts need pages of about two sequences, and one for each sparse prefill.
static int open_engine(compare *c, sl_error *err) {
    size_t limit = (size_t)sl_model_config(c->run.model)->n_ctx, n_ctx = 0;
    int most = 0, n_sparse = 0; // most: pages of a prompt; n_sparse: prefixes beside the dense one
    for (int i = 0; i < c->prefills.n; i++) n_sparse += !compare_is_dense_prefill(c, i);
    for (int i = 0; i < c->n_prompts; i++) {
        const compare_prompt *p = &c->prompts[i];
        size_t n = p->ids.n + (c->o->compare->texts ? (size_t)c->o->compare->n_predict : 0);
        if (n > limit) n = limit;
        if (n < p->reference.n) n = p->reference.n;
        if (n > n_ctx) n_ctx = n;
    }
    for (int i = 0; i < c->n_prompts; i++) {
        const compare_prompt *p = &c->prompts[i];
        int from = p->reference.n && p->n_before < p->n_dense ? p->n_before : p->n_dense;
        int own = pages(n_ctx) - from / SL_PAGE + 1,
            need = (1 + n_sparse) * pages((size_t)p->n_dense) + (c->attn.n + 1) * own + 1;
        if (need > most) most = need;
    }
    int n_batch = batch_of(c), n_sequences = (n_batch * most + pages(n_ctx) - 1) / pages(n_ctx);
    if (n_sequences < n_batch) n_sequences = n_batch;
    return cli_run_open_engine(&c->run, (int)n_ctx, n_sequences, err);
}

static int new_methods(compare *c, sl_error *err) {
    const sl_config *config = sl_model_config(c->run.model);
    c->methods = calloc(c->attn.n, sizeof *c->methods);
    c->profiles = calloc((size_t)config->n_layers * config->n_heads, sizeof *c->profiles);
    size_t n_reports = (size_t)c->prefills.n * config->n_layers * config->n_heads;
    c->prefill_heads = malloc(n_reports * sizeof *c->prefill_heads);
    c->prefill_ms = calloc(c->prefills.n, sizeof *c->prefill_ms);
    c->n_timed = calloc(c->prefills.n, sizeof *c->n_timed);
    for (size_t i = 0; c->prefill_heads && i < n_reports; i++) c->prefill_heads[i] = sl_prefill_report_none();
    int ok = c->methods && c->profiles && c->prefill_heads && c->prefill_ms && c->n_timed;
    int rc = ok ? 0 : sl_fail(err, SL_ERR_MEMORY, "%d methods: out of memory", c->attn.n);
    for (int i = 0; !rc && i < c->attn.n; i++) {
        c->methods[i].text = c->attn.names[i];
        c->methods[i].prefill = c->prefills.names[compare_prefill_of(c, i)];
        c->methods[i].heads = calloc((size_t)config->n_layers * config->n_heads, sizeof *c->methods[i].heads);
        if (!c->methods[i].heads) rc = sl_fail(err, SL_ERR_MEMORY, "errors of the heads: out of memory");
    }
    return rc;
}

// ---- all prompts ----

static void describe(const compare *c) {
    const char *how = compare_lists_prefill(c) ? " with each method of --attn-prefill" : " with dense attention";
    cli_run_describe(&c->run, stderr);
    for (int i = 0; i < c->n_prompts; i++)
        if (c->prompts[i].n_dense < (int)c->prompts[i].ids.n) {
            fprintf(stderr, "setup: B, prefill of contexts%s; the methods decode questions and answers\n", how);
            return;
        }
    fprintf(stderr, "setup: A, prefill of prompts%s; the methods decode the answers\n", how);
}

static void describe_switches(const compare *c) {
    if (!c->n_first || !c->n_other) return;
    fprintf(stderr,
            "switch: %.2f us to set a method, %.3f ms for the first step after it, %.3f ms for other steps; %d switches\n",
            1e3 * c->switch_ms / c->n_switches, c->first_ms / c->n_first, c->other_ms / c->n_other, c->n_switches);
}

// Begins the progress of all prompts. Prompts share the rows of their common prefix.
static void begin_progress(compare *c) {
    double prefill = 0, steps = 0;
    for (int i = 0; i < c->n_prompts; i++) {
        const compare_prompt *p = &c->prompts[i], *before = i ? p - 1 : p;
        int shared = i ? cli_common_prefix(p->ids.data, (size_t)p->n_dense, before->ids.data, (size_t)before->n_dense) : 0;
        if (shared < p->n_dense) prefill += sl_model_prefill_flops(c->run.model, shared, p->n_dense - shared);
        steps += compare_steps(c, p);
    }
    cli_progress_begin_run(&c->progress, "compare", "prompts", c->n_prompts, prefill, steps);
}

enum { N_VALUES = 8 };

static void values_of(compare_method *m, cli_values *out[N_VALUES]) {
    cli_values *const all[N_VALUES] = {&m->agreement, &m->prefix,        &m->text_nll,    &m->kl,
                                       &m->top1,      &m->nll[QUESTION], &m->nll[ANSWER], &m->more_nll};
    memcpy(out, all, sizeof all);
}

// The figures before a prompt, to remove a prompt that was interrupted.
typedef struct mark {
    compare_method *methods;          // [attn.n]
    compare_head *heads;              // [attn.n][n_heads]
    sl_attn_spread *profiles;         // [n_heads]
    sl_prefill_report *prefill_heads; // [prefills.n][n_heads]
    double *prefill_ms;               // [prefills.n]
    int *n_timed;                     // [prefills.n]
    cli_values dense_nll[N_PARTS], dense_text_nll;
    int n_steps;
    size_t n_heads; // of all layers
} mark;

static int new_mark(const compare *c, mark *k, sl_error *err) {
    const sl_config *config = sl_model_config(c->run.model);
    *k = (mark){.n_heads = (size_t)config->n_layers * config->n_heads};
    k->methods = calloc(c->attn.n, sizeof *k->methods);
    k->heads = calloc(c->attn.n * k->n_heads, sizeof *k->heads);
    k->profiles = calloc(k->n_heads, sizeof *k->profiles);
    k->prefill_heads = calloc(c->prefills.n * k->n_heads, sizeof *k->prefill_heads);
    k->prefill_ms = calloc(c->prefills.n, sizeof *k->prefill_ms);
    k->n_timed = calloc(c->prefills.n, sizeof *k->n_timed);
    int ok = k->methods && k->heads && k->profiles && k->prefill_heads && k->prefill_ms && k->n_timed;
    return ok ? 0 : sl_fail(err, SL_ERR_MEMORY, "%d methods: out of memory", c->attn.n);
}

static void free_mark(mark *k) {
    free(k->methods);
    free(k->heads);
    free(k->profiles);
    free(k->prefill_heads);
    free(k->prefill_ms);
    free(k->n_timed);
}

static void take_mark(const compare *c, mark *k) {
    memcpy(k->methods, c->methods, c->attn.n * sizeof *k->methods);
    memcpy(k->dense_nll, c->dense_nll, sizeof k->dense_nll);
    memcpy(k->profiles, c->profiles, k->n_heads * sizeof *k->profiles);
    memcpy(k->prefill_heads, c->prefill_heads, c->prefills.n * k->n_heads * sizeof *k->prefill_heads);
    memcpy(k->prefill_ms, c->prefill_ms, c->prefills.n * sizeof *k->prefill_ms);
    memcpy(k->n_timed, c->n_timed, c->prefills.n * sizeof *k->n_timed);
    k->dense_text_nll = c->dense_text_nll, k->n_steps = c->n_steps;
    for (int i = 0; i < c->attn.n; i++) memcpy(k->heads + i * k->n_heads, c->methods[i].heads, k->n_heads * sizeof *k->heads);
}

static void cut_values(cli_values *v, const cli_values *before) {
    v->n = before->n, v->n_groups = before->n_groups;
}

static void back_to_mark(compare *c, mark *k) {
    for (int i = 0; i < c->attn.n; i++) {
        compare_method *m = &c->methods[i], *before = &k->methods[i];
        cli_values *now[N_VALUES], *then[N_VALUES];
        values_of(m, now), values_of(before, then);
        for (int j = 0; j < N_VALUES; j++) cut_values(now[j], then[j]);
        m->n_identical = before->n_identical, m->read = before->read, m->forced = before->forced;
        m->outputs.n = before->outputs.n, m->feed_ms = before->feed_ms;
        memcpy(m->tiles, before->tiles, sizeof m->tiles);
        memcpy(m->heads, k->heads + i * k->n_heads, k->n_heads * sizeof *k->heads);
    }
    memcpy(c->profiles, k->profiles, k->n_heads * sizeof *k->profiles);
    memcpy(c->prefill_heads, k->prefill_heads, c->prefills.n * k->n_heads * sizeof *k->prefill_heads);
    memcpy(c->prefill_ms, k->prefill_ms, c->prefills.n * sizeof *k->prefill_ms);
    memcpy(c->n_timed, k->n_timed, c->prefills.n * sizeof *k->n_timed);
    for (int j = 0; j < N_PARTS; j++) cut_values(&c->dense_nll[j], &k->dense_nll[j]);
    cut_values(&c->dense_text_nll, &k->dense_text_nll);
    c->n_steps = k->n_steps;
}

static int print_tables(compare *c, int with_plot, sl_error *err) {
    json_t *rows = compare_rows(c, err);
    int rc = rows ? compare_print_summary(c, rows, err) : SL_ERR_MEMORY;
    if (!rc && with_plot) rc = compare_plot(c, rows, err);
    json_decref(rows);
    return rc;
}

// Prints the tables of the prompts before an interruption, which stays the error.
static int print_partial(compare *c, int n_done, int rc, sl_error *err) {
    sl_error why;
    int n = c->n_prompts;
    c->n_prompts = n_done, c->is_partial = 1;
    if (n_done) print_tables(c, 0, &why);
    c->n_prompts = n;
    return sl_fail(err, (sl_err)rc, "interrupted; the tables are of %d prompt%s, %d were planned", n_done, cli_s(n_done), n);
}

static int run_prompts(compare *c, sl_error *err) {
    mark k;
    int n_done = 0, rc = new_mark(c, &k, err);
    begin_progress(c);
    while (!rc && n_done < c->n_prompts) {
        int n = batch_of(c), end = n_done + n < c->n_prompts ? n_done + n : c->n_prompts;
        take_mark(c, &k);
        rc = compare_run_prompts(c, &c->prompts[n_done], end - n_done, err);
        if (rc) back_to_mark(c, &k);
        for (; !rc && n_done < end; n_done++) rc = compare_print_prompt(c, &c->prompts[n_done], n_done, err);
        if (!rc) cli_progress_update(&c->progress, n_done, c->n_prompts);
    }
    cli_progress_end(&c->progress);
    free_mark(&k);
    if (rc) return cli_interrupted() ? print_partial(c, n_done, rc, err) : rc;
    rc = print_tables(c, 1, err);
    if (!rc) describe_switches(c);
    return rc;
}

static void free_answer(compare_answer *a) {
    sl_ids_free(&a->ids);
    sl_text_free(&a->text);
}

static void close_compare(compare *c) {
    for (int i = 0; i < c->n_prompts; i++) {
        json_decref(c->prompts[i].id);
        sl_ids_free(&c->prompts[i].ids);
        sl_ids_free(&c->prompts[i].reference);
    }
    for (int i = 0; c->methods && i < c->attn.n; i++) {
        compare_method *m = &c->methods[i];
        cli_values *all[N_VALUES];
        values_of(m, all);
        for (int j = 0; j < N_VALUES; j++) cli_values_free(all[j]);
        free_answer(&m->answer);
        free(m->outputs.x);
        free(m->heads);
    }
    for (int j = 0; j < N_PARTS; j++) cli_values_free(&c->dense_nll[j]);
    cli_values_free(&c->dense_text_nll);
    free(c->profiles);
    free(c->prefill_heads);
    free(c->prefill_ms);
    free(c->n_timed);
    free_answer(&c->dense);
    json_decref(c->rows);
    eval_prompter_free(&c->prompter);
    free(c->methods);
    free(c->prompts);
}

static int run_compare(compare *c, sl_error *err) {
    cli_model_name_of(c->run.model, c->o->run->model.path, &c->name);
    int rc = new_methods(c, err);
    if (!rc) rc = cli_timeline_open(&c->t, &c->run, 0, err);
    if (rc) return rc;
    describe(c);
    cli_catch_interrupt(1);
    rc = run_prompts(c, err);
    sl_session_free(c->dense_prefix);
    cli_timeline_close(&c->t);
    return rc;
}

static int read_input(const cli_input_options *o, sl_text *text, sl_error *err) {
    int rc = cli_read_input(o, text, err);
    if (!rc && !text->n) return sl_fail(err, SL_ERR_ARG, "the prompt is empty");
    return rc || o->prompt_given > o->file_given ? rc : cli_check_text(o->file, text, err);
}

static int list_methods(compare *c, sl_error *err) {
    const cli_attention_options *o = &c->o->run->attention;
    int n = c->o->input->parallel, rc = 0;
    if (!o->attns.n) rc = sl_fail(err, SL_ERR_ARG, "flag --attn is required: give the methods, separated by commas");
    if (!rc) rc = cli_attn_list_parse("--attn", &o->attns, &c->attn, err);
    c->n_decode = c->attn.n;
    if (!rc) rc = cli_prefill_list_parse(o, &c->prefills, err);
    if (!rc) rc = cli_attn_list_repeat(&c->attn, c->prefills.n, err);
    if (!rc && n > 1 && sl_auto_in_plan(&(sl_attn_plan){.n_layers = c->attn.n, .layer = c->attn.specs}))
        rc = sl_fail(err, SL_ERR_ARG, "--parallel %d: auto chooses a method for each prompt; expected --parallel 1", n);
    return rc;
}

// The inputs, which are open until the prompts are made of them.
typedef struct inputs {
    cli_records records;
    sl_text text, reference;
} inputs;

static int open_inputs(const cli_compare_flags *o, inputs *in, sl_error *err) {
    const char *jsonl = o->input->jsonl, *reference = o->compare->reference;
    int n_records, rc = 0;
    if (jsonl) rc = cli_records_open(&in->records, jsonl, CLI_RECORDS_PROMPTS, err);
    if (!rc && jsonl) rc = cli_records_check(&in->records, &n_records, err);
    if (!rc && !jsonl) rc = read_input(o->input, &in->text, err);
    if (!rc && reference) rc = cli_read_file(reference, &in->reference, err);
    if (!rc && reference) rc = cli_check_text(reference, &in->reference, err);
    return rc;
}

static void close_inputs(inputs *in) {
    cli_records_close(&in->records);
    sl_text_free(&in->text);
    sl_text_free(&in->reference);
}

static int prepare(compare *c, inputs *in, sl_error *err) {
    const cli_compare_flags *o = c->o;
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc) rc = list_methods(c, err);
    if (!rc) rc = cli_check_device(&o->run->device, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &c->prompter.chat, err);
    if (!rc) rc = open_inputs(o, in, err);
    if (rc) return rc;
    c->run_options.device.name = cli_pick_device(o->run, c->attn.specs, c->attn.n);
    return compare_plot_check(c, err);
}

int cmd_compare(const cli_compare_flags *o, sl_error *err) {
    compare c = {.o = o, .run_options = *o->run};
    inputs in = {0};
    int is_open = 0, rc = prepare(&c, &in, err);
    if (!rc) {
        rc = cli_run_open_model(&c.run, &c.run_options, o->input->jsonl ? o->input->parallel : 1, err);
        is_open = !rc;
    }
    if (!rc && !o->run->sampling.temp_given) c.run.sampling.temp = 0; // not the default of the model
    if (!rc) c.prompter.tok = sl_model_tokenizer(c.run.model);
    if (!rc) rc = o->input->jsonl ? read_records(&c, &in.records, err) : read_text(&c, &in.text, &in.reference, err);
    if (!rc) {
        rc = open_engine(&c, err);
        is_open = !rc;
    }
    if (!rc) rc = run_compare(&c, err);
    close_compare(&c);
    if (is_open) cli_run_close(&c.run);
    cli_attn_list_free(&c.attn);
    cli_attn_list_free(&c.prefills);
    close_inputs(&in);
    return rc;
}
