// server/serve/serve_ranks.h - what rank 0 of a server sends the other ranks that share the model (serve_ranks.c,
// serve_follow.c), for server/serve/ only.
#ifndef SLEIGH_SERVE_RANKS_H
#define SLEIGH_SERVE_RANKS_H

#include "server/serve/serve_internal.h"

typedef enum serve_message_kind { SERVE_STEP, SERVE_END } serve_message_kind;

// Of each message: a rank that reads something else is at another place.
#define SERVE_MESSAGE_MARK 0x3176726573676c73u

typedef struct serve_message { // n_bytes of notes follow
    uint64_t mark, number, n_bytes;
    uint64_t trace; // rank 0's, after the notes
    uint64_t kind;
} serve_message;

typedef struct serve_note {
    uint32_t kind; // serve_ranks_kind
    int32_t rc;    // of SERVE_RANKS_ADD: the result on rank 0
    uint64_t request;
} serve_note;

// Follows a note of SERVE_RANKS_OPEN. Then come the number of ids (int32_t) and the ids of each prompt, and the body.
typedef struct serve_opened {
    int32_t endpoint, in_reasoning, n_prompts;
    uint32_t seed;
    uint64_t n_body;
} serve_opened;

void serve_ranks_clear(serve_server *s);        // empties the notes
int serve_step(serve_server *s, sl_error *err); // a step of this rank's scheduler. Errors: sl_scheduler_error

#endif
