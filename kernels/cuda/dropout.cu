/* dropout.cu - the contract is in ops/dropout.h. A thread takes packs of 16 bytes and draws one philox block for every
 * four elements; the word of an element depends on its index alone, so the launch shape does not show. */
#include "../ops/dropout.h"

#include "../base/philox.h"
#include "rows.cuh"

static const char op[] = "dropout";

constexpr int threads = 256, blocks_per_multiprocessor = 8, packs_ahead = 2;

struct dropout_draw {
    const int64_t *state; /* seed and offset, instead of the two below */
    uint64_t seed, offset;
    uint64_t threshold; /* kept where word >= threshold, which is 2^32 where nothing is kept */
    float scale;
};

/* Draws for four elements, of which the first has an index that is a multiple of four. */
__device__ __forceinline__ void drop_four(float *v, int64_t first, uint64_t seed, uint64_t offset,
                                          const dropout_draw &draw) {
    const hs_philox_words words = hs_philox(seed, offset, static_cast<uint64_t>(first) / 4);
#pragma unroll
    for (int k = 0; k < 4; k++) v[k] = words.word[k] >= draw.threshold ? v[k] * draw.scale : 0.f;
}

/* y may be x: an element is read before it is written, by the same thread. */
template <typename T>
__global__ void __launch_bounds__(threads)
    dropout_kernel(const T *x, T *y, int64_t count, bool vector, const dropout_draw draw) {
    constexpr int N = pack_of<T>, ahead = packs_ahead;
    const uint64_t seed = draw.state ? static_cast<uint64_t>(draw.state[0]) : draw.seed;
    const uint64_t offset = draw.state ? static_cast<uint64_t>(draw.state[1]) : draw.offset;
    const int64_t thread = int64_t(blockIdx.x) * threads + threadIdx.x, all = int64_t(gridDim.x) * threads;
    const int64_t whole = vector ? count / N * N : 0; /* the elements that packs cover */
    for (int64_t first = thread * N; first < whole; first += ahead * all * N) {
        raw<T, N> packs[ahead] = {};
#pragma unroll
        for (int i = 0; i < ahead; i++)
            if (first + i * all * N < whole) packs[i] = load_raw<T, N>(x + first + i * all * N);
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int64_t at = first + i * all * N;
            if (at >= whole) break;
            float v[N];
            unpack(packs[i], v);
#pragma unroll
            for (int k = 0; k < N; k += 4) drop_four(v + k, at + k, seed, offset, draw);
            store_raw(y + at, repack<T, N>(v));
        }
    }
    for (int64_t first = whole + thread * 4; first < count; first += all * 4) {
        float v[4];
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = first + k < count ? to_float(x[first + k]) : 0.f;
        drop_four(v, first, seed, offset, draw);
#pragma unroll
        for (int k = 0; k < 4; k++)
            if (first + k < count) y[first + k] = from_float<T>(v[k]);
    }
}

template <typename T> static hs_status launch(const hs_ctx *ctx, const hs_dropout_args *args) {
    constexpr int n = pack_of<T>;
    /* Kept where word >= p * 2^32; the product is exact in double. */
    const double bound = args->p * 4294967296.0;
    const uint64_t floor = static_cast<uint64_t>(bound), threshold = floor + (static_cast<double>(floor) < bound);
    const float scale = args->p < 1 ? static_cast<float>(1 / (1 - args->p)) : 0.f;
    const dropout_draw draw = {hs_present(&args->state) ? static_cast<const int64_t *>(args->state.data) : nullptr,
                               static_cast<uint64_t>(args->seed), static_cast<uint64_t>(args->offset), threshold,
                               scale};
    const int64_t count = hs_numel(&args->x), wanted = ceil_div(count, int64_t(threads) * n);
    const int64_t most =
        int64_t(hs_device_properties_of(ctx->device.index)->multiprocessors) * blocks_per_multiprocessor;
    const bool vector = is_aligned_for(&args->x, n) && is_aligned_for(&args->y, n);
    dropout_kernel<T><<<static_cast<unsigned>(wanted < most ? wanted : most), threads, 0, stream_of(ctx)>>>(
        static_cast<const T *>(args->x.data), static_cast<T *>(args->y.data), count, vector, draw);
    return launched(op);
}

extern "C" hs_status hs_dropout_cuda(const hs_ctx *ctx, const hs_dropout_args *args) {
    if (hs_numel(&args->x) == 0) return HS_OK;
    switch (args->x.dtype) {
    case HS_F32:
        return launch<float>(ctx, args);
    case HS_F16:
        return launch<__half>(ctx, args);
    default:
        return launch<__nv_bfloat16>(ctx, args);
    }
}
