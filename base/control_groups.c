// base/control_groups.c - see control_groups.h.
#include "base/control_groups.h"

#include <stdio.h>
#include <string.h>

enum { PATH = 1024 };

// A group and all its parents. mount: where its version and controller are mounted. group: "/a/b". A container may show its own
// group as the root of the mount.
static void visit(const char *root, const char *mount, int version, const char *group, sl_control_group_fn fn, void *ctx) {
    char path[PATH];
    int n = snprintf(path, sizeof path, "%s/%s", root, mount);
    int end = n + snprintf(path + n, sizeof path - (size_t)n, "%s", group);
    if (end >= PATH) return;
    for (;; end--) {
        if (path[end] && path[end] != '/') continue;
        path[end] = 0;
        fn(ctx, version, path);
        if (end <= n) return;
    }
}

// 1: the list of controllers ("cpu,memory") has this one.
static int has(const char *controllers, size_t n, const char *controller) {
    size_t wanted = strlen(controller);
    for (size_t i = 0; i < n; i += strcspn(controllers + i, ",:") + 1)
        if (strcspn(controllers + i, ",:") == wanted && !strncmp(controllers + i, controller, wanted)) return 1;
    return 0;
}

void sl_control_groups(const char *root, const char *controller, sl_control_group_fn fn, void *ctx) {
    char path[PATH], line[PATH], mount[64];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    snprintf(mount, sizeof mount, "sys/fs/cgroup/%s", controller);
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) { // ID:CONTROLLERS:GROUP; version 2 has no controllers
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        size_t n = (size_t)(group - ++controllers);
        group++, group[strcspn(group, "\n")] = 0;
        if (!n) visit(root, "sys/fs/cgroup", 2, group, fn, ctx);
        if (has(controllers, n, controller)) visit(root, mount, 1, group, fn, ctx);
    }
    if (f) fclose(f);
}
