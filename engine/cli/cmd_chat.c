// engine/cli/cmd_chat.c - sleigh chat: a conversation from standard input, one message per line, with commands.
//
// Each turn renders and tokenizes the whole conversation. The session keeps the common prefix and prefills only the new tokens.
// An error ends the turn if standard input is a terminal, else the program.
#include "engine/base/nearest.h"
#include "engine/cli/commands.h"
#include "engine/cli/error_text.h"
#include "engine/cli/grow.h"
#include "engine/cli/io.h"
#include "engine/cli/process.h"
#include "engine/cli/run.h"
#include "engine/cli/timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct turn {
    const char *role;
    sl_text text;
} turn;

typedef struct chat {
    cli_run run;
    cli_timeline t;
    const sl_chat_template *template;
    turn *turns;
    int n_turns, cap_turns;
    int on_terminal, quit;
    sl_text reply;
} chat;

static const char help_text[] =
    "/help        show this list\n"
    "/ctx         show the number of tokens in the context; /ctx N: set the context size and keep the conversation\n"
    "/read FILE   send the text of FILE as the message\n"
    "/attn SPEC   decode all layers with another method, for example santa-prop:S=128; /attn: show the method\n"
    "/reset       forget the conversation\n"
    "/stats       show statistics of the last answer\n"
    "/quit        end the chat (also: Ctrl+D)\n"
    "A \\ at the end of a line continues the message. Ctrl+C ends an answer.\n";

// ---- the conversation ----

static int push_turn(chat *c, const char *role, const char *text, size_t n, sl_error *err) {
    turn *turns = cli_grow(c->turns, c->n_turns, &c->cap_turns, sizeof *turns);
    if (!turns) return sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    c->turns = turns;
    turn *t = &c->turns[c->n_turns];
    *t = (turn){.role = role};
    int rc = sl_text_append(&t->text, text, n, err);
    if (!rc) c->n_turns++;
    return rc;
}

static void pop_turn(chat *c) {
    sl_text_free(&c->turns[--c->n_turns].text);
}

static int reset(chat *c, sl_error *err) {
    const char *system = c->run.options->system_prompt;
    while (c->n_turns) pop_turn(c);
    return system ? push_turn(c, "system", system, strlen(system), err) : 0;
}

// Renders and tokenizes the conversation.
static int encode(const chat *c, sl_ids *ids, sl_error *err) {
    sl_message *messages = calloc((size_t)c->n_turns, sizeof *messages);
    if (!messages) return sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    for (int i = 0; i < c->n_turns; i++)
        messages[i] = (sl_message){.role = c->turns[i].role, .content = c->turns[i].text.data, .n = c->turns[i].text.n};
    sl_text text = {0};
    int rc = sl_chat_render(c->template, messages, c->n_turns, NULL, &text, err);
    if (!rc) rc = sl_tokenize(sl_model_tokenizer(c->run.model), text.data, text.n, 0, ids, err);
    sl_text_free(&text);
    free(messages);
    return rc;
}

static int sink_reply(void *ctx, const char *text, size_t n, sl_error *err) {
    int rc = cli_sink_stdout(NULL, text, n, err);
    return rc ? rc : sl_text_append(&((chat *)ctx)->reply, text, n, err);
}

// Answers the last turn.
static int answer(chat *c, sl_error *err) {
    sl_ids ids = {0};
    c->reply.n = 0;
    int rc = encode(c, &ids, err);
    if (!rc) rc = cli_check_prompt(&c->run, ids.n, err);
    if (!rc) {
        int n = (int)ids.n, keep = cli_timeline_common(&c->t, ids.data, n);
        if (keep == n) keep = n - 1; // repeat the last token: the session holds logits of another step
        rc = cli_run_set_prompt(&c->run, n, err);
        if (!rc) rc = cli_timeline_cut(&c->t, keep, err);
        if (!rc) rc = cli_timeline_prefill(&c->t, ids.data + keep, n - keep, err);
        if (!rc) rc = cli_timeline_generate(&c->t, 1, sink_reply, c, err);
        if (!rc) rc = cli_sink_stdout(NULL, "\n", 1, err);
    }
    sl_ids_free(&ids);
    return rc;
}

static int send_message(chat *c, const char *text, size_t n, sl_error *err) {
    int rc = push_turn(c, "user", text, n, err);
    if (rc) return rc;
    cli_clear_interrupt();
    rc = answer(c, err);
    if (rc || (c->t.stopped && c->t.n_generated == 0))
        pop_turn(c); // remove the message that has no answer
    else
        rc = push_turn(c, "assistant", c->reply.n ? c->reply.data : "", c->reply.n, err);
    if (!rc && !strcmp(c->t.stopped, "context full"))
        fprintf(stderr, "context full: /reset forgets the conversation, /ctx N enlarges the context\n");
    if (!rc && !strcmp(c->t.stopped, "interrupted")) fprintf(stderr, "interrupted\n");
    cli_clear_interrupt();
    return rc;
}

// ---- commands ----

static int set_ctx(chat *c, const char *arg, sl_error *err) {
    if (!*arg) {
        fprintf(stderr, "context: %zu of %d tokens\n", c->t.ids.n, sl_engine_n_ctx(c->run.engine));
        return 0;
    }
    char *end;
    long n = strtol(arg, &end, 10);
    if (end != arg && (*end == 'k' || *end == 'K') && n < 1 << 20) n *= 1024, end++;
    int limit = sl_model_config(c->run.model)->n_ctx;
    if (*end || n < 1 || n > limit)
        return sl_fail(err, SL_ERR_ARG, "/ctx %.60s: expected a number from 1 to %d, this model's limit", arg, limit);
    uint32_t sequence = sl_session_sequence(c->t.session);
    cli_timeline_close(&c->t);
    int rc = cli_run_set_ctx(&c->run, (int)n, err);
    if (!c->run.engine)
        c->quit = 1;
    else {
        int opened = cli_timeline_open(&c->t, &c->run, sequence, rc ? NULL : err);
        if (opened) c->quit = 1;
        if (!rc) rc = opened;
    }
    if (!rc) fprintf(stderr, "context: 0 of %d tokens\n", sl_engine_n_ctx(c->run.engine));
    return rc;
}

static int set_attn(chat *c, const char *arg, sl_error *err) {
    int rc = *arg ? cli_run_set_attention(&c->run, arg, err) : 0;
    if (!rc) cli_run_describe_attention(&c->run, stderr);
    return rc;
}

static int send_file(chat *c, const char *path, sl_error *err) {
    sl_text text = {0};
    int rc = *path ? cli_read_file(path, &text, err) : sl_fail(err, SL_ERR_ARG, "/read: expected a file name");
    if (!rc) rc = send_message(c, text.data, text.n, err);
    sl_text_free(&text);
    return rc;
}

static int command(chat *c, const char *line, sl_error *err) {
    static const char *const names[] = {"/help", "/ctx", "/read", "/attn", "/reset", "/stats", "/quit"};
    size_t n = strcspn(line, " \t");
    const char *arg = line + n + strspn(line + n, " \t");
    char name[32];
    snprintf(name, sizeof name, "%.*s", (int)n, line);
    if (!strcmp(name, "/help"))
        fputs(help_text, stderr);
    else if (!strcmp(name, "/ctx"))
        return set_ctx(c, arg, err);
    else if (!strcmp(name, "/read"))
        return send_file(c, arg, err);
    else if (!strcmp(name, "/attn"))
        return set_attn(c, arg, err);
    else if (!strcmp(name, "/reset"))
        return reset(c, err);
    else if (!strcmp(name, "/stats"))
        cli_timeline_stats(&c->t, stderr);
    else if (!strcmp(name, "/quit"))
        c->quit = 1;
    else {
        const char *nearest = sl_nearest(name, names, sizeof names / sizeof *names);
        return sl_fail(err, SL_ERR_ARG, "unknown command %.60s; %s%s", name,
                       nearest ? "did you mean " : "/help lists all commands", nearest ? nearest : "");
    }
    return 0;
}

// ---- the loop ----

// Appends a message to *text: one line, or several if all but the last end in a backslash. Returns 0 at the end of the input.
static int read_message(const chat *c, sl_text *text, sl_error *err, int *rc) {
    char *line = NULL;
    size_t cap = 0;
    int more = 1, got = 0;
    while (more) {
        if (c->on_terminal) fputs(got ? ". " : "> ", stderr);
        errno = 0;
        ssize_t n = getline(&line, &cap, stdin);
        if (n < 0 && errno == EINTR) { // Ctrl+C while typing: start the message again
            clearerr(stdin);
            cli_clear_interrupt();
            fputs("\n(/quit or Ctrl+D ends the chat)\n", stderr);
            text->n = 0;
            got = 0;
            continue;
        }
        if (n < 0) break;
        got = 1;
        while (n && (line[n - 1] == '\n' || line[n - 1] == '\r')) n--;
        more = n && line[n - 1] == '\\';
        if (more) line[n - 1] = '\n';
        *rc = sl_text_append(text, line, (size_t)n, err);
        if (*rc) break;
    }
    if (ferror(stdin) && !*rc) *rc = sl_fail(err, SL_ERR_IO, "cannot read standard input: %s", strerror(errno));
    free(line);
    return got && !*rc;
}

static int loop(chat *c, sl_error *err) {
    sl_text text = {0};
    int rc = 0;
    while (!c->quit && (text.n = 0, read_message(c, &text, err, &rc))) {
        if (!text.n || strspn(text.data, " \t\n") == text.n) continue;
        rc = text.data[0] == '/' ? command(c, text.data, err) : send_message(c, text.data, text.n, err);
        if (!rc) continue;
        if (!c->on_terminal || ferror(stdout) || c->quit) break;
        fprintf(stderr, "error: %s\n", cli_error_text(err));
        rc = 0;
    }
    sl_text_free(&text);
    return rc;
}

static int open_chat(chat *c, const cli_options *o, sl_error *err) {
    int rc = cli_need_model(o, err);
    if (!rc) rc = cli_chat_template(o, &c->template, err);
    if (!rc) rc = cli_run_open(&c->run, o, err);
    if (!rc) rc = cli_timeline_open(&c->t, &c->run, o->seq_id, err);
    return rc ? rc : reset(c, err);
}

int cmd_chat(const cli_options *o, sl_error *err) {
    chat c = {.on_terminal = isatty(STDIN_FILENO)};
    int rc = open_chat(&c, o, err);
    if (!rc) {
        cli_run_describe(&c.run, stderr);
        fprintf(stderr, "chat: template %s; /help lists all commands\n", sl_chat_name(c.template));
        cli_catch_interrupt(0);
        rc = loop(&c, err);
    }
    while (c.n_turns) pop_turn(&c);
    free(c.turns);
    sl_text_free(&c.reply);
    cli_timeline_close(&c.t);
    if (!rc) rc = cli_run_finish(&c.run, err);
    cli_run_close(&c.run);
    return rc;
}
