// backend/dummy_weights.h - random weights with the shapes of a model. With such weights, a bench measures the speed of
// a model that has only a config.json.
//
// Element i of a matrix (row-major) is a bf16 number of the normal distribution with mean 0 and sl_dummy_deviation. It is
// computed with integers and a table, so every device makes the same bits, in any order and with any number of threads:
//   block = sl_philox(key, key >> 32, i / 8, i / 8 >> 32, 0, SL_STREAM_WEIGHTS), key = sl_dummy_key(tensor's name)
//   word  = the lower (even i) or upper 16 bits of block.v[i % 8 / 2]
//   element = quantiles[word], quantiles[w] = bf16(deviation Phi^-1((w + 1/2) / 65536)): 128 KB, made on the host
// The elements of a vector are 0 in a bias and 1 in the weights of a norm.
#ifndef SLEIGH_DUMMY_H
#define SLEIGH_DUMMY_H

#include "base/bf16.h"

#include <stddef.h>
#include <stdint.h>

enum { SL_DUMMY_QUANTILES = 65536 };

uint64_t sl_dummy_key(const char *name); // FNV-1a
// 0.02. For the projection of queries from n_columns features, the deviation that gives attention scores the deviation 4 (as in
// `bench attn`): a normalised input has elements of size 1, so a query element has the deviation sqrt(n_columns) times this
// one. With 0.02 the attention of a large model would be flat, and methods whose rows depend on the scores would take every
// row.
double sl_dummy_deviation(const char *name, int n_columns);
void sl_dummy_quantiles(double deviation, bf16 *quantiles); // [SL_DUMMY_QUANTILES]
bf16 sl_dummy_vector(const char *name);                     // every element of a vector
// Writes elements [from, from + n) of a matrix to out[n]. from is a multiple of 8. The work is divided over the pool of the
// calling thread (sl_parallel).
void sl_dummy_fill(uint64_t key, const bf16 *quantiles, size_t from, size_t n, bf16 *out);

#endif
