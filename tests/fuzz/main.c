// tests/fuzz/main.c - the functions that libFuzzer calls. The name of the program selects the target: scripts/check/fuzz.sh
// makes one link for each target.
#include "tests/fuzz/fuzz.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const fuzz_target *target;
static char dir[256];

static void remove_dir(void) {
    rmdir(dir);
}

const char *fuzz_dir(void) {
    const char *tmp = getenv("TMPDIR");
    if (dir[0]) return dir;
    snprintf(dir, sizeof dir, "%.200s/sleigh-fuzz-XXXXXX", tmp ? tmp : access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(dir)) exit((perror(dir), 1));
    atexit(remove_dir);
    return dir;
}

void fuzz_failed(const char *file, int line, const char *what, const char *found) {
    fprintf(stderr, "%s:%d: %s does not hold: %s\n", file, line, what, found);
    abort();
}

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *slash = strrchr((*argv)[0], '/');
    (void)argc;
    target = fuzz_find(slash ? slash + 1 : (*argv)[0]);
    if (target) return 0;
    fprintf(stderr, "%s: the program's name must be a target's\n", (*argv)[0]);
    exit(1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n) {
    target->run((const char *)data, n);
    return 0;
}
