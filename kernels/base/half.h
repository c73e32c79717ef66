/* half.h - one float16 or bfloat16 to float32 and back, round to nearest even, by integer arithmetic.
 *
 * For edges and tails; rows go through the vector loads of kernels/cpu/simd.h. */
#ifndef HS_HALF_H
#define HS_HALF_H
#include <stdint.h>
#include <string.h>

static inline float hs_float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}
static inline uint32_t hs_bits_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return bits;
}

static inline float hs_bf16_to_f32(uint16_t h) {
    return hs_float_of_bits((uint32_t)h << 16);
}
static inline uint16_t hs_f32_to_bf16(float f) {
    const uint32_t bits = hs_bits_of_float(f);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u); /* a NaN stays one */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

static inline float hs_f16_to_f32(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, magnitude = h & 0x7fffu;
    if (magnitude >= 0x7c00u) return hs_float_of_bits(sign | 0x7f800000u | (magnitude & 0x3ffu) << 13);
    if (magnitude >= 0x0400u) return hs_float_of_bits(sign | ((magnitude << 13) + (112u << 23)));
    const float subnormal = (float)magnitude * 5.9604644775390625e-8f; /* 2^-24 */
    return sign ? -subnormal : subnormal;
}
static inline uint16_t hs_f32_to_f16(float f) {
    const uint32_t bits = hs_bits_of_float(f), magnitude = bits & 0x7fffffffu;
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    if (magnitude > 0x7f800000u) return sign | 0x7e00u | (uint16_t)(magnitude >> 13 & 0x1ffu);
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u; /* 65520 and above round to infinity */
    if (magnitude >= 0x38800000u)
        return sign | (uint16_t)((magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
    /* Adding 0.5 leaves the value in units of 2^-24 in the low bits, rounded to even by the addition itself. */
    return sign | (uint16_t)(hs_bits_of_float(hs_float_of_bits(magnitude) + 0.5f) - 0x3f000000u);
}
#endif
