// tests/support/session_bytes.h - changes in session files.
#ifndef SLEIGH_TEST_SESSION_BYTES_H
#define SLEIGH_TEST_SESSION_BYTES_H

#include <stddef.h>

void seal_session(char *file, size_t n); // sets the checksum of the file's n bytes

#endif
