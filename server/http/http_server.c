// server/http/http_server.c - the HTTP thread: it waits for sockets, owners and deadlines, and runs libmicrohttpd.
//
// The server accepts connections by itself, because the library would leave clients above the limit waiting. It keeps all
// deadlines by itself, because the library's only time-out restarts with each byte, and does not count for a suspended
// connection.
#include "server/http/http_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <math.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { EXTRA_CONNECTIONS = 64 }; // above max_connections: they get the status 503
static const double tick = 0.1;  // seconds between two looks at the deadlines

// ---- new connections ----

static void on_notify(void *server, struct MHD_Connection *mhd, void **context, enum MHD_ConnectionNotificationCode code) {
    http_server *s = server;
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        s->added->mhd = mhd;
        *context = s->added;
        s->added = NULL;
    } else if (*context) { // the library closes the descriptor after this call
        http_connection_free(*context);
        *context = NULL;
    }
}

static int is_same_address(const struct sockaddr_storage *a, const struct sockaddr_storage *b) {
    if (a->ss_family != b->ss_family) return 0;
    if (a->ss_family == AF_INET)
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    return IN6_ARE_ADDR_EQUAL(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr);
}

static int count_address(const http_server *s, const struct sockaddr_storage *address) {
    int n = 0;
    for (const http_connection *c = s->connections; c; c = c->next) n += is_same_address(&c->address, address);
    return n;
}

static void add_connection(http_server *s, int fd, const struct sockaddr_storage *address, socklen_t n) {
    const http_options *o = &s->options;
    long n_open = s->n_connections;
    int is_full = o->max_address_connections && count_address(s, address) >= o->max_address_connections;
    http_connection *c = n_open < o->max_connections + EXTRA_CONNECTIONS ? http_connection_new(s, fd, address) : NULL;
    if (!c) {
        close(fd);
        return;
    }
    c->is_extra = n_open >= o->max_connections;
    c->is_address_full = is_full;
    s->added = c;
    MHD_add_connection(s->daemon, fd, (const struct sockaddr *)address, n); // closes fd when it fails
    if (s->added) http_connection_free(c);
    s->added = NULL;
}

static void listen_events(http_server *s, uint32_t events) {
    epoll_ctl(s->epoll, EPOLL_CTL_MOD, s->listener, &(struct epoll_event){.events = events, .data.ptr = &s->listener});
    s->is_listening = events != 0;
}

static void accept_clients(http_server *s) {
    enum { AT_ONCE = 64 };
    for (int i = 0; i < AT_ONCE; i++) {
        struct sockaddr_storage address;
        socklen_t n = sizeof address;
        int fd = accept4(s->listener, (struct sockaddr *)&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0)
            add_connection(s, fd, &address, n);
        else if (errno == EAGAIN)
            return;
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            return listen_events(s, 0); // until the next tick, because epoll would report the client again and again
    }
}

static void close_listener(http_server *s) {
    if (s->listener >= 0) close(s->listener);
    s->listener = -1;
}

// ---- deadlines ----

// 0: the socket holds bytes of the answer, and the client has confirmed no byte since the last look.
static int is_reading(http_connection *c) {
    struct tcp_info info = {0};
    socklen_t n_info = sizeof info;
    int n_unread = 0;
    if (ioctl(c->fd, SIOCOUTQ, &n_unread) || getsockopt(c->fd, IPPROTO_TCP, TCP_INFO, &info, &n_info)) return 1;
    int is_stuck = n_unread > 0 && info.tcpi_bytes_acked == c->confirmed;
    c->confirmed = info.tcpi_bytes_acked;
    return !is_stuck;
}

static void time_out(http_connection *c, const char *what) {
    atomic_fetch_add(&c->server->n_timeouts, 1);
    http_send_error(c, 408, what);
}

// The library can miss the end of a client's bytes: its epoll is edge-triggered, and it reads once for the last bytes and the
// end that came with them.
static int has_ended(const http_connection *c) {
    int n = 0;
    return c->hung_up && c->phase != HTTP_WAITING && c->phase != HTTP_SENDING && !ioctl(c->fd, FIONREAD, &n) && !n;
}

static void cut_ended(http_server *s) {
    if (!s->has_hung_up) return;
    s->has_hung_up = 0;
    for (http_connection *c = s->connections; c; c = c->next)
        if (has_ended(c)) http_connection_cut(c);
}

static void check_deadline(http_connection *c, double now) {
    http_server *s = c->server;
    const http_options *o = &s->options;
    double waited = now - c->since;
    if (has_ended(c)) {
        http_connection_cut(c);
        return;
    }
    switch (c->phase) {
    case HTTP_NEW:
        if (s->draining) http_connection_cut(c);
        // fall through
    case HTTP_HEADER:
        if (!c->killed && waited > o->header_timeout) time_out(c, "the header of the request took too long");
        break;
    case HTTP_BODY:
        if (waited > o->body_timeout) time_out(c, "the body of the request took too long");
        break;
    case HTTP_WAITING:
        break;
    case HTTP_SENDING:
        if (is_reading(c)) {
            c->since = now;
            if (c->exchange) http_exchange_comment(c->exchange, now - o->sse_interval);
        } else if (waited > o->read_timeout) {
            if (c->exchange) http_exchange_lose(c->exchange, 1);
            http_connection_lose(c);
            http_connection_cut(c);
        }
        break;
    case HTTP_IDLE:
        if (waited > o->idle_timeout || s->draining) http_connection_cut(c);
        break;
    }
}

static void check_deadlines(http_server *s) {
    double now = http_now();
    if (now < s->next_tick) return;
    s->next_tick = now + tick;
    if (s->listener >= 0 && !s->is_listening) listen_events(s, EPOLLIN);
    for (http_connection *c = s->connections; c; c = c->next)
        if (!c->killed) check_deadline(c, now);
}

// ---- the thread ----

// Milliseconds until the thread has to do something by itself; -1: nothing
static int wait_ms(const http_server *s) {
    MHD_UNSIGNED_LONG_LONG ms;
    if (MHD_get_timeout(s->daemon, &ms) == MHD_YES && ms == 0) return 0;
    if (!s->connections && (s->is_listening || s->listener < 0)) return -1;
    double left = s->next_tick - http_now();
    return left > 0 ? (int)(1000 * left) + 1 : 0;
}

static void wait_for_events(http_server *s) {
    enum { MAX_EVENTS = 64 };
    struct epoll_event events[MAX_EVENTS];
    int n = epoll_wait(s->epoll, events, MAX_EVENTS, wait_ms(s)), has_clients = 0;
    for (int i = 0; i < n; i++) { // no connection is freed here, so every pointer is good
        void *what = events[i].data.ptr;
        eventfd_t ignored;
        if (what == &s->listener) {
            has_clients = 1;
        } else if (what == &s->wake) {
            eventfd_read(s->wake, &ignored);
        } else if (what != s->daemon) {
            http_connection *c = what;
            c->hung_up = s->has_hung_up = 1;
            http_connection_lose(c);
        }
    }
    if (has_clients && s->listener >= 0) accept_clients(s);
}

static void run_woken(http_server *s) {
    for (http_exchange *x = http_server_take_woken(s), *next; x; x = next) {
        next = http_server_next_woken(s, x);
        http_connection *c = x->connection;
        if (c) http_connection_resume(c);
        if (c && http_gone(x)) http_connection_cut(c); // too slow
        http_exchange_unref(x);
    }
}

// The library must not stop while a connection is suspended.
static void stop(http_server *s) {
    close_listener(s);
    for (http_connection *c = s->connections; c; c = c->next) {
        http_connection_lose(c);
        http_connection_cut(c);
    }
    run_woken(s);
    MHD_run(s->daemon);
    MHD_stop_daemon(s->daemon);
    run_woken(s);
}

static void *serve(void *server) {
    http_server *s = server;
    while (!s->stopping) {
        wait_for_events(s);
        if (s->draining) close_listener(s);
        run_woken(s);
        MHD_run(s->daemon);
        cut_ended(s);
        check_deadlines(s);
    }
    stop(s);
    return NULL;
}

static int start_thread(http_server *s) {
    sigset_t all, before;
    sigfillset(&all); // the caller's threads get the signals of the process
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(&s->thread, NULL, serve, s);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

// ---- options ----

http_options http_options_default(void) {
    static const char *const open_paths[] = {"/health", "/v1/models"};
    return (http_options){
        .host = "127.0.0.1",
        .port = 8080,
        .open_paths = open_paths,
        .n_open_paths = 2,
        .max_header = 16 << 10,
        .max_body = 16 << 20,
        .max_bodies = 256 << 20,
        .max_unread = 1 << 20,
        .max_connections = 1024,
        .header_timeout = 10,
        .body_timeout = 60,
        .read_timeout = 60,
        .idle_timeout = 75,
        .sse_interval = 15,
    };
}

static int check_options(const http_options *o, sl_error *err) {
    const struct {
        const char *name;
        double value, min, max;
    } numbers[] = {
        {"max_header", (double)o->max_header, 1024, 1 << 20},
        {"max_body", (double)o->max_body, 1024, 1 << 30},
        {"max_bodies", (double)o->max_bodies, (double)o->max_body, 0x1p40},
        {"max_unread", (double)o->max_unread, 4096, 1 << 30},
        {"max_connections", o->max_connections, 1, 1 << 20},
        {"max_address_connections", o->max_address_connections, 0, 1 << 20},
        {"header_timeout", o->header_timeout, 0.1, 86400},
        {"body_timeout", o->body_timeout, 0.1, 86400},
        {"read_timeout", o->read_timeout, 0.1, 86400},
        {"idle_timeout", o->idle_timeout, 0.1, 86400},
        {"sse_interval", o->sse_interval, 0.1, 86400},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!(numbers[i].value >= numbers[i].min && numbers[i].value <= numbers[i].max))
            return sl_fail(err, SL_ERR_ARG, "{%s} %.10g: expected %.10g to %.10g", numbers[i].name, numbers[i].value,
                           numbers[i].min, numbers[i].max);
    for (int i = 0; i < o->n_api_keys; i++)
        if (!o->api_key[i][0])
            return sl_fail(err, SL_ERR_ARG, "{api_key}: found an empty key, expected at least one character");
    if (!o->tls_cert != !o->tls_key) return sl_fail(err, SL_ERR_ARG, "{tls_cert} and {tls_key}: expected both or none");
#ifdef SLEIGH_NO_TLS
    if (o->tls_cert)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "{tls_cert}: this build has no TLS; use a proxy, or another build");
#endif
    return 0;
}

// Copies a text for the server's life. NULL stays NULL.
static const char *keep(http_server *s, size_t *n, const char *text, int *is_full) {
    if (!text) return NULL;
    char *copy = strdup(text);
    if (!copy) *is_full = 1;
    if (copy) s->strings[(*n)++] = copy;
    return copy;
}

static const char *const *keep_list(http_server *s, size_t *n, const char *const *list, int n_list, int *is_full) {
    const char **copy = n_list ? calloc((size_t)n_list, sizeof *copy) : NULL;
    if (!copy) {
        *is_full |= n_list > 0;
        return NULL;
    }
    s->strings[(*n)++] = (char *)copy;
    for (int i = 0; i < n_list; i++) copy[i] = keep(s, n, list[i], is_full);
    return copy;
}

static int copy_options(http_server *s, const http_options *o, sl_error *err) {
    size_t n = 0;
    int is_full = 0;
    s->options = *o;
    s->strings = calloc((size_t)(o->n_api_keys + o->n_open_paths + o->n_cors_origins) + 8, sizeof *s->strings);
    if (!s->strings) return sl_fail(err, SL_ERR_MEMORY, "the options of the server: out of memory");
    s->options.host = keep(s, &n, o->host, &is_full);
    s->options.tls_cert = keep(s, &n, o->tls_cert, &is_full);
    s->options.tls_key = keep(s, &n, o->tls_key, &is_full);
    s->options.api_key = keep_list(s, &n, o->api_key, o->n_api_keys, &is_full);
    s->options.open_paths = keep_list(s, &n, o->open_paths, o->n_open_paths, &is_full);
    s->options.cors_origin = keep_list(s, &n, o->cors_origin, o->n_cors_origins, &is_full);
    return is_full ? sl_fail(err, SL_ERR_MEMORY, "the options of the server: out of memory") : 0;
}

// ---- start and end ----

// The library's memory for one connection holds the header, an index of it, and the headers of the answer.
static size_t connection_memory(const http_options *o) {
    return 3 * o->max_header;
}

static int start_daemon(http_server *s, sl_error *err) {
    const http_options *o = &s->options;
    char *cert = NULL, *key = NULL;
    unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME;
    int rc = o->tls_cert ? http_read_pem(o->tls_cert, "tls_cert", &cert, err) : 0;
    if (!rc && o->tls_key) rc = http_read_pem(o->tls_key, "tls_key", &key, err);
    struct MHD_OptionItem tls[] = {
        {MHD_OPTION_HTTPS_MEM_CERT, 0, cert}, {MHD_OPTION_HTTPS_MEM_KEY, 0, key}, {MHD_OPTION_END, 0, NULL}};
    if (!rc)
        s->daemon = MHD_start_daemon(flags | (cert ? MHD_USE_TLS : 0), 0, NULL, NULL, http_on_request, s,
                                     MHD_OPTION_CONNECTION_MEMORY_LIMIT, connection_memory(o), MHD_OPTION_CONNECTION_LIMIT,
                                     (unsigned)(o->max_connections + EXTRA_CONNECTIONS), MHD_OPTION_STRICT_FOR_CLIENT, 1,
                                     MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_NOTIFY_CONNECTION, on_notify, s,
                                     MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, s, MHD_OPTION_URI_LOG_CALLBACK,
                                     http_on_request_line, s, MHD_OPTION_ARRAY, cert ? tls : tls + 2, MHD_OPTION_END);
    if (!rc && !s->daemon && cert)
        rc = sl_fail(err, SL_ERR_FORMAT, "{tls_cert} %s, {tls_key} %s: expected a certificate and its key", o->tls_cert,
                     o->tls_key);
    else if (!rc && !s->daemon)
        rc = sl_fail(err, SL_ERR_IO, "cannot start the HTTP server: %s", strerror(errno));
    free(cert);
    free(key);
    return rc;
}

static int watch(http_server *s, int fd, void *what) {
    return epoll_ctl(s->epoll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.ptr = what});
}

static int start(http_server *s, sl_error *err) {
    int rc = http_allow_files(s->options.max_connections + EXTRA_CONNECTIONS, err);
    if (!rc) rc = http_listen(&s->options, &s->listener, &s->port, err);
    if (!rc) rc = start_daemon(s, err);
    if (rc) return rc;
    s->epoll = epoll_create1(EPOLL_CLOEXEC);
    s->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    s->is_listening = 1;
    int daemon = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD)->epoll_fd;
    if (s->epoll < 0 || s->wake < 0 || watch(s, s->listener, &s->listener) || watch(s, s->wake, &s->wake) ||
        watch(s, daemon, s->daemon) || start_thread(s))
        return sl_fail(err, SL_ERR_IO, "cannot start the HTTP server: %s", strerror(errno));
    return 0;
}

static void free_server(http_server *s) {
    close_listener(s);
    if (s->epoll >= 0) close(s->epoll);
    if (s->wake >= 0) close(s->wake);
    for (size_t i = 0; s->strings && s->strings[i]; i++) free(s->strings[i]);
    free(s->strings);
    pthread_cond_destroy(&s->drained);
    pthread_mutex_destroy(&s->lock);
    free(s);
}

int http_server_new(const http_options *options, const http_handler *handler, http_server **out, sl_error *err) {
    int rc = check_options(options, err);
    if (rc) return rc;
    http_server *s = calloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_MEMORY, "the HTTP server: out of memory");
    s->listener = s->epoll = s->wake = -1;
    s->handler = *handler;
    pthread_mutex_init(&s->lock, NULL);
    pthread_condattr_t clock;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&s->drained, &clock);
    pthread_condattr_destroy(&clock);
    rc = copy_options(s, options, err);
    if (!rc) rc = start(s, err);
    if (rc) {
        if (s->daemon) MHD_stop_daemon(s->daemon);
        free_server(s);
        return rc;
    }
    *out = s;
    return 0;
}

int http_server_port(const http_server *s) {
    return s->port;
}

void http_server_drain(http_server *s) {
    s->draining = 1;
    eventfd_write(s->wake, 1);
}

int http_server_wait(http_server *s, double seconds) {
    double end = http_now() + seconds;
    struct timespec t = {(time_t)end, (long)(1e9 * (end - floor(end)))};
    int rc = 0;
    pthread_mutex_lock(&s->lock);
    while (s->n_connections && rc != ETIMEDOUT) rc = pthread_cond_timedwait(&s->drained, &s->lock, &t);
    int is_done = !s->n_connections;
    pthread_mutex_unlock(&s->lock);
    return is_done;
}

void http_server_free(http_server *s) {
    if (!s) return;
    s->stopping = 1;
    eventfd_write(s->wake, 1);
    pthread_join(s->thread, NULL);
    free_server(s);
}

http_counts http_server_counts(const http_server *s) {
    return (http_counts){
        .connections = s->n_connections,
        .exchanges = s->n_exchanges,
        .requests = s->n_requests,
        .gone = s->n_gone,
        .slow_readers = s->n_slow,
        .timeouts = s->n_timeouts,
        .refused = s->n_refused,
    };
}
