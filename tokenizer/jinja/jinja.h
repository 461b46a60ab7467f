// tokenizer/jinja/jinja.h - the template language of chat templates: Jinja 3.1 as transformers sets it (trim_blocks,
// lstrip_blocks, the immutable sandbox, tojson without escapes, raise_exception, strftime_now, break and continue, generation
// blocks).
//
// A template is parsed once, and is then constant: threads may share it. Rendering gives the bytes that Python gives, or an
// error. Names of the language that Sleigh does not have are refused by name, with the line of the template.
#ifndef SLEIGH_JINJA_H
#define SLEIGH_JINJA_H

#include "base/arrays.h"

#include <jansson.h>
#include <time.h>

typedef struct sl_jinja sl_jinja;

// name: of the template, for messages. text: n bytes of UTF-8. SL_ERR_FORMAT: a syntax error. SL_ERR_UNSUPPORTED: a statement
// that Sleigh does not have.
int sl_jinja_parse(const char *name, const char *text, size_t n, sl_jinja **out, sl_error *err);
void sl_jinja_free(sl_jinja *t);                         // NULL is allowed
const char *sl_jinja_text(const sl_jinja *t, size_t *n); // the text that was parsed
int sl_jinja_reads(const sl_jinja *t, const char *name); // 1: an expression of the template has this variable

// What limits a template that runs wild.
typedef struct sl_jinja_limits {
    size_t most_steps; // evaluated parts of expressions and handled elements
    size_t most_bytes; // of memory
} sl_jinja_limits;

typedef struct sl_jinja_input {
    // Objects whose fields are the variables; `marked` comes before `plain`, each may be NULL. Strings of `marked` are marked:
    // every byte that comes from them is marked in the output, whatever the template does with it. The value of a field "role"
    // is not marked if it is a known role, because templates build tokens of roles.
    const json_t *plain, *marked;
    time_t now;             // of strftime_now
    sl_jinja_limits limits; // zeros: the defaults
} sl_jinja_input;

typedef struct sl_jinja_output {
    sl_text text;
    unsigned char *marks; // [text.n]: 1: the byte is marked; NULL: none is. From malloc
} sl_jinja_output;

// *out must be zeros; the caller frees it, also after an error. SL_ERR_ARG: the template refuses the variables
// (raise_exception), or an operation has operands of wrong types. SL_ERR_UNSUPPORTED: the template uses something that Sleigh
// does not have, or reaches a limit.
int sl_jinja_render(const sl_jinja *t, const sl_jinja_input *in, sl_jinja_output *out, sl_error *err);
void sl_jinja_output_free(sl_jinja_output *out);

#endif
