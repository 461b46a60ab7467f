// engine/internal.h - the insides of sl_model, sl_engine and sl_session, for engine/*.c alone.
#ifndef SLEIGH_INTERNAL_H
#define SLEIGH_INTERNAL_H

#include "engine/backend.h"
#include "engine/kv.h"
#include "engine/sleigh.h"
#include "models/llama.h"

struct sl_model {
    sl_config config;
    sl_tensors *tensors;
    sl_llama llama;
    sl_tokenizer *tokenizer;
};

struct sl_engine {
    const sl_model *model;
    const sl_backend *backend;
    sl_attn_geom geom;
    sl_kv_pool pool;
    sl_attn_plan plan;
    int plan_version; // counts sl_engine_set_attention, so that sessions rebuild their methods' state
    int n_ctx, n_sequences, prefill_chunk, max_rows;
    uint32_t seed;
    int n_sessions;
    // scratch of one step
    sl_llama_scratch scratch;
    sl_workspace workspace;
    sl_row *rows;           // [max_rows]
    sl_attn_query *queries; // [n_sequences]
    float *logits;          // [n_sequences][n_vocab]
    sl_attn_stats stats;
};

struct sl_session {
    sl_engine *engine;
    uint32_t sequence;
    sl_kv_seq kv;
    float *logits; // [n_vocab]
    struct sl_method_state {
        void *data; // NULL: this layer's method keeps none
        size_t size;
    } * state;        // [n_layers]
    int plan_version; // of state
};

#endif
