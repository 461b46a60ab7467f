// cli/bench/meter.h - energy, clocks and driver of the measured machine, and its memory rate.
//
// GPU: from NVML, if the driver's libnvidia-ml.so.1 can be loaded. CPU: from RAPL, if this user may read it. A missing value is
// NaN, 0 or "", never an error or a guess.
#ifndef SLEIGH_METER_H
#define SLEIGH_METER_H

#include "base/error.h"

#include <stdint.h>

enum { CLI_MAX_PACKAGES = 16 };

typedef struct cli_meter_source {
    const char *pci_id;   // PCI id of the GPU, as CUDA writes it; NULL: measure the CPU
    const char *nvml;     // library file; NULL: libnvidia-ml.so.1
    const char *powercap; // RAPL folder; NULL: /sys/class/powercap
} cli_meter_source;

typedef struct cli_meter {
    char driver[96]; // version; "": none
    // GPU
    void *library, *gpu;
    int (*nvml_shutdown)(void);
    int (*nvml_energy)(void *gpu, unsigned long long *millijoules);
    int (*nvml_clock)(void *gpu, int type, unsigned *mhz);
    // CPU
    struct cli_rapl {
        char path[384];         // file of the counter
        double last, wrap, sum; // microjoules; the counter restarts at 0 after `wrap`
    } packages[CLI_MAX_PACKAGES];
    int n_packages;
} cli_meter;

void cli_meter_open(cli_meter *meter, const cli_meter_source *source);
void cli_meter_close(cli_meter *meter);
double cli_meter_joules(cli_meter *meter);                                   // since an arbitrary moment; NaN: unknown
void cli_meter_clocks(const cli_meter *meter, int *sm_mhz, int *memory_mhz); // current clocks; 0: unknown

// GB/s at which n_threads CPU threads together read memory: the best of five passes over 512 MiB.
int cli_memory_rate(int n_threads, double *gb_s, sl_error *err);

#endif
