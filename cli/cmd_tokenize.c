// cli/cmd_tokenize.c - sleigh tokenize and detokenize. Both read only the tokenizer of the model folder.
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/model_name.h"
#include "cli/output/print_json.h"
#include "cli/output/progress_bar.h"
#include "cli/output/token_json.h"
#include "cli/run/load_model.h"
#include "models/source.h"

#include <string.h>

static int print_ids(const sl_ids *ids, sl_error *err) {
    int rc = 0;
    for (size_t i = 0; !rc && i < ids->n; i++) rc = cli_printf(err, "%s%d", i ? "," : "", ids->data[i]);
    return rc ? rc : cli_write("\n", 1, err);
}

static int print_tokens(const char *path, const sl_tokenizer *tok, const sl_ids *ids, sl_error *err) {
    char model[256];
    json_t *tokens = json_array();
    cli_model_folder_name(path, model, sizeof model);
    for (size_t i = 0; i < ids->n; i++) json_array_append_new(tokens, cli_token_json(tok, ids->data[i]));
    return cli_print_json(json_pack("{s:s, s:I, s:o, s:o}", "model", model, "n_tokens", (json_int_t)ids->n, "ids",
                                    cli_ids_json(ids), "tokens", tokens),
                          JSON_COMPACT, err);
}

// Says why --bos changes nothing.
static void explain_bos(const sl_tokenizer *tok) {
    sl_text bos = {0};
    if (sl_tokenizer_adds_bos(tok)) return;
    if (sl_tokenizer_bos(tok) < 0)
        cli_say("--bos adds nothing: this tokenizer has no BOS");
    else if (!sl_token_bytes(tok, sl_tokenizer_bos(tok), &bos, NULL))
        cli_say("--bos adds nothing: this tokenizer does not put its BOS %s before a text (post_processor, add_bos_token)",
                bos.data);
    sl_text_free(&bos);
}

int cmd_tokenize(const cli_model_options *model, const cli_input_options *input, const cli_tokenize_options *o,
                 const char *format, sl_error *err) {
    sl_text text = {0};
    sl_ids ids = {0};
    sl_tokenizer *tok = NULL;
    int rc = cli_need_model(model, err);
    if (!rc) rc = cli_read_input(input, &text, err);
    if (!rc) rc = sl_tokenizer_load(sl_source_documents(model->source), &tok, err);
    if (!rc && o->bos) explain_bos(tok);
    if (!rc) rc = sl_tokenize(tok, text.data, text.n, (o->bos ? SL_TOK_BOS : 0) | (o->plain ? SL_TOK_PLAIN : 0), &ids, err);
    if (!rc) rc = strcmp(format, "json") ? print_ids(&ids, err) : print_tokens(model->path, tok, &ids, err);
    sl_tokenizer_free(tok);
    sl_ids_free(&ids);
    sl_text_free(&text);
    return rc;
}

int cmd_detokenize(const cli_model_options *model, const cli_input_options *input, sl_error *err) {
    sl_text list = {0}, text = {0};
    sl_ids ids = {0};
    sl_tokenizer *tok = NULL;
    const char *source = input->prompt ? "--prompt" : input->file ? input->file : "standard input";
    int rc = cli_need_model(model, err);
    if (!rc) rc = cli_read_input(input, &list, err);
    if (!rc) rc = cli_parse_ids(source, &list, &ids, err);
    if (!rc) rc = sl_tokenizer_load(sl_source_documents(model->source), &tok, err);
    if (!rc) rc = sl_detokenize(tok, ids.data, ids.n, 1, &text, err);
    if (!rc) rc = cli_write(text.data, text.n, err);
    if (rc == SL_ERR_ARG && ids.n) rc = SL_ERR_FORMAT; // an id out of range is an input error, not a usage error
    sl_tokenizer_free(tok);
    sl_ids_free(&ids);
    sl_text_free(&list);
    sl_text_free(&text);
    return rc;
}
