// cli/generate/chat_record.c - see chat_record.h.
#include "cli/generate/chat_record.h"
#include "base/json.h"

static sl_text lent_text(const json_t *record, const char *field) {
    const json_t *text = sl_json_get(record, field);
    return (sl_text){.data = (char *)json_string_value(text), .n = json_string_length(text)};
}

static int tokenize_messages(const eval_prompter *p, const json_t *record, sl_ids *ids, sl_error *err) {
    sl_prompt prompt = {0};
    if (p->chat.system)
        return sl_fail(err, SL_ERR_ARG, "\"messages\" and --system-prompt: expected the system message in one of them");
    int rc = cli_chat_render(&p->chat, p->tok, sl_json_get(record, "messages"), sl_json_get(record, "tools"), &prompt, err);
    if (rc == SL_ERR_ARG) rc = err->code = SL_ERR_FORMAT; // of the line, not of a flag
    if (!rc) rc = sl_chat_tokenize(p->chat.template, p->tok, &prompt, ids, err);
    sl_prompt_free(&prompt);
    return rc;
}

int chat_record_tokenize(eval_prompter *p, const json_t *record, sl_ids *ids, int *n_shared, sl_error *err) {
    const sl_text context = lent_text(record, "context");
    const int is_prompt = sl_json_get(record, "prompt") != NULL;
    const eval_item item = {.question = lent_text(record, is_prompt ? "prompt" : "question")};
    if (!sl_json_get(record, "messages")) return eval_prompt_ids(p, &context, &item, ids, n_shared, err);
    ids->n = 0;
    int rc = tokenize_messages(p, record, ids, err);
    *n_shared = (int)ids->n;
    return rc;
}
