// cli/cmd_logits.c - sleigh logits: writes the logits of each token of a dense prefill to a NumPy file.
#include "base/whole_file.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/run/load_model.h"
#include "cli/run/pick_device.h"
#include "cli/run/prompt_ids.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

typedef struct npy {
    const char *path;
    sl_whole_file whole;
    size_t row_bytes;
} npy;

static int put(const npy *out, const void *data, size_t size, sl_error *err) {
    if (fwrite(data, 1, size, out->whole.file) == size) return 0;
    return sl_fail(err, SL_ERR_IO, "cannot write %s: %s", out->path, strerror(errno));
}

// NumPy format 1.0: magic, version, a header padded with blanks to a multiple of 64 bytes, then the rows.
static int write_header(const npy *out, int n_rows, int n_cols, sl_error *err) {
    char head[256], dict[192];
    int n = snprintf(dict, sizeof dict, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d), }", n_rows, n_cols);
    int size = (10 + n + 1 + 63) / 64 * 64;
    memset(head, ' ', sizeof head);
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = (char)((size - 10) & 255);
    head[9] = (char)((size - 10) >> 8);
    memcpy(head + 10, dict, (size_t)n);
    head[size - 1] = '\n';
    return put(out, head, (size_t)size, err);
}

static int begin(npy *out, const char *path, sl_error *err) {
    struct stat st;
    *out = (npy){.path = path};
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return sl_fail(err, SL_ERR_IO, "--output %s: expected a new or a regular file, found another kind of file", path);
    return sl_whole_file_open(&out->whole, path, 0666) ? 0 : sl_whole_file_close(&out->whole, 0, err);
}

static int write_rows(void *ctx, int first, int n_rows, const float *logits, sl_error *err) {
    npy *out = ctx;
    size_t n = out->row_bytes / sizeof *logits;
    for (size_t i = 0; i < n * (size_t)n_rows; i++)
        if (!isfinite(logits[i]))
            return sl_fail(err, SL_ERR_NOT_FINITE, "the logits after token %d are not finite; %s is not written",
                           first + (int)(i / n), out->path);
    if (cli_interrupted()) return sl_fail(err, SL_ERR_IO, "interrupted; %s is not written", out->path);
    return put(out, logits, out->row_bytes * (size_t)n_rows, err);
}

static int prefill(const cli_device_options *o, const sl_model *model, const sl_ids *ids, npy *out, sl_error *err) {
    sl_engine_options options = {.n_ctx = (int)ids->n,
                                 .prefill_chunk = o->ubatch,
                                 .n_threads = o->threads,
                                 .device = cli_cache_device(o),
                                 .kv_cache_dtype = o->kv_cache_dtype,
                                 .cache_type_k = o->cache_type_k,
                                 .cache_type_v = o->cache_type_v};
    sl_engine *engine = NULL;
    sl_session *session = NULL;
    cli_progress bar;
    sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    int rc = sl_engine_new(model, &options, &engine, err);
    if (!rc) rc = sl_session_new(engine, 0, &session, err);
    if (!rc) cli_warn_trained(sl_model_config(model), options.n_ctx);
    out->row_bytes = (size_t)sl_model_config(model)->n_vocab * sizeof(float);
    if (!rc) rc = write_header(out, (int)ids->n, sl_model_config(model)->n_vocab, err);
    if (!rc) {
        double start = sl_now_ms();
        cli_progress_begin_prefill(&bar, model, 0);
        rc = sl_prefill_logits(session, ids->data, (int)ids->n, write_rows, out, &progress, err);
        cli_progress_end(&bar);
        double ms = sl_now_ms() - start;
        if (!rc)
            fprintf(stderr, "prefill: %.2f ms, %zu token%s, %.2f tok/s\n", ms, ids->n, cli_s((long long)ids->n),
                    cli_per_second((double)ids->n, ms));
    }
    sl_session_free(session);
    sl_engine_free(engine);
    return rc;
}

int cmd_logits(const cli_run_options *o, const char *path, sl_error *err) {
    sl_ids ids = {0};
    sl_model *model = NULL;
    int rc = cli_need_model(&o->model, err);
    if (!rc && !o->ids.path) rc = sl_fail(err, SL_ERR_ARG, "flag --ids is required: give a file of token ids");
    if (!rc && !path) rc = sl_fail(err, SL_ERR_ARG, "flag --output is required: give the .npy file to write");
    if (!rc) rc = cli_check_device(&o->device, err);
    if (!rc) rc = cli_load_model(o, cli_cache_device(&o->device), SL_MODEL_NO_TOKENIZER, &model, err);
    if (!rc) rc = cli_read_ids(&o->ids, sl_model_config(model), &ids, err);
    if (!rc && ids.n > (size_t)sl_model_config(model)->n_ctx)
        rc = sl_fail(err, SL_ERR_CONTEXT, "--ids %s: expected at most %d tokens, this model's context; found %zu", o->ids.path,
                     sl_model_config(model)->n_ctx, ids.n);
    if (!rc) {
        npy out;
        cli_catch_interrupt(1);
        rc = begin(&out, path, err);
        if (!rc) {
            rc = prefill(&o->device, model, &ids, &out, err);
            int closed = sl_whole_file_close(&out.whole, !rc, rc ? NULL : err);
            if (!rc) rc = closed;
        }
    }
    sl_model_free(model);
    sl_ids_free(&ids);
    return rc;
}
