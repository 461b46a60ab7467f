// server/http/http_request.c - the callbacks of libmicrohttpd: from bytes to a whole request, and to the handler. All of it
// runs on the HTTP thread.
//
// The library calls http_on_request once with the headers, then with each part of the body, then without data until a response
// is queued. While the owner has no answer, the connection is suspended between the last two calls.
#include "server/http/http_internal.h"

#include <string.h>
#include <strings.h>

static http_connection *connection_of(struct MHD_Connection *mhd) {
    return MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
}

static const char *header(const http_connection *c, const char *name) {
    return MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, name);
}

// ---- refusals ----

// A client that gets an answer before it has sent its body may see a reset connection only. So the server reads a refused body
// of up to twice max_body bytes, throws it away, and answers then.
static void refuse(http_connection *c, int status, const char *why) {
    http_server *s = c->server;
    c->refusal = status;
    c->refused = why;
    c->to_discard = 2 * s->options.max_body;
    s->n_bodies -= c->body.n;
    sl_text_free(&c->body);
    atomic_fetch_add(&s->n_refused, 1);
}

static const char too_large[] = "the body of the request is too large";

// The length of the body that the header gives; SIZE_MAX: it is chunked, or beyond SIZE_MAX.
static size_t body_length(const http_connection *c) {
    const char *text = header(c, "Content-Length");
    size_t n = 0;
    if (header(c, "Transfer-Encoding")) return SIZE_MAX;
    for (; text && *text; text++) { // the library has checked the digits
        if (n > (SIZE_MAX - 9) / 10) return SIZE_MAX;
        n = 10 * n + (size_t)(*text - '0');
    }
    return n;
}

static int is_open_path(const http_options *o, const char *path) {
    for (int i = 0; i < o->n_open_paths; i++)
        if (!strcmp(o->open_paths[i], path)) return 1;
    return 0;
}

// A browser names the origin of the page that sends a request. A page of another origin must be allowed even if it does not
// read the answer.
static int is_foreign_page(const http_connection *c) {
    const char *origin = header(c, "Origin");
    return origin && !http_origin_allowed(&c->server->options, origin) && !http_origin_is_own(origin, header(c, "Host"));
}

static int is_preflight(const http_connection *c, const char *method) {
    return c->server->options.n_cors_origins && !strcmp(method, "OPTIONS") && header(c, "Origin") &&
           header(c, "Access-Control-Request-Method");
}

// The checks of a request whose form is good.
static void check_request(http_connection *c, const char *path, const char *method) {
    http_server *s = c->server;
    const http_options *o = &s->options;
    if (is_foreign_page(c)) {
        refuse(c, 403, "the server does not serve pages of this origin");
    } else if (is_preflight(c, method)) {
        return;
    } else if (c->is_extra) {
        refuse(c, 503, "the server has too many connections");
    } else if (c->is_address_full) {
        refuse(c, 429, "this address has too many connections");
    } else if (!is_open_path(o, path) && !http_key_fits(o, c->mhd)) {
        refuse(c, 401, "the request needs an API key of this server");
    } else if (!header(c, "Transfer-Encoding") && body_length(c) > o->max_body) {
        refuse(c, 413, too_large);
    }
}

// The first call: the headers are there.
static enum MHD_Result begin(http_connection *c, const char *path, const char *method, const char *version) {
    const http_options *o = &c->server->options;
    const char *why;
    http_connection_enter(c, HTTP_BODY);
    int status = http_check_header(c->mhd, method, c->n_uri, version, o->max_header, &why);
    if (status) {
        refuse(c, status, why);
        return http_queue_error(c, path, status, why, 1);
    }
    check_request(c, path, method);
    int is_too_long = !header(c, "Transfer-Encoding") && body_length(c) > 2 * o->max_body;
    if (c->refusal && (header(c, "Expect") || is_too_long)) return http_queue_error(c, path, c->refusal, c->refused, 1);
    return MHD_YES;
}

// ---- the body ----

static enum MHD_Result take_body(http_connection *c, const char *data, size_t n) {
    http_server *s = c->server;
    if (!c->refusal) {
        if (c->body.n + n > s->options.max_body)
            refuse(c, 413, too_large);
        else if (s->n_bodies + n > s->options.max_bodies || sl_text_append(&c->body, data, n, NULL))
            refuse(c, 503, "the server is receiving too many bodies");
        else
            s->n_bodies += n;
    }
    if (!c->refusal) return MHD_YES;
    if (n > c->to_discard) {
        http_send_error(c, c->refusal, c->refused);
        return MHD_NO;
    }
    c->to_discard -= n;
    return MHD_YES;
}

// ---- the answer ----

static int is_printable(const char *s) {
    for (; *s; s++)
        if (*s <= ' ' || *s > '~') return 0;
    return 1;
}

// Hands the request to the handler. 0: no memory
static int hand_over(http_connection *c, const char *path, const char *method) {
    http_server *s = c->server;
    const char *id = header(c, "x-request-id");
    http_request r = {.method = method, .path = path, .id = id && is_printable(id) ? id : NULL};
    size_t n_body = c->body.n;
    http_exchange *x = http_exchange_new(s, &r, &c->body);
    if (!x) return 0;
    s->n_bodies -= n_body;
    x->connection = c;
    c->exchange = x;
    http_connection_enter(c, HTTP_WAITING);
    atomic_fetch_add(&s->n_exchanges, 1);
    atomic_fetch_add(&s->n_requests, 1);
    s->handler.request(s->handler.ctx, x);
    if (c->hung_up) http_connection_lose(c);
    return 1;
}

// The last call: the body is there, or the connection was resumed.
static enum MHD_Result answer(http_connection *c, const char *path, const char *method) {
    if (c->refusal) return http_queue_error(c, path, c->refusal, c->refused, c->refusal == 503 || c->refusal == 429);
    if (is_preflight(c, method)) return http_queue_preflight(c);
    if (!c->exchange && !hand_over(c, path, method)) return MHD_NO;
    if (http_gone(c->exchange)) return MHD_NO;
    if (http_exchange_is_answered(c->exchange)) return http_queue_answer(c);
    c->suspended = 1;
    MHD_suspend_connection(c->mhd);
    return MHD_YES;
}

enum MHD_Result http_on_request(void *server, struct MHD_Connection *mhd, const char *url, const char *method,
                                const char *version, const char *data, size_t *n, void **ctx) {
    http_server *s = server;
    http_connection *c = connection_of(mhd);
    if (!c || c->killed || s->stopping) return MHD_NO;
    if (!*ctx) {
        *ctx = c;
        return begin(c, url, method, version);
    }
    if (*n) {
        size_t n_data = *n;
        *n = 0;
        return take_body(c, data, n_data);
    }
    return answer(c, url, method);
}

void *http_on_request_line(void *server, const char *uri, struct MHD_Connection *mhd) {
    http_connection *c = connection_of(mhd);
    (void)server;
    if (c) c->n_uri = strstr(uri, "%00") ? 0 : strlen(uri); // %00 would become a NUL in the path
    if (c && c->phase == HTTP_NEW)
        c->phase = HTTP_HEADER; // header_timeout counts from the connection
    else if (c)
        http_connection_enter(c, HTTP_HEADER);
    return NULL;
}

void http_on_completed(void *server, struct MHD_Connection *mhd, void **ctx, enum MHD_RequestTerminationCode code) {
    http_connection *c = connection_of(mhd);
    (void)server, (void)ctx, (void)code;
    if (!c) return;
    http_connection_end_request(c);
    http_connection_enter(c, HTTP_IDLE);
}
