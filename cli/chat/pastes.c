// cli/chat/pastes.c - see pastes.h.
#include "cli/chat/pastes.h"
#include "cli/grow.h"

#include <stdio.h>
#include <string.h>

enum { SHORT_BYTES = 1000 };

void cli_paste_clean(sl_text *text) {
    size_t n = 0;
    for (size_t i = 0; i < text->n; i++) {
        char c = text->data[i];
        if (c == '\r' && i + 1 < text->n && text->data[i + 1] == '\n') continue;
        if (c) text->data[n++] = c == '\r' ? '\n' : c;
    }
    if (n && text->data[n - 1] == '\n') n--;
    text->n = n;
    if (text->data) text->data[n] = 0;
}

int cli_paste_is_short(const sl_text *text) {
    return text->n <= SHORT_BYTES && !memchr(text->data, '\n', text->n);
}

static const char *grouped(size_t n, char buf[32]) { // 9,012
    char digits[24];
    int n_digits = snprintf(digits, sizeof digits, "%zu", n), at = 0;
    for (int i = 0; i < n_digits; i++) {
        if (i && (n_digits - i) % 3 == 0) buf[at++] = ',';
        buf[at++] = digits[i];
    }
    buf[at] = 0;
    return buf;
}

int cli_pastes_add(cli_pastes *pastes, sl_text *text, const char **label, sl_error *err) {
    cli_paste *items = cli_grow(pastes->items, pastes->n, &pastes->cap, sizeof *items);
    if (!items) return sl_fail(err, SL_ERR_MEMORY, "a pasted text: out of memory");
    pastes->items = items;
    cli_paste *p = &items[pastes->n++];
    size_t n_lines = 1;
    char lines[32], bytes[32];
    for (size_t i = 0; i < text->n; i++) n_lines += text->data[i] == '\n';
    *p = (cli_paste){.text = *text};
    *text = (sl_text){0};
    snprintf(p->label, sizeof p->label, "[paste %d: %s line%s, %s bytes]", pastes->n, grouped(n_lines, lines),
             n_lines == 1 ? "" : "s", grouped(p->text.n, bytes));
    *label = p->label;
    return 0;
}

int cli_pastes_expand(const cli_pastes *pastes, const char *line, sl_text *out, sl_error *err) {
    int rc = 0;
    while (!rc && *line) {
        size_t n = 1 + strcspn(line + 1, "["); // no label begins inside
        const sl_text *text = NULL;
        for (int i = 0; !text && i < pastes->n; i++) {
            size_t length = strlen(pastes->items[i].label);
            if (!strncmp(line, pastes->items[i].label, length)) text = &pastes->items[i].text, n = length;
        }
        rc = text ? sl_text_append(out, text->data, text->n, err) : sl_text_append(out, line, n, err);
        line += n;
    }
    return rc;
}

size_t cli_pastes_label_at_end(const cli_pastes *pastes, const char *line, size_t n) {
    for (int i = 0; i < pastes->n; i++) {
        size_t length = strlen(pastes->items[i].label);
        if (n >= length && !memcmp(line + n - length, pastes->items[i].label, length)) return length;
    }
    return 0;
}

void cli_pastes_clear(cli_pastes *pastes) {
    for (int i = 0; i < pastes->n; i++) sl_text_free(&pastes->items[i].text);
    free(pastes->items);
    *pastes = (cli_pastes){0};
}
