// cli/chat_prompt.c - see chat_prompt.h.
#include "cli/chat_prompt.h"
#include "base/json.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "models/source.h"

#include <string.h>

int cli_check_chat_flags(const cli_chat_options *o, const cli_given *given, sl_error *err) {
    static const char *const flags[] = {"--system-prompt", "--chat-template", "--chat-template-kwargs",
                                        "--tools",         "--parse-special", NULL};
    const char *flag = o->is_on ? NULL : cli_given_flag(given, flags);
    return flag ? sl_fail(err, SL_ERR_ARG, "flag %s needs --chat", flag) : 0;
}

static int load_options(const char *text, json_t **out, sl_error *err) {
    json_error_t e;
    *out = json_loads(text, JSON_ALLOW_NUL, &e);
    if (!*out) return sl_fail(err, SL_ERR_ARG, "--chat-template-kwargs: %s (column %d)", e.text, e.column);
    if (json_is_object(*out)) return 0;
    return sl_fail(err, SL_ERR_ARG, "--chat-template-kwargs: expected a JSON object, found %s", sl_json_type(*out));
}

static int load_tools(const char *path, json_t **out, sl_error *err) {
    json_error_t e;
    sl_text text = {0};
    int rc = cli_read_file(path, &text, err);
    *out = rc ? NULL : json_loadb(text.data, text.n, JSON_ALLOW_NUL, &e);
    sl_text_free(&text);
    if (rc) return rc;
    if (!*out) return sl_fail(err, SL_ERR_FORMAT, "--tools %s: line %d: %s", path, e.line, e.text);
    if (json_is_array(*out)) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "--tools %s: expected a list of tools, found %s", path, sl_json_type(*out));
}

int cli_chat_load(const cli_model_options *model, const cli_chat_options *o, cli_chat *chat, sl_error *err) {
    int rc = sl_chat_load(sl_source_documents(model->source), model->chat_template, &chat->template, err);
    if (!rc && o->kwargs) rc = load_options(o->kwargs, &chat->options, err);
    if (!rc && o->tools) rc = load_tools(o->tools, &chat->tools, err);
    chat->system = o->system;
    chat->parse_special = o->parse_special;
    return rc;
}

void cli_chat_free(cli_chat *chat) {
    sl_chat_template_free(chat->template);
    json_decref(chat->tools);
    json_decref(chat->options);
    *chat = (cli_chat){0};
}

int cli_chat_render(const cli_chat *chat, const sl_tokenizer *tok, const json_t *messages, const json_t *tools, sl_prompt *out,
                    sl_error *err) {
    const sl_chat_request request = {.messages = messages,
                                     .tools = tools ? tools : chat->tools,
                                     .options = chat->options,
                                     .parse_special = chat->parse_special};
    return sl_chat_render(chat->template, tok, &request, out, err);
}

int cli_chat_render_text(const cli_chat *chat, const sl_tokenizer *tok, const char *text, size_t n, sl_prompt *out,
                         sl_error *err) {
    sl_message messages[2];
    int n_messages = 0;
    if (chat->system)
        messages[n_messages++] = (sl_message){.role = "system", .content = chat->system, .n = strlen(chat->system)};
    messages[n_messages++] = (sl_message){.role = "user", .content = text, .n = n};
    json_t *list = sl_chat_messages(messages, n_messages);
    if (!list) return sl_fail(err, SL_ERR_MEMORY, "chat template: out of memory");
    int rc = cli_chat_render(chat, tok, list, NULL, out, err);
    json_decref(list);
    return rc;
}

// 1: the model was trained on conversations: its template ends the messages of the assistant with one of its end tokens. (Base
// models can have a template too.) A model of few layers, such as the embedded one, completes texts.
static int is_assistant(const sl_model *model, const sl_chat_template *template) {
    enum { FEW_LAYERS = 8 };
    if (sl_model_config(model)->n_layers < FEW_LAYERS) return 0;
    int32_t end = sl_chat_end_of_turn(template, sl_model_tokenizer(model));
    return end >= 0 && sl_model_is_eos(model, end);
}

void cli_hint_chat(const cli_run *run, const sl_text *text, const sl_ids *ids) {
    const sl_tokenizer *tok = sl_model_tokenizer(run->model);
    sl_chat_template *template = NULL;
    sl_ids bos = {0};
    if (!tok || sl_chat_load(sl_source_documents(run->options->model.source), NULL, &template, NULL)) return;
    int has_special = text->n >= 6 && memmem(text->data, text->n, "[INST]", 6) != NULL; // plain text in templates of Mistral
    if (is_assistant(run->model, template) && !sl_tokenize(tok, "", 0, SL_TOK_BOS, &bos, NULL)) {
        for (size_t i = bos.n; i < ids->n; i++) has_special |= sl_tokenizer_is_special(tok, ids->data[i]);
        if (!has_special)
            cli_say("hint: this model has a chat template (%s); --chat puts the prompt into it", sl_chat_name(template));
    }
    sl_ids_free(&bos);
    sl_chat_template_free(template);
}
