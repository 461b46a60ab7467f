// base/philox.h - Philox4x32-10 (Salmon et al., SC'11): the only source of random numbers in Sleigh.
//
// A random number is a pure function of (seed, sequence id, position, layer, head, index, stream). The place in a batch, the
// split of the work, the number of threads and earlier numbers do not change a random number. So every random result can be
// repeated with equal bits.
#ifndef SLEIGH_PHILOX_H
#define SLEIGH_PHILOX_H

#include "base/host_device.h"

#include <stdint.h>

// Streams: what a number is used for. The stream is the last word of the counter, so two uses never share numbers.
enum {
    SL_STREAM_ATTENTION = 0,
    SL_STREAM_TOKEN = 1,
    SL_STREAM_HASH = 2,
    SL_STREAM_FEATURES = 3,
    SL_STREAM_WEIGHTS = 4,
    SL_STREAM_PROMPT = 5,
    SL_STREAM_TASK = 6,
    SL_STREAM_TUNE = 7,
    SL_STREAM_BUCKETS = 8,
    SL_STREAM_MASK = 9
};

typedef struct {
    uint32_t v[4];
} sl_philox4;

// Four random words from a key of two words and a counter of four.
static inline SL_HOST_DEVICE sl_philox4 sl_philox(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2,
                                                  uint32_t c3) {
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
        c0 = n0, c1 = (uint32_t)p1, c2 = n2, c3 = (uint32_t)p0;
        key0 += 0x9E3779B9u, key1 += 0xBB67AE85u;
    }
    return (sl_philox4){{c0, c1, c2, c3}};
}

// The words of the key and the counter that are fixed for one head of one sequence in one step.
typedef struct {
    uint32_t seed, sequence; // key
    uint32_t position;       // of the query token
    uint32_t layer, head;    // query head
} sl_rng_id;

// Number `index` of this head in this stream, uniform over 64 bits: u / 2^64 lies in [0, 1).
static inline SL_HOST_DEVICE uint64_t sl_rng_u64(const sl_rng_id *id, uint32_t index, uint32_t stream) {
    sl_philox4 r = sl_philox(id->seed, id->sequence, id->position, id->layer << 16 | id->head, index, stream);
    return (uint64_t)r.v[0] << 32 | r.v[1];
}

#endif
