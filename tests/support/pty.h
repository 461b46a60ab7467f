// tests/support/pty.h - runs the program in a pseudo-terminal, as a user in a terminal window does.
//
// The program is a job of a small parent process, as in a shell, so that Ctrl+Z can stop it. $HOME and $XDG_STATE_HOME are the
// folder of the case, $TERM is xterm-256color, and $NO_COLOR is 1. One terminal at a time: pty_start ends the program that an
// earlier case left behind.
#ifndef SLEIGH_TEST_PTY_H
#define SLEIGH_TEST_PTY_H

#include <stddef.h>

typedef struct pty_options {
    int rows, columns;      // 0: 24, 80
    const char *const *env; // more variables, "NAME=value"; "NAME" removes one. Ends with NULL; NULL: none
} pty_options;

// args: of the program, ends with NULL.
void pty_start(pty_options options, const char *const *args);
#define PTY_START(options, ...) pty_start(options, (const char *const[]){__VA_ARGS__, NULL})

void pty_send(const char *data, size_t n);
void pty_type(const char *text);
// Waits until `text` occurs in the output behind the text that the last call found. Fails after a long time, or when the
// program ends before.
void pty_expect(const char *text);
void pty_expect_bytes(size_t n);           // waits for n bytes behind the text that the last pty_expect found
int pty_more(double seconds);              // waits for more output; 0: none came in this time
const char *pty_seen(void);                // the whole output so far
const char *pty_since(void);               // the output behind the text that the last pty_expect found
void pty_resize(int rows, int columns);    // the program gets SIGWINCH
void pty_signal(int sig);                  // to the program
void pty_expect_stop(void);                // waits until the program is stopped (Ctrl+Z); its output may come later
void pty_continue(void);                   // continues the stopped program in the foreground
int pty_finish(void);                      // waits for the end; returns the exit code, or -signal
int pty_modes_are_restored(void);          // 1: the modes of the terminal are those before the program began
int pty_count(const char *text, int from); // occurrences in the output, from byte `from`

#endif
