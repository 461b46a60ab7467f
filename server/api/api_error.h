// server/api/api_error.h - an error that a client gets: a status of HTTP, the field, and one line of text.
#ifndef SLEIGH_API_ERROR_H
#define SLEIGH_API_ERROR_H

#include "base/error.h"

#include <jansson.h>

enum { API_PARAM = 96 };

typedef struct api_error {
    sl_error why;          // the text
    int status;            // HTTP's status: 400, 401, 404, 413, 429, 500, 503
    char param[API_PARAM]; // the field of the body: "stream_options.include_usage"; "": none
    const char *code;      // static: "context_length_exceeded"; NULL: the status is the code
} api_error;

// Fills *e (e may be NULL). Returns SL_ERR_MEMORY for 503, SL_ERR_IO for 500, and SL_ERR_ARG for others. param: NULL or a field
// of the body. The message should begin with the field.
__attribute__((format(printf, 4, 5))) int api_fail(api_error *e, int status, const char *param, const char *fmt, ...);
// The error for a failed call of the library: 400 for SL_ERR_ARG, SL_ERR_FORMAT, SL_ERR_UNSUPPORTED and SL_ERR_CONTEXT, 503 for
// SL_ERR_MEMORY, 429 for SL_ERR_BUSY, 500 for others. Returns why->code.
int api_fail_of(api_error *e, const sl_error *why);
int api_no_memory(api_error *e); // 503

// The body of the answer, a new reference; NULL: out of memory. is_messages 0: {"error": {"message", "type", "param", "code"}},
// as OpenAI writes it. 1: {"type": "error", "error": {"type", "message"}}, as Anthropic writes it.
json_t *api_error_json(const api_error *e, int is_messages);

#endif
