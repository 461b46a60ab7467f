// tests/support/task_prompt.c - see task_prompt.h.
#include "tests/support/task_prompt.h"
#include "tests/test.h"

void task_prompt(const sl_model *model, const char *task, int n_tokens, sl_ids *ids) {
    eval_prompter prompter = {.tok = sl_model_tokenizer(model)};
    eval_maker maker = {.seed = 1, .n_questions = 1, .n_predict = 0, .count = eval_prompt_count, .ctx = &prompter};
    eval_text text = {0};
    sl_error err;
    CHECK_OK(eval_task_text(&maker, eval_task_find(task), n_tokens, 0, &text, &err), err);
    CHECK_OK(eval_prompt_ids(&prompter, &text.context, &text.items[0], ids, NULL, &err), err);
    CHECK((int)ids->n > n_tokens * 9 / 10 && (int)ids->n <= n_tokens);
    eval_text_free(&text);
    eval_prompter_free(&prompter);
}
