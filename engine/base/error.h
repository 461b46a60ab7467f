// engine/base/error.h - the one error convention of the library.
//
// Every fallible function returns 0 or a negative sl_err and writes the reason into the caller's sl_error: the file,
// tensor or flag it is about, what was found, what was expected, what to do. Library code never exits, prints or aborts,
// except SL_CHECK: a broken promise between two of our own functions, on in release builds too.
#ifndef SLEIGH_ERROR_H
#define SLEIGH_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    SL_OK = 0,
    SL_ERR_IO = -1,          // the operating system refused: open, read, write, mmap
    SL_ERR_FORMAT = -2,      // a file's content is malformed or truncated
    SL_ERR_UNSUPPORTED = -3, // well-formed, but something that Sleigh does not do
    SL_ERR_ARG = -4,         // a caller's value is out of range or unknown
    SL_ERR_MEMORY = -5,      // memory or KV pages ran out
    SL_ERR_CONTEXT = -6,     // more tokens than the context holds
    SL_ERR_DEVICE = -7,      // the GPU or its driver failed
    SL_ERR_NOT_FINITE = -8,  // a model's numbers became NaN or infinite
} sl_err;

typedef struct sl_error {
    sl_err code;
    char message[1024]; // one line of UTF-8 that a terminal can show: sl_fail writes other bytes of its arguments as \x1b
} sl_error;

// Fills *e (which may be NULL) and returns code, so that `return sl_fail(e, SL_ERR_IO, "...")` reads well.
__attribute__((format(printf, 3, 4))) int sl_fail(sl_error *e, sl_err code, const char *fmt, ...);

__attribute__((noreturn)) void sl_check_failed(const char *file, int line, const char *what);
#define SL_CHECK(cond) ((cond) ? (void)0 : sl_check_failed(__FILE__, __LINE__, #cond))

#ifdef __cplusplus
}
#endif

#endif
