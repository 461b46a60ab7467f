// examples/embed.c - asks a model one question: embed MODEL_FOLDER QUESTION
#include <sleigh.h>
#include <stdio.h>

static int print(void *ctx, const char *text, size_t n) {
    return fwrite(text, 1, n, ctx) != n || fflush(ctx); // not 0: stop
}

int main(int argc, char **argv) {
    sl_model *model = NULL;
    sl_engine *engine = NULL;
    sl_chat *chat = NULL;
    sl_error err;
    if (argc != 3) return fprintf(stderr, "usage: embed MODEL_FOLDER QUESTION\n"), 2;
    int rc = sl_model_load(argv[1], NULL, &model, &err);
    if (!rc) rc = sl_engine_new(model, NULL, &engine, &err);
    if (!rc) rc = sl_chat_open(engine, NULL, &chat, &err);
    if (!rc) rc = sl_chat_say(chat, argv[2], print, stdout, NULL, &err);
    fprintf(rc ? stderr : stdout, "%s\n", rc ? err.message : "");
    sl_chat_free(chat), sl_engine_free(engine), sl_model_free(model);
    return rc != 0;
}
