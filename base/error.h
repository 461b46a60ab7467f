// base/error.h - the error convention of the library.
//
// A function that can fail returns 0 or a negative sl_err, and writes the reason into the caller's sl_error: the file, tensor
// or option, the value that was found, the value that was expected, and what to do. Library code never exits, prints or aborts.
// The exception is SL_CHECK, for programmer errors: it stays on in release builds.
#ifndef SLEIGH_ERROR_H
#define SLEIGH_ERROR_H

#include "engine/sleigh.h"

#ifdef __cplusplus
extern "C" {
#endif

// Names of options (fields of public structs) stand in braces in the format: "{n_ctx} %d: expected 1 to %d". sl_fail removes
// the braces and fills sl_error.options. Braces in arguments stay. Fills *e (e may be NULL) and returns code. Use: return
// sl_fail(e, SL_ERR_IO, "...").
__attribute__((format(printf, 3, 4))) int sl_fail(sl_error *e, sl_err code, const char *fmt, ...);

// Prints the condition that is false, and aborts.
__attribute__((noreturn)) void sl_check_failed(const char *file, int line, const char *what);
#define SL_CHECK(cond) ((cond) ? (void)0 : sl_check_failed(__FILE__, __LINE__, #cond))

#ifdef __cplusplus
}
#endif

#endif
