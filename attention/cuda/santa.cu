// attention/cuda/santa.cu - the SANTA family on CUDA: exact scores of all keys, S drawn rows of V, in one kernel.
//
// A block has a producer warp that streams K through a ring, consumer warps that turn scores into stored weights (stages.h:
// bf16 beside a power of two for each block of 32 rows, and integer masses), and drawer warps (samplers.cuh).
#include "attention/cuda/head_dim.cuh"
#include "attention/cuda/samplers.cuh"

namespace {

enum { THREADS = 32 * (1 + CONSUMERS) + DRAW_THREADS };

struct santa_params {
    score_params score;
    draw_params draw;
    sampler kind;
};

struct shared_head {
    score_head score;
    draw_space draw;
};
enum { HEAD_BYTES = (sizeof(shared_head) + 127) / 128 * 128 };

// out = sum_m v_(row m) / S over S rows drawn from softmax(q K^T / sqrt(DIM)) (flash: tiles weighted by their exact mass).
//
// grid: a block for each multiprocessor, whatever the lengths; all of them are there at once, which the drawers' wait needs.
// precondition: counters are 0, and are 0 again at the end. K below each sequence's newest row, lengths and page tables are
// read while the kernel in front may still run, everything else after it. bytes: K once, 2 + 1/4 a row and query head of stored
// weights (written, and partly read from the L2 cache), drawn rows of V. order of reduction: masses are integers; a head's
// draws, a warp's 32 of each 128 in order, then the warps in order.
template <int DIM, typename Form> __global__ void __maxnreg__(144) santa_ring_kernel(const santa_params p) {
    extern __shared__ __align__(128) char memory[];
    shared_head *head = (shared_head *)memory;
    ring r = {&head->score, memory + HEAD_BYTES, p.score.n_stages, layout<DIM, Form>::stage(p.score.group), 0, 0};
    int warp = threadIdx.x / 32, thread = threadIdx.x - 32 * CONSUMERS;
    producer to;
    sl_start_next();
    if (warp == CONSUMERS + DRAWERS) to = produce_begin(p.score, r);
    score_begin<Form>(&head->score, 32 * Form::SIZE);
    __syncthreads();
    if (warp < CONSUMERS)
        consume<DIM, Form>(p.score, r);
    else if (warp < CONSUMERS + DRAWERS)
        draw_all(p.score, p.draw, &head->draw, thread, [&](int slot, int h, int part) {
            return draw_head<DIM>(p.score, p.draw, p.kind, &head->draw, slot, h, part, thread);
        });
    else
        produce<DIM, Form>(p.score, to);
}

// ---- launch ----

template <int DIM> void launch(const sl_attn_cuda_decode_args *a, sampler kind) {
    santa_params p = {.score = score_params_of<DIM>(a), .draw = draw_params_of(a), .kind = kind};
    SL_CHECK(ceil_div(p.score.max_blocks, TILE_BLOCKS) <= TILES_MAX);
    with_form<false>(&p.score, p.draw.parts == 1, [&](auto form) {
        typedef layout<DIM, decltype(form)> at;
        p.score.n_stages = at::stages(p.score.group, HEAD_BYTES);
        size_t bytes = HEAD_BYTES + (size_t)p.score.n_stages * at::stage(p.score.group);
        sl_launch(santa_ring_kernel<DIM, decltype(form)>, dim3(sl_multiprocessors()), dim3(THREADS), bytes, a->stream, p);
    });
}

size_t workspace(const sl_attn_geom *geom, const sl_attn_spec *spec, int n_seqs, int, int n_kv) {
    return score_workspace(geom, n_seqs, n_kv) + draw_workspace(geom, n_seqs, (int)sl_attn_get(spec, "S"));
}

// All keys; what is drawn of V the kernel counts.
void account(const sl_attn_geom *geom, const sl_attn_spec *, int n_kv, sl_attn_stats *stats) {
    stats->k_rows += (uint64_t)n_kv * geom->n_kv_heads;
    stats->bytes += (uint64_t)n_kv * geom->n_kv_heads * geom->head_dim * sizeof(bf16);
    stats->features += geom->n_heads;
}

template <sampler KIND> void decode(const sl_attn_cuda_decode_args *args) {
    sl_with_head_dim(args->geom->head_dim, [&](auto dim) { launch<dim>(args, KIND); });
}

} // namespace

#define OPS(KIND)                                                                                                              \
    {                                                                                                                          \
        .workspace = workspace, .decode = decode<KIND>, .needs = NULL, .state = NULL, .max_rows = DRAW_ROWS_MAX,               \
        .account = account, .prefill = NULL                                                                                    \
    }
const sl_attn_cuda_ops sl_santa_cuda_ops = OPS(INDEPENDENT), sl_santa_strat_cuda_ops = OPS(STRATIFIED),
                       sl_santa_sys_cuda_ops = OPS(SYSTEMATIC), sl_santa_prop_cuda_ops = OPS(TILES_PROPORTIONAL),
                       sl_santa_flash_cuda_ops = OPS(TILES_UNIFORM);
