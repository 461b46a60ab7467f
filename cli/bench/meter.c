// cli/bench/meter.c - see meter.h.
#include "cli/bench/meter.h"
#include "base/thread_pool.h"
#include "cli/process.h"

#include <dirent.h>
#include <dlfcn.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---- GPU: NVML, whose functions return 0 on success ----

enum { CLOCK_SM = 1, CLOCK_MEMORY = 2 }; // nvmlClockType_t

static void *symbol(const cli_meter *m, const char *name) {
    return dlsym(m->library, name);
}

static void open_nvml(cli_meter *m, const char *library, const char *pci_id) {
    int (*init)(void), (*version)(char *buf, unsigned size), (*by_pci)(const char *id, void **gpu);
    if (!(m->library = dlopen(library, RTLD_NOW | RTLD_LOCAL))) return;
    *(void **)&init = symbol(
        m, "nvmlInit_v2"); // the form that POSIX gives, because ISO C does not convert object pointers to function pointers
    *(void **)&version = symbol(m, "nvmlSystemGetDriverVersion");
    *(void **)&by_pci = symbol(m, "nvmlDeviceGetHandleByPciBusId_v2");
    *(void **)&m->nvml_shutdown = symbol(m, "nvmlShutdown");
    *(void **)&m->nvml_energy = symbol(m, "nvmlDeviceGetTotalEnergyConsumption");
    *(void **)&m->nvml_clock = symbol(m, "nvmlDeviceGetClockInfo");
    if (!init || !m->nvml_shutdown || init()) {
        dlclose(m->library);
        m->library = NULL;
        return;
    }
    if (version && version(m->driver, sizeof m->driver)) *m->driver = 0;
    if (!by_pci || by_pci(pci_id, &m->gpu)) m->gpu = NULL;
}

// ---- CPU: RAPL ----

static int read_line(const char *path, char *buf, int size) {
    FILE *f = fopen(path, "r");
    int ok = f && fgets(buf, size, f);
    if (f) fclose(f);
    if (ok) buf[strcspn(buf, "\n")] = 0;
    return ok;
}

static double read_number(const char *path) {
    char text[64], *end = text;
    double x = read_line(path, text, sizeof text) ? strtod(text, &end) : NAN;
    return end == text ? NAN : x;
}

// Adds a package. Skips its parts (names with two colons) and the platform zone, which would count the energy twice.
static void add_package(cli_meter *m, const char *folder, const char *zone) {
    const char *colon = strchr(zone, ':');
    struct cli_rapl *p = &m->packages[m->n_packages];
    char path[384], name[64];
    if (strncmp(zone, "intel-rapl:", 11) || strchr(colon + 1, ':') || m->n_packages == CLI_MAX_PACKAGES) return;
    snprintf(path, sizeof path, "%.200s/%.100s/name", folder, zone);
    if (!read_line(path, name, sizeof name) || strncmp(name, "package", 7)) return;
    snprintf(path, sizeof path, "%.200s/%.100s/max_energy_range_uj", folder, zone);
    p->wrap = read_number(path);
    snprintf(p->path, sizeof p->path, "%.200s/%.100s/energy_uj", folder, zone);
    p->last = read_number(p->path);
    p->sum = 0;
    m->n_packages += isfinite(p->last) && isfinite(p->wrap);
}

static void open_rapl(cli_meter *m, const char *folder) {
    DIR *dir = opendir(folder);
    if (!dir) return;
    for (const struct dirent *e; (e = readdir(dir));) add_package(m, folder, e->d_name);
    closedir(dir);
}

static double rapl_joules(cli_meter *m) {
    double sum = 0;
    for (int i = 0; i < m->n_packages; i++) {
        struct cli_rapl *p = &m->packages[i];
        double now = read_number(p->path);
        p->sum += now >= p->last ? now - p->last : now - p->last + p->wrap;
        p->last = now;
        sum += p->sum;
    }
    return m->n_packages ? sum * 1e-6 : NAN;
}

// ---- both ----

void cli_meter_open(cli_meter *m, const cli_meter_source *source) {
    *m = (cli_meter){0};
    if (source->pci_id)
        open_nvml(m, source->nvml ? source->nvml : "libnvidia-ml.so.1", source->pci_id);
    else
        open_rapl(m, source->powercap ? source->powercap : "/sys/class/powercap");
}

void cli_meter_close(cli_meter *m) {
    if (m->library) {
        m->nvml_shutdown();
        dlclose(m->library);
    }
    *m = (cli_meter){0};
}

double cli_meter_joules(cli_meter *m) {
    unsigned long long millijoules = 0;
    if (!m->library) return rapl_joules(m);
    return m->gpu && m->nvml_energy && m->nvml_energy(m->gpu, &millijoules) == 0 ? 1e-3 * (double)millijoules : NAN;
}

static int clock_of(const cli_meter *m, int type) {
    unsigned mhz = 0;
    return m->gpu && m->nvml_clock && m->nvml_clock(m->gpu, type, &mhz) == 0 ? (int)mhz : 0;
}

void cli_meter_clocks(const cli_meter *m, int *sm_mhz, int *memory_mhz) {
    *sm_mhz = clock_of(m, CLOCK_SM);
    *memory_mhz = clock_of(m, CLOCK_MEMORY);
}

// ---- memory ----

typedef struct pass {
    uint64_t *data;
    size_t n;
    int fill;
    _Atomic uint64_t sum;
} pass;

enum { PIECE = 1 << 17 }; // numbers that a thread reads at a time: 1 MiB

static void read_piece(void *ctx, size_t piece, int thread) {
    (void)thread;
    pass *p = ctx;
    uint64_t *data = p->data, x = 0;
    size_t end = (piece + 1) * PIECE < p->n ? (piece + 1) * PIECE : p->n;
    for (size_t i = piece * PIECE; i < end; i += 8) {
        if (p->fill)
            for (int j = 0; j < 8; j++) data[i + j] = i + j;
        else
            x += data[i] + data[i + 1] + data[i + 2] + data[i + 3] + data[i + 4] + data[i + 5] + data[i + 6] + data[i + 7];
    }
    atomic_fetch_add(&p->sum, x);
}

// Reads the data once and returns its sum. fill: writes it first, mostly from the threads that read it, so that memory lies on
// their sockets.
static uint64_t read_pass(uint64_t *data, size_t n, int fill) {
    pass p = {.data = data, .n = n, .fill = fill};
    sl_parallel((n + PIECE - 1) / PIECE, read_piece, &p);
    return p.sum;
}

int cli_memory_rate(int n_threads, double *gb_s, sl_error *err) {
    enum { PASSES = 5 };
    const size_t size = (size_t)512 << 20, n = size / sizeof(uint64_t); // several times the size of caches
    uint64_t *data = aligned_alloc(64, size);
    sl_threads *threads;
    *gb_s = 0;
    if (!data) return sl_fail(err, SL_ERR_MEMORY, "memory rate: out of memory: %zu MiB", size >> 20);
    int rc = sl_threads_open(n_threads, &threads, err);
    if (rc) {
        free(data);
        return rc;
    }
    sl_threads *outside = sl_threads_use(threads);
    read_pass(data, n, 1);
    for (int i = 0; i < PASSES; i++) {
        double start = sl_now_ms();
        uint64_t sum = read_pass(data, n, 0);
        double rate = (double)size / (sl_now_ms() - start) * 1e-6;
        SL_CHECK(sum == n / 2 * (n - 1)); // of 0 to n - 1
        if (rate > *gb_s) *gb_s = rate;
    }
    sl_threads_use(outside);
    sl_threads_close(threads);
    free(data);
    return 0;
}
