// base/whole_file.h - writes a file under another name first, so that the file is whole, or unchanged after an error.
//
//     sl_whole_file w;
//     FILE *f = sl_whole_file_open(&w, path, 0666);
//     int ok = f && fputs("text\n", f) != EOF;
//     return sl_whole_file_close(&w, ok, err);
#ifndef SLEIGH_WHOLE_FILE_H
#define SLEIGH_WHOLE_FILE_H

#include "base/error.h"

#include <stdio.h>
#include <sys/types.h>

typedef struct sl_whole_file {
    FILE *file;
    const char *path;
    char *tmp; // path of the new file: PATH.tmp.PID
    int why;   // errno of a failed open
} sl_whole_file;

// Returns the file to write to. NULL: it cannot be made; sl_whole_file_close reports the reason. path must exist until the
// close.
FILE *sl_whole_file_open(sl_whole_file *w, const char *path, mode_t mode);
// ok: everything was written. Then the new file replaces the file at path, after it has reached the disk. Otherwise the new
// file is deleted. SL_ERR_IO: "cannot write PATH: reason".
int sl_whole_file_close(sl_whole_file *w, int ok, sl_error *err);

#endif
