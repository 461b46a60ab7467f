// base/nearest.c - see nearest.h.
#include "base/nearest.h"

#include <stddef.h>
#include <string.h>

// Optimal string alignment distance: a swap of two neighbours counts as one edit.
static int distance(const char *a, const char *b) {
    enum { MAX = 40 };
    int d[MAX + 1][MAX + 1], n = (int)strlen(a), m = (int)strlen(b);
    if (n > MAX || m > MAX) return 1000;
    for (int i = 0; i <= n; i++) {
        for (int j = 0; j <= m; j++) {
            if (!i || !j) {
                d[i][j] = i + j;
                continue;
            }
            int best = d[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
            if (d[i - 1][j] + 1 < best) best = d[i - 1][j] + 1;
            if (d[i][j - 1] + 1 < best) best = d[i][j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && d[i - 2][j - 2] + 1 < best)
                best = d[i - 2][j - 2] + 1;
            d[i][j] = best;
        }
    }
    return d[n][m];
}

const char *sl_nearest(const char *word, const char *const *names, int n) {
    const char *best = NULL;
    size_t letters = strlen(word + strspn(word, "-/"));
    int most = letters < 3 ? 0 : letters < 5 ? 1 : 2, least = most + 1;
    for (int i = 0; i < n; i++) {
        int d = distance(word, names[i]);
        if (d < least) best = names[i], least = d;
    }
    return best;
}
