// engine/cli/bench/meter.h - what a machine says of itself while it is measured: joules, clocks, driver, and how fast it reads
// memory.
//
// On a GPU from NVML, where the driver's libnvidia-ml.so.1 can be loaded; on the CPU from RAPL, where the kernel lets this user
// read it. What is not there is absent, never an error and never a guess: NaN, 0 or "".
#ifndef SLEIGH_METER_H
#define SLEIGH_METER_H

#include "engine/base/error.h"

#include <stdint.h>

enum { CLI_MAX_PACKAGES = 16 };

typedef struct cli_meter_source {
    const char *pci_id;   // of the GPU, as CUDA names it; NULL: the CPU is measured
    const char *nvml;     // library; NULL: libnvidia-ml.so.1
    const char *powercap; // folder; NULL: /sys/class/powercap
} cli_meter_source;

typedef struct cli_meter {
    char driver[96]; // its version; "": none
    // GPU
    void *library, *gpu;
    int (*nvml_shutdown)(void);
    int (*nvml_energy)(void *gpu, unsigned long long *millijoules);
    int (*nvml_clock)(void *gpu, int type, unsigned *mhz);
    // CPU
    struct cli_rapl {
        char path[384];         // of its counter
        double last, wrap, sum; // microjoules; the counter begins anew at wrap
    } packages[CLI_MAX_PACKAGES];
    int n_packages;
} cli_meter;

void cli_meter_open(cli_meter *meter, const cli_meter_source *source);
void cli_meter_close(cli_meter *meter);
double cli_meter_joules(cli_meter *meter);                                   // since some moment; NaN: absent
void cli_meter_clocks(const cli_meter *meter, int *sm_mhz, int *memory_mhz); // of this moment; 0: absent

// GB/s at which n_threads of the CPU together read memory: the best of five passes over 512 MiB.
int cli_memory_rate(int n_threads, double *gb_s, sl_error *err);

#endif
