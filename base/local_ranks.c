// base/local_ranks.c - see local_ranks.h.
//
// A packet of base/ranks.c is one message of a SOCK_SEQPACKET socket. Between two ranks there is one send and one receive at a
// time, so a request is a member of the connection to the other rank.
#include "base/local_ranks.h"
#include "base/clock.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { REAP_MS = 2000 }; // for all processes whose connections are closed: a GPU takes a while to end

typedef struct request {
    int fd, is_send;
    void *data;
    size_t n;
} request;

typedef struct local_ranks { // the communicator of the functions below
    int rank, n;
    request *requests; // [n][2], of the connection to each rank: send, receive
    pid_t *processes;  // [n] of the first rank: the processes of the others; 0: none, or it has ended and is reaped
} local_ranks;

// Returns 0 on success, as the functions of MPI do.
static int comm_rank(void *comm, int *rank) {
    *rank = ((const local_ranks *)comm)->rank;
    return 0;
}

static int comm_size(void *comm, int *size) {
    *size = ((const local_ranks *)comm)->n;
    return 0;
}

static int init_thread(int *argc, char ***argv, int required, int *provided) {
    (void)argc, (void)argv;
    *provided = required;
    return 0;
}

static int comm_set_errhandler(void *comm, void *handler) {
    (void)comm, (void)handler;
    return 0;
}

static int begin(void *comm, int peer, int is_send, void *data, int n, void **out) {
    request *r = &((local_ranks *)comm)->requests[2 * peer + !is_send];
    r->data = data, r->n = (size_t)n;
    *out = r;
    return 0;
}

static int isend(const void *data, int n, void *type, int to, int tag, void *comm, void **out) {
    (void)type, (void)tag;
    return begin(comm, to, 1, (void *)data, n, out); // the data are only read
}

static int irecv(void *data, int n, void *type, int from, int tag, void *comm, void **out) {
    (void)type, (void)tag;
    return begin(comm, from, 0, data, n, out);
}

// An error, or the end of the other process, is an error of the connection. If the other process has left packets unread, the
// system reports this once (ECONNRESET), before the packets that the other process has sent.
static int test(void **out, int *is_done, void *status) {
    (void)status;
    const request *r = *out;
    ssize_t n = r->is_send ? send(r->fd, r->data, r->n, MSG_DONTWAIT | MSG_NOSIGNAL) : recv(r->fd, r->data, r->n, MSG_DONTWAIT);
    *is_done = n > 0;
    if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))) return 0;
    return r->is_send || n == 0 || errno != ECONNRESET;
}

static int finalize(void) {
    return 0;
}

// ---- the ends of processes ----

// Reaps a rank's process. Without this call, it would be a zombie until the first rank ends. Returns 0 if the process has not
// ended, or if this is not the first rank.
static int reap(local_ranks *l, int rank, int *status) {
    pid_t done = l->processes[rank] ? waitpid(l->processes[rank], status, WNOHANG) : 0;
    if (done) l->processes[rank] = 0;
    return done > 0;
}

static int describe_end(void *comm, int rank, char *text, size_t size) {
    int status, is_known = reap(comm, rank, &status);
    if (!is_known)
        snprintf(text, size, "has closed its connection");
    else if (WIFSIGNALED(status))
        snprintf(text, size, "was killed by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
    else
        snprintf(text, size, "has ended with exit code %d", WEXITSTATUS(status));
    return is_known;
}

// ---- start ----

// fds: [n][n], fds[a][b] is rank a's end of the connection to rank b; 0: none
static int make_sockets(int n, int *fds, sl_error *err) {
    for (int a = 0; a < n; a++)
        for (int b = a + 1; b < n; b++) {
            int pair[2];
            if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
                return sl_fail(err, SL_ERR_IO, "a socket between two of %d ranks: %s", n, strerror(errno));
            fds[a * n + b] = pair[0], fds[b * n + a] = pair[1];
        }
    return 0;
}

static void close_others(int n, int rank, int *fds) { // the sockets of ranks but this one
    for (int i = 0; i < n * n; i++)
        if (i / n != rank && fds[i]) close(fds[i]), fds[i] = 0;
}

// Returns the rank of this process; negative: fork failed, and the ranks that were made before are killed. made: [n], zeros
static int make_processes(int n, pid_t *made) {
    pid_t first = getpid();
    for (int rank = 1; rank < n; rank++) {
        made[rank] = fork();
        if (made[rank] < 0) {
            while (--rank > 0) kill(made[rank], SIGKILL), waitpid(made[rank], NULL, 0);
            return -1;
        }
        if (made[rank]) continue;
        memset(made, 0, (size_t)n * sizeof *made);
        sigset_t interrupt;
        sigemptyset(&interrupt);
        sigaddset(&interrupt, SIGINT); // the first rank handles Ctrl+C for all
        sigprocmask(SIG_BLOCK, &interrupt, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != first) _exit(1); // the first rank ended before prctl
        return rank;
    }
    return 0;
}

int sl_local_ranks_start(int n, sl_mpi *out, sl_error *err) {
    int *fds = calloc((size_t)n * (size_t)n, sizeof *fds);
    local_ranks *l = calloc(1, sizeof *l);
    request *requests = calloc(2 * (size_t)n, sizeof *requests);
    pid_t *processes = calloc((size_t)n, sizeof *processes);
    int rc = fds && l && requests && processes ? make_sockets(n, fds, err)
                                               : sl_fail(err, SL_ERR_MEMORY, "%d ranks: out of memory", n);
    int rank = rc ? -1 : make_processes(n, processes);
    if (!rc && rank < 0) rc = sl_fail(err, SL_ERR_IO, "%d ranks: a process cannot be made: %s", n, strerror(errno));
    if (fds) close_others(n, rank, fds);
    if (rc) {
        free(fds), free(l), free(requests), free(processes);
        return rc;
    }
    for (int i = 0; i < 2 * n; i++) requests[i] = (request){.fd = fds[rank * n + i / 2], .is_send = i % 2 == 0};
    *l = (local_ranks){.rank = rank, .n = n, .requests = requests, .processes = processes};
    free(fds);
    *out = (sl_mpi){.world = l,
                    .init_thread = init_thread,
                    .comm_rank = comm_rank,
                    .comm_size = comm_size,
                    .comm_set_errhandler = comm_set_errhandler,
                    .isend = isend,
                    .irecv = irecv,
                    .test = test,
                    .finalize = finalize,
                    .describe_end = describe_end};
    return 0;
}

void sl_local_ranks_end(sl_mpi *mpi) {
    local_ranks *l = mpi->world;
    int status, left = 1;
    for (int peer = 0; peer < l->n; peer++)
        if (peer != l->rank) close(l->requests[2 * peer].fd);
    for (double until = sl_now_ms() + REAP_MS; left && sl_now_ms() < until;) {
        left = 0;
        for (int peer = 0; peer < l->n; peer++) reap(l, peer, &status), left |= l->processes[peer] != 0;
        if (left) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
    free(l->requests), free(l->processes), free(l);
    *mpi = (sl_mpi){0};
}
