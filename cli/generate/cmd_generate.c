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
#include "cli/run.h"
#include "cli/timeline.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static int is_json(const cli_options *o) {
    return !strcmp(o->format, "json");
}

static int check_flags(const cli_options *o, sl_error *err) {
    int rc = cli_check_chat_flags(o, err);
    if (rc) return rc;
    const char *ids = o->ids ? "--ids" : o->random_prompt ? "--random-prompt" : NULL;
    const char *other = CLI_GIVEN(o, prompt) == CLI_BY_FLAG ? "--prompt"
                        : CLI_GIVEN(o, file) == CLI_BY_FLAG ? "--file"
                        : o->chat                           ? "--chat"
                        : o->display_prompt && !is_json(o)  ? "--display-prompt"
                        : o->ids && o->random_prompt        ? "--random-prompt"
                                                            : NULL;
    if (ids && other) return sl_fail(err, SL_ERR_ARG, "flag %s cannot be used with %s", other, ids);
    if (CLI_GIVEN(o, logprobs) == CLI_BY_FLAG && !is_json(o))
        return sl_fail(err, SL_ERR_ARG, "flag --logprobs needs -o json, --jsonl FILE or --prompts FILE");
    if (CLI_GIVEN(o, parallel) == CLI_BY_FLAG)
        return sl_fail(err, SL_ERR_ARG, "flag --parallel needs --prompts FILE or --jsonl FILE");
    if (o->question_dense) return sl_fail(err, SL_ERR_ARG, "flag --question-dense needs --jsonl");
    return 0;
}

// Reads the text of the prompt.
static int read_text(const cli_options *o, sl_text *text, sl_error *err) {
    int rc = cli_read_input(o, text, err);
    if (!rc && CLI_GIVEN(o, prompt) <= CLI_GIVEN(o, file)) rc = cli_check_text(o->file, text, err);
    if (rc || text->n) return rc;
    return sl_fail(err, SL_ERR_ARG, "the prompt is empty; to begin with the BOS token alone, give its id with --ids");
}

// Set-up A prefills the whole prompt. Set-up B prefills --dense-prefix tokens and feeds the rest. Then both generate.
// shown: the prompt, printed before the answer; NULL: not printed. It is printed after the prefill, because a progress bar
// clears its row of the terminal.
// *unsaved: the error code of a prompt cache that could not be written, with its message in *err. The answer is printed anyway.
static int run_prompt(cli_timeline *t, const sl_ids *ids, const sl_text *shown, int at_start, sl_text *answer, int *unsaved,
                      sl_error *err) {
    const cli_options *o = t->run->options;
    int n = (int)ids->n, n_dense = o->dense_prefix < 0 ? n : o->dense_prefix;
    char prefill[CLI_ATTN_TEXT];
    cli_run_format_prefill(t->run, prefill, sizeof prefill);
    if (o->dense_prefix < 0)
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
    if (!rc && saves) *unsaved = cli_prompt_cache_save(t, err);
    if (!rc) rc = cli_timeline_feed(t, ids->data + n_dense, n - n_dense, err);
    if (!rc && shown) rc = cli_sink_stdout(NULL, shown->data, shown->n, err);
    return rc ? rc
              : cli_timeline_generate(t, o->n_predict, at_start, is_json(o) ? cli_sink_text : cli_sink_stdout, answer, err);
}

// Prints the answer as JSON. A text was printed while it was generated.
static int print_end(cli_timeline *t, const sl_ids *ids, const sl_text *answer, sl_error *err) {
    if (!is_json(t->run->options)) return isatty(STDOUT_FILENO) ? cli_sink_stdout(NULL, "\n", 1, err) : 0;
    cli_model_name model;
    const cli_totals totals = cli_totals_of(&t, 1);
    cli_model_name_of(t->run->model, t->run->options->model, &model);
    return cli_answer_print(&(cli_answer){.model = &model, .prompt = ids, .text = answer, .t = t, .totals = &totals}, err);
}

static int has_text(const cli_options *o) {
    return !o->ids && !o->random_prompt;
}

static int make_ids(const cli_run *run, const sl_text *text, sl_ids *ids, sl_error *err) {
    const cli_options *o = run->options;
    const sl_config *c = sl_model_config(run->model);
    if (o->ids) return cli_read_ids(o, c, ids, err);
    if (o->random_prompt) return cli_random_ids(o->seed, o->seq_id, o->random_prompt, c->n_vocab, ids, err);
    return sl_tokenize(sl_model_tokenizer(run->model), text->data, text->n, SL_TOK_BOS, ids, err);
}

// Replaces the text by the prompt of its chat.
static int make_chat_ids(const cli_run *run, const cli_chat *chat, sl_text *text, sl_ids *ids, sl_error *err) {
    const sl_tokenizer *tok = sl_model_tokenizer(run->model);
    sl_prompt prompt = {0};
    int rc = cli_chat_render_text(run->options, chat, tok, text->data, text->n, &prompt, err);
    if (!rc) rc = sl_chat_tokenize(chat->template, tok, &prompt, ids, err);
    if (!rc) {
        sl_text_free(text);
        *text = prompt.text;
        prompt.text = (sl_text){0};
    }
    sl_prompt_free(&prompt);
    return rc;
}

static int generate(cli_run *run, const cli_chat *chat, sl_text *text, sl_error *err) {
    const cli_options *o = run->options;
    sl_ids ids = {0};
    sl_text answer = {0};
    cli_timeline t = {0};
    int unsaved = 0;
    int rc = o->chat ? make_chat_ids(run, chat, text, &ids, err) : make_ids(run, text, &ids, err);
    if (!rc) rc = sl_text_append(&answer, "", 0, err); // gives an empty answer a buffer too
    if (!rc) rc = cli_check_prompt(run, ids.n, err);
    if (!rc && o->dense_prefix > (int)ids.n)
        rc = sl_fail(err, SL_ERR_ARG, "--dense-prefix %d: expected at most %zu, the number of prompt tokens", o->dense_prefix,
                     ids.n);
    if (!rc) rc = cli_run_set_prompt(run, (int)ids.n, err);
    if (!rc) rc = cli_timeline_open(&t, run, o->seq_id, err);
    if (!rc) {
        cli_run_describe(run, stderr);
        if (has_text(o) && !o->chat) cli_hint_chat(run, text, &ids);
        cli_catch_interrupt(1);
        t.n_logprobs = cli_answer_logprobs(o, NULL);
        rc = cli_prompt_cache_load(&t, err);
        if (!rc) rc = run_prompt(&t, &ids, o->display_prompt && !is_json(o) ? text : NULL, o->chat, &answer, &unsaved, err);
        if (!rc) rc = print_end(&t, &ids, &answer, err);
        if (!rc && o->perf) cli_timeline_stats(&t, stderr);
        cli_timeline_close(&t);
    }
    sl_ids_free(&ids);
    sl_text_free(&answer);
    return rc ? rc : unsaved;
}

int cmd_generate(const cli_options *o, sl_error *err) {
    if ((o->jsonl || o->prompts) && CLI_GIVEN(o, format) == CLI_BY_FLAG && !is_json(o))
        return sl_fail(err, SL_ERR_ARG, "-o text cannot be used with %s, which writes JSON",
                       o->jsonl ? "--jsonl" : "--prompts");
    if ((o->jsonl || o->prompts) && o->prompt_cache)
        return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache cannot be used with %s", o->jsonl ? "--jsonl" : "--prompts");
    if (o->prompt_cache_ro && !o->prompt_cache)
        return sl_fail(err, SL_ERR_ARG, "flag --prompt-cache-ro needs --prompt-cache FILE");
    if (cli_is_parallel(o)) return cli_generate_parallel(o, err);
    if (o->jsonl) return cli_generate_jsonl(o, err);
    cli_chat chat = {0};
    sl_text text = {0};
    cli_run run;
    int rc = cli_need_model(o, err);
    if (!rc) rc = check_flags(o, err);
    if (!rc && has_text(o)) rc = read_text(o, &text, err);
    if (!rc && o->chat) rc = cli_chat_load(o, &chat, err);
    if (!rc) rc = cli_run_open(&run, o, err);
    if (!rc) {
        rc = generate(&run, &chat, &text, err);
        if (!rc) rc = cli_run_finish(&run, err);
        cli_run_close(&run);
    }
    cli_chat_free(&chat);
    sl_text_free(&text);
    return rc;
}
