// tokenizer/siphash.h - SipHash-1-3 (Aumasson and Bernstein, 2012), a keyed hash for tables whose entries a file chooses.
// Without the key an attacker cannot choose entries that collide.
#ifndef SLEIGH_SIPHASH_H
#define SLEIGH_SIPHASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct sl_hash_key {
    uint64_t k[2];
} sl_hash_key;

static inline uint64_t sl_sip_rotate(uint64_t x, int by) {
    return x << by | x >> (64 - by);
}

static inline void sl_sip_round(uint64_t v[4]) {
    v[0] += v[1], v[2] += v[3];
    v[1] = sl_sip_rotate(v[1], 13) ^ v[0], v[3] = sl_sip_rotate(v[3], 16) ^ v[2];
    v[0] = sl_sip_rotate(v[0], 32);
    v[2] += v[1], v[0] += v[3];
    v[1] = sl_sip_rotate(v[1], 17) ^ v[2], v[3] = sl_sip_rotate(v[3], 21) ^ v[0];
    v[2] = sl_sip_rotate(v[2], 32);
}

static inline void sl_sip_word(uint64_t v[4], uint64_t word) {
    v[3] ^= word;
    sl_sip_round(v);
    v[0] ^= word;
}

// Words are read in the machine's byte order: the hash orders tables in memory, and no file stores it.
static inline uint64_t sl_siphash(const sl_hash_key *key, const void *data, size_t n) {
    const unsigned char *s = (const unsigned char *)data;
    uint64_t v[4] = {key->k[0] ^ 0x736f6d6570736575u, key->k[1] ^ 0x646f72616e646f6du, key->k[0] ^ 0x6c7967656e657261u,
                     key->k[1] ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)n << 56;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        sl_sip_word(v, word);
    }
    for (size_t i = 0; i < n; i++) last |= (uint64_t)s[i] << 8 * i;
    sl_sip_word(v, last);
    v[2] ^= 0xff;
    for (int i = 0; i < 3; i++) sl_sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

#endif
