// engine/engine_buckets.c - the bucket file of an engine's model, for methods that need it.
#include "engine/engine_internal.h"
#include "models/bucket_file.h"

int sl_engine_need_buckets(sl_engine *e, const sl_attn_spec *spec, sl_error *err) {
    sl_error why;
    if (!spec->method->needs_buckets || e->bucket_file) return 0;
    int rc = sl_model_open_buckets(e->model, &e->bucket_file, &why);
    if (rc) return sl_fail(err, rc, "{attn} %s: %s", spec->method->name, why.message);
    e->geom.buckets = e->pool.buckets = sl_bucket_file_get(e->bucket_file);
    return 0;
}

void sl_engine_close_buckets(sl_engine *e) {
    sl_bucket_file_close(e->bucket_file);
    e->bucket_file = NULL;
}
