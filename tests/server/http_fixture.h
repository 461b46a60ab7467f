// tests/server/http_fixture.h - a server for the tests of server/http, and a client that sends raw bytes.
//
// Paths: /echo sends the body back, and x-method, x-query (the field a of the query). /big sends BIG_BODY bytes. /hold keeps
// the exchange for the test. /silent gets no answer. Other paths get 404; the errors of /other are plain text.
#ifndef SLEIGH_HTTP_FIXTURE_H
#define SLEIGH_HTTP_FIXTURE_H

#include "server/http/http.h"
#include "tests/test.h"

#include <string.h>

enum { BIG_BODY = 32 << 20 };

http_server *fixture_start(const http_options *o); // NULL: the default options. Any free port
// Frees the server. No descriptor may be open that was closed at the start, and no held exchange may be left.
void fixture_stop(void);
http_server *fixture_take(void);                  // the test frees the server before fixture_stop
http_exchange *fixture_held(void);                // waits for the next request to /hold; the test releases the exchange
double fixture_wait_gone(const http_exchange *x); // seconds until the exchange is gone; fails after 10 s
int fixture_handled(void);                        // requests that reached the handler
int fixture_descriptors(void);                    // open descriptors of this process
double fixture_now(void);
void fixture_sleep(double seconds);

// ---- the client ----

typedef struct reply {
    int status;       // 0: the server closed the connection without a whole answer
    char head[4096];  // status line and headers
    char body[65536]; // without the chunk sizes, cut at the size of the array
    size_t n_body;    // before the cut
    int is_closed;    // the server closed the connection behind the answer, or said that it will
} reply;

int client_open(void);
void client_send(int fd, const char *text);
void client_send_n(int fd, const void *bytes, size_t n);               // a closed connection is no error
const reply *client_read(int fd);                                      // one answer; valid until the next call
const reply *client_ask(const char *request);                          // with a connection of its own
size_t client_read_some(int fd, char *to, size_t max, double seconds); // raw bytes until max, the end or the time
int client_is_closed(int fd, double seconds);                          // waits for the end of the connection

#endif
