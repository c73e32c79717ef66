/* simd.h - one vector of HS_LANES float32 and how it reaches memory of any float dtype.
 *
 * A kernel file includes this, is compiled once per instruction set with -DHS_ISA=<name>, and names each exported
 * function HS_CPU(hs_<op>_<pass>). Arithmetic is written with the operators of the compiler's vector types.
 *
 * dtype arguments are constants at every call in a hot loop, so their switches cost nothing. A count below HS_LANES
 * marks the tail of a row: nothing outside its count elements is read or written, and the lanes past it load as
 * zero. */
#ifndef HS_CPU_SIMD_H
#define HS_CPU_SIMD_H
#include <stdint.h>
#include <string.h>

#include "../base/half.h"
#include "../base/tensor.h"

#ifdef __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#endif

#define HS_PASTE_(name, isa) name##_cpu_##isa
#define HS_PASTE(name, isa) HS_PASTE_(name, isa)
#define HS_CPU(name) HS_PASTE(name, HS_ISA)
#define HS_INLINE static inline __attribute__((always_inline))

#if defined __AVX512F__
enum { HS_LANES = 16 };
#elif defined __AVX2__
enum { HS_LANES = 8 };
#else
enum { HS_LANES = 4 };
#endif

typedef float hs_vf __attribute__((vector_size(4 * HS_LANES)));
typedef int32_t hs_vi __attribute__((vector_size(4 * HS_LANES)));
typedef uint32_t hs_vu __attribute__((vector_size(4 * HS_LANES)));
typedef uint16_t hs_vh __attribute__((vector_size(2 * HS_LANES)));

/* ---- lanes ---- */
HS_INLINE hs_vf hs_splat(float f) {
    return f - (hs_vf){0};
}
HS_INLINE hs_vi hs_lane_numbers(void) {
    hs_vi n;
    for (int i = 0; i < HS_LANES; i++) n[i] = i;
    return n;
}
/* mask comes from a comparison: all ones or all zeros in each lane. */
HS_INLINE hs_vf hs_select(hs_vi mask, hs_vf yes, hs_vf no) {
    return (hs_vf)(((hs_vi)yes & mask) | ((hs_vi)no & ~mask));
}
/* The first count lanes of v, zero in the others. */
HS_INLINE hs_vf hs_keep(hs_vf v, int64_t count) {
    return count >= HS_LANES ? v : (hs_vf)((hs_vi)v & (hs_lane_numbers() < (int32_t)count));
}
HS_INLINE hs_vf hs_abs(hs_vf v) {
    return (hs_vf)((hs_vi)v & 0x7fffffff);
}
/* a > b ? a : b, so b where one of them is NaN. */
HS_INLINE hs_vf hs_max(hs_vf a, hs_vf b) {
#if defined __AVX512F__
    return (hs_vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (hs_vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined __x86_64__
    return (hs_vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return hs_select(a > b, a, b);
#endif
}
/* a < b ? a : b, so b where one of them is NaN. */
HS_INLINE hs_vf hs_min(hs_vf a, hs_vf b) {
#if defined __AVX512F__
    return (hs_vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (hs_vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined __x86_64__
    return (hs_vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return hs_select(a < b, a, b);
#endif
}
/* A NaN in v stays. */
HS_INLINE hs_vf hs_clamp(hs_vf v, float low, float high) {
    return hs_min(hs_splat(high), hs_max(hs_splat(low), v));
}
/* a b + c, rounded once where the instruction set can. */
HS_INLINE hs_vf hs_fma(hs_vf a, hs_vf b, hs_vf c) {
#if defined __AVX512F__
    return (hs_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined __AVX2__
    return (hs_vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined __aarch64__
    return (hs_vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    return a * b + c;
#endif
}

HS_INLINE hs_vf hs_sqrt(hs_vf v) {
#if defined __AVX512F__
    return (hs_vf)_mm512_sqrt_ps((__m512)v);
#elif defined __AVX2__
    return (hs_vf)_mm256_sqrt_ps((__m256)v);
#elif defined __x86_64__
    return (hs_vf)_mm_sqrt_ps((__m128)v);
#elif defined __aarch64__
    return (hs_vf)vsqrtq_f32((float32x4_t)v);
#else
    for (int i = 0; i < HS_LANES; i++) v[i] = __builtin_sqrtf(v[i]);
    return v;
#endif
}

/* Across the lanes, halving the width each time. */
HS_INLINE float hs_sum_lanes(hs_vf v) {
    for (int width = HS_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) v[i] += v[i + width];
    return v[0];
}
HS_INLINE float hs_max_lanes(hs_vf v) {
    float largest = v[0];
    for (int i = 1; i < HS_LANES; i++) largest = v[i] > largest ? v[i] : largest;
    return largest;
}

/* ---- sixteen bits ---- */
HS_INLINE hs_vu hs_widen(hs_vh h) {
#if defined __AVX512F__
    return (hs_vu)_mm512_cvtepu16_epi32((__m256i)h);
#elif defined __AVX2__
    return (hs_vu)_mm256_cvtepu16_epi32((__m128i)h);
#else
    return __builtin_convertvector(h, hs_vu);
#endif
}
/* Keeps the low half of each lane. */
HS_INLINE hs_vh hs_narrow(hs_vu v) {
#if defined __AVX512F__
    return (hs_vh)_mm512_cvtepi32_epi16((__m512i)v);
#else
    return __builtin_convertvector(v, hs_vh);
#endif
}

HS_INLINE hs_vf hs_vf_of_bf16(hs_vh h) {
    return (hs_vf)(hs_widen(h) << 16);
}
HS_INLINE hs_vh hs_bf16_of_vf(hs_vf f) {
    const hs_vu bits = (hs_vu)f;
    const hs_vu nan = (hs_vu)((hs_vi)(bits & 0x7fffffffu) > 0x7f800000);
    const hs_vu rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return hs_narrow((rounded & ~nan) | ((bits >> 16 | 0x40u) & nan));
}

/* Without an instruction for it, the arithmetic of base/half.h in every lane. */
HS_INLINE hs_vf hs_vf_of_f16(hs_vh h) {
#if defined __AVX512F__
    return (hs_vf)_mm512_cvtph_ps((__m256i)h);
#elif defined __AVX2__
    return (hs_vf)_mm256_cvtph_ps((__m128i)h);
#else
    const hs_vi bits = (hs_vi)hs_widen(h);
    const hs_vi magnitude = bits & 0x7fff, sign = (bits & 0x8000) << 16;
    /* The exponent is rebased by 112, and by as much again when it must become that of infinity and NaN. */
    const hs_vi rebased = (magnitude << 13) + (112 << 23) + ((magnitude >= 0x7c00) & (112 << 23));
    const hs_vf subnormal = __builtin_convertvector(magnitude, hs_vf) * 5.9604644775390625e-8f; /* 2^-24 */
    return (hs_vf)((hs_vi)hs_select(magnitude < 0x0400, subnormal, (hs_vf)rebased) | sign);
#endif
}
HS_INLINE hs_vh hs_f16_of_vf(hs_vf f) {
#if defined __AVX512F__
    return (hs_vh)_mm512_cvtps_ph((__m512)f, _MM_FROUND_TO_NEAREST_INT);
#elif defined __AVX2__
    return (hs_vh)_mm256_cvtps_ph((__m256)f, _MM_FROUND_TO_NEAREST_INT);
#else
    const hs_vi bits = (hs_vi)f, magnitude = bits & 0x7fffffff, sign = (hs_vi)((hs_vu)bits >> 16 & 0x8000u);
    const hs_vi is_nan = magnitude > 0x7f800000, is_large = magnitude >= 0x477ff000,
                is_normal = magnitude >= 0x38800000;
    const hs_vi nan = 0x7e00 | (magnitude >> 13 & 0x1ff);
    const hs_vi normal = (magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    const hs_vi subnormal = (hs_vi)((hs_vf)magnitude + 0.5f) - 0x3f000000;
    const hs_vi finite = (normal & is_normal) | (subnormal & ~is_normal);
    const hs_vi result = (nan & is_nan) | (0x7c00 & is_large & ~is_nan) | (finite & ~is_large);
    return hs_narrow((hs_vu)(result | sign));
#endif
}

/* ---- memory ---- */
/* The vector at element i of a row. */
HS_INLINE hs_vf hs_load(int dtype, const void *row, int64_t i, int64_t count) {
    hs_vf f = {0};
    hs_vh h = {0};
    const uint64_t lanes = count < HS_LANES ? (uint64_t)count : HS_LANES;
    switch (dtype) {
    case HS_F32:
        memcpy(&f, (const float *)row + i, 4 * lanes);
        return f;
    case HS_F16:
        memcpy(&h, (const uint16_t *)row + i, 2 * lanes);
        return hs_vf_of_f16(h);
    default:
        memcpy(&h, (const uint16_t *)row + i, 2 * lanes);
        return hs_vf_of_bf16(h);
    }
}
/* Rounds v to dtype, to nearest even, and writes it at element i of a row. */
HS_INLINE void hs_store(int dtype, void *row, int64_t i, hs_vf v, int64_t count) {
    hs_vh h;
    const uint64_t lanes = count < HS_LANES ? (uint64_t)count : HS_LANES;
    switch (dtype) {
    case HS_F32:
        memcpy((float *)row + i, &v, 4 * lanes);
        return;
    case HS_F16:
        h = hs_f16_of_vf(v);
        memcpy((uint16_t *)row + i, &h, 2 * lanes);
        return;
    default:
        h = hs_bf16_of_vf(v);
        memcpy((uint16_t *)row + i, &h, 2 * lanes);
    }
}
/* What v becomes when it is stored as dtype and loaded again. */
HS_INLINE hs_vf hs_round_to(int dtype, hs_vf v) {
    switch (dtype) {
    case HS_F32:
        return v;
    case HS_F16:
        return hs_vf_of_f16(hs_f16_of_vf(v));
    default:
        return hs_vf_of_bf16(hs_bf16_of_vf(v));
    }
}
/* Row number row of a contiguous tensor; NULL when it is absent. */
HS_INLINE char *hs_row(const hs_tensor *t, int64_t row, int64_t cols) {
    return hs_present(t) ? (char *)t->data + row * cols * hs_dtype_size(t->dtype) : NULL;
}

/* ---- loops ---- */
/* Calls STEP(k, i, count) for every vector of [0, n): k in 0..3 names one of four independent accumulators, which
 * hide the latency of an addition, and count is HS_LANES except in the last call. STEP is a macro or an HS_INLINE
 * function. */
#define HS_SWEEP(n, STEP)                                                                                              \
    do {                                                                                                               \
        const int64_t hs_n = (n);                                                                                      \
        int64_t hs_i = 0;                                                                                              \
        for (; hs_i + 4 * HS_LANES <= hs_n; hs_i += 4 * HS_LANES) {                                                    \
            STEP(0, hs_i, HS_LANES);                                                                                   \
            STEP(1, hs_i + HS_LANES, HS_LANES);                                                                        \
            STEP(2, hs_i + 2 * HS_LANES, HS_LANES);                                                                    \
            STEP(3, hs_i + 3 * HS_LANES, HS_LANES);                                                                    \
        }                                                                                                              \
        for (; hs_i + HS_LANES <= hs_n; hs_i += HS_LANES) STEP(0, hs_i, HS_LANES);                                     \
        if (hs_i < hs_n) STEP(1, hs_i, hs_n - hs_i);                                                                   \
    } while (0)
/* The same one vector at a time, for loops that add nothing up: STEP(i, count). */
#define HS_EACH(n, STEP)                                                                                               \
    do {                                                                                                               \
        const int64_t hs_n = (n);                                                                                      \
        int64_t hs_i = 0;                                                                                              \
        for (; hs_i + HS_LANES <= hs_n; hs_i += HS_LANES) STEP(hs_i, HS_LANES);                                        \
        if (hs_i < hs_n) STEP(hs_i, hs_n - hs_i);                                                                      \
    } while (0)
#endif
