// cli/generate/cmd_generate.c - sleigh generate: reads a prompt, streams the generated text to stdout or prints it as
// JSON, and prints statistics to stderr.
#include "cli/chat_prompt.h"
#include "cli/commands.h"
#include "cli/generate/answer.h"
#include "cli/generate/jsonl.h"
#include "cli/generate/parallel.h"
#include "cli/generate/prompt_cache.h"
#include "cli/io.h"
#include "cli/process.h"
#include "cli/run/load_model.h"
#include "cli/run/prompt_ids.h"
#include "cli/run/run.h"
#include "cli/timeline.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_json(const cli_output_options *o) {
    return !strcmp(o->format, "json");
}

static int check_flags(const cli_generate_flags *o, sl_error *err) {
    const cli_input_options *input = o->input;
    int rc = cli_check_chat_flags(o->chat, o->given, err);
    if (rc) return rc;
    const char *ids = o->run->ids.path ? "--ids" : o->run->ids.n_random ? "--random-prompt" : NULL;
    const char *other = input->prompt_given == CLI_BY_FLAG                 ? "--prompt"
                        : input->file_given == CLI_BY_FLAG                 ? "--file"
                        : o->chat->is_on                                   ? "--chat"
                        : o->output->display_prompt && !is_json(o->output) ? "--display-prompt"
                        : o->run->ids.path && o->run->ids.n_random         ? "--random-prompt"
                                                                           : NULL;
    if (ids && other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with %s", other, ids);
    if (o->output->logprobs_given == CLI_BY_FLAG && !is_json(o->output))
        return sl_fail(err, SL_ERR_ARG, "flag --logprobs needs -o json, --jsonl FILE or --prompts FILE");
    if (input->parallel_given == CLI_BY_FLAG)
        return sl_fail(err, SL_ERR_ARG, "flag --parallel needs --prompts FILE or --jsonl FILE");
    if (input->question_dense) return sl_fail(err, SL_ERR_ARG, "flag --question-dense needs --jsonl");
    return 0;
}

// Reads the text of the prompt.
static int read_text(const cli_input_options *o, sl_text *text, sl_error *err) {
    int rc = cli_read_input(o, text, err);
    if (!rc && o->prompt_given <= o->file_given) rc = cli_check_text(o->file, text, err);
    if (rc || text->n) return rc;
    return sl_fail(err, SL_ERR_ARG, "the prompt is empty; to begin with the BOS token alone, give its id with --ids");
}

// Set-up A prefills the whole prompt. Set-up B prefills --dense-prefix tokens and feeds the rest. Then both generate.
// shown: the prompt, printed before the answer; NULL: not printed. It is printed after the prefill, because a progress bar
// clears its row of the terminal.
// *unsaved: the error code of a prompt cache that could not be written, with its message in *err. The answer is printed anyway.
static int run_prompt(const cli_generate_flags *o, cli_timeline *t, const sl_ids *ids, const sl_text *shown, sl_text *answer,
                      int *unsaved, sl_error *err) {
    int n = (int)ids->n, n_dense = o->input->dense_prefix < 0 ? n : o->input->dense_prefix;
    char prefill[CLI_ATTN_TEXT];
    cli_run_format_prefill(t->run, prefill, sizeof prefill);
    if (o->input->dense_prefix < 0)
        fprintf(stderr, "setup: A, prefill of all %d prompt tokens with %s attention; --attn decodes the answer\n", n, prefill);
    else
        fprintf(stderr,
                "setup: B, prefill of %d of %d prompt tokens with %s attention; --attn decodes the rest and the answer\n",
                n_dense, n, prefill);
    int n_file = sl_session_n_tokens(t->session), in_cache = sl_session_common(t->session, ids->data, n_dense);
    int rc = cli_timeline_prefix(t, ids->data, n_dense, n, err);
    // A file with all tokens of the prompt stays, unless other methods prefilled it. The step of one token makes logits. After
    // Ctrl+C the file keeps the passes that are done, if these are more tokens than it has.
    int saves = t->stopped ? sl_session_n_tokens(t->session) > n_file : in_cache < n_dense || t->n_prefill > 1;
    if (!rc && saves) *unsaved = cli_prompt_cache_save(t, o->cache, NULL, err);
    if (!rc) rc = cli_timeline_feed(t, ids->data + n_dense, n - n_dense, err);
    if (!rc && shown) rc = cli_sink_stdout(NULL, shown->data, shown->n, err);
    return rc ? rc
              : cli_timeline_generate(t, o->run->limits.n_predict, o->chat->is_on,
                                      is_json(o->output) ? cli_sink_text : cli_sink_stdout, answer, err);
}

// Prints the answer as JSON. A text was printed while it was generated.
static int print_end(const cli_output_options *o, cli_timeline *t, const sl_ids *ids, const sl_text *answer, sl_error *err) {
    if (!is_json(o)) return isatty(STDOUT_FILENO) ? cli_sink_stdout(NULL, "\n", 1, err) : 0;
    cli_model_name model;
    const cli_totals totals = cli_totals_of(t);
    cli_model_name_of(t->run->model, t->run->options->model.path, &model);
    const cli_answer a = {
        .model = &model, .prompt = ids, .text = answer, .t = t, .totals = &totals, .with_prompt = o->display_prompt};
    return cli_answer_print(&a, err);
}

static int make_ids(const cli_run *run, const sl_text *text, sl_ids *ids, sl_error *err) {
    const cli_ids_options *o = &run->options->ids;
    const cli_sampling_options *sampling = &run->options->sampling;
    const sl_config *c = sl_model_config(run->model);
    if (o->path) return cli_read_ids(o, c, ids, err);
    if (o->n_random) return cli_random_ids(sampling->seed, sampling->seq_id, o->n_random, c->n_vocab, ids, err);
    return sl_tokenize(sl_model_tokenizer(run->model), text->data, text->n, SL_TOK_BOS, ids, err);
}

// Replaces the text by the prompt of its chat.
static int make_chat_ids(const cli_run *run, const cli_chat *chat, sl_text *text, sl_ids *ids, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(run->model);
    sl_prompt prompt = {0};
    int rc = cli_chat_render_text(chat, tok, text->data, text->n, &prompt, err);
    if (!rc) rc = sl_chat_tokenize(chat->template, tok, &prompt, ids, err);
    if (!rc) {
        sl_text_free(text);
        *text = prompt.text;
        prompt.text = (sl_text){0};
    }
    sl_prompt_free(&prompt);
    return rc;
}

static int generate(const cli_generate_flags *o, cli_run *run, const cli_chat *chat, sl_text *text, sl_error *err) {
    int dense_prefix = o->input->dense_prefix;
    sl_ids ids = {0};
    sl_text answer = {0};
    cli_timeline t = {0};
    int unsaved = 0;
    int rc = o->chat->is_on ? make_chat_ids(run, chat, text, &ids, err) : make_ids(run, text, &ids, err);
    if (!rc) rc = sl_text_append(&answer, "", 0, err); // gives an empty answer a buffer too
    if (!rc) rc = cli_check_prompt(run, ids.n, "--ctx-size", err);
    if (!rc && dense_prefix > (int)ids.n)
        rc = sl_fail(err, SL_ERR_ARG, "--dense-prefix %d: expected at most %zu, the number of prompt tokens", dense_prefix,
                     ids.n);
    if (!rc) rc = cli_run_set_prompt(run, (int)ids.n, err);
    if (!rc) rc = cli_timeline_open(&t, run, o->run->sampling.seq_id, err);
    if (!rc) {
        cli_run_describe(run, stderr);
        if (!cli_has_ids(&o->run->ids) && !o->chat->is_on) cli_hint_chat(run, text, &ids);
        cli_catch_interrupt(1);
        t.n_logprobs = cli_answer_logprobs(o->output, NULL);
        rc = cli_prompt_cache_load(&t, o->cache, NULL, err);
        if (!rc)
            rc =
                run_prompt(o, &t, &ids, o->output->display_prompt && !is_json(o->output) ? text : NULL, &answer, &unsaved, err);
        if (!rc) rc = print_end(o->output, &t, &ids, &answer, err);
        if (!rc && o->output->perf) cli_timeline_stats(&t, stderr);
        cli_timeline_close(&t);
    }
    sl_ids_free(&ids);
    sl_text_free(&answer);
    return rc ? rc : unsaved;
}

int cmd_generate(const cli_generate_flags *o, sl_error *err) {
    const char *many = o->input->jsonl ? "--jsonl" : o->input->prompts ? "--prompts" : NULL;
    if (many && cli_given_by(o->given, "--output") == CLI_BY_FLAG && !is_json(o->output))
        return sl_fail(err, SL_ERR_ARG, "-o text cannot be used with %s, which writes JSON", many);
    if (many && o->cache->path) return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache cannot be used with %s", many);
    if (o->cache->read_only && !o->cache->path)
        return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache-ro needs --prompt-cache FILE");
    if (o->input->prompts || (o->input->jsonl && o->input->parallel_given)) return cli_generate_parallel(o, err);
    if (o->input->jsonl) return cli_generate_jsonl(o, err);
    cli_chat chat = {0};
    sl_text text = {0};
    cli_run run;
    int rc = cli_need_model(&o->run->model, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc && !cli_has_ids(&o->run->ids)) rc = read_text(o->input, &text, err);
    if (!rc && o->chat->is_on) rc = cli_chat_load(&o->run->model, o->chat, &chat, err);
    if (!rc) rc = cli_run_open(&run, o->run, 1, err);
    if (!rc) {
        rc = generate(o, &run, &chat, &text, err);
        if (!rc) rc = cli_run_finish(&run, err);
        cli_run_close(&run);
    }
    cli_chat_free(&chat);
    sl_text_free(&text);
    return rc;
}
