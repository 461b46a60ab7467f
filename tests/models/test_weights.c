// tests/models/test_weights.c - the list of architectures, and the one list of tensors of a model: what is declared, placed on
// a backend and counted.
#include "models/arch.h"
#include "tests/support/tensor_file.h"
#include "tests/test.h"

#include <string.h>

static sl_error err;

// ---- a backend that only places: every call gets a part of one block ----

enum { MOST_CALLS = 4096 };

static char block[1 << 20];
static int n_calls, n_weights, n_parts, fail_at; // fail_at: the call that fails; -1: none
static size_t used;

static int place(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut, sl_error *e) {
    (void)be;
    CHECK(cut != SL_CUT_COLS || n == 1);
    n_parts += cut == SL_CUT_COLS;
    if (n_calls++ == fail_at) return sl_fail(e, SL_ERR_MEMORY, "no memory");
    for (int i = 0; i < n; i++) {
        weights[i]->data = block + used++; // one byte stands for a weight
        n_weights++;
    }
    used += 100; // a gap between two blocks
    CHECK(used < sizeof block && n_calls < MOST_CALLS);
    return 0;
}

static const sl_backend placing = {.name = "placing", .place = place};

static void note_progress(void *ctx, int done, int total) {
    int *last = ctx;
    CHECK(done > *last && done <= total);
    *last = done == total ? -1 : done;
}

// ---- cases ----

static void load(const char *dir, sl_config *c, sl_tensors **tensors, sl_model_weights *w) {
    CHECK_OK(sl_config_load(&SL_FOLDER(dir), c, &err), err);
    CHECK_OK(sl_model_weights_declare(c, NULL, tensors, w, &err), err);
    CHECK(!sl_model_weights_have_data(w));
}

static const sl_weight *find(const sl_model_weights *w, const char *name) {
    for (int i = 0; i < w->n_tensors; i++)
        if (!strcmp(w->tensors[i].shape.name, name)) return w->tensors[i].weight;
    FAIL("no tensor %s", name);
}

static size_t bytes(const sl_weight *w) {
    return (size_t)w->n_rows * sl_weight_row_bytes(w);
}

// A backend that stores each number twice.
static size_t placed_bytes(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut) {
    size_t sum = 0;
    (void)be, (void)cut;
    for (int i = 0; i < n; i++) sum += 2 * bytes(weights[i]);
    return sum;
}

// A decode step reads every tensor once, of the embedding table one row. Tied weights are read as lm_head.
static void check_bytes(const sl_model_weights *w, const sl_tensors *tensors) {
    const sl_config *c = w->config;
    size_t all = sl_tensors_bytes(tensors), embed = bytes(find(w, "model.embed_tokens.weight"));
    CHECK_INT(sl_model_weights_decode_bytes(w), c->tied ? all : all - embed);
    size_t vectors = 0, layers, head;
    for (int i = 0; i < w->n_tensors; i++)
        if (w->tensors[i].weight->n_rows == 1) vectors += bytes(w->tensors[i].weight);
    for (int is_placed = 0; is_placed < 2; is_placed++) {
        sl_model_weights_matrix_bytes(w, &(sl_backend){.placed_bytes = is_placed ? placed_bytes : NULL}, &layers, &head);
        CHECK_INT(head, (1 + is_placed) * embed);
        CHECK_INT(layers, (1 + is_placed) * (all - embed - vectors - (c->tied ? 0 : embed)));
    }
}

// Each block holds the weights that one operation reads together, and no other weight.
static void check_layout(const sl_model_weights *w) {
    static const char *const joined[][2] = {
        {"self_attn.q_proj", "self_attn.k_proj"}, {"self_attn.k_proj", "self_attn.v_proj"}, {"mlp.gate_proj", "mlp.up_proj"}};
    for (int layer = 0; layer < w->config->n_layers; layer++)
        for (size_t i = 0; i < sizeof joined / sizeof *joined; i++) {
            char first[120], second[120];
            snprintf(first, sizeof first, "model.layers.%d.%s.weight", layer, joined[i][0]);
            snprintf(second, sizeof second, "model.layers.%d.%s.weight", layer, joined[i][1]);
            CHECK((const char *)find(w, second)->data == (const char *)find(w, first)->data + 1);
        }
    for (int i = 1; i < w->n_tensors; i++) {
        if (w->tensors[i].same_as || w->tensors[i].flags & SL_TENSOR_JOINED) continue;
        CHECK((const char *)w->tensors[i].weight->data > (const char *)w->tensors[i - 1].weight->data + 1);
    }
}

static void place_on_a_backend(const char *dir) {
    sl_config c;
    sl_tensors *tensors;
    sl_model_weights w, placed;
    int last = 0, n_ties = 0;
    const sl_progress progress = {note_progress, &last};
    load(dir, &c, &tensors, &w);
    check_bytes(&w, tensors);
    used = n_calls = n_weights = 0, fail_at = -1;
    CHECK_OK(sl_model_weights_place(&w, &placing, &progress, NULL, NULL, &placed, &err), err);
    CHECK_INT(last, -1); // the last report is n of n
    CHECK_INT(n_weights, sl_tensors_count(tensors));
    for (int i = 0; i < placed.n_tensors; i++) {
        const sl_model_tensor *t = &placed.tensors[i];
        CHECK(t->weight->data != NULL && w.tensors[i].weight->data == NULL); // the model does not change
        CHECK(!t->same_as || t->weight->data == t->same_as->data);
        n_ties += t->same_as != NULL;
    }
    CHECK_INT(n_ties, c.tied);
    check_layout(&placed);
    sl_model_weights_free(&placed);

    const int all_calls = n_calls;
    for (fail_at = 0; fail_at < all_calls; fail_at += 7) { // nothing leaks, which sanitizers see
        used = n_calls = 0;
        CHECK_ERR(sl_model_weights_place(&w, &placing, NULL, NULL, NULL, &placed, &err), err, SL_ERR_MEMORY, "no memory");
    }
    sl_model_weights_free(&w);
    sl_tensors_close(tensors);
}

static void placing_untied(void) {
    place_on_a_backend("models/llama-3.1-8b");
}

static void placing_tied(void) {
    place_on_a_backend("models/llama-3.2-1b");
}

// A rank has columns of o and down, and some rows of a head that is tied to the embedding: those of the placed embedding, or,
// if it is quantised, which a device may store in another order, a weight of its own.
static void placing_parts(void) {
    static const char *const heads[] = {NULL, "int8"};
    for (int i = 0; i < 2; i++) {
        sl_config c;
        sl_tensors *tensors;
        sl_model_weights w, placed;
        sl_quant quant = {0};
        CHECK_OK(sl_config_load(&SL_FOLDER("models/llama-3.2-1b"), &c, &err), err);
        c.shard = (sl_shard){1, 2};
        CHECK_OK(sl_quantise_parse(&(sl_quantise_texts){.head = heads[i]}, &quant.round, &err), err);
        CHECK_OK(sl_model_weights_declare(&c, &quant, &tensors, &w, &err), err);
        used = n_calls = n_weights = n_parts = 0, fail_at = -1;
        CHECK_OK(sl_model_weights_place(&w, &placing, NULL, NULL, NULL, &placed, &err), err);
        const sl_weight *head = find(&placed, "lm_head.weight"), *embed = find(&placed, "model.embed_tokens.weight");
        CHECK_INT(head->n_rows, c.n_vocab / 2);
        CHECK_INT(embed->n_rows, c.n_vocab);
        CHECK_INT(n_parts, 2 * c.n_layers);
        CHECK_INT(n_weights, sl_tensors_count(tensors) + (size_t)i);
        CHECK((const char *)head->data == (i ? block + used - 101 : sl_weight_row(embed, (size_t)c.n_vocab / 2)));
        sl_model_weights_free(&placed);
        sl_model_weights_free(&w);
        sl_tensors_close(tensors);
    }
}

// A second list of a placed model, whose matrices are rounded: only these get memory, and the rest is the first list's.
static void rounded_beside(const char *dir) {
    sl_config c;
    sl_tensors *tensors;
    sl_model_weights w, first, rounded, second;
    sl_quant quant = {0};
    int n_rounded = 0;
    load(dir, &c, &tensors, &w);
    CHECK_OK(sl_quantise_parse(&(sl_quantise_texts){.weights = "int4"}, &quant.round, &err), err);
    CHECK_OK(sl_model_weights_bind(&c, tensors, &quant, &rounded, &err), err);
    used = n_calls = 0, fail_at = -1;
    CHECK_OK(sl_model_weights_place(&w, &placing, NULL, NULL, NULL, &first, &err), err);
    const char *end = block + used;
    n_calls = n_weights = 0;
    CHECK_OK(sl_model_weights_place_rounded(&rounded, &placing, &first, NULL, NULL, &second, &err), err);
    for (int i = 0; i < second.n_tensors; i++) {
        const sl_model_tensor *t = &second.tensors[i];
        const char *data = t->weight->data, *model = first.tensors[i].weight->data;
        int is_matrix = t->weight->n_rows > 1, is_own = is_matrix && (c.tied || !(t->flags & SL_TENSOR_LOOKUP));
        CHECK(is_own ? data >= end : data == model);
        CHECK_INT(t->weight->format, !is_own                                                        ? SL_BF16
                                     : t->flags & (SL_TENSOR_HEAD | SL_TENSOR_LOOKUP) || t->same_as ? SL_INT8
                                                                                                    : SL_INT4);
        if (t->flags & SL_TENSOR_JOINED && is_own) CHECK(data == (const char *)second.tensors[i - 1].weight->data + 1);
        n_rounded += is_own && !t->same_as;
    }
    CHECK_INT(n_weights, n_rounded);
    CHECK(second.rope.inv_freq == first.rope.inv_freq);
    sl_model_weights_free(&second);
    CHECK(first.rope.inv_freq[0] == 1); // the first list still has it
    const int all_calls = n_calls;
    for (fail_at = 0; fail_at < all_calls; fail_at += 7) {
        used = n_calls = 0;
        CHECK_ERR(sl_model_weights_place_rounded(&rounded, &placing, &first, NULL, NULL, &second, &err), err, SL_ERR_MEMORY,
                  "no memory");
    }
    sl_model_weights_free(&rounded), sl_model_weights_free(&first), sl_model_weights_free(&w);
    sl_tensors_close(tensors);
}

static void rounded_beside_placed(void) {
    rounded_beside("models/llama-3.1-8b");
    rounded_beside("models/llama-3.2-1b"); // tied
    rounded_beside("models/qwen2.5-7b");   // with biases
}

// Without `place` a backend reads the weights where they are.
static void without_place(void) {
    sl_config c;
    sl_tensors *tensors;
    sl_model_weights w, placed;
    CHECK_OK(sl_config_load(&SL_FOLDER("models/tiny"), &c, &err), err);
    CHECK_OK(sl_tensors_open("models/tiny", &tensors, &err), err);
    c.rope_attention = 1.25f;
    CHECK_OK(sl_model_weights_bind(&c, tensors, NULL, &w, &err), err);
    CHECK(sl_model_weights_have_data(&w));
    for (int i = 0; i < w.n_tensors; i++) { // each of them counts
        const void *data = w.tensors[i].weight->data;
        w.tensors[i].weight->data = NULL;
        CHECK(!sl_model_weights_have_data(&w));
        w.tensors[i].weight->data = data;
    }
    check_bytes(&w, tensors);
    CHECK_OK(sl_model_weights_place(&w, &(sl_backend){.name = "in place"}, NULL, NULL, NULL, &placed, &err), err);
    for (int i = 0; i < w.n_tensors; i++) CHECK(placed.tensors[i].weight->data == w.tensors[i].weight->data);
    CHECK(w.rope.scale == 1.25f && placed.rope.scale == 1.25f && placed.rope.head_dim == c.head_dim);
    CHECK(!memcmp(placed.rope.inv_freq, w.rope.inv_freq, c.head_dim / 2 * sizeof(float)));
    sl_model_weights_free(&placed);
    sl_model_weights_free(&w);
    sl_tensors_close(tensors);
}

// Makes every weight bf16 that is no int8.
static int place_int8(const sl_backend *be, sl_weight *const *weights, int n, sl_cut cut, sl_error *e) {
    (void)be, (void)cut, (void)e;
    for (int i = 0; i < n; i++)
        if (weights[i]->format != SL_INT8) *weights[i] = (sl_weight){.data = block, .format = SL_BF16};
    return 0;
}

// One line tells which quantised weights a backend has made bf16.
static void unpacked(void) {
    static const int8_t zero[1];
    static const int32_t order[1];
    const sl_backend backend = {.name = "int8", .place = place_int8};
    sl_config c;
    sl_tensors *tensors;
    sl_model_weights w, placed;
    test_lines lines = {.n = 0};
    const sl_log log = {test_note_line, &lines};
    load("models/tiny", &c, &tensors, &w);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(sl_model_weights_place(&w, &backend, NULL, NULL, &log, &placed, &err), err);
        sl_model_weights_free(&placed);
        sl_weight *q = w.tensors[1].weight, *k = w.tensors[2].weight, *v = w.tensors[3].weight;
        CHECK_INT(lines.n, i);
        q->format = SL_INT4, k->format = SL_INT8;
        if (i == 1) q->zero = zero, k->format = v->format = SL_FP8, v->order = order;
    }
    CHECK_STR(lines.text,
              "1 quantised weight is bf16 on this GPU: 1 int4\n"
              "3 quantised weights are bf16 on this GPU: 1 fp8, 1 fp8 with columns in another order, 1 int4 with zero "
              "points\n");
    sl_model_weights_free(&w);
    sl_tensors_close(tensors);
}

// The last tensor of a list can be joined too.
static void declare_pair(sl_model_weights *w) {
    sl_weight *fields = w->fields;
    sl_model_weights_add(w, &fields[0], 2, 4, 0, "first");
    sl_model_weights_add(w, &fields[1], 2, 4, SL_TENSOR_JOINED, "second");
}

static void joined_at_the_end(void) {
    sl_config c;
    sl_model_weights w, placed;
    CHECK_OK(sl_config_load(&SL_FOLDER("models/tiny"), &c, &err), err);
    sl_arch arch = *c.arch;
    arch.declare = declare_pair, c.arch = &arch;
    CHECK_OK(sl_model_weights_init(&c, &w, &err), err);
    n_calls = n_weights = 0, fail_at = -1;
    CHECK_OK(sl_model_weights_place(&w, &placing, NULL, NULL, NULL, &placed, &err), err);
    CHECK(n_calls == 1 && n_weights == 2);
    sl_model_weights_free(&placed), sl_model_weights_free(&w);
}

static void list_of_architectures(void) {
    char list[256], small[12];
    sl_arch_list(list, sizeof list);
    sl_arch_list(small, sizeof small); // cut, not overrun
    CHECK(strlen(small) == sizeof small - 1 && !strncmp(list, small, strlen(small)));
    CHECK(strstr(list, "\"llama\", \"mistral\"") == list);
    CHECK(sl_arch_find("llama") && sl_arch_find("llama") != sl_arch_find("mistral"));
    CHECK(!sl_arch_find("llam") && !sl_arch_find("llama2") && !sl_arch_find(""));
    CHECK_STR(sl_arch_find("mistral")->architecture, "MistralForCausalLM");
}

static const test_case cases[] = {
    {"architectures", 0, list_of_architectures},
    {"placing", 0, placing_untied},
    {"placing-tied", 0, placing_tied},
    {"placing-parts", 0, placing_parts},
    {"rounded-beside-placed", 0, rounded_beside_placed},
    {"without-place", 0, without_place},
    {"joined-at-the-end", 0, joined_at_the_end},
    {"unpacked", 0, unpacked},
    {0},
};
extern const test_suite suite_weights;
const test_suite suite_weights = {"weights", cases};
