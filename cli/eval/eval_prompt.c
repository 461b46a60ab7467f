// cli/eval/eval_prompt.c - see eval_prompt.h.
#include "cli/eval/eval_prompt.h"
#include "cli/io.h"
#include "cli/run/run.h"

#include <ctype.h>
#include <string.h>

void eval_prompter_free(eval_prompter *p) {
    sl_prompt_free(&p->whole), sl_prompt_free(&p->head);
    sl_ids_free(&p->ids), sl_ids_free(&p->head_ids);
    cli_chat_free(&p->chat);
    *p = (eval_prompter){0};
}

static int append(sl_text *to, const sl_text *text, sl_error *err) {
    return sl_text_append(to, text->data ? text->data : "", text->n, err);
}

static int tokenize(const eval_prompter *p, const sl_prompt *prompt, sl_ids *ids, sl_error *err) {
    ids->n = 0;
    if (p->chat.template) return sl_chat_tokenize(p->chat.template, p->tok, prompt, ids, err);
    return sl_tokenize(p->tok, prompt->text.data, prompt->text.n, SL_TOK_BOS, ids, err);
}

static int render(eval_prompter *p, const sl_text *context, const eval_item *item, sl_error *err) {
    sl_text *text = &p->whole.text;
    text->n = p->whole.n_plain = 0;
    int rc = append(text, context, err);
    if (!rc) rc = append(text, &item->question, err);
    if (!rc && p->chat.template) {
        sl_prompt made = {0};
        rc = cli_chat_render_text(&p->chat, p->tok, text->data, text->n, &made, err);
        sl_prompt_free(&p->whole);
        p->whole = made;
    }
    return rc ? rc : append(text, &item->prefix, err);
}

// Sets head: the prompt up to the end of the context. Searches for the context without its leading blanks, because templates
// trim messages.
static int find_head(eval_prompter *p, const sl_text *context, sl_error *err) {
    const sl_text *whole = &p->whole.text;
    const char *begin = context->data, *at;
    size_t n = context->n;
    while (n && isspace((unsigned char)*begin)) begin++, n--;
    at = memmem(whole->data, whole->n, begin, n);
    if (!at)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "this chat template changes the text of the context, so the end of the context cannot be found");
    return sl_prompt_head(&p->whole, (size_t)(at - whole->data) + n, &p->head, err);
}

int eval_prompt_ids(eval_prompter *p, const sl_text *context, const eval_item *item, sl_ids *ids, int *n_shared,
                    sl_error *err) {
    int rc = render(p, context, item, err);
    if (!rc) rc = tokenize(p, &p->whole, ids, err);
    if (rc || !n_shared) return rc;
    *n_shared = (int)ids->n;
    if (!context->n) return 0;
    rc = find_head(p, context, err);
    if (!rc) rc = tokenize(p, &p->head, &p->head_ids, err);
    if (rc) return rc;
    *n_shared = cli_common_prefix(ids->data, ids->n, p->head_ids.data, p->head_ids.n);
    return 0;
}

int eval_prompt_continued(eval_prompter *p, const char *text, size_t n, sl_ids *ids, sl_error *err) {
    int rc = sl_text_append(&p->whole.text, text, n, err);
    return rc ? rc : tokenize(p, &p->whole, ids, err);
}

int eval_prompt_count(void *prompter, const sl_text *context, const eval_item *item, int *n_tokens, sl_error *err) {
    eval_prompter *p = prompter;
    int rc = eval_prompt_ids(p, context, item, &p->ids, NULL, err);
    *n_tokens = (int)p->ids.n;
    return rc;
}

eval_maker eval_maker_of(const cli_task_options *o, int instruct, int n_questions, eval_prompter *p) {
    return (eval_maker){.seed = o->seed,
                        .instruct = instruct,
                        .n_questions = n_questions,
                        .n_predict = o->n_predict,
                        .haystack = !strcmp(o->haystack, "noise")     ? HAYSTACK_NOISE
                                    : !strcmp(o->haystack, "needles") ? HAYSTACK_NEEDLES
                                                                      : HAYSTACK_TEXT,
                        .count = eval_prompt_count,
                        .ctx = p};
}
