// server/api/api_error.c - see api_error.h.
#include "server/api/api_error.h"
#include "base/number.h"
#include "base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static sl_err library_code(int status) {
    return status == 503 ? SL_ERR_MEMORY : status >= 500 ? SL_ERR_IO : SL_ERR_ARG;
}

int api_fail(api_error *e, int status, const char *param, const char *fmt, ...) {
    char text[sizeof e->why.message];
    va_list args;
    if (!e) return library_code(status);
    va_start(args, fmt);
    sl_vprint(text, sizeof text, fmt, args);
    va_end(args);
    *e = (api_error){.status = status};
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    e->param[sl_utf8_valid_run(e->param, strlen(e->param))] = 0; // a long name may be cut within a character
    return sl_fail(&e->why, library_code(status), "%s", text);
}

int api_fail_of(api_error *e, const sl_error *why) {
    int is_request =
        why->code == SL_ERR_ARG || why->code == SL_ERR_FORMAT || why->code == SL_ERR_UNSUPPORTED || why->code == SL_ERR_CONTEXT;
    if (!e) return why->code;
    *e = (api_error){.why = *why,
                     .status = is_request                   ? 400
                               : why->code == SL_ERR_MEMORY ? 503
                               : why->code == SL_ERR_BUSY   ? 429
                                                            : 500};
    if (why->code == SL_ERR_CONTEXT) e->code = "context_length_exceeded";
    return why->code;
}

int api_no_memory(api_error *e) {
    return api_fail(e, 503, NULL, "out of memory");
}

// ---- as JSON ----

typedef struct status_type {
    int status;
    const char *openai, *anthropic;
} status_type;

static const status_type types[] = {
    {400, "invalid_request_error", "invalid_request_error"},
    {401, "authentication_error", "authentication_error"},
    {403, "permission_error", "permission_error"},
    {404, "not_found_error", "not_found_error"},
    {413, "invalid_request_error", "request_too_large"},
    {429, "rate_limit_error", "rate_limit_error"},
    {501, "not_supported_error", "api_error"},
    {503, "unavailable_error", "overloaded_error"},
    {0, "server_error", "api_error"},
};

static const status_type *type_of(int status) {
    const status_type *t = types;
    while (t->status && t->status != status) t++;
    return t->status || status >= 500 ? t : types;
}

json_t *api_error_json(const api_error *e, int is_messages) {
    const status_type *t = type_of(e->status);
    if (is_messages)
        return json_pack("{s:s, s:{s:s, s:s}}", "type", "error", "error", "type", t->anthropic, "message", e->why.message);
    json_t *code = e->code ? json_string(e->code) : json_integer(e->status);
    return json_pack("{s:{s:s, s:s, s:s?, s:o}}", "error", "message", e->why.message, "type", t->openai, "param",
                     e->param[0] ? e->param : NULL, "code", code);
}
