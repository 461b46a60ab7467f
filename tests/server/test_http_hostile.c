// tests/server/test_http_hostile.c - limits, malformed and slow clients.
#include "tests/server/http_fixture.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

// The server answers, and each descriptor is closed in time.
static void check_alive(void) {
    CHECK_INT(client_ask("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n")->status, 200);
}

// ---- malformed requests ----

// Requests that two servers may read differently, with a second request behind them. The server must not handle the second one.
// status 0: the library closes the connection without an answer.
static const struct {
    const char *name, *text;
    int status;
} malformed[] = {
    {"length and encoding", "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
    {"encoding and length", "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n", 400},
    {"two lengths", "Content-Length: 4\r\nContent-Length: 0\r\n\r\nbody", 400},
    {"two equal lengths", "Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400},
    {"list of lengths", "Content-Length: 0, 0\r\n\r\n", 400},
    {"negative length", "Content-Length: -1\r\n\r\n", 400},
    {"length with a sign", "Content-Length: +4\r\n\r\nbody", 400},
    {"length in hexadecimal", "Content-Length: 0x4\r\n\r\nbody", 400},
    {"length without digits", "Content-Length:\r\n\r\n", 400},
    {"length beyond 64 bits", "Content-Length: 99999999999999999999\r\n\r\n", 413},
    {"two encodings", "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 400},
    {"unknown encoding", "Transfer-Encoding: gzip\r\n\r\n", 501},
    {"list of encodings", "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501},
    {"blank before the colon", "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
    {"vertical tab in the encoding", "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", 400},
    {"folded encoding", "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n", 400},
    {"folded name", "Content-Len: 4\r\n gth\r\n\r\nbody", 400},
    {"folded line", "x-a: b\r\n c\r\nx-d: e\r\n\r\n", 400},
    {"first line is folded", " x-a: b\r\n\r\n", 400},
    {"bare LF", "x-a: b\nContent-Length: 4\r\n\r\nbody", 400},
    {"bare CR", "x-a: b\rContent-Length: 4\r\n\r\n", 400},
    {"no colon", "x-a\r\n\r\n", 400},
    {"empty name", ": b\r\n\r\n", 400},
    {"name is no token", "x(a): b\r\n\r\n", 400},
    {"two hosts", "Host: i\r\n\r\n", 400},
    {"chunk size is no number", "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400},
    {"chunk size with 0x", "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400},
    {"negative chunk size", "Transfer-Encoding: chunked\r\n\r\n-3\r\nabc\r\n0\r\n\r\n", 400},
    {"empty chunk size", "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n", 400},
    {"chunk size beyond 64 bits", "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\nabc\r\n", 413},
    {"chunk longer than its size", "Transfer-Encoding: chunked\r\n\r\n3\r\nabcde\r\n0\r\n\r\n", 400},
};

static void smuggling(void) {
    fixture_start(NULL);
    for (size_t i = 0; i < sizeof malformed / sizeof *malformed; i++) {
        char text[1024];
        int n = fixture_handled(), fd = client_open();
        snprintf(text, sizeof text, "POST /echo HTTP/1.1\r\nHost: h\r\n%sGET /echo HTTP/1.1\r\nHost: h\r\n\r\n",
                 malformed[i].text);
        client_send(fd, text);
        int status = client_read(fd)->status;
        if (status != malformed[i].status) FAIL("%s: status %d, expected %d", malformed[i].name, status, malformed[i].status);
        if (!client_is_closed(fd, 5)) FAIL("%s: the connection is open", malformed[i].name);
        if (fixture_handled() != n) FAIL("%s: the handler got a request", malformed[i].name);
        close(fd);
    }
    check_alive();
    fixture_stop();
}

static void request_lines(void) {
#define REST " HTTP/1.1\r\nHost: h\r\n"
    static const struct {
        const char *text;
        size_t n;
    } nuls[] = {
#define BYTES(TEXT) {TEXT, sizeof TEXT - 1}
        BYTES("GET /echo" REST "x-a: b\0c\r\n\r\n"),
        BYTES("\0GET /echo" REST "\r\n"),
        BYTES("G\0ET /echo" REST "\r\n"),
        BYTES("GET \0/echo" REST "\r\n"),
        BYTES("GET /echo\0/a" REST "\r\n"),
        BYTES("GET /echo?a=\0b" REST "\r\n"),
        BYTES("GET /echo%00" REST "\r\n"),
    };
    static const char *const lines[] = {
        "GET\r\n\r\n",
        "GET /echo\r\n\r\n",
        "GET /echo HTTP/0.9\r\n\r\n",
        "GET /echo HTTP/2.0\r\nHost: h\r\n\r\n",
        "GET /a b HTTP/1.1\r\nHost: h\r\n\r\n",
        "/echo\r\n\r\n",
        "GET /echo http/1.1\r\nHost: h\r\n\r\n",
        "GET /echo HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\x02",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "GET /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    };
    fixture_start(NULL);
    int fd;
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        fd = client_open();
        client_send(fd, lines[i]);
        shutdown(fd, SHUT_WR);
        if (!client_is_closed(fd, 5)) FAIL("%s: the connection is open", lines[i]);
        close(fd);
    }
    for (size_t i = 0; i < sizeof nuls / sizeof *nuls; i++) {
        fd = client_open();
        client_send_n(fd, nuls[i].text, nuls[i].n);
        int status = client_read(fd)->status;
        if (status != 400) FAIL("request %zu: status %d", i, status);
        close(fd);
    }
    CHECK_INT(fixture_handled(), 0);
    check_alive();
    fixture_stop();
}

// Bytes at random, and good requests with bytes changed, cut and doubled. The seeds are fixed.
static void random_bytes(void) {
    static const char good[] = "POST /echo?a=%41&b HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\nx-api-key: k\r\n\r\nabc"
                               "POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
    char text[2 * sizeof good];
    fixture_start(NULL);
    test_draw_from(4711);
    for (int i = 0; i < 600; i++) {
        size_t n = sizeof good - 1;
        memcpy(text, good, n);
        if (i % 4 == 0)
            for (n = (size_t)test_below(sizeof text), n = n ? n : 1; test_below(8);
                 text[test_below((int)n)] = (char)test_below(256)) {
            }
        for (int changes = 1 + test_below(4); changes; changes--) {
            size_t at = (size_t)test_below((int)n);
            int kind = test_below(4);
            if (kind == 0) text[at] = (char)test_below(256);
            if (kind == 1) text[at] = "\r\n\0 \t:;,%0"[test_below(10)];
            if (kind == 2 && at) n = at;
            if (kind == 3) memmove(text + at / 2, text + at, n - at), n -= at - at / 2;
        }
        int fd = client_open();
        client_send_n(fd, text, n);
        shutdown(fd, i % 3 ? SHUT_WR : SHUT_RDWR);
        if (i % 3 && !client_is_closed(fd, 10)) FAIL("case %d: the connection is open", i);
        close(fd);
    }
    check_alive();
    fixture_stop();
}

// ---- limits ----

static void large_headers(void) {
    enum { HUGE_HEADER = 10 << 20 };
    http_server *s = fixture_start(NULL);
    char *text = malloc(HUGE_HEADER + 256);
    int n = sprintf(text, "GET /echo HTTP/1.1\r\nHost: h\r\nx-b: ");
    memset(text + n, 'a', HUGE_HEADER);
    for (int i = 0; i < 3; i++) {
        static const int sizes[] = {15 << 10, 20 << 10, HUGE_HEADER};
        int fd = client_open();
        client_send_n(fd, text, (size_t)n + (size_t)sizes[i]);
        client_send(fd, "\r\n\r\n");
        int status = client_read(fd)->status;
        if (i == 2 && !status) status = 431; // the reset connection may drop the answer
        CHECK_INT(status, i ? 431 : 200);
        close(fd);
    }
    memset(text, 'a', HUGE_HEADER); // a request line without an end
    int fd = client_open();
    client_send_n(fd, text, HUGE_HEADER);
    CHECK(client_is_closed(fd, 5));
    close(fd);
    n = sprintf(text, "GET /echo HTTP/1.1\r\nHost: h\r\n"); // many short headers
    for (int i = 0; i < 100000; i++) n += sprintf(text + n, "a:b\r\n");
    fd = client_open();
    client_send_n(fd, text, (size_t)n);
    CHECK(client_is_closed(fd, 5));
    close(fd);
    free(text);
    CHECK_INT(http_server_counts(s).requests, 1);
    check_alive();
    fixture_stop();
}

static void send_body(int fd, size_t n, int is_chunked) {
    char head[256], *body = calloc(1, n + 1);
    snprintf(head, sizeof head, is_chunked ? "Transfer-Encoding: chunked\r\n\r\n%zx" : "Content-Length: %zu\r\n", n);
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\n");
    client_send(fd, head);
    client_send(fd, "\r\n");
    client_send_n(fd, body, n);
    if (is_chunked) client_send(fd, "\r\n0\r\n\r\n");
    free(body);
}

static void large_bodies(void) {
    http_options o = http_options_default();
    o.max_body = 100000;
    o.max_bodies = 150000;
    http_server *s = fixture_start(&o);
    for (int is_chunked = 0; is_chunked < 2; is_chunked++) {
        int fd = client_open();
        send_body(fd, o.max_body, is_chunked);
        const reply *r = client_read(fd);
        CHECK_INT(r->status, 200);
        CHECK_INT(r->n_body, o.max_body);
        send_body(fd, o.max_body + 1, is_chunked); // read and thrown away, so the connection lives on
        CHECK_INT(client_read(fd)->status, 413);
        send_body(fd, 10, is_chunked);
        CHECK_INT(client_read(fd)->status, 200);
        close(fd);
        fd = client_open();
        send_body(fd, 10 * o.max_body, is_chunked);
        CHECK(client_is_closed(fd, 5));
        close(fd);
    }
    // Two bodies at a time are too much for max_bodies.
    int a = client_open(), b = client_open();
    client_send(a, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100000\r\n\r\n");
    char *half = calloc(1, 99999);
    client_send_n(a, half, 99999);
    for (int i = 0; i < 1000 && http_server_counts(s).connections < 2; i++) fixture_sleep(0.002);
    fixture_sleep(0.1); // the server has read the first body
    send_body(b, 100000, 0);
    CHECK_INT(client_read(b)->status, 503);
    client_send(a, "x");
    CHECK_INT(client_read(a)->n_body, 100000);
    close(b);
    b = client_open();
    send_body(b, 100000, 0);
    CHECK_INT(client_read(b)->status, 200);
    free(half);
    close(a), close(b);
    fixture_stop();
}

static void too_many_connections(void) {
    enum { MOST = 8 };
    int fds[MOST + 1];
    http_options o = http_options_default();
    o.max_connections = MOST;
    http_server *s = fixture_start(&o);
    for (int i = 0; i < MOST; i++) fds[i] = client_open();
    for (int i = 0; i < 1000 && http_server_counts(s).connections < MOST; i++) fixture_sleep(0.002);
    const reply *r = client_ask("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(r->status, 503);
    CHECK(strstr(r->body, "too many connections") != NULL);
    CHECK(r->is_closed);
    client_send(fds[0], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n"); // the others are served
    CHECK_INT(client_read(fds[0])->status, 200);
    for (int i = 0; i < MOST; i++) close(fds[i]);
    for (int i = 0; i < 1000 && http_server_counts(s).connections; i++) fixture_sleep(0.002);
    check_alive();
    fixture_stop();
    o = http_options_default();
    o.max_address_connections = 2;
    fixture_start(&o);
    for (int i = 0; i < 3; i++) fds[i] = client_open();
    client_send(fds[2], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(client_read(fds[2])->status, 429);
    client_send(fds[1], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(client_read(fds[1])->status, 200);
    for (int i = 0; i < 3; i++) close(fds[i]);
    fixture_stop();
}

// ---- slow clients ----

// Sends a byte now and then until the server answers. Returns the status.
static int dribble(const char *begin, char c) {
    int fd = client_open();
    char byte;
    client_send(fd, begin);
    for (int i = 0; i < 200 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0; i++) {
        client_send_n(fd, &c, 1);
        fixture_sleep(0.05);
    }
    int status = client_read(fd)->status;
    CHECK(client_is_closed(fd, 5));
    close(fd);
    return status;
}

static void slow_senders(void) {
    http_options o = http_options_default();
    o.header_timeout = o.body_timeout = o.idle_timeout = 0.4;
    http_server *s = fixture_start(&o);
    CHECK_INT(dribble("GET /echo HTTP/1.1\r\nHost: h\r\nx-a: ", 'a'), 408);
    CHECK_INT(dribble("GET /ech", 'o'), 408);
    CHECK_INT(dribble("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1000\r\n\r\n", 'a'), 408);
    CHECK_INT(http_server_counts(s).timeouts, 3);
    int idle = client_open(), held = client_open();
    client_send(idle, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(client_read(idle)->status, 200);
    client_send(held, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *x = fixture_held();
    CHECK(client_is_closed(idle, 5));
    CHECK(!http_gone(x)); // no time-out ends a request that waits for its answer
    http_reply(x, 200, "text/plain", NULL, 0, "", 0);
    CHECK_INT(client_read(held)->status, 200);
    http_release(x);
    close(idle), close(held);
    fixture_stop();
}

static int small_window_client(void) {
    int fd = client_open();
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &(int){4096}, sizeof(int));
    return fd;
}

// A client that reads nothing: the stream ends when max_unread bytes wait. One piece may be larger.
static void slow_reader_of_a_stream(void) {
    http_options o = http_options_default();
    char piece[1000];
    o.max_unread = 100000;
    http_server *s = fixture_start(&o);
    int fd = small_window_client(), rc = 0;
    client_send(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *x = fixture_held();
    memset(piece, 'x', sizeof piece);
    CHECK_INT(http_stream_begin(x, 200, "text/plain", NULL, 0), 0);
    char *large = calloc(1, 16 << 20);
    CHECK_INT(http_stream_send(x, large, 16 << 20), 0);
    free(large);
    long n = 0;
    for (; n < 100000 && !rc; n++) rc = http_stream_send(x, piece, sizeof piece);
    CHECK_INT(rc, SL_ERR_CANCELLED);
    CHECK(n >= 100); // max_unread bytes beside the large piece
    CHECK(http_gone(x));
    CHECK_INT(http_server_counts(s).slow_readers, 1);
    for (int i = 0; i < 1000 && http_server_counts(s).connections; i++) fixture_sleep(0.005);
    CHECK_INT(http_server_counts(s).connections, 0);
    http_release(x);
    close(fd);
    fixture_stop();
}

// A client that stops to read: a stream that is below max_unread, and a whole answer.
static void stopped_readers(void) {
    http_options o = http_options_default();
    o.read_timeout = 0.4;
    o.max_unread = 64 << 20;
    http_server *s = fixture_start(&o);
    int stream = small_window_client(), whole = small_window_client(), waiting = client_open();
    client_send(stream, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *x = fixture_held();
    client_send(waiting, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *y = fixture_held();
    CHECK_INT(http_stream_begin(x, 200, "text/plain", NULL, 0), 0);
    CHECK_INT(http_stream_begin(y, 200, "text/plain", NULL, 0), 0); // nothing to read is no fault
    char *bytes = calloc(1, 16 << 20);
    CHECK_INT(http_stream_send(x, bytes, 16 << 20), 0);
    free(bytes);
    client_send(whole, "GET /big HTTP/1.1\r\nHost: h\r\n\r\n");
    fixture_wait_gone(x);
    for (int i = 0; i < 1000 && http_server_counts(s).connections > 1; i++) fixture_sleep(0.005);
    CHECK_INT(http_server_counts(s).connections, 1);
    CHECK(!http_gone(y));
    http_stream_end(y);
    CHECK_INT(client_read(waiting)->status, 200);
    http_release(x), http_release(y);
    close(stream), close(whole), close(waiting);
    // A client that reads slowly, but reads, gets everything.
    int fd = client_open();
    client_send(fd, "GET /big HTTP/1.1\r\nHost: h\r\n\r\n");
    char *to = malloc(BIG_BODY / 8);
    size_t n = 0, got = 1;
    for (int i = 0; got && n <= BIG_BODY; i++) {
        got = client_read_some(fd, to, BIG_BODY / 8, 5);
        n += got;
        if (i < 4) fixture_sleep(0.15);
    }
    free(to);
    CHECK(n > BIG_BODY);
    close(fd);
    fixture_stop();
}

// 1,000 clients that send half a header and wait, and 8 that get answers.
static void slow_crowd(void) {
    enum { CROWD = 1000, REAL = 8, FILES = 2 * (CROWD + REAL) + 256 };
    static int fds[CROWD], real[REAL];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < FILES) TEST_SKIP("needs %d open files", FILES);
    if (limit.rlim_cur < FILES) limit.rlim_cur = FILES;
    setrlimit(RLIMIT_NOFILE, &limit);
    http_options o = http_options_default();
    o.header_timeout = 60;
    http_server *s = fixture_start(&o);
    for (int i = 0; i < REAL; i++) real[i] = client_open();
    for (int i = 0; i < CROWD; i++) {
        fds[i] = client_open();
        client_send(fds[i], i % 2 ? "GET /echo HTTP/1.1\r\nHost: h\r\nx-a"
                                  : "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\na");
    }
    for (int i = 0; i < 2500 && http_server_counts(s).connections < CROWD + REAL; i++) fixture_sleep(0.002);
    CHECK_INT(http_server_counts(s).connections, CROWD + REAL);
    for (int k = 0; k < 100; k++) {
        for (int i = 0; i < CROWD / 100; i++) client_send(fds[(k * 10 + i) % CROWD], "b");
        for (int i = 0; i < REAL; i++) client_send(real[i], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
        for (int i = 0; i < REAL; i++) CHECK_INT(client_read(real[i])->status, 200);
    }
    for (int i = 0; i < CROWD; i++) close(fds[i]);
    for (int i = 0; i < 2500 && http_server_counts(s).connections > REAL; i++) fixture_sleep(0.002);
    CHECK_INT(http_server_counts(s).connections, REAL);
    for (int i = 0; i < REAL; i++) close(real[i]);
    fixture_stop();
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

// No client that waits, in whatever phase, keeps the HTTP thread busy.
static void nothing_spins(void) {
    enum { PHASES = 8, MUCH = 200000 };
    static const char get[] = "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n";
    int fds[PHASES];
    http_exchange *x[4];
    char *zeros = calloc(1, MUCH);
    http_options o = http_options_default();
    o.max_unread = 64 << 20;
    http_server *s = fixture_start(&o);
    for (int i = 0; i < PHASES; i++) fds[i] = i == 3 ? small_window_client() : client_open();
    for (int i = 0; i < 4; i++) {
        client_send(fds[i], get);
        x[i] = fixture_held();
    }
    client_send_n(fds[1], zeros, MUCH);                                // bytes behind the request
    CHECK_INT(http_stream_begin(x[2], 200, "text/plain", NULL, 0), 0); // nothing to send
    CHECK_INT(http_stream_begin(x[3], 200, "text/plain", NULL, 0), 0); // a client that does not read
    for (int i = 0; i < 100; i++) CHECK_INT(http_stream_send(x[3], zeros, MUCH), 0);
    client_send(fds[4], "GET /hold HT");                                                 // half a request line
    client_send(fds[5], "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\na"); // half a body
    client_send(fds[6], "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");                        // idle
    CHECK_INT(client_read(fds[6])->status, 200);
    fixture_sleep(0.1);
    double begin = cpu_seconds();
    fixture_sleep(0.5);
    double used = cpu_seconds() - begin;
    if (used > 0.1) FAIL("%.3f s of processor time in 0.5 s", used);
    CHECK_INT(http_server_counts(s).connections, PHASES);
    for (int i = 0; i < 4; i++) http_release(x[i]);
    for (int i = 0; i < PHASES; i++) close(fds[i]);
    free(zeros);
    fixture_stop();
}

// ---- many requests ----

static long resident_pages(void) {
    long size = 0, pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (!f || fscanf(f, "%ld %ld", &size, &pages) != 2) pages = 0;
    if (f) fclose(f);
    return pages;
}

// Requests of all kinds, each on a connection of its own or on a shared one. SLEIGH_HTTP_REQUESTS sets their number.
static void many_requests(void) {
    const char *wanted = getenv("SLEIGH_HTTP_REQUESTS");
    int n_requests = wanted ? atoi(wanted) : 2000, shared;
    http_server *s = fixture_start(NULL);
    shared = client_open();
    long first = 0;
    for (int i = 0; i < n_requests; i++) {
        if (i == n_requests / 4) first = resident_pages();
        int fd = i % 2 ? client_open() : shared;
        if (i % 8 == 7) { // leaves without reading
            client_send(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
        } else if (i % 8 == 5) { // leaves within the body
            client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\nabc");
        } else {
            client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\nabc");
            CHECK_INT(client_read(fd)->status, 200);
        }
        if (fd != shared) close(fd);
    }
    // Connections are accepted in their order, so after this answer the count holds every connection above.
    int last = client_open();
    client_send(last, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(client_read(last)->status, 200);
    close(last);
    for (int i = 0; i < 1000 && http_server_counts(s).connections > 1; i++) fixture_sleep(0.005);
    CHECK_INT(http_server_counts(s).connections, 1);
    long grown = (resident_pages() - first) * 4;
    if (wanted) printf("      %d requests: resident memory grew by %ld KB\n", n_requests, grown);
#ifndef __SANITIZE_ADDRESS__ // which keeps freed memory
    if (grown > 1024) FAIL("resident memory grew by %ld KB", grown);
#endif
    close(shared);
    fixture_stop();
}

const test_suite suite_http_hostile = {"http_hostile", (const test_case[]){
                                                           {"smuggling", 0, smuggling},
                                                           {"request-lines", 0, request_lines},
                                                           {"random-bytes", 0, random_bytes},
                                                           {"large-headers", 0, large_headers},
                                                           {"large-bodies", 0, large_bodies},
                                                           {"too-many-connections", 0, too_many_connections},
                                                           {"slow-senders", 0, slow_senders},
                                                           {"slow-reader-of-a-stream", 0, slow_reader_of_a_stream},
                                                           {"stopped-readers", 0, stopped_readers},
                                                           {"slow-crowd", 0, slow_crowd},
                                                           {"nothing-spins", 0, nothing_spins},
                                                           {"many-requests", 0, many_requests},
                                                           {0},
                                                       }};
