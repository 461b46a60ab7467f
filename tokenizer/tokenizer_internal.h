// tokenizer/tokenizer_internal.h - the interfaces between the parts of a tokenizer. Only tokenizer/* and its tests include it.
//
// The parts, lowest first: unicode.c, pattern_syntax.c, pretokenize.c, normalize.c, finder.c, bpe.c, spm_check.c,
// sentencepiece.cc, added_tokens.c; json_part.c; the readers of the parts of tokenizer.json (normalizers.c, pre_tokenizers.c,
// decoders.c); the readers json_tokenizer.c, token_files.c, tiktoken.c and tekken.c; tokenizer.c.
#ifndef SLEIGH_TOKENIZER_INTERNAL_H
#define SLEIGH_TOKENIZER_INTERNAL_H

#include "base/documents.h"

// ---- pretokenize.c: regular expressions of tokenizers ----

typedef struct sl_pattern sl_pattern; // compiled, immutable

int sl_pattern_new(const char *file, const char *regex, sl_pattern **out, sl_error *err);
void sl_pattern_free(sl_pattern *p);
// Calls fn for every piece of text[0..n), in order and without gaps. A piece is a match, which may be empty, or the text
// between two matches. A run of bytes that are not UTF-8 is a separate piece.
typedef int (*sl_piece_fn)(void *ctx, const char *piece, size_t n, int is_match, sl_error *err);
int sl_pattern_split(const sl_pattern *p, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err);
extern const char sl_pattern_llama3[], sl_pattern_gpt2[];

// ---- finder.c: a string or a regular expression ----

typedef struct sl_finder {
    char *text; // [n]
    size_t n;
    sl_pattern *regex; // NULL: the string
} sl_finder;
void sl_finder_free(sl_finder *f);
int sl_finder_split(const sl_finder *f, const char *text, size_t n, sl_piece_fn fn, void *ctx, sl_error *err);

// ---- normalize.c: Unicode normalisation form C ----

int sl_nfc_is(const char *text, size_t n); // 1: the text is in form C; 0: it may not be
// Appends text[0..n) in form C. Bytes that are not UTF-8 stay as they are.
int sl_nfc_append(const char *text, size_t n, sl_text *out, sl_error *err);

// ---- bpe.c: byte-pair encoding ----

typedef struct sl_bpe sl_bpe;

typedef struct sl_bpe_options {
    int ignore_merges; // a piece that is a token is not split
    int by_chars;      // the merges begin with characters, else with bytes
    int byte_fallback; // by_chars: a character without a token is the tokens of its bytes, <0xC3> <0xA9>
    int fuse_unk;      // several symbols without a token in a row are one unknown token
} sl_bpe_options;

// Makes an empty vocabulary for ids from 0 to n_vocab - 1 and at most n_tokens tokens.
int sl_bpe_new(int n_vocab, size_t n_tokens, sl_bpe_options options, sl_bpe **out, sl_error *err);
void sl_bpe_free(sl_bpe *bpe);
// Once per id. is_text 0: no text becomes the token (its string is not in the alphabet), but the token has a text.
int sl_bpe_add(sl_bpe *bpe, const char *file, int32_t id, const char *bytes, size_t n, int is_text, sl_error *err);
int32_t sl_bpe_find(const sl_bpe *bpe, const char *bytes, size_t n);       // -1: no such token
int32_t sl_bpe_find_other(const sl_bpe *bpe, const char *bytes, size_t n); // of the tokens with is_text 0
// Adds the merge of rank `rank`: it joins two tokens into the token of their joined bytes. SL_ERR_FORMAT if one of the three
// tokens is unknown.
int sl_bpe_merge(sl_bpe *bpe, const char *file, int32_t rank, int32_t left, int32_t right, sl_error *err);
// Call it after the last token. unk: the token for a symbol without a token; -1: such a symbol is left out.
int sl_bpe_finish(sl_bpe *bpe, int32_t unk, sl_error *err);
int sl_bpe_missing_byte(const sl_bpe *bpe); // after sl_bpe_finish: the first byte without a token, or -1
void sl_bpe_hide(sl_bpe *bpe, int32_t id);  // ignore_merges does not find this token, a special one
int sl_bpe_encode(const sl_bpe *bpe, const char *piece, size_t n, sl_ids *ids, sl_error *err);
const char *sl_bpe_bytes(const sl_bpe *bpe, int32_t id, size_t *n); // NULL: no such token
// For tests: returns the sum of the distances between the entries of both hash tables and their first slots. *n: the number of
// entries.
uint64_t sl_bpe_displaced(const sl_bpe *bpe, size_t *n);

// ---- spm_check.c: checks a SentencePiece model before the library reads it ----

typedef enum {
    SL_SPM_STRIP_NONE,
    SL_SPM_STRIP_ONE,
    SL_SPM_STRIP_ALL
} sl_spm_strip; // how many blanks decoding drops at the start

typedef struct sl_spm_model {
    sl_text proto; // the input of the library: pieces, settings of the trainer and of the normaliser
    int add_dummy_prefix;
    sl_spm_strip strip;
    int growth; // the most bytes that the normaliser writes for one byte of a text
} sl_spm_model;

// Checks everything that the library does not check: the extents of the protobuf, pieces, scores, types, the trie of the
// normaliser's rules. The caller frees out->proto, also after an error.
int sl_spm_check(const char *file, const char *data, size_t n, sl_spm_model *out, sl_error *err);

// ---- sentencepiece.cc: C functions over the C++ library ----

typedef struct sl_spm sl_spm;

#ifdef __cplusplus
extern "C" {
#endif
typedef enum { SL_SPM_NORMAL, SL_SPM_UNKNOWN, SL_SPM_CONTROL, SL_SPM_BYTE, SL_SPM_UNUSED } sl_spm_kind;
int sl_spm_load(const char *file, const sl_spm_model *model, sl_spm **out, sl_error *err);
void sl_spm_free(sl_spm *spm); // NULL is allowed
int sl_spm_n(const sl_spm *spm);
int sl_spm_bos(const sl_spm *spm); // -1: none
int sl_spm_eos(const sl_spm *spm);
const char *sl_spm_piece(const sl_spm *spm, int id, sl_spm_kind *kind);
int sl_spm_find(const sl_spm *spm, const char *piece, size_t n); // -1: no such piece
int sl_spm_encode(const sl_spm *spm, const char *text, size_t n, sl_ids *ids, sl_error *err);
#ifdef __cplusplus
}
#endif

// ---- normalizers.c, pre_tokenizers.c, decoders.c: the parts of a tokenizer.json ----

struct sl_part;
typedef struct sl_normalizer sl_normalizer;
typedef struct sl_pre_tokenizer sl_pre_tokenizer;
typedef struct sl_decoder sl_decoder;

// A text, or a part of one. at_start: it begins where the whole text begins.
typedef struct sl_view {
    const char *data;
    size_t n;
    int at_start;
} sl_view;

typedef enum {
    SL_BLANK_NEVER,
    SL_BLANK_FIRST,
    SL_BLANK_ALWAYS
} sl_blank;                                                // a blank in front of: no text, the whole text, each part
int sl_blank_read(const struct sl_part *p, sl_blank *out); // prepend_scheme, or add_prefix_space of old files

// The readers set *out also when they fail: the caller frees it.
int sl_normalizer_read(const struct sl_part *p, sl_normalizer **out); // *out NULL: no change
void sl_normalizer_free(sl_normalizer *norm);
// Changes *text. The new text lies in one of the buffers, which the caller frees.
int sl_normalizer_run(const sl_normalizer *norm, sl_view *text, sl_text buffers[2], sl_error *err);

int sl_pre_tokenizer_read(const struct sl_part *p, sl_pre_tokenizer **out);
// Splits bytes by one regular expression; its matches and the text between them are pieces.
int sl_pre_tokenizer_new(const char *file, const char *regex, sl_pre_tokenizer **out, sl_error *err);
void sl_pre_tokenizer_free(sl_pre_tokenizer *pre);
int sl_pre_tokenizer_by_bytes(const sl_pre_tokenizer *pre); // its vocabulary is written in the alphabet of bytes
int sl_pre_tokenizer_split(const sl_pre_tokenizer *pre, const char *text, size_t n, int at_start, sl_piece_fn fn, void *ctx,
                           sl_error *err);

int sl_decoder_read(const struct sl_part *p, sl_decoder **out);
void sl_decoder_free(sl_decoder *d);
int sl_decoder_by_bytes(const sl_decoder *d);
// Appends the text of a token. *at_start 1: no text yet; the call updates it.
int sl_decoder_append(const sl_decoder *d, const char *token, size_t n, int *at_start, sl_text *out, sl_error *err);
int sl_byte_token(const char *token, size_t n); // the byte of "<0x41>", -1: another token

// ---- the tokenizer ----

enum {
    SL_MOST_TOKEN_ID = (1 << 24) - 1,
    SL_MOST_MODEL_FILE = 64 << 20,
    SL_ADDED_BUCKETS = 1024
}; // the largest published tokenizer.model has 5 MB

typedef struct sl_added { // a token whose text is cut out before the model sees the text
    char *text;
    size_t n;
    int32_t id;
    int special;            // SL_TOK_PLAIN does not parse it; detokenizing leaves it out by default
    int normalized;         // it is searched in the normalised text, else before
    int lstrip, rstrip;     // it takes the white space before it, after it
    int single_word;        // no letter of a word is before it or after it
    char *found;            // what is searched: the text, or the normalised text of a normalized token
    size_t n_found, n_lead; // n_lead: bytes that the normaliser put in front of the text
    int next;               // token of the same bucket, -1: none
} sl_added;

typedef struct sl_added_set { // tokens that are searched in one pass
    const sl_added **tokens;  // [n], sorted by `found`
    int n, has_special;
    int first[257]; // [first[b], first[b + 1]) are the tokens whose first byte is b
} sl_added_set;

typedef struct sl_tokenizer sl_tokenizer; // the same declaration as in tokenizer.h
struct sl_tokenizer {
    const char *kind, *version; // version "": none
    int n_vocab;
    int32_t bos, eos;
    int add_bos;
    sl_added *added;
    int n_added, cap_added;
    int buckets[SL_ADDED_BUCKETS]; // by text: index in `added` + 1 of the last token, 0: none
    sl_added_set sets[2];          // tokens that are searched in the text; in the normalised text
    int32_t *added_of;             // [n_added_of], index in `added` by id, -1: none
    int32_t n_added_of;
    // BPE
    sl_normalizer *norm;   // NULL: none
    sl_pre_tokenizer *pre; // NULL: none
    sl_decoder *decoder;   // NULL: tokens are bytes
    sl_bpe *bpe;
    int by_alphabet; // its vocabulary is written in the alphabet of bytes
    // SentencePiece
    sl_spm *spm, *spm_bare; // puts a blank in front of a text as the model says; puts none (NULL: not needed)
    sl_blank blank;         // which parts of a text get spm's blank
    int joins_blank;        // a part that begins with a blank gets no other blank
    sl_spm_strip strip;
};

// ---- added_tokens.c ----

// Adds a token, or changes the flags of the token with this text. Refuses a text or an id that has another id or text.
// token: text, n, id and flags
int sl_tokenizer_add(sl_tokenizer *tok, const char *file, const sl_added *token, sl_error *err);
void sl_tokenizer_make_special(sl_tokenizer *tok, const char *text);
int sl_tokenizer_index(sl_tokenizer *tok, const char *file, sl_error *err); // call it after the last add
const sl_added *sl_tokenizer_added(const sl_tokenizer *tok, int32_t id);    // NULL: id is not an added token

// The id of a token of the model, -1: none
int32_t sl_tokenizer_piece(const sl_tokenizer *tok, const char *text, size_t n);
int sl_tokenizer_has_piece(const sl_tokenizer *tok, int32_t id);
// Refuses a token whose id is another one in the vocabulary of the model, or is the id of another text.
int sl_added_check(const sl_tokenizer *tok, const char *path, const sl_added *token, sl_error *err);

// Finds the tokens of a set in text[0..n). At one place the longest token counts. Calls on_text for the text between two
// tokens.
typedef struct sl_added_search {
    const sl_added_set *set;
    const sl_span *plain; // no special token has bytes in these
    size_t n_plain;
    int (*on_text)(void *ctx, size_t from, size_t to, sl_error *err);
    int (*on_token)(void *ctx, const sl_added *token, size_t from, sl_error *err);
    void *ctx;
} sl_added_search;
int sl_added_split(const sl_added_search *s, const char *text, size_t n, sl_error *err);

// ---- json_tokenizer.c, token_files.c, tiktoken.c and tekken.c: the readers ----

// *is_bpe 0: the folder has no tokenizer.json, or one of another kind; then *err says which kind.
int sl_json_tokenizer_load(const sl_documents *documents, int *is_bpe, sl_tokenizer *tok, sl_error *err);
// specials: adds the special tokens of Llama 3, because no other file names any.
int sl_tiktoken_load(const char *path, const char *data, size_t n, int specials, sl_tokenizer *tok, sl_error *err);
// Mistral's tekken.json, which must exist.
int sl_tekken_load(const sl_documents *documents, sl_tokenizer *tok, sl_error *err);
// After the last token of ranks: the ids [first, end) ascend with the ranks.
int sl_ranks_finish(const char *path, int32_t first, int32_t end, const char *pattern, sl_tokenizer *tok, sl_error *err);
int sl_decode64(const char *s, size_t n, char *out); // bytes written, at most n; or -1
// Reads tokenizer_config.json, added_tokens.json and special_tokens_map.json.
int sl_token_files_load(const sl_documents *documents, sl_tokenizer *tok, sl_error *err);
// Where a tokenizer.model gets a blank. *joins: a part that begins with a blank gets no other one.
int sl_blank_load(const sl_documents *documents, sl_blank *blank, int *joins, sl_error *err);

#endif
