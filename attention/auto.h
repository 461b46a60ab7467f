// attention/auto.h - --attn=auto: dense attention below a measured crossover, above it the fastest candidate; and the
// crossover of --attn-prefill=auto.
//
// A table holds measured times: microseconds of the decode attention of one layer, for dense and for some other specifications,
// over numbers of sequences and context lengths. A table belongs to one device and one geometry. The command line measures it
// (cli/bench/calibrate.h).
//
// `auto` is not a method: it has no functions, an engine refuses it, and sl_attn_methods does not list it. sl_attn_parse
// accepts it, so a specification or a plan can hold it until sl_auto_choose_plan replaces it:
//
//   auto                       candidates: the specifications of the table that state no error,
//                              by default santa-pps:S=128 and santa-is:S=256
//   auto:epsilon=E[:delta=D]   candidates: the specifications of the table that state an error <= E with a
//                              probability <= D (sl_auto_counts). The choice has epsilon=E and delta=D. Smaller values
//                              draw more rows, so the time in the table is an upper bound.
//
// A table may also have times of prefill for one method with a mask: dense attention, the making of a mask, and attention with
// a random mask of a stated density. --attn-prefill=auto is dense below the crossover of these times, and this method above it.
//
// The choice for decoding depends on three things: the table, the largest number of sequences that the engine decodes together,
// and the length of the context of the caller. It depends on no batch index and on no other sequence.
#ifndef SLEIGH_ATTENTION_AUTO_H
#define SLEIGH_ATTENTION_AUTO_H

#include "attention/attention.h"

extern const sl_attn_method sl_method_auto;

enum { SL_AUTO_SPECS = 16, SL_AUTO_POINTS = 512, SL_AUTO_LENGTHS = 16 };

typedef struct sl_auto_point {
    int n_seqs, n_kv;         // n_seqs sequences of n_kv rows each
    double us[SL_AUTO_SPECS]; // [n_specs] microseconds of one layer; NaN: not measured (never for dense)
} sl_auto_point;

typedef struct sl_auto_length { // microseconds of the prefill of one sequence and layer
    int n_tokens;
    double dense_us, mask_us, attention_us; // dense attention; the making of a mask; attention with a random mask
} sl_auto_length;

typedef struct sl_auto_prefill {
    sl_attn_spec attn;                       // a method with a mask; method NULL: the table has no times of prefill
    double density;                          // of the random masks
    int n_lengths;                           // at least 1, unless attn.method is NULL
    sl_auto_length lengths[SL_AUTO_LENGTHS]; // n_tokens ascending
} sl_auto_prefill;

typedef struct sl_auto_table {
    char device[256], date[16]; // sl_device_name's; 2026-11-21
    int n_heads, n_kv_heads, head_dim;
    int automatic;          // 1: measured at the first use of auto; 0: by a command of the user
    double query_deviation; // standard deviation of the timed queries; that of the keys is 1
    int n_specs, n_points;
    sl_attn_spec specs[SL_AUTO_SPECS]; // the first is dense
    sl_auto_point *points;             // [n_points], sorted by n_seqs, then by n_kv; no two are equal
    sl_auto_prefill prefill;
} sl_auto_table;

// Writes the path $XDG_CACHE_HOME/sleigh/attn-DEVICE-hN-kvN-dN.json into buf; without XDG_CACHE_HOME, ~/.cache/sleigh/...
// SL_ERR_ARG when neither XDG_CACHE_HOME nor HOME is an absolute path.
int sl_auto_path(const char *device, const sl_attn_geom *geom, char *buf, size_t size, sl_error *err);
// Reads a table. A missing file is SL_ERR_IO; with `optional` it returns 0 and n_specs = 0. A file that is not a table is
// SL_ERR_FORMAT. Errors name the file and the field. The caller frees *out, after an error too.
int sl_auto_read(const char *path, int optional, sl_auto_table *out, sl_error *err);
// Writes a temporary file in the same folder and renames it, so a reader finds the old table or the new one. Makes missing
// folders. After SL_ERR_IO the old table is still there.
int sl_auto_write(const sl_auto_table *table, const char *path, sl_error *err);
void sl_auto_free(sl_auto_table *table);
// SL_ERR_UNSUPPORTED when the table belongs to another device or geometry; the message names both. path: for the message.
int sl_auto_check(const sl_auto_table *table, const char *path, const char *device, const sl_attn_geom *geom, sl_error *err);

// 1: auto:epsilon=E may choose this specification for the error that it states. Two conditions hold:
// - Its bound holds for every input, at least for many draws. vAttention's bound of an output does not hold on heavy tails
//   of the values (sleigh-test vattention_bounds).
// - It states an error of every step: of each head, or of the layer. A layer certificate counts with both values of on-miss.
//   With on-miss=report, a step can have a stated error above E; the step reports this error and that it is not certified.
int sl_auto_counts(const sl_attn_spec *spec);

typedef struct sl_auto_choice {
    sl_attn_spec spec; // dense, or a candidate
    int crossover;     // fewest rows at which a candidate is chosen; 0: dense is chosen for every length
    int n_seqs; // of the points that decide: the largest n_seqs of the table that is not above the engine's; otherwise the
                // smallest
    int n_candidates;    // candidates without dense
    double us, dense_us; // times at the point that decides; NaN for contexts shorter than every point
} sl_auto_choice;

// Chooses for `request` (auto with parameters), for contexts of n_kv rows in an engine of n_seqs sequences. The crossover is
// the smallest measured n_kv where a candidate takes at most 95% of the time of dense attention, at this and at every larger
// measured n_kv. From the crossover on, the choice is the fastest candidate at the largest measured n_kv <= n_kv. Without a
// table (NULL) the choice is dense.
void sl_auto_choose(const sl_auto_table *table, const sl_attn_spec *request, int n_seqs, int n_kv, sl_auto_choice *out);
// Writes the choice as one line. The line does not contain n_kv, so it is equal for all lengths with the same choice.
void sl_auto_choice_format(const sl_auto_table *table, const sl_attn_spec *request, const sl_auto_choice *choice, char *buf,
                           size_t size);

// The fewest tokens for which --attn-prefill=auto takes the method of the table: the smallest measured length at which, and at
// every larger measured length, a mask and the attention with it take at most 95% of the time of dense attention. INT_MAX:
// there is no such length, or the table has no times of prefill.
int sl_auto_prefill_crossover(const sl_auto_prefill *prefill);
// Writes the choice as one line. The table has times of prefill.
void sl_auto_prefill_format(const sl_auto_table *table, char *buf, size_t size);

int sl_auto_in_plan(const sl_attn_plan *plan); // 1: the method of some layer is auto
// Copies plan into *out and replaces auto by the choices of sl_auto_choose. The caller frees *out. SL_ERR_MEMORY.
int sl_auto_choose_plan(const sl_auto_table *table, const sl_attn_plan *plan, int n_seqs, int n_kv, sl_attn_plan *out,
                        sl_error *err);

#endif
