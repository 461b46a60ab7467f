// cli/run/load_model.c - see load_model.h.
#include "cli/run/load_model.h"
#include "base/comm.h"
#include "cli/io.h"
#include "cli/model_path.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/run/prompt_ids.h"
#include "cli/watch.h"
#include "models/source.h"
#include "models/weights.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

// ---- checks before anything is loaded ----

int cli_need_model(const cli_model_options *o, sl_error *err) {
    return o->path ? 0
                   : sl_fail(err, SL_ERR_ARG,
                             "flag --model is required: give the folder or the name of a model, for example -m tiny");
}

int cli_is_dummy(const cli_model_options *o) {
    return !strcmp(o->load_format, "dummy");
}

const char *cli_limit_text(const sl_config *config) {
    if (config->window && config->n_ctx == config->window)
        return "this model's sliding_window: Sleigh attends to every token, so the context must fit into the window";
    return config->n_ctx > config->n_trained
               ? "because fp32 represents no larger position exactly"
               : "this model's max_position_embeddings (--rope-scaling runs it past its trained context)";
}

int cli_warn_trained(const sl_config *config, int n_ctx) {
    if (n_ctx <= config->n_trained) return 0;
    char rope[256];
    sl_config_describe_rope(config, rope, sizeof rope);
    cli_say("warning: a context of %d tokens, and this model was trained on %d; RoPE: %s", n_ctx, config->n_trained, rope);
    return 1;
}

int cli_read_config(const cli_run_options *o, sl_config *out, sl_error *err) {
    int n_ctx = o->limits.n_ctx, n_random = o->ids.n_random;
    int rc = sl_config_load(sl_source_documents(o->model.source), out, err);
    if (!rc) rc = sl_config_change_rope(out, &o->model.rope, err);
    if (rc) return rc;
    if (n_ctx > out->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--ctx-size %d: expected 1 to %d, %s", n_ctx, out->n_ctx, cli_limit_text(out));
    if (n_random > out->n_ctx)
        return sl_fail(err, SL_ERR_ARG, "--random-prompt %d: expected 1 to %d, %s", n_random, out->n_ctx, cli_limit_text(out));
    return 0;
}

// ---- weights ----

static int check_tokenizer(const cli_run_options *o, const sl_model *model, sl_error *err) {
    if (sl_model_tokenizer(model)) return 0;
    if (o->limits.stops.n) return sl_fail(err, SL_ERR_ARG, "flag --stop needs a tokenizer; the folder of this model has none");
    if (cli_has_ids(&o->ids)) return 0;
    return sl_fail(err, SL_ERR_ARG,
                   "the folder of this model has no tokenizer, so text is not possible; generate takes --ids FILE or "
                   "--random-prompt N");
}

// Makes dummy, packed and quantised weights in host memory. A GPU makes dummy weights itself, unless they are rounded.
static int make_weights(const char *device, int n_threads, const cli_model_options *o, sl_model *model, sl_error *err) {
    cli_progress bar;
    sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    int rounds = o->weights || o->weights_head || o->weights_embedding;
    if (sl_model_is_dummy(model) && sl_device_is_gpu(device) && !rounds) return 0;
    if (sl_model_is_dummy(model))
        cli_progress_begin(&bar, "dummy weights", "MiB");
    else
        cli_progress_begin(&bar, "unpack", sl_tensors_bytes_to_allocate(sl_model_tensors(model)) ? "MiB" : "tensors");
    int rc = sl_model_materialise(model, n_threads, &progress, NULL, err);
    cli_progress_end(&bar);
    return rc;
}

static int lock_part(const void *data, size_t n, const char *path, sl_error *err) {
    struct rlimit limit;
    char size[32], most[32];
    if (!mlock(data, n)) return 0;
    int number = errno;
    if (getrlimit(RLIMIT_MEMLOCK, &limit)) limit.rlim_cur = 0;
    return sl_fail(err, SL_ERR_MEMORY,
                   "--mlock: cannot lock %s of %s in memory: %s; the limit of locked memory is %s (ulimit -l)",
                   cli_bytes((double)n, size), path, strerror(number),
                   limit.rlim_cur == RLIM_INFINITY ? "infinite" : cli_bytes((double)limit.rlim_cur, most));
}

static int has_packed(const sl_tensors *t) {
    for (int i = 0; i < sl_tensors_count(t); i++)
        if (sl_tensors_at(t, i)->packed.type) return 1;
    return 0;
}

// --mlock: reads the files of weights and keeps them in memory, until they are unmapped. Of a GGUF file with packed weights,
// the tensors are kept, and the weights that are made of them. A GPU holds a copy of its own.
static int lock_weights(const char *device, const sl_model *model, sl_error *err) {
    const sl_tensors *tensors = sl_model_tensors(model);
    int rc = 0, packed = has_packed(tensors);
    if (sl_device_is_gpu(device)) return 0;
    for (int i = 0; !rc && !packed && i < sl_tensors_n_files(tensors); i++) {
        const sl_tensor_file *f = sl_tensors_file(tensors, i);
        rc = lock_part(f->map, f->size, f->path, err);
    }
    for (int i = 0; !rc && packed && i < sl_tensors_count(tensors); i++) {
        const sl_tensor *t = sl_tensors_at(tensors, i);
        if (t->data) rc = lock_part(t->data, t->n_bytes, t->file, err);
    }
    const sl_model_weights *weights = sl_model_weight_list(model);
    if (!rc && weights->made) rc = lock_part(weights->made, weights->made_size, "quantised weights", err);
    return rc;
}

static void say_line(void *ctx, const char *line) {
    (void)ctx;
    cli_say("%s", line);
}

sl_log cli_log(void) {
    return (sl_log){.fn = say_line};
}

sl_model_options cli_load_options(const cli_model_options *o, unsigned flags) {
    return (sl_model_options){.flags = flags | (cli_is_dummy(o) ? SL_MODEL_DUMMY : SL_MODEL_PACKED),
                              .chat_template = o->chat_template,
                              .weights = o->weights,
                              .weights_head = o->weights_head,
                              .weights_embedding = o->weights_embedding,
                              .activations = o->activations,
                              .rope = o->rope,
                              .log = cli_log()};
}

int cli_load_model(const cli_run_options *o, const char *device, unsigned flags, sl_model **out, sl_error *err) {
    int is_dummy = cli_is_dummy(&o->model);
    const sl_model_options options = cli_load_options(&o->model, flags);
    const sl_shard shard = {sl_comm_rank(o->model.comm), sl_comm_n(o->model.comm)};
    int rc = sl_model_load_part(o->model.path, &options, &shard, o->model.comm, out, err);
    if (rc) return rc;
    if (is_dummy && !(flags & SL_MODEL_NO_TOKENIZER)) rc = check_tokenizer(o, *out, err);
    if (!rc) rc = cli_watch(sl_model_tensors(*out), err);
    if (!rc) rc = make_weights(device, o->device.threads, &o->model, *out, err);
    if (!rc && o->model.mlock) rc = lock_weights(device, *out, err);
    if (!rc) return 0;
    sl_model_free(*out);
    *out = NULL;
    return rc;
}

int cli_load_draft_model(const cli_draft_options *o, sl_model **out, sl_error *err) {
    char path[CLI_PATH_SIZE];
    const sl_model_options options = {.log = cli_log()};
    *out = NULL;
    if (!o->model) return 0;
    sl_error why;
    int rc = cli_model_path(o->model, path, &why);
    int names_flag = rc && !strncmp(why.message, "--model ", 8);
    if (rc) return sl_fail(err, rc, "%s%.900s", names_flag ? "--draft-" : "", why.message + (names_flag ? 2 : 0));
    rc = sl_model_load(path, &options, out, err);
    if (rc || !(rc = cli_watch(sl_model_tensors(*out), err))) return rc;
    sl_model_free(*out);
    *out = NULL;
    return rc;
}
