// base/git_lfs.h - recognises a file that holds a pointer of Git LFS in place of its data: a clone without git-lfs has
// such files.
#ifndef SLEIGH_GIT_LFS_H
#define SLEIGH_GIT_LFS_H

#include "base/error.h"

#include <stddef.h>
#include <string.h>

// data [n]: the beginning of the file at path. SL_ERR_FORMAT: the file is a pointer.
static inline int sl_git_lfs_check(const char *path, const void *data, size_t n, sl_error *err) {
    static const char head[] = "version https://git-lfs.github.com/spec/v1";
    if (n < sizeof head - 1 || memcmp(data, head, sizeof head - 1)) return 0;
    return sl_fail(err, SL_ERR_FORMAT,
                   "%s: the file holds a Git LFS pointer in place of its data; `hf download ORG/NAME` or `git lfs pull` gets "
                   "the data",
                   path);
}

#endif
