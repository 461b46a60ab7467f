// cli/watch.c - see watch.h. The files are mutable static state, because a signal handler has no context.
#include "cli/watch.h"
#include "cli/process.h"
#include "cli/output/progress_bar.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_tensor_file *files; // copies with duplicated paths and descriptors
static int n_files;
static atomic_flag is_reported = ATOMIC_FLAG_INIT; // several threads can read a cut file at the same time

static void say(const char *text) { // write() is safe in a signal handler; stdio is not
    if (write(cli_error_fd(), text, strlen(text)) < 0) cli_end_now(1);
}

static void on_bus_error(int sig, siginfo_t *info, void *context) {
    const char *at = info->si_addr;
    (void)context;
    for (int i = 0; i < n_files; i++) {
        if (at < files[i].map || at >= files[i].map + files[i].size) continue;
        while (atomic_flag_test_and_set(&is_reported)) pause(); // another thread prints the error and ends the process
        say(cli_progress_erase());
        say("sleigh: error: ");
        say(cli_rank_text());
        say(files[i].path);
        say(" changed while it was in use, or its disk failed: a mapped part of it cannot be read\n");
        cli_end_now(1);
    }
    signal(sig, SIG_DFL); // not a watched file: the access repeats and ends the process by default
}

// Handles a path that is mapped again: it must still name the same file.
static int add_again(sl_tensor_file *old, const sl_tensor_file *f, sl_error *err) {
    struct stat was, is;
    int rc = sl_tensor_file_check(old, err);
    if (!rc && (fstat(old->fd, &was) || fstat(f->fd, &is) || was.st_dev != is.st_dev || was.st_ino != is.st_ino))
        rc = sl_fail(err, SL_ERR_IO, "%s changed while it was in use: another file has this name now", f->path);
    old->map = f->map;
    return rc;
}

static int add(const sl_tensor_file *f, sl_error *err) {
    for (int i = 0; i < n_files; i++)
        if (!strcmp(files[i].path, f->path)) return add_again(&files[i], f, err);
    sl_tensor_file *more = realloc(files, (size_t)(n_files + 1) * sizeof *files);
    if (more) files = more;
    char *path = more ? strdup(f->path) : NULL;
    if (!path) return sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", f->path);
    int fd = fcntl(f->fd, F_DUPFD_CLOEXEC, 0);
    if (fd < 0) {
        free(path);
        return sl_fail(err, SL_ERR_IO, "%s: %s", f->path, strerror(errno));
    }
    files[n_files] = *f;
    files[n_files].path = path, files[n_files].fd = fd;
    n_files++;
    return 0;
}

int cli_watch(const sl_tensors *tensors, sl_error *err) {
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    int rc = 0;
    for (int i = 0; !rc && i < sl_tensors_n_files(tensors); i++)
        if (sl_tensors_file(tensors, i)->fd >= 0) rc = add(sl_tensors_file(tensors, i), err);
    sigemptyset(&action.sa_mask);
    if (n_files) sigaction(SIGBUS, &action, NULL);
    return rc;
}

int cli_watch_buckets(const sl_engine *engine, sl_error *err) {
    const sl_tensors *buckets = sl_engine_bucket_tensors(engine), *bits = sl_engine_bit_tensors(engine);
    int rc = buckets ? cli_watch(buckets, err) : 0;
    return !rc && bits ? cli_watch(bits, err) : rc;
}

int cli_watch_check(sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < n_files; i++) rc = sl_tensor_file_check(&files[i], err);
    return rc;
}
