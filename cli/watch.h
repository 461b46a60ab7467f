// cli/watch.h - reports files of weights and bucket files that change or become shorter while a command has mapped them.
#ifndef SLEIGH_WATCH_H
#define SLEIGH_WATCH_H

#include "engine/engine.h"
#include "models/safetensors.h"

// Watches the files of these tensors, also after the tensors are closed or opened again. From now on, a page of a file that
// cannot be read (SIGBUS) ends the process with a message that names the file.
int cli_watch(const sl_tensors *tensors, sl_error *err);
// Watches the bucket file and the bit file of the engine, if a method needed them. Call it after a new plan and after a new
// observer.
int cli_watch_buckets(const sl_engine *engine, sl_error *err);
// Compares the watched files with their state when they were mapped. SL_ERR_IO: a file changed. main calls it after every
// command.
int cli_watch_check(sl_error *err);

#endif
