// attention/auto.h - --attn=auto: dense attention below a measured crossover, above it the fastest method that is allowed.
//
// What is fast is measured, not guessed: a table holds the microseconds of one layer's decode attention for dense and for some
// candidates, over numbers of sequences and rows of their contexts, on one device and for one geometry (`sleigh bench attn
// --calibrate` makes it). `auto` is no method: it has no functions, an engine refuses it, and it is not in sl_attn_methods.
// sl_attn_parse knows it, so that specifications and plans can hold it until sl_auto_choose_plan puts a method in its place:
//
//   auto                       candidates that state no error: those that were calibrated, by default santa-pps:S=128 and
//                              santa-is:S=256
//   auto:epsilon=E[:delta=D]   santa-pps:epsilon=E:delta=D, if it was timed at an epsilon and a delta that are not larger: its
//                              rows, and so its time, rise as they fall
//
// The choice depends on the table, on the sequences that the engine decodes together at most and on the length of the caller's
// context: on no batch slot and on no other sequence.
#ifndef SLEIGH_ATTENTION_AUTO_H
#define SLEIGH_ATTENTION_AUTO_H

#include "attention/attention.h"

extern const sl_attn_method sl_method_auto;

enum { SL_AUTO_SPECS = 16, SL_AUTO_POINTS = 512 };

typedef struct sl_auto_point {
    int n_seqs, n_kv;         // sequences of equally many rows
    double us[SL_AUTO_SPECS]; // [n_specs] microseconds of one layer; NaN: not measured, of dense never
} sl_auto_point;

typedef struct sl_auto_table {
    char device[256], date[16]; // sl_device_name's; 2026-11-21
    int n_heads, n_kv_heads, head_dim;
    double query_deviation; // of the queries that were timed; keys' is 1
    int n_specs, n_points;
    sl_attn_spec specs[SL_AUTO_SPECS]; // the first is dense
    sl_auto_point *points;             // [n_points], by n_seqs, then by n_kv; no two alike
} sl_auto_table;

// $XDG_CACHE_HOME/sleigh/attn-DEVICE-hN-kvN-dN.json, or ~/.cache's. SL_ERR_ARG when neither variable is an absolute path.
int sl_auto_path(const char *device, const sl_attn_geom *geom, char *buf, size_t size, sl_error *err);
// Reads a table. A missing file is SL_ERR_IO, or 0 with n_specs = 0 if `optional`; anything else than a table is
// SL_ERR_FORMAT. Errors name the file and the field. *out is the caller's to free, after an error too.
int sl_auto_read(const char *path, int optional, sl_auto_table *out, sl_error *err);
// Writes it beside its target and renames it when it is complete: a reader finds the old table or the new one. Makes the
// folders that are missing. SL_ERR_IO; the old table stays then.
int sl_auto_write(const sl_auto_table *table, const char *path, sl_error *err);
void sl_auto_free(sl_auto_table *table);
// SL_ERR_UNSUPPORTED when the table is of another device or geometry, with both. path: for the message.
int sl_auto_check(const sl_auto_table *table, const char *path, const char *device, const sl_attn_geom *geom, sl_error *err);

typedef struct sl_auto_choice {
    sl_attn_spec spec;   // dense, or a method that decodes
    int crossover;       // rows from which on another than dense is taken; 0: from none
    int n_seqs;          // of the points that were looked at: the table's most that are not more than asked, else its least
    int n_candidates;    // beside dense that the request allows
    double us, dense_us; // at the point that decided; NaN below the first
} sl_auto_choice;

// What `request` (auto with its parameters) comes to for contexts of n_kv rows in an engine of n_seqs sequences. The crossover
// is the least measured n_kv from which on, up to the table's end, an allowed candidate takes at most 95% of dense attention's
// time; from it on the fastest at the largest measured n_kv that is not more than asked. table NULL: dense.
void sl_auto_choose(const sl_auto_table *table, const sl_attn_spec *request, int n_seqs, int n_kv, sl_auto_choice *out);
// The choice as one line, without the length that was asked for: equal for all lengths of equal choice.
void sl_auto_choice_format(const sl_auto_table *table, const sl_attn_spec *request, const sl_auto_choice *choice, char *buf,
                           size_t size);

int sl_auto_in_plan(const sl_attn_plan *plan); // 1: a layer's method is auto
// plan with sl_auto_choose's choices in place of auto, into *out, which is the caller's to free. SL_ERR_MEMORY.
int sl_auto_choose_plan(const sl_auto_table *table, const sl_attn_plan *plan, int n_seqs, int n_kv, sl_attn_plan *out,
                        sl_error *err);

#endif
