// base/nearest.h - the known name that a mistyped word probably means.
#ifndef SLEIGH_NEAREST_H
#define SLEIGH_NEAREST_H

// The name in names[0..n) that is nearest to word; NULL: none is near. A name is near if at most 2 edits change the word into
// the name. Words with 3 or 4 letters (leading signs do not count) allow 1 edit, and shorter words none. An edit inserts,
// deletes or replaces a byte, or swaps two neighbours. Words and names of more than 40 bytes are never near.
const char *sl_nearest(const char *word, const char *const *names, int n);

#endif
