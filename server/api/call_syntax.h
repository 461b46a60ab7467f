// server/api/call_syntax.h - the syntax of calls in each format: where a call may begin, where it ends, and what it says.
#ifndef SLEIGH_CALL_SYNTAX_H
#define SLEIGH_CALL_SYNTAX_H

#include "server/api/tool_calls.h"

// Finds the end of a value of JSON or Python: brackets that match, outside of strings. One byte at a time.
typedef struct api_nesting { // initialise with zeros
    int depth;
    char quote; // within a string: its quote
    int escaped;
} api_nesting;
int api_nesting_next(api_nesting *s, char c); // 1: the outermost bracket is closed

typedef struct api_call {
    char *name;        // owned
    sl_text arguments; // the text of a JSON object
} api_call;

typedef struct api_calls { // initialise with zeros
    api_call *items;       // [n]
    size_t n;
} api_calls;
void api_calls_free(api_calls *calls);
int api_calls_add(api_calls *calls, const char *name, size_t n_name, const char *arguments, size_t n, sl_error *err);

// Append the calls of a whole text. *is_call 0: the text has another form, and *calls is empty.
// A JSON object with name and arguments or parameters, or a list of such objects.
int api_calls_of_json(const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err);
int api_calls_of_python(const char *text, size_t n, api_calls *calls, int *is_call, sl_error *err); // [f(a=1)]

// The length of the name of a call of Mistral: s[0..n) is name[ARGS], or name[CALL_ID]id[ARGS], or the name alone. 0: another
// form
size_t api_mistral_name(const char *s, size_t n);
int api_is_python_name(const char *name); // 1: a call in Python can have this name

// What text[0..n), which begins with a bracket, may become: the beginning of a call decides.
typedef enum api_shape { API_SHAPE_OTHER, API_SHAPE_OPEN, API_SHAPE_CALL } api_shape;
api_shape api_shape_of_json(const char *text, size_t n);
api_shape api_shape_of_python(const char *text, size_t n);

static inline int api_is_blank(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

#endif
