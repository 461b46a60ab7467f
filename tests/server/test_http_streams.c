// tests/server/test_http_streams.c - streams, and clients that leave in every phase.
#include "tests/server/http_fixture.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

static const char hold[] = "POST /hold HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nhi";

// A client with a request that the test holds.
static http_exchange *held(int *fd) {
    *fd = client_open();
    client_send(*fd, hold);
    return fixture_held();
}

// Each piece arrives before the next one is sent.
static void pieces_arrive_at_once(void) {
    char text[512];
    int fd;
    fixture_start(NULL);
    http_exchange *x = held(&fd);
    CHECK_STR(http_request_of(x)->body, "hi");
    CHECK_INT(http_stream_begin(x, 200, "text/event-stream", &(http_field){"x-more", "1"}, 1), 0);
    for (int i = 0; i < 50; i++) {
        char piece[32], chunk[48];
        int n = snprintf(piece, sizeof piece, "data: %d\n\n", i);
        CHECK_INT(http_stream_send(x, piece, (size_t)n), 0);
        snprintf(chunk, sizeof chunk, "\r\n%s\r\n", piece);
        size_t got = 0;
        for (text[0] = 0; !strstr(text, chunk) && got + 1 < sizeof text; text[got] = 0)
            if (!client_read_some(fd, text + got, 1, 5))
                FAIL("piece %d did not arrive: %s", i, text);
            else
                got++;
        if (!i) CHECK(strstr(text, "x-more: 1\r\n") && strstr(text, "Content-Type: text/event-stream\r\n"));
    }
    CHECK_INT(http_stream_end(x), 0);
    http_release(x);
    memset(text, 0, sizeof text);
    CHECK_INT(client_read_some(fd, text, 5, 5), 5);
    CHECK_STR(text, "0\r\n\r\n");
    client_send(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n"); // the connection lives on
    CHECK_INT(client_read(fd)->status, 200);
    close(fd);
    fixture_stop();
}

// An HTTP/1.0 client gets the stream without chunks, until the end of the connection.
static void old_clients(void) {
    char text[512] = "";
    fixture_start(NULL);
    int fd = client_open();
    client_send(fd, "GET /hold HTTP/1.0\r\n\r\n");
    http_exchange *x = fixture_held();
    CHECK_INT(http_stream_begin(x, 200, "text/plain", NULL, 0), 0);
    CHECK_INT(http_stream_send(x, "one", 3), 0);
    fixture_sleep(0.02);
    CHECK_INT(http_stream_send(x, "two", 3), 0);
    CHECK_INT(http_stream_end(x), 0);
    http_release(x);
    client_read_some(fd, text, sizeof text - 1, 5);
    CHECK(strstr(text, "\r\n\r\nonetwo") != NULL);
    close(fd);
    fixture_stop();
}

static void comments(void) {
    http_options o = http_options_default();
    int fd, plain;
    o.sse_interval = 0.2;
    fixture_start(&o);
    http_exchange *x = held(&fd), *y = held(&plain);
    CHECK_INT(http_stream_begin(x, 200, "text/event-stream", NULL, 0), 0);
    CHECK_INT(http_stream_begin(y, 200, "text/plain", NULL, 0), 0);
    fixture_sleep(1);
    CHECK_INT(http_stream_send(x, "data: x\n\n", 9), 0);
    CHECK_INT(http_stream_send(y, "x", 1), 0);
    CHECK_INT(http_stream_end(x), 0);
    CHECK_INT(http_stream_end(y), 0);
    const char *body = client_read(fd)->body;
    int n = 0;
    for (; !strncmp(body, ": keep-alive\n\n", 14); body += 14) n++;
    if (n < 1 || n > 5) FAIL("%d comments in a second, expected 1 to 5", n);
    CHECK_STR(body, "data: x\n\n");
    CHECK_STR(client_read(plain)->body, "x");
    http_release(x);
    http_release(y);
    close(fd), close(plain);
    fixture_stop();
}

// ---- clients that leave ----

enum leave { CLOSE, HALF_CLOSE, RESET };

static void leave(int *fd, enum leave how) {
    if (how == HALF_CLOSE) {
        shutdown(*fd, SHUT_WR);
        return;
    }
    if (how == RESET) setsockopt(*fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
    close(*fd);
    *fd = -1;
}

// What the owner has done before the client leaves.
enum phase { WAITING, BEGUN, BETWEEN_PIECES, UNREAD_BODY };

static double time_to_notice(enum phase phase, enum leave how) {
    int fd = client_open();
    client_send(fd, hold);
    if (phase == UNREAD_BODY) client_send(fd, hold); // a pipelined request stays in the socket
    http_exchange *x = fixture_held();
    if (phase == BEGUN || phase == BETWEEN_PIECES) CHECK_INT(http_stream_begin(x, 200, "text/event-stream", NULL, 0), 0);
    if (phase == BETWEEN_PIECES) {
        char some[64];
        CHECK_INT(http_stream_send(x, "data: 1\n\n", 9), 0);
        CHECK(client_read_some(fd, some, sizeof some, 5) > 0);
    }
    fixture_sleep(0.01); // the connection is suspended now
    CHECK(!http_gone(x));
    leave(&fd, how);
    double seconds = fixture_wait_gone(x);
    CHECK_INT(phase == WAITING || phase == UNREAD_BODY ? http_reply(x, 200, "text/plain", NULL, 0, "late", 4)
                                                       : http_stream_send(x, "late", 4),
              SL_ERR_CANCELLED);
    http_release(x);
    if (fd >= 0) close(fd);
    return seconds;
}

static void disconnects(void) {
    static const double most = 0.2; // seconds; a busy machine may need a second try
    http_server *s = fixture_start(NULL);
    for (int i = 0; i < 12; i++) {
        double seconds = time_to_notice(i / 3, i % 3);
        for (int n = 0; n < 4 && seconds > most; n++) seconds = time_to_notice(i / 3, i % 3);
        if (seconds > most) FAIL("phase %d, way %d: noticed after %.3f s", i / 3, i % 3, seconds);
    }
    for (int i = 0; i < 1000 && http_server_counts(s).connections; i++) fixture_sleep(0.005);
    CHECK_INT(http_server_counts(s).connections, 0);
    CHECK_INT(http_server_counts(s).exchanges, 0);
    fixture_stop();
}

// The whole request and the end of the client's side come at once. A ready answer arrives, a later one does not.
static void half_closed_from_the_start(void) {
    fixture_start(NULL);
    int fd = client_open();
    client_send(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    shutdown(fd, SHUT_WR);
    CHECK_INT(client_read(fd)->status, 200);
    close(fd);
    fd = client_open();
    client_send(fd, hold);
    shutdown(fd, SHUT_WR);
    http_exchange *x = fixture_held();
    fixture_wait_gone(x);
    CHECK(client_is_closed(fd, 5));
    http_release(x);
    close(fd);
    fixture_stop();
}

static void many_leave_at_once(void) {
    enum { N = 64 };
    int fds[N];
    http_exchange *x[N];
    http_server *s = fixture_start(NULL);
    for (int i = 0; i < N; i++) x[i] = held(&fds[i]);
    for (int i = 0; i < N; i += 2) CHECK_INT(http_stream_begin(x[i], 200, "text/event-stream", NULL, 0), 0);
    for (int i = 0; i < N; i++) close(fds[i]);
    for (int i = 0; i < N; i++) fixture_wait_gone(x[i]);
    CHECK_INT(http_server_counts(s).gone, N);
    for (int i = 0; i < N; i++) http_release(x[i]);
    fixture_stop();
}

// ---- owners ----

static void owners(void) {
    int fd;
    fixture_start(NULL);
    http_exchange *x = held(&fd);
    size_t n;
    http_hold(x);
    http_release(x);
    char *body = http_take_body(x, &n);
    CHECK_INT(n, 2);
    free(body);
    CHECK(!http_request_of(x)->body);
    CHECK_INT(http_reply(x, 200, "text/plain\r\nx: y", NULL, 0, "", 0), SL_ERR_ARG);
    CHECK_INT(http_reply(x, 200, "text/plain", &(http_field){"x-a", "b\nc"}, 1, "", 0), SL_ERR_ARG);
    CHECK(!http_gone(x));
    http_release(x); // without an answer
    CHECK_INT(client_read(fd)->status, 500);
    close(fd);
    x = held(&fd);
    CHECK_INT(http_stream_begin(x, 200, "text/plain", NULL, 0), 0);
    CHECK_INT(http_stream_send(x, "half", 4), 0);
    http_release(x); // within a stream: the client can see that the end is missing
    CHECK_INT(client_read(fd)->status, 0);
    close(fd);
    fixture_stop();
}

enum { SENDS = 2000 };

static void *send_numbers(void *exchange) {
    char piece[32];
    int rc = 0;
    for (int i = 0; i < SENDS && !rc; i++)
        rc = http_stream_send(exchange, piece, (size_t)snprintf(piece, sizeof piece, "%d\n", i));
    if (!rc) http_stream_end(exchange);
    http_release(exchange);
    return NULL;
}

// Owners in threads of their own: every byte arrives in order.
static void owners_in_threads(void) {
    enum { N = 4 };
    pthread_t threads[N];
    int fds[N];
    fixture_start(NULL);
    for (int i = 0; i < N; i++) {
        http_exchange *x = held(&fds[i]);
        CHECK_INT(http_stream_begin(x, 200, "text/plain", NULL, 0), 0);
        CHECK_INT(pthread_create(&threads[i], NULL, send_numbers, x), 0);
    }
    for (int i = 0; i < N; i++) {
        const reply *r = client_read(fds[i]);
        char line[32];
        size_t at = 0;
        CHECK_INT(r->status, 200);
        for (int k = 0; k < SENDS; k++) {
            int n = snprintf(line, sizeof line, "%d\n", k);
            if (strncmp(r->body + at, line, (size_t)n)) FAIL("stream %d: line %d is missing", i, k);
            at += (size_t)n;
        }
        CHECK_INT(r->n_body, at);
        pthread_join(threads[i], NULL);
        close(fds[i]);
    }
    fixture_stop();
}

// Clients leave, and the server ends, while the owners' threads send.
static void owners_of_lost_clients(void) {
    enum { N = 12 };
    pthread_t threads[N];
    int fds[N];
    char some[4000];
    fixture_start(NULL);
    for (int i = 0; i < N; i++) {
        http_exchange *x = held(&fds[i]);
        CHECK_INT(http_stream_begin(x, 200, "text/event-stream", NULL, 0), 0);
        http_hold(x); // for the thread
        CHECK_INT(pthread_create(&threads[i], NULL, send_numbers, x), 0);
        http_release(x);
    }
    for (int i = 0; i < N - 4; i++) {
        client_read_some(fds[i], some, (size_t)(1 + i * 400), 5);
        close(fds[i]);
    }
    http_server_free(fixture_take());
    for (int i = N - 4; i < N; i++) close(fds[i]);
    for (int i = 0; i < N; i++) pthread_join(threads[i], NULL);
    fixture_stop();
}

const test_suite suite_http_streams = {"http_streams", (const test_case[]){
                                                           {"pieces-arrive-at-once", 0, pieces_arrive_at_once},
                                                           {"old-clients", 0, old_clients},
                                                           {"comments", 0, comments},
                                                           {"disconnects", 0, disconnects},
                                                           {"half-closed-from-the-start", 0, half_closed_from_the_start},
                                                           {"many-leave-at-once", 0, many_leave_at_once},
                                                           {"owners", 0, owners},
                                                           {"owners-in-threads", 0, owners_in_threads},
                                                           {"owners-of-lost-clients", 0, owners_of_lost_clients},
                                                           {0},
                                                       }};
