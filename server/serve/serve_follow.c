// server/serve/serve_follow.c - a rank of a server that is not the first one: it does what rank 0 says (serve_ranks.c), and
// checks that its scheduler has taken the same steps.
#include "server/serve/serve_ranks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
static int take_request(serve_server *s, reader *in, serve_request *r, const serve_opened *head, sl_error *err) {
    api_error why;
    int rc = serve_make_prompts(r, head->n_prompts, &why) ? no_memory(err) : 0;
    for (int i = 0; !rc && i < head->n_prompts; i++) rc = take_ids(in, &r->prompts[i].ids, err);
    if (!rc) rc = take_body(in, r, head->n_body, err);
    if (rc) return rc;
    int failed = api_request_read((api_endpoint)r->endpoint, r->body, r->n_body, &r->api, &why);
    serve_drop_body(r);
    if (!failed && serve_n_prompts(&r->api) != r->n_prompts)
        return sl_fail(err, SL_ERR_FORMAT, "a request of rank 0 has %d prompts here, and %d there", serve_n_prompts(&r->api),
                       r->n_prompts);
    r->in_reasoning = head->in_reasoning;
    r->api.has_seed = 1, r->api.seed = head->seed;
    if (!failed) failed = serve_make_jobs(s, r, &why);
    return failed ? sl_fail(err, SL_ERR_ARG, "a request that rank 0 has accepted: %s", why.why.message) : 0;
}

static int open_request(serve_server *s, reader *in, uint64_t number, sl_error *err) {
    serve_opened head = {0};
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
    serve_note n = {0};
    int rc = take(in, &n, sizeof n, err);
    if (rc) return rc;
    if (n.kind == SERVE_RANKS_OPEN) return open_request(s, in, n.request, err);
    serve_request *r = find(s, n.request);
    if (!r) return sl_fail(err, SL_ERR_FORMAT, "rank 0 names a request that this rank does not have");
    if (n.kind == SERVE_RANKS_ADD) return add_job(s, r, n.rc, err);
    if (n.kind == SERVE_RANKS_CANCEL)
        serve_cancel(r);
    else if (n.kind == SERVE_RANKS_FREE)
        serve_forget(s, r);
    else
        rc = sl_fail(err, SL_ERR_FORMAT, "a note of rank 0 has the kind %u, which this rank does not know", n.kind);
    return rc;
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

static int check_message(const serve_message *m, uint64_t number, sl_error *err) {
    if (m->mark == SERVE_MESSAGE_MARK && m->number == number) return 0;
    return sl_fail(err, SL_ERR_FORMAT,
                   "message %" PRIu64 " of rank 0 is not what rank 0 sends: the ranks are not at the same place", number);
}

static int check_trace(const serve_server *s, const serve_message *m, sl_error *err) {
    uint64_t own = sl_scheduler_trace(s->scheduler);
    if (own == m->trace) return 0;
    return sl_fail(err, SL_ERR_FORMAT,
                   "the steps of this rank differ from those of rank 0 before step %" PRIu64 " (traces %016" PRIx64
                   " and %016" PRIx64 "); their answers would be wrong",
                   m->number, own, m->trace);
}

static int follow_message(serve_server *s, serve_message *m, sl_error *err) {
    sl_comm *comm = s->model->comm;
    comm->broadcast(comm, m, sizeof *m);
    int rc = check_message(m, ++s->ranks.n_messages, err);
    if (!rc) rc = receive_notes(s, m->n_bytes, err);
    for (reader in = {s->ranks.notes.data, s->ranks.notes.data + s->ranks.notes.n}; !rc && in.at < in.end;)
        rc = follow_note(s, &in, err);
    serve_ranks_clear(s);
    if (!rc) rc = check_trace(s, m, err);
    if (!rc && m->n_bytes) sl_engine_meet(s->model->engine);
    return rc;
}

int serve_ranks_follow(serve_server *s, sl_error *err) {
    serve_message m = {.kind = SERVE_STEP};
    int rc = 0;
    while (!rc && m.kind == SERVE_STEP) {
        rc = follow_message(s, &m, err);
        if (!rc && m.kind == SERVE_STEP) rc = serve_step(s, err);
        serve_sweep(s);
    }
    serve_free_all(s);
    return rc;
}
