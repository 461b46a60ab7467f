// server/serve/serve_routes.c - the HTTP thread's part: it answers small questions, and hands the other requests on.
#include "server/page/page.h"
#include "server/serve/serve_internal.h"

#include <stdlib.h>
#include <string.h>

// ---- bodies that are ready ----

static void send_text(http_exchange *x, const char *type, const void *text, size_t n) {
    http_reply(x, 200, type, NULL, 0, text, n);
}

static void send_json(http_exchange *x, const char *json) {
    send_text(x, "application/json", json, strlen(json));
}

static void health(serve_server *s, http_exchange *x) {
    if (atomic_load(&s->state) == SERVE_DRAINING)
        http_fail(x, 503, "the server is shutting down");
    else
        send_json(x, "{\"status\":\"ok\"}");
}

static void version(serve_server *s, http_exchange *x) {
    send_json(x, s->version);
}

static void models(serve_server *s, http_exchange *x) {
    send_json(x, s->models);
}

static void props(serve_server *s, http_exchange *x) {
    send_json(x, s->props);
}

static void tokenizer_info(serve_server *s, http_exchange *x) {
    send_json(x, s->tokenizer_info);
}

static void slots(serve_server *s, http_exchange *x) {
    serve_reply_json(x, 200, serve_slots_json(s));
}

static void metrics(serve_server *s, http_exchange *x) {
    sl_text text = {0};
    if (serve_metrics_text(s, &text, NULL))
        http_fail(x, 503, "out of memory");
    else
        send_text(x, "text/plain; version=0.0.4; charset=utf-8", text.data, text.n);
    sl_text_free(&text);
}

static void page(serve_server *s, http_exchange *x) {
    static const http_field fields[] = {{"Content-Security-Policy", server_page_policy},
                                        {"X-Content-Type-Options", "nosniff"},
                                        {"Referrer-Policy", "no-referrer"},
                                        {"Cache-Control", "no-cache"}};
    (void)s;
    http_reply(x, 200, "text/html; charset=utf-8", fields, 4, server_page, server_page_size);
}

static const struct {
    const char *path;
    void (*fn)(serve_server *s, http_exchange *x);
} routes[] = {
    {"/health", health},   {"/v1/health", health}, {"/ping", health},
    {"/version", version}, {"/v1/models", models}, {"/props", props},
    {"/slots", slots},     {"/metrics", metrics},  {"/tokenizer_info", tokenizer_info},
    {"/", page},
};

// ---- requests ----

static void wrong_method(http_exchange *x, const char *method) {
    const http_request *r = http_request_of(x);
    serve_fail_status(x, 405, "%.100s %.200s: expected the method %s", r->method, r->path, method);
}

// GET /v1/models/NAME
static void one_model(serve_server *s, http_exchange *x, const char *name) {
    if (strcmp(name, s->name)) {
        serve_fail_status(x, 404, "there is no model %.200s; this server runs %.200s", name, s->name);
        return;
    }
    json_t *all = json_loads(s->models, 0, NULL);
    json_t *model = json_incref(json_array_get(json_object_get(all, "data"), 0));
    json_decref(all);
    serve_reply_json(x, 200, model);
}

static void refuse(serve_server *s, http_exchange *x, int status, const char *why) {
    atomic_fetch_add(&s->n_refused, 1);
    http_fail(x, status, why);
}

static void hand_over(serve_server *s, http_exchange *x, int endpoint) {
    enum { PREPARED = 256 }; // requests beside those that may wait and run: they are read, or their client is gone
    if (atomic_load(&s->n_requests) >= s->options.max_waiting + s->n_sequences + PREPARED) {
        refuse(s, x, 429, "too many requests wait");
        return;
    }
    if (atomic_load(&s->n_bytes) + http_request_of(x)->n_body > s->options.http.max_bodies) {
        refuse(s, x, 503, "the bodies of the requests are too large together");
        return;
    }
    http_hold(x);
    serve_request *r = serve_request_new(s, x, endpoint);
    if (r) {
        serve_push(&s->to_prepare, r);
        return;
    }
    http_fail(x, 503, "out of memory");
    http_release(x);
}

static void route(serve_server *s, http_exchange *x) {
    static const char models_of[] = "/v1/models/";
    const http_request *r = http_request_of(x);
    int is_get = !strcmp(r->method, "GET") || !strcmp(r->method, "HEAD"), endpoint = api_endpoint_find(r->path);
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++) {
        if (strcmp(routes[i].path, r->path)) continue;
        if (is_get)
            routes[i].fn(s, x);
        else
            wrong_method(x, "GET");
        return;
    }
    if (is_get && !strncmp(r->path, models_of, sizeof models_of - 1))
        one_model(s, x, r->path + sizeof models_of - 1);
    else if (endpoint < 0)
        serve_fail_status(x, 404, "there is no path %.300s", r->path);
    else if (strcmp(r->method, "POST"))
        wrong_method(x, "POST");
    else if (atomic_load(&s->state) == SERVE_DRAINING)
        http_fail(x, 503, "the server is shutting down");
    else
        hand_over(s, x, endpoint);
}

void serve_on_request(void *server, http_exchange *x) {
    serve_server *s = server;
    if (atomic_load(&s->state) == SERVE_LOADING)
        http_fail(x, 503, "the model is being loaded");
    else
        route(s, x);
    http_release(x);
}

char *serve_error_body(void *server, const char *path, int status, const char *message, size_t *n, const char **type) {
    api_error e;
    (void)server;
    api_fail(&e, status, NULL, "%s", message);
    json_t *v = api_error_json(&e, api_is_messages(api_endpoint_find(path)));
    char *text = v ? json_dumps(v, JSON_COMPACT) : NULL;
    json_decref(v);
    *type = "application/json";
    *n = text ? strlen(text) : 0;
    return text;
}
