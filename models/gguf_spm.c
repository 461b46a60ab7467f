// models/gguf_spm.c - writes the SentencePiece model of a GGUF file (tokenizer.ggml.model "llama") as tokenizer.model has it:
// the protobuf message ModelProto with pieces (field 1), trainer_spec (2) and normalizer_spec (3).
#include "models/gguf_documents.h"

#include <math.h>
#include <string.h>

enum { VARINT = 0, BYTES = 2, FIXED32 = 5 };                              // types of protobuf fields
enum { PIECE = 1, SCORE = 2, TYPE = 3 };                                  // fields of a piece
enum { MODEL_TYPE = 3, BYTE_FALLBACK = 35, UNK_ID = 40, UNK_PIECE = 45 }; // fields of trainer_spec; BOS and EOS follow UNK
enum { NORMALIZER_NAME = 1, ADD_DUMMY_PREFIX = 3, REMOVE_EXTRA_WHITESPACES = 4, ESCAPE_WHITESPACES = 5 };
enum { BPE = 2 }; // model_type

static int put_varint(sl_text *to, uint64_t x, sl_error *err) {
    char bytes[10];
    size_t n = 0;
    for (; x > 127; x >>= 7) bytes[n++] = (char)(x | 128);
    bytes[n++] = (char)x;
    return sl_text_append(to, bytes, n, err);
}

static int put_number(sl_text *to, int field, uint64_t x, sl_error *err) {
    int rc = put_varint(to, (uint64_t)field << 3 | VARINT, err);
    return rc ? rc : put_varint(to, x, err);
}

static int put_bytes(sl_text *to, int field, const char *data, size_t n, sl_error *err) {
    int rc = put_varint(to, (uint64_t)field << 3 | BYTES, err);
    if (!rc) rc = put_varint(to, n, err);
    return rc ? rc : sl_text_append(to, data, n, err);
}

static int put_float(sl_text *to, int field, float x, sl_error *err) {
    uint32_t u;
    char bytes[4];
    memcpy(&u, &x, 4);
    for (int i = 0; i < 4; i++) bytes[i] = (char)(u >> 8 * i);
    int rc = put_varint(to, (uint64_t)field << 3 | FIXED32, err);
    return rc ? rc : sl_text_append(to, bytes, 4, err);
}

// part: memory for the message of a piece.
static int put_piece(sl_text *to, sl_text *part, sl_gguf_string text, float score, int type, sl_error *err) {
    part->n = 0;
    int rc = put_bytes(part, PIECE, text.at, text.n, err);
    if (!rc) rc = put_float(part, SCORE, score, err);
    if (!rc) rc = put_number(part, TYPE, (uint64_t)type, err);
    return rc ? rc : put_bytes(to, 1, part->data, part->n, err);
}

static int put_pieces(const sl_gguf *g, const sl_gguf_vocab *v, sl_text *to, sl_text *part, int *has_bytes, sl_error *err) {
    const sl_gguf_value *scores;
    const char *at = v->tokens->at;
    int type, rc = sl_gguf_array(g, "tokenizer.ggml.scores", SL_GGUF_F32, &scores, err);
    if (!rc && (!scores || scores->n != v->tokens->n))
        rc = sl_fail(err, SL_ERR_FORMAT, "%s: key tokenizer.ggml.scores has %llu elements, tokenizer.ggml.tokens has %llu",
                     g->path, (unsigned long long)(scores ? scores->n : 0), (unsigned long long)v->tokens->n);
    *has_bytes = 0;
    for (uint64_t i = 0; !rc && i < v->tokens->n; i++) {
        sl_gguf_string text = sl_gguf_next_string(&at);
        rc = sl_gguf_token_type(g, v, i, &type, err);
        *has_bytes |= type == SL_GGUF_BYTE;
        if (!rc) rc = put_piece(to, part, text, sl_gguf_float_at(scores, i), type, err);
    }
    return rc;
}

static int put_trainer(const sl_gguf *g, const sl_gguf_vocab *v, sl_text *to, sl_text *part, int has_bytes, sl_error *err) {
    static const char *const names[3] = {"unknown_token_id", "bos_token_id", "eos_token_id"};
    part->n = 0;
    int rc = put_number(part, MODEL_TYPE, BPE, err);
    if (!rc) rc = put_number(part, BYTE_FALLBACK, (uint64_t)has_bytes, err);
    for (int i = 0; !rc && i < 3; i++) {
        int id;
        sl_gguf_string text = {"", 0};
        rc = sl_gguf_token_id(g, names[i], &id, err);
        if (!rc && id >= 0) text = sl_gguf_token_text(v, id);
        if (!rc) rc = put_number(part, UNK_ID + i, (uint64_t)(int64_t)id, err);
        if (!rc) rc = put_bytes(part, UNK_PIECE + i, text.at, text.n, err);
    }
    return rc ? rc : put_bytes(to, 2, part->data, part->n, err);
}

static int put_normalizer(const sl_gguf *g, sl_text *to, sl_text *part, sl_error *err) {
    int prefix, remove;
    part->n = 0;
    int rc = sl_gguf_bool(g, "tokenizer.ggml.add_space_prefix", 1, &prefix, err);
    if (!rc) rc = sl_gguf_bool(g, "tokenizer.ggml.remove_extra_whitespaces", 0, &remove, err);
    if (!rc && sl_gguf_find(g, "tokenizer.ggml.precompiled_charsmap"))
        rc = sl_fail(err, SL_ERR_UNSUPPORTED, "%s: key tokenizer.ggml.precompiled_charsmap is not supported", g->path);
    if (!rc) rc = put_bytes(part, NORMALIZER_NAME, "identity", 8, err);
    if (!rc) rc = put_number(part, ADD_DUMMY_PREFIX, (uint64_t)prefix, err);
    if (!rc) rc = put_number(part, REMOVE_EXTRA_WHITESPACES, (uint64_t)remove, err);
    if (!rc) rc = put_number(part, ESCAPE_WHITESPACES, 1, err);
    return rc ? rc : put_bytes(to, 3, part->data, part->n, err);
}

int sl_gguf_sentencepiece(const sl_gguf *g, const sl_gguf_vocab *v, sl_text *model, sl_error *err) {
    sl_text part = {0};
    int has_bytes, rc = put_pieces(g, v, model, &part, &has_bytes, err);
    if (!rc) rc = put_trainer(g, v, model, &part, has_bytes, err);
    if (!rc) rc = put_normalizer(g, model, &part, err);
    sl_text_free(&part);
    return rc;
}
