// server/http/http.h - an HTTP/1.1 server on libmicrohttpd: whole requests in, replies and streams out. It knows nothing of
// models, JSON APIs or schedulers.
//
// Threads. One thread, the HTTP thread, runs the server and the callbacks of http_handler. A callback must return at once. The
// functions of an exchange may be called from any thread, unless their comment says otherwise. They never block.
//
// An exchange is one request and its answer. The handler owns the exchange that it gets, until http_release. It answers at
// once or later: with http_reply (a whole body), or with http_stream_begin, http_stream_send and http_stream_end.
#ifndef SLEIGH_HTTP_H
#define SLEIGH_HTTP_H

#include "base/error.h"

#include <stddef.h>

typedef struct http_server http_server;
typedef struct http_exchange http_exchange;

typedef struct http_options {
    const char *host; // name or address to listen at
    int port;         // 0: any free port
    int insecure;     // listen beyond loopback without a key

    const char *const *api_key;    // [n_api_keys] a client sends one as "Authorization: Bearer KEY" or "x-api-key: KEY"
    int n_api_keys;                // 0: no key is needed
    const char *const *open_paths; // [n_open_paths] paths that need no key
    int n_open_paths;
    const char *const *cors_origin; // [n_cors_origins] origins of web pages that may call the server; "*": each origin
    int n_cors_origins;
    const char *tls_cert, *tls_key; // PEM files; NULL: no TLS

    size_t max_header;           // bytes of request line and headers
    size_t max_body;             // bytes of one body
    size_t max_bodies;           // bytes of all bodies that are being received
    size_t max_unread;           // bytes of a stream that wait for a slow reader, beside its largest piece
    int max_connections;         // open connections
    int max_address_connections; // open connections of one address; 0: no limit of its own, because a proxy is one address

    // Seconds. A client that takes longer is disconnected.
    double header_timeout; // from the connection, or from the request line, to the end of the headers
    double body_timeout;   // from the end of the headers to the end of the body
    double read_timeout;   // the time for which a client may take no byte of its answer
    double idle_timeout;   // between two requests of a connection
    double sse_interval;   // an event stream in which nothing was sent for so long gets a comment
} http_options;

// 127.0.0.1, port 8080, no key, no CORS, no TLS, and the default of each limit.
http_options http_options_default(void);

typedef struct http_handler {
    void *ctx;
    // A whole request that passed all checks.
    void (*request)(void *ctx, http_exchange *x);
    // The body of an error that the server answers by itself: a text from malloc, of *n bytes, and its content type. path: of
    // the request. NULL, or a NULL result: OpenAI's error JSON.
    char *(*error)(void *ctx, const char *path, int status, const char *message, size_t *n, const char **type);
} http_handler;

// Listens, and starts the HTTP thread. Copies the options. SL_ERR_ARG: an option is out of range, or a host beyond loopback
// without a key. SL_ERR_IO: the address is in use, or a file cannot be read. SL_ERR_FORMAT: a file is no PEM certificate or
// key. SL_ERR_UNSUPPORTED: TLS in a build without it. Raises the process's limit of open files if max_connections needs more.
int http_server_new(const http_options *options, const http_handler *handler, http_server **out, sl_error *err);
int http_server_port(const http_server *s);
// Stops to listen, and closes connections without a request. Requests that have begun are answered. Returns at once.
void http_server_drain(http_server *s);
// Waits until the drain has ended: 1. 0: connections are still open after so many seconds.
int http_server_wait(http_server *s, double seconds);
// Disconnects all clients, and frees the server. Every exchange that was not complete is gone. NULL is allowed.
void http_server_free(http_server *s);

typedef struct http_counts {
    long connections;  // open now
    long exchanges;    // whose answers are not complete, now
    long requests;     // requests that reached the handler, since the start
    long gone;         // exchanges whose client left or was too slow
    long slow_readers; // of these, clients that read too slowly
    long timeouts;     // connections closed for a slow header or body
    long refused;      // requests that the server refused by itself
} http_counts;
http_counts http_server_counts(const http_server *s);

// ---- the request: valid until http_release ----

typedef struct http_request {
    const char *method; // "GET"
    const char *path;   // decoded, without the query
    const char *id;     // x-request-id; NULL: not given. The server sends it back
    const char *body;   // [n_body], then a NUL. NULL: no body, or taken
    size_t n_body;
} http_request;

const http_request *http_request_of(const http_exchange *x);
// Only within http_handler.request. A field of the query; NULL: not given.
const char *http_query(const http_exchange *x, const char *name);
// Only within http_handler.request. The caller frees the body. NULL: there is none.
char *http_take_body(http_exchange *x, size_t *n);

// ---- the answer ----

typedef struct http_field {
    const char *name, *value;
} http_field;

// A whole answer. fields [n_fields]: more headers. Copies everything. SL_ERR_CANCELLED: the client is gone. SL_ERR_ARG: a
// header has a forbidden byte. SL_ERR_MEMORY.
int http_reply(http_exchange *x, int status, const char *type, const http_field *fields, int n_fields, const void *body,
               size_t n);
// The same with the body of http_handler.error.
int http_fail(http_exchange *x, int status, const char *message);

// A streamed answer. The type "text/event-stream" gets comments (http_options.sse_interval); then each send must be whole
// events. SL_ERR_CANCELLED: the client is gone, or more than max_unread bytes wait for it beside the largest piece (the scores
// of a prompt are one). SL_ERR_ARG, SL_ERR_MEMORY as above.
int http_stream_begin(http_exchange *x, int status, const char *type, const http_field *fields, int n_fields);
int http_stream_send(http_exchange *x, const void *bytes, size_t n);
int http_stream_end(http_exchange *x);

// 1: the client left or was too slow before the owner had given the whole answer, or the server stops. No answer can reach it.
int http_gone(const http_exchange *x);

// Another owner. Each owner calls http_release once. If the last owner releases an exchange without an answer, the client gets
// the status 500; if it releases a stream before http_stream_end, the connection is cut.
void http_hold(http_exchange *x);
void http_release(http_exchange *x);

#endif
