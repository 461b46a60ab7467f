// tests/base/test_host_cpus.c - the processors that control groups allow (host_cpus.h), on folders with the files of proc and
// sys.
#include "base/host_cpus.h"
#include "engine/engine.h"
#include "tests/support/fake_root.h"
#include "tests/support/run_cli.h"
#include "tests/test.h"

#include <sched.h>

#define V2 "sys/fs/cgroup"
#define V1 "sys/fs/cgroup/cpu"

static void quotas(void) {
    static const struct {
        const char *name;
        int want; // of at most 16
        const char *files[12];
    } trees[] = {
        {"no-group", 16, {NULL}},
        {"v2-max", 16, {"proc/self/cgroup", "0::/a\n", V2 "/a/cpu.max", "max 100000\n"}},
        {"v2", 3, {"proc/self/cgroup", "0::/a\n", V2 "/a/cpu.max", "300000 100000\n"}},
        {"v2-one-and-a-half", 2, {"proc/self/cgroup", "0::/a\n", V2 "/a/cpu.max", "150000 100000\n"}},
        {"v2-part", 1, {"proc/self/cgroup", "0::/a\n", V2 "/a/cpu.max", "1000 100000\n"}},
        {"v2-more", 16, {"proc/self/cgroup", "0::/a\n", V2 "/a/cpu.max", "6400000 100000\n"}},
        {"v2-parent",
         2,
         {"proc/self/cgroup", "0::/a/b/c\n", V2 "/a/b/c/cpu.max", "max 100000\n", V2 "/a/cpu.max", "100000 50000\n"}},
        {"v2-container", 4, {"proc/self/cgroup", "0::/docker/0123\n", V2 "/cpu.max", "200000 50000\n"}},
        {"v1",
         2,
         {"proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/a/b\n", V1 "/x/cpu.cfs_quota_us", "200000\n",
          V1 "/x/cpu.cfs_period_us", "100000\n"}},
        {"v1-none",
         16,
         {"proc/self/cgroup", "4:cpuacct,cpu:/x\n", V1 "/x/cpu.cfs_quota_us", "-1\n", V1 "/x/cpu.cfs_period_us", "100000\n"}},
        {"v1-parent",
         5,
         {"proc/self/cgroup", "4:cpu:/x/y\n", V1 "/x/y/cpu.cfs_quota_us", "800000\n", V1 "/x/y/cpu.cfs_period_us", "100000\n",
          V1 "/cpu.cfs_quota_us", "250000\n", V1 "/cpu.cfs_period_us", "50000\n"}},
        {"v1-other",
         16,
         {"proc/self/cgroup", "4:cpuset:/x\n", V1 "/x/cpu.cfs_quota_us", "200000\n", V1 "/x/cpu.cfs_period_us", "100000\n"}},
        {"no-period", 16, {"proc/self/cgroup", "4:cpu:/x\n", V1 "/x/cpu.cfs_quota_us", "200000\n"}},
    };
    cpu_set_t set;
    CHECK_INT(sched_getaffinity(0, sizeof set, &set), 0);
    int in_mask = CPU_COUNT(&set);
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        char root[300];
        for (int j = 0; trees[i].files[j]; j += 2) fake_root_put(trees[i].name, trees[i].files[j], trees[i].files[j + 1]);
        snprintf(root, sizeof root, "%s/%s", test_tmp(), trees[i].name);
        int got = sl_host_cpu_quota(root, 16), cpus = sl_host_cpus(root),
            want = trees[i].want < in_mask ? trees[i].want : in_mask;
        if (got != trees[i].want) FAIL("%s: got %d, expected %d", trees[i].name, got, trees[i].want);
        if (cpus != want && trees[i].want < 16) FAIL("%s: %d processors, expected %d", trees[i].name, cpus, want);
    }
    CHECK(sl_host_cpus("") >= 1 && sl_host_cpus("") <= in_mask);
}

static void affinity(void) { // the default of -t
    result r = RUN_SHELL("exec taskset -c 0 \"$0\" \"$@\"", "version");
    CHECK_GOOD(r);
    CHECK_HAS(r.out, ", 1 thread\n");
}

static const test_case cases[] = {{"quotas", 0, quotas}, {"affinity", 0, affinity}, {0}};
const test_suite suite_host_cpus = {"host_cpus", cases};
