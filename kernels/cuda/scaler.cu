#include "../ops/scaler.h"

#include "multi_tensor.cuh"

namespace {
constexpr const char *op = "scaler";
constexpr int loads = 4; /* 16-byte packs of one thread in flight */
constexpr int tensors_per_launch = 1024;

struct gradient_batch {
    tensor_batch<1, tensors_per_launch> tensors;
    uint8_t dtype[tensors_per_launch];
    const float *scale; /* NULL without unscale */
    float *found_inf;
};
static_assert(sizeof(gradient_batch) <= max_parameter_bytes, "a kernel takes no larger parameter");

/* ---- check ---- */
/* Packs of N elements that lie whole in [begin, end). What is judged is what is stored, so that a product that
 * overflows only when it is rounded to T counts too. */
template <typename T, int N>
__device__ __forceinline__ bool check_packs(T *g, int64_t begin, int64_t end, bool unscale, float inverse) {
    bool bad = false;
    const int64_t step = int64_t(chunk_threads) * N;
    for (int64_t i = begin + int64_t(threadIdx.x) * N; i + N <= end; i += step * loads) {
        pack<T, N> raw[loads];
#pragma unroll
        for (int u = 0; u < loads; u++) {
            const int64_t at = i + u * step;
            if (at + N <= end) {
                raw[u] = *reinterpret_cast<const pack<T, N> *>(g + at);
            } else {
#pragma unroll
                for (int j = 0; j < N; j++) raw[u].value[j] = from_float<T>(0.f);
            }
        }
#pragma unroll
        for (int u = 0; u < loads; u++) {
            const int64_t at = i + u * step;
            if (unscale) {
#pragma unroll
                for (int j = 0; j < N; j++) raw[u].value[j] = from_float<T>(to_float(raw[u].value[j]) * inverse);
                if (at + N <= end) *reinterpret_cast<pack<T, N> *>(g + at) = raw[u];
            }
#pragma unroll
            for (int j = 0; j < N; j++) bad |= !isfinite(to_float(raw[u].value[j]));
        }
    }
    return bad;
}

template <typename T> __device__ bool check_chunk(void *data, const chunk &c, bool unscale, float inverse) {
    constexpr int N = 16 / sizeof(T);
    T *g = static_cast<T *>(data);
    if (!holds_packs<T, N>(g)) return check_packs<T, 1>(g, c.begin, c.end, unscale, inverse);
    const int64_t packs_end = c.end - c.end % N;
    const bool bad = check_packs<T, N>(g, c.begin, packs_end, unscale, inverse);
    return bad | check_packs<T, 1>(g, packs_end, c.end, unscale, inverse);
}

/* Every thread that finds something stores the same value, so no order matters. */
__global__ void __launch_bounds__(chunk_threads) scaler_check_kernel(const __grid_constant__ gradient_batch batch) {
    const chunk c = chunk_of(batch.tensors, blockIdx.x);
    const bool unscale = batch.scale != nullptr;
    const float scale = unscale ? *batch.scale : 1.f;
    if (!(scale > 0.f && isfinite(scale))) {
        *batch.found_inf = 1.f;
        return;
    }
    const float inverse = float(1.0 / double(scale));
    void *g = batch.tensors.data[0][c.tensor];
    bool bad = false;
    switch (batch.dtype[c.tensor]) {
    case HS_F32:
        bad = check_chunk<float>(g, c, unscale, inverse);
        break;
    case HS_F16:
        bad = check_chunk<__half>(g, c, unscale, inverse);
        break;
    default:
        bad = check_chunk<__nv_bfloat16>(g, c, unscale, inverse);
    }
    if (bad) *batch.found_inf = 1.f;
}

/* ---- update ---- */
struct scale_update {
    float *scale;
    int32_t *growth_tracker;
    const float *found_inf;
    double growth_factor, backoff_factor;
    int64_t growth_interval;
    double min_scale, max_scale;
};

/* One thread. */
__global__ void scaler_update_kernel(const scale_update a) {
    if (*a.found_inf != 0.f) {
        const double lower = double(*a.scale) * a.backoff_factor;
        *a.scale = float(lower >= a.min_scale ? lower : a.min_scale);
        *a.growth_tracker = 0;
        return;
    }
    const int64_t steps = int64_t(*a.growth_tracker) + 1;
    if (steps < a.growth_interval) {
        *a.growth_tracker = int32_t(steps);
        return;
    }
    const double higher = double(*a.scale) * a.growth_factor;
    const float grown = float(higher > a.max_scale ? a.max_scale : higher);
    if (isfinite(grown)) *a.scale = grown;
    *a.growth_tracker = 0;
}
} // namespace

extern "C" hs_status hs_scaler_check_cuda(const hs_ctx *ctx, const hs_scaler_check_args *args) {
    gradient_batch batch;
    batch.scale = hs_present(&args->scale) ? static_cast<const float *>(args->scale.data) : nullptr;
    batch.found_inf = static_cast<float *>(args->found_inf.data);
    for (int64_t next = 0; next < args->g.count;) {
        batch.tensors.count = 0;
        for (; next < args->g.count && batch.tensors.count < tensors_per_launch; next++) {
            const hs_tensor *g = &args->g.items[next];
            const int i = batch_append(&batch.tensors, hs_numel(g));
            batch.tensors.data[0][i] = g->data;
            batch.dtype[i] = uint8_t(g->dtype);
        }
        const unsigned blocks = batch_blocks(&batch.tensors);
        if (blocks > 0) scaler_check_kernel<<<blocks, chunk_threads, 0, stream_of(ctx)>>>(batch);
    }
    return launched(op);
}

extern "C" hs_status hs_scaler_update_cuda(const hs_ctx *ctx, const hs_scaler_update_args *args) {
    const scale_update update = {static_cast<float *>(args->scale.data),
                                 static_cast<int32_t *>(args->growth_tracker.data),
                                 static_cast<const float *>(args->found_inf.data),
                                 args->growth_factor,
                                 args->backoff_factor,
                                 args->growth_interval,
                                 args->min_scale,
                                 args->max_scale};
    scaler_update_kernel<<<1, 1, 0, stream_of(ctx)>>>(update);
    return launched(op);
}
