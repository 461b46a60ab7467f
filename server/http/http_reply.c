// server/http/http_reply.c - from an answer to a response of libmicrohttpd.
#include "server/http/http_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- errors ----

static const char *error_type(int status) {
    switch (status) {
    case 401:
        return "authentication_error";
    case 403:
        return "permission_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    case 503:
        return "unavailable_error";
    default:
        return status < 500 ? "invalid_request_error" : "server_error";
    }
}

// The server's messages hold no byte that JSON must escape.
static char *openai_error(int status, const char *message, size_t *n) {
    char *body = NULL;
    int length = asprintf(&body, "{\"error\": {\"message\": \"%s\", \"type\": \"%s\", \"param\": null, \"code\": %d}}\n",
                          message, error_type(status), status);
    if (length < 0) return NULL;
    *n = (size_t)length;
    return body;
}

char *http_error_body(const http_handler *h, const char *path, int status, const char *message, size_t *n, const char **type) {
    char *body = NULL;
    *type = "application/json";
    if (h->error) body = h->error(h->ctx, path, status, message, n, type);
    return body ? body : openai_error(status, message, n);
}

int http_fail(http_exchange *x, int status, const char *message) {
    const char *type;
    size_t n;
    char *body = http_error_body(&x->handler, x->request.path, status, message, &n, &type);
    int rc = body ? http_reply(x, status, type, NULL, 0, body, n) : SL_ERR_MEMORY;
    free(body);
    return rc;
}

// ---- responses ----

static const char *request_header(const http_connection *c, const char *name) {
    return MHD_lookup_connection_value(c->mhd, MHD_HEADER_KIND, name);
}

// Headers of every answer: the request's id, and what a page of an allowed origin needs.
static enum MHD_Result queue(http_connection *c, int status, struct MHD_Response *r, int close) {
    http_server *s = c->server;
    const char *id = request_header(c, "x-request-id"), *origin = request_header(c, "Origin");
    if (!r) return MHD_NO;
    if (id) MHD_add_response_header(r, "x-request-id", id);
    if (http_origin_allowed(&s->options, origin)) {
        MHD_add_response_header(r, "Access-Control-Allow-Origin", origin);
        MHD_add_response_header(r, "Access-Control-Expose-Headers", "x-request-id");
        MHD_add_response_header(r, "Vary", "Origin");
    }
    if (close || s->draining) MHD_add_response_header(r, "Connection", "close");
    enum MHD_Result result = MHD_queue_response(c->mhd, (unsigned)status, r);
    MHD_destroy_response(r);
    http_connection_enter(c, HTTP_SENDING);
    return result;
}

// Takes the body, a text from malloc.
static struct MHD_Response *whole_response(char *body, size_t n, const char *type) {
    struct MHD_Response *r = MHD_create_response_from_buffer(n, body, body ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (!r) free(body);
    if (r && type) MHD_add_response_header(r, "Content-Type", type);
    return r;
}

enum MHD_Result http_queue_error(http_connection *c, const char *path, int status, const char *message, int close) {
    const char *type;
    size_t n;
    char *body = http_error_body(&c->server->handler, path, status, message, &n, &type);
    struct MHD_Response *r = body ? whole_response(body, n, type) : NULL;
    if (r && status == 401) MHD_add_response_header(r, "WWW-Authenticate", "Bearer");
    return queue(c, status, r, close);
}

enum MHD_Result http_queue_preflight(http_connection *c) {
    const char *headers = request_header(c, "Access-Control-Request-Headers");
    struct MHD_Response *r = whole_response(NULL, 0, NULL);
    if (r) {
        MHD_add_response_header(r, "Access-Control-Allow-Methods", "GET, POST, OPTIONS");
        MHD_add_response_header(r, "Access-Control-Max-Age", "600");
        if (headers) MHD_add_response_header(r, "Access-Control-Allow-Headers", headers);
    }
    return queue(c, 204, r, 0);
}

// The library asks for the next bytes of a stream. It asks again and again when it gets none, so the connection is suspended
// then, until the owner sends more.
static ssize_t read_stream(void *ctx, uint64_t at, char *to, size_t max) {
    http_exchange *x = ctx;
    ssize_t n = 0;
    (void)at;
    pthread_mutex_lock(&x->lock);
    size_t n_left = x->out.n - x->sent;
    if (x->gone || x->state == HTTP_CUT) {
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    } else if (n_left) {
        n = (ssize_t)(n_left < max ? n_left : max);
        memcpy(to, x->out.data + x->sent, (size_t)n);
        x->sent += (size_t)n;
        if (x->sent == x->out.n) x->sent = x->out.n = 0;
    } else if (x->state == HTTP_STREAM_ENDED) {
        n = MHD_CONTENT_READER_END_OF_STREAM;
    } else {
        x->connection->suspended = 1;
        MHD_suspend_connection(x->connection->mhd);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

static void free_stream(void *ctx) {
    http_exchange_unref(ctx);
}

static struct MHD_Response *stream_response(http_exchange *x) {
    enum { BLOCK = 4096 };
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK, read_stream, x, free_stream);
    if (!r) return NULL;
    atomic_fetch_add(&x->refs, 1);
    MHD_add_response_header(r, "Content-Type", x->type);
    if (x->is_sse) {
        MHD_add_response_header(r, "Cache-Control", "no-cache");
        MHD_add_response_header(r, "X-Accel-Buffering", "no"); // nginx otherwise collects the events
    }
    return r;
}

enum MHD_Result http_queue_answer(http_connection *c) {
    http_exchange *x = c->exchange;
    struct MHD_Response *r = NULL;
    pthread_mutex_lock(&x->lock);
    http_state state = x->state;
    if (state == HTTP_REPLIED) {
        r = whole_response(x->out.data, x->out.n, x->type);
        x->out = (sl_text){0};
    } else if (state == HTTP_STREAMING || state == HTTP_STREAM_ENDED) {
        r = stream_response(x);
    }
    for (int i = 0; r && i < x->n_fields; i++) MHD_add_response_header(r, x->fields[i].name, x->fields[i].value);
    int status = x->status;
    pthread_mutex_unlock(&x->lock);
    if (state == HTTP_UNOWNED) return http_queue_error(c, x->request.path, 500, "the server has no answer to this request", 0);
    return queue(c, status, r, 0);
}

void http_send_error(http_connection *c, int status, const char *message) {
    char head[256];
    const char *type;
    size_t n;
    char *body = c->server->options.tls_cert ? NULL : http_error_body(&c->server->handler, "", status, message, &n, &type);
    if (body) { // the socket's buffer is empty, so it takes a short text at once
        int n_head = snprintf(head, sizeof head,
                              "HTTP/1.1 %d %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", status,
                              MHD_get_reason_phrase_for((unsigned)status), type, n);
        if (n_head > 0 && n_head < (int)sizeof head) {
            send(c->fd, head, (size_t)n_head, MSG_DONTWAIT | MSG_NOSIGNAL | MSG_MORE);
            send(c->fd, body, n, MSG_DONTWAIT | MSG_NOSIGNAL);
        }
    }
    free(body);
    http_connection_cut(c);
}
