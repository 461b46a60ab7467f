// cli/serve/cmd_serve.c - sleigh serve: flags, model and engine for the server, and its signals.
#include "cli/chat_prompt.h"
#include "cli/commands.h"
#include "cli/io.h"
#include "cli/output/progress_bar.h"
#include "cli/process.h"
#include "cli/run/draft_flags.h"
#include "cli/run/load_model.h"
#include "server/serve/serve.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- flags ----

// The keys of --api-key and of the lines of --api-key-file.
typedef struct keys {
    const char **items; // [n]
    int n;
    sl_text file; // holds those of the file
} keys;

static void keys_free(keys *k) {
    free(k->items);
    sl_text_free(&k->file);
}

static int keys_read(const cli_serve_options *o, keys *out, sl_error *err) {
    char *rest, *line;
    int n = o->api_keys.n + 1, rc = o->api_key_file ? cli_read_file(o->api_key_file, &out->file, err) : 0;
    if (rc) return rc;
    for (size_t i = 0; i < out->file.n; i++) n += out->file.data[i] == '\n' || out->file.data[i] == '\r';
    out->items = malloc((size_t)n * sizeof *out->items);
    if (!out->items) return sl_fail(err, SL_ERR_MEMORY, "--api-key: out of memory");
    for (int i = 0; i < o->api_keys.n; i++) out->items[out->n++] = o->api_keys.items[i];
    for (line = out->file.n ? strtok_r(out->file.data, "\r\n", &rest) : NULL; line; line = strtok_r(NULL, "\r\n", &rest))
        out->items[out->n++] = line;
    if (o->api_key_file && out->n == o->api_keys.n)
        return sl_fail(err, SL_ERR_FORMAT, "--api-key-file %s: expected a key in each line, found none", o->api_key_file);
    return 0;
}

static int check_slots(const cli_serve_options *o, sl_error *err) {
    struct stat st;
    if (!o->slot_save_path) return 0;
    if (stat(o->slot_save_path, &st))
        return sl_fail(err, SL_ERR_IO, "--slot-save-path %s: %s", o->slot_save_path, strerror(errno));
    if (!S_ISDIR(st.st_mode)) return sl_fail(err, SL_ERR_ARG, "--slot-save-path %s: expected a folder", o->slot_save_path);
    if (!o->prefix_cache)
        return sl_fail(err, SL_ERR_ARG, "--slot-save-path saves the prefix cache; expected no --no-prefix-cache");
    return 0;
}

static serve_options options_of(const cli_serve_flags *flags, const keys *k) {
    const cli_serve_options *o = flags->serve;
    const char *path = flags->run->model.path, *slash = strrchr(path, '/');
    serve_options out = {.http = http_options_default(),
                         .model = o->alias            ? o->alias
                                  : slash && slash[1] ? slash + 1
                                                      : path,
                         .max_waiting = o->max_waiting,
                         .step_tokens = o->step_tokens,
                         .no_prefixes = !o->prefix_cache,
                         .slot_save_path = o->slot_save_path,
                         .keep_conversations = o->keep_conversations,
                         .drain_timeout = o->drain_timeout};
    http_options *h = &out.http;
    h->host = o->host, h->port = o->port, h->insecure = o->insecure;
    h->api_key = k->items, h->n_api_keys = k->n;
    h->cors_origin = o->cors_origins.items, h->n_cors_origins = o->cors_origins.n;
    h->tls_cert = o->tls_cert, h->tls_key = o->tls_key;
    h->max_header = o->max_header, h->max_body = o->max_body, h->max_bodies = o->max_bodies, h->max_unread = o->max_unread;
    h->max_connections = o->max_connections, h->max_address_connections = o->max_address_connections;
    h->header_timeout = o->header_timeout, h->body_timeout = o->body_timeout, h->read_timeout = o->read_timeout;
    h->idle_timeout = o->idle_timeout, h->sse_interval = o->sse_interval;
    return out;
}

// ---- signals ----

typedef struct signals {
    int pipe[2];
    pthread_t thread;
    serve_server *server;
} signals;

// The first signal begins a drain, and the second one ends the process. Before the model is loaded, the first one ends it.
static void *wait_for_signals(void *ctx) {
    signals *s = ctx;
    char sig;
    for (int n = 0; read(s->pipe[0], &sig, 1) == 1; n++) {
        if (n || !serve_drain(s->server)) cli_end_now(128 + sig);
        cli_say("server: shuts down; running answers end first");
    }
    return NULL;
}

static int signals_begin(signals *s, serve_server *server, sl_error *err) {
    s->server = server;
    if (pipe2(s->pipe, O_CLOEXEC)) return sl_fail(err, SL_ERR_IO, "server: no pipe: %s", strerror(errno));
    cli_catch_ends(s->pipe[1]);
    if (!pthread_create(&s->thread, NULL, wait_for_signals, s)) return 0;
    return sl_fail(err, SL_ERR_MEMORY, "server: cannot start a thread");
}

// Later signals have no effect: the process ends.
static void signals_end(signals *s) {
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    close(s->pipe[1]);
    pthread_join(s->thread, NULL);
    close(s->pipe[0]);
}

// ---- the model ----

static int make_plan(void *ctx, const char *attn, const char *prefill, int n, serve_plan *out, const char **field,
                     sl_error *err) {
    cli_plans plans;
    int rc = cli_run_make_plans(ctx, attn, prefill, n, 1, &plans, err);
    *field = !rc ? NULL : attn && !plans.has_decode ? "attn" : prefill && plans.has_decode ? "attn_prefill" : NULL;
    *out = (serve_plan){.attn = plans.decode, .prefill = plans.prefill, .segment = plans.segment};
    if (rc) return rc;
    out->attn_text = cli_plan_text(&out->attn), out->prefill_text = cli_plan_text(&out->prefill);
    return out->attn_text && out->prefill_text ? 0 : sl_fail(err, SL_ERR_MEMORY, "attention plan: out of memory");
}

// A model without a template serves completions.
static int load_chat(const cli_serve_flags *o, cli_chat *chat, sl_error *no_chat, sl_error *err) {
    int rc = cli_chat_load(&o->run->model, o->chat, chat, no_chat);
    if (rc != SL_ERR_UNSUPPORTED || o->run->model.chat_template) {
        if (rc) *err = *no_chat;
        return rc;
    }
    return 0;
}

// cli_auto_measure: a measurement would use the GPU beside running answers.
static int measure_nothing(const char *device, const char *reason, sl_auto_table *table, sl_error *err) {
    (void)device, (void)table;
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s, and a server measures none; `sleigh bench attn --calibrate` does", reason);
}

// Reads the table of auto before the first request, or measures it if the flags name auto.
static int open_auto(cli_run *run, sl_error *err) {
    cli_plans plans;
    const char *named = sl_auto_in_plan(&run->requested) || sl_auto_in_plan(&run->requested_prefill) ? NULL : "auto";
    if (named) run->attn_auto.measure = measure_nothing;
    int rc = cli_run_make_plans(run, named, NULL, 1, 1, &plans, err);
    cli_plans_free(&plans);
    run->attn_auto.measure = measure_nothing;
    return rc;
}

static void say_ready(void *run) {
    (void)run;
    cli_say("server: ready");
}

// server NULL: this is not the first rank of those that share the model.
static int run_server(const cli_serve_flags *o, serve_server *server, cli_run *run, const cli_chat *chat,
                      const sl_error *no_chat, sl_error *err) {
    const serve_model m = {.model = run->model,
                           .engine = run->engine,
                           .comm = o->run->model.comm,
                           .n_sequences = o->serve->parallel,
                           .path = o->run->model.path,
                           .chat = chat->template,
                           .no_chat = *no_chat,
                           .chat_options = chat->options,
                           .sampling = &run->sampling,
                           .plan = make_plan,
                           .ctx = run,
                           .attn = o->run->attention.attn,
                           .prefill = o->run->attention.attn_prefill,
                           .draft = cli_draft(&o->run->drafts),
                           .version = cli_version(),
                           .ready = say_ready};
    const keys no_keys = {0};
    const serve_options options = options_of(o, &no_keys);
    cli_run_describe(run, stderr);
    int rc = m.comm ? 0 : open_auto(run, err); // ranks refuse auto
    if (rc) return rc;
    return server ? serve_run(server, &m, err) : serve_follow(&options, &m, err);
}

static int load_and_serve(const cli_serve_flags *o, serve_server *server, sl_error *err) {
    cli_chat chat = {0};
    cli_run run;
    sl_error no_chat = {0};
    int rc = load_chat(o, &chat, &no_chat, err);
    if (!rc) rc = cli_run_open(&run, o->run, o->serve->parallel, err);
    if (!rc) {
        rc = run_server(o, server, &run, &chat, &no_chat, err);
        cli_run_close(&run);
    }
    cli_chat_free(&chat);
    return rc;
}

// Another rank: the first one has the clients, and ends all.
static int follow(const cli_serve_flags *o, sl_error *err) {
    signal(SIGTERM, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    return load_and_serve(o, NULL, err);
}

static int listen_and_serve(const cli_serve_flags *o, const keys *k, sl_error *err) {
    const serve_options options = options_of(o, k);
    serve_server *server;
    signals s;
    int rc = serve_open(&options, &server, err);
    if (rc) return rc;
    rc = signals_begin(&s, server, err);
    if (!rc) {
        cli_say("server: listens at %s://%s:%d; it loads the model", o->serve->tls_cert ? "https" : "http", o->serve->host,
                serve_port(server));
        rc = load_and_serve(o, server, err);
        signals_end(&s);
    }
    serve_free(server);
    return rc;
}

int cmd_serve(const cli_serve_flags *o, sl_error *err) {
    keys k = {0};
    int rc = cli_need_model(&o->run->model, err);
    if (!rc && sl_comm_rank(o->run->model.comm)) return follow(o, err);
    if (!rc) rc = check_slots(o->serve, err);
    if (!rc) rc = keys_read(o->serve, &k, err);
    if (!rc) rc = listen_and_serve(o, &k, err);
    keys_free(&k);
    return rc;
}
