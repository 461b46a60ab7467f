// cli/resume_file.h - a file of results that lets an interrupted run continue: a first line with the settings of the
// run, then one JSON object per line. eval and tune write such files.
#ifndef SLEIGH_RESUME_FILE_H
#define SLEIGH_RESUME_FILE_H

#include "base/error.h"

#include <jansson.h>
#include <stdio.h>

typedef struct cli_resume {
    const char *flag, *path; // for messages: --out FILE
    const char *command;     // "eval": the first line begins with {"sleigh_eval":
    int version;             // of the format
    // Takes a line after the first. n: its number, from 2 on.
    int (*take)(void *ctx, int n, const json_t *line, sl_error *err);
    void *ctx;
} cli_resume;

// Opens or creates the file for appending. From an existing file it removes an incomplete last line and passes each other line
// to `take`. SL_ERR_ARG: another program wrote the file, or a setting differs (the message names it; "model", the name of the
// model's folder, may differ). SL_ERR_IO: another run writes to the file.
int cli_resume_open(const cli_resume *r, const json_t *settings, FILE **out, sl_error *err);
// Writes a line and flushes it. NULL as `line`: SL_ERR_MEMORY
int cli_resume_add(FILE *f, const char *flag, const char *path, const json_t *line, sl_error *err);
// The two halves of cli_resume_add.
char *cli_resume_text(const json_t *line); // from malloc; NULL: memory is short, or a text is not UTF-8
int cli_resume_add_text(FILE *f, const char *flag, const char *path, const char *text, sl_error *err);

// A key whose values differ; NULL: none. The name of the model may differ: the fingerprints tell whether it is the same model.
const char *cli_settings_differ(const json_t *a, const json_t *b);
void cli_settings_show(const json_t *settings, const char *key, char buf[160]); // the value as text

#endif
