// backend/row.h - what kernels know of a pass: its rows. Kept apart from backend.h, so that a change of the operations does
// not compile all kernels of attention again.
#ifndef SLEIGH_ROW_H
#define SLEIGH_ROW_H

#include "base/bf16.h"

#include <stddef.h>
#include <stdint.h>

// Rounds up to 256 bytes: the alignment of sl_backend.alloc, and of the arrays within one such block.
static inline size_t sl_align(size_t size) {
    return (size + 255) / 256 * 256;
}

// One batch row of a step: a token of a sequence. On CUDA an array of rows lies in device memory, and kernels read 16 bytes at
// a time.
typedef struct sl_row {
    int32_t position;
    uint32_t sequence;    // keys the random numbers
    const int32_t *pages; // page table of the sequence; qkv writes K and V of row `position`
    char *state;          // on a device: the state of the sequence's methods, one part for each layer; NULL: none
    uint32_t seed;        // of attention's draws
    uint32_t reserved;    // makes the struct 32 bytes
} sl_row;

#endif
