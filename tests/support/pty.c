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
    int master, slave, events, commands; // descriptors; events: states of the program; commands: one byte continues it
    pid_t parent, program;
    struct termios before;
    char *text; // the output, ended by NUL
    size_t n, cap, at;
    int status, stopped, ended;
} t = {.master = -1, .slave = -1, .events = -1, .commands = -1};

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
    drop(&t.master), drop(&t.slave), drop(&t.events), drop(&t.commands);
    t.n = t.at = 0;
    if (t.text) *t.text = 0;
    t.stopped = t.ended = 0;
}

// ---- the parent of the program ----

typedef struct event {
    pid_t pid;
    int status; // of waitpid; -1: started
} event;

static void report(int fd, pid_t pid, int status) {
    const event e = {pid, status};
    if (write(fd, &e, sizeof e) != sizeof e) _exit(126);
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

static _Noreturn void run_job(const char *const *env, char *const *argv, int events, int commands) {
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
    report(events, pid, -1);
    for (;;) {
        int status;
        char command;
        if (waitpid(pid, &status, WUNTRACED) != pid) _exit(126);
        report(events, pid, status);
        if (!WIFSTOPPED(status)) break;
        if (read(commands, &command, 1) != 1) _exit(126);
        tcsetpgrp(STDIN_FILENO, pid);
        kill(-pid, SIGCONT);
    }
    for (;;) pause(); // keeps the terminal until the test has read the output
}

void pty_start(pty_options o, const char *const *args) {
    struct winsize size = {.ws_row = o.rows ? o.rows : 24, .ws_col = o.columns ? o.columns : 80};
    char *argv[MAX_ARGS + 2] = {(char *)cli_binary()};
    int events[2], commands[2], n = 1;
    while (*args) {
        if (n > MAX_ARGS) FAIL("more than %d arguments", MAX_ARGS);
        argv[n++] = (char *)*args++;
    }
    end_last();
    test_tmp(); // makes the folder, which is the home of the program
    if (openpty(&t.master, &t.slave, NULL, NULL, &size)) TEST_SKIP("needs a pseudo-terminal: %s", strerror(errno));
    if (tcgetattr(t.slave, &t.before)) FAIL("tcgetattr: %s", strerror(errno));
    if (pipe2(events, O_CLOEXEC) || pipe2(commands, O_CLOEXEC)) FAIL("pipe: %s", strerror(errno));
    fcntl(t.master, F_SETFD, FD_CLOEXEC);
    fcntl(t.slave, F_SETFD, FD_CLOEXEC);
    fflush(NULL);
    t.parent = fork();
    if (t.parent < 0) FAIL("fork: %s", strerror(errno));
    if (t.parent == 0) {
        close(t.master);
        if (login_tty(t.slave)) _exit(126);
        run_job(o.env, argv, events[1], commands[0]);
    }
    close(events[1]), close(commands[0]);
    t.events = events[0], t.commands = commands[1];
    fcntl(t.master, F_SETFL, O_NONBLOCK);
}

// ---- input and output ----

static double now(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void read_output(void) {
    for (;;) {
        if (t.cap - t.n < 4096) {
            t.cap = 2 * t.cap + 8192;
            t.text = realloc(t.text, t.cap);
            if (!t.text) FAIL("out of memory");
        }
        ssize_t n = read(t.master, t.text + t.n, t.cap - t.n - 1);
        if (n <= 0) {
            t.text[t.n] = 0;
            return;
        }
        for (char *p = t.text + t.n; p < t.text + t.n + n; p++) // a string for strstr
            if (!*p) *p = '?';
        t.n += (size_t)n;
        t.text[t.n] = 0;
    }
}

// Reads all that the program wrote before it stopped or ended. The kernel hands bytes to the master later, but in order, so the
// test writes a last byte behind them and waits for it.
static void read_rest(double deadline) {
    static const char last = '\036';
    read_output();
    if (write(t.slave, &last, 1) != 1) FAIL("write: %s", strerror(errno));
    while (!t.n || t.text[t.n - 1] != last) {
        struct pollfd fd = {t.master, POLLIN, 0};
        if (now() > deadline) FAIL("the terminal lost output: %s", pty_seen());
        if (poll(&fd, 1, 1000) < 0 && errno != EINTR) FAIL("poll: %s", strerror(errno));
        read_output();
    }
    t.text[--t.n] = 0;
}

static void read_event(double deadline) {
    event e;
    if (read(t.events, &e, sizeof e) != sizeof e) FAIL("the parent of the program ended");
    t.program = e.pid;
    if (e.status == -1) return;
    t.status = e.status;
    t.stopped = WIFSTOPPED(e.status);
    t.ended = !t.stopped;
    read_rest(deadline);
}

// Waits for output or an event. writable: also returns when the terminal takes input.
static short wait_for(short writable, double deadline, const char *what) {
    struct pollfd fds[2] = {{t.master, POLLIN | writable, 0}, {t.events, POLLIN, 0}};
    double left = deadline - now();
    if (left <= 0) FAIL("waited %d s for %s; output: %s", DEADLINE_S, what, pty_seen());
    if (poll(fds, 2, (int)(left * 1e3) + 1) < 0 && errno != EINTR) FAIL("poll: %s", strerror(errno));
    read_output();
    if (fds[1].revents) read_event(deadline);
    return fds[0].revents;
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
        if (t.ended) FAIL("the program ended (status %d) without \"%s\"; output: %s", t.status, text, pty_seen());
        wait_for(0, deadline, text);
    }
}

void pty_expect_bytes(size_t n) {
    double deadline = now() + DEADLINE_S;
    while (t.n - t.at < n) {
        if (t.ended) FAIL("the program ended (status %d) before more output; output: %s", t.status, pty_seen());
        wait_for(0, deadline, "more output");
    }
}

int pty_more(double seconds) {
    size_t before = t.n;
    double deadline = now() + seconds;
    while (t.n == before && !t.ended && now() < deadline) {
        struct pollfd fd = {t.master, POLLIN, 0};
        if (poll(&fd, 1, (int)(1e3 * (deadline - now())) + 1) < 0 && errno != EINTR) FAIL("poll: %s", strerror(errno));
        read_output();
    }
    return t.n > before;
}

int pty_count(const char *text, int from) {
    int n = 0;
    for (const char *p = pty_seen() + from; (p = strstr(p, text)) != NULL; p += strlen(text)) n++;
    return n;
}

// ---- the program ----

static void wait_for_start(double deadline) {
    while (!t.program) wait_for(0, deadline, "the start of the program");
}

void pty_resize(int rows, int columns) {
    struct winsize size = {.ws_row = rows, .ws_col = columns};
    if (ioctl(t.master, TIOCSWINSZ, &size)) FAIL("TIOCSWINSZ: %s", strerror(errno));
}

void pty_signal(int sig) {
    wait_for_start(now() + DEADLINE_S);
    kill(t.program, sig);
}

void pty_expect_stop(void) {
    double deadline = now() + DEADLINE_S;
    while (!t.stopped) {
        if (t.ended) FAIL("the program ended and did not stop; output: %s", pty_seen());
        wait_for(0, deadline, "the stop of the program");
    }
}

void pty_continue(void) {
    t.stopped = 0;
    if (write(t.commands, "c", 1) != 1) FAIL("write: %s", strerror(errno));
}

int pty_finish(void) {
    double deadline = now() + DEADLINE_S;
    while (!t.ended) wait_for(0, deadline, "the end of the program");
    return WIFEXITED(t.status) ? WEXITSTATUS(t.status) : -WTERMSIG(t.status);
}

int pty_modes_are_restored(void) {
    struct termios is;
    if (tcgetattr(t.slave, &is)) FAIL("tcgetattr: %s", strerror(errno));
    const struct termios *was = &t.before;
    return is.c_iflag == was->c_iflag && is.c_oflag == was->c_oflag && is.c_cflag == was->c_cflag &&
           is.c_lflag == was->c_lflag && !memcmp(is.c_cc, was->c_cc, sizeof is.c_cc);
}
