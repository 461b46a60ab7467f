// server/http/http_checks.c - what the server checks before it reads a body: the form of the header, the key, the origin.
//
// libmicrohttpd 0.9.75 accepts forms that other servers read differently. An attacker can hide a request in such a form when a
// proxy stands before the server, so this file refuses them: a NUL in the request line (the library cuts the method or the path
// there), a folded line (the library appends it to the header's name), a
// NUL in a header (the library cuts the value there), a line that ends without CR, a name that is no token, two lengths, a
// length with a transfer encoding, an encoding other than "chunked".
#include "server/http/http_internal.h"

#include <string.h>
#include <strings.h>

// ---- the form of the header ----

typedef struct header_scan {
    const char *end; // behind the last value; NULL: no header yet
    const char *why; // NULL: no fault yet
    int n_lengths, n_encodings, n_hosts;
    int is_chunked;
} header_scan;

static int is_token(const char *s, size_t n) {
    static const char marks[] = "!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
    return n > 0 && strspn(s, marks) == n;
}

static int is_field_text(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (((unsigned char)s[i] < ' ' && s[i] != '\t') || s[i] == 127) return 0;
    return 1;
}

// 1: the texts of a header lie in the library's buffer as they came: NAME, a byte for the colon, blanks, VALUE, and two bytes
// between two headers. A folded line, a NUL and a bare LF break this order.
static int is_in_order(const header_scan *scan, const char *name, size_t n_name, const char *value) {
    enum { MOST_BLANKS = 64 };
    if (scan->end && name != scan->end + 2) return 0;
    const char *blanks = name + n_name + 1;
    return value >= blanks && value - blanks <= MOST_BLANKS && strspn(blanks, " \t") >= (size_t)(value - blanks);
}

static enum MHD_Result scan_header(void *ctx, enum MHD_ValueKind kind, const char *name, size_t n_name, const char *value,
                                   size_t n_value) {
    header_scan *scan = ctx;
    (void)kind;
    if (!value || !is_in_order(scan, name, n_name, value) || !is_token(name, n_name) || !is_field_text(value, n_value)) {
        scan->why = "the request has a malformed header";
        return MHD_NO;
    }
    scan->end = value + n_value;
    if (!strcasecmp(name, "Content-Length")) scan->n_lengths++;
    if (!strcasecmp(name, "Host")) scan->n_hosts++;
    if (!strcasecmp(name, "Transfer-Encoding")) {
        scan->n_encodings++;
        scan->is_chunked = !strcasecmp(value, "chunked");
    }
    return MHD_YES;
}

// 1: method, URI and version lie in the library's buffer as they came, with a blank between two of them.
static int is_request_line(const char *method, size_t n_uri, const char *version) {
    size_t n = strlen(method);
    return is_token(method, n) && n_uri > 0 && version == method + n + 1 + n_uri + 1;
}

int http_check_header(struct MHD_Connection *c, const char *method, size_t n_uri, const char *version, size_t max_header,
                      const char **why) {
    header_scan scan = {0};
    size_t n = MHD_get_connection_info(c, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE)->header_size;
    if (n > max_header) {
        *why = "the header of the request is too large";
        return 431;
    }
    if (!is_request_line(method, n_uri, version)) scan.why = "the request has a malformed first line";
    if (!scan.why) MHD_get_connection_values_n(c, MHD_HEADER_KIND, scan_header, &scan);
    if (!scan.why && scan.end && scan.end + 4 != method + n) scan.why = "the request has a malformed header";
    if (!scan.why && scan.n_lengths + scan.n_encodings > 1) scan.why = "the request gives the length of its body twice";
    if (!scan.why && scan.n_hosts > 1) scan.why = "the request has two headers Host";
    if (!scan.why && scan.n_encodings && strcmp(version, "HTTP/1.1"))
        scan.why = "the request has a header Transfer-Encoding, which needs HTTP/1.1";
    *why = scan.why;
    if (scan.why) return 400;
    if (scan.n_encodings && !scan.is_chunked) {
        *why = "the Transfer-Encoding of the request is not chunked";
        return 501;
    }
    return 0;
}

// ---- key and origin ----

// Reads each byte of the given text whatever the key is, so the time tells nothing about the key.
static int is_same_key(const char *key, const char *given) {
    size_t n = strlen(key), n_given = strlen(given);
    volatile unsigned char differs = n != n_given || !n;
    for (size_t i = 0; i < n_given && n; i++) differs |= (unsigned char)(given[i] ^ key[i % n]);
    return !differs;
}

int http_key_fits(const http_options *o, struct MHD_Connection *c) {
    static const char scheme[] = "Bearer ";
    const char *given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    int fits = 0;
    if (given && !strncasecmp(given, scheme, sizeof scheme - 1))
        given += sizeof scheme - 1;
    else
        given = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "x-api-key");
    if (!o->n_api_keys) return 1;
    for (int i = 0; given && i < o->n_api_keys; i++) fits |= is_same_key(o->api_key[i], given);
    return fits;
}

int http_origin_is_own(const char *origin, const char *host) {
    const char *at = origin ? strstr(origin, "://") : NULL;
    return at && host && !strcasecmp(at + 3, host);
}

int http_origin_allowed(const http_options *o, const char *origin) {
    int is_allowed = 0;
    for (int i = 0; origin && i < o->n_cors_origins; i++)
        is_allowed |= !strcmp(o->cors_origin[i], "*") || !strcasecmp(o->cors_origin[i], origin);
    return is_allowed;
}
