// engine/cli/process.h - what the program asks of the system before its first command.
#ifndef SLEIGH_PROCESS_H
#define SLEIGH_PROCESS_H

#include "engine/base/error.h"

// Descriptors 0 to 2 that the caller closed are opened, so that no file of ours takes their numbers: what is read from 0 or
// written to 1 then fails, what is written to 2 is lost. A closed pipe and a file-size limit become errors of write().
// Where memory is limited the program is started anew, with OpenBLAS told to start no threads.
// SL_ERR_MEMORY when the stack is too small.
int cli_process_begin(char **argv, sl_error *err);

#endif
