// base/host_memory.c - see host_memory.h.
#include "base/host_memory.h"
#include "base/control_groups.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 1024 };

// The names of a version's files.
typedef struct version {
    const char *limit, *used, *inactive; // inactive: a line of memory.stat
} version;
static const version v1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
static const version v2 = {"memory.max", "memory.current", "inactive_file"};

// Reads the number of a file of one number, or with `key` the number after it. Returns 0: there is none ("max").
static int read_number(const char *path, const char *key, size_t *out) {
    char line[256], word[128];
    FILE *f = fopen(path, "r");
    int found = 0;
    while (f && !found && fgets(line, sizeof line, f))
        found = key ? sscanf(line, "%127s %zu", word, out) == 2 && !strcmp(word, key) : sscanf(line, "%zu", out) == 1;
    if (f) fclose(f);
    return found;
}

// Lowers *most to what the group in this folder leaves, if it has a limit.
static void lower(void *most, int which, const char *folder) {
    char file[PATH + 64];
    const version *v = which == 1 ? &v1 : &v2;
    size_t limit, used, inactive, *least = most;
    snprintf(file, sizeof file, "%s/%s", folder, v->limit);
    if (!read_number(file, NULL, &limit)) return;
    snprintf(file, sizeof file, "%s/%s", folder, v->used);
    if (!read_number(file, NULL, &used)) return;
    snprintf(file, sizeof file, "%s/memory.stat", folder);
    if (!read_number(file, v->inactive, &inactive) || inactive > used) inactive = 0;
    used -= inactive;
    size_t left = limit > used ? limit - used : 0;
    if (left < *least) *least = left;
}

static size_t available(const char *root) {
    char path[PATH];
    size_t kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    read_number(path, "MemAvailable:", &kib);
    return kib << 10;
}

// What the control groups leave, if it is less than `most`.
static size_t left_by_groups(const char *root, size_t most) {
    sl_control_groups(root, "memory", lower, &most);
    return most;
}

size_t sl_host_memory_free(const char *root) {
    return left_by_groups(root, available(root));
}

size_t sl_host_memory_allowed(const char *root) {
    const size_t unlimited = (size_t)1 << 60; // version 1 writes a number near 2^63 for "no limit"
    size_t left = left_by_groups(root, unlimited);
    return left < unlimited ? left : available(root);
}
