// tests/server/test_http.c - the HTTP server: requests, answers, keys, CORS, TLS, drain.
#include "tests/server/http_fixture.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_error err;

static void answers(void) {
    fixture_start(NULL);
    const reply *r = client_ask("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nx-request-id: a-1\r\n\r\nhello");
    CHECK_INT(r->status, 200);
    CHECK_STR(r->body, "hello");
    CHECK(strstr(r->head, "x-request-id: a-1\r\n") != NULL);
    CHECK(strstr(r->head, "x-method: POST\r\n") != NULL);
    CHECK(strstr(r->head, "Content-Type: text/plain\r\n") != NULL);
    r = client_ask("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n");
    CHECK_STR(r->body, "abcde");
    r = client_ask("GET /ec%68o?b=c&a=x%20y HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(r->status, 200);
    CHECK(strstr(r->head, "x-query: x y\r\n") != NULL);
    r = client_ask("POST /echo HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nx-trailer: 1\r\n\r\n");
    CHECK_INT(r->status, 200);
    CHECK_INT(r->n_body, 0);
    r = client_ask("GET /none HTTP/1.1\r\nHost: h\r\nx-request-id: z\r\n\r\n");
    CHECK_INT(r->status, 404);
    CHECK_STR(r->body, "{\"error\": {\"message\": \"no such path\", \"type\": \"not_found_error\", \"param\": null, "
                       "\"code\": 404}}\n");
    CHECK(strstr(r->head, "x-request-id: z\r\n") != NULL);
    CHECK_STR(client_ask("GET /other HTTP/1.1\r\nHost: h\r\n\r\n")->body, "404: no such path");
    CHECK_INT(client_ask("GET /silent HTTP/1.1\r\nHost: h\r\n\r\n")->status, 500);
    r = client_ask("GET /echo HTTP/1.0\r\n\r\n");
    CHECK_INT(r->status, 200);
    CHECK(r->is_closed);
    fixture_stop();
}

static void keep_alive_and_pipelining(void) {
    static const char one[] = "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n";
    char two[256];
    fixture_start(NULL);
    int fd = client_open();
    for (int i = 0; i < 3; i++) {
        client_send(fd, one);
        client_send(fd, "x");
        CHECK_STR(client_read(fd)->body, "x");
    }
    snprintf(two, sizeof two, "%s1%s2", one, one);
    client_send(fd, two);
    CHECK_STR(client_read(fd)->body, "1");
    CHECK_STR(client_read(fd)->body, "2");
    // The second request waits until the first is answered.
    client_send(fd, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\nGET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *x = fixture_held();
    int n = fixture_handled();
    fixture_sleep(0.05);
    CHECK_INT(fixture_handled(), n);
    CHECK_INT(http_reply(x, 202, "text/plain", NULL, 0, "late", 4), 0);
    http_release(x);
    CHECK_STR(client_read(fd)->body, "late");
    CHECK_INT(client_read(fd)->status, 200);
    CHECK_INT(fixture_handled(), n + 1);
    close(fd);
    fixture_stop();
}

// More requests than the library's buffer holds, with headers that fill parts of it.
static void long_pipeline(void) {
    enum { N = 40, HEADER = 3000 };
    char *text = malloc(N * (HEADER + 200));
    size_t n = 0;
    for (int i = 0; i < N; i++)
        n += (size_t)sprintf(text + n, "POST /echo HTTP/1.1\r\nHost: h\r\nx-b: %0*d\r\nContent-Length: 2\r\n\r\n%02d",
                             HEADER - i, 0, i);
    fixture_start(NULL);
    int fd = client_open();
    client_send_n(fd, text, n);
    for (int i = 0; i < N; i++) CHECK_INT(atoi(client_read(fd)->body), i);
    close(fd);
    free(text);
    fixture_stop();
}

static void head(void) {
    char text[1024] = "";
    fixture_start(NULL);
    int fd = client_open();
    client_send(fd, "HEAD /none HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
    client_read_some(fd, text, sizeof text - 1, 5);
    CHECK(!strncmp(text, "HTTP/1.1 404", 12));
    CHECK_STR(strstr(text, "\r\n\r\n"), "\r\n\r\n");
    close(fd);
    fixture_stop();
}

static void expect_continue(void) {
    http_options o = http_options_default();
    o.max_body = 1024;
    fixture_start(&o);
    int fd = client_open();
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nExpect: 100-continue\r\n\r\n");
    CHECK_INT(client_read(fd)->status, 100);
    client_send(fd, "ok");
    CHECK_STR(client_read(fd)->body, "ok");
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 1025\r\nExpect: 100-continue\r\n\r\n");
    CHECK_INT(client_read(fd)->status, 413); // before the body
    close(fd);
    fixture_stop();
}

static int status_with(const char *path, const char *header) {
    char request[512];
    snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: h\r\n%s\r\n", path, header);
    return client_ask(request)->status;
}

static void keys(void) {
    static const char *const keys[] = {"first-key", "second"};
    http_options o = http_options_default();
    o.api_key = keys;
    o.n_api_keys = 2;
    fixture_start(&o);
    CHECK_INT(status_with("/echo", ""), 401);
    CHECK_INT(status_with("/echo", "Authorization: Bearer first-key\r\n"), 200);
    CHECK_INT(status_with("/echo", "authorization: bearer second\r\n"), 200);
    CHECK_INT(status_with("/echo", "x-api-key: second\r\n"), 200);
    CHECK_INT(status_with("/echo", "x-api-key: secondsecond\r\n"), 401);
    CHECK_INT(status_with("/echo", "x-api-key: secon\r\n"), 401);
    CHECK_INT(status_with("/echo", "x-api-key:\r\n"), 401);
    CHECK_INT(status_with("/echo", "Authorization: second\r\n"), 401);
    CHECK_INT(status_with("/echo", "Authorization: Basic second\r\n"), 401);
    CHECK_INT(status_with("/health", ""), 404); // the handler has no such path, and needs no key for it
    CHECK_INT(status_with("/v1/models", ""), 404);
    CHECK_INT(status_with("/health/", ""), 401);
    CHECK_INT(status_with("//health", ""), 401);
    CHECK_INT(fixture_handled(), 5);
    // A refused request with a body: the client gets the answer, and the connection lives on.
    int fd = client_open();
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbody");
    const reply *r = client_read(fd);
    CHECK_INT(r->status, 401);
    CHECK(strstr(r->body, "authentication_error") != NULL);
    CHECK(!r->is_closed);
    client_send(fd, "POST /echo HTTP/1.1\r\nHost: h\r\nx-api-key: second\r\nContent-Length: 4\r\n\r\nbody");
    CHECK_INT(client_read(fd)->status, 200);
    close(fd);
    fixture_stop();
}

static void cors(void) {
    static const char *const origins[] = {"https://page.example", "http://localhost:3000"};
    static const char *const keys[] = {"k"};
    http_options o = http_options_default();
    o.cors_origin = origins;
    o.n_cors_origins = 2;
    o.api_key = keys;
    o.n_api_keys = 1;
    fixture_start(&o);
    const reply *r =
        client_ask("OPTIONS /echo HTTP/1.1\r\nHost: h\r\nOrigin: https://page.example\r\n"
                   "Access-Control-Request-Method: POST\r\nAccess-Control-Request-Headers: authorization,x-a\r\n\r\n");
    CHECK_INT(r->status, 204);
    CHECK(strstr(r->head, "Access-Control-Allow-Origin: https://page.example\r\n") != NULL);
    CHECK(strstr(r->head, "Access-Control-Allow-Headers: authorization,x-a\r\n") != NULL);
    CHECK_INT(fixture_handled(), 0);
    r = client_ask("OPTIONS /echo HTTP/1.1\r\nHost: h\r\nOrigin: https://other.example\r\n"
                   "Access-Control-Request-Method: POST\r\n\r\n");
    CHECK_INT(r->status, 403);
    CHECK(!strstr(r->head, "Access-Control-Allow-Origin"));
    r = client_ask("GET /echo HTTP/1.1\r\nHost: h\r\nx-api-key: k\r\nOrigin: http://localhost:3000\r\n\r\n");
    CHECK_INT(r->status, 200);
    CHECK(strstr(r->head, "Access-Control-Allow-Origin: http://localhost:3000\r\n") != NULL);
    int handled = fixture_handled(); // a page of another origin reaches nothing, even where it does not read the answer
    r = client_ask("GET /echo HTTP/1.1\r\nHost: h\r\nx-api-key: k\r\nOrigin: https://other.example\r\n\r\n");
    CHECK(r->status == 403 && !strstr(r->head, "Access-Control-Allow-Origin"));
    CHECK_INT(fixture_handled(), handled);
    fixture_stop();
    o.n_cors_origins = 0;
    fixture_start(&o);
    r = client_ask("OPTIONS /echo HTTP/1.1\r\nHost: h\r\nx-api-key: k\r\nOrigin: https://page.example\r\n"
                   "Access-Control-Request-Method: POST\r\n\r\n");
    CHECK(r->status == 403 && !strstr(r->head, "Access-Control-Allow-Origin"));
    r = client_ask("POST /echo HTTP/1.1\r\nHost: h\r\nx-api-key: k\r\nOrigin: null\r\nContent-Length: 0\r\n\r\n");
    CHECK_INT(r->status, 403);
    CHECK_INT(fixture_handled(), 0);
    r = client_ask("OPTIONS /echo HTTP/1.1\r\nHost: h:80\r\nx-api-key: k\r\nOrigin: http://H:80\r\n"
                   "Access-Control-Request-Method: POST\r\n\r\n"); // an ordinary request of the server's own page
    CHECK(r->status == 200 && !strstr(r->head, "Access-Control-Allow-Origin"));
    fixture_stop();
}

static void options(void) {
    static const char *const keys[] = {"k", ""};
    const http_handler handler = {0};
    http_server *s = NULL;
    http_options o = http_options_default();
    o.port = 0;
    o.host = "0.0.0.0";
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "host 0.0.0.0: every machine");
    CHECK_INT(err.n_options, 3);
    o.host = "::";
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "api_key");
    o.host = "0.0.0.0";
    o.insecure = 1;
    CHECK_OK(http_server_new(&o, &handler, &s, &err), err);
    o.port = http_server_port(s);
    http_server *other;
    CHECK_ERR(http_server_new(&o, &handler, &other, &err), err, SL_ERR_IO, "cannot listen");
    http_server_free(s);
    o.port = 0;
    o.insecure = 0;
    o.api_key = keys;
    o.n_api_keys = 1;
    CHECK_OK(http_server_new(&o, &handler, &s, &err), err);
    http_server_free(s);
    o.n_api_keys = 2;
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "empty key");
    o = http_options_default();
    o.port = 70000;
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "port 70000");
    o.port = 0;
    o.max_bodies = o.max_body - 1;
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "max_bodies");
    o = http_options_default();
    o.header_timeout = 0;
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "header_timeout 0: expected 0.1 to");
    o = http_options_default();
    o.tls_cert = "/nonexistent";
    CHECK_ERR(http_server_new(&o, &handler, &s, &err), err, SL_ERR_ARG, "tls_key");
    http_server_free(NULL);
}

static void drain(void) {
    http_server *s = fixture_start(NULL);
    int waiting = client_open(), streaming = client_open(), idle = client_open(), fresh = client_open();
    client_send(idle, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK_INT(client_read(idle)->status, 200);
    client_send(waiting, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *x = fixture_held();
    client_send(streaming, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *y = fixture_held();
    CHECK_INT(http_stream_begin(y, 200, "text/event-stream", NULL, 0), 0);
    http_server_drain(s);
    CHECK(client_is_closed(idle, 5));
    CHECK(client_is_closed(fresh, 5));
    CHECK_INT(http_server_wait(s, 0.05), 0);
    CHECK_INT(http_stream_send(y, "data: 1\n\n", 9), 0);
    CHECK_INT(http_stream_end(y), 0);
    CHECK_INT(http_reply(x, 200, "text/plain", NULL, 0, "done", 4), 0);
    const reply *r = client_read(waiting);
    CHECK_STR(r->body, "done");
    CHECK(r->is_closed);
    CHECK_STR(client_read(streaming)->body, "data: 1\n\n");
    CHECK_INT(http_server_wait(s, 5), 1);
    CHECK_INT(http_server_counts(s).connections, 0);
    CHECK_INT(http_server_counts(s).gone, 0);
    http_release(x);
    http_release(y);
    close(waiting), close(streaming), close(idle), close(fresh);
    fixture_stop();
}

// The server ends while exchanges are open. Their owners use them afterwards.
static void stop_with_open_exchanges(void) {
    fixture_start(NULL);
    int a = client_open(), b = client_open(), half = client_open();
    client_send(a, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *x = fixture_held();
    client_send(b, "GET /hold HTTP/1.1\r\nHost: h\r\n\r\n");
    http_exchange *y = fixture_held();
    client_send(half, "GET /ho");
    CHECK_INT(http_stream_begin(y, 200, "text/plain", NULL, 0), 0);
    http_server_free(fixture_take());
    close(a), close(b), close(half);
    fixture_stop();
    CHECK(http_gone(x) && http_gone(y));
    CHECK_INT(http_reply(x, 200, "text/plain", NULL, 0, "", 0), SL_ERR_CANCELLED);
    CHECK_INT(http_fail(x, 500, "late"), SL_ERR_CANCELLED);
    CHECK_INT(http_stream_send(y, "x", 1), SL_ERR_CANCELLED);
    CHECK_INT(http_stream_end(y), SL_ERR_CANCELLED);
    http_release(x);
    http_release(y);
}

static void tls(void) {
    char command[1024], cert[128], key[128], out[256] = "";
    snprintf(cert, sizeof cert, "%s/cert.pem", test_tmp());
    snprintf(key, sizeof key, "%s/key.pem", test_tmp());
    snprintf(command, sizeof command,
             "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost "
             "-keyout %s -out %s 2>/dev/null && command -v curl >/dev/null",
             key, cert);
    if (system(command)) TEST_SKIP("needs openssl and curl");
    http_options o = http_options_default();
    o.tls_cert = cert;
    o.tls_key = cert;
    const http_handler handler = {0};
    http_server *s;
    int rc = http_server_new(&o, &handler, &s, &err);
    if (rc == SL_ERR_UNSUPPORTED) TEST_SKIP("this build has no TLS");
    CHECK_ERR(rc, err, SL_ERR_FORMAT, "expected a certificate and its key");
    o.tls_key = key;
    s = fixture_start(&o);
    snprintf(command, sizeof command, "curl -sk --max-time 10 https://127.0.0.1:%d/echo -d hello https://127.0.0.1:%d/echo",
             http_server_port(s), http_server_port(s));
    FILE *f = popen(command, "re");
    CHECK(f && fgets(out, sizeof out, f));
    pclose(f);
    CHECK_STR(out, "hellohello");
    snprintf(command, sizeof command, "curl -sk --max-time 0.3 https://127.0.0.1:%d/hold >/dev/null", http_server_port(s));
    CHECK(system(command)); // curl leaves while the request waits
    http_exchange *x = fixture_held();
    fixture_wait_gone(x);
    http_release(x);
    snprintf(command, sizeof command, "curl -skN --max-time 10 https://127.0.0.1:%d/hold", http_server_port(s));
    CHECK((f = popen(command, "re")) != NULL);
    x = fixture_held();
    CHECK_INT(http_stream_begin(x, 200, "text/event-stream", NULL, 0), 0);
    for (int i = 0; i < 3; i++) { // each piece arrives before the next one is sent
        snprintf(command, sizeof command, "data: %d\n", i);
        CHECK_INT(http_stream_send(x, command, strlen(command)), 0);
        CHECK(fgets(out, sizeof out, f) && !strcmp(out, command));
    }
    CHECK_INT(http_stream_end(x), 0);
    http_release(x);
    CHECK_INT(pclose(f), 0);
    int fd = client_open(); // plain text at a TLS port
    client_send(fd, "GET /echo HTTP/1.1\r\nHost: h\r\n\r\n");
    CHECK(client_is_closed(fd, 5));
    close(fd);
    fixture_stop();
}

const test_suite suite_http = {"http", (const test_case[]){
                                           {"answers", 0, answers},
                                           {"keep-alive-and-pipelining", 0, keep_alive_and_pipelining},
                                           {"long-pipeline", 0, long_pipeline},
                                           {"head", 0, head},
                                           {"expect-continue", 0, expect_continue},
                                           {"keys", 0, keys},
                                           {"cors", 0, cors},
                                           {"options", 0, options},
                                           {"drain", 0, drain},
                                           {"stop-with-open-exchanges", 0, stop_with_open_exchanges},
                                           {"tls", 0, tls},
                                           {0},
                                       }};
