/* norm.cu - LayerNorm, forward. The contract is in ops/norm.h, the launch shapes are in norm.cuh.
 *
 * The grid fills the device once. A group of threads takes every step-th row and loads the next one before it works on
 * the one it has, so that the memory never waits for a reduction. */
#include "../ops/norm.h"

#include "norm.cuh"

static const char op[] = "layer_norm";

template <typename T, typename H> struct forward_rows {
    const T *x;
    const H *residual;
    weights w, b;
    T *y;
    H *sum;
    int64_t rows, cols;
    float eps;
    bool vector;
};

/* Blocks of a multiprocessor: 64 registers a thread for one or two packs, 80 for three, 128 for four. */
constexpr int forward_blocks(shape s) {
    return (s.packs <= 2 ? 1024 : s.packs == 3 ? 768 : 512) / threads_of(s);
}

template <typename T, typename H, int N, int G, int NP>
__device__ __forceinline__ void add_residual(raw<H, N> (&h)[NP], const raw<T, N> (&x)[NP],
                                             const raw<H, N> (&residual)[NP], H *sum, const slice<N, G> &s) {
#pragma unroll
    for (int j = 0; j < NP; j++) {
        float a[N], r[N];
        unpack(x[j], a);
        unpack(residual[j], r);
#pragma unroll
        for (int k = 0; k < N; k++) a[k] += r[k];
        h[j] = repack<H, N>(a);
        store_slice(sum, s, j, a);
    }
}

template <typename T, typename H, int I>
__global__ void __launch_bounds__(threads_of(shapes[I]), forward_blocks(shapes[I]))
    norm_forward_kernel(const forward_rows<T, H> a) {
    constexpr int N = pack_of<H>, G = shapes[I].group, NP = shapes[I].packs, tile = tile_of(shapes[I], N);
    extern __shared__ float4 shared[];
    __shared__ float slots[2][warp_size];
    float *w = reinterpret_cast<float *>(shared), *b = w + tile;
    const int cols = static_cast<int>(a.cols);
    const slice<N, G> s(threadIdx.x % G, cols, a.vector);
    const int64_t step = int64_t(gridDim.x) * rows_of(shapes[I]);
    const int64_t begin = int64_t(blockIdx.x) * rows_of(shapes[I]) + threadIdx.x / G;
    raw<T, N> next_x[NP];
    raw<H, N> next_residual[NP] = {};
    /* The first turn has no row yet: it loads the first one and fills the weights meanwhile. */
    for (int64_t row = begin - step; row < a.rows; row += step) {
        const int64_t here = row * cols, next = here + step * cols;
        raw<T, N> x[NP];
        raw<H, N> h[NP];
#pragma unroll
        for (int j = 0; j < NP; j++) {
            x[j] = next_x[j];
            h[j] = next_residual[j];
        }
        if (row + step < a.rows) {
            load_slice(next_x, a.x + next, s);
            if (a.residual) load_slice(next_residual, a.residual + next, s);
        }
        if (row < 0) {
            fill_weights<T, N, G, NP>(w, a.w, 1.f, cols, a.vector);
            fill_weights<T, N, G, NP>(b, a.b, 0.f, cols, a.vector);
            __syncthreads();
            continue;
        }
        if constexpr (sizeof(T) == sizeof(H)) { // H is T or float
            if (a.residual) {
                add_residual(h, x, h, a.sum + here, s);
            } else {
#pragma unroll
                for (int j = 0; j < NP; j++) h[j] = x[j];
            }
        } else {
            add_residual(h, x, h, a.sum + here, s);
        }
        const row_stats stats = stats_of_slice(h, s, static_cast<float>(cols), a.eps, slots);
        keep_packed(h);
#pragma unroll
        for (int j = 0; j < NP; j++) {
            float v[N], fw[N], fb[N];
            unpack(h[j], v);
            read_weights<N, G>(w, s.lane, j, fw);
            read_weights<N, G>(b, s.lane, j, fb);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = normalised(v[k], stats) * fw[k] + fb[k];
            store_slice(a.y + here, s, j, v);
        }
    }
}

template <typename T, typename H>
__global__ void __launch_bounds__(loop_threads) norm_forward_loop_kernel(const forward_rows<T, H> a) {
    constexpr int N = pack_of<H>, G = loop_threads, NP = loop_packs;
    __shared__ float slots[2][warp_size];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const int64_t here = row * a.cols;
        /* The sum is written first and read back by the thread that wrote it. */
        const H *h = a.residual ? a.sum + here : reinterpret_cast<const H *>(a.x + here);
        if (a.residual)
            for (int64_t first = 0; first < a.cols; first += G * NP * N) {
                const slice<N, G> s(threadIdx.x, a.cols - first, a.vector);
                raw<T, N> x[NP];
                raw<H, N> residual[NP];
                load_slice(x, a.x + here + first, s);
                load_slice(residual, a.residual + here + first, s);
                add_residual(residual, x, residual, a.sum + here + first, s);
            }
        const row_stats stats = stats_of_row<H, N>(h, a.cols, a.vector, a.eps, slots);
        for (int64_t first = 0; first < a.cols; first += G * NP * N) {
            const slice<N, G> s(threadIdx.x, a.cols - first, a.vector);
            raw<H, N> part[NP];
            load_slice(part, h + first, s);
#pragma unroll
            for (int j = 0; j < NP; j++) {
                float v[N];
                unpack(part[j], v);
#pragma unroll
                for (int k = 0; k < N; k++)
                    if (j * N + k < s.count) {
                        const int64_t column = first + s.column(j, k);
                        v[k] =
                            normalised(v[k], stats) * weight_at<T>(a.w, column, 1.f) + weight_at<T>(a.b, column, 0.f);
                    }
                store_slice(a.y + here + first, s, j, v);
            }
        }
    }
}

/* Launches the kernel of shape I or of a later one. */
template <typename T, typename H, int I>
static void launch_shape(const forward_rows<T, H> &a, const hs_device_properties *device, cudaStream_t stream) {
    if constexpr (I == shape_count) {
        const unsigned grid = at_most(a.rows, int64_t(device->multiprocessors) * 2);
        norm_forward_loop_kernel<T, H><<<grid, loop_threads, 0, stream>>>(a);
    } else {
        constexpr shape s = shapes[I];
        constexpr int64_t tile = tile_of(s, pack_of<H>), bytes = 2 * tile * sizeof(float);
        if (a.cols > tile || bytes + shared_reserve > device->shared_per_block)
            return launch_shape<T, H, I + 1>(a, device, stream);
        const unsigned grid =
            at_most(ceil_div(a.rows, rows_of(s)), int64_t(device->multiprocessors) * forward_blocks(s));
        allow_shared(norm_forward_kernel<T, H, I>, bytes);
        norm_forward_kernel<T, H, I><<<grid, threads_of(s), bytes, stream>>>(a);
    }
}

template <typename T, typename H> static hs_status launch(const hs_ctx *ctx, const hs_norm_forward_args *args) {
    constexpr int n = pack_of<H>;
    const hs_tensor *x = &args->x, *residual = &args->residual, *y = &args->y, *sum = &args->sum;
    const bool vector = args->cols % n == 0 && is_aligned_for(x, n) && is_aligned_for(residual, n) &&
                        is_aligned_for(y, n) && is_aligned_for(sum, n);
    const forward_rows<T, H> a = {static_cast<const T *>(x->data),
                                  hs_present(residual) ? static_cast<const H *>(residual->data) : nullptr,
                                  weights_of(&args->w),
                                  weights_of(&args->b),
                                  static_cast<T *>(y->data),
                                  hs_present(sum) ? static_cast<H *>(sum->data) : nullptr,
                                  hs_numel(x) / args->cols,
                                  args->cols,
                                  static_cast<float>(args->eps),
                                  vector};
    launch_shape<T, H, 0>(a, hs_device_properties_of(ctx->device.index), stream_of(ctx));
    return launched(op);
}

extern "C" hs_status hs_norm_forward_cuda(const hs_ctx *ctx, const hs_norm_forward_args *args) {
    if (hs_numel(&args->x) == 0 || args->cols == 0) return HS_OK;
    const bool wide = hs_present(&args->residual) && args->residual.dtype == HS_F32;
    switch (args->x.dtype) {
    case HS_F32:
        return launch<float, float>(ctx, args);
    case HS_F16:
        return wide ? launch<__half, float>(ctx, args) : launch<__half, __half>(ctx, args);
    default:
        return wide ? launch<__nv_bfloat16, float>(ctx, args) : launch<__nv_bfloat16, __nv_bfloat16>(ctx, args);
    }
}
