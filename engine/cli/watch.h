// engine/cli/watch.h - the files of weights that a command has mapped: named when they change or vanish under it.
#ifndef SLEIGH_WATCH_H
#define SLEIGH_WATCH_H

#include "models/safetensors.h"

// From now on a page of theirs that cannot be read (SIGBUS) ends the process with the file's name, and cli_watch_check holds
// the files against what they were when they were mapped. The tensors may be closed, and
// opened again, before.
int cli_watch(const sl_tensors *tensors, sl_error *err);
int cli_watch_check(sl_error *err); // SL_ERR_IO: a file changed; main asks after every command

#endif
