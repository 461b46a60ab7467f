// cli/model_path.h - finds the folder that --model names.
//
// A folder that exists is used as it is; for a model's folder in a hub cache, its snapshot is used (hub.h). Another name is
// searched below the folders of installed models, with or without "models/" in front of it, so that `-m tiny` and
// `-m models/tiny` work from every folder:
//   $SLEIGH_MODELS                     if it is set
//   PROGRAM/../share/sleigh/models     PROGRAM: the folder of the program, in an installed copy
//   PROGRAM/../models, ../../models    when the program is in a build folder of the source tree
// A name like ORG/NAME is then searched in the hub cache.
#ifndef SLEIGH_MODEL_PATH_H
#define SLEIGH_MODEL_PATH_H

#include "base/error.h"

enum { CLI_PATH_SIZE = 4096 };

// Writes the path of the model that `name` names. SL_ERR_IO: there is none; the message names the folders that were searched.
int cli_model_path(const char *name, char path[CLI_PATH_SIZE], sl_error *err);

#endif
