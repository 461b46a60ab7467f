// tests/support/run_cli.c - see run_cli.h.
#include "tests/support/run_cli.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MAX_ARGS = 48, N_RUNS = 32 };

// Outputs of the last runs. Static, because a failed check jumps out of a case and would leak them.
static char *outputs[2 * N_RUNS];
static int next_output;

const char *in_tmp(const char *name) {
    static char paths[8][256];
    static int i;
    char *path = paths[i++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", test_tmp(), name);
    return path;
}

char *slurp(const char *path, size_t *n) {
    FILE *f = fopen(path, "rb");
    if (!f) FAIL("cannot open %s: %s", path, strerror(errno));
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    char *data = malloc(*n + 1);
    if (!data || fread(data, 1, *n, f) != *n) FAIL("cannot read %s", path);
    data[*n] = 0;
    fclose(f);
    free(outputs[next_output]);
    outputs[next_output] = data;
    next_output = (next_output + 1) % (2 * N_RUNS);
    return data;
}

void spill(const char *path, const char *data, size_t n) {
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(data, 1, n, f) != n || fclose(f)) FAIL("cannot write %s", path);
}

const char *cli_binary(void) {
    const char *path = getenv("SLEIGH_BIN");
    if (!path) path = "build/sleigh";
    if (access(path, X_OK)) FAIL("%s is missing: build it, or set SLEIGH_BIN", path);
    return path;
}

const char *tiny(void) {
    static char dir[256];
    snprintf(dir, sizeof dir, "models/tiny");
    if (access("models/tiny/config.json", R_OK)) snprintf(dir, sizeof dir, "%s/tiny", test_shared());
    if (access(dir, R_OK)) TEST_SKIP("needs models/tiny");
    return dir;
}

static void redirect(const char *path, int flags, int fd) {
    int file = open(path, flags, 0600);
    if (file < 0 || dup2(file, fd) < 0) _exit(126);
    close(file);
}

// args: ends with NULL. out: file for standard output; NULL: a file in the folder of the case. shell: NULL, or a line of
// /bin/sh that runs "$0" "$@".
static pid_t start_in(const char *shell, const char *input, size_t n_input, const char *out, const char *const *args) {
    const char *path = cli_binary(), *in_path = in_tmp("stdin"), *out_path = out ? out : in_tmp("stdout"),
               *err_path = in_tmp("stderr");
    char *argv[MAX_ARGS + 5] = {(char *)path};
    int n = 1;
    if (shell) {
        char *const head[] = {"/bin/sh", "-c", (char *)shell, (char *)path};
        memcpy(argv, head, sizeof head);
        path = head[0], n = 4;
    }
    while (*args) {
        if (n > MAX_ARGS) FAIL("more than %d arguments", MAX_ARGS);
        argv[n++] = (char *)*args++;
    }
    if (input) spill(in_path, input, n_input);
    fflush(NULL);
    pid_t pid = fork();
    if (pid < 0) FAIL("fork: %s", strerror(errno));
    if (pid) return pid;
    redirect(input ? in_path : "/dev/null", O_RDONLY, 0);
    redirect(out_path, O_WRONLY | O_CREAT | O_TRUNC, 1);
    redirect(err_path, O_WRONLY | O_CREAT | O_TRUNC, 2);
    setenv("SLEIGH_DEVICE", "cpu", 0); // GPU cases use --device cuda
    setenv("SLEIGH_THREADS", "2", 0);  // few, because cases run in parallel
    execv(path, argv);
    _exit(127);
}

pid_t start(const char *input, size_t n_input, const char *out, const char *const *args) {
    return start_in(NULL, input, n_input, out, args);
}

pid_t start_shell(const char *shell, const char *const *args) {
    return start_in(shell, NULL, 0, NULL, args);
}

result run_shell(const char *shell, const char *const *args) {
    return finish(start_shell(shell, args), NULL);
}

result finish(pid_t pid, const char *out) {
    int status;
    result r = {0};
    if (waitpid(pid, &status, 0) != pid) FAIL("waitpid: %s", strerror(errno));
    r.code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    size_t n;
    r.out = out ? "" : slurp(in_tmp("stdout"), &r.n_out);
    r.err = slurp(in_tmp("stderr"), &n);
    return r;
}

void wait_for_bytes(pid_t pid, const char *path, long size) {
    struct stat st = {0};
    siginfo_t ended = {0};
    for (int i = 0; i < 48000 && st.st_size < size && !ended.si_pid; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
        if (waitid(P_PID, (id_t)pid, &ended, WEXITED | WNOHANG | WNOWAIT)) FAIL("waitid: %s", strerror(errno));
        if (stat(path, &st)) st.st_size = 0;
    }
    if (st.st_size >= size) return;
    kill(pid, SIGKILL);
    FAIL("%s has %ld bytes; expected %ld: %s", path, (long)st.st_size, size, finish(pid, NULL).err);
}

result run_args(const char *input, const char *const *args) {
    return finish(start(input, input ? strlen(input) : 0, NULL, args), NULL);
}

void check_error(const result *r, int code, const char *part) {
    int n = 0, lines = 0;
    for (const char *p = r->err; *p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : p + strlen(p), lines++)
        n += !strncmp(p, "sleigh: error: ", 15);
    if (r->code != code) FAIL("exit code %d, expected %d (\"%s\"): %s", r->code, code, part, r->err);
    if (n != 1) FAIL("%d error lines: %s", n, r->err);
    CHECK_HAS(r->err, part);
    if (code == 2) {
        if (lines != 1) FAIL("%d lines: %s", lines, r->err);
        CHECK_INT(r->n_out, 0);
    }
}

const char *stat_line(const result *r, const char *key, char buf[256]) {
    size_t n = strlen(key);
    for (const char *p = r->err; p; p = strchr(p, '\n') ? strchr(p, '\n') + 1 : NULL)
        if (!strncmp(p, key, n) && p[n] == ':') {
            snprintf(buf, 256, "%.*s", (int)strcspn(p + n + 2, "\n"), p + n + 2);
            return buf;
        }
    FAIL("no line \"%s:\" in %s", key, r->err);
}

int stat_count(const result *r, const char *key) { // "12.3 ms, COUNT tokens"
    char buf[256];
    int n = -1;
    if (sscanf(stat_line(r, key, buf), "%*f ms, %d", &n) != 1) FAIL("%s: %s", key, buf);
    return n;
}

int count_of(const char *text, size_t n, char c) {
    int found = 0;
    for (size_t i = 0; i < n; i++) found += text[i] == c;
    return found;
}

json_t *document(const result *r) {
    json_error_t e;
    CHECK_GOOD(*r);
    json_t *out = json_loads(r->out, JSON_REJECT_DUPLICATES, &e);
    if (!out) FAIL("no JSON: line %d: %s: %.300s", e.line, e.text, r->out);
    return out;
}

double number(const json_t *row, const char *key) {
    if (!json_is_number(json_object_get(row, key))) FAIL("no number \"%s\"", key);
    return json_number_value(json_object_get(row, key));
}

void check_same(const result *a, const result *b) { // output and logits
    char x[256], y[256];
    CHECK_GOOD(*a);
    CHECK_GOOD(*b);
    CHECK_STR(a->out, b->out);
    CHECK_STR(stat_line(a, "logits", x), stat_line(b, "logits", y));
}

const char *long_text(int n) {
    static char text[32768];
    size_t at = 0;
    for (int i = 0; i < n && at + 128 < sizeof text; i++)
        at += (size_t)snprintf(text + at, sizeof text - at, "The hidden number of house %d is %d. The grass is green.\n", i,
                               7919 * i % 10007);
    return text;
}

long child_of(pid_t process) {
    char path[80], text[64] = "";
    snprintf(path, sizeof path, "/proc/%ld/task/%ld/children", (long)process, (long)process);
    FILE *f = fopen(path, "r");
    if (f) {
        size_t n = fread(text, 1, sizeof text - 1, f);
        text[n] = 0;
        fclose(f);
    }
    return atol(text);
}
