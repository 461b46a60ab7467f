// server/http/http_internal.h - the objects of the HTTP server.
//
// Locks. http_exchange.lock guards the answer of an exchange, http_server.lock the list of woken exchanges. A thread takes
// the exchange's lock first. Everything else belongs to the HTTP thread, is constant, or is atomic. No callback of the handler
// and no function of libmicrohttpd that can call back runs under a lock.
//
// A gone exchange never touches its server, so its owners may outlive the server: http_server_free first makes all exchanges
// gone, each under its lock.
#ifndef SLEIGH_HTTP_INTERNAL_H
#define SLEIGH_HTTP_INTERNAL_H

#include "base/arrays.h"
#include "server/http/http.h"

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/socket.h>

typedef enum http_phase {
    HTTP_NEW,     // before the first request line
    HTTP_HEADER,  // before the end of the headers
    HTTP_BODY,    // before the end of the body
    HTTP_WAITING, // for the answer
    HTTP_SENDING, // the answer
    HTTP_IDLE     // between two requests
} http_phase;

// A connection. It belongs to the HTTP thread.
typedef struct http_connection {
    http_server *server;
    struct http_connection *prev, *next;
    struct MHD_Connection *mhd;
    int fd;
    struct sockaddr_storage address;

    http_phase phase;
    double since;        // when the phase began, or when the client took a byte of the answer
    uint64_t confirmed;  // bytes that the client's system had confirmed at the last look
    int is_extra;        // above max_connections: its request is refused
    int is_address_full; // above max_address_connections: the same
    int hung_up;         // the client has closed its side
    int killed;          // shut down; the library has not noticed yet
    int suspended;

    // The request.
    size_t n_uri;            // bytes of the request line's URI, up to a NUL; 0: the URI is refused
    int refusal;             // the status of a refusal; 0: none
    const char *refused;     // the message of the refusal
    size_t to_discard;       // bytes of a refused body that are still read
    sl_text body;            // what has arrived
    http_exchange *exchange; // NULL: the handler does not have the request yet
} http_connection;

enum { HTTP_MAX_FIELDS = 8 };

typedef enum http_state {
    HTTP_UNANSWERED,
    HTTP_REPLIED,
    HTTP_STREAMING,
    HTTP_STREAM_ENDED,
    HTTP_UNOWNED, // the owner released the exchange without an answer
    HTTP_CUT      // the owner released the exchange within a stream
} http_state;

struct http_exchange {
    http_server *server;  // lives until the exchange is gone
    http_handler handler; // a copy, which lives longer
    atomic_int refs;      // the connection, the owners (together one), the list of woken exchanges
    atomic_int owners;    // http_hold, http_release
    atomic_int gone;      // set under lock
    http_request request;
    char *text;                  // what request points to, except the body
    http_connection *connection; // HTTP thread only; NULL: the request has ended

    pthread_mutex_t lock; // guards the fields below
    http_state state;
    int status;
    char *type;
    http_field fields[HTTP_MAX_FIELDS]; // copies
    int n_fields;
    sl_text out; // the body of a reply, or what of a stream waits for the reader: [sent, out.n)
    size_t sent;
    size_t largest_piece; // bytes of one http_stream_send so far
    double last_send;     // when a stream last sent something
    int is_sse;

    int is_woken; // guarded by http_server.lock
    http_exchange *next_woken;
};

struct http_server {
    http_options options;
    http_handler handler;
    char **strings; // what options points to, ended by NULL
    int port;
    int listener; // -1: closed
    int epoll, wake;
    struct MHD_Daemon *daemon;
    pthread_t thread;

    // HTTP thread only
    http_connection *connections;
    http_connection *added; // for the callback of MHD_add_connection
    size_t n_bodies;        // bytes of http_connection.body of all connections
    int has_hung_up;        // since the last look at the connections
    int is_listening;       // the listener is in epoll
    double next_tick;

    atomic_int draining, stopping;
    atomic_long n_connections, n_exchanges, n_requests, n_gone, n_slow, n_timeouts, n_refused;

    pthread_mutex_t lock; // guards the fields below
    pthread_cond_t drained;
    http_exchange *woken;
};

double http_now(void); // seconds of a clock that never goes back

// ---- http_exchange.c ----

// An exchange with the texts of a request, and with one owner. Takes the body. NULL: no memory
http_exchange *http_exchange_new(http_server *s, const http_request *request, sl_text *body);
void http_exchange_unref(http_exchange *x);
// Makes an exchange gone if its owner has not given the whole answer.
void http_exchange_lose(http_exchange *x, int is_slow);
// 1: an answer, or its beginning, is there, or the exchange is without an owner.
int http_exchange_is_answered(http_exchange *x);
// Adds a comment to an event stream in which nothing was sent since `before` and nothing waits.
void http_exchange_comment(http_exchange *x, double before);
// All woken exchanges, each with a reference that the caller gets. The caller asks for the next one before it looks at an
// exchange, so no later wake is lost.
http_exchange *http_server_take_woken(http_server *s);
http_exchange *http_server_next_woken(http_server *s, http_exchange *x);

// ---- http_connection.c ----

// The connection that MHD_add_connection makes next. NULL: no memory
http_connection *http_connection_new(http_server *s, int fd, const struct sockaddr_storage *address);
void http_connection_free(http_connection *c);
void http_connection_enter(http_connection *c, http_phase phase);
void http_connection_resume(http_connection *c);
// Shuts the connection down; the library closes it in its next run.
void http_connection_cut(http_connection *c);
// Makes the connection's exchange gone if the owner has not given the whole answer, and then cuts the connection.
void http_connection_lose(http_connection *c);
// Frees what belongs to the request.
void http_connection_end_request(http_connection *c);

// ---- http_checks.c: what a request must satisfy ----

// 1: the request comes from a page whose origin the options allow.
int http_origin_allowed(const http_options *o, const char *origin);
// 1: the page is this server's: the origin has the host and port of the request.
int http_origin_is_own(const char *origin, const char *host);
// 1: the key of the request is one of the server's, or none is needed. Takes the same time for every wrong key.
int http_key_fits(const http_options *o, struct MHD_Connection *c);
// The status that refuses the header (400, 431, 501), and why. 0: the header is good. method, version: as the library gives
// them; n_uri: of the connection
int http_check_header(struct MHD_Connection *c, const char *method, size_t n_uri, const char *version, size_t max_header,
                      const char **why);

// ---- http_reply.c: responses ----

// The body of an error, from malloc: of http_handler.error, or OpenAI's JSON. NULL: no memory
char *http_error_body(const http_handler *h, const char *path, int status, const char *message, size_t *n, const char **type);
// Queue an answer. MHD_NO: no memory; the library then closes the connection.
enum MHD_Result http_queue_error(http_connection *c, const char *path, int status, const char *message, int close);
enum MHD_Result http_queue_preflight(http_connection *c);
enum MHD_Result http_queue_answer(http_connection *c);
// Writes an error to the socket at a time at which the library takes no response, and shuts the connection down.
void http_send_error(http_connection *c, int status, const char *message);

// ---- http_request.c: callbacks of the library ----

enum MHD_Result http_on_request(void *server, struct MHD_Connection *mhd, const char *url, const char *method,
                                const char *version, const char *data, size_t *n, void **ctx);
void http_on_completed(void *server, struct MHD_Connection *mhd, void **ctx, enum MHD_RequestTerminationCode code);
void *http_on_request_line(void *server, const char *uri, struct MHD_Connection *mhd);
// ---- http_listen.c ----

// A socket that listens at options.host and options.port. Checks that the host is loopback, or has a key.
int http_listen(const http_options *o, int *fd, int *port, sl_error *err);
// Raises the process's limit of open files to what so many connections need.
int http_allow_files(int max_connections, sl_error *err);
// The content of a PEM file, from malloc.
int http_read_pem(const char *path, const char *option, char **out, sl_error *err);

#endif
