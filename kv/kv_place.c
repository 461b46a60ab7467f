// kv/kv_place.c - see kv_place.h.
#include "kv/kv_place.h"
#include "kv/kv.h"

// The layout of n_sequences sequences of n_pages pages, without hot rows.
static sl_kv_layout lay_out(const sl_kv_demand *d, sl_kv_place place, long long n_pages, long long n_sequences) {
    size_t all = (size_t)(d->n_pages ? d->n_pages : n_pages * n_sequences), page = d->row * SL_PAGE;
    int offloaded = place == SL_KV_OFFLOADED;
    long long frames = offloaded ? n_sequences + d->spare_frames : (long long)all;
    return (sl_kv_layout){.place = place,
                          .fixed = d->fixed,
                          .proposing = all * d->proposing,
                          .newest = (size_t)frames * page,
                          .streamed = offloaded ? (size_t)n_pages * SL_PAGE * d->streamed : 0,
                          .host = offloaded ? all * page : 0,
                          .n_frames = (int)frames};
}

// Bytes of the GPU that the cache may use.
static size_t cache_room(const sl_kv_demand *d, const sl_kv_room *room) {
    size_t left = room->gpu > d->fixed ? room->gpu - d->fixed : 0;
    return room->gpu_most && room->gpu_most < left ? room->gpu_most : left;
}

static int fits(const sl_kv_demand *d, const sl_kv_room *room, const sl_kv_layout *l) {
    return room->gpu >= d->fixed && l->proposing + l->newest + l->streamed <= cache_room(d, room) && l->host <= room->host;
}

// The largest number of pages (or of sequences) in [0, most] that fits, with the other number given.
static long long largest(const sl_kv_demand *d, const sl_kv_room *room, sl_kv_place place, long long pages, long long sequences,
                         long long most) {
    long long low = 0;
    while (low < most) {
        long long middle = (low + most + 1) / 2;
        sl_kv_layout l = lay_out(d, place, pages ? pages : middle, pages ? middle : sequences);
        if (fits(d, room, &l))
            low = middle;
        else
            most = middle - 1;
    }
    return low;
}

long long sl_kv_largest_ctx(const sl_kv_demand *d, const sl_kv_room *room, sl_kv_place place) {
    return largest(d, room, place, 0, d->n_sequences, (1 << 28) / SL_PAGE) * SL_PAGE;
}

static int refuse(const sl_kv_demand *d, const sl_kv_room *room, const sl_kv_layout *l, sl_error *err) {
    const double gib = 1 << 30;
    const long long pages = sl_kv_pages_of(d->n_ctx);
    long long context[2], sequences[2];
    for (int i = 0; i < 2; i++) {
        sl_kv_place place = i ? SL_KV_OFFLOADED : SL_KV_GPU;
        context[i] = sl_kv_largest_ctx(d, room, place);
        sequences[i] = largest(d, room, place, pages, 0, 1 << 20);
    }
    double cache = (double)(l->proposing + l->newest + l->streamed), on_gpu = (double)cache_room(d, room);
    return sl_fail(
        err, SL_ERR_MEMORY,
        "K and V %s: {n_ctx} %d with %d sequence(s) does not fit: %.2f GiB of the cache on the GPU, where weights "
        "and scratch memory (%.2f GiB) leave %.2f; %.2f GiB in host memory, where %.2f are free. With K and V on the "
        "GPU, {n_ctx} %lld fits, or %lld sequence(s) of %d; in host memory, {n_ctx} %lld, or %lld sequence(s)",
        l->place == SL_KV_OFFLOADED ? "in host memory" : "on the GPU", d->n_ctx, d->n_sequences, cache / gib,
        (double)d->fixed / gib, on_gpu / gib, (double)l->host / gib, (double)room->host / gib, context[0], sequences[0],
        d->n_ctx, context[1], sequences[1]);
}

// Gives the rest of the GPU's room to hot rows, up to their share. A tag and its share of a set's order
// take 8.5 bytes for each layer and KV head: at most a 30th of a row, because head_dim is 64 or more.
static void add_hot(const sl_kv_demand *d, const sl_kv_room *room, sl_kv_layout *l) {
    long long rows = (d->n_pages ? d->n_pages : (long long)sl_kv_pages_of(d->n_ctx) * d->n_sequences) * SL_PAGE;
    long long wanted = (long long)(d->hot_share * (double)rows),
              most = (long long)((cache_room(d, room) - l->proposing - l->newest - l->streamed) / (d->row + d->row / 30));
    l->hot_rows = wanted < most ? wanted : most;
    l->hot = (size_t)l->hot_rows * (d->row + d->row / 30);
}

int sl_kv_place_rows(const sl_kv_demand *d, const sl_kv_room *room, sl_kv_place place, sl_kv_layout *out, sl_error *err) {
    SL_CHECK(d->row > 0 && d->n_ctx > 0 && d->n_sequences > 0 && d->spare_frames >= 0 && d->hot_share >= 0 &&
             d->hot_share <= 1);
    *out = lay_out(d, place == SL_KV_OFFLOADED ? SL_KV_OFFLOADED : SL_KV_GPU, sl_kv_pages_of(d->n_ctx), d->n_sequences);
    if (fits(d, room, out)) {
        if (out->place == SL_KV_OFFLOADED) add_hot(d, room, out);
        return 0;
    }
    return place == SL_KV_AUTO ? sl_kv_place_rows(d, room, SL_KV_OFFLOADED, out, err) : refuse(d, room, out, err);
}
