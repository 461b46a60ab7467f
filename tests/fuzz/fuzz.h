// tests/fuzz/fuzz.h - the fuzz targets. A target gives one input of any bytes to one parser of files, texts or flags, and
// checks what the parser promises for every input.
//
// Two programs call the targets: `make fuzz` with inputs from libFuzzer (tests/fuzz/main.c), and the suite `fuzz` of
// build/sleigh-test with the files of tests/fuzz/seeds/TARGET and tests/fuzz/crashes/TARGET.
#ifndef SLEIGH_FUZZ_H
#define SLEIGH_FUZZ_H

#include "base/error.h"

#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name;
    void (*run)(const char *data, size_t n);
} fuzz_target;

extern const fuzz_target fuzz_targets[]; // ended by {0}
const fuzz_target *fuzz_find(const char *name);

// ---- functions of the program ----

const char *fuzz_dir(void); // a folder for the input's files, in memory where there is such a file system
_Noreturn void fuzz_failed(const char *file, int line, const char *what, const char *found);

#define FUZZ_CHECK(cond, found) ((cond) ? (void)0 : fuzz_failed(__FILE__, __LINE__, #cond, (found)))

// ---- helpers of the targets (fuzz.c) ----

const char *fuzz_path(const char *name); // fuzz_dir()/name; valid until the next call
void fuzz_write(const char *name, const char *data, size_t n);
void fuzz_remove(const char *name);
// Writes the input as files of fuzz_dir(). The input begins with the text of `first`, and a line "%%NAME" begins another file.
// The list of names ends with NULL. Text after a name that is not in the list is dropped. Files of the list that are not in the
// input are deleted.
void fuzz_files(const char *data, size_t n, const char *first, const char *const *names);
void fuzz_remove_files(const char *const *names);

// Checks that an error has a known code and one line of printable UTF-8. Returns 1 where rc is 0. *err must be zero before the
// checked call.
int fuzz_ok(int rc, const sl_error *err);

// The targets.
void fuzz_safetensors(const char *data, size_t n); // fuzz_models.c
void fuzz_buckets(const char *data, size_t n);
void fuzz_model(const char *data, size_t n);
void fuzz_config(const char *data, size_t n);
void fuzz_gguf(const char *data, size_t n);
void fuzz_bpe(const char *data, size_t n); // fuzz_tokens.c
void fuzz_tokenizer_model(const char *data, size_t n);
void fuzz_tekken(const char *data, size_t n);
void fuzz_pattern(const char *data, size_t n);
void fuzz_text(const char *data, size_t n);
void fuzz_chat(const char *data, size_t n); // fuzz_prompts.c
void fuzz_jinja(const char *data, size_t n);
void fuzz_jsonl(const char *data, size_t n);
void fuzz_conversation(const char *data, size_t n);
void fuzz_questions(const char *data, size_t n);
void fuzz_attn(const char *data, size_t n); // fuzz_settings.c
void fuzz_results(const char *data, size_t n);
void fuzz_plot(const char *data, size_t n);
void fuzz_api(const char *data, size_t n); // fuzz_api.c
void fuzz_calls(const char *data, size_t n);
void fuzz_grammar(const char *data, size_t n); // fuzz_grammar.c
void fuzz_http(const char *data, size_t n);    // fuzz_http.c

#endif
