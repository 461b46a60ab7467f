// cli/eval/eval_words.h - the words of the generated texts.
#ifndef SLEIGH_EVAL_WORDS_H
#define SLEIGH_EVAL_WORDS_H

#include <stddef.h>

typedef struct eval_word_list {
    const char *const *words;
    size_t n;
} eval_word_list;

typedef struct eval_words {
    eval_word_list nouns, adjectives, transitive, intransitive, adverbs, prepositions, times, names, surnames, places, jobs;
} eval_words;
extern const eval_words eval_vocabulary;

#endif
