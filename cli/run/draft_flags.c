// cli/run/draft_flags.c - see draft_flags.h.
#include "cli/run/draft_flags.h"
#include "cli/attn/attn_list.h"
#include "engine/draft/draft_spec.h"
#include "engine/engine.h"

#include <string.h>

const char *cli_draft(const cli_draft_options *o) {
    return o->draft && strcmp(o->draft, "none") ? o->draft : NULL;
}

int cli_draft_need(const cli_draft_options *o, const cli_stats_options *stats, const char *device, cli_draft_needs *out,
                   sl_error *err) {
    sl_draft_spec spec = {.most = 0};
    const char *draft = cli_draft(o);
    int rc = draft ? sl_draft_parse(draft, &spec, err) : 0;
    if (!rc && spec.of_model && !o->model) rc = sl_fail(err, SL_ERR_ARG, "--draft %.80s needs --draft-model DIR", draft);
    if (!rc && o->model && !spec.of_model && !o->by_request)
        rc = sl_fail(err, SL_ERR_ARG, "flag --draft-model needs --draft model or --draft ngram+model");
    if (!rc && draft && stats->path)
        rc = sl_fail(err, SL_ERR_ARG, "--draft %.80s: expected no --stats, which reports single decode steps", draft);
    for (int i = 0; !rc && i < spec.n_methods; i++) {
        sl_attn_spec method;
        rc = cli_attn_parse("--draft: attn", spec.attn[i], &method, err);
    }
    if (rc) return rc;
    int by_request = o->by_request && !sl_device_is_gpu(device) ? SL_DRAFT_MOST : 0;
    *out = (cli_draft_needs){.n_draft = spec.most > by_request ? spec.most : by_request, .weights = spec.weights};
    return 0;
}
