// server/serve/serve_ranks.c - a server whose model lies in several ranks (--tensor-parallel-size).
//
// Rank 0 has HTTP, the queue and the answers. Each rank has a scheduler, and all schedulers take the same steps. Before a step,
// rank 0 sends what has changed since the last one: requests, answers that were added, cancelled jobs, requests that are over.
// The others do the same in the same order. They read the body of a request with the same code, and get from rank 0 what a body
// does not determine: the ids of the prompts (a template may write the date) and the seed. No step depends on a clock.
//
// The message has rank 0's trace (sl_scheduler_trace), so a rank whose steps differ ends the run before the next step.
//
// While no request is there, rank 0 sends an empty message from time to time: ranks that wait sleep, but not without end.
#include "server/serve/serve_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef enum message_kind { STEP, END } message_kind;

typedef struct message { // n_bytes of notes follow
    uint64_t mark, number, n_bytes, trace;
    uint64_t kind;
} message;

static const uint64_t MARK = 0x3176726573676c73; // of each message: a rank that reads something else is at another place

typedef struct note {
    uint32_t kind; // serve_ranks_kind
    int32_t rc;    // of SERVE_RANKS_ADD: the result on rank 0
    uint64_t request;
} note;

typedef struct opened { // follows a note of SERVE_RANKS_OPEN. For each prompt the number of its ids and the ids follow, then
                        // the body
    int32_t endpoint, in_reasoning, n_prompts;
    uint32_t seed;
    uint64_t n_body;
} opened;

// ---- rank 0 ----

// Adds to the next message. Without memory there is no message: the run ends.
static void put(serve_server *s, const void *data, size_t n) {
    if (!s->ranks.lost.code) sl_text_append(&s->ranks.notes, data, n, &s->ranks.lost);
}

void serve_ranks_note(serve_server *s, serve_ranks_kind kind, const serve_request *r, int rc) {
    const note n = {.kind = kind, .rc = rc, .request = r->number};
    if (s->model->comm) put(s, &n, sizeof n);
}

void serve_ranks_open(serve_server *s, serve_request *r) {
    const opened head = {.endpoint = r->endpoint,
                         .in_reasoning = r->in_reasoning,
                         .n_prompts = r->n_prompts,
                         .seed = r->sampling.seed,
                         .n_body = r->n_body};
    if (!s->model->comm) return;
    serve_ranks_note(s, SERVE_RANKS_OPEN, r, 0);
    put(s, &head, sizeof head);
    for (int i = 0; i < r->n_prompts; i++) {
        const int32_t n = (int32_t)r->prompts[i].ids.n;
        put(s, &n, sizeof n);
        put(s, r->prompts[i].ids.data, (size_t)n * sizeof n);
    }
    put(s, r->body ? r->body : "", r->n_body);
    serve_drop_body(r);
}

static int send_message(serve_server *s, message_kind kind, sl_error *err) {
    serve_ranks *k = &s->ranks;
    sl_comm *comm = s->model->comm;
    if (k->lost.code) {
        *err = k->lost;
        return err->code;
    }
    message m = {.mark = MARK,
                 .number = ++k->n_messages,
                 .n_bytes = k->notes.n,
                 .trace = sl_scheduler_trace(s->scheduler),
                 .kind = kind};
    comm->broadcast(comm, &m, sizeof m);
    if (k->notes.n) comm->broadcast(comm, k->notes.data, k->notes.n);
    k->notes.n = 0;
    return 0;
}

static int step(serve_server *s, sl_error *err) {
    sl_scheduler_step(s->scheduler);
    const sl_error *why = sl_scheduler_error(s->scheduler);
    if (why->code) *err = *why;
    return why->code;
}

int serve_ranks_step(serve_server *s, sl_error *err) {
    int rc = s->model->comm ? send_message(s, STEP, err) : 0;
    return rc ? rc : step(s, err);
}

int serve_ranks_end(serve_server *s, sl_error *err) {
    return s->model->comm ? send_message(s, END, err) : 0;
}

// ---- the other ranks ----

typedef struct reader {
    const char *at, *end;
} reader;

static int take(reader *in, void *to, size_t n, sl_error *err) {
    if (n > (size_t)(in->end - in->at)) return sl_fail(err, SL_ERR_FORMAT, "a message of rank 0 is shorter than it says");
    if (n) memcpy(to, in->at, n);
    in->at += n;
    return 0;
}

static int no_memory(sl_error *err) {
    return sl_fail(err, SL_ERR_MEMORY, "a request of rank 0: out of memory");
}

static int take_ids(reader *in, sl_ids *ids, sl_error *err) {
    int32_t n = 0, id = 0;
    int rc = take(in, &n, sizeof n, err);
    for (int i = 0; !rc && i < n; i++) {
        rc = take(in, &id, sizeof id, err);
        if (!rc) rc = sl_ids_push(ids, id, err);
    }
    return rc;
}

static int take_body(reader *in, serve_request *r, size_t n, sl_error *err) {
    r->body = malloc(n + 1);
    if (!r->body) return no_memory(err);
    int rc = take(in, r->body, n, err);
    r->body[rc ? 0 : n] = 0;
    if (!rc) r->n_body = n;
    return rc;
}

// Fills a request as the preparing thread of rank 0 did.
static int take_request(serve_server *s, reader *in, serve_request *r, const opened *head, sl_error *err) {
    sl_ids *ids = calloc((size_t)head->n_prompts, sizeof *ids);
    api_error why;
    int rc = ids ? 0 : no_memory(err);
    for (int i = 0; !rc && i < head->n_prompts; i++) rc = take_ids(in, &ids[i], err);
    if (!rc) rc = take_body(in, r, head->n_body, err);
    int failed = rc ? 0 : api_request_read((api_endpoint)r->endpoint, r->body, r->n_body, &r->api, &why);
    if (!rc && !failed) failed = serve_make_prompts(r, &why);
    if (!rc && !failed && r->n_prompts != head->n_prompts)
        rc =
            sl_fail(err, SL_ERR_FORMAT, "a request of rank 0 has %d prompts here, and %d there", r->n_prompts, head->n_prompts);
    for (int i = 0; ids && i < head->n_prompts; i++)
        if (!rc && !failed)
            r->prompts[i].ids = ids[i];
        else
            sl_ids_free(&ids[i]);
    free(ids);
    r->in_reasoning = head->in_reasoning;
    r->api.has_seed = 1, r->api.seed = head->seed;
    if (!rc && !failed) failed = serve_make_jobs(s, r, &why);
    serve_drop_body(r);
    return failed ? sl_fail(err, SL_ERR_ARG, "a request that rank 0 has accepted: %s", why.why.message) : rc;
}

static int open_request(serve_server *s, reader *in, uint64_t number, sl_error *err) {
    opened head = {0};
    int rc = take(in, &head, sizeof head, err);
    serve_request *r = rc ? NULL : serve_request_new(s, NULL, head.endpoint);
    if (rc) return rc;
    if (!r) return no_memory(err);
    r->number = number;
    rc = take_request(s, in, r, &head, err);
    if (!rc && serve_make_room(s)) rc = no_memory(err);
    if (rc)
        serve_request_free(s, r);
    else
        serve_place(s, r);
    return rc;
}

static serve_request *find(const serve_server *s, uint64_t number) {
    for (int i = 0; i < s->n_active; i++)
        if (s->active[i]->number == number) return s->active[i];
    return NULL;
}

static int add_job(serve_server *s, serve_request *r, int expected, sl_error *err) {
    sl_error why;
    int rc = r->n_added < r->n_choices ? serve_add_job(s, r, &why) : sl_fail(&why, SL_ERR_FORMAT, "too many answers");
    if (rc == expected) return 0;
    return sl_fail(err, SL_ERR_FORMAT, "an answer was added with the result %d on rank 0, and %d here: %s", expected, rc,
                   rc ? why.message : "no error");
}

// Does what a note says.
static int follow_note(serve_server *s, reader *in, sl_error *err) {
    note n = {0};
    int rc = take(in, &n, sizeof n, err);
    if (rc) return rc;
    if (n.kind == SERVE_RANKS_OPEN) return open_request(s, in, n.request, err);
    serve_request *r = find(s, n.request);
    if (!r) return sl_fail(err, SL_ERR_FORMAT, "rank 0 names a request that this rank does not have");
    if (n.kind == SERVE_RANKS_ADD) return add_job(s, r, n.rc, err);
    if (n.kind == SERVE_RANKS_CANCEL)
        serve_cancel(r);
    else
        serve_forget(s, r);
    return 0;
}

static int receive_notes(serve_server *s, size_t n, sl_error *err) {
    sl_text *t = &s->ranks.notes;
    if (n > t->cap) {
        char *grown = realloc(t->data, n);
        if (!grown) return sl_fail(err, SL_ERR_MEMORY, "a message of rank 0 of %zu bytes: out of memory", n);
        t->data = grown, t->cap = n;
    }
    t->n = n;
    if (n) s->model->comm->broadcast(s->model->comm, t->data, n);
    return 0;
}

static int check_message(const message *m, uint64_t number, sl_error *err) {
    if (m->mark == MARK && m->number == number) return 0;
    return sl_fail(err, SL_ERR_FORMAT,
                   "message %" PRIu64 " of rank 0 is not what rank 0 sends: the ranks are not at the same place", number);
}

static int check_trace(const serve_server *s, const message *m, sl_error *err) {
    uint64_t own = sl_scheduler_trace(s->scheduler);
    if (own == m->trace) return 0;
    return sl_fail(err, SL_ERR_FORMAT,
                   "the steps of this rank differ from those of rank 0 before step %" PRIu64 " (traces %016" PRIx64
                   " and %016" PRIx64 "); their answers would be wrong",
                   m->number, own, m->trace);
}

static int follow_message(serve_server *s, message *m, sl_error *err) {
    sl_comm *comm = s->model->comm;
    comm->broadcast(comm, m, sizeof *m);
    int rc = check_message(m, ++s->ranks.n_messages, err);
    if (!rc) rc = receive_notes(s, m->n_bytes, err);
    for (reader in = {s->ranks.notes.data, s->ranks.notes.data + s->ranks.notes.n}; !rc && in.at < in.end;)
        rc = follow_note(s, &in, err);
    return rc ? rc : check_trace(s, m, err);
}

int serve_ranks_follow(serve_server *s, sl_error *err) {
    message m = {.kind = STEP};
    int rc = 0;
    while (!rc && m.kind == STEP) {
        rc = follow_message(s, &m, err);
        if (!rc && m.kind == STEP) rc = step(s, err);
        serve_sweep(s);
    }
    serve_free_all(s);
    return rc;
}
