// attention/attn_stats.h - what decode steps count: one table of counters. From it come the sums (sl_attn_stats), what kernels
// count in device memory (sl_attn_cuda_stats), how a head's report enters the sums, and the object "counters" of JSON output.
// A new counter is a row here, and the code that counts it.
#ifndef SLEIGH_ATTN_STATS_H
#define SLEIGH_ATTN_STATS_H

#include <stddef.h>
#include <stdint.h>

// Columns: the name; the kind; where a report on the host has it, and in which field; where a GPU counts it.
//   kind    SUM    a sum of whole numbers: uint64_t; unsigned long long on a GPU
//           MOST   the largest number, at least 0: double; the bits of a float on a GPU, which have the order of the numbers
//           SHARE  a sum of shares: double; in 1/1024 on a GPU
//   report  HEAD   the sl_attn_report of each query head
//           GROUP  the report of the first head of each KV head, for the KV head
//           OTHER  no field of its own: sl_reports_close counts it, or only kernels do
//   GPU     KERNEL kernels count it; HOST: the host does, from the lengths of sequences (sl_attn_cuda_ops.account)
// clang-format off
#define SL_ATTN_COUNTERS(X)                                                                                                  \
    X(steps,        SUM,   OTHER, none,       HOST)   /* query heads served: n_seqs * n_heads a call */                      \
    X(k_rows,       SUM,   GROUP, k_rows,     KERNEL) /* rows of K read */                                                   \
    X(v_rows,       SUM,   HEAD,  v_rows,     KERNEL) /* rows of V gathered; a dense pass reads each row once for each KV head */ \
    X(v_distinct,   SUM,   GROUP, v_distinct, KERNEL) /* distinct rows of V */                                               \
    X(samples,      SUM,   HEAD,  samples,    KERNEL) /* draws made, after the rounding of the method */                     \
    X(bytes,        SUM,   GROUP, bytes,      KERNEL) /* bytes of K, V and page extras read */                               \
    X(tries,        SUM,   HEAD,  tries,      KERNEL) /* tries of methods with a stated error */                             \
    X(fallbacks,    SUM,   HEAD,  fallback,   KERNEL) /* heads that attended to every row exactly */                         \
    X(exact_heads,  SUM,   HEAD,  exact,      HOST)   /* heads of sequences below sl_attn_decode_args.exact_below */         \
    X(stated,       SUM,   OTHER, none,       KERNEL) /* layers that stated an error epsilon' in a step */                   \
    X(certified,    SUM,   OTHER, none,       KERNEL) /* of these, epsilon' <= epsilon */                                    \
    X(unbounded,    SUM,   OTHER, none,       KERNEL) /* of these, epsilon' > SL_STATED_MOST */                              \
    X(stated_units, SUM,   OTHER, none,       KERNEL) /* sum of the bounded epsilon', in units of 1 / SL_STATED_UNIT */      \
    X(stated_most,  MOST,  OTHER, none,       KERNEL) /* the largest of them */                                              \
    X(heavy_tails,  SUM,   HEAD,  heavy_tail, KERNEL) /* heads whose base sample has a heavy tail (sl_attn_report.heavy_tail) */ \
    X(kurtosis,     MOST,  HEAD,  kurtosis,   KERNEL) /* of base samples; 0: none */                                         \
    X(features,     SHARE, HEAD,  features,   KERNEL) /* shares of the key features read */                                  \
    X(fetched,      SUM,   OTHER, none,       KERNEL) /* rows of K and V fetched from host memory */                         \
    X(hits,         SUM,   OTHER, none,       KERNEL) /* rows of K and V found in the cache of hot rows */                   \
    X(dense_k_rows, SUM,   OTHER, none,       HOST)   /* of dense attention, for each KV head */                             \
    X(dense_v_rows, SUM,   OTHER, none,       HOST)   /* of dense attention, for each query head */                          \
    X(dense_bytes,  SUM,   GROUP, dense_bytes, HOST)  /* of dense attention */
// clang-format on

// The types of the kinds.
typedef uint64_t sl_counter_SUM;
typedef double sl_counter_MOST, sl_counter_SHARE;

// Sums over calls.
typedef struct sl_attn_stats {
#define FIELD(NAME, KIND, REPORT, FIELD_OF_REPORT, GPU) sl_counter_##KIND NAME;
    SL_ATTN_COUNTERS(FIELD)
#undef FIELD
} sl_attn_stats;

// In device memory.
typedef struct sl_attn_cuda_stats {
#define FIELD_KERNEL(NAME) unsigned long long NAME;
#define FIELD_HOST(NAME)
#define FIELD(NAME, KIND, REPORT, FIELD_OF_REPORT, GPU) FIELD_##GPU(NAME)
    SL_ATTN_COUNTERS(FIELD)
#undef FIELD
#undef FIELD_HOST
#undef FIELD_KERNEL
} sl_attn_cuda_stats;

// A sum of whole units does not depend on the order of layers, steps and sequences. It holds 2^24 times the largest summand.
enum { SL_STATED_UNIT = 1 << 30, SL_STATED_MOST = 1 << 10 };

#ifdef __cplusplus
extern "C" {
#endif

void sl_attn_stats_add(sl_attn_stats *to, const sl_attn_stats *from);
void sl_attn_stats_add_stated(sl_attn_stats *to, double stated_error, int certified); // counts one layer
// Mean and largest of the bounded epsilon'; NaN: there are none.
double sl_attn_stats_stated_mean(const sl_attn_stats *s);
double sl_attn_stats_stated_most(const sl_attn_stats *s);
sl_attn_stats sl_attn_stats_of_kernels(const sl_attn_cuda_stats *counted);
// The name of counter i and its value; NULL after the last one.
const char *sl_attn_counter(const sl_attn_stats *s, int i, double *value);

// 0: a sampler on a GPU read the rows. It does not know which heads drew the same row, and leaves v_distinct at 0.
static inline int sl_attn_knows_distinct(uint64_t v_rows, uint64_t v_distinct) {
    return v_distinct > 0 || v_rows == 0;
}

#ifdef __cplusplus
}
#endif

#endif
