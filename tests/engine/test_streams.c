// tests/engine/test_streams.c - streams and chats: the text that a stream shows and the reason of its end, with random
// prompts, limits, stop strings, end tokens and callers that stop, against a simulation: a stop string is searched in the whole
// text, UTF-8 is decoded from its definition, and a session of another engine says which tokens are sampled.
#include "engine/engine_internal.h"
#include "engine/logprobs.h"
#include "engine/stopper.h"
#include "engine/stream.h"
#include "tests/support/run_cli.h"

#include <stdlib.h>
#include <unistd.h>

static sl_error err;

// ---- UTF-8 ----

// 1: n bytes begin a character. Their smallest and their largest continuation give a range of code points, and one of these
// code points needs a character of this length.
static int begins_character(const unsigned char *s, int n, int *length) {
    static const struct {
        unsigned lead, most, least_code, most_code;
    } forms[] = {{0, 0x7f, 0, 0x7f}, {0xc0, 0xdf, 0x80, 0x7ff}, {0xe0, 0xef, 0x800, 0xffff}, {0xf0, 0xf7, 0x10000, 0x10ffff}};
    for (int k = 0; k < 4; k++) {
        unsigned low = s[0] - forms[k].lead, high = low;
        if (s[0] < forms[k].lead || s[0] > forms[k].most) continue;
        for (int i = 1; i <= k; i++) {
            if (i < n && (s[i] & 0xc0) != 0x80) return 0;
            low = low << 6 | (i < n ? s[i] & 0x3f : 0), high = high << 6 | (i < n ? s[i] & 0x3f : 0x3f);
        }
        *length = k + 1;
        if (n > k + 1) return 0;
        if (low < forms[k].least_code) low = forms[k].least_code;
        if (high > forms[k].most_code) high = forms[k].most_code;
        if (low >= 0xd800 && low < 0xe000) low = 0xe000; // surrogates are no characters
        return low <= high && !(high >= 0xd800 && high < 0xe000 && low >= 0xd800);
    }
    return 0;
}

// Writes the characters of n bytes; U+FFFD for each longest part that begins one and cannot go on. An unfinished character at
// the end is written with at_end only. Returns the number of bytes.
static size_t decoded(const unsigned char *s, int n, int at_end, char *out) {
    size_t size = 0;
    for (int i = 0, m; i < n; i += m) {
        int length = 0, ignored;
        for (m = 1; i + m < n && begins_character(s + i, m + 1, &ignored); m++) continue;
        int begins = begins_character(s + i, m, &length);
        if (begins && m < length && i + m == n && !at_end) break;
        int is_whole = begins && m == length;
        memcpy(out + size, is_whole ? (const char *)s + i : "\xef\xbf\xbd", is_whole ? (size_t)m : 3);
        size += is_whole ? (size_t)m : 3;
    }
    return size;
}

// ---- stop strings ----

// Searches the whole text. Returns 1 when a stop string ends in it. *n_shown: bytes that can be shown: those before the stop
// string that ends first, and is the longest of those; without one, those that cannot begin a stop string.
static int find_stops(const char *const *stops, int n_stops, const char *text, size_t n, size_t *n_shown) {
    for (size_t end = 1; end <= n; end++)
        for (size_t at = 0; at < end; at++)
            for (int i = 0; i < n_stops; i++)
                if (strlen(stops[i]) == end - at && !memcmp(stops[i], text + at, end - at)) return *n_shown = at, 1;
    for (*n_shown = 0; *n_shown < n; ++*n_shown)
        for (int i = 0; i < n_stops; i++)
            if (strlen(stops[i]) > n - *n_shown && !memcmp(stops[i], text + *n_shown, n - *n_shown)) return 0;
    return 0;
}

enum { MOST_STOPS = 4, MOST_STOP = 8 };

// Stop strings: parts of the text, or any.
static int random_stops(char texts[MOST_STOPS][MOST_STOP], const char **stops, const char *text, size_t n,
                        const char *letters) {
    int n_stops = test_below(MOST_STOPS + 1);
    for (int i = 0; i < n_stops; i++) {
        size_t length = 1 + (size_t)test_below(MOST_STOP - 1);
        int is_part = n >= length && test_below(3), at = is_part ? test_below((int)(n - length) + 1) : 0;
        for (size_t j = 0; j < length; j++) texts[i][j] = is_part ? text[at + j] : letters[test_below((int)strlen(letters))];
        texts[i][length] = 0;
        if (is_part && test_below(3) == 0) texts[i][length - 1] = letters[0]; // one that the text almost has
        stops[i] = texts[i];
    }
    return n_stops;
}

// Random texts in random pieces: what is shown after each piece, and at which piece it stops.
static void stop_strings(void) {
    static const char letters[] = "ab\xc3\xa9";
    sl_stopper *none;
    CHECK_ERR(sl_stopper_new((const char *[]){"a", ""}, 2, &none, &err), err, SL_ERR_ARG, "stop: the string is empty");
    test_draw_from(test_seed);
    for (int round = 0; round < 20000; round++) {
        char text[24], texts[MOST_STOPS][MOST_STOP];
        const char *stops[MOST_STOPS], *out;
        int n = test_below(sizeof text), n_letters = 2 + test_below(3), stopped = 0;
        sl_stopper *s;
        for (int i = 0; i < n; i++) text[i] = letters[test_below(n_letters)];
        int n_stops = random_stops(texts, stops, text, (size_t)n, letters);
        CHECK_OK(sl_stopper_new(stops, n_stops, &s, &err), err);
        size_t shown = 0, wanted, n_out;
        if (round % 2) { // a text before, which the reset forgets
            CHECK(sl_stopper_feed(s, text, (size_t)test_below(n + 1), &out, &n_out, &err) >= 0);
            sl_stopper_reset(s);
        }
        for (int at = 0, m; at < n && !stopped; at += m) {
            m = round % 4 < 2 ? 1 : test_below(n - at + 1);
            stopped = sl_stopper_feed(s, text + at, (size_t)m, &out, &n_out, &err);
            if (stopped != find_stops(stops, n_stops, text, (size_t)(at + m), &wanted) || shown + n_out != wanted ||
                memcmp(out, text + shown, n_out))
                FAIL("\"%.*s\" after %d bytes: stopped %d, showed %zu + %zu bytes, expected %zu", n, text, at + m, stopped,
                     shown, n_out, wanted);
            shown = wanted;
        }
        sl_stopper_flush(s, &out, &n_out);
        CHECK(stopped ? n_out == 0 : shown + n_out == (size_t)n && !memcmp(out, text + shown, n_out));
        sl_stopper_free(s);
    }
}

// ---- a model ----

enum { N_CTX = 300, MOST_IDS = N_CTX + 1, N_ALLOWED = 11, N_BYTES = 9, VOCAB = 1030, ROUNDS = 30 };

// The tokens that are sampled: single bytes, so that characters are divided between tokens, and two ids that the tokenizer
// lacks. The model has an end token, 'f'.
static const char allowed_bytes[N_BYTES + 1] = "abcdef\xc3\xa9\xe2";
static int32_t allowed[N_ALLOWED];

static int32_t id_of_byte(const sl_tokenizer *tok, char byte) {
    sl_text bytes = {0};
    for (int32_t id = 0; id < 1000; id++) {
        bytes.n = 0;
        CHECK_OK(sl_token_bytes(tok, id, &bytes, &err), err);
        if (bytes.n != 1 || bytes.data[0] != byte) continue;
        sl_text_free(&bytes);
        return id;
    }
    FAIL("no token for the byte %d", byte);
}

static sl_model *load_model(void) {
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"};
    sl_tokenizer *tok;
    char text[512];
    sl_model *model;
    CHECK_OK(sl_tokenizer_load(&SL_FOLDER("models/tiny"), &tok, &err), err);
    for (int i = 0; i < N_BYTES; i++) allowed[i] = id_of_byte(tok, allowed_bytes[i]);
    allowed[N_BYTES] = sl_tokenizer_n_vocab(tok), allowed[N_BYTES + 1] = VOCAB - 1;
    CHECK(allowed[N_BYTES] < VOCAB - 1);
    sl_tokenizer_free(tok);
    int n = snprintf(text, sizeof text,
                     "{\"model_type\":\"llama\",\"hidden_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,"
                     "\"num_key_value_heads\":1,\"head_dim\":32,\"intermediate_size\":32,\"vocab_size\":1030,"
                     "\"max_position_embeddings\":2048,\"eos_token_id\":[11,%d]}",
                     allowed[5]);
    spill(in_tmp("config.json"), text, (size_t)n);
    for (int i = 0; i < 3; i++) {
        char *path;
        CHECK(asprintf(&path, "models/tiny/%s", files[i]) > 0);
        size_t size;
        char *data = slurp(path, &size);
        spill(in_tmp(files[i]), data, size);
        free(path);
    }
    CHECK_OK(sl_model_load(test_tmp(), &(sl_model_options){.flags = SL_MODEL_DUMMY}, &model, &err), err);
    CHECK_OK(sl_model_materialise(model, 1, NULL, NULL, &err), err);
    CHECK(sl_model_is_eos(model, 11) && sl_model_is_eos(model, allowed[5]) && !sl_model_is_eos(model, allowed[4]));
    return model;
}

static sl_engine *engine_of(const sl_model *model, int n_sequences) {
    sl_engine *e;
    const sl_engine_options o = {.n_ctx = N_CTX, .n_sequences = n_sequences, .prefill_chunk = 128, .n_threads = 1};
    CHECK_OK(sl_engine_new(model, &o, &e, &err), err);
    return e;
}

// Bytes to characters, token by token and at the end of the text.
static void characters(void) {
    static const unsigned char likely[] = {0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0,
                                           0xe1, 0xec, 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf3, 0xf4, 0xf5, 0xf8, 0xff, 0x85};
    sl_tokenizer *tok;
    int32_t id_of[256];
    sl_text text = {0};
    test_draw_from(test_seed);
    CHECK_OK(sl_tokenizer_load(&SL_FOLDER("models/tiny"), &tok, &err), err);
    for (size_t i = 0; i < sizeof likely; i++) id_of[likely[i]] = id_of_byte(tok, (char)likely[i]);
    for (int round = 0; round < 20000; round++) {
        unsigned char bytes[12];
        char want[40];
        int n = test_below(sizeof bytes);
        sl_detok_stream s = sl_detok_begin(tok, 0, 1);
        text.n = 0;
        for (int i = 0; i <= n; i++) {
            size_t size = decoded(bytes, i, 0, want);
            if (text.n != size || memcmp(text.n ? text.data : "", want, size))
                FAIL("%d bytes from 0x%02x%02x: \"%.*s\", expected \"%.*s\"", i, bytes[0], bytes[1], (int)text.n, text.data,
                     (int)size, want);
            bytes[i < n ? i : 0] = likely[test_below(sizeof likely)];
            if (i < n) CHECK_OK(sl_detok_next(&s, id_of[bytes[i]], &text, &err), err);
            if (i == n - 1) CHECK(decoded(bytes, n, 0, want) == text.n);
        }
        text.n = 0;
        s = sl_detok_begin(tok, 0, 1);
        for (int i = 0; i < n; i++) CHECK_OK(sl_detok_next(&s, id_of[bytes[i]], &text, &err), err);
        for (int twice = 0; twice < 2; twice++) CHECK_OK(sl_detok_end(&s, &text, &err), err); // the second end has no text
        size_t size = decoded(bytes, n, 1, want);
        CHECK(text.n == size && !memcmp(n ? text.data : "", want, size));
    }
    sl_text_free(&text);
    sl_tokenizer_free(tok);
}

// ---- a conversation of runs ----

typedef struct heard {
    char text[8 * MOST_IDS];
    size_t n, stop_at; // asks to stop when it has so many bytes; 0: never
} heard;

static int hear(void *ctx, const char *text, size_t n) {
    heard *h = ctx;
    CHECK(n > 0 && h->n + n <= sizeof h->text);
    memcpy(h->text + h->n, text, n);
    h->n += n;
    return h->stop_at && h->n >= h->stop_at;
}

typedef struct pair { // a stream with its session, and a session that does the same
    sl_stream *stream;
    sl_session *own, *s;
    int32_t ids[MOST_IDS], end;
    int n, segment;                   // n: tokens of the session; segment: 0: dense prefill
    int begins[64], ends[64], n_ends; // of the session's segments
    sl_generation o;                  // of the last run, with its stop strings
    char texts[MOST_STOPS][MOST_STOP];
    const char *stops[MOST_STOPS];
    int n_runs;
} pair;

static sl_sampler *sampler_of(const pair *p, const sl_generation *o) {
    sl_sampler *sampler;
    CHECK_OK(sl_sampler_new(&o->sampling, VOCAB, &sampler, &err), err);
    for (int i = 0; i < p->n; i++) CHECK_OK(sl_sampler_accept(sampler, p->ids[i], &err), err);
    return sampler;
}

// Makes p->s hold the prompt. Returns the tokens that stay.
static int set_prompt(pair *p, const int32_t *ids, int n) {
    int keep = 0;
    while (keep < n - 1 && keep < p->n && p->ids[keep] == ids[keep]) keep++;
    // A segment stays whole, or not at all. The tokens of decode steps stay one by one.
    while (p->n_ends && p->ends[p->n_ends - 1] > keep)
        if (p->begins[--p->n_ends] < keep) keep = p->begins[p->n_ends];
    for (int at = keep; p->segment && at < n; p->n_ends++) {
        p->begins[p->n_ends] = at, at += p->segment - at % p->segment;
        p->ends[p->n_ends] = at < n ? at : n;
    }
    CHECK_OK(sl_session_truncate(p->s, keep, &err), err);
    CHECK_OK(sl_prefill(p->s, ids + keep, n - keep, NULL, &err), err);
    memcpy(p->ids, ids, (size_t)n * sizeof *ids);
    p->n = n;
    return keep;
}

// The tokens that a run would sample without stop strings and callers, and their bytes.
typedef struct sampled {
    int32_t ids[MOST_IDS];
    unsigned char bytes[MOST_IDS];
    int n, n_bytes[MOST_IDS + 1]; // n_bytes[i]: of the first i tokens
} sampled;

// Appends tokens to p->s until one ends the text, or `most` tokens, or the context is full.
static void sample_all(pair *p, const sl_generation *o, int most, sampled *out) {
    sl_sampler *sampler = sampler_of(p, o);
    const sl_model *model = p->s->engine->model;
    for (out->n = 0, out->n_bytes[0] = 0; out->n < most;) {
        int32_t id;
        CHECK_OK(sl_sample(&p->s, 1, &sampler, &id, &err), err);
        CHECK_INT(id, sl_sampler_sample(sampler, sl_session_logits(p->s, &err), o->sequence, (uint32_t)p->n)); // keyed by both
        int n_bytes = out->n_bytes[out->n];
        for (int i = 0; i < N_BYTES; i++)
            if (allowed[i] == id) out->bytes[n_bytes++] = (unsigned char)allowed_bytes[i];
        out->ids[out->n++] = id, out->n_bytes[out->n] = n_bytes;
        if (sl_model_is_eos(model, id) || p->n == N_CTX) break;
        CHECK_OK(sl_decode(&p->s, 1, &id, &err), err);
        CHECK_OK(sl_sampler_accept(sampler, id, &err), err);
        p->ids[p->n++] = id;
        if (id == p->end) break;
    }
    sl_sampler_free(sampler);
}

// What a run gives: *h is the text of the caller with its stop_at, *r the counts and the reason. Leaves in p->s the tokens of
// the stream's session.
static void simulate(pair *p, const sl_generation *o, const sampled *all, heard *h, sl_generated *r) {
    char text[8 * MOST_IDS];
    size_t n = 0, shown;
    int found = 0, asked = 0, i = 0, n_prompt = p->n;
    for (;; i++) {
        int is_full = n_prompt + i == N_CTX, is_limit = i + 1 == o->max_tokens, is_eos;
        CHECK(i < all->n);
        is_eos = sl_model_is_eos(p->s->engine->model, all->ids[i]);
        if (!is_full && !is_limit && !is_eos) p->ids[p->n++] = all->ids[i];
        if (is_eos || all->ids[i] == p->end) {
            r->stop = SL_STOP_END, r->n_steps = p->n - n_prompt;
            break;
        }
        n = decoded(all->bytes, all->n_bytes[i + 1], 0, text);
        found = find_stops(o->stop, o->n_stop, text, n, &shown);
        asked = shown > h->n && h->stop_at && shown >= h->stop_at;
        h->n = shown;
        r->stop = found ? SL_STOP_STRING : is_limit ? SL_STOP_LENGTH : is_full ? SL_STOP_CONTEXT : SL_STOP_CALLER;
        if (!found && !asked && !is_limit && !is_full) continue;
        r->n_steps = p->n - n_prompt;
        if (found && !is_full && !is_limit) p->n--; // the session holds only tokens of the text
        i++;
        break;
    }
    r->n_generated = i;
    if (!found) { // the rest of the text; an unfinished character may end a stop string
        n = decoded(all->bytes, all->n_bytes[i], 1, text);
        if (find_stops(o->stop, o->n_stop, text, n, &shown)) n = shown, r->stop = SL_STOP_STRING;
        h->n = n;
    }
    memcpy(h->text, text, h->n);
}

static void set_prefill(sl_engine *e, int segment) {
    sl_attn_spec spec;
    sl_attn_plan plan;
    CHECK_OK(sl_attn_parse(segment ? "streaming:window=64" : "dense", &spec, &err), err);
    CHECK_OK(sl_attn_plan_init(&plan, 1, &spec, &err), err);
    CHECK_OK(sl_engine_set_prefill(e, &plan, segment, &err), err);
    sl_attn_plan_free(&plan);
}

static sl_generation random_options(const sl_logit_bias *bias) {
    sl_generation o = sl_generation_default();
    o.sampling = sl_sampling_default();
    o.sampling.bias = bias, o.sampling.n_bias = N_ALLOWED;
    o.sampling.temp = 1, o.sampling.top_k = 0, o.sampling.top_p = 1, o.sampling.min_p = 0;
    o.sampling.repeat_penalty = 1.05f, o.sampling.repeat_last_n = test_below(2) ? -1 : 20,
    o.sampling.seed = (uint32_t)test_below(99);
    o.max_tokens = test_below(4) ? 1 + test_below(8) : 0;
    o.sequence = (uint32_t)test_below(5);
    return o;
}

static int n_ends[SL_STOP_CALLER + 1], n_both; // runs with each reason; n_both: with both limits at the same token

static void run(pair *p, const sl_logit_bias *bias) {
    int32_t ids[MOST_IDS];
    int n = test_below(3) ? 1 + test_below(200) : N_CTX - test_below(8), same = test_below(3) ? N_CTX : test_below(p->n + 1);
    if (p->n && test_below(4) == 0) n = p->n; // often the tokens of the session, and no others
    for (int i = 0; i < n; i++) ids[i] = i < same && i < p->n ? p->ids[i] : test_below(1000);
    char text[8 * MOST_IDS];
    int is_new = p->n_runs++ == 0 || test_below(3); // else the options of the last run
    sl_generation o = is_new ? random_options(bias) : p->o;
    sl_text got = {0};
    sl_generated r, want = {.n_prompt = n};
    sampled all;
    heard h = {.stop_at = test_below(3) ? 0 : 1 + (size_t)test_below(8)}, expected = {.stop_at = h.stop_at};
    if (n > 200 && is_new)
        o.max_tokens = test_below(2) ? N_CTX - n + test_below(3) : 0; // both limits, one after the other or together
    if (is_new) p->end = test_below(2) ? allowed[test_below(5)] : -1;
    sl_session_set_sequence(p->s, o.sequence);
    want.n_reused = set_prompt(p, ids, n);
    sample_all(p, &o, o.max_tokens ? o.max_tokens : N_CTX, &all);
    p->n = n;
    size_t size = decoded(all.bytes, all.n_bytes[all.n < 9 ? all.n : 9], 1, text);
    if (is_new) o.stop = p->stops, o.n_stop = test_below(3) ? random_stops(p->texts, p->stops, text, size, "ab\xc3\xa9") : 0;
    p->o = o;
    simulate(p, &o, &all, &expected, &want);
    n_ends[want.stop]++;
    n_both += want.stop == SL_STOP_LENGTH && n + want.n_generated == N_CTX + 1;
    CHECK_OK(sl_session_truncate(p->s, p->n, &err), err);

    if (is_new) CHECK_OK(sl_stream_set_options(p->stream, &o, &err), err);
    sl_session_set_sequence(p->own, o.sequence);
    if (p->n_runs > 1 || p->end >= 0) sl_stream_set_end(p->stream, p->end); // a new stream has none
    CHECK_OK(sl_stream_run(p->stream, ids, n, 1, hear, &h, &got, &r, &err), err);
    if (r.stop != want.stop || r.n_generated != want.n_generated || r.n_prompt != n || r.n_reused != want.n_reused ||
        r.n_steps != want.n_steps)
        FAIL("%d tokens, limit %d: stop %d after %d tokens, %d steps, %d reused of %d; expected %d, %d, %d, %d", n,
             o.max_tokens, r.stop, r.n_generated, r.n_steps, r.n_reused, r.n_prompt, want.stop, want.n_generated, want.n_steps,
             want.n_reused);
    if (h.n != expected.n || memcmp(h.text, expected.text, h.n))
        FAIL("showed \"%.*s\", expected \"%.*s\"", (int)h.n, h.text, (int)expected.n, expected.text);
    CHECK(got.n == h.n && !memcmp(got.n ? got.data : "", h.text, h.n));
    CHECK_INT(sl_session_n_tokens(p->own), p->n);
    CHECK(!memcmp(sl_session_ids(p->own), p->ids, (size_t)p->n * sizeof *p->ids));
    CHECK_INT(sl_session_n_prefilled(p->own), sl_session_n_prefilled(p->s));
    sl_text_free(&got);
}

static void random_runs(void) {
    sl_model *model = load_model();
    sl_engine *e = engine_of(model, 1), *other = engine_of(model, 1);
    sl_logit_bias bias[N_ALLOWED];
    test_draw_from(test_seed), n_both = 0;
    memset(n_ends, 0, sizeof n_ends);
    for (int i = 0; i < N_ALLOWED; i++) bias[i] = (sl_logit_bias){allowed[i], i == 5 ? 97 : 100};
    for (int round = 0; round < ROUNDS; round++) {
        pair p = {.end = -1, .segment = round % 2 ? 128 : 0};
        const sl_generation o = random_options(bias);
        set_prefill(e, p.segment), set_prefill(other, p.segment);
        CHECK_OK(sl_engine_claim(e, &err), err);
        CHECK_OK(sl_session_new(e, 7, &p.own, &err), err);
        CHECK_OK(sl_stream_new(p.own, &o, &p.stream, &err), err);
        CHECK_OK(sl_session_new(other, 0, &p.s, &err), err);
        for (int i = 0; i < 8; i++) run(&p, bias);
        sl_stream_free(p.stream), sl_session_free(p.own);
        sl_engine_release(e);
        sl_session_free(p.s);
    }
    for (int i = 0; i <= SL_STOP_CALLER; i++) CHECK(n_ends[i] >= 5);
    CHECK(n_both >= 2);
    sl_engine_free(e), sl_engine_free(other), sl_model_free(model);
}

// ---- streams side by side ----

enum { STREAMS = 3 };

typedef struct lane { // a stream, and what sl_generate gives alone
    sl_stream *stream;
    sl_session *session; // the stream's
    sl_generation o;
    heard alone, got;
    sl_generated want;
    int n_steps;
} lane;

static void open_lane(lane *l, sl_engine *e, const sl_logit_bias *bias) {
    char prompt[40];
    int32_t *ids;
    int n = 1 + test_below(sizeof prompt - 1), n_ids;
    for (int i = 0; i < n - 1; i++) prompt[i] = "abcdefgh "[test_below(9)];
    prompt[n - 1] = 0;
    *l = (lane){.o = random_options(bias)};
    l->o.n_logprobs = test_below(5) - 1;
    CHECK_OK(sl_generate(e, prompt, &l->o, hear, &l->alone, &l->want, &err), err);
    CHECK_OK(sl_session_new(e, l->o.sequence, &l->session, &err), err);
    CHECK_OK(sl_model_tokenize(e->model, prompt, strlen(prompt), SL_TOK_BOS, &ids, &n_ids, &err), err);
    CHECK_OK(sl_session_sync(l->session, ids, n_ids, NULL, &n, &err), err);
    CHECK_INT(n, 0);
    CHECK_OK(sl_stream_new(l->session, &l->o, &l->stream, &err), err);
    CHECK(!sl_stream_is_running(l->stream));
    CHECK_OK(sl_stream_begin(l->stream, !*prompt, &err), err);
    sl_session_free(l->session); // the stream keeps it
    sl_free(ids);
}

// The log-probabilities of the last token: log-softmax of the logits from which it was sampled.
static void check_logprobs(const lane *l, const float *logits) {
    int n_ids, n;
    const int32_t *ids = sl_stream_ids(l->stream, &n_ids);
    const sl_token_logprobs *tokens = sl_stream_logprobs(l->stream, &n);
    CHECK_INT(n, l->o.n_logprobs < 0 ? 0 : n_ids);
    if (!n) return;
    const sl_token_logprobs *t = &tokens[n - 1];
    double sum = 0;
    int n_above = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp((double)logits[i]);
    CHECK_INT(t->sampled.id, ids[n - 1]);
    CHECK_NEAR(t->sampled.at, logits[ids[n - 1]] - log(sum), 1e-9);
    CHECK_INT(t->n_top, l->o.n_logprobs);
    for (int i = 0; i < t->n_top; i++) {
        CHECK_NEAR(t->top[i].at, logits[t->top[i].id] - log(sum), 1e-9);
        CHECK(i == 0 || t->top[i].at < t->top[i - 1].at || t->top[i].id > t->top[i - 1].id);
    }
    for (int i = 0; t->n_top && i < VOCAB; i++) n_above += logits[i] > logits[t->top[t->n_top - 1].id];
    CHECK(n_above <= t->n_top - (t->n_top > 0));
}

// Of equal logits the lowest id comes first. Small vocabularies have fewer alternatives.
static void equal_logits(void) {
    static const float logits[] = {1, 3, 2, 3, -1, 2, 2};
    static const int32_t order[] = {1, 3, 2, 5, 6, 0, 4};
    sl_logprobs l = {0};
    for (int n_top = 0; n_top <= 9; n_top++) {
        sl_logprobs_begin(&l, n_top, 7);
        CHECK_OK(sl_logprobs_before(&l, logits, &err), err);
        CHECK_OK(sl_logprobs_add(&l, 4, &err), err);
        CHECK_INT(l.n, 1);
        CHECK_INT(l.tokens[0].n_top, n_top < 7 ? n_top : 7);
        for (int i = 0; i < l.tokens[0].n_top; i++) CHECK_INT(l.tokens[0].top[i].id, order[i]);
        CHECK_INT(l.tokens[0].sampled.id, 4);
    }
    sl_logprobs_free(&l);
}

// A step of some of the streams, running or not. The others do not change.
static void step_some(lane *lanes) {
    sl_stream *streams[STREAMS];
    float *logits[STREAMS] = {NULL};
    int n = 0, chosen[STREAMS];
    for (int k = 0; k < STREAMS; k++) {
        chosen[k] = test_below(3) > 0;
        if (!chosen[k]) continue;
        streams[n++] = lanes[k].stream;
        if (!sl_stream_is_running(lanes[k].stream)) continue;
        lanes[k].n_steps++;
        logits[k] = malloc(VOCAB * sizeof(float));
        memcpy(logits[k], sl_session_logits(lanes[k].session, &err), VOCAB * sizeof(float));
    }
    CHECK_INT(sl_streams_step(streams, n, &err), n ? 0 : SL_ERR_ARG);
    for (int k = 0; k < STREAMS; k++) {
        size_t n_text;
        int n_ids;
        const char *text = sl_stream_text(lanes[k].stream, &n_text);
        sl_stream_ids(lanes[k].stream, &n_ids);
        CHECK_INT(n_ids, lanes[k].n_steps);
        if (chosen[k] && !logits[k]) CHECK_INT(n_text, 0);
        if (logits[k]) check_logprobs(&lanes[k], logits[k]);
        if (logits[k] && n_text) hear(&lanes[k].got, text, n_text);
        free(logits[k]);
    }
}

static void check_lane(const lane *l) {
    const sl_generated r = sl_stream_result(l->stream);
    if (l->got.n != l->alone.n || memcmp(l->got.text, l->alone.text, l->got.n))
        FAIL("\"%.*s\" among other streams, alone \"%.*s\"", (int)l->got.n, l->got.text, (int)l->alone.n, l->alone.text);
    CHECK(r.stop == l->want.stop && r.n_generated == l->want.n_generated && r.n_steps == l->want.n_steps);
    CHECK_INT(r.n_prompt, l->want.n_prompt);
    int is_removed = r.stop == SL_STOP_STRING && r.n_steps == r.n_generated; // the token that completed a stop string
    CHECK_INT(sl_session_n_tokens(l->session), r.n_prompt + r.n_steps - is_removed);
}

// What a running stream refuses, and its end. other: of another engine
static void check_rules(lane *l, lane *other) {
    sl_stream *second, *many[2];
    size_t n;
    l->o.n_logprobs = 0;
    CHECK_ERR(sl_stream_set_options(l->stream, &l->o, &err), err, SL_ERR_ARG, "options of a stream that runs");
    CHECK_OK(sl_stream_new(l->session, &l->o, &second, &err), err);
    CHECK_ERR(sl_stream_begin(second, 1, &err), err, SL_ERR_ARG, "a stream runs already");
    CHECK_OK(sl_stream_end(l->stream, &err), err);
    CHECK(!sl_stream_is_running(l->stream) && sl_stream_result(l->stream).stop == SL_STOP_CALLER);
    CHECK_OK(sl_stream_begin(second, 1, &err), err);
    sl_stream_free(second); // ends it
    CHECK_OK(sl_stream_begin(l->stream, 1, &err), err);
    CHECK_OK(sl_streams_step(&l->stream, 1, &err), err);
    CHECK_INT(sl_stream_result(l->stream).n_generated + (sl_stream_result(l->stream).stop == SL_STOP_END), 1);
    many[0] = many[1] = other->stream;
    CHECK_ERR(sl_streams_step(many, 2, &err), err, SL_ERR_ARG, "2 streams run: this engine takes 1 to 1");
    CHECK_OK(sl_stream_end(other->stream, &err), err);
    sl_stream_text(other->stream, &n);
    CHECK_OK(sl_streams_step(&other->stream, 1, &err), err); // ended: nothing happens, and its text is gone
    sl_stream_text(other->stream, &n);
    CHECK_INT(n, 0);
    const int32_t bad[] = {5, 1 << 30};
    int before = sl_session_n_tokens(other->session);
    CHECK_ERR(sl_session_sync(other->session, bad, 2, NULL, NULL, &err), err, SL_ERR_ARG, "id 1073741824");
    CHECK_ERR(sl_session_sync(other->session, bad, 0, NULL, NULL, &err), err, SL_ERR_ARG, "a prompt of 0 tokens");
    CHECK_INT(sl_session_n_tokens(other->session), before);
}

// Streams of one engine advance in any subsets, and each has the text and the counts that sl_generate gives alone.
static void side_by_side(void) {
    sl_model *model = load_model();
    sl_engine *e = engine_of(model, STREAMS), *small = engine_of(model, 1);
    sl_logit_bias bias[N_ALLOWED];
    test_draw_from(test_seed);
    for (int i = 0; i < N_ALLOWED; i++) bias[i] = (sl_logit_bias){allowed[i], i == 5 ? 99 : 100};
    for (int round = 0; round < ROUNDS; round++) {
        lane *lanes = calloc(STREAMS, sizeof *lanes);
        for (int k = 0; k < STREAMS; k++) open_lane(&lanes[k], e, bias);
        for (int n_running = 1; n_running;) {
            step_some(lanes);
            n_running = 0;
            for (int k = 0; k < STREAMS; k++) n_running += sl_stream_is_running(lanes[k].stream);
        }
        for (int k = 0; k < STREAMS; k++) {
            check_lane(&lanes[k]);
            sl_stream_free(lanes[k].stream);
        }
        free(lanes);
    }
    lane lanes[2];
    for (int k = 0; k < 2; k++) open_lane(&lanes[k], k ? small : e, bias);
    CHECK_INT(sl_streams_step((sl_stream *[]){lanes[0].stream, lanes[1].stream}, 2, &err), SL_ERR_ARG); // two engines
    CHECK(sl_stream_is_running(lanes[0].stream) && sl_stream_result(lanes[0].stream).n_generated == 0);
    lanes[0].o.n_logprobs = SL_MAX_LOGPROBS + 1;
    CHECK_ERR(sl_stream_set_options(lanes[0].stream, &lanes[0].o, &err), err, SL_ERR_ARG,
              "n_logprobs 21: expected -1 (none) to 20");
    check_rules(&lanes[0], &lanes[1]);
    sl_stream_free(lanes[0].stream), sl_stream_free(lanes[1].stream);
    sl_engine_free(e), sl_engine_free(small), sl_model_free(model);
}

// ---- chats ----

enum { MOST_MESSAGES = 16 };

typedef struct chat_state {
    sl_chat *chat;
    char *texts[MOST_MESSAGES]; // of the messages
    const char *roles[MOST_MESSAGES];
    int n, left; // left: questions until sl_cancel asks to stop
    uint32_t sequence;
} chat_state;

static int is_cancelled(void *ctx) {
    return --*(int *)ctx < 0;
}

static void keep_message(chat_state *x, const char *role, const char *text, size_t n) {
    CHECK(x->n < MOST_MESSAGES);
    x->roles[x->n] = role;
    x->texts[x->n++] = strndup(text, n);
}

static void drop_messages(chat_state *x, int n) {
    while (x->n > n) free(x->texts[--x->n]);
}

static void check_messages(const chat_state *x) {
    CHECK_INT(sl_chat_n_messages(x->chat), x->n);
    for (int i = 0; i < x->n; i++) {
        const sl_message *m = sl_chat_message(x->chat, i);
        CHECK_STR(m->role, x->roles[i]);
        CHECK_STR(m->content, x->texts[i]);
        CHECK_INT(m->n, strlen(x->texts[i]));
    }
    CHECK(!sl_chat_message(x->chat, x->n) && !sl_chat_message(x->chat, -1));
    CHECK_INT(sl_session_sequence(sl_chat_session(x->chat)), x->sequence);
}

static void say(chat_state *x, int fails) {
    char text[600] = "abc";
    heard h = {0};
    text[test_below(3) + 1] = 0;
    if (fails == 2) memset(text, '!', sizeof text - 1), text[sizeof text - 1] = 0; // more than the context
    int rc = sl_chat_say(x->chat, text, hear, &h, NULL, &err);
    CHECK_INT(rc, fails == 2 ? SL_ERR_CONTEXT : fails ? SL_ERR_CANCELLED : 0);
    if (!fails) keep_message(x, "user", text, strlen(text)), keep_message(x, "assistant", h.text, h.n);
}

static void again(chat_state *x, int fails) {
    heard h = {0};
    int has_answer = x->n && !strcmp(x->roles[x->n - 1], "assistant"), n = x->n - has_answer;
    int is_good = n > 0 && !strcmp(x->roles[n - 1], "user");
    int rc = sl_chat_again(x->chat, hear, &h, NULL, &err);
    CHECK_INT(rc, !is_good ? SL_ERR_ARG : fails ? SL_ERR_CANCELLED : 0);
    if (rc) return;
    drop_messages(x, n);
    keep_message(x, "assistant", h.text, h.n);
    x->sequence += has_answer;
}

static void set_messages(chat_state *x) {
    static const char *const roles[] = {"system", "user", "assistant", "user", "tool"};
    sl_message m[3];
    int n = test_below(4) - (test_below(4) == 0), is_good = n >= 0;
    for (int i = 0; i < n; i++) {
        m[i] = (sl_message){.role = roles[i == 0 ? test_below(2) : 1 + (i + test_below(5) / 4) % 4],
                            .content = "abcdef",
                            .n = (size_t)test_below(7)};
        is_good &= strcmp(m[i].role, "tool") != 0;
    }
    CHECK_INT(sl_chat_set_messages(x->chat, m, n, &err), is_good ? 0 : SL_ERR_ARG);
    if (!is_good) return;
    drop_messages(x, 0);
    for (int i = 0; i < n; i++) keep_message(x, m[i].role, m[i].content, m[i].n);
}

// Random calls on a chat: its messages, and the number of its sequence.
static void chats(void) {
    sl_model *model = load_model();
    chat_state x = {.left = 1 << 30};
    sl_engine *e;
    const sl_engine_options eo = {.n_ctx = N_CTX, .n_threads = 1, .cancel = {is_cancelled, &x.left}};
    sl_logit_bias bias[N_ALLOWED];
    sl_chat_options o = sl_chat_options_default();
    test_draw_from(test_seed);
    for (int i = 0; i < N_ALLOWED; i++) bias[i] = (sl_logit_bias){allowed[i], 100};
    CHECK_OK(sl_engine_new(model, &eo, &e, &err), err);
    o.generation = random_options(bias), o.generation.max_tokens = 5, o.template_name = "llama3.1";
    for (int round = 0; round < 2; round++) {
        o.system_prompt = round ? "S" : NULL;
        x.sequence = o.generation.sequence = 7;
        CHECK_OK(sl_chat_open(e, &o, &x.chat, &err), err);
        for (int i = 0; i < 150; i++) {
            int what = i ? test_below(10) : 5, fails = test_below(4) == 0;
            x.left = fails ? 0 : 1 << 30;
            if (what < 3 && x.n < 6) say(&x, fails);
            if (what == 3) say(&x, 2);
            if (what == 4 || what == 6) again(&x, fails);
            if (what == 7) set_messages(&x);
            if (what == 5 || x.n >= 6) {
                CHECK_OK(sl_chat_reset(x.chat, &err), err);
                drop_messages(&x, 0);
                if (round) keep_message(&x, "system", "S", 1);
            }
            if (what == 8) {
                o.generation.sequence = (uint32_t)test_below(9), o.generation.sampling.top_p = fails ? 7 : 1;
                CHECK_INT(sl_chat_set_generation(x.chat, &o.generation, &err), fails ? SL_ERR_ARG : 0);
                if (!fails) x.sequence = o.generation.sequence;
                o.generation.sampling.top_p = 1;
            }
            check_messages(&x);
        }
        drop_messages(&x, 0);
        sl_chat_free(x.chat);
    }
    sl_engine_free(e), sl_model_free(model);
}

// The token that a template writes after replies ends an answer, also if it is no end token of the model.
static void ends_of_turns(void) {
    static const char own[] = "{% for m in messages %}{{ m.content }}<|reserved_special_token_0|>{% endfor %}";
    sl_model *model = load_model();
    sl_engine *e = engine_of(model, 1);
    const int32_t id = sl_tokenizer_find(sl_model_tokenizer(model), "<|reserved_special_token_0|>");
    const sl_logit_bias bias = {id, 1e9f};
    CHECK(id > 0 && !sl_model_is_eos(model, id));
    spill(in_tmp("own.jinja"), own, sizeof own - 1);
    for (int i = 0; i < 2; i++) {
        sl_chat_options o = sl_chat_options_default();
        sl_generated r;
        sl_chat *chat;
        o.generation.sampling.bias = &bias, o.generation.sampling.n_bias = 1, o.generation.max_tokens = 3;
        o.template_name = i ? in_tmp("own.jinja") : "llama3.1";
        CHECK_OK(sl_chat_open(e, &o, &chat, &err), err);
        CHECK_OK(sl_chat_say(chat, "a", NULL, NULL, &r, &err), err);
        CHECK(r.stop == (i ? SL_STOP_END : SL_STOP_LENGTH) && r.n_generated == (i ? 0 : 3));
        sl_chat_free(chat);
    }
    const sl_logit_bias zero = {0, 1e9f}; // no id ends a text that is no chat
    sl_generation o = sl_generation_default();
    sl_generated r;
    o.sampling.bias = &zero, o.sampling.n_bias = 1, o.max_tokens = 3;
    CHECK_OK(sl_generate(e, "a", &o, NULL, NULL, &r, &err), err);
    CHECK(r.stop == SL_STOP_LENGTH && r.n_generated == 3);
    sl_engine_free(e), sl_model_free(model);
}

static const test_case cases[] = {{"chats", 0, chats},
                                  {"ends-of-turns", 0, ends_of_turns},
                                  {"stop-strings", 0, stop_strings},
                                  {"characters", 0, characters},
                                  {"random-runs", 0, random_runs},
                                  {"side-by-side", 0, side_by_side},
                                  {"equal-logits", 0, equal_logits},
                                  {0}};
const test_suite suite_streams = {"streams", cases};
