// models/quant_scheme.h - how the linear layers of a model are quantised: schemes, and rules that give each layer its scheme by
// its name.
#ifndef SLEIGH_QUANT_SCHEME_H
#define SLEIGH_QUANT_SCHEME_H

#include "models/quantise.h"
#include "models/recipe.h"

// The tensors that a quantised linear layer NAME has.
typedef enum {
    SL_QUANT_BYTES,  // NAME.weight: F8_E4M3 or I8 [n_rows][n_cols]; a scale
    SL_QUANT_PACKED, // NAME.weight_packed, .weight_scale, .weight_shape, .weight_zero_point, .weight_g_idx
    SL_QUANT_GPTQ,   // NAME.qweight, .qzeros, .scales, .g_idx
    SL_QUANT_AWQ,    // NAME.qweight, .qzeros, .scales
    SL_QUANT_FP4,    // NAME.weight_packed or .weight, .weight_scale, and perhaps a scale of the tensor
} sl_quant_layout;

// The numbers that share a scale.
typedef enum { SL_QUANT_TENSOR, SL_QUANT_CHANNEL, SL_QUANT_GROUP, SL_QUANT_BLOCK } sl_quant_strategy;

typedef struct sl_quant_scheme {
    sl_quant_layout layout;
    sl_format format;
    sl_quant_strategy strategy;
    int group;              // SL_QUANT_GROUP
    int block[2];           // SL_QUANT_BLOCK: rows, columns
    const char *scale_name; // SL_QUANT_BYTES: "weight_scale"
    int has_zero;           // there are zero points
    int has_index;          // SL_QUANT_PACKED: there is a weight_g_idx
    int zero_offset;        // SL_QUANT_GPTQ: version 1
    sl_inputs inputs;       // SL_FP8
    const char *q_name;     // SL_QUANT_FP4: "weight_packed", or "weight"
    sl_global global;       // SL_QUANT_FP4: whether the tensor has a scale of its own
} sl_quant_scheme;

// Which modules a name of the description means.
typedef enum {
    SL_NAME_CLASS,    // "Linear": every linear layer
    SL_NAME_EXACT,    // the module
    SL_NAME_REGEX,    // PCRE2, from the start of the module's name
    SL_NAME_WILDCARD, // '*' stands for any text
    SL_NAME_PART,     // whole components of the module's name, separated by dots
} sl_quant_match;

typedef struct sl_quant_rule {
    sl_quant_match match;
    char *text;
    void *regex; // pcre2_code
    int scheme;  // of these modules; -1: they are plain
} sl_quant_rule;

typedef struct sl_quant {
    sl_quantise_specs round;    // what the caller asks for
    char *method;               // "awq"; NULL: the checkpoint is not quantised
    int quantises_head;         // 0: lm_head is plain, whatever the rules say
    int has_activations;        // 1: the checkpoint asks for quantised activations, of any kind
    int has_kv_scales;          // 1: the checkpoint has scales for a KV cache of fp8 (kv_scales.h)
    sl_activations activations; // of the weights that can have them; SL_ACT_AUTO: 16 bits, and the inputs of the schemes
    sl_quant_scheme *schemes;
    int n_schemes;
    sl_quant_rule *rules; // the first rule that matches decides, rules with scheme -1 first, SL_NAME_CLASS last
    int n_rules;
} sl_quant;

// The scheme of a linear layer ("model.layers.0.mlp.up_proj"); NULL: it is plain.
const sl_quant_scheme *sl_quant_find(const sl_quant *q, const char *module, int is_head);
// path: of the description, for messages.
int sl_quant_add_rule(sl_quant *q, const char *path, sl_quant_match match, const char *text, int scheme, sl_error *err);
int sl_quant_add_scheme(sl_quant *q, const char *path, const sl_quant_scheme *scheme, sl_error *err);
void sl_quant_free(sl_quant *q);

#endif
