// cli/hub.h - models in the cache of the Hugging Face hub, and paths that hold no model that Sleigh can read.
//
// The cache is $HF_HUB_CACHE, else $HUGGINGFACE_HUB_CACHE, else $HF_HOME/hub, else $XDG_CACHE_HOME/huggingface/hub, else
// ~/.cache/huggingface/hub. It holds models--ORG--NAME/snapshots/COMMIT, and refs/main names the commit. The files of a
// snapshot are links to blobs/. Refuses snapshots whose download is not complete. Never downloads: an error shows the command
// that does.
#ifndef SLEIGH_HUB_H
#define SLEIGH_HUB_H

#include "base/error.h"
#include "cli/model_path.h"

// `name` exists. Writes the path of the model's folder: `name`, or the snapshot of a model's folder in a hub cache.
// SL_ERR_FORMAT: `name` is a file, the root of a cache, a folder without config.json and tokenizer, or a snapshot that is not
// complete.
int cli_hub_folder(const char *name, char path[CLI_PATH_SIZE], sl_error *err);
// `name` does not exist. Writes the path of the snapshot if the hub cache holds a model of this name. SL_ERR_IO: `name` looks
// like ORG/NAME, but the cache does not hold it. 1: `name` is not the name of a model on the hub.
int cli_hub_find(const char *name, char path[CLI_PATH_SIZE], sl_error *err);
// Writes "ORG/NAME" for the path of a snapshot in a hub cache. 0: another path.
int cli_hub_name(const char *path, char *buf, size_t size);

#endif
