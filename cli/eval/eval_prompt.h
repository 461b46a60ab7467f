// cli/eval/eval_prompt.h - makes token ids from a context and a question, and finds the end of the context, where set-up
// B stops the dense prefill. Used by eval and compare.
#ifndef SLEIGH_EVAL_PROMPT_H
#define SLEIGH_EVAL_PROMPT_H

#include "cli/eval/eval_tasks.h"
#include "cli/chat_prompt.h"
#include "tokenizer/tokenizer.h"

typedef struct eval_prompter {
    const sl_tokenizer *tok; // not owned
    cli_chat chat;           // template NULL: none
    sl_prompt whole, head;
    sl_ids ids, head_ids;
} eval_prompter;

void eval_prompter_free(eval_prompter *p);
// Ids of context, question and prefix as one text. *n_shared (or NULL): number of ids up to the end of the context, with the
// part of the template before it; all ids if there is no context.
int eval_prompt_ids(eval_prompter *p, const sl_text *context, const eval_item *item, sl_ids *ids, int *n_shared, sl_error *err);
// Ids of the last prompt of eval_prompt_ids and a text after it, as one text.
int eval_prompt_continued(eval_prompter *p, const char *text, size_t n, sl_ids *ids, sl_error *err);
int eval_prompt_count(void *prompter, const sl_text *context, const eval_item *item, int *n_tokens, sl_error *err);
// Makes the texts of --task, with the length of their prompts as ids. n_questions: about one text.
eval_maker eval_maker_of(const cli_task_options *o, int instruct, int n_questions, eval_prompter *p);

#endif
