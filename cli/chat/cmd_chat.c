// cli/chat/cmd_chat.c - sleigh chat: a conversation with a model, and its commands.
//
// Each turn renders and tokenizes the whole conversation. The session keeps the common prefix and prefills only the new tokens.
// An error or Ctrl+C ends the turn if standard input is a terminal, else the program.
#include "base/nearest.h"
#include "cli/chat/chat_input.h"
#include "cli/chat/messages_file.h"
#include "cli/chat_prompt.h"
#include "cli/commands.h"
#include "cli/error_text.h"
#include "cli/generate/prompt_cache.h"
#include "cli/io.h"
#include "cli/process.h"
#include "cli/rank_team.h"
#include "cli/run/load_model.h"
#include "cli/run/run.h"
#include "cli/timeline.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct chat {
    cli_run run;
    cli_timeline t;
    cli_chat chat;
    sl_messages messages;
    chat_input input;
    int quit;
    sl_text *reply; // of the answer that is made
} chat;

// The ranks that share the model: the first one reads messages and writes files, the others follow it.
static sl_comm *comm_of(const chat *c) {
    return c->run.options->model.comm;
}

// Errors that one rank can have alone, as out of memory, end the chat and so all ranks: the others would wait for this rank.
static void end_with_team(chat *c, int rc) {
    if (comm_of(c) && (rc == SL_ERR_MEMORY || rc == SL_ERR_IO)) c->quit = 1;
}

// ---- the conversation ----

// Forgets the conversation, but not its system message.
static void clear_messages(chat *c) {
    int first = sl_messages_system(&c->messages) != NULL;
    while (c->messages.n > first) sl_messages_pop(&c->messages);
}

static int render(const chat *c, const sl_messages *m, sl_prompt *out, sl_error *err) {
    json_t *list = sl_chat_messages(m->items, m->n);
    if (!list) return sl_fail(err, SL_ERR_MEMORY, "conversation: out of memory");
    int rc = cli_chat_render(&c->chat, sl_model_tokenizer(c->run.model), list, NULL, out, err);
    json_decref(list);
    return rc;
}

// An error of the template, which may refuse these roles in this order. The user's next message may follow.
static int check_messages(const chat *c, sl_messages *m, sl_error *err) {
    sl_prompt prompt = {0};
    int ask = !sl_messages_last_is(m, "user"), rc = ask ? sl_messages_push(m, "user", "", 0, err) : 0;
    if (rc) return rc;
    rc = render(c, m, &prompt, err);
    if (ask) sl_messages_pop(m);
    sl_prompt_free(&prompt);
    return rc;
}

static int encode(const chat *c, sl_ids *ids, sl_error *err) {
    sl_prompt prompt = {0};
    int rc = render(c, &c->messages, &prompt, err);
    if (!rc) rc = sl_chat_tokenize(c->chat.template, sl_model_tokenizer(c->run.model), &prompt, ids, err);
    sl_prompt_free(&prompt);
    return rc;
}

static int sink_reply(void *ctx, const char *text, size_t n, sl_error *err) {
    int rc = cli_sink_stdout(NULL, text, n, err);
    return rc ? rc : sl_text_append(((chat *)ctx)->reply, text, n, err);
}

static int generate(chat *c, sl_error *err) {
    sl_ids ids = {0};
    int rc = encode(c, &ids, err);
    if (!rc) rc = cli_check_prompt(&c->run, ids.n, "/ctx N, or --ctx-size", err);
    if (!rc) {
        rc = cli_run_set_prompt(&c->run, (int)ids.n, err);
        if (!rc) rc = cli_timeline_prefix(&c->t, ids.data, SL_CONTINUES, (int)ids.n, err);
        if (!rc) rc = cli_timeline_generate(&c->t, c->run.options->limits.n_predict, 1, sink_reply, c, err);
        if (!rc || c->reply->n) { // an error message begins on its own line
            int end = cli_sink_stdout(NULL, "\n", 1, rc ? NULL : err);
            if (!rc) rc = end;
        }
    }
    sl_ids_free(&ids);
    return rc;
}

static int was_interrupted(const chat *c) { // the last answer
    return c->t.stopped && !strcmp(c->t.stopped, "interrupted");
}

// Says why an answer may be incomplete.
static void explain_stop(const chat *c) {
    if (!strcmp(c->t.stopped, "context full"))
        fprintf(stderr, "context full: /clear forgets the conversation, /ctx N enlarges the context\n");
    if (!strcmp(c->t.stopped, "limit"))
        fprintf(stderr, "limit of %d tokens: the answer is not complete; flag -n sets the limit\n",
                c->run.options->limits.n_predict);
    if (was_interrupted(c) && c->input.on_terminal) fprintf(stderr, "interrupted\n");
}

static int answer(void *ctx, sl_text *reply, int *is_answer, sl_error *err) {
    chat *c = ctx;
    cli_clear_interrupt();
    c->reply = reply;
    int rc = generate(c, err);
    *is_answer = !rc && !(c->t.stopped && c->t.n_sampled == 0);
    if (!rc) explain_stop(c);
    end_with_team(c, rc);
    cli_clear_interrupt();
    return rc;
}

static int send_message(chat *c, const char *text, size_t n, sl_error *err) {
    return sl_messages_say(&c->messages, text, n, answer, c, err);
}

// ---- commands ----

static int set_ctx(chat *c, const char *arg, sl_error *err) {
    if (!*arg) {
        fprintf(stderr, "context: %d of %d tokens\n", sl_session_n_tokens(c->t.session), sl_engine_n_ctx(c->run.engine));
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
    end_with_team(c, rc);
    if (!rc) fprintf(stderr, "context: 0 of %d tokens\n", sl_engine_n_ctx(c->run.engine));
    return rc;
}

static int set_attn(chat *c, const char *arg, sl_error *err) {
    int rc = *arg ? cli_run_set_attention(&c->run, arg, err) : 0;
    if (!rc) cli_run_describe_attention(&c->run, stderr);
    return rc;
}

static int set_temp(chat *c, const char *arg, sl_error *err) {
    char *end;
    double temp = strtod(arg, &end);
    if (*arg && (*end || end == arg || !(temp >= 0 && temp <= 1e6)))
        return sl_fail(err, SL_ERR_ARG, "/temp %.60s: expected a number from 0 to 1000000; 0 is greedy", arg);
    sl_sampling sampling = c->run.sampling;
    if (*arg) sampling.temp = (float)temp;
    int rc = *arg ? cli_timeline_set_sampling(&c->t, &sampling, err) : 0;
    if (!rc) c->run.sampling = sampling;
    if (!rc) fprintf(stderr, "temp: %g%s\n", (double)c->run.sampling.temp, c->run.sampling.temp == 0 ? " (greedy)" : "");
    return rc;
}

static int set_system(chat *c, const char *arg, sl_error *err) {
    const sl_message *now = sl_messages_system(&c->messages);
    if (*arg) {
        sl_text before = {0};
        int rc = now ? sl_text_append(&before, now->content, now->n, err) : 0;
        if (!rc) rc = sl_messages_set_system(&c->messages, arg, strcmp(arg, "\"\"") ? strlen(arg) : 0, err);
        if (!rc && (rc = check_messages(c, &c->messages, err)) != 0) // the template refuses it
            sl_messages_set_system(&c->messages, before.data, before.n, NULL);
        sl_text_free(&before);
        if (rc) return rc;
        now = sl_messages_system(&c->messages);
    }
    if (now)
        fprintf(stderr, "system message: %s\n", now->content);
    else
        fprintf(stderr, "no system message\n");
    return 0;
}

// The path with the user's home folder in the place of ~. From malloc.
static char *path_of(const char *arg) {
    const char *home = getenv("HOME");
    char *path = NULL;
    if (strncmp(arg, "~/", 2) || !home) return strdup(arg);
    return asprintf(&path, "%s%s", home, arg + 1) < 0 ? NULL : path;
}

static int send_file(chat *c, const char *path, sl_error *err) {
    sl_text text = {0};
    int rc = cli_team_check_file(comm_of(c), "/read", path, err);
    if (!rc) rc = cli_read_file(path, &text, err);
    if (!rc) rc = send_message(c, text.data, text.n, err);
    sl_text_free(&text);
    return rc;
}

static int save(chat *c, const char *path, sl_error *err) {
    if (!c->messages.n) return sl_fail(err, SL_ERR_ARG, "/save: the conversation has no messages");
    int rc = sl_comm_rank(comm_of(c)) ? 0 : cli_messages_write(path, &c->messages, err);
    if (!rc) fprintf(stderr, "saved %d message%s\n", c->messages.n, cli_s(c->messages.n));
    return rc;
}

static const char *hint_of(const sl_messages *m) {
    return sl_messages_last_is(m, "user") ? "; the last one has no answer: /regen answers it" : "";
}

// Replaces the conversation, its system message included. After an error the conversation is unchanged.
static int load(chat *c, const char *path, sl_error *err) {
    sl_messages m = {0};
    int rc = cli_team_check_file(comm_of(c), "/load", path, err);
    if (!rc) rc = cli_messages_read(path, &m, err);
    if (!rc && !m.n) rc = sl_fail(err, SL_ERR_FORMAT, "%s: expected messages, found an empty list", path);
    if (!rc) rc = check_messages(c, &m, err);
    if (rc) {
        sl_messages_clear(&m);
        return rc;
    }
    sl_messages_clear(&c->messages);
    c->messages = m;
    fprintf(stderr, "loaded %d message%s%s\n", m.n, cli_s(m.n), hint_of(&m));
    return 0;
}

static int with_file(chat *c, const char *name, const char *arg, int (*fn)(chat *, const char *, sl_error *), sl_error *err) {
    if (!*arg) return sl_fail(err, SL_ERR_ARG, "%s: expected a file name", name);
    char *path = path_of(arg);
    int rc = path ? fn(c, path, err) : sl_fail(err, SL_ERR_MEMORY, "%s: out of memory", name);
    free(path);
    return rc;
}

static int regenerate(chat *c, sl_error *err) {
    if (!sl_messages_has_question(&c->messages))
        return sl_fail(err, SL_ERR_ARG, "/regen: the conversation has no message to answer");
    if (sl_messages_last_is(&c->messages, "assistant") && c->run.sampling.temp == 0)
        fprintf(stderr, "temp is 0: the answer can be the same; /temp 0.8 gives others\n");
    return sl_messages_again(&c->messages, c->t.session, answer, c, err);
}

typedef enum { HELP, CTX, READ, ATTN, TEMP, SYSTEM, REGEN, CLEAR, SAVE, LOAD, STATS, QUIT } command_id;

typedef struct command {
    const char *name, *args, *help; // help NULL: another name of the command above
    command_id id;
} command;

// clang-format off
static const command commands[] = {
    {"/help",   "",       "show this list", HELP},
    {"/regen",  "",       "answer the last message again, with other random numbers", REGEN},
    {"/clear",  "",       "forget the conversation, but not the system message", CLEAR},
    {"/reset",  "",       NULL, CLEAR},
    {"/system", "[TEXT]", "show or set the system message; \"\" removes it", SYSTEM},
    {"/temp",   "[X]",    "show or set the sampling temperature; 0 is greedy", TEMP},
    {"/attn",   "[SPEC]", "show or set the attention method, as santa-prop:S=128", ATTN},
    {"/ctx",    "[N]",    "show or set the context size; the conversation stays", CTX},
    {"/read",   "FILE",   "send the text of FILE as the message", READ},
    {"/save",   "FILE",   "write the messages to FILE, as JSON", SAVE},
    {"/load",   "FILE",   "replace the conversation by the messages of FILE", LOAD},
    {"/stats",  "",       "show statistics of the last answer", STATS},
    {"/quit",   "",       "end the chat (also: Ctrl+D)", QUIT},
    {"/exit",   "",       NULL, QUIT},
};
// clang-format on
enum { N_COMMANDS = sizeof commands / sizeof *commands };

static void help(void) {
    for (int i = 0; i < N_COMMANDS; i++) {
        if (!commands[i].help) continue;
        int n = fprintf(stderr, "%s", commands[i].name);
        if (i + 1 < N_COMMANDS && !commands[i + 1].help) n += fprintf(stderr, ", %s", commands[i + 1].name);
        if (*commands[i].args) n += fprintf(stderr, " %s", commands[i].args);
        fprintf(stderr, "%*s%s\n", 18 - n, "", commands[i].help);
    }
    fputs("Alt+Enter or a \\ at the end of a line continues the message. With a blank before\n"
          "it, a / begins a message. Ctrl+C ends an answer or clears the line. Up shows\n"
          "earlier messages. Tab completes commands and file names.\n",
          stderr);
}

static int run_command(chat *c, const char *line, sl_error *err) {
    const char *names[N_COMMANDS];
    size_t n = strcspn(line, " \t\n");
    const char *arg = line + n + strspn(line + n, " \t\n");
    char name[32];
    const command *found = NULL;
    snprintf(name, sizeof name, "%.*s", (int)n, line);
    for (int i = 0; i < N_COMMANDS; i++) {
        names[i] = commands[i].name;
        if (!strcmp(name, names[i])) found = &commands[i];
    }
    if (!found) {
        const char *nearest = sl_nearest(name, names, N_COMMANDS);
        return sl_fail(err, SL_ERR_ARG, "unknown command %.60s; %s%s", name,
                       nearest ? "did you mean " : "/help lists all commands", nearest ? nearest : "");
    }
    switch (found->id) {
    case HELP:
        help();
        return 0;
    case CTX:
        return set_ctx(c, arg, err);
    case READ:
        return with_file(c, name, arg, send_file, err);
    case ATTN:
        return set_attn(c, arg, err);
    case TEMP:
        return set_temp(c, arg, err);
    case SYSTEM:
        return set_system(c, arg, err);
    case REGEN:
        return regenerate(c, err);
    case CLEAR:
        clear_messages(c);
        return 0;
    case SAVE:
        return with_file(c, name, arg, save, err);
    case LOAD:
        return with_file(c, name, arg, load, err);
    case STATS:
        cli_timeline_stats(&c->t, stderr);
        return 0;
    case QUIT:
        c->quit = 1;
        return 0;
    }
    return 0;
}

// ---- the loop ----

// As chat_input_read. The first rank's input is that of all ranks.
static int read_input(chat *c, sl_text *text, int *is_command, sl_error *err) {
    sl_comm *comm = comm_of(c);
    int got = sl_comm_rank(comm) ? 0 : chat_input_read(&c->input, text, is_command, err);
    if (got < 0) return got; // ends the run
    int said = got | *is_command << 1 | c->input.on_terminal << 2, rc = cli_team_share(comm, text, &said, err);
    *is_command = said >> 1 & 1, c->input.on_terminal = said >> 2 & 1;
    return rc ? rc : said & 1;
}

static int loop(chat *c, sl_error *err) {
    sl_text text = {0};
    int rc = 0, is_command = 0;
    while (!c->quit) {
        int got = read_input(c, &text, &is_command, err);
        if (got <= 0) {
            rc = got;
            break;
        }
        if (!text.n || strspn(text.data, " \t\n") == text.n) continue;
        while (is_command && strchr(" \t\n", text.data[text.n - 1])) text.data[--text.n] = 0;
        rc = is_command ? run_command(c, text.data, err) : send_message(c, text.data, text.n, err);
        if (!rc && !c->input.on_terminal && was_interrupted(c)) rc = sl_fail(err, SL_ERR_IO, "interrupted");
        if (!rc) continue;
        if (!c->input.on_terminal || ferror(stdout) || c->quit) break;
        int colour = chat_input_has_colour(&c->input);
        fprintf(stderr, "%serror:%s %s\n", colour ? "\033[1;31m" : "", colour ? "\033[0m" : "", cli_error_text(err));
        rc = 0;
    }
    sl_text_free(&text);
    return rc;
}

static int open_chat(chat *c, const cli_chat_flags *o, sl_error *err) {
    const char *system = o->chat->system;
    const cli_model_options *model = &o->run->model;
    sl_config config;
    int rc = cli_need_model(model, err);
    if (!rc && !model->chat_template)
        rc = cli_read_config(o->run, &config, err); // a folder that is no model has no template either
    if (!rc) rc = cli_chat_load(model, o->chat, &c->chat, err);
    if (!rc) rc = cli_run_open(&c->run, o->run, 1, err);
    if (!rc) rc = cli_timeline_open(&c->t, &c->run, o->run->sampling.seq_id, err);
    if (!rc) rc = cli_prompt_cache_load(&c->t, o->cache, &c->messages, err);
    if (!rc && system) rc = sl_messages_set_system(&c->messages, system, strlen(system), err);
    return rc || !c->messages.n ? rc : check_messages(c, &c->messages, err);
}

static int converse(chat *c, sl_error *err) {
    cli_word words[N_COMMANDS + 1] = {{0}};
    for (int i = 0; i < N_COMMANDS; i++) words[i] = (cli_word){commands[i].name, !strcmp(commands[i].args, "FILE")};
    if (sl_comm_rank(comm_of(c))) return loop(c, err);
    if (isatty(STDIN_FILENO)) cli_unsilence(); // --quiet does not hide prompts, errors and answers to commands
    int rc = chat_input_open(&c->input, words, err);
    if (!rc) rc = loop(c, err);
    chat_input_close(&c->input);
    return rc;
}

int cmd_chat(const cli_chat_flags *o, sl_error *err) {
    chat c = {0};
    int rc = open_chat(&c, o, err);
    if (!rc) {
        cli_run_describe(&c.run, stderr);
        fprintf(stderr, "chat: template %s; /help lists all commands\n", sl_chat_name(c.chat.template));
        if (c.messages.n > (sl_messages_system(&c.messages) != NULL))
            fprintf(stderr, "the conversation of %s goes on after %d message%s%s; /clear begins another\n", o->cache->path,
                    c.messages.n, cli_s(c.messages.n), hint_of(&c.messages));
        cli_catch_interrupt(0);
        rc = converse(&c, err);
        if (!rc) rc = cli_prompt_cache_save(&c.t, o->cache, &c.messages, err);
    }
    sl_messages_clear(&c.messages);
    cli_chat_free(&c.chat);
    cli_timeline_close(&c.t);
    if (!rc) rc = cli_run_finish(&c.run, err);
    cli_run_close(&c.run);
    return rc;
}
