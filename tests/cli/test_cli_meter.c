// tests/cli/test_cli_meter.c - cli/bench/meter.h with a fake RAPL folder, a fake NVML and a real GPU; the memory rate.
#include "cli/bench/meter.h"
#include "tests/support/run_cli.h"
#include "tests/support/gpu.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>

#ifdef SLEIGH_CUDA
#include "cli/bench/attn_timing.h"
#endif

static void zone(const char *name, const char *label, const char *energy) {
    char path[256];
    const struct {
        const char *file, *text;
    } files[] = {{"name", label}, {"energy_uj", energy}, {"max_energy_range_uj", "1000000000\n"}};
    snprintf(path, sizeof path, "%s/%s", test_tmp(), name);
    mkdir(path, 0700);
    for (int i = 0; i < 3; i++) {
        snprintf(path, sizeof path, "%s/%s/%s", test_tmp(), name, files[i].file);
        spill(path, files[i].text, strlen(files[i].text));
    }
}

// Only packages count, not their parts and not the platform.
static void rapl(void) {
    cli_meter m;
    int sm, memory;
    zone("intel-rapl:0", "package-0\n", "999000000\n");
    zone("intel-rapl:1", "package-1\n", "5000000\n");
    zone("intel-rapl:0:0", "core\n", "7000000\n");
    zone("intel-rapl:2", "psys\n", "9000000\n");
    const cli_meter_source source = {.powercap = test_tmp()};
    cli_meter_open(&m, &source);
    CHECK_INT(m.n_packages, 2);
    CHECK(cli_meter_joules(&m) == 0);
    zone("intel-rapl:1", "package-1\n", "6500000\n");
    CHECK_NEAR(cli_meter_joules(&m), 1.5, 1e-9);
    zone("intel-rapl:0", "package-0\n", "2000000\n"); // the counter restarted after 1000 J
    zone("intel-rapl:0:0", "core\n", "8000000\n");
    CHECK_NEAR(cli_meter_joules(&m), 1.5 + 3, 1e-9);
    cli_meter_clocks(&m, &sm, &memory);
    CHECK(sm == 0 && memory == 0 && !*m.driver);
    cli_meter_close(&m);
}

static void absent(void) {
    cli_meter m;
    int sm, memory;
    const cli_meter_source sources[] = {{.powercap = "/nowhere"}, {.pci_id = "0000:01:00.0", .nvml = "libsleigh-no-such.so.1"}};
    for (int i = 0; i < 2; i++) {
        cli_meter_open(&m, &sources[i]);
        CHECK(isnan(cli_meter_joules(&m)) && !*m.driver);
        cli_meter_clocks(&m, &sm, &memory);
        CHECK(sm == 0 && memory == 0);
        cli_meter_close(&m);
    }
}

// A library with NVML's functions that knows one GPU.
static void nvml(void) {
    static const char code[] =
        "#include <stdlib.h>\n"
        "#include <string.h>\n"
        "static int open_;\n"
        "int nvmlInit_v2(void) { open_++; return getenv(\"NVML_FAILS\") != NULL; }\n"
        "int nvmlShutdown(void) { open_--; return 0; }\n"
        "int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, \"580.1\", n); return open_ ? 0 : 1; }\n"
        "int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **gpu) {\n"
        "    *gpu = &open_; return strcmp(id, \"0000:01:00.0\") ? 6 : 0; }\n"
        "int nvmlDeviceGetTotalEnergyConsumption(void *gpu, unsigned long long *mj) {\n"
        "    static unsigned long long at = 1000; *mj = at += 250; return gpu == &open_ ? 0 : 2; }\n"
        "int nvmlDeviceGetClockInfo(void *gpu, int type, unsigned *mhz) {\n"
        "    *mhz = type == 1 ? 1980 : type == 2 ? 2619 : 0; return gpu == &open_ && *mhz ? 0 : 2; }\n";
    char command[512], library[256];
    cli_meter m;
    int sm, memory;
    snprintf(library, sizeof library, "%s", in_tmp("libnvml.so"));
    spill(in_tmp("nvml.c"), code, sizeof code - 1);
    snprintf(command, sizeof command, "${CC:-cc} -shared -fPIC -o %s %s 2>/dev/null", library, in_tmp("nvml.c"));
    if (system(command)) TEST_SKIP("needs a C compiler");
    cli_meter_source source = {.pci_id = "0000:01:00.0", .nvml = library};
    cli_meter_open(&m, &source);
    CHECK_STR(m.driver, "580.1");
    double before = cli_meter_joules(&m);
    CHECK_NEAR(cli_meter_joules(&m) - before, 0.25, 1e-9);
    cli_meter_clocks(&m, &sm, &memory);
    CHECK(sm == 1980 && memory == 2619);
    cli_meter_close(&m);
    source.pci_id = "0000:02:00.0"; // an unknown GPU
    cli_meter_open(&m, &source);
    cli_meter_clocks(&m, &sm, &memory);
    CHECK(isnan(cli_meter_joules(&m)) && sm == 0 && memory == 0 && !strcmp(m.driver, "580.1"));
    cli_meter_close(&m);
    setenv("NVML_FAILS", "1", 1);
    cli_meter_open(&m, &source);
    unsetenv("NVML_FAILS");
    CHECK(!m.library && isnan(cli_meter_joules(&m)));
}

static void rate(void) {
    double one = 1e9, two = 1e9;
    sl_error e;
    CHECK_OK(cli_memory_rate(1, &one, &e), e);
    CHECK_OK(cli_memory_rate(2, &two, &e), e);
    CHECK(one > 0.5 && two > 0.5 && one < 2000 && two < 5000); // plausible orders of magnitude
}

#ifdef SLEIGH_CUDA
static void gpu(void) {
    char id[32];
    double gb_s = 0;
    int sm, memory;
    sl_error e;
    cli_meter m;
    CHECK_OK(sl_bench_pci_id(0, id, sizeof id, &e), e);
    const cli_meter_source source = {.pci_id = id};
    cli_meter_open(&m, &source);
    if (!m.library) TEST_SKIP("no libnvidia-ml.so.1");
    double before = cli_meter_joules(&m);
    CHECK_OK(sl_bench_read_rate(0, &gb_s, &e), e);
    double joules = cli_meter_joules(&m) - before;
    cli_meter_clocks(&m, &sm, &memory);
    cli_meter_close(&m);
    if (!(gb_s > 100 && gb_s < 50000 && joules > 0 && joules < 10000 && sm > 100 && memory > 100))
        FAIL("%.0f GB/s, %.1f J, %d and %d MHz", gb_s, joules, sm, memory);
}
#endif

static const test_case cases[] = {
    {"rapl", 0, rapl}, {"absent", 0, absent}, {"nvml", 0, nvml}, {"rate", 0, rate}, WHOLE_GPU_CASE("gpu", gpu), {0},
};
extern const test_suite suite_cli_meter;
const test_suite suite_cli_meter = {"cli_meter", cases};
