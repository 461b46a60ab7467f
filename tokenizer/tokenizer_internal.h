// tokenizer/tokenizer_internal.h - what the parts of a tokenizer share; for tokenizer/*.c alone.
#ifndef SLEIGH_TOKENIZER_INTERNAL_H
#define SLEIGH_TOKENIZER_INTERNAL_H

#include "engine/base/arrays.h"

// ---- pretokenize.c: a model's pre-tokenizer pattern over text ----

typedef struct sl_pattern sl_pattern; // compiled, immutable

int sl_pattern_new(const char *file, const char *regex, sl_pattern **out, sl_error *err);
void sl_pattern_free(sl_pattern *p);
// Calls fn for every piece of text[0..n), in order and without gaps: matches, and what lies between them. Bytes that are not
// UTF-8 are pieces of their own.
typedef int (*sl_piece_fn)(void *ctx, const char *piece, size_t n, sl_error *err);
int sl_pattern_split(const sl_pattern *p, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err);
extern const char sl_pattern_llama3[], sl_pattern_gpt2[];

// ---- bpe.c: byte-level BPE ----

typedef struct sl_bpe sl_bpe;

// Ids from 0 to n_vocab - 1, of which about n_tokens are tokens.
int sl_bpe_new(int n_vocab, size_t n_tokens, int ignore_merges, sl_bpe **out, sl_error *err);
void sl_bpe_free(sl_bpe *bpe);
int sl_bpe_add(sl_bpe *bpe, const char *file, int32_t id, const char *bytes, size_t n, sl_error *err); // once per id
int32_t sl_bpe_find(const sl_bpe *bpe, const char *bytes, size_t n);                                   // -1: no such token
// Merge of rank `rank` joins two tokens into the token of their bytes. SL_ERR_FORMAT if one of the three is unknown.
int sl_bpe_merge(sl_bpe *bpe, const char *file, int32_t rank, int32_t left, int32_t right, sl_error *err);
int sl_bpe_finish(sl_bpe *bpe, const char *file, sl_error *err); // every byte must be a token
int sl_bpe_encode(const sl_bpe *bpe, const char *piece, size_t n, sl_ids *ids, sl_error *err);
const char *sl_bpe_bytes(const sl_bpe *bpe, int32_t id, size_t *n); // NULL: no such token
// For tests: how far from their own slots the entries of both hash tables lie, summed; their number to *n.
uint64_t sl_bpe_displaced(const sl_bpe *bpe, size_t *n);

// ---- spm_check.c: a SentencePiece model before the library reads it ----

typedef enum { SL_SPM_STRIP_NONE, SL_SPM_STRIP_ONE, SL_SPM_STRIP_ALL } sl_spm_strip; // of a decoded text's first blanks

typedef struct sl_spm_model {
    sl_text proto; // what the library gets: the pieces, the trainer's and the normaliser's settings
    sl_spm_strip strip;
    int growth; // the most bytes that one byte of a text becomes when the normaliser rewrites it
} sl_spm_model;

// Checks all that the library takes on trust: the protobuf's extents, pieces, scores, types, the trie of the normaliser's
// rules. The caller frees out->proto, after an error too.
int sl_spm_check(const char *file, const char *data, size_t n, sl_spm_model *out, sl_error *err);

// ---- sentencepiece.cc: the library behind C ----

typedef struct sl_spm sl_spm;

#ifdef __cplusplus
extern "C" {
#endif
typedef enum { SL_SPM_NORMAL, SL_SPM_UNKNOWN, SL_SPM_CONTROL, SL_SPM_BYTE, SL_SPM_UNUSED } sl_spm_kind;
int sl_spm_load(const char *file, const sl_spm_model *model, sl_spm **out, sl_error *err);
void sl_spm_free(sl_spm *spm); // NULL: nothing to do
int sl_spm_n(const sl_spm *spm);
int sl_spm_bos(const sl_spm *spm); // -1: none
int sl_spm_eos(const sl_spm *spm);
const char *sl_spm_piece(const sl_spm *spm, int id, sl_spm_kind *kind);
int sl_spm_encode(const sl_spm *spm, const char *text, size_t n, sl_ids *ids, sl_error *err);
#ifdef __cplusplus
}
#endif

// ---- the tokenizer itself ----

enum { SL_MOST_TOKEN_ID = (1 << 24) - 1, SL_MOST_MODEL_FILE = 64 << 20 }; // the largest published tokenizer.model has 5 MB

typedef struct sl_added { // a token that is found in the text before anything else
    char *text;
    size_t n;
    int32_t id;
    int special; // not parsed under SL_TOK_PLAIN, not shown by default
} sl_added;

typedef struct sl_tokenizer sl_tokenizer; // as in tokenizer.h, which is its users' side
struct sl_tokenizer {
    const char *kind;
    int n_vocab;
    int32_t bos, eos;
    int add_bos;
    sl_added *added; // sorted by bytes once indexed
    int n_added, cap_added;
    int first_added[257]; // of each first byte: [first_added[b], first_added[b + 1])
    int32_t *added_of;    // [n_added_of], place in `added` by id, -1: none
    int32_t n_added_of;
    sl_pattern *pattern; // byte-level BPE
    sl_bpe *bpe;
    sl_spm *spm; // or SentencePiece
    sl_spm_strip strip;
};

int sl_tokenizer_add(sl_tokenizer *tok, const char *file, int32_t id, const char *text, size_t n, int special, sl_error *err);
int sl_tokenizer_index(sl_tokenizer *tok, const char *file, sl_error *err); // after the last add; refuses equal ids or texts
const sl_added *sl_tokenizer_added(const sl_tokenizer *tok, int32_t id);    // NULL: id is not an added token
int sl_bpe_json_load(const char *dir, int *is_bpe, sl_tokenizer *tok, sl_error *err); // *is_bpe 0: some other tokenizer.json
int sl_tiktoken_load(const char *path, const char *data, size_t n, sl_tokenizer *tok, sl_error *err);

#endif
