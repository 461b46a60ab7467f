// base/mpi.h - the functions of Open MPI that ranks.c calls, loaded at run time.
//
// The build needs no header of MPI, and a binary runs without the library. Handles of Open MPI are addresses of symbols
// (ompi_mpi_comm_world), and its library has had the name libmpi.so.40 since version 4. Another MPI has a library of another
// name and other handles, so it is not found.
#ifndef SLEIGH_MPI_H
#define SLEIGH_MPI_H

#include "base/error.h"

enum { SL_MPI_FUNNELED = 1 }; // MPI_THREAD_FUNNELED: only the thread that called MPI_Init_thread calls MPI

// The members have the names and arguments of MPI's functions. MPI_Comm, MPI_Datatype, MPI_Errhandler and MPI_Request are
// pointers. A NULL status is MPI_STATUS_IGNORE. A result other than 0 is an error.
typedef struct sl_mpi {
    void *world, *byte, *errors_return;
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*comm_rank)(void *comm, int *rank);
    int (*comm_size)(void *comm, int *size);
    int (*comm_set_errhandler)(void *comm, void *handler);
    int (*isend)(const void *data, int n, void *type, int to, int tag, void *comm, void **request);
    int (*irecv)(void *data, int n, void *type, int from, int tag, void *comm, void **request);
    int (*test)(void **request, int *is_done, void *status);
    int (*finalize)(void);
    // Not a function of MPI; NULL with MPI. Writes how the process of a rank has ended ("was killed by signal 9"), as the end
    // of a sentence about this rank. Returns 0 if this is not known, or not yet; the text is then about the connection.
    int (*describe_end)(void *comm, int rank, char *text, size_t size);
} sl_mpi;

// SL_ERR_UNSUPPORTED: the library is missing, or lacks a symbol.
int sl_mpi_load(sl_mpi *out, sl_error *err);

#endif
