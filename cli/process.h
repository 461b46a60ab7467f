// cli/process.h - the process: its start, Ctrl+C and memory.
#ifndef SLEIGH_PROCESS_H
#define SLEIGH_PROCESS_H

#include "base/clock.h"
#include "base/error.h"

// Prepares the process before the first command:
// - Opens descriptors 0 to 2 if the caller closed them, so that no other file gets these numbers. Reads from 0 and writes to 1
//   then fail; writes to 2 are lost.
// - Turns a closed pipe and a file-size limit into errors of write().
// SL_ERR_MEMORY: the stack is too small.
int cli_process_begin(sl_error *err);

// --quiet: from now on, standard error of this process leads nowhere. Errors still go to the descriptor that was standard
// error.
int cli_silence(sl_error *err);
void cli_unsilence(void); // for the dialogue of chat on a terminal; does nothing without cli_silence
int cli_error_fd(void);   // for errors; safe in a signal handler
// Of several ranks: what stands before the text of an error, "rank 1 of 2 (host, process 123): ". "": one process
void cli_set_rank(const char *name);
const char *cli_rank_text(void);

// Makes Ctrl+C set a flag. once: a second Ctrl+C ends the program as usual.
void cli_catch_interrupt(int once);
int cli_interrupted(void);
// Ranks that share a model must all see Ctrl+C between the same two calls of an engine. After cli_share_interrupts,
// cli_interrupted returns what cli_set_interrupted has set. cli_interrupt_came returns 1 if Ctrl+C came to this process.
void cli_share_interrupts(void);
void cli_set_interrupted(int is);
int cli_interrupt_came(void);
// Ends the process as SIGINT does, so that shells and scripts see that Ctrl+C ended it.
_Noreturn void cli_end_interrupted(void);
void cli_clear_interrupt(void);
// Ctrl+C also writes a byte to this descriptor, which must not block. A program that waits with poll() for the descriptor and
// for input misses no Ctrl+C, whichever thread gets the signal. -1: to none.
void cli_wake_at_interrupt(int fd);

// SIGTERM and Ctrl+C write the number of the signal, a byte, to this descriptor, and do nothing else. (A thread that waits in
// sigwait does not get them all: libraries have threads that block no signal.)
void cli_catch_ends(int fd);

// Standard output is a pipe that its reader has closed. cli_output_closed: 1 after the call.
void cli_note_closed_output(void);
int cli_output_closed(void);
_Noreturn void cli_end_closed_output(void); // ends the process as SIGPIPE does, without a message

// fn runs before cli_end_now ends the process: it restores what outlives the process, such as the modes of a terminal. It must
// be safe in a signal handler. NULL: none.
void cli_before_end(void (*fn)(void));
_Noreturn void cli_end_now(int code); // _exit; safe in a signal handler

double cli_peak_mib(void); // peak resident memory of this process

#endif
