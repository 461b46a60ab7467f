// tokenizer/jinja.h - brings a chat template's Jinja text to a short form, equal for texts that write the same prompts.
#ifndef SLEIGH_JINJA_H
#define SLEIGH_JINJA_H

#include "engine/base/arrays.h"

// Appends the reduced form: what the template does for messages of the roles system, user and assistant, without tools, with
// the assistant to speak next. Comments, blanks within tags, the kind of quotes, white space that Jinja cuts (as transformers
// sets it: trim_blocks, lstrip_blocks), ['role'] for .role and branches that cannot be taken are gone. Text between tags is
// written like the string that prints it, and neighbours are joined. Everything else stays as it is: two texts with one reduced
// form write the same. SL_ERR_UNSUPPORTED: not well-formed, or nested too deeply.
int sl_jinja_reduce(const char *jinja, sl_text *out, sl_error *err);

#endif
