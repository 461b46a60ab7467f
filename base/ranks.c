// base/ranks.c - see ranks.h.
//
// A string travels in packets of at most PACKET bytes, one at a time between two ranks. MPI sends packets of this size at once:
// the sender does not wait for the receiver, and vader (shared memory) needs no rights to read another process. The size of a
// message is in the packet, so the receiver needs no MPI_Status, whose layout differs between libraries.
#include "base/ranks.h"
#include "base/clock.h"
#include "base/local_ranks.h"
#include "base/mpi.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    PACKET = 4000,
    BEAT_MS = 1000,
    TURN_MS = 20,     // between two looks of the thread at its connections
    WAIT_TURN_MS = 1, // the same while a call waits for a string
    FLUSH_MS = 500,   // for the last packets of a rank that ends
    GRACE_MS = 2000,  // within which the rank that has to end the run must do so, before another one does
    CLOSE_MS = 8000,  // of MPI_Finalize
};

enum { BEAT, PART, LAST, FAILED, END, BYE }; // kinds of packets: PART and LAST carry a string, BYE is the last packet of a rank

typedef struct packet {
    uint32_t kind, n;
    int32_t code; // of FAILED and END: the exit code
    char data[PACKET];
} packet;

typedef struct message {
    struct message *next;
    uint32_t kind;
    int32_t code;
    size_t n, at; // at: bytes that are in packets
    char data[];
} message;

typedef struct queue {
    message *first, *last;
} queue;

typedef struct peer { // the connection to another rank; of this rank itself only `in` is in use
    packet from, to;
    void *receiving, *sending; // requests of MPI
    int is_receiving, is_sending, has_left, is_lost;
    queue out, in;
    sl_text partial;     // the string whose last packet has not arrived
    double heard, spoke; // times of the last packets
    char host[65];
    long process;
} peer;

enum { STARTING, READY, BROKEN, FINALIZING, DONE };

struct sl_ranks {
    sl_ranks_end how;
    sl_mpi mpi;   // or what takes its place
    int is_local; // 1: the first rank has started the others
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t work, news; // for the thread; for calls that wait
    int state, is_closing, n_waiting;
    sl_error why; // of BROKEN
    int rank, n;
    peer *peers;     // [n]
    double turned;   // time of the thread's last turn
    double fails_at; // this rank has failed and prints its text itself at this time; 0: it has not failed
    message *failure;
};

int sl_ranks_rank(const sl_ranks *r) {
    return r ? r->rank : 0;
}

int sl_ranks_n(const sl_ranks *r) {
    return r ? r->n : 1;
}

int sl_ranks_local(const sl_ranks *r) {
    int n = 0;
    for (int i = 0; r && i < r->rank; i++) n += !strcmp(r->peers[i].host, r->peers[r->rank].host);
    return n;
}

int sl_ranks_same_host(const sl_ranks *r, int a, int b) {
    return !strcmp(r->peers[a].host, r->peers[b].host);
}

const char *sl_ranks_name(const sl_ranks *r, int rank) {
    static _Thread_local char text[SL_RANKS_NAME];
    const peer *p = &r->peers[rank];
    int n = snprintf(text, sizeof text, "rank %d of %d", rank, r->n);
    if (p->process) snprintf(text + n, sizeof text - (size_t)n, " (%s, process %ld)", p->host, p->process);
    return text;
}

// ---- queues ----

static message *new_message(uint32_t kind, int code, const void *data, size_t n) {
    message *m = malloc(sizeof *m + n);
    if (!m) return NULL;
    *m = (message){.kind = kind, .code = code, .n = n};
    if (n) memcpy(m->data, data, n);
    return m;
}

static void push(queue *q, message *m) {
    if (q->last)
        q->last->next = m;
    else
        q->first = m;
    q->last = m;
}

static message *pop(queue *q) {
    message *m = q->first;
    q->first = m->next;
    if (!q->first) q->last = NULL;
    return m;
}

// ---- the thread: packets ----

static void report(sl_ranks *r, int code, const char *text);

// Notes that nothing can be sent to a rank any more. Receiving goes on, because the other rank may have sent FAILED or END
// before its own end. check_silence ends the run soon, but not at once: if the other rank has ended the run, the launcher, or
// the first rank, ends this one. The first of local ranks ends the run in its next turn, which receives first.
static void lose(const sl_ranks *r, peer *p) {
    int is_first = r->is_local && r->rank == 0;
    double soon = sl_now_ms() - SL_RANKS_SILENCE_MS + (is_first ? 0 : GRACE_MS);
    p->is_sending = 0;
    p->is_lost = 1;
    if (p->heard > soon) p->heard = soon;
}

static void post(sl_ranks *r, int rank) {
    peer *p = &r->peers[rank];
    p->is_receiving = 1;
    if (!r->mpi.irecv(&p->from, (int)sizeof p->from, r->mpi.byte, rank, 0, r->mpi.world, &p->receiving)) return;
    p->is_receiving = 0;
    lose(r, p);
}

static void take(sl_ranks *r, int rank) {
    peer *p = &r->peers[rank];
    const packet *f = &p->from;
    message *m = NULL;
    switch (f->kind) {
    case PART:
    case LAST:
        if (sl_text_append(&p->partial, f->data, f->n, NULL) ||
            (f->kind == LAST && !(m = new_message(LAST, 0, p->partial.data, p->partial.n))))
            report(r, 1, "a string from another rank: out of memory");
        if (!m) break;
        push(&p->in, m);
        p->partial.n = 0;
        break;
    case FAILED:
        report(r, f->code, f->data);
        break;
    case END:
        r->how.end(f->code);
        break;
    case BYE:
        p->has_left = 1;
    }
}

static int receive_packets(sl_ranks *r, int rank) {
    peer *p = &r->peers[rank];
    int moved = 0, is_done = 0;
    while (p->is_receiving) {
        if (r->mpi.test(&p->receiving, &is_done, NULL)) {
            p->is_receiving = 0;
            return lose(r, p), moved;
        }
        if (!is_done) break;
        moved = 1, p->is_receiving = 0;
        if (!p->is_lost) p->heard = sl_now_ms();
        take(r, rank);
        if (!p->has_left) post(r, rank);
    }
    return moved;
}

// Fills the next packet. 0: there is nothing to say.
static int next_packet(sl_ranks *r, peer *p) {
    message *m = p->out.first;
    if (!m) {
        p->to.kind = BEAT, p->to.n = 0;
        return !r->is_closing && sl_now_ms() - p->spoke >= BEAT_MS;
    }
    size_t n = m->n - m->at < PACKET ? m->n - m->at : PACKET;
    memcpy(p->to.data, m->data + m->at, n);
    m->at += n;
    p->to.kind = m->kind == LAST && m->at < m->n ? PART : m->kind;
    p->to.n = (uint32_t)n, p->to.code = m->code;
    if (m->at == m->n) free(pop(&p->out));
    return 1;
}

static int send_packets(sl_ranks *r, int rank) {
    peer *p = &r->peers[rank];
    int moved = 0, is_done;
    for (;;) {
        if (p->is_sending) {
            if (r->mpi.test(&p->sending, &is_done, NULL)) return lose(r, p), moved;
            if (!is_done) return moved;
            p->is_sending = 0, p->spoke = sl_now_ms(), moved = 1;
        }
        if (p->is_lost || !next_packet(r, p)) return moved;
        int size = (int)(offsetof(packet, data) + p->to.n);
        p->is_sending = 1;
        if (r->mpi.isend(&p->to, size, r->mpi.byte, rank, 0, r->mpi.world, &p->sending)) return lose(r, p), moved;
    }
}

// ---- the thread: the end of a run ----

static void pause_ms(double ms) {
    nanosleep(&(struct timespec){.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms * 1e6) % 1000000000}, NULL);
}

// Prints the text and ends all ranks.
static void report(sl_ranks *r, int code, const char *text) {
    double until = sl_now_ms() + FLUSH_MS;
    int left = 1;
    r->how.say(text);
    for (int i = 0; i < r->n; i++) {
        message *m = i != r->rank ? new_message(END, code, NULL, 0) : NULL;
        if (m) push(&r->peers[i].out, m);
    }
    while (left && sl_now_ms() < until) {
        left = 0;
        for (int i = 0; i < r->n; i++) {
            if (i == r->rank) continue;
            if (!r->peers[i].has_left) send_packets(r, i);
            left |= r->peers[i].is_sending;
        }
        if (left) pause_ms(1);
    }
    r->how.end(code);
}

// Ends the run if a rank is silent. The lowest rank that lives reports it; the others wait for its END.
static void check_silence(sl_ranks *r, double now) {
    char text[SL_RANKS_NAME + 160], how[100];
    int lost = 0, lowest = 0, is_early;
    while (lost < r->n && (lost == r->rank || r->peers[lost].has_left || now - r->peers[lost].heard <= SL_RANKS_SILENCE_MS))
        lost++;
    if (lost == r->n) return;
    while (lowest < r->rank && now - r->peers[lowest].heard > SL_RANKS_SILENCE_MS) lowest++;
    is_early = now - r->peers[lost].heard < SL_RANKS_SILENCE_MS + GRACE_MS;
    if (lowest < r->rank && is_early) return;
    if (r->mpi.describe_end && r->peers[lost].is_lost) {
        if (!r->mpi.describe_end(r->mpi.world, lost, how, sizeof how) && is_early) return; // the process has not ended yet
        snprintf(text, sizeof text, "%s %s before the end of the run", sl_ranks_name(r, lost), how);
    } else
        snprintf(text, sizeof text, "%s has given no sign of life for %d s: it was killed or stopped, or cannot be reached",
                 sl_ranks_name(r, lost), SL_RANKS_SILENCE_MS / 1000);
    report(r, 1, text);
}

// Ends the run if another rank is silent, or this one has failed. now: the begin of the turn. The process may have been stopped
// since.
static void check_run(sl_ranks *r, double now) {
    check_silence(r, now);
    if (!r->failure) return;
    if (!r->fails_at) { // rank 0 speaks for all, so that only one rank prints
        message *m = r->rank ? new_message(FAILED, r->failure->code, r->failure->data, r->failure->n) : NULL;
        r->fails_at = m ? now + GRACE_MS : now;
        if (m) push(&r->peers[0].out, m);
    }
    if (now >= r->fails_at) report(r, r->failure->code, r->failure->data);
}

// ---- the thread: turns ----

static int is_over(const sl_ranks *r) {
    for (int i = 0; i < r->n; i++)
        if (i != r->rank &&
            (!r->peers[i].has_left || r->peers[i].is_sending || (r->peers[i].out.first && !r->peers[i].is_lost)))
            return 0;
    return r->is_closing;
}

// Waits with r->lock; ms negative: no limit.
static void wait_for(sl_ranks *r, pthread_cond_t *what, double ms) {
    struct timespec t;
    if (ms < 0) {
        pthread_cond_wait(what, &r->lock);
        return;
    }
    clock_gettime(CLOCK_MONOTONIC, &t);
    long long ns = t.tv_nsec + (long long)(ms * 1e6);
    t.tv_sec += (time_t)(ns / 1000000000), t.tv_nsec = (long)(ns % 1000000000);
    pthread_cond_timedwait(what, &r->lock, &t);
}

static void turn(sl_ranks *r) {
    double now = sl_now_ms();
    int moved = 0;
    if (now - r->turned > SL_RANKS_SILENCE_MS / 2) // this process was stopped, so the others could not be heard
        for (int i = 0; i < r->n; i++) r->peers[i].heard = now;
    r->turned = now;
    for (int i = 0; i < r->n; i++)
        if (i != r->rank) {
            moved |= receive_packets(r, i);
            moved |= send_packets(r, i);
        }
    check_run(r, now);
    if (moved) {
        pthread_cond_broadcast(&r->news);
        pthread_mutex_unlock(&r->lock); // for the calls that wait
        pthread_mutex_lock(&r->lock);
    } else {
        wait_for(r, &r->work, r->n_waiting ? WAIT_TURN_MS : TURN_MS);
    }
}

static int start_mpi(sl_ranks *r, sl_error *err) {
    int level, n = 0, rc = r->is_local ? 0 : sl_mpi_load(&r->mpi, err);
    if (rc) return rc;
    if (r->mpi.init_thread(NULL, NULL, SL_MPI_FUNNELED, &level) || r->mpi.comm_rank(r->mpi.world, &r->rank) ||
        r->mpi.comm_size(r->mpi.world, &n) || r->mpi.comm_set_errhandler(r->mpi.world, r->mpi.errors_return))
        return sl_fail(err, SL_ERR_IO, "Open MPI cannot start");
    if (n != r->n)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "the launcher has started %d ranks, and Open MPI connects %d; use mpirun of Open MPI, or srun with PMIx",
                       r->n, n);
    return 0;
}

static void *serve(void *ctx) {
    sl_ranks *r = ctx;
    int rc = start_mpi(r, &r->why);
    pthread_mutex_lock(&r->lock);
    r->turned = sl_now_ms();
    for (int i = 0; i < r->n; i++) r->peers[i].heard = r->turned;
    for (int i = 0; !rc && i < r->n; i++)
        if (i != r->rank) post(r, i);
    r->state = rc ? BROKEN : READY;
    pthread_cond_broadcast(&r->news);
    while (!rc && !is_over(r)) turn(r);
    if (!rc) {
        r->state = FINALIZING;
        pthread_cond_broadcast(&r->news);
        pthread_mutex_unlock(&r->lock);
        r->mpi.finalize();
        pthread_mutex_lock(&r->lock);
        r->state = DONE;
        pthread_cond_broadcast(&r->news);
    }
    pthread_mutex_unlock(&r->lock);
    return NULL;
}

// ---- start and end ----

static int number_of(const char *variable) {
    const char *text = getenv(variable);
    return text ? atoi(text) : 0;
}

int sl_ranks_started(void) {
    int n = number_of("OMPI_COMM_WORLD_SIZE");
    if (n < 1) n = number_of("PMI_SIZE"); // another MPI; sl_ranks_open refuses its launchers
    if (n < 1) n = number_of("SLURM_STEP_NUM_TASKS");
    return n > 1 ? n : 1;
}

static int start_thread(sl_ranks *r) {
    pthread_condattr_t attr;
    sigset_t all, before;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->work, &attr);
    pthread_cond_init(&r->news, &attr);
    pthread_condattr_destroy(&attr);
    sigfillset(&all); // signals of other processes are for the thread of the command
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&r->thread, NULL, serve, r);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed;
}

static void free_ranks(sl_ranks *r) {
    for (int i = 0; i < r->n; i++) {
        while (r->peers[i].in.first) free(pop(&r->peers[i].in));
        while (r->peers[i].out.first) free(pop(&r->peers[i].out));
        sl_text_free(&r->peers[i].partial);
    }
    free(r->peers);
    free(r);
}

// Tells each rank the hosts and processes of all ranks.
static int share_names(sl_ranks *r, sl_error *err) {
    char mine[128] = "";
    sl_text *all = calloc((size_t)r->n, sizeof *all);
    if (!all) return sl_fail(err, SL_ERR_MEMORY, "%d ranks: out of memory", r->n);
    gethostname(mine, 64);
    size_t n = strlen(mine);
    snprintf(mine + n, sizeof mine - n, " %ld", (long)getpid());
    int rc = sl_ranks_share(r, mine, strlen(mine), all, err);
    pthread_mutex_lock(&r->lock); // the thread reads the names
    for (int i = 0; !rc && i < r->n; i++) sscanf(all[i].data, "%64s %ld", r->peers[i].host, &r->peers[i].process);
    pthread_mutex_unlock(&r->lock);
    for (int i = 0; i < r->n; i++) sl_text_free(&all[i]);
    free(all);
    return rc;
}

// local: what takes the place of MPI; NULL: MPI
static int open_ranks(int n, const sl_ranks_end *how, const sl_mpi *local, sl_ranks **out, sl_error *err) {
    int rc = 0;
    double until = sl_now_ms() + SL_RANKS_START_MS;
    sl_ranks *r = calloc(1, sizeof *r);
    peer *peers = calloc((size_t)n, sizeof *peers);
    if (r && local) r->mpi = *local, r->is_local = 1;
    if (!r || !peers || (r->how = *how, r->n = n, r->peers = peers, start_thread(r))) {
        free(r), free(peers);
        return sl_fail(err, SL_ERR_MEMORY, "%d ranks: out of memory", n);
    }
    pthread_mutex_lock(&r->lock);
    while (r->state == STARTING && sl_now_ms() < until) wait_for(r, &r->news, 1000);
    if (r->state == BROKEN) *err = r->why, rc = err->code;
    if (r->state == STARTING)
        rc = sl_fail(err, SL_ERR_IO, "%s has not connected %d ranks within %d s: has each of them started?",
                     local ? "the first rank" : "Open MPI", n, SL_RANKS_START_MS / 1000);
    pthread_mutex_unlock(&r->lock);
    if (!rc) rc = share_names(r, err);
    if (!rc) *out = r; // else the process ends, and with it the thread
    return rc;
}

int sl_ranks_open(const sl_ranks_end *how, sl_ranks **out, sl_error *err) {
    return open_ranks(sl_ranks_started(), how, NULL, out, err);
}

int sl_ranks_fork(int n, const sl_ranks_end *how, sl_ranks **out, sl_error *err) {
    sl_mpi local;
    pid_t first = getpid();
    int rc = sl_local_ranks_start(n, &local, err);
    if (!rc) rc = open_ranks(n, how, &local, out, err);
    if (rc && getpid() != first) _exit(1); // only the first rank prints
    return rc;
}

int sl_ranks_close(sl_ranks *r, sl_error *err) {
    int rc = r ? sl_ranks_barrier(r, err) : 0; // a rank that waits for the others still watches them
    if (rc || !r) return rc;
    pthread_mutex_lock(&r->lock);
    for (int i = 0; i < r->n; i++) {
        message *m = i != r->rank ? new_message(BYE, 0, NULL, 0) : NULL;
        if (m) push(&r->peers[i].out, m);
    }
    r->is_closing = 1;
    pthread_cond_signal(&r->work);
    while (r->state < FINALIZING) wait_for(r, &r->news, -1);
    for (double until = sl_now_ms() + CLOSE_MS; r->state < DONE && sl_now_ms() < until;) wait_for(r, &r->news, 1000);
    if (r->state < DONE) {
        r->how.say(r->is_local ? "another rank has not ended" : "the end of Open MPI waits for another rank");
        r->how.end(1);
    }
    pthread_mutex_unlock(&r->lock);
    pthread_join(r->thread, NULL);
    if (r->is_local) sl_local_ranks_end(&r->mpi);
    free_ranks(r);
    return 0;
}

void sl_ranks_fail(sl_ranks *r, int code, const char *text) {
    char named[PACKET];
    snprintf(named, sizeof named, "%s: %s", sl_ranks_name(r, r->rank), text);
    pthread_mutex_lock(&r->lock);
    if (!r->failure) r->failure = new_message(FAILED, code, named, strlen(named) + 1);
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    pause_ms(2 * GRACE_MS); // the thread ends the process
    r->how.say(named);
    r->how.end(code);
    abort();
}

// ---- strings ----

int sl_ranks_send(sl_ranks *r, int to, const void *data, size_t n, sl_error *err) {
    message *m = new_message(LAST, 0, data, n);
    if (!m) return sl_fail(err, SL_ERR_MEMORY, "a string for another rank: out of memory");
    pthread_mutex_lock(&r->lock);
    push(to == r->rank ? &r->peers[to].in : &r->peers[to].out, m);
    pthread_cond_signal(&r->work);
    pthread_mutex_unlock(&r->lock);
    return 0;
}

int sl_ranks_receive(sl_ranks *r, int from, double wait_ms, sl_text *out, int *got, sl_error *err) {
    double until = sl_now_ms() + wait_ms, left;
    queue *in = &r->peers[from].in;
    pthread_mutex_lock(&r->lock);
    r->n_waiting++;
    while (!in->first && wait_ms != 0 && (left = wait_ms < 0 ? -1 : until - sl_now_ms(), left < 0 ? wait_ms < 0 : left > 0)) {
        pthread_cond_signal(&r->work);
        wait_for(r, &r->news, left);
    }
    r->n_waiting--;
    message *m = in->first ? pop(in) : NULL;
    pthread_mutex_unlock(&r->lock);
    *got = m != NULL;
    out->n = 0;
    int rc = m ? sl_text_append(out, m->data, m->n, err) : 0;
    free(m);
    return rc;
}

static int receive(sl_ranks *r, int from, sl_text *out, sl_error *err) {
    int got;
    return sl_ranks_receive(r, from, -1, out, &got, err);
}

int sl_ranks_share(sl_ranks *r, const void *data, size_t n, sl_text *all, sl_error *err) {
    int rc = 0;
    for (int i = 0; !rc && i < r->n; i++) rc = sl_ranks_send(r, i, data, n, err);
    for (int i = 0; !rc && i < r->n; i++) rc = receive(r, i, &all[i], err);
    return rc;
}

int sl_ranks_gather(sl_ranks *r, const void *data, size_t n, sl_text *all, sl_error *err) {
    int rc = sl_ranks_send(r, 0, data, n, err);
    for (int i = 0; !rc && !r->rank && i < r->n; i++) rc = receive(r, i, &all[i], err);
    return rc;
}

int sl_ranks_broadcast(sl_ranks *r, sl_text *text, sl_error *err) {
    int rc = 0;
    if (r->rank) return receive(r, 0, text, err);
    for (int i = 1; !rc && i < r->n; i++) rc = sl_ranks_send(r, i, text->data, text->n, err);
    return rc;
}

int sl_ranks_barrier(sl_ranks *r, sl_error *err) {
    sl_text empty = {0}, *all = calloc((size_t)r->n, sizeof *all);
    int rc = all ? sl_ranks_gather(r, "", 0, all, err) : sl_fail(err, SL_ERR_MEMORY, "%d ranks: out of memory", r->n);
    if (!rc) rc = sl_ranks_broadcast(r, &empty, err);
    for (int i = 0; all && i < r->n; i++) sl_text_free(&all[i]);
    sl_text_free(&empty);
    free(all);
    return rc;
}
