// cli/output/model_name.h - how tables and JSON name a model: "tiny (llama, 5.51 M parameters, bf16)".
#ifndef SLEIGH_MODEL_NAME_H
#define SLEIGH_MODEL_NAME_H

#include "base/error.h"
#include "engine/engine.h"

#include <jansson.h>
#include <stdint.h>

typedef struct cli_model_name {
    char name[256];  // the folder's name; of a folder in the cache of the hub: ORGANISATION/NAME
    char type[64];   // model_type of config.json
    char dtype[16];  // of most parameters: "bf16", "q4_k" as in a GGUF file, "int4"
    double n_params; // numbers in all weights
    int is_dummy;    // random weights
    char rope[256];  // RoPE's parameters, if options have changed them; "": those of config.json
} cli_model_name;

enum { CLI_MODEL_TEXT = 768 };

void cli_model_folder_name(const char *path, char *out, size_t size); // the field `name`
void cli_model_name_of(const sl_model *model, const char *path, cli_model_name *out);
// The same for a folder whose model is not loaded, with these options of sl_model_load (SL_MODEL_PACKED or SL_MODEL_DUMMY).
int cli_model_name_read(const char *path, const sl_model_options *options, cli_model_name *out, sl_error *err);
const char *cli_model_name_text(const cli_model_name *m, char buf[CLI_MODEL_TEXT]);
// An object with the fields "model", "model_type", "n_params", "dtype" and "dummy", "rope" if options have changed it, and then
// the fields of `object`, which is released. NULL: object is NULL, or out of memory.
json_t *cli_model_name_json(const cli_model_name *m, json_t *object);

#endif
