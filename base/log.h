// base/log.h - writes a line to the caller's sl_log.
#ifndef SLEIGH_LOG_H
#define SLEIGH_LOG_H

#include "engine/sleigh.h"

#include <stdarg.h>
#include <stdio.h>

// log: NULL, or without a function: no line. A line has at most 1023 bytes.
__attribute__((format(printf, 2, 3))) static inline void sl_log_line(const sl_log *log, const char *format, ...) {
    char line[1024];
    va_list args;
    if (!log || !log->fn) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    log->fn(log->ctx, line);
}

#endif
