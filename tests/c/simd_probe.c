/* simd_probe.c - the inline functions of kernels/cpu/simd*.h behind calls, compiled once per instruction set. */
#include "../../kernels/cpu/simd_math.h"
#include "probe.h"

void HS_CPU(probe_math)(int function, const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += HS_LANES) {
        const int64_t count = n - i < HS_LANES ? n - i : HS_LANES;
        const hs_vf v = hs_load(HS_F32, x, i, count);
        hs_vf other, result;
        switch (function) {
        case PROBE_EXP:
            result = hs_exp(v);
            break;
        case PROBE_SIGMOID:
            result = hs_sigmoid(v, &other);
            break;
        case PROBE_SIGMOID_REST:
            hs_sigmoid(v, &result);
            break;
        case PROBE_NORMAL_CDF:
            result = hs_normal_cdf(v, &other);
            break;
        default:
            hs_normal_cdf(v, &result);
        }
        hs_store(HS_F32, y, i, result, count);
    }
}

void HS_CPU(probe_convert)(int from, const void *x, int to, void *y, int64_t n) {
    for (int64_t i = 0; i < n; i += HS_LANES) {
        const int64_t count = n - i < HS_LANES ? n - i : HS_LANES;
        hs_store(to, y, i, hs_load(from, x, i, count), count);
    }
}

float HS_CPU(probe_sum)(const float *x, int64_t n) {
    hs_vf sum[4] = {{0}};
#define STEP(k, i, count) sum[k] += hs_keep(hs_load(HS_F32, x, i, count) + 1.0f, count)
    HS_SWEEP(n, STEP);
#undef STEP
    return hs_sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
}
