// base/mpi.c - see mpi.h.
#include "base/mpi.h"

#include <dlfcn.h>
#include <stddef.h>

static const char library[] = "libmpi.so.40";

int sl_mpi_load(sl_mpi *out, sl_error *err) {
    const struct {
        const char *name;
        void *to;
    } symbols[] = {{"ompi_mpi_comm_world", &out->world},
                   {"ompi_mpi_byte", &out->byte},
                   {"ompi_mpi_errors_return", &out->errors_return},
                   {"MPI_Init_thread", &out->init_thread},
                   {"MPI_Comm_rank", &out->comm_rank},
                   {"MPI_Comm_size", &out->comm_size},
                   {"MPI_Comm_set_errhandler", &out->comm_set_errhandler},
                   {"MPI_Isend", &out->isend},
                   {"MPI_Irecv", &out->irecv},
                   {"MPI_Test", &out->test},
                   {"MPI_Finalize", &out->finalize}};
    void *lib = dlopen(library, RTLD_NOW | RTLD_GLOBAL); // global: Open MPI loads parts that need its symbols
    if (!lib)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "several ranks need the library of Open MPI (Debian: apt-get install openmpi-bin): %s", dlerror());
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *symbol = dlsym(lib, symbols[i].name);
        if (!symbol) return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: expected Open MPI, which has %s", library, symbols[i].name);
        *(void **)symbols[i].to = symbol;
    }
    return 0;
}
