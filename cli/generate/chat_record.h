// cli/generate/chat_record.h - ids of a line of --jsonl in the chat template.
#ifndef SLEIGH_CHAT_RECORD_H
#define SLEIGH_CHAT_RECORD_H

#include "cli/eval/eval_prompt.h"

// The line has "messages" (and "tools"), or "prompt", or "context" and "question", which make one message of the user.
// *n_shared: ids up to the end of the context, all ids if there is none.
int chat_record_tokenize(eval_prompter *p, const json_t *record, sl_ids *ids, int *n_shared, sl_error *err);

#endif
