// engine/draft/draft_spec.c - reads the words of {draft}.
#include "engine/draft/draft_spec.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kinds[] =
    "ngram[:min=N][:max=N], self[:attn=METHOD][:weights=int4], model[:attn=METHOD], ngram+self, ngram+model, "
    "auto or auto:weights=int4, with [:least=N][:most=N] drafts";
static const char formats[] = "weights= must be given once, as int4, int8 or fp8";

static int malformed(const char *draft, const char *what, sl_error *err) {
    return sl_fail(err, SL_ERR_ARG, "{draft} %.80s: %s; expected %s", draft, what, kinds);
}

// Reads `name=N` at *at, which ends with ':' or the end of the text. Returns 1 when there is such a word.
static int take_number(const char **at, const char *name, int least, int most, int *out, int *is_bad) {
    size_t n = strlen(name);
    if (strncmp(*at, name, n) || (*at)[n] != '=') return 0;
    char *end;
    long x = strtol(*at + n + 1, &end, 10);
    *is_bad |= !isdigit((unsigned char)(*at)[n + 1]) || (*end && *end != ':' && *end != '+') || x < least || x > most;
    *out = (int)x;
    *at = end + (*end == ':');
    return 1;
}

const char *sl_draft_format(const char *name) {
    static const char *const formats_of_copies[] = {"int4", "int8", "fp8", NULL};
    int i = 0;
    while (formats_of_copies[i] && strcmp(formats_of_copies[i], name)) i++;
    return formats_of_copies[i];
}

// Reads "weights=FORMAT" at *at, which ends with ':' or the end of the text. Returns 1 when there is such a word.
static int take_weights(const char **at, sl_draft_spec *out, int *is_bad) {
    static const char word[] = "weights=";
    char name[8];
    if (strncmp(*at, word, strlen(word))) return 0;
    *at += strlen(word);
    int n = (int)strcspn(*at, ":");
    snprintf(name, sizeof name, "%.*s", n, *at);
    *is_bad |= out->weights || n >= (int)sizeof name || !(out->weights = sl_draft_format(name));
    *at += n + ((*at)[n] == ':');
    return 1;
}

// Reads the words behind the name of a source, up to attn=. Returns 1 when one is wrong.
static int read_words(const char **at, sl_draft_spec *out) {
    int is_bad = 0;
    while (!is_bad && (take_number(at, "min", 1, SL_NGRAM_LONGEST, &out->min, &is_bad) ||
                       take_number(at, "max", 1, SL_NGRAM_LONGEST, &out->max, &is_bad) ||
                       take_number(at, "least", 0, SL_MAX_DRAFT, &out->least, &is_bad) ||
                       take_number(at, "most", 1, SL_MAX_DRAFT, &out->most, &is_bad) || take_weights(at, out, &is_bad)))
        continue;
    return is_bad || out->min > out->max || out->least > out->most;
}

static const char *after_word(const char *text, const char *word) { // NULL: the text does not begin with the word
    size_t n = strlen(word);
    if (strncmp(text, word, n) || (text[n] && text[n] != ':' && text[n] != '+')) return NULL;
    return text[n] == ':' && !text[n + 1] ? NULL : text + n + (text[n] == ':');
}

// The rest of a text of "self" or "model": nothing, or attn=METHOD, for "self" also with :weights=FORMAT behind the method.
static int read_method(const char *text, const char *draft, sl_draft_spec *out, sl_error *err) {
    int is_bad = 0;
    char *to = out->attn[0];
    const char *attn = !strncmp(text, "attn=", 5) ? text + 5 : NULL, *weights = attn ? strstr(attn, ":weights=") : NULL;
    if (!attn && *text) return malformed(draft, "unknown parameter", err);
    if (!attn) attn = out->of_model ? "dense" : "santa-is:S=64";
    out->n_methods = 1;
    int n = weights ? (int)(weights - attn) : (int)strlen(attn);
    if (snprintf(to, sizeof out->attn[0], "%.*s", n, attn) >= (int)sizeof out->attn[0])
        return malformed(draft, "the method is too long", err);
    if (weights) {
        weights++; // behind the ':'
        take_weights(&weights, out, &is_bad);
        if (is_bad || *weights) return malformed(draft, formats, err);
    }
    if (out->weights && out->of_model) return malformed(draft, "a draft model has weights of its own", err);
    return 0;
}

static int read_auto(const char *words, const char *draft, sl_draft_spec *out, sl_error *err) {
    int is_bad = 0;
    take_weights(&words, out, &is_bad);
    if (is_bad) return malformed(draft, formats, err);
    if (*words) return malformed(draft, "unknown parameter", err);
    out->has_ngram = 1, out->n_methods = 2;
    snprintf(out->attn[0], sizeof out->attn[0], "santa-is:S=64");
    snprintf(out->attn[1], sizeof out->attn[1], "streaming:window=1024");
    return 0;
}

int sl_draft_parse(const char *draft, sl_draft_spec *out, sl_error *err) {
    static const char range[] =
        "1 <= min <= max <= 64 and 0 <= least <= most <= 15 does not hold, or weights is not int4, int8 or fp8";
    const char *at = draft, *behind;
    *out = (sl_draft_spec){.min = 3, .max = 32, .most = SL_DRAFT_MOST};
    if ((behind = after_word(at, "auto"))) return read_auto(behind, draft, out, err);
    if ((behind = after_word(at, "ngram"))) {
        out->has_ngram = 1, at = behind;
        if (read_words(&at, out)) return malformed(draft, range, err);
        if (out->weights) return malformed(draft, "ngram reads no weights", err);
        if (*at == '+')
            at++;
        else if (*at)
            return malformed(draft, "unknown parameter", err);
        else
            return 0;
    }
    behind = after_word(at, "self");
    if (!behind) out->of_model = (behind = after_word(at, "model")) != NULL;
    if (!behind) return malformed(draft, "unknown source", err);
    at = behind;
    if (read_words(&at, out)) return malformed(draft, range, err);
    return read_method(at, draft, out, err);
}
