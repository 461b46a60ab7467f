// backend/cpu/prefill_ops.inc.h - the matrix product of prefill, a part of the template cpu_ops.inc.h.
//
// An output is a sum of leaves (leaves.h), and a leaf a sum of strips: sl_cpu_ops.prefill (cpu_ops.h) states the order. A lane
// of a vector is a row of x, so a product needs no sum over lanes, and the order depends on nothing but the number of columns.
// The loops, from outside:
//   strips of columns: SL_PREFILL_OUTS rows of the weight become fp32 in this strip (39 KiB). The packed rows of x take
//                      384 KiB, so both stay in the L2 cache
//   blocks of TILE_ROWS rows, and TILE_OUTS outputs: one tile, whose sums stay in registers
// The sum of a strip is added to the totals of the leaf, which stay in the L2 cache.

enum {
    TILE_ROWS = 2 * VW,
#if defined(__AVX512F__)
    TILE_OUTS = 12, // 24 of 32 registers hold sums
#else
    TILE_OUTS = 6, // 12 of 16
#endif
    WIDE = SL_PREFILL_STRIP + 16, // floats from row to row of the wide weights, so that the rows differ in their cache sets
};
_Static_assert(SL_PREFILL_ROWS % TILE_ROWS == 0 && SL_PREFILL_OUTS % TILE_OUTS == 0 && SL_PREFILL_OUTS % VW == 0, "tiles");
_Static_assert(SL_PREFILL_PART == SL_PREFILL_OUTS * (WIDE + SL_PREFILL_TOTALS * SL_PREFILL_ROWS), "wide weights and totals");
_Static_assert(1 << (SL_PREFILL_TOTALS - 1) == SL_MOST_LEAVES, "totals");

// ---- packed rows: [strip][block of TILE_ROWS rows][column of the strip][TILE_ROWS] ----

SIMD_INLINE int blocks_of(int n_rows) {
    return (n_rows + TILE_ROWS - 1) / TILE_ROWS;
}
// Columns of the strip that begins at column `from`, in leaves of `leaf` columns.
SIMD_INLINE int strip_at(int from, int leaf) {
    int left = leaf - from % leaf;
    return left < SL_PREFILL_STRIP ? left : SL_PREFILL_STRIP;
}
SIMD_INLINE size_t packed_at(int n_blocks, int block, int from, int strip) {
    return ((size_t)from * (size_t)n_blocks + (size_t)block * (size_t)strip) * TILE_ROWS;
}

// Packs columns [from, from + strip) of n rows, at most VW. The other rows of the vectors become zeros.
CHECKED_BY_ROWS SIMD_INLINE void pack_rows(const float *x, int n_cols, const int32_t *order, int n, int from, int strip,
                                           float *to) {
    float ordered[VW * SL_PREFILL_STRIP] __attribute__((aligned(64)));
    size_t stride = order ? SL_PREFILL_STRIP : (size_t)n_cols;
    if (order)
        for (int r = 0; r < n; r++)
            for (int i = 0; i < strip; i++) ordered[r * SL_PREFILL_STRIP + i] = x[(size_t)r * n_cols + order[from + i]];
    const float *rows = order ? ordered : x + from;
    for (int i = 0; i < strip; i += VW) {
        int width = strip - i < VW ? strip - i : VW;
        vf v[VW];
        for (int r = 0; r < VW; r++) {
            if (r >= n) {
                v[r] = v_set(0);
            } else if (width == VW) {
                v[r] = v_load(rows + r * stride + i);
            } else {
                float last[VW] = {0};
                memcpy(last, rows + r * stride + i, (size_t)width * sizeof *last);
                v[r] = v_load(last);
            }
        }
        v_transpose(v);
        for (int j = 0; j < width; j++) v_store(to + (size_t)(i + j) * TILE_ROWS, v[j]);
    }
}

CHECKED_BY_ROWS static void pack(const sl_weight *w, const float *x, int n_rows, int n_leaves, int block, float *packed) {
    int n = w->n_cols, n_blocks = blocks_of(n_rows), first = block * TILE_ROWS;
    check_rows(x + (size_t)first * n, 0, 1, (size_t)(n_rows - first < TILE_ROWS ? n_rows - first : TILE_ROWS) * n * sizeof *x);
    check_rows(packed, 0, 1, (size_t)n_blocks * TILE_ROWS * n * sizeof *packed);
    for (int from = 0, strip; from < n; from += strip) {
        strip = strip_at(from, n / n_leaves);
        float *to = packed + packed_at(n_blocks, block, from, strip);
        for (int r = first; r < first + TILE_ROWS; r += VW)
            pack_rows(x + (size_t)r * n, n, w->order, n_rows - r < VW ? n_rows - r : VW, from, strip, to + (r - first));
    }
}

// ---- products ----

// TILE_OUTS outputs of n_vec vectors of rows in one strip. wide: [TILE_OUTS][WIDE]; x: [strip][TILE_ROWS]; total:
// [TILE_OUTS][TILE_ROWS].
CHECKED_BY_ROWS SIMD_INLINE void prefill_tile(const float *wide, const float *x, int strip, int n_vec, int is_first,
                                              float *total) {
    vf acc[TILE_OUTS][2];
    for (int a = 0; a < TILE_OUTS; a++)
        for (int v = 0; v < n_vec; v++) acc[a][v] = v_set(0);
    for (int i = 0; i < strip; i++) {
        vf xv[2];
        for (int v = 0; v < n_vec; v++) xv[v] = v_load(x + (size_t)i * TILE_ROWS + v * VW);
        for (int a = 0; a < TILE_OUTS; a++)
            for (int v = 0; v < n_vec; v++) acc[a][v] = v_fma(v_set(wide[a * WIDE + i]), xv[v], acc[a][v]);
    }
    for (int a = 0; a < TILE_OUTS; a++)
        for (int v = 0; v < n_vec; v++) {
            float *to = total + a * TILE_ROWS + v * VW;
            v_store(to, is_first ? acc[a][v] : (vf)(v_load(to) + acc[a][v]));
        }
}

// Writes the totals of a block, [SL_PREFILL_OUTS][TILE_ROWS], to n_outs outputs of n_rows rows of out.
CHECKED_BY_ROWS SIMD_INLINE void store_totals(const float *total, int n_rows, int n_outs, int accumulate, float *out,
                                              size_t stride) {
    for (int r = 0; r < n_rows; r += VW) {
        int rows = n_rows - r < VW ? n_rows - r : VW;
        for (int o = 0; o < n_outs; o += VW) {
            int outs = n_outs - o < VW ? n_outs - o : VW;
            vf v[VW];
            for (int a = 0; a < VW; a++) v[a] = v_load(total + (o + a) * TILE_ROWS + r);
            v_transpose(v);
            float *to = out + (size_t)r * stride + o;
            if (outs == VW) {
                for (int i = 0; i < rows; i++, to += stride) v_store(to, accumulate ? (vf)(v_load(to) + v[i]) : v[i]);
                continue;
            }
            float sums[VW][VW];
            memcpy(sums, v, sizeof sums);
            for (int i = 0; i < rows; i++, to += stride)
                for (int a = 0; a < outs; a++) to[a] = accumulate ? to[a] + sums[i][a] : sums[i][a];
        }
    }
}

// Adds totals of n_blocks blocks to those of the leaves before.
CHECKED_BY_ROWS SIMD_INLINE void add_totals(float *to, const float *totals, int n_blocks) {
    for (size_t i = 0; i < (size_t)n_blocks * SL_PREFILL_OUTS * TILE_ROWS; i += VW)
        v_store(to + i, (vf)(v_load(to + i) + v_load(totals + i)));
}

CHECKED_BY_ROWS static void prefill(const sl_weight *w, const float *packed, int n_rows, int o_from, int o_to, int n_leaves,
                                    int accumulate, float *out, float *part) {
    int n = w->n_cols, n_outs = o_to - o_from, n_blocks = blocks_of(n_rows), leaf = n / n_leaves;
    float *wide = part, *totals = part + SL_PREFILL_OUTS * WIDE; // of the current leaf, behind those that wait
    SL_CHECK(n_rows <= SL_PREFILL_ROWS && n_outs <= SL_PREFILL_OUTS && n_leaves <= SL_MOST_LEAVES && n % n_leaves == 0);
    check_rows(packed, 0, 1, (size_t)n_blocks * TILE_ROWS * n * sizeof *packed);
    check_rows(out + o_from, w->n_rows * sizeof *out, n_rows, (size_t)n_outs * sizeof *out);
    check_rows(part, 0, 1, SL_PREFILL_PART * sizeof *part);
    for (int from = 0, strip; from < n; from += strip) {
        strip = strip_at(from, leaf);
        for (int o = 0; o < n_outs; o++) widen(w, (size_t)(o_from + o), from, strip, wide + o * WIDE);
        for (int b = 0; b < n_blocks; b++) {
            const float *x = packed + packed_at(n_blocks, b, from, strip);
            float *total = totals + (size_t)b * SL_PREFILL_OUTS * TILE_ROWS;
            int n_vec = n_rows - b * TILE_ROWS > VW ? 2 : 1;
            for (int o = 0; o < n_outs; o += TILE_OUTS) { // a last tile that is not whole computes sums that nobody reads
                if (n_vec == 2)
                    prefill_tile(wide + o * WIDE, x, strip, 2, from % leaf == 0, total + o * TILE_ROWS);
                else
                    prefill_tile(wide + o * WIDE, x, strip, 1, from % leaf == 0, total + o * TILE_ROWS);
            }
        }
        if ((from + strip) % leaf) continue;
        enum { TOTALS = SL_PREFILL_OUTS * SL_PREFILL_ROWS };
        // The leaf is complete. Each 1 at the end of its number is a left subtree whose sum waits for this one.
        for (int l = from / leaf; l & 1; l >>= 1, totals -= TOTALS) add_totals(totals - TOTALS, totals, n_blocks);
        if (from + strip < n) totals += TOTALS;
    }
    for (int b = 0; b < n_blocks; b++) {
        int rows = n_rows - b * TILE_ROWS < TILE_ROWS ? n_rows - b * TILE_ROWS : TILE_ROWS;
        store_totals(totals + (size_t)b * SL_PREFILL_OUTS * TILE_ROWS, rows, n_outs, accumulate,
                     out + (size_t)b * TILE_ROWS * w->n_rows + o_from, (size_t)w->n_rows);
    }
}
