// server/http/http_exchange.c - an exchange: what its owners do from any thread. http_request.c and http_reply.c do the HTTP
// thread's part.
#include "server/http/http_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

double http_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ---- lifetime ----

// Copies a text to *at, and moves *at behind the copy.
static const char *put_text(char **at, const char *text) {
    if (!text) return NULL;
    char *copy = *at;
    *at = stpcpy(copy, text) + 1;
    return copy;
}

static size_t text_size(const char *text) {
    return text ? strlen(text) + 1 : 0;
}

http_exchange *http_exchange_new(http_server *s, const http_request *r, sl_text *body) {
    http_exchange *x = calloc(1, sizeof *x);
    char *at = x ? malloc(text_size(r->method) + text_size(r->path) + text_size(r->id)) : NULL;
    if (!at) return free(x), NULL;
    x->text = at;
    x->server = s;
    x->handler = s->handler;
    x->refs = 2;
    x->owners = 1;
    x->request = (http_request){.method = put_text(&at, r->method),
                                .path = put_text(&at, r->path),
                                .id = put_text(&at, r->id),
                                .body = body->data,
                                .n_body = body->n};
    *body = (sl_text){0};
    pthread_mutex_init(&x->lock, NULL);
    return x;
}

static void free_fields(http_exchange *x) {
    for (int i = 0; i < x->n_fields; i++) {
        free((char *)x->fields[i].name);
        free((char *)x->fields[i].value);
    }
    x->n_fields = 0;
}

void http_exchange_unref(http_exchange *x) {
    if (atomic_fetch_sub(&x->refs, 1) > 1) return;
    free((char *)x->request.body);
    free(x->text);
    free(x->type);
    free_fields(x);
    sl_text_free(&x->out);
    pthread_mutex_destroy(&x->lock);
    free(x);
}

// ---- waking the HTTP thread ----

// Call it with x->lock, for an exchange that is not gone: then the server lives.
static void wake(http_exchange *x) {
    http_server *s = x->server;
    int is_first = 0;
    pthread_mutex_lock(&s->lock);
    if (!x->is_woken) {
        is_first = !s->woken;
        x->is_woken = 1;
        x->next_woken = s->woken;
        s->woken = x;
        atomic_fetch_add(&x->refs, 1);
    }
    pthread_mutex_unlock(&s->lock);
    if (is_first) eventfd_write(s->wake, 1);
}

http_exchange *http_server_take_woken(http_server *s) {
    pthread_mutex_lock(&s->lock);
    http_exchange *list = s->woken;
    s->woken = NULL;
    pthread_mutex_unlock(&s->lock);
    return list;
}

http_exchange *http_server_next_woken(http_server *s, http_exchange *x) {
    pthread_mutex_lock(&s->lock);
    http_exchange *next = x->next_woken;
    x->is_woken = 0; // from now on, an owner may put the exchange into the next list
    pthread_mutex_unlock(&s->lock);
    return next;
}

// ---- gone ----

static int owner_answers(const http_exchange *x) {
    return x->state == HTTP_UNANSWERED || x->state == HTTP_STREAMING;
}

// Call it with x->lock.
static void lose(http_exchange *x, int is_slow) {
    sl_text_free(&x->out);
    x->sent = 0;
    atomic_fetch_add(&x->server->n_gone, 1);
    if (is_slow) atomic_fetch_add(&x->server->n_slow, 1);
    x->gone = 1; // last: the counts have the exchange when others see this
}

void http_exchange_lose(http_exchange *x, int is_slow) {
    pthread_mutex_lock(&x->lock);
    if (!x->gone && owner_answers(x)) lose(x, is_slow);
    pthread_mutex_unlock(&x->lock);
}

int http_exchange_is_answered(http_exchange *x) {
    pthread_mutex_lock(&x->lock);
    int is_answered = x->state != HTTP_UNANSWERED;
    pthread_mutex_unlock(&x->lock);
    return is_answered;
}

int http_gone(const http_exchange *x) {
    return atomic_load(&x->gone);
}

// ---- the request ----

const http_request *http_request_of(const http_exchange *x) {
    return &x->request;
}

const char *http_query(const http_exchange *x, const char *name) {
    return MHD_lookup_connection_value(x->connection->mhd, MHD_GET_ARGUMENT_KIND, name);
}

char *http_take_body(http_exchange *x, size_t *n) {
    char *body = (char *)x->request.body;
    *n = x->request.n_body;
    x->request.body = NULL;
    x->request.n_body = 0;
    return body;
}

// ---- the answer ----

// Bytes that would end a header, or that no header may hold.
static int is_bad_header(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < ' ' || *text == 127) return 1;
    return 0;
}

// Starts the answer: the status, the type and the headers. Call it with x->lock.
static int start(http_exchange *x, http_state state, int status, const char *type, const http_field *fields, int n) {
    SL_CHECK(x->state == HTTP_UNANSWERED);
    SL_CHECK(n >= 0 && n <= HTTP_MAX_FIELDS);
    if (x->gone) return SL_ERR_CANCELLED;
    int is_bad = is_bad_header(type);
    for (int i = 0; i < n; i++) is_bad |= is_bad_header(fields[i].name) || is_bad_header(fields[i].value);
    if (is_bad) return SL_ERR_ARG;
    x->type = strdup(type);
    int is_full = !x->type;
    for (int i = 0; i < n && !is_full; i++) {
        x->fields[x->n_fields++] = (http_field){strdup(fields[i].name), strdup(fields[i].value)};
        is_full = !x->fields[i].name || !x->fields[i].value;
    }
    if (is_full) {
        free_fields(x);
        free(x->type);
        x->type = NULL;
        return SL_ERR_MEMORY;
    }
    x->status = status;
    x->state = state;
    return 0;
}

int http_reply(http_exchange *x, int status, const char *type, const http_field *fields, int n_fields, const void *body,
               size_t n) {
    sl_text out = {0};
    if (n && sl_text_append(&out, body, n, NULL)) return SL_ERR_MEMORY;
    pthread_mutex_lock(&x->lock);
    int rc = start(x, HTTP_REPLIED, status, type, fields, n_fields);
    if (!rc) {
        x->out = out;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    if (rc) sl_text_free(&out);
    return rc;
}

int http_stream_begin(http_exchange *x, int status, const char *type, const http_field *fields, int n_fields) {
    pthread_mutex_lock(&x->lock);
    int rc = start(x, HTTP_STREAMING, status, type, fields, n_fields);
    if (!rc) {
        x->is_sse = !strcmp(type, "text/event-stream");
        x->last_send = http_now();
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    return rc;
}

// Appends to what waits for the reader. Moves the rest to the front when the buffer would grow otherwise.
static int append(http_exchange *x, const void *bytes, size_t n) {
    if (x->sent && x->out.n + n >= x->out.cap) {
        memmove(x->out.data, x->out.data + x->sent, x->out.n - x->sent);
        x->out.n -= x->sent;
        x->sent = 0;
    }
    int rc = sl_text_append(&x->out, bytes, n, NULL);
    if (!rc) x->last_send = http_now();
    return rc;
}

int http_stream_send(http_exchange *x, const void *bytes, size_t n) {
    int rc = SL_ERR_CANCELLED;
    pthread_mutex_lock(&x->lock);
    if (!x->gone) {
        SL_CHECK(x->state == HTTP_STREAMING);
        if (n > x->largest_piece) x->largest_piece = n;
        if (x->out.n - x->sent + n > x->server->options.max_unread + x->largest_piece) {
            lose(x, 1);
            wake(x); // the HTTP thread finds it gone, and cuts the connection. The server lives: it waits for this lock
        } else if (!(rc = append(x, bytes, n)) && n) {
            wake(x);
        }
    }
    pthread_mutex_unlock(&x->lock);
    return rc;
}

int http_stream_end(http_exchange *x) {
    pthread_mutex_lock(&x->lock);
    int rc = x->gone ? SL_ERR_CANCELLED : 0;
    if (!rc) {
        SL_CHECK(x->state == HTTP_STREAMING);
        x->state = HTTP_STREAM_ENDED;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    return rc;
}

void http_exchange_comment(http_exchange *x, double before) {
    static const char comment[] = ": keep-alive\n\n";
    pthread_mutex_lock(&x->lock);
    if (!x->gone && x->state == HTTP_STREAMING && x->is_sse && x->sent == x->out.n && x->last_send < before &&
        !append(x, comment, sizeof comment - 1))
        wake(x);
    pthread_mutex_unlock(&x->lock);
}

void http_hold(http_exchange *x) {
    atomic_fetch_add(&x->owners, 1);
}

void http_release(http_exchange *x) {
    if (atomic_fetch_sub(&x->owners, 1) > 1) return;
    pthread_mutex_lock(&x->lock);
    if (!x->gone && owner_answers(x)) {
        x->state = x->state == HTTP_STREAMING ? HTTP_CUT : HTTP_UNOWNED;
        wake(x);
    }
    pthread_mutex_unlock(&x->lock);
    http_exchange_unref(x);
}
