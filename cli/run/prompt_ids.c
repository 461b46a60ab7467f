// cli/run/prompt_ids.c - see prompt_ids.h.
#include "cli/run/prompt_ids.h"
#include "base/philox.h"
#include "cli/io.h"

int cli_has_ids(const cli_ids_options *o) {
    return o->path || o->n_random;
}

int cli_read_ids(const cli_ids_options *o, const sl_config *c, sl_ids *ids, sl_error *err) {
    sl_text text = {0};
    int rc = cli_read_file(o->path, &text, err);
    if (!rc) rc = cli_parse_ids(o->path, &text, ids, err);
    sl_text_free(&text);
    if (!rc && ids->n == 0) rc = sl_fail(err, SL_ERR_FORMAT, "--ids %s: expected token ids, found none", o->path);
    for (size_t i = 0; !rc && i < ids->n; i++)
        if (ids->data[i] >= c->n_vocab)
            rc = sl_fail(err, SL_ERR_FORMAT, "--ids %s: id %d at index %zu; expected 0 to %d, the ids of this model", o->path,
                         ids->data[i], i, c->n_vocab - 1);
    return rc;
}

int cli_random_ids(uint32_t seed, uint32_t sequence, int n, int n_vocab, sl_ids *ids, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < n; i++) {
        const sl_rng_id id = {.seed = seed, .sequence = sequence, .position = (uint32_t)i};
        rc = sl_ids_push(ids, (int32_t)(sl_rng_u64(&id, 0, SL_STREAM_PROMPT) % (uint64_t)n_vocab), err);
    }
    return rc;
}
