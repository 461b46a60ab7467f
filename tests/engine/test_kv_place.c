// tests/engine/test_kv_place.c - where the rows of K and V lie and what fits (kv_place.h), and the host memory that control
// groups leave (host_memory.h), on folders with the files of proc and sys.
#include "engine/base/host_memory.h"
#include "engine/kv/kv_place.h"
#include "tests/test.h"

#include <string.h>
#include <sys/stat.h>

static sl_error err;

// ---- host memory ----

static void put(const char *root, const char *path, const char *text) {
    char full[600];
    snprintf(full, sizeof full, "%s/%s/%s", test_tmp(), root, path);
    for (char *p = full + strlen(test_tmp()) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(full, 0777);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    CHECK(f && fputs(text, f) != EOF && !fclose(f));
}

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
        for (int j = 0; trees[i].files[j]; j += 2) put(trees[i].name, trees[i].files[j], trees[i].files[j + 1]);
        snprintf(root, sizeof root, "%s/%s", test_tmp(), trees[i].name);
        size_t got = sl_host_memory_free(root);
        if (got != trees[i].want) FAIL("%s: got %zu, expected %zu", trees[i].name, got, trees[i].want);
    }
    CHECK(sl_host_memory_free("") > 0);
}

// ---- what fits ----

#define GIB ((size_t)1 << 30)

// Llama-3.1-8B: 131,072 bytes of K and V a row. Quantised keys in 4 bits: 16 KB and steps of each page, layer and KV head.
static const sl_kv_demand llama8b = {.row = 131072,
                                     .proposing = (size_t)32 * 8 * (16384 + 512),
                                     .fixed = 17 * GIB,
                                     .n_ctx = 1 << 20,
                                     .n_sequences = 1,
                                     .newest_pages = 2,
                                     .hot_share = 0.05};

static void places(void) {
    const sl_kv_room h200 = {.gpu = 139 * GIB, .host = 200 * GIB};
    sl_kv_demand d = llama8b;
    sl_kv_layout l;
    // A million rows: 128 GiB of K and V and 16.5 GiB of quantised keys.
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_AUTO, &l, &err), err);
    CHECK(l.place == SL_KV_HOST && l.host == 128 * GIB && l.newest == (size_t)512 * 131072 && l.fixed == 17 * GIB);
    CHECK(l.proposing == (size_t)4096 * 32 * 8 * 16896);
    CHECK_INT(l.hot_rows, (1 << 20) / 20);
    CHECK(l.hot == (size_t)l.hot_rows * d.row);
    // 512k rows fit on the GPU; SL_KV_HOST keeps them on the host.
    d.n_ctx = 1 << 19;
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_AUTO, &l, &err), err);
    CHECK(l.place == SL_KV_GPU && l.host == 0 && l.newest == 64 * GIB && l.hot == 0 && l.hot_rows == 0);
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_HOST, &l, &err), err);
    CHECK(l.place == SL_KV_HOST && l.host == 64 * GIB);
    // Less memory for the cache: fewer hot rows.
    sl_kv_room small = h200;
    small.gpu_most = 9 * GIB;
    CHECK_OK(sl_kv_place_rows(&d, &small, SL_KV_AUTO, &l, &err), err);
    CHECK(l.place == SL_KV_HOST && l.hot_rows > 0 && l.hot_rows < (1 << 19) / 20);
    CHECK(l.proposing + l.newest + l.hot <= 9 * GIB && l.proposing + l.newest + l.hot + d.row > 9 * GIB);
    // A context of fewer pages than the newest ones.
    d.n_ctx = 100;
    CHECK_OK(sl_kv_place_rows(&d, &h200, SL_KV_HOST, &l, &err), err);
    CHECK(l.newest == (size_t)256 * d.row && l.host == (size_t)256 * d.row);
}

// The limits in the message fit, and one page or one sequence more does not.
static void check_limits(sl_kv_demand d, const sl_kv_room *room, sl_kv_place place, long long n_ctx, long long n_sequences) {
    sl_kv_demand x = d;
    sl_kv_layout l;
    for (int more = 0; more < 2; more++) {
        x = d, x.n_ctx = (int)(n_ctx + 256 * more);
        if (x.n_ctx > 0) CHECK_INT(sl_kv_place_rows(&x, room, place, &l, &err) == 0, !more);
        x = d, x.n_sequences = (int)n_sequences + more;
        if (x.n_sequences > 0) CHECK_INT(sl_kv_place_rows(&x, room, place, &l, &err) == 0, !more);
    }
}

static void refusals(void) {
    static const struct {
        sl_kv_room room;
        sl_kv_place place;
        int n_ctx, n_sequences;
        const char *part;
    } cases[] = {
        {{.gpu = 139 * GIB, .host = 100 * GIB},
         SL_KV_AUTO,
         1 << 20,
         1,
         "K and V in host memory: n_ctx 1048576 with 1 sequence(s) does not fit"},
        {{.gpu = 139 * GIB, .host = 300 * GIB}, SL_KV_GPU, 1 << 20, 1, "K and V on the GPU: n_ctx 1048576 with 1"},
        {{.gpu = 139 * GIB, .host = 300 * GIB}, SL_KV_HOST, 1 << 19, 6, "K and V in host memory: n_ctx 524288 with 6"},
        {{.gpu = 10 * GIB, .host = 300 * GIB}, SL_KV_AUTO, 4096, 1, "(17.00 GiB) leave 0.00"},
        {{.gpu = 80 * GIB, .host = 300 * GIB, .gpu_most = 1 * GIB}, SL_KV_AUTO, 1 << 18, 1, "leave 1.00"},
        {{.gpu = 80 * GIB, .host = 0}, SL_KV_AUTO, 1 << 20, 1, "128.00 GiB in host memory"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        sl_kv_demand d = llama8b;
        sl_kv_layout l;
        long long ctx[2], sequences[2];
        int n_ctx;
        d.n_ctx = cases[i].n_ctx, d.n_sequences = cases[i].n_sequences;
        int rc = sl_kv_place_rows(&d, &cases[i].room, cases[i].place, &l, &err);
        CHECK_INT(rc, SL_ERR_MEMORY);
        if (!strstr(err.message, cases[i].part)) FAIL("case %zu: \"%s\" lacks \"%s\"", i, err.message, cases[i].part);
        const char *limits = strstr(err.message, "GPU, n_ctx ");
        CHECK(limits);
        CHECK_INT(sscanf(limits, "GPU, n_ctx %lld fits, or %lld sequence(s) of %d; in host memory, n_ctx %lld, or %lld",
                         &ctx[0], &sequences[0], &n_ctx, &ctx[1], &sequences[1]),
                  5);
        check_limits(d, &cases[i].room, SL_KV_GPU, ctx[0], sequences[0]);
        check_limits(d, &cases[i].room, SL_KV_HOST, ctx[1], sequences[1]);
    }
}

static const test_case cases[] = {
    {"host-memory", 0, host_memory},
    {"places", 0, places},
    {"refusals", 0, refusals},
    {0},
};
const test_suite suite_kv_place = {"kv_place", cases};
