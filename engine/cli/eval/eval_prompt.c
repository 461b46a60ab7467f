// engine/cli/eval/eval_prompt.c - see eval_prompt.h.
#include "engine/cli/eval/eval_prompt.h"
#include "engine/cli/io.h"
#include "engine/cli/run.h"

#include <ctype.h>
#include <string.h>

void eval_prompter_free(eval_prompter *p) {
    sl_text_free(&p->whole), sl_text_free(&p->head);
    sl_ids_free(&p->ids), sl_ids_free(&p->head_ids);
    *p = (eval_prompter){0};
}

static int append(sl_text *to, const sl_text *text, sl_error *err) {
    return sl_text_append(to, text->data ? text->data : "", text->n, err);
}

static int tokenize(const eval_prompter *p, const sl_text *text, sl_ids *ids, sl_error *err) {
    ids->n = 0;
    return sl_tokenize(p->tok, text->data, text->n, p->chat ? 0 : SL_TOK_BOS, ids, err); // a template writes BOS
}

static int render(eval_prompter *p, const sl_text *context, const eval_item *item, sl_error *err) {
    p->whole.n = 0;
    int rc = append(&p->whole, context, err);
    if (!rc) rc = append(&p->whole, &item->question, err);
    if (!rc && p->chat) rc = cli_chat_wrap(p->o, p->chat, &p->whole, err);
    return rc ? rc : append(&p->whole, &item->prefix, err);
}

// Sets head: the prompt up to the end of the context. Searches for the context without its leading blanks, because templates
// trim messages.
static int find_head(eval_prompter *p, const sl_text *context, sl_error *err) {
    const char *begin = context->data, *at = NULL;
    size_t n = context->n;
    while (n && isspace((unsigned char)*begin)) begin++, n--;
    for (size_t i = 0; !at && i + n <= p->whole.n; i++)
        if (!memcmp(p->whole.data + i, begin, n)) at = p->whole.data + i;
    if (!at)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "this chat template changes the text of the context, so the end of the context cannot be found");
    p->head.n = 0;
    return sl_text_append(&p->head, p->whole.data, (size_t)(at - p->whole.data) + n, err);
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
    int rc = sl_text_append(&p->whole, text, n, err);
    return rc ? rc : tokenize(p, &p->whole, ids, err);
}

int eval_prompt_count(void *prompter, const sl_text *context, const eval_item *item, int *n_tokens, sl_error *err) {
    eval_prompter *p = prompter;
    int rc = eval_prompt_ids(p, context, item, &p->ids, NULL, err);
    *n_tokens = (int)p->ids.n;
    return rc;
}
