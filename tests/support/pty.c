// tests/support/pty.c - see pty.h.
#include "tests/support/pty.h"
#include "tests/support/run_cli.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <utmp.h>

enum { DEADLINE_S = 120, MAX_ARGS = 48 }; // a sanitizer build on a loaded machine is slow

// Mutable static state, because a failed check jumps out of a case and would leak the terminal.
static struct {
    int master, events; // descriptors; events: the program's process ID, then each status that waitpid returns
    pid_t parent, program;
    struct termios before;
    char *text; // the output, ended by NUL
    size_t n, cap, at;
    int status, stopped, ended; // ended: the whole output was read
} t = {.master = -1, .events = -1};

static void drop(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

static void end_last(void) {
    if (t.parent > 0) {
        if (t.program > 0 && !t.ended) kill(t.program, SIGKILL);
        kill(t.parent, SIGKILL);
        waitpid(t.parent, NULL, 0);
    }
    t.parent = t.program = 0;
    drop(&t.master), drop(&t.events);
    t.n = t.at = 0;
    if (t.text) *t.text = 0;
    t.stopped = t.ended = 0;
    t.status = -1; // no end
}

// ---- the parent of the program ----

static void report(int fd, int event) {
    if (write(fd, &event, sizeof event) != sizeof event) _exit(126);
}

static void set_environment(const char *const *env) {
    umask(022); // modes of files do not depend on the user
    setenv("HOME", test_tmp(), 1);
    setenv("XDG_STATE_HOME", test_tmp(), 1);
    setenv("TERM", "xterm-256color", 1);
    setenv("NO_COLOR", "1", 1);
    setenv("LC_ALL", "C.UTF-8", 1);
    setenv("SLEIGH_DEVICE", "cpu", 0);
    setenv("SLEIGH_THREADS", "2", 0);
    for (; env && *env; env++) {
        if (strchr(*env, '='))
            putenv((char *)*env);
        else
            unsetenv(*env);
    }
}

static _Noreturn void run_job(const char *const *env, char *const *argv, int events) {
    signal(SIGTTOU, SIG_IGN); // the parent is in the background when it gives the terminal away
    pid_t pid = fork();
    if (pid < 0) _exit(126);
    if (pid == 0) {
        setpgid(0, 0);
        tcsetpgrp(STDIN_FILENO, getpid());
        static const int defaults[] = {SIGTTOU, SIGINT, SIGQUIT, SIGTSTP, SIGPIPE, SIGTERM, SIGHUP};
        for (size_t i = 0; i < sizeof defaults / sizeof *defaults; i++) signal(defaults[i], SIG_DFL);
        set_environment(env);
        execv(argv[0], argv);
        _exit(127);
    }
    setpgid(pid, pid);
    tcsetpgrp(STDIN_FILENO, pid);
    report(events, pid);
    int status;
    do {
        if (waitpid(pid, &status, WUNTRACED) != pid) _exit(126);
        report(events, status);
    } while (WIFSTOPPED(status));
    _exit(0); // the last process on the terminal: the test reads the rest of the output, and then EIO
}

void pty_start(pty_options o, const char *const *args) {
    struct winsize size = {.ws_row = o.rows ? o.rows : 24, .ws_col = o.columns ? o.columns : 80};
    char *argv[MAX_ARGS + 2] = {(char *)cli_binary()};
    int events[2], slave, n = 1;
    while (*args) {
        if (n > MAX_ARGS) FAIL("more than %d arguments", MAX_ARGS);
        argv[n++] = (char *)*args++;
    }
    end_last();
    test_tmp(); // makes the folder, which is the home of the program
    if (openpty(&t.master, &slave, NULL, NULL, &size)) TEST_SKIP("needs a pseudo-terminal: %s", strerror(errno));
    if (tcgetattr(slave, &t.before)) FAIL("tcgetattr: %s", strerror(errno));
    if (pipe2(events, O_CLOEXEC)) FAIL("pipe: %s", strerror(errno));
    fcntl(t.master, F_SETFD, FD_CLOEXEC);
    fcntl(t.master, F_SETFL, O_NONBLOCK);
    fflush(NULL);
    t.parent = fork();
    if (t.parent < 0) FAIL("fork: %s", strerror(errno));
    if (t.parent == 0) {
        close(t.master);
        if (login_tty(slave)) _exit(126);
        run_job(o.env, argv, events[1]);
    }
    close(slave), close(events[1]);
    t.events = events[0];
}

// ---- input and output ----

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static int read_event(void) { // 0: the parent has ended
    int event;
    if (read(t.events, &event, sizeof event) != sizeof event) return 0;
    if (!t.program)
        t.program = event;
    else
        t.status = event, t.stopped = WIFSTOPPED(event);
    return 1;
}

static void read_output(void) {
    for (;;) {
        if (t.cap - t.n < 4096) {
            t.cap = 2 * t.cap + 8192;
            t.text = realloc(t.text, t.cap);
            if (!t.text) FAIL("out of memory");
        }
        ssize_t n = read(t.master, t.text + t.n, t.cap - t.n - 1);
        int error = n < 0 ? errno : 0;
        for (ssize_t i = 0; i < n; i++) // a string for strstr
            if (!t.text[t.n + (size_t)i]) t.text[t.n + (size_t)i] = '?';
        if (n > 0) t.n += (size_t)n;
        t.text[t.n] = 0;
        if (n > 0 || error == EINTR) continue;
        if (error == EIO) {
            while (read_event()) continue;
            t.ended = 1;
        }
        return;
    }
}

// Waits for output or an event. writable: also returns when the terminal takes input. -1: nothing came before the deadline.
static int wait_until(short writable, double deadline) {
    struct pollfd fds[2] = {{t.master, POLLIN | writable, 0}, {t.events, POLLIN, 0}};
    double left = deadline - now();
    if (left <= 0) return -1;
    if (poll(fds, 2, (int)(left * 1e3) + 1) < 0 && errno != EINTR) FAIL("poll: %s", strerror(errno));
    if (fds[1].revents & POLLIN) read_event();
    read_output();
    return fds[0].revents;
}

static int wait_for(short writable, double deadline, const char *what) {
    int events = t.ended ? -1 : wait_until(writable, deadline);
    if (t.ended && events < 0) FAIL("the program ended (status %d) before %s; output: %s", t.status, what, pty_seen());
    if (events < 0) FAIL("waited %d s for %s; output: %s", DEADLINE_S, what, pty_seen());
    return events;
}

void pty_send(const char *data, size_t n) {
    double deadline = now() + DEADLINE_S;
    while (n) {
        if (!(wait_for(POLLOUT, deadline, "the terminal to take input") & POLLOUT)) continue;
        ssize_t sent = write(t.master, data, n);
        if (sent < 0 && errno != EAGAIN && errno != EINTR) FAIL("write: %s", strerror(errno));
        if (sent > 0) data += sent, n -= (size_t)sent;
    }
}

void pty_type(const char *text) {
    pty_send(text, strlen(text));
}

const char *pty_seen(void) {
    return t.text ? t.text : "";
}

const char *pty_since(void) {
    return pty_seen() + t.at;
}

void pty_expect(const char *text) {
    double deadline = now() + DEADLINE_S;
    for (;;) {
        const char *found = strstr(pty_since(), text);
        if (found) {
            t.at = (size_t)(found - t.text) + strlen(text);
            return;
        }
        wait_for(0, deadline, text);
    }
}

void pty_expect_bytes(size_t n) {
    double deadline = now() + DEADLINE_S;
    while (t.n - t.at < n) wait_for(0, deadline, "more output");
}

int pty_more(double seconds) {
    size_t before = t.n;
    double deadline = now() + seconds;
    while (t.n == before && !t.ended && wait_until(0, deadline) >= 0) continue;
    return t.n > before;
}

int pty_count(const char *text, int from) {
    int n = 0;
    for (const char *p = pty_seen() + from; (p = strstr(p, text)) != NULL; p += strlen(text)) n++;
    return n;
}

// ---- the program ----

void pty_resize(int rows, int columns) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (ioctl(t.master, TIOCSWINSZ, &size)) FAIL("TIOCSWINSZ: %s", strerror(errno));
}

void pty_signal(int sig) {
    double deadline = now() + DEADLINE_S;
    while (!t.program) wait_for(0, deadline, "its start");
    kill(t.program, sig);
}

void pty_expect_stop(void) {
    double deadline = now() + DEADLINE_S;
    while (!t.stopped) wait_for(0, deadline, "its stop");
}

void pty_continue(void) {
    t.stopped = 0;
    kill(-t.program, SIGCONT);
}

int pty_finish(void) {
    double deadline = now() + DEADLINE_S;
    while (!t.ended) wait_for(0, deadline, "its end");
    return WIFEXITED(t.status) ? WEXITSTATUS(t.status) : -WTERMSIG(t.status);
}

int pty_modes_are_restored(void) {
    struct termios is;
    if (tcgetattr(t.master, &is)) // those of the terminal, also when no program has it open
        FAIL("tcgetattr: %s", strerror(errno));
    const struct termios *was = &t.before;
    return is.c_iflag == was->c_iflag && is.c_oflag == was->c_oflag && is.c_cflag == was->c_cflag &&
           is.c_lflag == was->c_lflag && !memcmp(is.c_cc, was->c_cc, sizeof is.c_cc);
}
