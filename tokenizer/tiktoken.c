// tokenizer/tiktoken.c - reads a tiktoken rank file: one line per token, with the bytes in base64 and the rank. LF or CRLF ends
// a line. The file has no pattern and no special tokens, so the reader adds the pattern and the special tokens of Llama 3.
#include "tokenizer/tokenizer_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_SPECIAL = 256, MAX_RANKS = 1 << 23 };

static int digit64(int c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int sl_decode64(const char *s, size_t n, char *out) {
    int bytes = 0;
    if (n == 0 || n % 4) return -1;
    for (size_t i = 0; i < n; i += 4) {
        int pad = s[i + 3] == '=' ? s[i + 2] == '=' ? 2 : 1 : 0, x = 0;
        if (pad && i + 4 != n) return -1;
        for (int j = 0; j < 4; j++) {
            int d = j >= 4 - pad ? 0 : digit64(s[i + j]);
            if (d < 0) return -1;
            x = x << 6 | d;
        }
        for (int j = 0; j < 3 - pad; j++) out[bytes++] = (char)(x >> (16 - 8 * j));
    }
    return bytes;
}

static int read_line(const char *path, int line, const char *s, size_t n, int n_ranks, sl_bpe *bpe, sl_error *err) {
    char bytes[1024];
    const char *blank = memchr(s, ' ', n);
    char *end;
    int length = blank && (size_t)(blank - s) <= sizeof bytes ? sl_decode64(s, (size_t)(blank - s), bytes) : -1;
    long id = length > 0 ? strtol(blank + 1, &end, 10) : -1;
    if (length <= 0 || end == blank + 1 || end != s + n)
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: expected a token in base64, a blank and its rank", path, line);
    if (id < 0 || id >= n_ranks)
        return sl_fail(err, SL_ERR_FORMAT, "%s: line %d: the rank is out of range, expected 0 to %d", path, line, n_ranks - 1);
    return sl_bpe_add(bpe, path, (int32_t)id, bytes, (size_t)length, 1, err);
}

// tiktoken merges the two neighbours whose joined bytes have the lowest rank. So every split of a token into two tokens is a
// merge of the token's rank.
static int add_merges(const char *path, int32_t first, int32_t end, sl_bpe *bpe, sl_error *err) {
    for (int32_t id = first; id < end; id++) {
        size_t n = 0;
        const char *bytes = sl_bpe_bytes(bpe, id, &n);
        for (size_t i = 1; bytes && i < n; i++) {
            int32_t left = sl_bpe_find(bpe, bytes, i), right = left < 0 ? -1 : sl_bpe_find(bpe, bytes + i, n - i);
            int rc = right < 0 ? 0 : sl_bpe_merge(bpe, path, id, left, right, err);
            if (rc) return rc;
        }
    }
    return 0;
}

int sl_ranks_finish(const char *path, int32_t first, int32_t end, const char *pattern, sl_tokenizer *tok, sl_error *err) {
    int rc = sl_bpe_finish(tok->bpe, -1, err);
    if (rc) return rc;
    int missing = sl_bpe_missing_byte(tok->bpe);
    if (missing >= 0) return sl_fail(err, SL_ERR_FORMAT, "%s: no token for byte 0x%02x", path, missing);
    rc = sl_pre_tokenizer_new(path, pattern, &tok->pre, err);
    return rc ? rc : add_merges(path, first, end, tok->bpe, err);
}

static int add_specials(const char *path, int32_t first, sl_tokenizer *tok, sl_error *err) {
    static const char *const names[] = {
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|reserved_special_token_0|>",
        "<|reserved_special_token_1|>",
        "<|finetune_right_pad_id|>",
        "<|reserved_special_token_2|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|python_tag|>",
    };
    enum { NAMED = sizeof names / sizeof *names };
    for (int i = 0; i < N_SPECIAL; i++) {
        char name[64];
        if (i < NAMED)
            snprintf(name, sizeof name, "%s", names[i]);
        else
            snprintf(name, sizeof name, "<|reserved_special_token_%d|>", i - NAMED + 3);
        int rc = sl_tokenizer_add(tok, path, &(sl_added){.text = name, .n = strlen(name), .id = first + i, .special = 1}, err);
        if (rc) return rc;
    }
    tok->bos = first;
    tok->eos = first + 1;
    tok->add_bos = 1;
    return 0;
}

int sl_tiktoken_load(const char *path, const char *data, size_t n, int specials, sl_tokenizer *tok, sl_error *err) {
    int n_ranks = 0, line = 0;
    for (size_t i = 0; i < n && n_ranks < MAX_RANKS; i++) n_ranks += data[i] == '\n';
    if (n_ranks == MAX_RANKS) return sl_fail(err, SL_ERR_FORMAT, "%s: %d lines or more", path, MAX_RANKS);
    n_ranks += n > 0 && data[n - 1] != '\n';
    int rc = sl_bpe_new(n_ranks, (size_t)n_ranks, (sl_bpe_options){.ignore_merges = 1}, &tok->bpe, err);
    for (const char *s = data, *end = data + n; !rc && s < end;) {
        const char *stop = memchr(s, '\n', (size_t)(end - s));
        if (!stop) stop = end;
        size_t length = (size_t)(stop - s);
        if (length > 0 && s[length - 1] == '\r') length--; // CRLF
        rc = read_line(path, ++line, s, length, n_ranks, tok->bpe, err);
        s = stop + 1;
    }
    tok->kind = "tiktoken";
    if (!rc) rc = sl_ranks_finish(path, 0, n_ranks, sl_pattern_llama3, tok, err);
    tok->n_vocab = n_ranks;
    return rc || !specials ? rc : add_specials(path, n_ranks, tok, err);
}
