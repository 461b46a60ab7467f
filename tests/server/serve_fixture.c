// tests/server/serve_fixture.c - see serve_fixture.h.
#include "tests/server/serve_fixture.h"
#include "base/clock.h"
#include "engine/engine_internal.h"
#include "models/source.h"
#include "tests/support/run_cli.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SEGMENT = 256 };

static sl_error err;
static sl_model *model;
static sl_engine *engine, *other; // the server's, and the one of server_answer_alone
static sl_chat_template *template;
static sl_sampling sampling;
static sl_logit_bias biases[32];
static serve_model served;
static serve_server *server;
static serve_options options;
static sl_engine_options engine_options;
static pthread_t thread;
static int is_running;
static sl_text recording;
static const char *played, *played_end;

// ---- what the tests hold ----

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // clients run in threads
static void **kept;
static int n_kept;
static json_t *values; // a list

char *server_keep(char *text) {
    pthread_mutex_lock(&lock);
    kept = realloc(kept, (size_t)(n_kept + 1) * sizeof *kept);
    kept[n_kept++] = text;
    pthread_mutex_unlock(&lock);
    return text;
}

json_t *server_keep_json(json_t *v) {
    pthread_mutex_lock(&lock);
    if (!values) values = json_array();
    if (v) json_array_append_new(values, v);
    pthread_mutex_unlock(&lock);
    return v;
}

static void free_kept(void) {
    for (int i = 0; i < n_kept; i++) free(kept[i]);
    free(kept);
    json_decref(values);
    kept = NULL, n_kept = 0, values = NULL;
}

// ---- the server ----

static int plan_of(const char *attn, sl_attn_plan *out, sl_error *e) {
    return sl_plan_methods_of(engine, attn ? attn : "dense", out, e);
}

static int make_plan(void *ctx, const char *attn, const char *prefill, int n, serve_plan *out, const char **field,
                     sl_error *e) {
    (void)ctx, (void)n;
    *out = (serve_plan){.segment = SEGMENT};
    *field = "attn";
    int rc = plan_of(attn, &out->attn, e);
    if (rc) return rc;
    *field = "attn_prefill";
    rc = plan_of(prefill, &out->prefill, e);
    if (!rc) out->attn_text = strdup(attn ? attn : "dense"), out->prefill_text = strdup(prefill ? prefill : "dense");
    return rc;
}

static void *run(void *unused) {
    sl_error e = {0};
    int rc = serve_run(server, &served, &e);
    if (rc) fprintf(stderr, "serve_run: %s\n", e.message);
    return unused;
}

void server_loaded(void) {
    CHECK(!pthread_create(&thread, NULL, run, NULL));
    is_running = 1;
    for (int i = 0; server_ask("GET", "/health", NULL).status != 200; i++) CHECK(i < 1000), usleep(10000);
}

static void add_biases(const char *text, float bias) {
    int n = 0;
    for (int32_t id = 0; text && id < sl_model_n_vocab(model); id++) {
        sl_text bytes = {0};
        CHECK_OK(sl_token_bytes(sl_model_tokenizer(model), id, &bytes, &err), err);
        int is_biased = bytes.n >= strlen(text) && !memcmp(bytes.data, text, strlen(text));
        sl_text_free(&bytes);
        if (!is_biased) continue;
        CHECK(n < (int)(sizeof biases / sizeof *biases));
        biases[n++] = (sl_logit_bias){.id = id, .bias = bias};
    }
    sampling.bias = biases, sampling.n_bias = n;
}

static void record(sl_comm *c, void *data, size_t n) {
    (void)c;
    CHECK_OK(sl_text_append(&recording, data, n, &err), err);
}

static void play(sl_comm *c, void *data, size_t n) {
    (void)c;
    CHECK(n <= (size_t)(played_end - played));
    memcpy(data, played, n);
    played += n;
}

void server_start(const server_settings *o) {
    static const server_settings none;
    static sl_comm recorder = {.n = 2, .broadcast = record};
    if (!o) o = &none;
    CHECK_OK(sl_model_load(o->model ? o->model : "models/tiny", NULL, &model, &err), err);
    engine_options = (sl_engine_options){.n_ctx = o->n_ctx ? o->n_ctx : 2048,
                                         .n_sequences = o->n_sequences ? o->n_sequences : 4,
                                         .kv_tokens = o->kv_tokens,
                                         .n_draft = o->n_draft,
                                         .exact_below = o->exact_below,
                                         .prefill_chunk = 128,
                                         .device = "cpu",
                                         .n_threads = 1};
    CHECK_OK(sl_engine_new(model, &engine_options, &engine, &err), err);
    CHECK_OK(sl_chat_load(sl_source_documents(model->source), o->chat_template, &template, &err), err);
    sampling = sl_model_sampling(model);
    add_biases(o->biased, o->bias);
    served = (serve_model){.model = model,
                           .engine = engine,
                           .comm = o->is_recorded ? &recorder : NULL,
                           .n_sequences = engine_options.n_sequences,
                           .path = "models/tiny",
                           .chat = template,
                           .sampling = &sampling,
                           .plan = make_plan,
                           .attn = "dense",
                           .prefill = "dense",
                           .draft = o->draft,
                           .version = "test"};
    options = (serve_options){.http = http_options_default(),
                              .model = "tiny",
                              .max_waiting = o->max_waiting ? o->max_waiting : 512,
                              .slot_save_path = o->slot_save_path,
                              .keep_conversations = o->keep_conversations,
                              .drain_timeout = o->drain_timeout ? o->drain_timeout : 10};
    options.http.port = 0;
    CHECK_OK(serve_open(&options, &server, &err), err);
    if (!o->is_loading) server_loaded();
}

void server_end(void) {
    serve_drain(server);
    if (is_running) pthread_join(thread, NULL);
    is_running = 0;
    serve_free(server);
    server = NULL;
}

const sl_text *server_recording(void) {
    return &recording;
}

int server_follow(const char *bytes, size_t n, sl_error *e) {
    sl_comm player = {.rank = 1, .n = 2, .broadcast = play};
    serve_model follower = served;
    CHECK_OK(sl_engine_new(model, &engine_options, &follower.engine, &err), err);
    follower.comm = &player;
    played = bytes, played_end = bytes + n;
    int rc = serve_follow(&options, &follower, e);
    CHECK_INT(follower.engine->device.pool.n_free, follower.engine->device.pool.n_pages);
    sl_engine_free(follower.engine);
    return rc;
}

void server_stop(void) {
    if (server) server_end();
    sl_text_free(&recording);
    CHECK_INT(engine->device.pool.n_free, engine->device.pool.n_pages);
    CHECK(engine->plans.first == engine->plans.of_engine && !engine->plans.first->next);
    sl_engine_free(engine), sl_engine_free(other);
    sl_chat_template_free(template);
    sl_model_free(model);
    engine = other = NULL, template = NULL, model = NULL;
    free_kept();
}

serve_server *server_object(void) {
    return server;
}

const sl_model *server_model(void) {
    return model;
}

sl_sampling server_sampling(void) {
    return sampling;
}

// ---- the client ----

int server_open(const char *method, const char *path, const char *body) {
    const struct sockaddr_in at = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)serve_port(server)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char head[512];
    size_t n_body = body ? strlen(body) : 0;
    if (fd < 0 || connect(fd, (const struct sockaddr *)&at, sizeof at)) {
        if (fd >= 0) close(fd);
        return -1;
    }
    int n = snprintf(head, sizeof head, "%s %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n", method,
                     path, n_body);
    if (send(fd, head, (size_t)n, MSG_NOSIGNAL) < 0) return fd;
    for (size_t sent = 0; sent < n_body;) {
        ssize_t m = send(fd, body + sent, n_body - sent, MSG_NOSIGNAL);
        if (m <= 0) break;
        sent += (size_t)m;
    }
    return fd;
}

// Removes the sizes of chunks. 0: the last chunk is missing
static int join_chunks(char *body, size_t *n) {
    char *from = body, *to = body, *end = body + *n;
    while (from < end) {
        char *text;
        size_t size = strtoul(from, &text, 16);
        if (text == from || text + 2 + size > end) return 0;
        if (!size) {
            *n = (size_t)(to - body);
            *to = 0;
            return 1;
        }
        memmove(to, text + 2, size);
        to += size;
        from = text + 2 + size + 2;
    }
    return 0;
}

server_reply server_read(int fd) {
    server_reply r = {0};
    sl_text all = {0};
    char part[65536];
    ssize_t n;
    if (fd < 0) return r;
    while ((n = recv(fd, part, sizeof part, 0)) > 0) CHECK_OK(sl_text_append(&all, part, (size_t)n, &err), err);
    close(fd);
    server_keep(all.data);
    char *end = all.n ? strstr(all.data, "\r\n\r\n") : NULL;
    if (!end) return r;
    *end = 0;
    r.head = all.data, r.body = end + 4;
    r.n = all.n - (size_t)(r.body - all.data);
    r.status = atoi(r.head + strlen("HTTP/1.1 "));
    if (strcasestr(r.head, "transfer-encoding: chunked") && !join_chunks(r.body, &r.n)) r.status = 0;
    return r;
}

server_reply server_ask(const char *method, const char *path, const char *body) {
    return server_read(server_open(method, path, body));
}

json_t *server_json(const server_reply *r) {
    return r->n ? server_keep_json(json_loadb(r->body, r->n, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL)) : NULL;
}

json_t *server_post(const char *path, int status, const char *body) {
    server_reply r = server_ask("POST", path, body);
    if (r.status != status) FAIL("%s: status %d, expected %d: %s", path, r.status, status, r.body ? r.body : "");
    json_t *v = server_json(&r);
    if (!v) FAIL("%s: no JSON: %s", path, r.body ? r.body : "");
    return v;
}

json_t *server_events(const server_reply *r) {
    json_t *list = server_keep_json(json_array());
    CHECK_INT(r->status, 200);
    for (char *line = r->body, *end; line && *line; line = end ? end + 1 : NULL) {
        end = strchr(line, '\n');
        if (strncmp(line, "data: ", 6) || !strncmp(line, "data: [DONE]", 12)) continue;
        json_t *v = json_loadb(line + 6, end ? (size_t)(end - line - 6) : strlen(line + 6), JSON_ALLOW_NUL, NULL);
        if (!v) FAIL("no JSON: %s", line);
        json_array_append_new(list, v);
    }
    return list;
}

double server_metric(const char *name) {
    char key[128];
    server_reply r = server_ask("GET", "/metrics", NULL);
    CHECK_INT(r.status, 200);
    snprintf(key, sizeof key, "\n%s{", name);
    const char *at = strstr(r.body, key), *value = at ? strstr(at, "} ") : NULL;
    if (!value) FAIL("no metric %s", name);
    return atof(value + 2);
}

void server_wait(const char *name, double value) {
    double until = sl_now_ms() + 10000, now = NAN;
    while (sl_now_ms() < until) {
        if ((now = server_metric(name)) == value) return;
        usleep(2000);
    }
    FAIL("%s: %g after 10 s, expected %g", name, now, value);
}

// ---- answers ----

const json_t *server_member(const json_t *v, const char *path) {
    char text[128], *rest = text;
    snprintf(text, sizeof text, "%s", path);
    for (char *name; v && (name = strsep(&rest, "/")) != NULL;)
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(name)) : json_object_get(v, name);
    return v;
}

const char *server_text_at(const json_t *v, const char *path) {
    const char *s = json_string_value(server_member(v, path));
    if (!s) FAIL("no text %s in %s", path, server_keep(json_dumps(v, 0)));
    return s;
}

int server_sample_open(const char *path, const char *fields, int seed, int is_stream) {
    char body[4096];
    CHECK(snprintf(body, sizeof body, "{\"seed\": %d, \"temperature\": %s, \"stream\": %s, %s}", seed,
                   strstr(path, "/messages") ? "1.0" : "1.5", is_stream ? "true" : "false", fields) < (int)sizeof body);
    return server_open("POST", path, body);
}

server_reply server_sample(const char *path, const char *fields, int seed, int is_stream) {
    server_reply r = server_read(server_sample_open(path, fields, seed, is_stream));
    if (r.status != 200) FAIL("%s: %d %s", fields, r.status, r.body);
    return r;
}

void server_check_refusals(const server_refusal *cases, size_t n) {
    char body[2048];
    for (size_t i = 0; i < n; i++) {
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        json_t *v = server_post(cases[i].path, 400, body);
        const char *message = server_text_at(v, "error/message"), *param = cases[i].param;
        if (!strstr(cases[i].path, "/messages")) CHECK_STR(server_text_at(v, "error/param"), param);
        if (strncmp(message, param, strlen(param)) || !strstr(message, cases[i].part))
            FAIL("%s: \"%s\" lacks %s", body, message, cases[i].part);
    }
    CHECK_INT(server_metric("vllm:prompt_tokens_total"), 0); // nothing ran
}

// ---- a model with special tokens ----

static void copy_renamed(const char *file, const char *const *tokens) {
    char path[256], old[64];
    size_t n;
    snprintf(path, sizeof path, "models/tiny/%s", file);
    char *text = slurp(path, &n);
    for (int i = 0; tokens[i]; i++) {
        size_t n_old = (size_t)snprintf(old, sizeof old, "<|reserved_special_token_%d|>", i), n_new = strlen(tokens[i]);
        CHECK(i < 10 && n_new <= n_old);
        for (char *at = text; (at = strstr(at, old)) != NULL;) {
            memmove(at + n_new, at + n_old, strlen(at + n_old) + 1);
            memcpy(at, tokens[i], n_new);
        }
    }
    spill(in_tmp(file), text, strlen(text));
}

const char *server_model_with(const char *const *tokens) {
    static const char *const files[] = {"config.json", "model.safetensors", "generation_config.json"};
    char folder[256], from[512];
    CHECK(getcwd(folder, sizeof folder));
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, "%s/models/tiny/%s", folder, files[i]);
        if (access(in_tmp(files[i]), R_OK)) CHECK(!symlink(from, in_tmp(files[i])));
    }
    copy_renamed("tokenizer.json", tokens);
    copy_renamed("tokenizer_config.json", tokens);
    return test_tmp();
}

// ---- alone ----

static int add_text(void *ctx, const char *text, size_t n) {
    server_alone *a = ctx;
    size_t at = strlen(a->text);
    if (at + n < sizeof a->text) memcpy(a->text + at, text, n), a->text[at + n] = 0;
    return 0;
}

server_alone server_answer_alone(const server_question *q) {
    const sl_engine_options o = {.n_ctx = 2048, .device = "cpu", .n_threads = 1};
    sl_generation g = sl_generation_default();
    server_alone a = {0};
    sl_session *session;
    sl_stream *stream;
    sl_attn_plan prefill;
    if (!other) CHECK_OK(sl_engine_new(model, &o, &other, &err), err);
    CHECK_OK(sl_plan_methods_of(other, q->prefill ? q->prefill : "dense", &prefill, &err), err);
    CHECK_OK(sl_engine_set_prefill(other, &prefill, q->prefill ? SEGMENT : 0, &err), err);
    sl_attn_plan_free(&prefill);
    CHECK_OK(sl_session_new(other, q->sequence, &session, &err), err);
    sl_session_set_seed(session, q->seed);
    CHECK_OK(sl_prefill(session, q->ids, q->n, NULL, &err), err);
    g.sampling = q->sampling, g.sampling.seed = q->seed, g.max_tokens = q->max_tokens, g.attn = q->attn;
    g.stop = &q->stop, g.n_stop = q->stop != NULL;
    g.grammar = q->grammar;
    CHECK_OK(sl_stream_new(session, &g, &stream, &err), err);
    CHECK_OK(sl_stream_begin(stream, q->at_start, &err), err);
    while (sl_stream_is_running(stream)) {
        size_t n;
        CHECK_OK(sl_streams_step(&stream, 1, &err), err);
        const char *text = sl_stream_text(stream, &n);
        add_text(&a, text, n);
    }
    a.hash = sl_logits_hash(sl_session_last_logits(session), sl_model_n_vocab(model));
    sl_stream_free(stream), sl_session_free(session);
    return a;
}
