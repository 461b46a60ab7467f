// cli/chat/terminal.h - the state of the user's terminal during a chat: saved at the start, restored at every end.
//
// During a chat the terminal marks pasted text (bracketed paste). SIGTERM, SIGHUP, SIGQUIT, SIGABRT and the end by
// cli_end_now restore the terminal. Ctrl+Z restores the terminal until the chat continues.
#ifndef SLEIGH_TERMINAL_H
#define SLEIGH_TERMINAL_H

#include "base/error.h"

#include <sys/types.h>

// in, out: descriptors of one terminal, for input and output. with_paste: the terminal knows escape sequences. One terminal at
// a time, because signal handlers have no context.
int cli_terminal_open(int in, int out, int with_paste, sl_error *err);
void cli_terminal_close(void); // restores the terminal; does nothing if it is not open

typedef enum { CLI_WAKE_INPUT, CLI_WAKE_RESIZED, CLI_WAKE_CONTINUED, CLI_WAKE_INTERRUPT } cli_wake;
// Waits for input, a resize, the end of a stop, or Ctrl+C. Each event is reported once; Ctrl+C until cli_clear_interrupt.
cli_wake cli_terminal_wait(void);

// Reads like read(). The input can be gone since cli_terminal_wait, because Ctrl+C discards it: then -1 with errno EAGAIN. If
// the terminal could not be opened again, it blocks instead.
ssize_t cli_terminal_read(void *buffer, size_t n);

#endif
