// models/quant_bind.h - binds the tensors of a quantised linear layer to a weight, and checks their dtypes and shapes.
#ifndef SLEIGH_QUANT_BIND_H
#define SLEIGH_QUANT_BIND_H

#include "models/quant_scheme.h"
#include "models/recipe.h"

// module: "model.layers.0.mlp.up_proj". Fills *w, without data, and *recipe. A missing tensor, a wrong dtype and a wrong shape
// are errors with file, tensor, found and expected.
int sl_quant_bind(const sl_quant_scheme *scheme, const sl_tensors *tensors, const char *module, int n_rows, int n_cols,
                  sl_weight *w, sl_recipe *recipe, sl_error *err);

#endif
