// cli/eval/eval_prose.c - see eval_prose.h. The grammar is the one in scripts/train/tiny_text.py.
#include "cli/eval/eval_prose.h"
#include "base/hash.h"
#include "cli/eval/eval_words.h"
#include "cli/output/summary.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// ---- randomness ----

prose prose_begin(uint32_t seed, const char *task, uint32_t number, uint32_t length, sl_error *err) {
    uint32_t hash = sl_fnv1a_32(SL_FNV1A_32_START, task, strlen(task));
    return (prose){.id = {.seed = seed, .sequence = hash, .position = number, .layer = length >> 16, .head = length & 0xffff},
                   .err = err};
}

void prose_stream(prose *p, int stream) {
    p->index = (uint32_t)stream << 28;
}

uint32_t prose_below(prose *p, uint32_t n) {
    return (uint32_t)((sl_rng_u64(&p->id, p->index++, SL_STREAM_TASK) >> 32) * n >> 32);
}

double prose_unit(prose *p) {
    return (double)(sl_rng_u64(&p->id, p->index++, SL_STREAM_TASK) >> 11) * 0x1p-53;
}

double *prose_sorted(prose *p, int n) {
    double *out = p->rc ? NULL : malloc((size_t)n * sizeof *out);
    if (!out && !p->rc) p->rc = sl_fail(p->err, SL_ERR_MEMORY, "task: out of memory");
    if (!out) return NULL;
    for (int i = 0; i < n; i++) out[i] = prose_unit(p);
    cli_sort(out, n);
    return out;
}

const char *prose_word(prose *p, const eval_word_list *list) {
    return list->words[prose_below(p, (uint32_t)list->n)];
}

void prose_put(prose *p, sl_text *to, const char *text, size_t n) {
    if (!p->rc) p->rc = sl_text_append(to, text, n, p->err);
}

// ---- sentences ----

// %n noun, %p plural noun, %a adjective, %v transitive verb, %i intransitive verb, %r preposition, %d adverb, %t time; %N noun
// phrase, %S subject, %A "a" with adjective and noun, %B "a" with noun, %D "a" with adjective, %Q quantity, %C colour, %G and
// %E endings.
static const char *const sentences[] = {
    "%S %v %N",
    "%S %v %N %r %N",
    "%S %i %d",
    "%S %i %r %N",
    "%t, %S %v %N",
    "%t, %S %i %r %N",
    "there was %A %r %N",
    "%N was %a, but %N was %a",
    "%N and %N were %G",
    "when %S %i, %S %i",
    "%S %v %N because %N was %a",
    "%N was more %a than %N",
    "%Q %p were kept %r %N",
    "%S never %v %N again",
    "it was %D day, and %S %i %d",
    "%S said that %N was %a",
    "the color of %N was %C",
    "%S %v %N, and then %E",
    "without %N, %N would be %a",
    "%S has %A and %B",
};
static const char *const noun_phrases[] = { // each with a chance of 5%
    "the %n",    "the %n",    "the %n",    "the %n",    "the %n",           "the %n",          "the %n",
    "the %a %n", "the %a %n", "the %a %n", "the %a %n", "the %a %n",        "the %a %n",       "%A",
    "%A",        "%A",        "%B",        "%B",        "the %n of the %n", "the %n of the %n"};
static const char *const subjects[] = {"nobody",  "everyone",  "someone",      "the old man", "the young woman",
                                       "a child", "my friend", "our neighbor", "the teacher", "the captain"};
static const char *const quantities[] = {"some", "many", "two", "three", "five", "most"};
static const char *const colours[] = {"red", "green", "blue", "yellow", "white", "black", "brown"};
static const char *const together[] = {"both %a", "never far apart", "in the same room", "gone"};
static const char *const endings[] = {"everyone laughed", "the light went out", "it was quiet", "the music stopped",
                                      "we went home"};

#define PICK(p, LIST) LIST[prose_below(p, sizeof LIST / sizeof *LIST)]

static void put(prose *p, sl_text *to, const char *text) {
    prose_put(p, to, text, strlen(text));
}

static void put_article(prose *p, sl_text *to, const char *next) {
    put(p, to, strchr("aeiou", *next) ? "an " : "a ");
}

static int ends_with(const char *word, const char *end) {
    size_t n = strlen(word), m = strlen(end);
    return n >= m && !strcmp(word + n - m, end);
}

static void put_plural(prose *p, sl_text *to, const char *noun) {
    size_t n = strlen(noun);
    if (ends_with(noun, "s") || ends_with(noun, "sh") || ends_with(noun, "ch") || ends_with(noun, "x")) {
        put(p, to, noun), put(p, to, "es");
    } else if (ends_with(noun, "y") && !strchr("aeiou", noun[n - 2])) {
        prose_put(p, to, noun, n - 1), put(p, to, "ies");
    } else if (!strcmp(noun, "knife")) {
        put(p, to, "knives");
    } else if (ends_with(noun, "lf") || ends_with(noun, "af")) {
        prose_put(p, to, noun, n - 1), put(p, to, "ves");
    } else {
        put(p, to, noun), put(p, to, "s");
    }
}

static void expand(prose *p, sl_text *to, const char *pattern);

static void expand_subject(prose *p, sl_text *to) {
    uint32_t k = prose_below(p, 20);
    if (k < 14)
        expand(p, to, "%N");
    else
        put(p, to, k < 17 ? prose_word(p, &eval_vocabulary.names) : PICK(p, subjects));
}

static void expand_word(prose *p, sl_text *to, char what) {
    const eval_words *w = &eval_vocabulary;
    const char *adjective, *noun;
    switch (what) {
    case 'n':
        return put(p, to, prose_word(p, &w->nouns));
    case 'p':
        return put_plural(p, to, prose_word(p, &w->nouns));
    case 'a':
        return put(p, to, prose_word(p, &w->adjectives));
    case 'v':
        return put(p, to, prose_word(p, &w->transitive));
    case 'i':
        return put(p, to, prose_word(p, &w->intransitive));
    case 'r':
        return put(p, to, prose_word(p, &w->prepositions));
    case 'd':
        return put(p, to, prose_word(p, &w->adverbs));
    case 't':
        return put(p, to, prose_word(p, &w->times));
    case 'N':
        return expand(p, to, PICK(p, noun_phrases));
    case 'S':
        return expand_subject(p, to);
    case 'A':
    case 'D':
        put_article(p, to, adjective = prose_word(p, &w->adjectives));
        put(p, to, adjective);
        return what == 'A' ? expand(p, to, " %n") : (void)0;
    case 'B':
        put_article(p, to, noun = prose_word(p, &w->nouns));
        return put(p, to, noun);
    case 'Q':
        return put(p, to, PICK(p, quantities));
    case 'C':
        return put(p, to, PICK(p, colours));
    case 'G':
        return expand(p, to, PICK(p, together));
    default:
        SL_CHECK(what == 'E');
        return put(p, to, PICK(p, endings));
    }
}

static void expand(prose *p, sl_text *to, const char *pattern) {
    while (*pattern && !p->rc) {
        size_t n = strcspn(pattern, "%");
        prose_put(p, to, pattern, n);
        pattern += n;
        if (!*pattern) return;
        expand_word(p, to, pattern[1]);
        pattern += 2;
    }
}

void prose_sentence(prose *p, sl_text *to) {
    size_t at = to->n;
    expand(p, to, PICK(p, sentences));
    if (!p->rc) to->data[at] = (char)toupper((unsigned char)to->data[at]);
    put(p, to, ".");
}

void prose_coded(prose *p, char out[PROSE_CODED]) {
    static const char *const consonants[] = {"b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "ch", "sh"};
    int n = prose_below(p, 3) ? 3 : 2;
    out[0] = 0;
    for (int i = 0; i < n; i++) {
        strcat(out, PICK(p, consonants));
        strncat(out, &"aeiou"[prose_below(p, 5)], 1);
    }
}

// ---- noise ----

static const char *const noises[][5] = {
    {"The field is wide.", "The lake is calm.", "The wind is cold.", "On we walk.", "Out and home again."},
    {"The grass is soft.", "The sky is clear.", "The sun is warm.", "Off we go.", "Up and down again."},
    {"The snow is white.", "The night is long.", "The moon is round.", "So it goes.", "Once and once more."},
    {"The road is dry.", "The hill is steep.", "The rain is near.", "Now we rest.", "Here and gone again."},
};

void prose_begin_noise(prose *p, prose_noise *noise) {
    *noise = (prose_noise){.sentences = PICK(p, noises), .n = sizeof noises[0] / sizeof *noises[0]};
}

void prose_noise_sentence(const prose_noise *noise, int i, prose *p, sl_text *to) {
    put(p, to, " ");
    put(p, to, noise->sentences[i % noise->n]);
}
