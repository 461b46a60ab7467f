// cli/process.c - see process.h.
#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// ---- start ----

// Opens 0 for writing and 1 for reading on purpose: use of a closed descriptor must fail, not look like empty input or good
// output.
static void open_standard(void) {
    static const int flags[] = {O_WRONLY, O_RDONLY, O_WRONLY};
    for (int fd = 0; fd < 3; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF && open("/dev/null", flags[fd]) != fd)
            _exit(1); // there is no descriptor for a message
}

enum { LEAST_STACK = 1 << 20 }; // bytes; the largest frames take a quarter

static int check_stack(sl_error *err) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) || limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur >= LEAST_STACK) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "the stack limit is %llu KiB; expected at least %d; raise it with: ulimit -s %d",
                   (unsigned long long)limit.rlim_cur >> 10, LEAST_STACK >> 10, LEAST_STACK >> 10);
}

int cli_process_begin(sl_error *err) {
    open_standard();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
    return check_stack(err);
}

// ---- standard error ----

static int error_fd = STDERR_FILENO; // static: a signal handler writes to it

int cli_silence(sl_error *err) {
    fflush(stderr);
    int fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3), nowhere = open("/dev/null", O_WRONLY | O_CLOEXEC);
    int failed = fd < 0 || nowhere < 0 || dup2(nowhere, STDERR_FILENO) < 0, number = errno;
    if (nowhere >= 0) close(nowhere);
    if (!failed) error_fd = fd;
    return failed ? sl_fail(err, SL_ERR_IO, "--quiet: cannot replace standard error: %s", strerror(number)) : 0;
}

void cli_unsilence(void) {
    fflush(stderr);
    if (error_fd != STDERR_FILENO) dup2(error_fd, STDERR_FILENO);
}

int cli_error_fd(void) {
    return error_fd;
}

static char rank_text[192]; // static: a signal handler writes it

void cli_set_rank(const char *name) {
    snprintf(rank_text, sizeof rank_text, "%s: ", name);
}

const char *cli_rank_text(void) {
    return rank_text;
}

// ---- interrupts ----

// Mutable static state: a signal handler has no context.
static volatile sig_atomic_t interrupted;
static volatile sig_atomic_t wake_fd = -1;

static void on_interrupt(int sig) {
    (void)sig;
    int before = errno;
    interrupted = 1;
    if (wake_fd >= 0 && write(wake_fd, "", 1) < 0) errno = before; // a full pipe wakes the reader too
}

void cli_catch_interrupt(int once) {
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = once ? (int)SA_RESETHAND : 0};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
}

static volatile sig_atomic_t end_fd = -1;

static void on_end(int sig) {
    const char number = (char)sig;
    int before = errno;
    if (write(end_fd, &number, 1) < 0) errno = before;
}

void cli_catch_ends(int fd) {
    struct sigaction action = {.sa_handler = on_end, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    end_fd = fd;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static int is_shared, shared; // static: as `interrupted`

int cli_interrupt_came(void) {
    return interrupted;
}

void cli_share_interrupts(void) {
    is_shared = 1;
}

void cli_set_interrupted(int is) {
    shared = is;
}

int cli_interrupted(void) {
    return is_shared ? shared : interrupted;
}

void cli_clear_interrupt(void) {
    interrupted = 0, shared = 0;
}

void cli_wake_at_interrupt(int fd) {
    wake_fd = fd;
}

// ---- the end ----

static _Noreturn void end_by_signal(int sig) {
    signal(sig, SIG_DFL);
    raise(sig);
    _exit(128 + sig); // the signal is blocked
}

void cli_end_interrupted(void) {
    end_by_signal(SIGINT);
}

static int output_closed; // static: any writer of standard output may notice it

void cli_note_closed_output(void) {
    output_closed = 1;
}

int cli_output_closed(void) {
    return output_closed;
}

void cli_end_closed_output(void) {
    end_by_signal(SIGPIPE);
}

static void (*before_end)(void);

void cli_before_end(void (*fn)(void)) {
    before_end = fn;
}

void cli_end_now(int code) {
    if (before_end) before_end();
    _exit(code);
}

// ---- memory ----

double cli_peak_mib(void) {
    struct rusage u;
    return getrusage(RUSAGE_SELF, &u) ? 0 : u.ru_maxrss / 1024.0;
}
