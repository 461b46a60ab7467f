// engine/base/host_memory.c - see host_memory.h.
#include "engine/base/host_memory.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 1024 };

// The names of a version's files, and where its groups are mounted.
typedef struct version {
    const char *mount, *limit, *used, *inactive; // inactive: a line of memory.stat
} version;
static const version v1 = {"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"};
static const version v2 = {"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"};

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

// What the group in folder `path` leaves, if it has a limit and this is less than `most`.
static size_t left_by(const version *v, const char *path, size_t most) {
    char file[PATH + 64];
    size_t limit, used, inactive;
    snprintf(file, sizeof file, "%s/%s", path, v->limit);
    if (!read_number(file, NULL, &limit)) return most;
    snprintf(file, sizeof file, "%s/%s", path, v->used);
    if (!read_number(file, NULL, &used)) return most;
    snprintf(file, sizeof file, "%s/memory.stat", path);
    if (!read_number(file, v->inactive, &inactive) || inactive > used) inactive = 0;
    used -= inactive;
    size_t left = limit > used ? limit - used : 0;
    return left < most ? left : most;
}

// The same for a group and all its parents. group: "/a/b". A container may show its own group as the root of the mount.
static size_t left_by_all(const version *v, const char *root, const char *group, size_t most) {
    char path[PATH];
    int n = snprintf(path, sizeof path, "%s/%s", root, v->mount),
        end = n + snprintf(path + n, sizeof path - (size_t)n, "%s", group);
    if (end >= PATH) return most;
    for (;; end--) {
        if (path[end] && path[end] != '/') continue;
        path[end] = 0;
        most = left_by(v, path, most);
        if (end <= n) return most;
    }
}

// 1: the list of controllers ("cpu,memory") has memory.
static int has_memory(const char *controllers, size_t n) {
    for (size_t i = 0; i < n; i += strcspn(controllers + i, ",:") + 1)
        if (strcspn(controllers + i, ",:") == 6 && !strncmp(controllers + i, "memory", 6)) return 1;
    return 0;
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
    char path[PATH], line[PATH];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) { // ID:CONTROLLERS:GROUP; version 2 has no controllers
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        size_t n = (size_t)(group - ++controllers);
        group++, group[strcspn(group, "\n")] = 0;
        if (!n) most = left_by_all(&v2, root, group, most);
        if (has_memory(controllers, n)) most = left_by_all(&v1, root, group, most);
    }
    if (f) fclose(f);
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
