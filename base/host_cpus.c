// base/host_cpus.c - see host_cpus.h.
#include "base/host_cpus.h"
#include "base/control_groups.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_CPUS = 1 << 16 }; // of a machine

// Reads up to two numbers of a file. Returns how many it has; "max" is none.
static int read_numbers(const char *folder, const char *name, long long *a, long long *b) {
    char path[1024 + 64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "r");
    int n = f ? fscanf(f, "%lld %lld", a, b) : 0;
    if (f) fclose(f);
    return n < 0 ? 0 : n;
}

// Lowers *most to the quota of the group in this folder, if it has one. The quota is microseconds of each period.
static void lower(void *most, int version, const char *folder) {
    long long quota = -1, period = 0, unused;
    int *least = most;
    if (version == 2)
        read_numbers(folder, "cpu.max", &quota, &period);
    else if (read_numbers(folder, "cpu.cfs_quota_us", &quota, &unused))
        read_numbers(folder, "cpu.cfs_period_us", &period, &unused);
    if (quota <= 0 || period <= 0) return;
    long long cpus = quota / period + (quota % period != 0);
    if (cpus < *least) *least = (int)cpus;
}

// Processors of the affinity mask. A machine may have more than a cpu_set_t holds.
static int in_mask(void) {
    for (int most = CPU_SETSIZE; most <= MOST_CPUS; most *= 2) {
        cpu_set_t *set = CPU_ALLOC(most);
        int ok = set && !sched_getaffinity(0, CPU_ALLOC_SIZE(most), set);
        int n = ok ? CPU_COUNT_S(CPU_ALLOC_SIZE(most), set) : 0;
        CPU_FREE(set);
        if (ok) return n;
    }
    return 1;
}

int sl_host_cpu_quota(const char *root, int most) {
    sl_control_groups(root, "cpu", lower, &most);
    return most;
}

int sl_host_cpus(const char *root) {
    return sl_host_cpu_quota(root, in_mask());
}
