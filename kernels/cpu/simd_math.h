/* simd_math.h - functions of a vector, to about two units in the last place.
 *
 * Infinities and NaN behave as in the C library. The polynomials are minimax fits of the named functions. */
#ifndef HS_CPU_SIMD_MATH_H
#define HS_CPU_SIMD_MATH_H
#include "simd.h"

/* exp(x) = 2^n exp(r) with |r| <= log(2) / 2; gradual underflow included. */
HS_INLINE hs_vf hs_exp(hs_vf x) {
    const float log2_high = 0.693145751953125f, log2_low = 1.428606820309417e-6f;
    const float round_to_integer = 12582912.0f; /* 1.5 * 2^23: after the addition the last bit is worth one */
    /* Past these limits the result is infinity or zero all the same, and n stays small. */
    x = hs_clamp(x, -106.0f, 90.0f);
    const hs_vf shifted = hs_fma(x, hs_splat(1.442695040888963f), hs_splat(round_to_integer));
    const hs_vf n = shifted - round_to_integer;
    const hs_vf r = hs_fma(n, hs_splat(-log2_low), hs_fma(n, hs_splat(-log2_high), x));
    hs_vf q = hs_splat(0.0013950600987300277f);
    q = hs_fma(q, r, hs_splat(0.008368953131139278f));
    q = hs_fma(q, r, hs_splat(0.04166620597243309f));
    q = hs_fma(q, r, hs_splat(0.166665181517601f));
    q = hs_fma(q, r, hs_splat(0.5f));
    const hs_vf p = hs_fma(q * r, r, r) + 1.0f;
#ifdef __AVX512F__
    return (hs_vf)_mm512_scalef_ps((__m512)p, (__m512)n);
#else
    /* Two factors, because 2^n itself may be out of range where the product is not. */
    const hs_vi exponent = (hs_vi)shifted - (hs_vi)hs_splat(round_to_integer), half = exponent >> 1;
    return p * (hs_vf)((half + 127) << 23) * (hs_vf)((exponent - half + 127) << 23);
#endif
}

/* 1 / (1 + exp(-x)); *rest is 1 minus it, without cancellation. */
HS_INLINE hs_vf hs_sigmoid(hs_vf x, hs_vf *rest) {
    const hs_vf e = hs_exp(-hs_abs(x));
    const hs_vf large = 1.0f / (1.0f + e), small = e * large;
    *rest = hs_select(x > 0.0f, small, large);
    return hs_select(x > 0.0f, large, small);
}

/* x^2 minus its rounded value, exact. */
HS_INLINE hs_vf hs_square_residue(hs_vf x, hs_vf square) {
#if defined __AVX2__ || defined __aarch64__
    return hs_fma(x, x, -square);
#else
    const hs_vf high = (hs_vf)((hs_vi)x & -4096), low = x - high; /* twelve bits each, so the products are exact */
    return ((high * high - square) + 2.0f * high * low) + low * low;
#endif
}

/* The probability that a standard normal variable is below x, (1 + erf(x / sqrt 2)) / 2, to a few units in the last
 * place in the left tail too; *gauss is exp(-x^2 / 2). */
HS_INLINE hs_vf hs_normal_cdf(hs_vf x, hs_vf *gauss) {
    /* From 20 on both results are 0 or 1, and infinity must not meet the residue below. */
    const hs_vf size = hs_min(hs_splat(20.0f), hs_abs(x));
    const hs_vf square = size * size, residue = hs_square_residue(size, square);
    const hs_vf e = hs_exp(square * -0.5f);
    *gauss = hs_fma(e * -0.5f, residue, e);
    /* The tail is gauss * t * p(t): the scaled complementary error function in t = 1 / (1 + 0.3 |x|). */
    const hs_vf t = 1.0f / hs_fma(size, hs_splat(0.3f), hs_splat(1.0f));
    hs_vf p = hs_splat(-0.020623458549380302f);
    p = hs_fma(p, t, hs_splat(0.11243555694818497f));
    p = hs_fma(p, t, hs_splat(-0.22821347415447235f));
    p = hs_fma(p, t, hs_splat(0.1917843520641327f));
    p = hs_fma(p, t, hs_splat(-0.07942333817481995f));
    p = hs_fma(p, t, hs_splat(0.09615674614906311f));
    p = hs_fma(p, t, hs_splat(0.07838967987570572f));
    p = hs_fma(p, t, hs_splat(0.11023541539907455f));
    p = hs_fma(p, t, hs_splat(0.11957181245088577f));
    p = hs_fma(p, t, hs_splat(0.11968669295310974f));
    const hs_vf tail = *gauss * t * p;
    /* Within one standard deviation the odd series about one half has the smaller error. */
    hs_vf q = hs_splat(-7.664679287699983e-06f);
    q = hs_fma(q, square, hs_splat(0.00011351266584824771f));
    q = hs_fma(q, square, hs_splat(-0.0011863530380651355f));
    q = hs_fma(q, square, hs_splat(0.009973331354558468f));
    q = hs_fma(q, square, hs_splat(-0.06649035960435867f));
    q = hs_fma(q, square, hs_splat(0.3989422917366028f));
    return hs_select(size < 1.0f, hs_fma(q, x, hs_splat(0.5f)), hs_select(x > 0.0f, 1.0f - tail, tail));
}
#endif
