// models/cut.h - the part of a weight that a rank of a tensor-parallel run holds: n_rows / n rows, or n_cols / n columns.
//
// A part of the rows of a mapped tensor stays in the mapped file. A part of the columns is a copy. A quantised weight is made
// as a whole, one tensor at a time, and then cut, so its numbers are those of one rank.
#ifndef SLEIGH_CUT_H
#define SLEIGH_CUT_H

#include "backend/weight.h"
#include "base/comm.h"

// Sets the dimensions of *w, which has no data, or the whole weight's data, to those of the part. SL_ERR_UNSUPPORTED: the cut
// does not fall between rows, groups of columns or blocks of scales. is_vector: a part of n_cols is meant by SL_CUT_ROWS
int sl_cut_shape(sl_weight *w, sl_cut cut, int is_vector, const sl_shard *shard, sl_error *err);
// A part of rows of a weight with data, in its memory.
sl_weight sl_cut_rows(const sl_weight *whole, int is_vector, const sl_shard *shard);
// Bytes that sl_cut_copy needs. has_zero, has_order: the weight may have zero points, or another order of its columns
size_t sl_cut_bytes(const sl_weight *part, int has_zero, int has_order);
// Copies the part of a whole weight to memory, and sets the pointers of *part, whose dimensions are set. SL_ERR_UNSUPPORTED:
// columns in another order (desc_act) cannot be cut.
int sl_cut_copy(const sl_weight *whole, sl_cut cut, const sl_shard *shard, sl_weight *part, char *memory, sl_error *err);

#endif
