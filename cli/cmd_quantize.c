// cli/cmd_quantize.c - sleigh quantize: writes a model with rounded weights as a folder of Hugging Face.
#include "base/thread_pool.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/output/rows.h"
#include "cli/process.h"
#include "cli/run/load_model.h"
#include "cli/watch.h"
#include "models/quantised_folder.h"
#include "models/source.h"

#include <math.h>
#include <string.h>

static int is_interrupted(void *ctx) {
    (void)ctx;
    return cli_interrupted();
}

static int check_flags(const cli_quantize_flags *o, sl_error *err) {
    int rc = cli_need_model(o->model, err);
    if (!rc && !o->output->path) rc = sl_fail(err, SL_ERR_ARG, "flag --out is required: give the folder to write");
    if (!rc && !o->model->weights)
        rc = sl_fail(err, SL_ERR_ARG, "flag --weights is required: give fp8, int8, int4 or int4:group=N");
    if (!rc && sl_source_documents(o->model->source)->made)
        rc = sl_fail(err, SL_ERR_UNSUPPORTED,
                     "--model %s is a GGUF file; expected a folder of Hugging Face with weights in BF16, F16 or F32",
                     o->model->path);
    return rc;
}

// ---- the table ----

static const cli_column columns[] = {
    {.title = "tensors", .key = "kind"},
    {.title = "format", .key = "format"},
    {.title = "number", .key = "tensors"},
    {.title = "bytes in", .key = "bytes_in"},
    {.title = "bytes out", .key = "bytes_out"},
    {.title = "mean squared error", .key = "mse", .digits = -4},
    {.title = "relative", .key = "relative_mse", .digits = -4},
};

static int add_row(cli_rows *rows, const sl_folder_kind *k, sl_error *err) {
    int is_plain = k->n_values == 0;
    return cli_rows_add(rows,
                        json_pack("{s:s, s:s, s:i, s:I, s:I, s:o, s:o}", "kind", k->name, "format", k->format, "tensors",
                                  k->n_tensors, "bytes_in", (json_int_t)k->bytes_in, "bytes_out", (json_int_t)k->bytes_out,
                                  "mse", is_plain ? json_null() : cli_number(k->error / k->n_values), "relative_mse",
                                  is_plain ? json_null() : cli_number(k->error / k->size)),
                        err);
}

static int print_report(const char *format, const sl_folder_report *report, sl_error *err) {
    cli_rows rows = {.format = format, .columns = columns, .n_columns = sizeof columns / sizeof *columns};
    sl_folder_kind all = {.name = "all", .format = "-"};
    int rc = 0;
    for (int i = 0; !rc && i < report->n_kinds; i++) {
        const sl_folder_kind *k = &report->kinds[i];
        all.n_tensors += k->n_tensors;
        all.bytes_in += k->bytes_in, all.bytes_out += k->bytes_out;
        all.n_values += k->n_values, all.error += k->error, all.size += k->size;
        rc = add_row(&rows, k, err);
    }
    if (!rc) rc = add_row(&rows, &all, err);
    int ended = cli_rows_end(&rows, err);
    return rc ? rc : ended;
}

// ---- the command ----

static int write_folder(const cli_quantize_flags *o, const sl_quantise_specs *specs, const sl_model *model,
                        sl_folder_report *report, sl_error *err) {
    sl_threads *threads;
    cli_progress bar;
    const sl_progress progress = {.fn = cli_progress_update, .ctx = &bar};
    const sl_cancel cancel = {.fn = is_interrupted};
    const sl_folder_job job = {.from = sl_source_folder(o->model->source),
                               .to = o->output->path,
                               .specs = specs,
                               .weights = sl_model_weight_list(model),
                               .tensors = sl_model_tensors(model),
                               .most_bytes = o->quantize->shard_size,
                               .progress = &progress,
                               .cancel = &cancel};
    int rc = sl_threads_open(o->n_threads > 0 ? o->n_threads : sl_cpu_cores(), &threads, err);
    if (rc) return rc;
    sl_threads *outside = sl_threads_use(threads);
    cli_progress_begin(&bar, "quantize", "MiB");
    rc = sl_quantised_folder_write(&job, report, err);
    cli_progress_end(&bar);
    sl_threads_use(outside);
    sl_threads_close(threads);
    if (rc == SL_ERR_CANCELLED) return sl_fail(err, SL_ERR_CANCELLED, "interrupted; %s is not written", o->output->path);
    return rc;
}

int cmd_quantize(const cli_quantize_flags *o, sl_error *err) {
    sl_model *model = NULL;
    sl_folder_report report = {0};
    sl_quantise_specs specs;
    int rc = check_flags(o, err);
    if (rc) return rc;
    sl_model_options options = cli_load_options(o->model, SL_MODEL_NO_TOKENIZER);
    if (!options.weights_head) options.weights_head = "bf16"; // as in the file
    const sl_quantise_texts texts = {.weights = options.weights, .head = options.weights_head};
    rc = sl_quantise_parse(&texts, &specs, err);
    if (!rc) rc = sl_model_load(o->model->path, &options, &model, err);
    if (!rc) rc = cli_watch(sl_model_tensors(model), err);
    if (!rc) {
        cli_catch_interrupt(1);
        rc = write_folder(o, &specs, model, &report, err);
    }
    if (!rc) cli_say("%s: %d file%s of weights", o->output->path, report.n_files, cli_s(report.n_files));
    if (!rc) rc = print_report(o->output->format, &report, err);
    sl_folder_report_free(&report);
    sl_model_free(model);
    return rc;
}
