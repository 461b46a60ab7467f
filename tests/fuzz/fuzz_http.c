// tests/fuzz/fuzz_http.c - bytes of clients, sent to a server that runs in this process.
#include "server/http/http.h"
#include "tests/fuzz/fuzz.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static http_server *server;
static atomic_int n_handled;

static int is_text(const char *s) { // the server refuses control bytes in a header
    for (; *s; s++)
        if (((unsigned char)*s < ' ' && *s != '\t') || *s == 127) return 0;
    return 1;
}

// Answers with what the request has: a whole body, or a stream of two pieces.
static void handle(void *ctx, http_exchange *x) {
    const http_request *r = http_request_of(x);
    (void)ctx;
    n_handled++;
    FUZZ_CHECK(r->method && *r->method && r->path && *r->path, "a request without method or path");
    FUZZ_CHECK(!r->body || !r->body[r->n_body], "a body without its NUL");
    FUZZ_CHECK(!r->id || (*r->id && is_text(r->id)), "x-request-id");
    if (strcmp(r->path, "/stream")) {
        http_reply(x, 200, "text/plain", NULL, 0, r->body ? r->body : "", r->n_body);
    } else if (!http_stream_begin(x, 200, "text/event-stream", NULL, 0)) {
        http_stream_send(x, r->path, strlen(r->path));
        http_stream_send(x, r->body ? r->body : "", r->n_body);
        http_stream_end(x);
    }
    http_release(x);
}

static void start(void) {
    static const char *const keys[] = {"k"}, *const open_paths[] = {"/open", "/stream"}, *const origins[] = {"http://a"};
    http_options o = http_options_default();
    const http_handler h = {.request = handle};
    sl_error err = {0};
    o.port = 0;
    o.api_key = keys, o.n_api_keys = 1;
    o.open_paths = open_paths, o.n_open_paths = 2;
    o.cors_origin = origins, o.n_cors_origins = 1;
    o.max_header = 1024, o.max_body = 1024, o.max_bodies = 1200;
    FUZZ_CHECK(!http_server_new(&o, &h, &server, &err), err.message);
}

// poll() that goes on after a signal: the fuzzer's alarm interrupts the calls of this thread.
static int wait_for(int fd, short events, int ms) {
    struct pollfd p = {.fd = fd, .events = events};
    int n;
    while ((n = poll(&p, 1, ms)) < 0 && errno == EINTR) continue;
    return n;
}

// An interrupted connect() goes on by itself; SO_ERROR holds its result once the socket is writable.
static int connect_to(int fd, const struct sockaddr_in *to) {
    int error = 0;
    socklen_t size = sizeof error;
    if (!connect(fd, (const struct sockaddr *)to, sizeof *to)) return 0;
    if (errno != EINTR) return -1;
    if (wait_for(fd, POLLOUT, 10000) != 1 || getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size)) return -1;
    errno = error;
    return error ? -1 : 0;
}

// Each connection has another loopback address, because the ports of one address stay in TIME_WAIT for a minute.
static int open_client(void) {
    static uint32_t n_opened;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)http_server_port(server))};
    struct sockaddr_in from = {.sin_family = AF_INET};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 256 * (1 + n_opened++ % 50000));
    FUZZ_CHECK(fd >= 0 && !bind(fd, (const struct sockaddr *)&from, sizeof from), strerror(errno));
    FUZZ_CHECK(!connect_to(fd, &to), strerror(errno));
    return fd;
}

// Reads what comes within so many milliseconds. 1: the server has closed the connection.
static int drain(int fd, int ms) {
    char bytes[4096];
    while (wait_for(fd, POLLIN, ms) > 0)
        if (recv(fd, bytes, sizeof bytes, 0) <= 0) return 1;
    return 0;
}

static int n_request_lines(const char *data, size_t n) {
    static const char version[] = "HTTP/1.";
    int count = 0;
    for (size_t i = 0; i + sizeof version - 1 <= n; i++) count += !memcmp(data + i, version, sizeof version - 1);
    return count;
}

// The first byte: bit 0: close the sending side at once; else bits 1 to 7: the place of a cut between two packets.
void fuzz_http(const char *data, size_t n) {
    if (!server) start();
    if (!n) return;
    const int way = (unsigned char)data[0], before = n_handled;
    const size_t all = n - 1, first = way & 1 ? all : all * (size_t)(way / 2) / 128;
    data++;
    int fd = open_client(), is_closed = 0;
    if (send(fd, data, first, MSG_NOSIGNAL) == (ssize_t)first && first < all) {
        is_closed = drain(fd, 1);
        if (!is_closed) send(fd, data + first, all - first, MSG_NOSIGNAL);
    }
    if (!(way & 1) && !is_closed) is_closed = drain(fd, 1);
    shutdown(fd, SHUT_WR);
    FUZZ_CHECK(is_closed || drain(fd, 10000), "the connection is open after the client's end");
    close(fd);
    for (int i = 0; i < 10000 && http_server_counts(server).connections; i++) usleep(100);
    const http_counts now = http_server_counts(server);
    FUZZ_CHECK(!now.connections && !now.exchanges, "a connection or an exchange is left");
    FUZZ_CHECK(n_handled - before <= n_request_lines(data, all), "more requests than request lines");
}
