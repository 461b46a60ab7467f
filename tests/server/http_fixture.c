// tests/server/http_fixture.c - see http_fixture.h.
#include "tests/server/http_fixture.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MAX_HELD = 256 };
static const double patience = 10; // seconds for what should come at once

static struct {
    http_server *server;
    int descriptors;
    pthread_mutex_t lock; // guards the fields below
    http_exchange *held[MAX_HELD];
    int n_held, n_taken, n_handled;
} f = {.lock = PTHREAD_MUTEX_INITIALIZER};

double fixture_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void fixture_sleep(double seconds) {
    struct timespec t = {(time_t)seconds, (long)(1e9 * (seconds - (double)(time_t)seconds))};
    nanosleep(&t, NULL);
}

int fixture_descriptors(void) {
    DIR *d = opendir("/proc/self/fd");
    int n = 0;
    while (d && readdir(d)) n++;
    closedir(d);
    return n;
}

// ---- the handler ----

static void answer_big(http_exchange *x) {
    char *body = calloc(1, BIG_BODY);
    http_reply(x, 200, "text/plain", NULL, 0, body, BIG_BODY);
    free(body);
    http_release(x);
}

static void answer_echo(http_exchange *x) {
    const http_request *r = http_request_of(x);
    const char *query = http_query(x, "a");
    const http_field fields[] = {{"x-method", r->method}, {"x-query", query ? query : ""}};
    http_reply(x, 200, "text/plain", fields, 2, r->body, r->n_body);
}

static char *on_error(void *ctx, const char *path, int status, const char *message, size_t *n, const char **type) {
    char *body = NULL;
    (void)ctx;
    if (strcmp(path, "/other")) return NULL;
    *n = (size_t)asprintf(&body, "%d: %s", status, message);
    *type = "text/plain";
    return body;
}

static void on_request(void *ctx, http_exchange *x) {
    const http_request *r = http_request_of(x);
    (void)ctx;
    pthread_mutex_lock(&f.lock);
    int is_held = !strcmp(r->path, "/hold") && f.n_held < MAX_HELD;
    f.n_handled++;
    if (is_held) f.held[f.n_held++] = x;
    pthread_mutex_unlock(&f.lock);
    if (is_held) return;
    if (!strcmp(r->path, "/big")) return answer_big(x);
    if (!strcmp(r->path, "/echo"))
        answer_echo(x);
    else if (strcmp(r->path, "/silent")) // that one gets no answer
        http_fail(x, 404, "no such path");
    http_release(x);
}

http_server *fixture_start(const http_options *o) {
    http_options options = o ? *o : http_options_default();
    const http_handler handler = {.request = on_request, .error = on_error};
    sl_error err;
    http_server_free(f.server); // a case that failed has left it
    f.server = NULL;
    f.n_held = f.n_taken = f.n_handled = 0;
    f.descriptors = fixture_descriptors();
    options.port = 0;
    CHECK_OK(http_server_new(&options, &handler, &f.server, &err), err);
    return f.server;
}

http_server *fixture_take(void) {
    http_server *s = f.server;
    f.server = NULL;
    return s;
}

void fixture_stop(void) {
    http_server_free(f.server);
    f.server = NULL;
    CHECK_INT(f.n_held, f.n_taken);
    CHECK_INT(fixture_descriptors(), f.descriptors);
}

http_exchange *fixture_held(void) {
    for (double end = fixture_now() + patience; fixture_now() < end; fixture_sleep(0.001)) {
        pthread_mutex_lock(&f.lock);
        http_exchange *x = f.n_taken < f.n_held ? f.held[f.n_taken++] : NULL;
        pthread_mutex_unlock(&f.lock);
        if (x) return x;
    }
    FAIL("no request arrived");
}

double fixture_wait_gone(const http_exchange *x) {
    double begin = fixture_now();
    for (; fixture_now() < begin + patience; fixture_sleep(0.001))
        if (http_gone(x)) return fixture_now() - begin;
    FAIL("the server did not notice that the client left");
}

int fixture_handled(void) {
    pthread_mutex_lock(&f.lock);
    int n = f.n_handled;
    pthread_mutex_unlock(&f.lock);
    return n;
}

// ---- the client ----

int client_open(void) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_server_port(f.server))};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to)) FAIL("cannot connect: %s", strerror(errno));
    return fd;
}

void client_send_n(int fd, const void *bytes, size_t n) {
    for (ssize_t sent; n; bytes = (const char *)bytes + sent, n -= (size_t)sent)
        if ((sent = send(fd, bytes, n, MSG_NOSIGNAL)) <= 0) return;
}

void client_send(int fd, const char *text) {
    client_send_n(fd, text, strlen(text));
}

size_t client_read_some(int fd, char *to, size_t max, double seconds) {
    double end = fixture_now() + seconds;
    size_t n = 0;
    while (n < max) {
        double left = end - fixture_now();
        struct pollfd p = {fd, POLLIN, 0};
        if (left <= 0 || poll(&p, 1, (int)(1000 * left) + 1) <= 0) break;
        ssize_t got = recv(fd, to + n, max - n, 0);
        if (got <= 0) break;
        n += (size_t)got;
    }
    return n;
}

int client_is_closed(int fd, double seconds) {
    char byte[4096];
    for (double end = fixture_now() + seconds; fixture_now() < end;) {
        struct pollfd p = {fd, POLLIN, 0};
        if (poll(&p, 1, 10) > 0 && recv(fd, byte, sizeof byte, 0) <= 0) return 1;
    }
    return 0;
}

// Reads a line, or n bytes (n > 0), one byte at a time: the next answer stays in the socket. 0: the connection ended
static int read_line(int fd, char *to, size_t max) {
    size_t n = 0;
    while (n + 1 < max && client_read_some(fd, to + n, 1, patience) == 1)
        if (to[n++] == '\n') return to[n] = 0, 1;
    return to[n] = 0, 0;
}

static int read_body(int fd, reply *r, size_t n) {
    static char part[65536];
    for (size_t got; n; n -= got) {
        got = client_read_some(fd, part, n < sizeof part ? n : sizeof part, patience);
        if (!got) return 0;
        for (size_t i = 0; i < got; i++, r->n_body++)
            if (r->n_body + 1 < sizeof r->body) r->body[r->n_body] = part[i];
    }
    return 1;
}

static const char *field(const reply *r, const char *name) {
    for (const char *line = r->head; (line = strchr(line, '\n')); line++)
        if (!strncasecmp(line + 1, name, strlen(name))) return line + 1 + strlen(name);
    return NULL;
}

static int read_whole_body(int fd, reply *r) {
    char line[64];
    const char *length = field(r, "Content-Length: ");
    if (!field(r, "Transfer-Encoding: chunked")) return length ? read_body(fd, r, strtoull(length, NULL, 10)) : 1;
    for (size_t n = 1; n;) {
        if (!read_line(fd, line, sizeof line)) return 0;
        n = strtoull(line, NULL, 16);
        if (!read_body(fd, r, n) || !read_line(fd, line, sizeof line)) return 0;
    }
    return 1;
}

const reply *client_read(int fd) {
    static reply r;
    char line[2048];
    memset(&r, 0, sizeof r);
    int ok = read_line(fd, line, sizeof line) && sscanf(line, "HTTP/1.%*d %d", &r.status) == 1;
    strcat(r.head, line);
    while (ok && (ok = read_line(fd, line, sizeof line)) && strcmp(line, "\r\n"))
        if (strlen(r.head) + strlen(line) < sizeof r.head) strcat(r.head, line);
    if (ok && r.status != 204 && r.status != 100) ok = read_whole_body(fd, &r);
    if (!ok) r.status = 0;
    const char *connection = field(&r, "Connection: ");
    r.is_closed = connection && !strncasecmp(connection, "close", 5);
    return &r;
}

const reply *client_ask(const char *request) {
    int fd = client_open();
    client_send(fd, request);
    const reply *r = client_read(fd);
    close(fd);
    return r;
}
