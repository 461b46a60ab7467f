// tokenizer/jinja.h - reduces a chat template's Jinja text to a short form. Texts that differ only in layout or tools have one
// form.
#ifndef SLEIGH_JINJA_H
#define SLEIGH_JINJA_H

#include "engine/base/arrays.h"

// Appends the reduced form. It keeps what the template does for messages of the roles system, user and assistant, without tools
// and with add_generation_prompt. The form has no comments, no blanks within tags, and one kind of quotes. It has no white
// space that Jinja cuts (with transformers' trim_blocks and lstrip_blocks), and no branches that these messages never take. It
// has .role for ['role']. Text between tags becomes a printed string, and neighbouring strings are joined. The rest stays as it
// is. So two texts with the same reduced form write the same prompts. SL_ERR_UNSUPPORTED: the text is not well-formed, or
// nested too deeply.
int sl_jinja_reduce(const char *jinja, sl_text *out, sl_error *err);

#endif
