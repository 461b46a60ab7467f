// cli/error_text.h - messages of the library with the names of flags.
#ifndef SLEIGH_ERROR_TEXT_H
#define SLEIGH_ERROR_TEXT_H

#include "base/error.h"

// The library names options by their fields: "n_ctx 9: expected ...". Replaces these names in err->message by the names of the
// flags: "--ctx-size 9: expected ...". Call it before a message is printed, or quoted in another message. Returns err->message.
const char *cli_error_text(sl_error *err);

#endif
