// base/make_folders.h - makes the folders of a file's path.
#ifndef SLEIGH_MAKE_FOLDERS_H
#define SLEIGH_MAKE_FOLDERS_H

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

// path: absolute, shorter than 4096 bytes. A failure shows when the file is opened.
static inline void sl_make_folders(const char *path, mode_t mode) {
    char folder[4096];
    for (const char *p = strchr(path + 1, '/'); p; p = strchr(p + 1, '/')) {
        snprintf(folder, sizeof folder, "%.*s", (int)(p - path), path);
        mkdir(folder, mode);
    }
}

#endif
