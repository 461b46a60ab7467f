// cli/chat/terminal.c - see terminal.h.
#include "cli/chat/terminal.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <termios.h>
#include <unistd.h>

// Mutable static state: a signal handler has no context.
static struct {
    int in, out;
    int input;               // `in`, opened again for reads that do not block, or `in` itself
    const char *begin, *end; // sequences that turn bracketed paste on and off
    struct termios modes;    // before the chat
    int wake[2];             // a pipe: signal handlers write, cli_terminal_wait reads
} terminal;
static volatile sig_atomic_t is_open, resized, continued;

static void say(const char *text) { // write() is safe in a signal handler; a lost sequence has no remedy
    if (write(terminal.out, text, strlen(text)) < 0) return;
}

// Safe in a signal handler. In the background the terminal belongs to another program.
static void restore(void) {
    if (!is_open || tcgetpgrp(terminal.in) != getpgrp()) return;
    say(terminal.end);
    tcsetattr(terminal.in, TCSANOW, &terminal.modes);
}

static void wake(void) {
    if (write(terminal.wake[1], "", 1) < 0) return; // a full pipe wakes the reader too
}

// ---- signals ----

static void on_end(int sig) {
    restore();
    signal(sig, SIG_DFL);
    raise(sig); // pending until the handler returns
}

static void on_stop(int sig) {
    int error = errno;
    struct termios now;
    struct sigaction ours, by_default = {.sa_handler = SIG_DFL};
    sigset_t stop;
    sigemptyset(&by_default.sa_mask);
    sigemptyset(&stop);
    sigaddset(&stop, sig);
    int has_modes = !tcgetattr(terminal.in, &now);
    restore();
    sigaction(sig, &by_default, &ours);
    raise(sig);
    pthread_sigmask(SIG_UNBLOCK, &stop, NULL); // the process stops here
    pthread_sigmask(SIG_BLOCK, &stop, NULL);
    sigaction(sig, &ours, NULL);
    if (has_modes) tcsetattr(terminal.in, TCSANOW, &now);
    say(terminal.begin);
    continued = 1;
    wake();
    errno = error;
}

static void on_resize(int sig) {
    int error = errno;
    (void)sig;
    resized = 1;
    wake();
    errno = error;
}

// The signals with a handler during a chat, and their actions before.
static struct handled {
    int sig;
    void (*fn)(int);
    struct sigaction before;
} handled[] = {{.sig = SIGTERM, .fn = on_end}, {.sig = SIGHUP, .fn = on_end},   {.sig = SIGQUIT, .fn = on_end},
               {.sig = SIGABRT, .fn = on_end}, {.sig = SIGTSTP, .fn = on_stop}, {.sig = SIGWINCH, .fn = on_resize}};
static struct handled *const last_handled = handled + sizeof handled / sizeof *handled;

static void handle(struct handled *h) {
    struct sigaction action = {.sa_handler = h->fn, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(h->sig, NULL, &h->before);
    if (h->before.sa_handler != SIG_IGN)
        sigaction(h->sig, &action, NULL); // nohup and shells without jobs ignore them on purpose
}

// ---- open, wait, read, close ----

// Ctrl+C discards unread input. If this happens between poll and read, a blocking read returns only at the next key, and the
// chat does not see the interrupt before. So reads must not block. The terminal is opened again for them, because O_NONBLOCK on
// `in` would also hold for the other programs that share it. This can fail, for example for a terminal of another user.
static int open_again(int in) {
    char path[32];
    snprintf(path, sizeof path, "/proc/self/fd/%d", in);
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0) cli_say("note: cannot open the terminal again: %s; Ctrl+C may be seen only at the next key", strerror(errno));
    return fd < 0 ? in : fd;
}

int cli_terminal_open(int in, int out, int with_paste, sl_error *err) {
    terminal.in = in, terminal.out = out;
    terminal.begin = with_paste ? "\033[?2004h" : "";
    terminal.end = with_paste ? "\033[0m\033[?2004l" : "";
    resized = continued = 0;
    if (tcgetattr(in, &terminal.modes))
        return sl_fail(err, SL_ERR_IO, "cannot read the modes of the terminal: %s", strerror(errno));
    if (pipe2(terminal.wake, O_CLOEXEC | O_NONBLOCK)) return sl_fail(err, SL_ERR_IO, "cannot make a pipe: %s", strerror(errno));
    terminal.input = open_again(in);
    is_open = 1;
    cli_before_end(restore);
    for (struct handled *h = handled; h < last_handled; h++) handle(h);
    cli_wake_at_interrupt(terminal.wake[1]);
    say(terminal.begin);
    return 0;
}

void cli_terminal_close(void) {
    if (!is_open) return;
    restore();
    is_open = 0;
    cli_before_end(NULL);
    cli_wake_at_interrupt(-1);
    for (const struct handled *h = handled; h < last_handled; h++) sigaction(h->sig, &h->before, NULL);
    close(terminal.wake[0]), close(terminal.wake[1]);
    if (terminal.input != terminal.in) close(terminal.input);
}

cli_wake cli_terminal_wait(void) {
    struct pollfd fds[2] = {{.fd = terminal.input, .events = POLLIN}, {.fd = terminal.wake[0], .events = POLLIN}};
    for (;;) {
        char bytes[64];
        while (read(terminal.wake[0], bytes, sizeof bytes) > 0) continue; // before the flags: a later signal writes again
        if (cli_interrupt_came()) return CLI_WAKE_INTERRUPT;
        if (continued) {
            continued = 0;
            return CLI_WAKE_CONTINUED;
        }
        if (resized) {
            resized = 0;
            return CLI_WAKE_RESIZED;
        }
        if (poll(fds, 2, -1) > 0 && fds[0].revents) return CLI_WAKE_INPUT; // EINTR: the pipe tells which signal
    }
}

ssize_t cli_terminal_read(void *buffer, size_t n) {
    return read(terminal.input, buffer, n);
}
