#include "../../kernels/cpu/isa.h"
#include "check.h"
#include "probe.h"

static const char *const names[PROBE_COUNT] = {"exp", "sigmoid", "1 - sigmoid", "normal cdf", "gauss"};
/* The worst seen over all float32 is 1.1, 2.6, 2.8, 5.8 and 1.5 units in the last place. */
static const double limits[PROBE_COUNT] = {1.5, 3, 3, 6.5, 2};

static double truth(int function, double x) {
    switch (function) {
    case PROBE_EXP:
        return exp(x);
    case PROBE_SIGMOID:
        return 1 / (1 + exp(-x));
    case PROBE_SIGMOID_REST:
        return 1 / (1 + exp(x));
    case PROBE_NORMAL_CDF:
        return erfc(-x / sqrt(2)) / 2;
    default:
        return exp(-x * x / 2);
    }
}

static double ulp(double value) {
    const float f = (float)fabs(value);
    return f < 0x1p-126f ? 0x1p-149 : (double)nextafterf(f, INFINITY) - f;
}

TEST(simd_math_over_all_magnitudes) {
    enum { N = 4001 };
    float *x = test_memory(N * sizeof(float)), *y = test_memory(N * sizeof(float));
    for (int part = 0; part < 40; part++) {
        for (int i = 0; i < N; i++) {
            const double spread = part % 2 ? 12 * test_uniform() : copysign(exp2(150 * test_uniform()), test_uniform());
            x[i] = (float)fmax(-3e38, fmin(3e38, spread));
        }
        for (int f = 0; f < PROBE_COUNT; f++) {
            PROBE(probe_math)(f, x, y, N);
            for (int i = 0; i < N; i++) {
                const double want = truth(f, x[i]);
                if (want > 0x1.fffffep127)
                    CHECK(isinf(y[i]), "%s(%.9g) is %.9g", names[f], x[i], y[i]);
                else
                    CHECK(fabs(y[i] - want) <= limits[f] * ulp(want), "%s(%.9g) is %.9g, expected %.9g", names[f], x[i],
                          y[i], want);
            }
        }
    }
}

TEST(simd_math_of_special_numbers) {
    const float x[5] = {INFINITY, -INFINITY, 0.0f, -0.0f, NAN};
    const float want[PROBE_COUNT][4] = {
        {INFINITY, 0, 1, 1}, {1, 0, 0.5f, 0.5f}, {0, 1, 0.5f, 0.5f}, {1, 0, 0.5f, 0.5f}, {0, 0, 1, 1}};
    for (int f = 0; f < PROBE_COUNT; f++) {
        float y[5];
        PROBE(probe_math)(f, x, y, 5);
        for (int i = 0; i < 4; i++) CHECK(y[i] == want[f][i], "%s(%g) is %g", names[f], x[i], y[i]);
        CHECK(isnan(y[4]), "%s(NaN) is %g", names[f], y[4]);
    }
}

TEST(simd_halves_agree_with_base) {
    uint16_t *h = test_memory(65536 * 2), *back = test_memory(65536 * 2);
    float *f = test_memory(65536 * 4);
    for (int i = 0; i < 65536; i++) h[i] = (uint16_t)i;
    for (int d = 1; d < 3; d++) {
        const int dtype = test_float_dtypes[d];
        PROBE(probe_convert)(dtype, h, HS_F32, f, 65536);
        for (int i = 0; i < 65536; i++) {
            const float want = dtype == HS_F16 ? hs_f16_to_f32((uint16_t)i) : hs_bf16_to_f32((uint16_t)i);
            CHECK(isnan(want) ? isnan(f[i]) : hs_bits_of_float(f[i]) == hs_bits_of_float(want), "%s %04x: %g, %g",
                  hs_dtype_name(dtype), i, f[i], want);
        }
        for (int step = 0; step < 64; step++) {
            /* Around every boundary of rounding, and odd bits elsewhere. */
            const uint32_t low = step < 8 ? (uint32_t)(step - 4) : (uint32_t)(step * 0x3c5b1) & 0xffff;
            for (uint32_t i = 0; i < 65536; i++)
                f[i] = hs_float_of_bits((i << 16) + (step % 2 ? 0x8000u : 0x1000u) + low);
            PROBE(probe_convert)(HS_F32, f, dtype, back, 65536);
            for (int i = 0; i < 65536; i++) {
                const uint16_t want = dtype == HS_F16 ? hs_f32_to_f16(f[i]) : hs_f32_to_bf16(f[i]);
                CHECK(back[i] == want, "%a to %s: %04x, expected %04x", f[i], hs_dtype_name(dtype), back[i], want);
            }
        }
    }
}

TEST(simd_tails_and_sums) {
    for (int s = 0; s < test_size_count; s++) {
        const int64_t n = test_sizes[s];
        float *x = test_memory(n * 4);
        double want = 0;
        for (int64_t i = 0; i < n; i++) want += (x[i] = (float)(i + 1)) + 1;
        CHECK(PROBE(probe_sum)(x, n) == want, "the sum of %lld", (long long)n);
        for (int from = 0; from < 3; from++)
            for (int to = 0; to < 3; to++) {
                const hs_tensor a = test_vector(test_float_dtypes[from], n), b = test_vector(test_float_dtypes[to], n);
                for (int64_t i = 0; i < n; i++) test_put(&a, i, (double)i - 5);
                PROBE(probe_convert)(a.dtype, a.data, b.dtype, b.data, n);
                for (int64_t i = 0; i < n; i++) CHECK(test_get(&b, i) == (double)i - 5, "element %lld", (long long)i);
            }
    }
}
