// tests/fuzz/fuzz.h - functions that read one input of any bytes with one of our readers of files, texts and flags, and check
// what the reader promises of every input.
//
// Two programs call them: `make fuzz`, with inputs that libFuzzer makes (tests/fuzz/main.c), and the suite `fuzz` of
// build/sleigh-test, with the files of tests/fuzz/seeds/TARGET and tests/fuzz/crashes/TARGET.
#ifndef SLEIGH_FUZZ_H
#define SLEIGH_FUZZ_H

#include "engine/base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name;
    void (*run)(const char *data, size_t n);
} fuzz_target;

extern const fuzz_target fuzz_targets[]; // ended by {0}
const fuzz_target *fuzz_find(const char *name);

// ---- what the program gives ----

const char *fuzz_dir(void); // a folder for the input's files, in memory where there is such a file system
_Noreturn void fuzz_failed(const char *file, int line, const char *what, const char *found);

#define FUZZ_CHECK(cond, found) ((cond) ? (void)0 : fuzz_failed(__FILE__, __LINE__, #cond, (found)))

// ---- what the targets share (fuzz.c) ----

const char *fuzz_path(const char *name); // fuzz_dir()/name; good until the next call
void fuzz_write(const char *name, const char *data, size_t n);
void fuzz_remove(const char *name);
// The input as files of fuzz_dir(). It is the text of `first`; a line "%%NAME" begins another file. Names are those of the
// list alone, ended by NULL; what lies behind another name is left out. Files of the list that the input does not hold are
// removed.
void fuzz_files(const char *data, size_t n, const char *first, const char *const *names);
void fuzz_remove_files(const char *const *names);

// Checks an error, as every function must give it: a known code, and one line of printable UTF-8. Returns 1 where rc is 0.
// Begin with an *err of zeros.
int fuzz_ok(int rc, const sl_error *err);

// The targets.
void fuzz_safetensors(const char *data, size_t n); // fuzz_models.c
void fuzz_model(const char *data, size_t n);
void fuzz_config(const char *data, size_t n);
void fuzz_bpe(const char *data, size_t n); // fuzz_tokens.c
void fuzz_tokenizer_model(const char *data, size_t n);
void fuzz_text(const char *data, size_t n);
void fuzz_chat(const char *data, size_t n); // fuzz_prompts.c
void fuzz_jsonl(const char *data, size_t n);
void fuzz_questions(const char *data, size_t n);
void fuzz_attn(const char *data, size_t n); // fuzz_settings.c
void fuzz_results(const char *data, size_t n);

#endif
