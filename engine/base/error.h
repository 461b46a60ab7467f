// engine/base/error.h - the error convention of the library.
//
// A function that can fail returns 0 or a negative sl_err, and writes the reason into the caller's sl_error: the file, tensor
// or flag, the value that was found, the value that was expected, and what to do. Library code never exits, prints or aborts.
// The exception is SL_CHECK, for programmer errors: it stays on in release builds.
#ifndef SLEIGH_ERROR_H
#define SLEIGH_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    SL_OK = 0,
    SL_ERR_IO = -1,          // the operating system reported an error: open, read, write, mmap
    SL_ERR_FORMAT = -2,      // the content of a file is malformed or truncated
    SL_ERR_UNSUPPORTED = -3, // well-formed, but Sleigh does not support it
    SL_ERR_ARG = -4,         // an argument is out of range or unknown
    SL_ERR_MEMORY = -5,      // no memory, or no free KV pages
    SL_ERR_CONTEXT = -6,     // the context has no room for the tokens
    SL_ERR_DEVICE = -7,      // the GPU or its driver failed
    SL_ERR_NOT_FINITE = -8,  // a value of the model became NaN or infinite
} sl_err;

typedef struct sl_error {
    sl_err code;
    char message[1024]; // one line of printable UTF-8; sl_fail escapes other bytes: 27 becomes \x1b
} sl_error;

// Fills *e (e may be NULL) and returns code. Use: return sl_fail(e, SL_ERR_IO, "...").
__attribute__((format(printf, 3, 4))) int sl_fail(sl_error *e, sl_err code, const char *fmt, ...);

// Prints the condition that is false, and aborts.
__attribute__((noreturn)) void sl_check_failed(const char *file, int line, const char *what);
#define SL_CHECK(cond) ((cond) ? (void)0 : sl_check_failed(__FILE__, __LINE__, #cond))

#ifdef __cplusplus
}
#endif

#endif
