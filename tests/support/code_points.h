// tests/support/code_points.h - UTF-8 of code points, and the hash FNV-1a (32 bits) that scripts of goldens also compute.
#ifndef SLEIGH_TESTS_CODE_POINTS_H
#define SLEIGH_TESTS_CODE_POINTS_H

#include <stddef.h>
#include <stdint.h>

static const uint32_t FNV_BASIS = 0x811c9dc5;

static inline uint32_t fnv_byte(uint32_t hash, int byte) {
    return (hash ^ (uint32_t)byte) * 0x01000193;
}

static inline int is_surrogate(uint32_t c) {
    return c >= 0xd800 && c < 0xe000;
}

static inline size_t utf8_put(uint32_t c, char *to) { // returns the bytes
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; c >>= 6) to[i] = (char)(0x80 | (c & 0x3f));
    to[0] = (char)(n == 1 ? c : (0xf00u >> n) | c);
    return n;
}

#endif
