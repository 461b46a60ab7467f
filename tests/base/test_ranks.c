// tests/base/test_ranks.c - strings and shared memory between ranks. Each case runs this program again, as several ranks that
// run the same case.
#include "base/ranks.h"
#include "base/clock.h"
#include "base/local_ranks.h"
#include "base/shared_comm.h"
#include "tests/support/mpirun.h"
#include "tests/support/run_cli.h"

#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 3 };

static sl_error err;
static sl_ranks *ranks;

static void say(const char *text) {
    fprintf(stderr, "sleigh: error: %s\n", text);
}

static void end(int code) {
    _exit(code);
}

// 1: this process is a rank, and `ranks` is open. Else runs the case as n ranks.
static int is_rank(const char *name, int n) {
    char line[600], self[300];
    static const sl_ranks_end how = {say, end};
    if (sl_ranks_started() > 1) {
        CHECK_OK(sl_ranks_open(&how, &ranks, &err), err);
        CHECK_INT(sl_ranks_n(ranks), sl_ranks_started());
        CHECK_INT(sl_ranks_local(ranks), sl_ranks_rank(ranks)); // all are on this host
        return 1;
    }
    need_mpi();
    ssize_t size = readlink("/proc/self/exe", self, sizeof self - 1);
    CHECK(size > 0);
    self[size] = 0;
    snprintf(line, sizeof line, MPIRUN "-q -np %d '%s' ranks/%s", n, self, name);
    result r = RUN_SHELL(line, "");
    if (r.code) FAIL("exit code %d: %s%s", r.code, r.out, r.err);
    CHECK_INT(count_of(r.out, r.n_out, '\n') > 0, 1);
    CHECK_HAS(r.out, "1 passed, 0 failed, 0 skipped");
    return 0;
}

// Byte i of a string of a rank.
static char byte_of(int rank, size_t i) {
    return (char)(i * 31 + i / 4000 * 7 + (size_t)rank * 101);
}

static char *string_of(int rank, size_t n) {
    static char data[1 << 20];
    for (size_t i = 0; i < n; i++) data[i] = byte_of(rank, i);
    return data;
}

static void check_string(const sl_text *text, int rank, size_t n) {
    CHECK_INT(text->n, n);
    for (size_t i = 0; i < n; i++)
        if (text->data[i] != byte_of(rank, i)) FAIL("byte %zu of rank %d", i, rank);
}

// Around the size of a packet (4,000 bytes), empty, and many packets.
static void strings(void) {
    static const size_t sizes[] = {0, 1, 3999, 4000, 4001, 8000, 8001, 1000000};
    if (!is_rank("strings", MOST)) return;
    int rank = sl_ranks_rank(ranks);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        sl_text all[MOST] = {{0}}, text = {0};
        CHECK_OK(sl_ranks_share(ranks, string_of(rank, sizes[k]), sizes[k], all, &err), err);
        for (int i = 0; i < MOST; i++) check_string(&all[i], i, sizes[k]);
        CHECK_OK(sl_ranks_gather(ranks, string_of(rank + 5, sizes[k]), sizes[k], all, &err), err);
        for (int i = 0; i < MOST; i++) check_string(&all[i], rank ? i : i + 5, sizes[k]);
        CHECK_OK(sl_text_append(&text, string_of(rank, sizes[k]), sizes[k], &err), err);
        CHECK_OK(sl_ranks_broadcast(ranks, &text, &err), err);
        check_string(&text, 0, sizes[k]);
        for (int i = 0; i < MOST; i++) sl_text_free(&all[i]);
        sl_text_free(&text);
    }
    CHECK_OK(sl_ranks_close(ranks, &err), err);
}

// Strings that nobody waits for arrive in order; a call that does not wait gets none before it is sent.
static void order(void) {
    enum { N = 500 };
    if (!is_rank("order", 2)) return;
    int rank = sl_ranks_rank(ranks), other = !rank, got;
    sl_text text = {0};
    if (!rank) {
        CHECK_OK(sl_ranks_receive(ranks, other, 0, &text, &got, &err), err);
        CHECK_INT(got, 0);
        double start = sl_now_ms();
        CHECK_OK(sl_ranks_receive(ranks, other, 50, &text, &got, &err), err);
        CHECK_INT(got, 0);
        CHECK(sl_now_ms() - start > 49);
    }
    if (rank) // the first string of rank 1 follows one of rank 0
        CHECK_OK(sl_ranks_receive(ranks, other, -1, &text, &got, &err), err);
    else
        CHECK_OK(sl_ranks_send(ranks, other, "", 0, &err), err);
    for (int i = 0; i < N; i++)
        for (int to = 0; to < 2; to++) CHECK_OK(sl_ranks_send(ranks, to, string_of(rank, 9u * i), 9u * i, &err), err);
    for (int from = 0; from < 2; from++)
        for (int i = 0; i < N; i++) {
            CHECK_OK(sl_ranks_receive(ranks, from, -1, &text, &got, &err), err);
            CHECK_INT(got, 1);
            check_string(&text, from, 9u * i);
        }
    sl_text_free(&text);
    CHECK_OK(sl_ranks_close(ranks, &err), err);
}

// No rank passes a barrier before the last one has come.
static void barrier(void) {
    if (!is_rank("barrier", MOST)) return;
    double start = sl_now_ms();
    if (sl_ranks_rank(ranks) == 1) usleep(300000);
    CHECK_OK(sl_ranks_barrier(ranks, &err), err);
    CHECK(sl_now_ms() - start > 250);
    CHECK_OK(sl_ranks_close(ranks, &err), err);
}

static float number_of(int rank, size_t i) {
    return (float)(i % 9973) + 10000.0f * (float)rank;
}

// Around the size of a slot (262,144 floats), and many small exchanges in which one rank after the other comes late, so that
// the others sleep.
static void shared_memory(void) {
    enum { N = 4, LATE = 40 };
    static const size_t sizes[] = {1, 262144, 262145, 600001};
    static float part[600001], all[N * 600001];
    sl_comm *comm;
    if (!is_rank("shared_memory", N)) return;
    CHECK_OK(sl_shared_comm_open(ranks, 0, N, &comm, &err), err);
    CHECK_INT(comm->rank, sl_ranks_rank(ranks));
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes + LATE; k++) {
        size_t n = k < sizeof sizes / sizeof *sizes ? sizes[k] : 7;
        if (n == 7 && k % N == (size_t)comm->rank) usleep(5000);
        for (size_t i = 0; i < n; i++) part[i] = number_of(comm->rank, i + k);
        comm->all_gather(comm, part, n, all);
        for (int r = 0; r < N; r++)
            for (size_t i = 0; i < n; i++)
                if (all[(size_t)r * n + i] != number_of(r, i + k)) FAIL("exchange %zu: float %zu of rank %d", k, i, r);
        comm->broadcast(comm, part, n * sizeof *part);
        for (size_t i = 0; i < n; i++)
            if (part[i] != number_of(0, i + k)) FAIL("broadcast %zu: float %zu", k, i);
    }
    char *board = comm->board;
    CHECK((uintptr_t)board % SL_COMM_BOARD == 0);
    board[comm->rank * SL_COMM_BOARD] = (char)(comm->rank + 1);
    CHECK_OK(sl_ranks_barrier(ranks, &err), err);
    for (int r = 0; r < N; r++) CHECK(board[r * SL_COMM_BOARD] == r + 1 && board[(r + 1) * SL_COMM_BOARD - 1] == 0);
    CHECK_OK(sl_ranks_barrier(ranks, &err), err);
    sl_shared_comm_close(comm);
    CHECK_OK(sl_ranks_close(ranks, &err), err);
}

// ---- ranks without a launcher ----

static void say_in_file(const char *text) {
    spill(in_tmp("said"), text, strlen(text));
}

// Runs two ranks, which are copies of this process. Returns the exit code of the first one. ms: how long it ran
static int run_forked(void (*work)(int rank), double *ms) {
    static const sl_ranks_end how = {say_in_file, end};
    int status;
    double begin = sl_now_ms();
    in_tmp("said"); // makes the folder here
    pid_t pid = fork();
    if (!pid) {
        if (sl_ranks_fork(2, &how, &ranks, &err)) _exit(10);
        work(sl_ranks_rank(ranks));
        if (sl_ranks_close(ranks, &err)) _exit(11);
        _exit(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD ? 0 : 12); // else there is a zombie
    }
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    *ms = sl_now_ms() - begin;
    CHECK(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void nothing(int rank) {
    (void)rank;
}
static void leave(int rank) {
    if (rank) _exit(3);
}
static void die(int rank) {
    if (rank) raise(SIGKILL);
}
static void give_up(int rank) {
    sl_comm *comm;
    if (sl_shared_comm_open(ranks, 0, 2, &comm, &err)) _exit(13);
    if (rank) comm->fail(comm, "no part of a sum");
}

// The first rank reaps the others, and says at once how a rank ended that ends too early. A communicator ends all ranks.
static void forked(void) {
    static const struct {
        void (*work)(int rank);
        const char *text;
    } ends[] = {{leave, " has ended with exit code 3 before the end of the run"},
                {die, " was killed by signal 9 ("},
                {give_up, "): no part of a sum"}};
    size_t n;
    double ms;
    CHECK_INT(run_forked(nothing, &ms), 0);
    for (int i = 0; i < 3; i++) {
        double least = 1e9;
        for (int k = 0; k < 3; k++) { // a busy machine may delay some of them
            CHECK_INT(run_forked(ends[i].work, &ms), 1);
            const char *said = slurp(in_tmp("said"), &n);
            CHECK_HAS(said, "rank 1 of 2"); // the first rank may not know the host and the process yet
            CHECK_HAS(said, ends[i].text);
            if (ms < least) least = ms;
        }
        CHECK(least < 1000);
    }
}

static int test_until_done(sl_mpi *m, void *request) {
    int is_done = 0, rc = 0;
    while (!rc && !is_done) rc = m->test(&request, &is_done, NULL);
    return rc;
}

static int send_number(sl_mpi *m, int to, pid_t number) {
    void *request;
    m->isend(&number, sizeof number, m->byte, to, 0, m->world, &request);
    return test_until_done(m, request);
}

// The packets of a process that has ended arrive before the error, although it has left a packet unread.
static void last_packet(void) {
    sl_mpi local;
    int rank;
    pid_t pid, last;
    void *request;
    siginfo_t info;
    CHECK_OK(sl_local_ranks_start(2, &local, &err), err);
    local.comm_rank(local.world, &rank);
    if (rank) {
        send_number(&local, 0, getpid());
        send_number(&local, 0, 7);
        raise(SIGSTOP);
        _exit(0);
    }
    local.irecv(&pid, sizeof pid, local.byte, 1, 0, local.world, &request);
    CHECK_INT(test_until_done(&local, request), 0);
    CHECK_INT(send_number(&local, 1, 0), 0);
    local.irecv(&last, sizeof last, local.byte, 1, 0, local.world, &request);
    CHECK(!waitid(P_PID, (id_t)pid, &info, WSTOPPED)); // it has sent the second number
    CHECK(!kill(pid, SIGKILL) && !waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT));
    CHECK_INT(test_until_done(&local, request), 0);
    CHECK_INT(last, 7);
    CHECK(test_until_done(&local, request) != 0);
    sl_local_ranks_end(&local);
}

static void one_process(void) {
    CHECK_INT(sl_ranks_rank(NULL), 0);
    CHECK_INT(sl_ranks_n(NULL), 1);
    CHECK_INT(sl_ranks_local(NULL), 0);
    CHECK_OK(sl_ranks_close(NULL, &err), err);
}

static const test_case cases[] = {{"strings", NEEDS_NOTHING, strings},         {"order", NEEDS_NOTHING, order},
                                  {"barrier", NEEDS_NOTHING, barrier},         {"shared_memory", NEEDS_NOTHING, shared_memory},
                                  {"forked", NEEDS_NOTHING, forked},           {"last_packet", NEEDS_NOTHING, last_packet},
                                  {"one_process", NEEDS_NOTHING, one_process}, {0}};
extern const test_suite suite_ranks;
const test_suite suite_ranks = {"ranks", cases};
