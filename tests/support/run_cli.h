// tests/support/run_cli.h - runs build/sleigh as a user does ($SLEIGH_BIN, on the embedded model) and checks its output.
#ifndef SLEIGH_TEST_CLI_H
#define SLEIGH_TEST_CLI_H

#include "tests/test.h"

#include <jansson.h>
#include <string.h>
#include <sys/types.h>

typedef struct result {
    int code; // exit code, or -signal
    char *out, *err;
    size_t n_out;
} result;

const char *cli_binary(void);             // path of the program
const char *tiny(void);                   // folder of the embedded model
const char *in_tmp(const char *name);     // a path in the folder of the case
char *slurp(const char *path, size_t *n); // valid for the next 64 calls, as the texts of a result are
void spill(const char *path, const char *data, size_t n);
const char *long_text(int n); // n sentences with different numbers

// start and finish run the program in the background. out: file for stdout; NULL: the result holds it.
pid_t start(const char *input, size_t n_input, const char *out, const char *const *args);
result finish(pid_t pid, const char *out);
// Waits until a file that the program writes has `size` bytes. Fails when the program ends before, or after four minutes. A
// sanitizer build on a loaded machine needs minutes.
void wait_for_bytes(pid_t pid, const char *path, long size);
long child_of(pid_t process); // its first child; 0: it has none yet
// Runs a line of /bin/sh in the background, in which "$0" "$@" is the program with its arguments.
pid_t start_shell(const char *shell, const char *const *args);
result run_args(const char *input, const char *const *args);
// The same, and waits for its end: `ulimit -s 256; exec "$0" "$@"`.
result run_shell(const char *shell, const char *const *args);
#define RUN_SHELL(shell, ...) run_shell(shell, (const char *const[]){__VA_ARGS__, NULL})
#define RUN_IN(input, ...) run_args(input, (const char *const[]){__VA_ARGS__, NULL})
#define RUN(...) RUN_IN(NULL, __VA_ARGS__)

#define CHECK_GOOD(r)                                                                                                          \
    do {                                                                                                                       \
        if ((r).code) FAIL("exit code %d: %s", (r).code, (r).err);                                                             \
    } while (0)
#define CHECK_HAS(text, part)                                                                                                  \
    do {                                                                                                                       \
        if (!strstr(text, part)) FAIL("\"%s\" lacks \"%s\"", text, part);                                                      \
    } while (0)
#define CHECK_LACKS(text, part)                                                                                                \
    do {                                                                                                                       \
        if (strstr(text, part)) FAIL("\"%s\" has \"%s\"", text, part);                                                         \
    } while (0)

// Checks the exit code and that there is exactly one error line, which holds `part`. A usage error prints nothing else.
void check_error(const result *r, int code, const char *part);
void check_same(const result *a, const result *b); // output and logits
// The text after `key: ` on the line of stderr that starts with it.
const char *stat_line(const result *r, const char *key, char buf[256]);
int stat_count(const result *r, const char *key); // "12.3 ms, COUNT tokens"

int count_of(const char *text, size_t n, char c);
json_t *document(const result *r);                 // the JSON on stdout of a successful run
double number(const json_t *row, const char *key); // a field, which must exist

static const char __attribute__((unused)) question[] =
    "The hidden number of the harbor is 48213. What is the hidden number of the harbor? Answer:";

#endif
