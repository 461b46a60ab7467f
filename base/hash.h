// base/hash.h - FNV-1a (Fowler, Noll, Vo). The hash identifies contents in results, and turns a name into a key of
// random numbers. An attacker can make collisions, so a table whose keys come from a file uses tokenizer/siphash.h.
#ifndef SLEIGH_HASH_H
#define SLEIGH_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define SL_FNV1A_START 0xcbf29ce484222325u // the hash of zero bytes
#define SL_FNV1A_32_START 2166136261u      // the same for sl_fnv1a_32

// Continues a hash with n bytes. hash: SL_FNV1A_START, or the result for the bytes before.
static inline uint64_t sl_fnv1a(uint64_t hash, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 0x100000001b3u;
    return hash;
}

// The same as sl_fnv1a with 32 bits.
static inline uint32_t sl_fnv1a_32(uint32_t hash, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 16777619u;
    return hash;
}

// Continues a checksum of a file with n bytes, 8 at a time: several times as fast as FNV-1a. Each step is a bijection, so a
// change within one group of 8 bytes always changes the result. The places where calls divide the data decide the groups.
static inline uint64_t sl_checksum(uint64_t sum, const void *data, size_t n) {
    const unsigned char *p = (const unsigned char *)data;
    for (size_t size; n; p += size, n -= size) {
        uint64_t group = 0;
        if ((size = 8) <= n)
            memcpy(&group, p, 8); // one load
        else
            memcpy(&group, p, size = n);
        sum = (sum ^ group) * 0x9e3779b97f4a7c15u;
        sum ^= sum >> 32;
    }
    return sum;
}

// The hash as text: "fnv1a:" and 16 hexadecimal digits.
enum { SL_HASH_TEXT = 24 }; // bytes, with the final NUL
static inline void sl_hash_text(uint64_t hash, char out[SL_HASH_TEXT]) {
    snprintf(out, SL_HASH_TEXT, "fnv1a:%016llx", (unsigned long long)hash);
}

#endif
