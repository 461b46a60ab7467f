// cli/error_text.c - see error_text.h.
#include "cli/error_text.h"

#include <stdio.h>
#include <string.h>

// Writes the flag of an option of the library: "n_ctx" gives "--ctx-size".
static void option_flag(const char *option, char *buf, size_t size) {
    static const struct {
        const char *option, *flag;
    } flags[] = {
        // the other flags have the name of the option
        {"n_ctx", "--ctx-size"},
        {"n_threads", "--threads"},
        {"tensor_parallel", "--tensor-parallel-size"},
        {"n_sequences", "--parallel"},
        {"prefill_chunk", "--ubatch-size"},
        {"bias", "--logit-bias"},
        {"max_tokens", "--n-predict"},
        {"template_name", "--chat-template"},
        {"SL_MODEL_DUMMY", "--load-format dummy"},
        {"calibrate", "`sleigh bench attn --calibrate`"},
    };
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!strcmp(flags[i].option, option)) {
            snprintf(buf, size, "%s", flags[i].flag);
            return;
        }
    snprintf(buf, size, "--%.60s", option);
    for (char *p = buf; *p; p++)
        if (*p == '_') *p = '-';
}

const char *cli_error_text(sl_error *err) {
    char text[2 * sizeof err->message], option[64], flag[64];
    size_t n = 0, from = 0;
    for (int i = 0; i < err->n_options; i++) {
        size_t at = err->options[i].at;
        snprintf(option, sizeof option, "%.*s", (int)err->options[i].n, err->message + at);
        option_flag(option, flag, sizeof flag);
        n += (size_t)snprintf(text + n, sizeof text - n, "%.*s%s", (int)(at - from), err->message + from, flag);
        from = at + err->options[i].n;
    }
    snprintf(text + n, sizeof text - n, "%s", err->message + from);
    sl_fail(err, err->code, "%s", text); // cuts a text that has become too long
    return err->message;
}
