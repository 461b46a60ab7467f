// base/whole_file.c - see whole_file.h.
#include "base/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

FILE *sl_whole_file_open(sl_whole_file *w, const char *path, mode_t mode) {
    *w = (sl_whole_file){.path = path};
    if (asprintf(&w->tmp, "%s.tmp.%ld", path, (long)getpid()) < 0) w->tmp = NULL;
    int fd = w->tmp ? open(w->tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, mode) : -1;
    if (fd >= 0) w->file = fdopen(fd, "w");
    w->why = w->tmp ? errno : ENOMEM;
    if (fd >= 0 && !w->file) close(fd), unlink(w->tmp);
    return w->file;
}

int sl_whole_file_close(sl_whole_file *w, int ok, sl_error *err) {
    int why = w->file ? errno : w->why;
    ok = ok && w->file;
    if (ok && (fflush(w->file) || ferror(w->file) || fsync(fileno(w->file)))) ok = 0, why = errno;
    if (w->file && fclose(w->file) && ok) ok = 0, why = errno;
    if (ok && rename(w->tmp, w->path)) ok = 0, why = errno;
    if (!ok && w->file) unlink(w->tmp);
    free(w->tmp);
    return ok ? 0 : sl_fail(err, SL_ERR_IO, "cannot write %s: %s", w->path, strerror(why));
}
