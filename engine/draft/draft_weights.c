// engine/draft/draft_weights.c - see draft_weights.h.
#include "engine/draft/draft_weights.h"

static const double GIB = 1 << 30;

static int no_room(const sl_engine *e, const char *place, double needed, double beside, double free, sl_error *err) {
    return sl_fail(
        err, SL_ERR_MEMORY,
        "{draft} weights=%s: the copies of the weights need %.2f GiB of %s beside %.2f GiB of the model's weights; %.2f "
        "GiB are free. Expected enough for both: leave weights=%s out, or free memory",
        e->draft_format, needed, place, beside, free, e->draft_format);
}

// {n_ctx}, the scratch memory and the rest of the KV cache have their own check: sl_engine_place.
static int check_room(const sl_engine *e, sl_error *err) {
    const sl_backend *be = e->device.backend, *host = sl_cpu_memory();
    const sl_model *model = e->model;
    size_t made = sl_model_weights_bytes_to_make(&e->rounded), own, needed = e->device.draft_bytes, free = be->free_memory(be);
    own = be->is_device ? sl_model_weights_placed_bytes(&model->weights, be) : sl_model_bytes_to_allocate(model);
    if (own + needed > free)
        return no_room(e, be->is_device ? "GPU memory" : "memory", (double)needed / GIB, (double)own / GIB, (double)free / GIB,
                       err);
    free = host->free_memory(host);
    if (be->is_device && made > free)
        return no_room(e, "host memory, where they are made,", (double)made / GIB, 0, (double)free / GIB, err);
    return 0;
}

int sl_draft_weights_list(sl_engine *e, const char *format, sl_error *err) {
    e->draft_format = sl_draft_format(format);
    if (!e->draft_format) return sl_fail(err, SL_ERR_ARG, "draft_weights %.40s: expected int4, int8 or fp8", format);
    int rc = sl_model_list_rounded(e->model, format, &e->rounded, err);
    if (rc) return rc;
    e->device.draft_bytes = sl_model_weights_rounded_bytes(&e->rounded, e->device.backend);
    return check_room(e, err);
}

int sl_draft_weights_make(sl_engine *e, const sl_engine_options *o, sl_error *err) {
    sl_device *d = &e->device;
    int rc = sl_model_make_rounded(e->model, &e->rounded, &o->cancel, err);
    if (!rc)
        rc = sl_model_weights_place_rounded(&e->rounded, d->backend, &d->weights, &o->cancel, &o->log, &d->draft_weights, err);
    if (d->backend->is_device) sl_model_weights_free(&e->rounded); // the device has copied them
    return rc;
}
