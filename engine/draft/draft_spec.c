// engine/draft/draft_spec.c - reads the words of {draft}.
#include "engine/draft/draft_spec.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kinds[] = "ngram[:min=N][:max=N], self[:attn=METHOD], model[:attn=METHOD], ngram+self, ngram+model or auto, "
                            "with [:least=N][:most=N] drafts";

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

static int read_numbers(const char **at, sl_draft_spec *out) {
    int is_bad = 0;
    while (!is_bad && (take_number(at, "min", 1, SL_NGRAM_LONGEST, &out->min, &is_bad) ||
                       take_number(at, "max", 1, SL_NGRAM_LONGEST, &out->max, &is_bad) ||
                       take_number(at, "least", 0, SL_MAX_DRAFT, &out->least, &is_bad) ||
                       take_number(at, "most", 1, SL_MAX_DRAFT, &out->most, &is_bad)))
        continue;
    return is_bad || out->min > out->max || out->least > out->most;
}

static const char *after_word(const char *text, const char *word) { // NULL: the text does not begin with the word
    size_t n = strlen(word);
    if (strncmp(text, word, n) || (text[n] && text[n] != ':' && text[n] != '+')) return NULL;
    return text[n] == ':' && !text[n + 1] ? NULL : text + n + (text[n] == ':');
}

int sl_draft_parse(const char *draft, sl_draft_spec *out, sl_error *err) {
    static const char range[] = "1 <= min <= max <= 64 and 0 <= least <= most <= 15 does not hold";
    const char *at, *behind;
    *out = (sl_draft_spec){.min = 3, .max = 32, .most = SL_DRAFT_MOST};
    if (!strcmp(draft, "auto")) {
        out->has_ngram = 1, out->n_methods = 2;
        snprintf(out->attn[0], sizeof out->attn[0], "santa-is:S=64");
        snprintf(out->attn[1], sizeof out->attn[1], "streaming:window=1024");
        return 0;
    }
    at = draft;
    if ((behind = after_word(at, "ngram"))) {
        out->has_ngram = 1, at = behind;
        if (read_numbers(&at, out)) return malformed(draft, range, err);
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
    if (read_numbers(&at, out)) return malformed(draft, range, err);
    int has_attn = !strncmp(at, "attn=", 5);
    if (!has_attn && *at) return malformed(draft, "unknown parameter", err);
    out->n_methods = 1;
    int n = snprintf(out->attn[0], sizeof out->attn[0], "%s", has_attn ? at + 5 : out->of_model ? "dense" : "santa-is:S=64");
    return (size_t)n < sizeof out->attn[0] ? 0 : malformed(draft, "the method is too long", err);
}
