// tests/base/test_host_memory.c - the host memory that control groups leave (host_memory.h), on folders with the files of
// proc and sys.
#include "base/host_memory.h"
#include "tests/support/fake_root.h"
#include "tests/test.h"

#include <string.h>

#define MEMINFO "MemTotal:  2000 kB\nMemFree: 10 kB\nMemAvailable:   1000 kB\n" // 1,024,000 bytes
#define V1 "sys/fs/cgroup/memory"

static void host_memory(void) {
    static const struct {
        const char *name;
        size_t want;
        const char *files[16]; // path, text; ended by NULL
    } trees[] = {
        {"none", 0, {NULL}},
        {"no-group", 1024000, {"proc/meminfo", MEMINFO}},
        {"unlimited",
         1024000,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "max\n",
          "sys/fs/cgroup/a/memory.current", "5\n"}},
        {"v2",
         600,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "1000\n",
          "sys/fs/cgroup/a/memory.current", "400\n"}},
        {"v2-file-cache",
         900,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "1000\n",
          "sys/fs/cgroup/a/memory.current", "400\n", "sys/fs/cgroup/a/memory.stat",
          "anon 90\ninactive_file 300\nactive_file 9\n"}},
        {"v2-parent",
         50,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/a/b/c\n", "sys/fs/cgroup/a/b/c/memory.max", "1000\n",
          "sys/fs/cgroup/a/b/c/memory.current", "400\n", "sys/fs/cgroup/a/memory.max", "700\n",
          "sys/fs/cgroup/a/memory.current", "650\n"}},
        {"v2-container",
         30, // the mount shows the container's group as its root
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/docker/0123\n", "sys/fs/cgroup/memory.max", "1000\n",
          "sys/fs/cgroup/memory.current", "970\n"}},
        {"v2-over",
         0,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "1000\n",
          "sys/fs/cgroup/memory.current", "2000\n"}},
        {"v2-large",
         1024000,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "999999999\n",
          "sys/fs/cgroup/memory.current", "5\n"}},
        {"v1",
         250,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/a/b\n1:name=systemd:/\n",
          V1 "/a/b/memory.limit_in_bytes", "9223372036854771712\n", V1 "/a/b/memory.usage_in_bytes", "100\n",
          V1 "/a/memory.limit_in_bytes", "500\n", V1 "/a/memory.usage_in_bytes", "250\n"}},
        {"v1-file-cache",
         450,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "9:hugetlb,memory:/a\n0::/a\n", V1 "/a/memory.limit_in_bytes", "500\n",
          V1 "/a/memory.usage_in_bytes", "250\n", V1 "/a/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n"}},
        {"v1-other",
         1024000,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "9:memory_recursive:/a\n", V1 "/a/memory.limit_in_bytes", "500\n",
          V1 "/a/memory.usage_in_bytes", "250\n"}},
    };
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        char root[300];
        for (int j = 0; trees[i].files[j]; j += 2) fake_root_put(trees[i].name, trees[i].files[j], trees[i].files[j + 1]);
        snprintf(root, sizeof root, "%s/%s", test_tmp(), trees[i].name);
        size_t got = sl_host_memory_free(root);
        if (got != trees[i].want) FAIL("%s: got %zu, expected %zu", trees[i].name, got, trees[i].want);
    }
    CHECK(sl_host_memory_free("") > 0 && sl_host_memory_allowed("") > 0);
}

// What the groups leave counts where one of them has a limit, also above MemAvailable.
static void allowed(void) {
    static const struct {
        const char *name;
        size_t want;
        const char *files[12];
    } trees[] = {
        {"allowed-none", 1024000, {"proc/meminfo", MEMINFO}},
        {"allowed-unlimited",
         1024000,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "max\n",
          "sys/fs/cgroup/a/memory.current", "5\n"}},
        {"allowed-v1-unlimited",
         1024000,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "4:memory:/a\n", V1 "/a/memory.limit_in_bytes", "9223372036854771712\n",
          V1 "/a/memory.usage_in_bytes", "100\n"}},
        {"allowed-large",
         999999994,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/\n", "sys/fs/cgroup/memory.max", "999999999\n",
          "sys/fs/cgroup/memory.current", "5\n"}},
        {"allowed-small",
         600,
         {"proc/meminfo", MEMINFO, "proc/self/cgroup", "0::/a\n", "sys/fs/cgroup/a/memory.max", "1000\n",
          "sys/fs/cgroup/a/memory.current", "400\n"}},
    };
    for (size_t i = 0; i < sizeof trees / sizeof *trees; i++) {
        char root[300];
        for (int j = 0; trees[i].files[j]; j += 2) fake_root_put(trees[i].name, trees[i].files[j], trees[i].files[j + 1]);
        snprintf(root, sizeof root, "%s/%s", test_tmp(), trees[i].name);
        size_t got = sl_host_memory_allowed(root);
        if (got != trees[i].want) FAIL("%s: got %zu, expected %zu", trees[i].name, got, trees[i].want);
    }
}

static const test_case cases[] = {
    {"folders", 0, host_memory},
    {"allowed", 0, allowed},
    {0},
};
const test_suite suite_host_memory = {"host_memory", cases};
