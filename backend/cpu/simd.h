// backend/cpu/simd.h - one vector type for all instruction sets.
//
// A kernel is written once, in a template (*.inc.h). One small file per instruction set includes the template, and the Makefile
// compiles each small file with different flags. SL_ISA names the instruction set. Arithmetic uses the vector extension of the
// compiler. Intrinsics are used only where the extension has no operator (fused multiply-add, max, float16). Every reduction
// has a fixed order.
#ifndef SLEIGH_SIMD_H
#define SLEIGH_SIMD_H

#include "backend/backend.h"

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#if defined(__AVX512F__)
enum { VW = 16 }; // floats of a vector
#elif defined(__AVX2__)
enum { VW = 8 };
#else
enum { VW = 4 };
#endif

typedef float vf __attribute__((vector_size(VW * 4), may_alias));
typedef int32_t vi __attribute__((vector_size(VW * 4), may_alias));
typedef float vf_loose __attribute__((vector_size(VW * 4), aligned(4), may_alias)); // unaligned access

// AddressSanitizer checks the accesses of an inlined function if it instruments the caller. It marks the scopes of the inlined
// variables in every caller. A caller that is not instrumented would leave these marks on its stack. So no_sanitize omits them.
#ifdef __SANITIZE_ADDRESS__
#define SIMD_INLINE static inline __attribute__((always_inline, unused, no_sanitize("address")))
#else
#define SIMD_INLINE static inline __attribute__((always_inline, unused))
#endif

// With the sanitizers the innermost loops of prefill and decode would take about 20 times as long. So a CHECKED_BY_ROWS
// function is not instrumented. The function or its only caller first calls check_rows for each operand.
#ifdef __SANITIZE_ADDRESS__
#define CHECKED_BY_ROWS __attribute__((no_sanitize("address", "undefined")))

// Reports the first byte of n_rows rows of n_bytes that the program may not access. stride: bytes from row to row.
__attribute__((noinline, unused)) static void check_rows(const void *rows, size_t stride, int n_rows, size_t n_bytes) {
    for (int i = 0; i < n_rows; i++) {
        const volatile char *bad = __asan_region_is_poisoned((char *)rows + i * stride, n_bytes);
        if (bad) (void)*bad; // the instrumented read makes the report
    }
}
#else
#define CHECKED_BY_ROWS

static inline void check_rows(const void *rows, size_t stride, int n_rows, size_t n_bytes) {
    (void)rows, (void)stride, (void)n_rows, (void)n_bytes;
}
#endif

SIMD_INLINE vf v_set(float x) { // x in every lane; x - 0 keeps -0 and NaN
    return x - (vf){0};
}
SIMD_INLINE vf v_load(const float *p) {
    return *(const vf_loose *)p;
}
SIMD_INLINE void v_store(float *p, vf x) {
    *(vf_loose *)p = x;
}

SIMD_INLINE vf v_fma(vf a, vf b, vf c) { // a * b + c
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

SIMD_INLINE vf v_max(vf a, vf b) { // b when a or b is NaN
#if defined(__AVX512F__)
    return _mm512_max_ps(a, b);
#elif defined(__AVX2__)
    return _mm256_max_ps(a, b);
#else
    vi m = a > b;
    return (vf)((m & (vi)a) | (~m & (vi)b));
#endif
}

SIMD_INLINE vf v_load_bf16(const bf16 *p) {
#if defined(__AVX512F__)
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined(__AVX2__)
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    return (vf)(vi){(int32_t)((uint32_t)p[0] << 16), (int32_t)((uint32_t)p[1] << 16), (int32_t)((uint32_t)p[2] << 16),
                    (int32_t)((uint32_t)p[3] << 16)};
#endif
}

SIMD_INLINE vf v_load_f16(const f16 *p) {
#if defined(__AVX512F__)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
#elif defined(__AVX2__)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#else
    return (vf){sl_f16_to_f32(p[0]), sl_f16_to_f32(p[1]), sl_f16_to_f32(p[2]), sl_f16_to_f32(p[3])};
#endif
}

// The same as 2^-8 x of VW e4m3 numbers x: their bits, as bits of f16, have a bias of 15 in place of 7.
SIMD_INLINE vf v_load_fp8(const uint8_t *p) {
#if defined(__AVX512F__)
    __m256i u = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)p));
    u = _mm256_or_si256(_mm256_slli_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0x80)), 8),
                        _mm256_slli_epi16(_mm256_and_si256(u, _mm256_set1_epi16(0x7f)), 7));
    return _mm512_cvtph_ps(u);
#elif defined(__AVX2__)
    __m128i u = _mm_cvtepu8_epi16(_mm_loadl_epi64((const __m128i *)p));
    u = _mm_or_si128(_mm_slli_epi16(_mm_and_si128(u, _mm_set1_epi16(0x80)), 8),
                     _mm_slli_epi16(_mm_and_si128(u, _mm_set1_epi16(0x7f)), 7));
    return _mm256_cvtph_ps(u);
#else
    vf x;
    for (int j = 0; j < VW; j++) x[j] = sl_f16_to_f32((f16)((p[j] & 0x80) << 8 | (p[j] & 0x7f) << 7));
    return x;
#endif
}

SIMD_INLINE vf v_load_int8(const int8_t *p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return (vf){p[0], p[1], p[2], p[3]};
#endif
}

SIMD_INLINE vf v_load_uint8(const uint8_t *p) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)));
#elif defined(__AVX2__)
    return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    return (vf){p[0], p[1], p[2], p[3]};
#endif
}

// VW nibbles as numbers 0 to 15, the low nibble of each byte first.
SIMD_INLINE vf v_load_nibbles(const uint8_t *p) {
#if defined(__AVX512F__)
    vf x; // v_load_scaled looks nibbles up, so no loop calls this function
    for (int j = 0; j < VW; j++) x[j] = (float)(p[j / 2] >> j % 2 * 4 & 15);
    return x;
#elif defined(__AVX2__)
    int32_t eight; // nibble j lies in bits 4 j to 4 j + 3
    memcpy(&eight, p, sizeof eight);
    __m256i n = _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    return _mm256_cvtepi32_ps(_mm256_and_si256(n, _mm256_set1_epi32(15)));
#else
    return (vf){p[0] & 15, p[0] >> 4, p[1] & 15, p[1] >> 4};
#endif
}

// The numbers of VW nibbles in a code book [16].
SIMD_INLINE vf v_look_up(const uint8_t *p, const float *book) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    int32_t eight; // the permutations read bits 0 to 2 of a lane, and the choice between them reads bit 3, moved to bit 31
    memcpy(&eight, p, sizeof eight);
    __m256i n = _mm256_srlv_epi32(_mm256_set1_epi32(eight), _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
    __m256 low = _mm256_permutevar8x32_ps(v_load(book), n), high = _mm256_permutevar8x32_ps(v_load(book + 8), n);
    return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(n, 28)));
#else
    vf x; // AVX-512: v_load_scaled looks nibbles up, so no loop calls this function
    for (int j = 0; j < VW; j++) x[j] = book[p[j / 2] >> j % 2 * 4 & 15];
    return x;
#endif
}

// What the elements of a format have been multiplied by and increased by when they are loaded: exact powers and integers.
SIMD_INLINE float load_factor(sl_format format) {
    return format == SL_FP8 ? 0x1p-8f : 1;
}
SIMD_INLINE float load_offset(sl_format format) {
    return format == SL_INT4 ? 8 : 0;
}

// VW elements of a row of a weight, from element i on; i is a multiple of VW. format is a constant at every call, so the
// compiler removes the other branches.
SIMD_INLINE vf v_load_weight(const void *row, sl_format format, size_t i) {
    if (format == SL_BF16) return v_load_bf16((const bf16 *)row + i);
    if (format == SL_F16) return v_load_f16((const f16 *)row + i);
    if (format == SL_FP8) return v_load_fp8((const uint8_t *)row + i);
    if (format == SL_INT8) return v_load_int8((const int8_t *)row + i);
    if (format == SL_UINT8) return v_load_uint8((const uint8_t *)row + i);
    if (format == SL_INT4 || format == SL_UINT4) return v_load_nibbles((const uint8_t *)row + i / 2);
    if (sl_code_book(format)) return v_look_up((const uint8_t *)row + i / 2, sl_code_book(format));
    return v_load((const float *)row + i);
}

// What the loaded elements x of a group stand for: (x - offset) * factor, plus min in formats that have one. AVX-512 looks
// nibbles up instead: lane q of factor is the number of nibble q, which has equal bits, and a look-up is faster than a
// conversion, a difference and a product.
typedef struct v_scale {
    vf factor, offset, min;
} v_scale;

SIMD_INLINE v_scale v_scale_of(sl_format format, float factor, float offset, float min) {
    v_scale s = {v_set(factor), v_set(offset), v_set(min)};
#if defined(__AVX512F__)
    const vf numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const float *book = sl_code_book(format);
    if (sl_formats[format].n_values == 2) s.factor = ((book ? v_load(book) : numbers) - s.offset) * s.factor;
    if (sl_formats[format].n_values == 2 && sl_formats[format].has_min) s.factor += s.min;
#endif
    (void)format;
    return s;
}

// The numbers of VW elements, from element i on.
SIMD_INLINE vf v_load_scaled(const void *row, sl_format format, size_t i, v_scale s) {
#if defined(__AVX512F__)
    if (sl_formats[format].n_values == 2) {
        // Nibbles j and j + 8 lie in bits 4 j to 4 j + 3 of two words; a look-up reads the low 4 bits of a lane.
        const uint8_t *p = (const uint8_t *)row + i / 2;
        __m512i n = _mm512_broadcastd_epi32(_mm_loadu_si32(p));
        n = _mm512_mask_broadcastd_epi32(n, 0xff00, _mm_loadu_si32(p + 4));
        n = _mm512_srlv_epi32(n, _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 0, 4, 8, 12, 16, 20, 24, 28));
        return _mm512_permutexvar_ps(n, s.factor);
    }
#endif
    vf x = (v_load_weight(row, format, i) - s.offset) * s.factor;
    if (sl_formats[format].has_min) x += s.min;
    return x;
}

// One element, as v_load_weight has it.
SIMD_INLINE float weight_at(const void *row, sl_format format, size_t i) {
    const uint8_t *bytes = row;
    if (format == SL_BF16) return sl_bf16_to_f32(((const bf16 *)row)[i]);
    if (format == SL_F16) return sl_f16_to_f32(((const f16 *)row)[i]);
    if (format == SL_FP8) return sl_f16_to_f32((f16)((bytes[i] & 0x80) << 8 | (bytes[i] & 0x7f) << 7));
    if (format == SL_INT8) return (int8_t)bytes[i];
    if (format == SL_UINT8) return bytes[i];
    if (format == SL_INT4 || format == SL_UINT4) return (float)(bytes[i / 2] >> i % 2 * 4 & 15);
    if (sl_code_book(format)) return sl_code_book(format)[bytes[i / 2] >> i % 2 * 4 & 15];
    return ((const float *)row)[i];
}

// Sum and maximum over the lanes. Each step combines lane i with lane i + width / 2, then halves the width.
SIMD_INLINE float v_sum(vf x) {
#if defined(__AVX2__)
#if defined(__AVX512F__)
    __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
    __m256 eight = x;
#endif
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#endif
    float a[VW];
    memcpy(a, &x, sizeof a);
    for (int width = VW / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a[i] += a[i + width];
    return a[0];
}

// Swaps lane j of vector i and lane i of vector j. Step s does so for bit s of i and j.
#define SWAP_LOW(j, s) ((j) & (s) ? VW + (j) - (s) : (j))
#define SWAP_HIGH(j, s) ((j) & (s) ? VW + (j) : (j) + (s))
#define LANES4(of, s, at) of(at, s), of(at + 1, s), of(at + 2, s), of(at + 3, s)
#if defined(__AVX512F__)
#define ALL_LANES(of, s) ((vi){LANES4(of, s, 0), LANES4(of, s, 4), LANES4(of, s, 8), LANES4(of, s, 12)})
#elif defined(__AVX2__)
#define ALL_LANES(of, s) ((vi){LANES4(of, s, 0), LANES4(of, s, 4)})
#else
#define ALL_LANES(of, s) ((vi){LANES4(of, s, 0)})
#endif
#define SWAP_STEP(s)                                                                                                           \
    for (int i = 0; i < VW; i++) {                                                                                             \
        if (i & (s)) continue;                                                                                                 \
        vf low = __builtin_shuffle(x[i], x[i + (s)], ALL_LANES(SWAP_LOW, s));                                                  \
        x[i + (s)] = __builtin_shuffle(x[i], x[i + (s)], ALL_LANES(SWAP_HIGH, s));                                             \
        x[i] = low;                                                                                                            \
    }
SIMD_INLINE void v_transpose(vf x[VW]) {
    SWAP_STEP(1)
    SWAP_STEP(2)
#if defined(__AVX2__)
    SWAP_STEP(4)
#endif
#if defined(__AVX512F__)
    SWAP_STEP(8)
#endif
}

SIMD_INLINE int32_t v_sum_int(vi x) {
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)x);
#endif
    int32_t a[VW], sum = 0;
    memcpy(a, &x, sizeof a);
    for (int i = 0; i < VW; i++) sum += a[i];
    return sum;
}

SIMD_INLINE float v_max_lane(vf x) {
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)x);
#endif
    float a[VW];
    memcpy(a, &x, sizeof a);
    for (int width = VW / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) a[i] = a[i] > a[i + width] ? a[i] : a[i + width];
    return a[0];
}

SIMD_INLINE int v_any(vi mask) { // mask: 0 or -1 in each lane
    return v_sum_int(mask) != 0;
}

// 2^x, for x <= 127. x = n + f, n the nearest integer; 2^f is the Taylor polynomial of degree 7 on [-1/2, 1/2] (truncation
// error 2^-27). The relative error is below 2e-7. The result is 0 for x < -126, also for -inf. NaN gives NaN.
SIMD_INLINE vf v_exp2(vf x) {
    const float magic = 12582912.0f; // 1.5 * 2^23: adding it rounds to an integer
    vi keep = ~(x < -126.0f);
    x = v_max(v_set(-126.0f), x);
    vf n = (x + magic) - magic, f = x - n;
    vf y = v_set(1.52527338e-5f);
    y = v_fma(y, f, v_set(1.54035304e-4f));
    y = v_fma(y, f, v_set(1.33335581e-3f));
    y = v_fma(y, f, v_set(9.61812911e-3f));
    y = v_fma(y, f, v_set(5.55041087e-2f));
    y = v_fma(y, f, v_set(2.40226507e-1f));
    y = v_fma(y, f, v_set(6.93147181e-1f));
    y = v_fma(y, f, v_set(1.0f));
    vi scale = (__builtin_convertvector(n, vi) + 127) << 23;
    return (vf)((vi)(y * (vf)scale) & keep);
}

#endif
