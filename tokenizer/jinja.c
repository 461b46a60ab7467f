// tokenizer/jinja.c - the reduced form of a chat template (jinja.h). The reducer cuts tags and text as Jinja's lexer does, and
// drops branches whose condition is in one of two lists. It does not parse expressions; everything else stays in the form.
#include "tokenizer/jinja.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 64 };

typedef struct frame { // an open if or for
    int is_if, outer;  // outer: the text around the block belongs to the form
    int taken;         // a branch whose condition is always true has begun: later branches are dropped
    int written;       // the form holds an `if` tag of this chain
} frame;

typedef struct reducer {
    frame open[MOST_DEPTH];
    int depth, live; // live: the next text belongs to the form
    sl_text *out, tag;
    sl_error *err;
} reducer;

// Conditions, written as in the form, whose value is the same for every prompt that chat.c writes.
static const char *const always[] = {
    "add_generation_prompt",
    "strftime_now is defined",
    "not tools is defined",
    "message.content is string",
    "not(message.role=='ipython' or message.role=='tool' or'tool_calls' in message)",
    ("not(message.role=='tool' or message.role=='tool_results' or(message.tool_calls is defined and message.tool_calls is not "
     "none))"),
};
static const char *const never[] = {
    "tools",
    "custom_tools is defined",
    "builtin_tools is defined or tools is not none",
    "builtin_tools is defined",
    "tools is not none",
    "tools is not none and not tools_in_user_message",
    "tools_in_user_message and not tools is none",
    "tools is not none and(message==user_messages[-1])",
    "'tool_calls' in message",
    "message.tool_calls",
    "message.reasoning_content is string",
    "message.reasoning_content is defined and message.reasoning_content is not none",
    "enable_thinking is defined and enable_thinking is false", // chat.c writes that prompt as a template of another name
    "message.tool_calls is defined and message.tool_calls is not none",
    "(message.tool_calls is defined and message.tool_calls is not none)",
    "message.role=='tool'",
    "message.role=='tool' or message.role=='ipython'",
    "message.role=='tool_results' or message.role=='tool'",
};

static int listed(const char *const *list, size_t n, const char *condition) {
    for (size_t i = 0; i < n; i++)
        if (!strcmp(list[i], condition)) return 1;
    return 0;
}

static int answer(const char *condition) { // 1: always, 0: never, -1: depends
    if (listed(always, sizeof always / sizeof *always, condition)) return 1;
    return listed(never, sizeof never / sizeof *never, condition) ? 0 : -1;
}

static int put(sl_text *out, const char *s, size_t n, sl_error *err) {
    return sl_text_append(out, s, n, err);
}

static int malformed(const reducer *r, const char *what) {
    return sl_fail(r->err, SL_ERR_UNSUPPORTED, "chat template: %s", what);
}

// ---- tags ----

static int is_word(int c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (c & 0x80);
}
static int is_blank(int c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static int put_letter(sl_text *out, char c, sl_error *err) { // a character of a string of the form, whose quotes are '
    const char *escape = c == '\n' ? "\\n" : c == '\'' ? "\\'" : NULL;
    return escape ? put(out, escape, 2, err) : put(out, &c, 1, err);
}

// Moves *at from the first quote of a string to the character after the last quote. Escapes other than \n, \' and \" stay as
// they are.
static int take_string(const char **at, sl_text *out, sl_error *err) {
    const char *p = *at, quote = *p++;
    int rc = put(out, "'", 1, err);
    for (; !rc && *p && *p != quote; p++) {
        if (*p == '\\' && p[1]) {
            p++;
            rc = *p == 'n'                 ? put(out, "\\n", 2, err)
                 : *p == '\'' || *p == '"' ? put_letter(out, *p, err)
                                           : put(out, p - 1, 2, err);
        } else {
            rc = put_letter(out, *p, err);
        }
    }
    if (!rc && !*p) return sl_fail(err, SL_ERR_UNSUPPORTED, "chat template: a string without an end");
    *at = p + 1;
    return rc ? rc : put(out, "'", 1, err);
}

// ['role'] and ['content'] after a name or bracket are written as attributes. Returns the length of such a subscript, or 0.
static size_t attribute(const char *p, const sl_text *out, const char **name) {
    static const char *const names[] = {"role", "content"};
    if (out->n == 0 || !(is_word(out->data[out->n - 1]) || out->data[out->n - 1] == ']')) return 0;
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(names[i]);
        *name = names[i];
        if (p[0] == '[' && (p[1] == '\'' || p[1] == '"') && !strncmp(p + 2, names[i], n) && p[2 + n] == p[1] && p[3 + n] == ']')
            return n + 4;
    }
    return 0;
}

// Takes the inside of a tag up to `close` ("%}" or "}}") and moves *at to the character after it. *dash: the tag ends with a
// dash.
static int take_tag(reducer *r, const char **at, const char *close, int *dash) {
    const char *p = *at, *name;
    sl_text *out = &r->tag;
    int rc = 0, blank = 0;
    out->n = 0;
    *dash = 0;
    for (size_t n; !rc && *p;) {
        *dash = *p == '-' && !strncmp(p + 1, close, 2);
        if (*dash || !strncmp(p, close, 2)) {
            *at = p + *dash + 2;
            return put(out, "", 0, r->err);
        }
        if (is_blank(*p)) {
            blank = 1, p++;
            continue;
        }
        // a blank stays between two words, and between a string or bracket and a word
        if (blank && out->n > 0 && is_word(*p) && (is_word(out->data[out->n - 1]) || strchr("')]", out->data[out->n - 1])))
            rc = put(out, " ", 1, r->err);
        blank = 0;
        if (rc) break;
        if (*p == '\'' || *p == '"') {
            rc = take_string(&p, out, r->err);
        } else if ((n = attribute(p, out, &name)) > 0) {
            rc = put(out, ".", 1, r->err);
            if (!rc) rc = put(out, name, n - 4, r->err);
            p += n;
        } else {
            rc = put(out, p++, 1, r->err);
        }
    }
    return rc ? rc : malformed(r, "a tag without an end");
}

// ---- branches ----

static int put_tag(reducer *r, const char *word, const char *rest) {
    int rc = put(r->out, "{%", 2, r->err);
    if (!rc) rc = put(r->out, word, strlen(word), r->err);
    if (!rc) rc = put(r->out, rest, strlen(rest), r->err);
    return rc ? rc : put(r->out, "%}", 2, r->err);
}

// Begins a branch of the innermost chain. condition NULL: else.
static int branch(reducer *r, const char *condition) {
    frame *f = &r->open[r->depth - 1];
    int is = condition ? answer(condition) : 1;
    r->live = f->outer && !f->taken && is != 0;
    if (!r->live) return 0;
    if (is == 1) {
        f->taken = 1;
        return f->written ? put_tag(r, "else", "") : 0;
    }
    int first = !f->written;
    f->written = 1;
    return put_tag(r, first ? "if " : "elif ", condition);
}

static int end_frame(reducer *r) {
    frame *f = &r->open[--r->depth];
    r->live = f->outer;
    return r->live && (f->written || !f->is_if) ? put_tag(r, f->is_if ? "endif" : "endfor", "") : 0;
}

static const char *after(const char *s, const char *word) { // the text after the word at the start of s; NULL: another word
    size_t n = strlen(word);
    return !strncmp(s, word, n) && !is_word(s[n]) ? s + n + (s[n] == ' ') : NULL;
}

static int block(reducer *r) {
    const char *s = r->tag.data, *rest;
    int in_if = r->depth > 0 && r->open[r->depth - 1].is_if, is_if = after(s, "if") != NULL;
    if (is_if || after(s, "for")) {
        if (r->depth == MOST_DEPTH) return malformed(r, "nested too deeply");
        r->open[r->depth++] = (frame){.is_if = is_if, .outer = r->live};
        if (is_if) return branch(r, after(s, "if"));
        return r->live ? put_tag(r, "", s) : 0;
    }
    if ((rest = after(s, "elif"))) return in_if ? branch(r, rest) : malformed(r, "elif without if");
    if (!strcmp(s, "else") && in_if) return branch(r, NULL);
    if (!strcmp(s, "endif")) return in_if ? end_frame(r) : malformed(r, "endif without if");
    if (!strcmp(s, "endfor")) return r->depth > 0 && !in_if ? end_frame(r) : malformed(r, "endfor without for");
    return r->live ? put_tag(r, "", s) : 0;
}

// ---- text ----

// Appends to the string at the end of the form, or opens a print tag with a new string.
static int put_literal(reducer *r, const char *s, size_t n) { // s: characters as in a string of the form, without quotes
    sl_text *out = r->out;
    int rc = 0;
    if (out->n >= 3 && !memcmp(out->data + out->n - 3, "'}}", 3))
        out->n -= 3;
    else
        rc = put(out, "{{'", 3, r->err);
    if (!rc) rc = put(out, s, n, r->err);
    return rc ? rc : put(out, "'}}", 3, r->err);
}

static int put_data(reducer *r, const char *s, size_t n) {
    sl_text text = {0};
    int rc = 0;
    for (size_t i = 0; !rc && i < n; i++) rc = s[i] == '\\' ? put(&text, "\\\\", 2, r->err) : put_letter(&text, s[i], r->err);
    if (!rc && r->live && text.n > 0) rc = put_literal(r, text.data, text.n);
    sl_text_free(&text);
    return rc;
}

static int put_print(reducer *r) {
    const char *s = r->tag.data;
    size_t n = r->tag.n, end = 1;
    if (!r->live) return 0;
    if (s[0] == '\'') { // a tag of one string is joined with its neighbours
        while (end < n && s[end] != '\'') end += s[end] == '\\' ? 2 : 1;
        if (end + 1 == n) return n > 2 ? put_literal(r, s + 1, n - 2) : 0;
    }
    int rc = put(r->out, "{{", 2, r->err);
    if (!rc) rc = put(r->out, s, n, r->err);
    return rc ? rc : put(r->out, "}}", 2, r->err);
}

static const char *next_tag(const char *p) {
    for (; *p; p++)
        if (*p == '{' && (p[1] == '{' || p[1] == '%' || p[1] == '#')) return p;
    return p;
}

// Writes the text before `tag` without the white space that Jinja cuts for the tag. at_line: the text begins a line.
static int text_between(reducer *r, const char *s, const char *tag, int at_line) {
    size_t n = (size_t)(tag - s), line = n;
    if (*tag && tag[2] == '-') {
        while (n > 0 && is_blank(s[n - 1])) n--;
    } else if (*tag && tag[1] != '{') { // lstrip_blocks
        while (line > 0 && is_blank(s[line - 1]) && s[line - 1] != '\n') line--;
        if (line > 0 ? s[line - 1] == '\n' : at_line) n = line;
    } else if (!*tag && n > 0 && s[n - 1] == '\n') { // Jinja drops one newline at the end of the template
        n--;
    }
    return put_data(r, s, n);
}

static int reduce(reducer *r, const char *p) {
    for (int at_line = 1, dash;;) {
        const char *tag = next_tag(p);
        int rc = text_between(r, p, tag, at_line);
        if (rc || !*tag) return rc ? rc : r->depth > 0 ? malformed(r, "a block without an end") : 0;
        p = tag + 2;
        if (tag[1] == '#') {
            const char *end = strstr(p, "#}");
            if (!end) return malformed(r, "a comment without an end");
            dash = end > p && end[-1] == '-';
            p = end + 2;
        } else {
            p += *p == '-';
            rc = take_tag(r, &p, tag[1] == '%' ? "%}" : "}}", &dash);
            if (!rc) rc = tag[1] == '%' ? block(r) : put_print(r);
            if (rc) return rc;
        }
        at_line = tag[1] != '{' && !dash && *p == '\n'; // trim_blocks
        p += at_line;
        while (dash && is_blank(*p)) p++;
    }
}

int sl_jinja_reduce(const char *jinja, sl_text *out, sl_error *err) {
    reducer r = {.live = 1, .out = out, .err = err};
    int rc = sl_text_append(out, "", 0, err);
    if (!rc) rc = reduce(&r, jinja);
    sl_text_free(&r.tag);
    return rc;
}
