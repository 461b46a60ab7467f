// tests/support/fake_root.h - folders with files of proc and sys, for code that reads control groups.
#ifndef SLEIGH_TEST_FAKE_ROOT_H
#define SLEIGH_TEST_FAKE_ROOT_H

// Writes the file `path` of the root, a folder in test_tmp(), with the folders above it.
void fake_root_put(const char *root, const char *path, const char *text);

#endif
