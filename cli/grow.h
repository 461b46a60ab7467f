// cli/grow.h - growth of arrays.
#ifndef SLEIGH_GROW_H
#define SLEIGH_GROW_H

#include <stdlib.h>

// Returns the array with room for element n: `array` itself, or a larger copy in its place. *cap: its size in elements.
// NULL: out of memory; `array` and *cap are unchanged.
static inline void *cli_grow(void *array, int n, int *cap, size_t size) {
    if (n < *cap) return array;
    int more = *cap ? 2 * *cap : 16;
    void *grown = realloc(array, (size_t)more * size);
    if (grown) *cap = more;
    return grown;
}

#endif
