// server/serve/serve_ranks.c - rank 0 of a server whose model lies in several ranks (--tensor-parallel-size).
//
// Rank 0 has HTTP, the queue and the answers. Each rank has a scheduler, and all schedulers take the same steps. Before a step,
// rank 0 sends what has changed since the last one: requests, answers that were added, cancelled jobs, requests that are over.
// The others do the same in the same order (serve_follow.c). They read the body of a request with the same code, and get from
// rank 0 what a body does not determine: the ids of the prompts (a template may write the date) and the seed. A step depends
// on no clock, except that rank 0's times choose the drafts of all ranks (sl_engine_share_time).
//
// The message has rank 0's trace (sl_scheduler_trace), so a rank whose steps differ ends the run before the next step.
//
// Rank 0 made the grammars of its requests while earlier steps ran, and the others make them from the message. All ranks meet
// after that: in a step, the GPU of a rank waits for the others with a limit (backend/cuda/rank_sum.h).
//
// While no request is there, rank 0 sends nothing, and the others sleep in the broadcast.
#include "server/serve/serve_ranks.h"

// Adds to the next message. Without memory there is no message: the run ends.
static void put(serve_server *s, const void *data, size_t n) {
    if (!s->ranks.lost.code) sl_text_append(&s->ranks.notes, data, n, &s->ranks.lost);
}

void serve_ranks_note(serve_server *s, serve_ranks_kind kind, const serve_request *r, int rc) {
    const serve_note n = {.kind = kind, .rc = rc, .request = r->number};
    if (s->model->comm) put(s, &n, sizeof n);
}

void serve_ranks_open(serve_server *s, serve_request *r) {
    const serve_opened head = {.endpoint = r->endpoint,
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

void serve_ranks_clear(serve_server *s) {
    enum { KEPT = 1 << 20 }; // bytes: the memory of a larger message is given back
    if (s->ranks.notes.cap > KEPT) sl_text_free(&s->ranks.notes);
    s->ranks.notes.n = 0;
}

static int send_message(serve_server *s, serve_message_kind kind, sl_error *err) {
    serve_ranks *k = &s->ranks;
    sl_comm *comm = s->model->comm;
    if (k->lost.code) {
        *err = k->lost;
        return err->code;
    }
    serve_message m = {.mark = SERVE_MESSAGE_MARK,
                       .number = ++k->n_messages,
                       .n_bytes = k->notes.n,
                       .trace = sl_scheduler_trace(s->scheduler),
                       .kind = kind};
    comm->broadcast(comm, &m, sizeof m);
    if (m.n_bytes) comm->broadcast(comm, k->notes.data, k->notes.n);
    serve_ranks_clear(s);
    if (m.n_bytes) sl_engine_meet(s->model->engine);
    return 0;
}

int serve_step(serve_server *s, sl_error *err) {
    sl_scheduler_step(s->scheduler);
    const sl_error *why = sl_scheduler_error(s->scheduler);
    if (why->code) *err = *why;
    return why->code;
}

int serve_ranks_step(serve_server *s, sl_error *err) {
    int rc = s->model->comm ? send_message(s, SERVE_STEP, err) : 0;
    return rc ? rc : serve_step(s, err);
}

int serve_ranks_end(serve_server *s, sl_error *err) {
    return s->model->comm ? send_message(s, SERVE_END, err) : 0;
}
