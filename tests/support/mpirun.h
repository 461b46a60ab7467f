// tests/support/mpirun.h - runs programs as several ranks with mpirun of Open MPI, also as root and on fewer cores than ranks.
#ifndef SLEIGH_TEST_MPIRUN_H
#define SLEIGH_TEST_MPIRUN_H

#include "base/mpi.h"
#include "tests/test.h"

#include <stdlib.h>

// The beginning of a line for run_shell; flags of mpirun and the program follow. Open MPI leaks memory at its end.
#define MPIRUN                                                                                                                 \
    "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0; "                           \
    "exec mpirun --oversubscribe --bind-to none "

static inline void need_mpi(void) {
    sl_mpi mpi;
    sl_error err;
    if (system("command -v mpirun >/dev/null") || sl_mpi_load(&mpi, &err)) TEST_SKIP("needs mpirun of Open MPI");
}

#endif
