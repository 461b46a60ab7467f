// engine/error.c - see error.h.
#include "engine/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

int sl_fail(sl_error *e, sl_err code, const char *fmt, ...) {
    if (e) {
        va_list ap;
        e->code = code;
        va_start(ap, fmt);
        vsnprintf(e->message, sizeof e->message, fmt, ap);
        va_end(ap);
    }
    return code;
}

void sl_check_failed(const char *file, int line, const char *what) {
    fprintf(stderr, "sleigh: internal error: %s:%d: %s does not hold; please report this\n", file, line, what);
    abort();
}
