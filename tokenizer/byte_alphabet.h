// tokenizer/byte_alphabet.h - GPT-2's alphabet, which writes each byte as a printable character. Vocabularies of byte-level BPE
// are written in it.
#ifndef SLEIGH_BYTE_ALPHABET_H
#define SLEIGH_BYTE_ALPHABET_H

#include <stddef.h>

// Printable Latin-1 bytes are their own characters.
static inline int sl_alphabet_own(int b) {
    return (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
}

// The other 68 bytes are U+0100 and up, in order: 0 to 0x20, 0x7f to 0xa0, 0xad.
static inline int sl_alphabet_char(int b) {
    if (sl_alphabet_own(b)) return b;
    return b <= 0x20 ? 0x100 + b : b <= 0xa0 ? 0x121 + (b - 0x7f) : 0x143;
}

static inline int sl_alphabet_byte(int c) { // -1: no character of the alphabet
    if (c < 0x100) return sl_alphabet_own(c) ? c : -1;
    return c <= 0x120 ? c - 0x100 : c <= 0x142 ? c - 0x121 + 0x7f : c == 0x143 ? 0xad : -1;
}

// Writes the bytes that s[0..n) stands for to out, which has room for n bytes. Returns their number; -1: s holds another
// character. All characters of the alphabet are below U+0800.
static inline ptrdiff_t sl_alphabet_decode(const char *s, size_t n, char *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        int c = (unsigned char)s[i];
        if (c >= 0x80) {
            if ((c & 0xe0) != 0xc0 || i + 1 == n || (s[i + 1] & 0xc0) != 0x80) return -1;
            c = (c & 31) << 6 | (s[++i] & 63);
        }
        int byte = sl_alphabet_byte(c);
        if (byte < 0) return -1;
        out[n_out++] = (char)byte;
    }
    return (ptrdiff_t)n_out;
}

// Writes s[0..n) in the alphabet to out, which has room for 2 n bytes. Returns the number of bytes.
static inline size_t sl_alphabet_encode(const char *s, size_t n, char *out) {
    size_t n_out = 0;
    for (size_t i = 0; i < n; i++) {
        int c = sl_alphabet_char((unsigned char)s[i]);
        if (c >= 0x80) out[n_out++] = (char)(0xc0 | c >> 6), c = 0x80 | (c & 63);
        out[n_out++] = (char)c;
    }
    return n_out;
}

#endif
