// engine/stopper.c - stop strings in a stream of text. See stopper.h.
#include "engine/stopper.h"

#include <stdlib.h>
#include <string.h>

struct sl_stopper {
    char **stops;
    size_t *lengths;
    int n_stops;
    size_t longest;
    const char *found; // the stop string that is complete; NULL: none is
    char *text;        // the delayed text, then the text of the last call
    size_t n, cap, n_shown;
};

int sl_stopper_new(const char *const *stops, int n, sl_stopper **out, sl_error *err) {
    for (int i = 0; i < n; i++)
        if (!stops[i][0]) return sl_fail(err, SL_ERR_ARG, "{stop}: the string is empty, expected at least one character");
    sl_stopper *s = calloc(1, sizeof *s);
    if (s) s->stops = calloc(n + 1, sizeof *s->stops), s->lengths = calloc(n + 1, sizeof *s->lengths);
    int ok = s && s->stops && s->lengths;
    for (int i = 0; ok && i < n; i++) {
        s->stops[i] = strdup(stops[i]);
        ok = s->stops[i] != NULL;
        s->lengths[i] = strlen(stops[i]);
        if (s->lengths[i] > s->longest) s->longest = s->lengths[i];
        s->n_stops++;
    }
    if (!ok) {
        sl_stopper_free(s);
        return sl_fail(err, SL_ERR_MEMORY, "stop strings: out of memory");
    }
    *out = s;
    return 0;
}

void sl_stopper_free(sl_stopper *s) {
    if (!s) return;
    for (int i = 0; i < s->n_stops; i++) free(s->stops[i]);
    free(s->stops), free(s->lengths), free(s->text);
    free(s);
}

void sl_stopper_reset(sl_stopper *s) {
    s->n = s->n_shown = 0;
    s->found = NULL;
}

const char *sl_stopper_found(const sl_stopper *s) {
    return s->found;
}

static void drop_shown(sl_stopper *s) {
    s->n -= s->n_shown;
    if (s->n > 0) memmove(s->text, s->text + s->n_shown, s->n);
    s->n_shown = 0;
}

// The beginning of the stop string that ends first (if several end there, of the longest one); n when the text contains none.
// The end decides, not the beginning. So the output does not depend on how the stream was cut into pieces.
static size_t find_stop(sl_stopper *s) {
    for (size_t end = 1; end <= s->n; end++) {
        size_t longest = 0;
        for (int i = 0; i < s->n_stops; i++) {
            size_t length = s->lengths[i];
            if (length > longest && length <= end && !memcmp(s->text + end - length, s->stops[i], length))
                longest = length, s->found = s->stops[i];
        }
        if (longest > 0) return end - longest;
    }
    return s->n;
}

// The first position from which the text could still become a stop string.
static size_t find_beginning(const sl_stopper *s) {
    size_t at = s->n > s->longest ? s->n - s->longest : 0;
    for (; at < s->n; at++)
        for (int i = 0; i < s->n_stops; i++)
            if (s->n - at < s->lengths[i] && !memcmp(s->text + at, s->stops[i], s->n - at)) return at;
    return s->n;
}

int sl_stopper_feed(sl_stopper *s, const char *text, size_t n, const char **out, size_t *n_out, sl_error *err) {
    drop_shown(s);
    if (s->n + n > s->cap) {
        size_t cap = 2 * (s->n + n) + 64;
        char *grown = realloc(s->text, cap);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "stop strings: out of memory");
        s->text = grown;
        s->cap = cap;
    }
    if (n > 0) memcpy(s->text + s->n, text, n);
    s->n += n;
    size_t stop = find_stop(s);
    int stopped = stop < s->n;
    *out = s->text ? s->text : "";
    *n_out = s->n_shown = stopped ? stop : find_beginning(s);
    if (stopped) s->n = stop;
    return stopped;
}

void sl_stopper_flush(sl_stopper *s, const char **out, size_t *n_out) {
    drop_shown(s);
    *out = s->text ? s->text : "";
    *n_out = s->n_shown = s->n;
}
