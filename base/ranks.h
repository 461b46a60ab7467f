// base/ranks.h - the processes of one run, its ranks. mpirun or srun starts them, and MPI connects them; or the first one
// starts the others on this host, and sockets connect them (base/local_ranks.h). Ranks send byte strings to each other. Ranks
// that share a model exchange their data in another way (base/comm.h).
//
// One thread of each rank makes all calls of MPI. It tells the other ranks each second that this rank lives. When a rank fails,
// or gives no sign of life for SL_RANKS_SILENCE_MS, all other ranks end, and one of them prints the reason. A signal that stops
// the process (SIGSTOP), its death, and a lost connection are silence. A rank that computes for ever is not
// silent, so nobody notices it.
#ifndef SLEIGH_RANKS_H
#define SLEIGH_RANKS_H

#include "base/arrays.h"
#include "base/error.h"

enum {
    SL_RANKS_SILENCE_MS = 5000,
    SL_RANKS_START_MS = 60000, // within which all ranks must have started
    SL_RANKS_NAME = 160,       // bytes of a rank's name
};

// NULL in place of a sl_ranks: a run of one process, rank 0 of 1.
typedef struct sl_ranks sl_ranks;

// What a rank calls when the run ends early, in any thread.
typedef struct sl_ranks_end {
    void (*say)(const char *text); // prints the reason of the whole run
    void (*end)(int code);         // ends the process with this exit code at once; does not return
} sl_ranks_end;

int sl_ranks_started(void); // how many ranks the launcher of this process has started; 1: no launcher
// Connects this process with all other ranks. SL_ERR_UNSUPPORTED: there is no Open MPI, or the launcher is not of Open MPI.
int sl_ranks_open(const sl_ranks_end *end, sl_ranks **out, sl_error *err);
// Starts n - 1 further ranks as copies of this process (fork), and connects them. The call returns in all n processes, rank 0
// being the caller. The process has one thread and no GPU in use. The other ranks end with the caller, and get no Ctrl+C.
int sl_ranks_fork(int n, const sl_ranks_end *end, sl_ranks **out, sl_error *err);
// Waits until every rank has called it, and frees *r. After an error, call sl_ranks_fail.
int sl_ranks_close(sl_ranks *r, sl_error *err);
// Ends all ranks with this exit code. One of them prints the reason: this rank's name and the text, or that of a rank that
// failed before.
_Noreturn void sl_ranks_fail(sl_ranks *r, int code, const char *text);

int sl_ranks_rank(const sl_ranks *r);
int sl_ranks_n(const sl_ranks *r);
int sl_ranks_local(const sl_ranks *r); // the number of lower ranks on this host
int sl_ranks_same_host(const sl_ranks *r, int a, int b);
const char *sl_ranks_name(const sl_ranks *r, int rank); // "rank 1 of 2 (host, process 123)"

// ---- byte strings; those from one rank to another one arrive in order ----

// Copies the string and returns before it has arrived. A rank may send to itself.
int sl_ranks_send(sl_ranks *r, int to, const void *data, size_t n, sl_error *err);
// Replaces *out by the next string from a rank. wait_ms: how long to wait for one; negative: no limit. *got: 0: there is none.
int sl_ranks_receive(sl_ranks *r, int from, double wait_ms, sl_text *out, int *got, sl_error *err);

// All ranks must make these calls in the same order, and none of them may have sent a string that is not received.
int sl_ranks_share(sl_ranks *r, const void *data, size_t n, sl_text *all, sl_error *err);  // all: [n], the strings of all ranks
int sl_ranks_gather(sl_ranks *r, const void *data, size_t n, sl_text *all, sl_error *err); // only rank 0 gets them
int sl_ranks_broadcast(sl_ranks *r, sl_text *text, sl_error *err); // rank 0's text replaces that of the others
int sl_ranks_barrier(sl_ranks *r, sl_error *err);

#endif
