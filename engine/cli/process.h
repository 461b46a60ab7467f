// engine/cli/process.h - the process: its start, Ctrl+C, time and memory.
#ifndef SLEIGH_PROCESS_H
#define SLEIGH_PROCESS_H

#include "engine/base/error.h"

// Prepares the process before the first command:
// - Opens descriptors 0 to 2 if the caller closed them, so that no other file gets these numbers. Reads from 0 and writes to 1
//   then fail; writes to 2 are lost.
// - Turns a closed pipe and a file-size limit into errors of write().
// - Restarts the program with OPENBLAS_NUM_THREADS=1 if memory is limited.
// SL_ERR_MEMORY: the stack is too small.
int cli_process_begin(char **argv, sl_error *err);

// --quiet: from now on, standard error of this process leads nowhere. Errors still go to the descriptor that was standard
// error.
int cli_silence(sl_error *err);
int cli_error_fd(void); // for errors, and for the dialogue of chat; safe in a signal handler

// Makes Ctrl+C set a flag. once: a second Ctrl+C ends the program as usual.
void cli_catch_interrupt(int once);
int cli_interrupted(void);
void cli_clear_interrupt(void);

double cli_now(void);      // milliseconds, monotonic
double cli_peak_mib(void); // peak resident memory of this process

#endif
