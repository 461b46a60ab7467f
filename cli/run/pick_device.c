// cli/run/pick_device.c - see pick_device.h.
#include "cli/run/pick_device.h"
#include "cli/rank_team.h"
#include "attention/auto.h"
#include "cli/attn/attn_list.h"
#include "cli/run/draft_flags.h"
#include "engine/draft/draft_spec.h"

#include <stdio.h>
#include <string.h>

int cli_check_device(const cli_device_options *o, sl_error *err) {
    return sl_device_check(o->name, err);
}

int cli_kv_formats(const cli_device_options *o, sl_kv_formats *out, sl_error *err) {
    return sl_kv_formats_parse(o->kv_cache_dtype, o->cache_type_k, o->cache_type_v, out, err);
}

sl_engine_options cli_engine_options(const cli_run_options *o, const char *device) {
    const cli_device_options *d = &o->device;
    return (sl_engine_options){.prefill_chunk = d->ubatch,
                               .n_threads = d->threads,
                               .device = device,
                               .kv_cache = d->kv_cache,
                               .kv_cache_dtype = d->kv_cache_dtype,
                               .cache_type_k = d->cache_type_k,
                               .cache_type_v = d->cache_type_v,
                               .kv_gpu_memory = d->kv_gpu_memory,
                               .host_memory = d->host_memory,
                               .seed = o->sampling.seed,
                               .cancel = cli_team_interrupt(o->model.comm)};
}

// What a GPU does not offer; name NULL: nothing. with: what it does not offer it with, "" or as in " with a KV cache of fp8".
typedef struct missing {
    const char *name, *with, *format;
} missing;

// auto always runs on a GPU: the calibration table of a GPU names only methods that run there with a bf16 cache, and those that
// `auto` measures itself run there with every cache.
static int runs_on_gpu(const sl_attn_spec *spec, int is_bf16) {
    return spec->method == &sl_method_auto || (is_bf16 ? sl_attn_on_gpu(spec) : sl_attn_on_byte_rows(spec));
}

// The words that cli_pick_device prints for a method that a GPU does not offer.
static const char *name_of(const sl_attn_spec *spec) {
    return sl_attn_certifies_layer(spec)  ? "--on-miss dense"
           : sl_attn_carries_budget(spec) ? "--budget carried" // of santa-is
                                          : spec->method->name;
}

// 1 also for a text with an error, which is reported later, and for auto: a profile names methods of its own device.
static int prefills_on_gpu(const char *text) {
    sl_attn_spec spec;
    return sl_attn_parse(text, &spec, NULL) || spec.method == &sl_method_auto || sl_attn_prefills_on_gpu(&spec);
}

// The first method of a list that a GPU does not prefill with; NULL: there is none, or the list has an error.
static const char *missing_in_list(const cli_list *items) {
    cli_attn_list list;
    const char *missing = NULL;
    int rc = cli_attn_list_parse("--attn-prefill", items, &list, NULL);
    for (int i = 0; !rc && !missing && i < list.n; i++)
        if (list.specs[i].method != &sl_method_auto && !sl_attn_prefills_on_gpu(&list.specs[i]))
            missing = sl_attn_has(&list.specs[i], "repair") ? "--repair" : list.specs[i].method->name;
    cli_attn_list_free(&list);
    return missing;
}

// The first method of the flags for prefill that a GPU does not offer; NULL: there is none.
static const char *missing_prefill(const cli_attention_options *o) {
    const char *missing = missing_in_list(&o->attn_prefills);
    if (!prefills_on_gpu(o->attn_prefill)) return o->attn_prefill;
    if (missing) return missing;
    for (int i = 0; i < o->attn_prefill_layers.n; i++) {
        const char *text = strchr(o->attn_prefill_layers.items[i], '=');
        if (text && !prefills_on_gpu(text + 1)) return text + 1;
    }
    return o->prefill_check ? "--prefill-check" : NULL;
}

static sl_kv_formats formats_of(const cli_device_options *o) { // bf16 for flags with an error, which is reported later
    sl_kv_formats formats;
    return cli_kv_formats(o, &formats, NULL) ? (sl_kv_formats){0} : formats;
}

static const char *gpu_of(const cli_device_options *o) {
    return o->gpu ? o->gpu : "cuda";
}

const char *cli_cache_device(const cli_device_options *o) {
    sl_kv_formats formats = formats_of(o);
    return !strcmp(o->name, "auto") && formats.k != formats.v ? "cpu" : o->name;
}

static missing missing_method(const sl_attn_spec *spec, sl_format format, int is_bf16, int has_drafts) {
    if (!runs_on_gpu(spec, is_bf16)) {
        int needs_bf16 = runs_on_gpu(spec, 1);
        return (missing){name_of(spec), needs_bf16 ? " with a KV cache of " : "", needs_bf16 ? sl_formats[format].name : ""};
    }
    return has_drafts && sl_draft_needs_cpu(spec) ? (missing){name_of(spec), " with --draft", ""} : (missing){0};
}

// The first method of decode steps that a GPU does not offer.
static missing missing_decode(const cli_run_options *o, const sl_attn_spec *specs, int n, sl_format format, int is_bf16) {
    int has_drafts = cli_draft(&o->drafts) || o->drafts.drafts.n;
    missing found = {0};
    for (int i = 0; !found.name && i < n; i++) found = missing_method(&specs[i], format, is_bf16, has_drafts);
    for (int i = 0; !found.name && i < o->attention.attn_layers.n; i++) {
        const char *text = strchr(o->attention.attn_layers.items[i], '=');
        sl_attn_spec spec;
        if (text && !sl_attn_parse(text + 1, &spec, NULL)) found = missing_method(&spec, format, is_bf16, has_drafts);
    }
    return found;
}

// The first method of --draft that a GPU does not offer; none also if the flag has an error. A draft model has a cache of bf16,
// and its methods may keep a state, because it has sessions of its own.
static missing missing_in_draft(const cli_draft_options *o, sl_format format, int is_bf16) {
    sl_draft_spec draft;
    sl_attn_spec spec;
    missing found = {0};
    if (!cli_draft(o) || sl_draft_parse(cli_draft(o), &draft, NULL)) return found;
    for (int i = 0; !found.name && i < draft.n_methods; i++)
        if (!sl_attn_parse(draft.attn[i], &spec, NULL))
            found = missing_method(&spec, format, is_bf16 || draft.of_model, !draft.of_model);
    return found;
}

static missing missing_in_run(const cli_run_options *o, const sl_attn_spec *specs, int n) {
    sl_kv_formats formats = formats_of(&o->device);
    int is_bf16 = formats.k == SL_BF16 && formats.v == SL_BF16;
    missing found = {0};
    if (formats.k != formats.v)
        found.name = "a KV cache whose K and V have different types";
    else if (o->stats.path)
        found.name = "--stats (counts of single heads)";
    if (!found.name) found = missing_decode(o, specs, n, formats.k, is_bf16);
    if (!found.name) found = missing_in_draft(&o->drafts, formats.k, is_bf16);
    if (!found.name) found.name = missing_prefill(&o->attention);
    if (!found.with) found.with = found.format = "";
    return found;
}

const char *cli_pick_device(const cli_run_options *o, const sl_attn_spec *specs, int n) {
    if (!strcmp(o->device.name, "cuda")) return gpu_of(&o->device);
    if (strcmp(o->device.name, "auto")) return o->device.name;
    if (!sl_device_is_gpu("auto")) return "cpu";
    missing found = missing_in_run(o, specs, n);
    if (!found.name) return gpu_of(&o->device);
    fprintf(stderr, "device: cpu, because a GPU does not offer %s%s%s\n", found.name, found.with, found.format);
    return "cpu";
}
