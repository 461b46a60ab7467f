// engine/logits.c - where the logits of sessions lie.
//
// A step writes the logits of its sessions to rows of sl_pass_buffers.logits. On the CPU each row is copied to its session at
// once. On a device the session owns the row until another step needs the row, and the logits are downloaded to
// sl_session.logits when a caller reads them.
#include "base/hash.h"
#include "engine/engine_internal.h"

#include <string.h>

static void fetch(sl_session *s) { // to host memory
    const sl_device *d = &s->engine->device;
    size_t n = d->weights.config->n_vocab;
    if (s->has_host_logits) return;
    d->backend->download(d->backend, s->logits, d->pass.logits + s->logits_row * n, n * sizeof(float));
    s->has_host_logits = 1;
}

int sl_session_need_logits(const sl_session *s, sl_error *err) {
    if (s->has_logits) return 0;
    if (s->kv.n_tokens == 0)
        return sl_fail(err, SL_ERR_ARG, "sequence %u: the session is empty, so it has no logits; call sl_prefill first",
                       s->sequence);
    return sl_fail(err, SL_ERR_ARG,
                   "sequence %u: the session was cut or forked at %d tokens, so it has no logits; call sl_prefill or sl_decode "
                   "first (cut one token more, and append that token again)",
                   s->sequence, s->kv.n_tokens);
}

const float *sl_session_last_logits(const sl_session *s) {
    fetch((sl_session *)s); // fills a cache; the session does not change for the caller
    return s->logits;
}

const float *sl_session_logits(const sl_session *s, sl_error *err) {
    return sl_session_need_logits(s, err) ? NULL : sl_session_last_logits(s);
}

uint64_t sl_logits_hash(const float *logits, int n_vocab) {
    return sl_fnv1a(SL_FNV1A_START, logits, (size_t)n_vocab * sizeof *logits);
}

void sl_logits_forget_row(sl_session *s) {
    if (s->logits_row >= 0) s->engine->device.pass.logits_owner[s->logits_row] = NULL;
    s->logits_row = -1;
    s->has_host_logits = 1;
}

static int is_in(const sl_session *s, sl_session *const *sessions, int n) {
    for (int i = 0; i < n; i++)
        if (sessions[i] == s) return 1;
    return 0;
}

void sl_logits_before_step(sl_device *d, sl_session *const *sessions, int n, int first, int n_rows) {
    for (int i = first; i < first + n_rows; i++) {
        sl_session *owner = d->pass.logits_owner[i];
        if (!owner) continue;
        if (!is_in(owner, sessions, n)) fetch(owner);
        sl_logits_forget_row(owner);
    }
}

void sl_logits_after_step(sl_device *d, sl_session *const *sessions, int n, int first) {
    size_t n_vocab = d->weights.config->n_vocab;
    for (int i = 0; i < n; i++) {
        sl_session *s = sessions[i];
        s->has_logits = 1, s->n_logits++;
        if (!d->backend->is_device) {
            memcpy(s->logits, d->pass.logits + (first + i) * n_vocab, n_vocab * sizeof(float));
            continue;
        }
        sl_logits_forget_row(s); // the session may own a row behind the rows of this batch
        d->pass.logits_owner[first + i] = s;
        s->logits_row = first + i;
        s->has_host_logits = 0;
    }
}

void sl_logits_to_rows(sl_device *d, sl_session *const *sessions, int n) {
    const sl_backend *be = d->backend;
    size_t n_vocab = d->weights.config->n_vocab, size = n_vocab * sizeof(float);
    int from[n]; // the row that holds the logits; -1: the host does
    for (int i = 0; i < n; i++) {
        sl_session *owner = d->pass.logits_owner[i];
        if (owner && owner != sessions[i] && !is_in(owner, sessions, n)) {
            fetch(owner);
            sl_logits_forget_row(owner);
        }
    }
    // All rows that move leave their places before one of them arrives.
    for (int i = 0; i < n; i++) {
        sl_session *s = sessions[i];
        from[i] = s->logits_row;
        if (from[i] < 0 || from[i] == i) continue;
        be->copy(be, d->pass.last_logits + i * n_vocab, size, d->pass.logits + from[i] * n_vocab, size, size, 1);
        d->pass.logits_owner[from[i]] = NULL;
    }
    for (int i = 0; i < n; i++) {
        if (from[i] == i) continue;
        if (from[i] < 0)
            be->upload(be, d->pass.logits + i * n_vocab, sessions[i]->logits, size);
        else
            be->copy(be, d->pass.logits + i * n_vocab, size, d->pass.last_logits + i * n_vocab, size, size, 1);
        d->pass.logits_owner[i] = sessions[i];
        sessions[i]->logits_row = i;
    }
}

void sl_logits_restore(sl_session *s, int i) {
    const sl_device *d = &s->engine->device;
    size_t n_vocab = d->weights.config->n_vocab;
    d->backend->download(d->backend, s->logits, d->pass.last_logits + i * n_vocab, n_vocab * sizeof(float));
    sl_logits_forget_row(s);
}
