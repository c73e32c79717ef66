/* norm_backward.cu - LayerNorm, backward. The contract is in ops/norm.h, the launch shapes are in norm.cuh.
 *
 * Few rows (is_few in norm_backward.cuh) take the one launch of norm_backward_few.cu. Otherwise dw and db take two
 * stages: every block stores one partial sum a column, a second kernel adds the blocks in order. A row that fits in
 * registers is read once and its block keeps the sums in registers too. For a longer row one kernel writes dx and the
 * row's statistics, and another reads dy and h again by columns. */
#include "../ops/norm.h"

#include "norm_backward.cuh"

static const char op[] = "layer_norm";

/* 128 registers a thread, or 168 where a warp holds three or four packs of h, dy and both sums. Only the longest
 * slice of a block leaves no room for the next row. */
__host__ __device__ constexpr bool is_heavy(shape s) {
    return s.group == warp_size && s.packs > 2;
}
__host__ __device__ constexpr int backward_threads(shape s) {
    return is_heavy(s) ? 384 : threads_of(s);
}
__host__ __device__ constexpr int backward_blocks(shape s) {
    return 512 / backward_threads(s);
}
__host__ __device__ constexpr int backward_rows_of(shape s) {
    return backward_threads(s) / s.group;
}
__host__ __device__ constexpr bool backward_prefetches(shape s) {
    return s.packs < 4 || is_heavy(s);
}

template <typename T, typename H, int I>
__global__ void __launch_bounds__(backward_threads(shapes[I]), backward_blocks(shapes[I]))
    norm_backward_kernel(const backward_rows<T, H> a) {
    constexpr int N = pack_of<H>, G = shapes[I].group, NP = shapes[I].packs;
    constexpr bool prefetch = backward_prefetches(shapes[I]);
    extern __shared__ float4 shared[];
    __shared__ float slots[2][warp_size];
    __shared__ float2 mean_slots[warp_size];
    float *w = reinterpret_cast<float *>(shared);
    const int cols = static_cast<int>(a.cols);
    const slice<N, G> s(threadIdx.x % G, cols, a.vector);
    const int64_t step = int64_t(gridDim.x) * backward_rows_of(shapes[I]);
    const int64_t begin = int64_t(blockIdx.x) * backward_rows_of(shapes[I]) + threadIdx.x / G;
    float sum_dw[NP][N] = {}, sum_db[NP][N] = {};
    raw<T, N> next_dy[NP];
    raw<H, N> next_h[NP];
    /* The first turn has no row yet: it fills the weights, and loads the first row where rows are loaded ahead. */
    for (int64_t row = begin - step; row < a.rows; row += step) {
        const int64_t here = row * cols, next = here + step * cols;
        raw<T, N> dy[NP];
        raw<H, N> h[NP], dsum[NP] = {};
        if constexpr (prefetch) {
#pragma unroll
            for (int j = 0; j < NP; j++) {
                dy[j] = next_dy[j];
                h[j] = next_h[j];
            }
            if (row + step < a.rows) {
                load_slice(next_h, a.h + next, s);
                load_slice(next_dy, a.dy + next, s);
            }
        } else if (row >= 0) {
            load_slice(h, a.h + here, s);
            load_slice(dy, a.dy + here, s);
        }
        if (row < 0) {
            fill_weights<T, N, G, NP>(w, a.w, 1.f, cols, a.vector);
            __syncthreads();
            continue;
        }
        const row_stats stats = stats_of_slice(h, s, static_cast<float>(cols), a.eps, slots);
        keep_packed(h);
        float2 sums = make_float2(0.f, 0.f);
#pragma unroll
        for (int j = 0; j < NP; j++) {
            float fh[N], fdy[N], fw[N];
            unpack(h[j], fh);
            unpack(dy[j], fdy);
            read_weights<N, G>(w, s.lane, j, fw);
#pragma unroll
            for (int k = 0; k < N; k++) {
                const float xhat = normalised(fh[k], stats), g = __fmul_rn(fdy[k], fw[k]);
                sums.x += g;
                sums.y += g * xhat;
                sum_dw[j][k] += fdy[k] * xhat; /* dy is zero outside the row */
                sum_db[j][k] += fdy[k];
            }
        }
        if (a.dsum) load_slice(dsum, a.dsum + here, s);
        sums = group_sum<G>(sums, mean_slots);
        const float2 means = make_float2(sums.x / cols, sums.y / cols);
        keep_packed(h);
        keep_packed(dy);
#pragma unroll
        for (int j = 0; j < NP; j++) {
            float fh[N], fg[N], fw[N];
            unpack(h[j], fh);
            unpack(dy[j], fg);
            read_weights<N, G>(w, s.lane, j, fw);
#pragma unroll
            for (int k = 0; k < N; k++) fg[k] = __fmul_rn(fg[k], fw[k]);
            store_dx(a, here, s, j, fh, fg, stats, means, dsum[j]);
        }
    }
    float *dw = a.partial_dw + int64_t(blockIdx.x) * cols, *db = a.partial_db + int64_t(blockIdx.x) * cols;
#pragma unroll
    for (int j = 0; j < NP; j++) {
        if constexpr (G == warp_size) {
            float *scratch = w + tile_of(shapes[I], N);
            constexpr int width = warp_size * N;
            if (a.partial_dw) store_sum_of_warps(sum_dw[j], a.vector, scratch, dw + j * width, cols - j * width);
            if (a.partial_db) store_sum_of_warps(sum_db[j], a.vector, scratch, db + j * width, cols - j * width);
        } else {
            if (a.partial_dw) store_slice(dw, s, j, sum_dw[j]);
            if (a.partial_db) store_slice(db, s, j, sum_db[j]);
        }
    }
}

/* dx of long rows, a block a row. */
template <typename T, typename H>
__global__ void __launch_bounds__(loop_threads) norm_backward_loop_kernel(const backward_rows<T, H> a) {
    constexpr int N = pack_of<H>, G = loop_threads;
    __shared__ float slots[2][warp_size];
    __shared__ float2 mean_slots[warp_size];
    for (int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
        const row_stats stats = stats_of_row<H, N>(a.h + row * a.cols, a.cols, a.vector, a.eps, slots);
        if (a.stats && threadIdx.x == 0) a.stats[row] = make_float4(stats.scale, stats.mean, stats.rstd, 0.f);
        if (!a.dx && !a.dresidual) continue;
        const auto weights = [&](const slice<N, G> &s, int64_t column, float (&w)[N]) {
#pragma unroll
            for (int k = 0; k < N; k++) w[k] = k < s.count ? weight_at<T>(a.w, column + s.column(0, k), 1.f) : 0.f;
        };
        backward_row<G, 1>(a, row, stats, weights, mean_slots);
    }
}

/* First stage of dw and db for long rows: a block takes 32 * N columns of a share of the rows. */
constexpr int column_warps = 8;

template <typename T, typename H>
__global__ void __launch_bounds__(column_warps *warp_size)
    norm_backward_columns_kernel(const backward_rows<T, H> a, const int64_t chunks) {
    constexpr int N = pack_of<H>, ahead = 4;
    __shared__ float scratch[column_warps * warp_scratch<N>];
    const int64_t tiles = (a.cols + warp_size * N - 1) / (warp_size * N);
    for (int64_t task = blockIdx.x; task < tiles * chunks; task += gridDim.x) {
        const int64_t chunk = task / tiles, first = task % tiles * (warp_size * N);
        const int64_t begin = a.rows * chunk / chunks, end = a.rows * (chunk + 1) / chunks;
        const slice<N, warp_size> s(threadIdx.x % warp_size, a.cols - first, a.vector);
        float sum_dw[N] = {}, sum_db[N] = {};
        sum_rows<column_warps, ahead>(a, a.stats, begin, end, first, s, sum_dw, sum_db);
        const int64_t at = chunk * a.cols + first;
        if (a.partial_dw) store_sum_of_warps(sum_dw, a.vector, scratch, a.partial_dw + at, a.cols - first);
        if (a.partial_db) store_sum_of_warps(sum_db, a.vector, scratch, a.partial_db + at, a.cols - first);
    }
}

/* ---- host ---- */
/* What a call needs: one launch for few rows, or the shape, the partial sums a column, and the workspace
 * [stats][partial dw][partial db]. */
struct backward_plan {
    bool few;
    int shape;
    int64_t blocks, stats_bytes, sum_bytes, bytes;
};

constexpr int64_t backward_shared(shape s, int n) {
    const int64_t scratch = s.group == warp_size ? int64_t(backward_threads(s)) / warp_size * (warp_size + 1) * n : 0;
    return (tile_of(s, n) + scratch) * int64_t(sizeof(float));
}

/* Holds for any arguments; of wrong ones the answer is never used. */
static backward_plan plan_of(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    const int64_t cols = args->cols, rows = cols > 0 ? hs_numel(&args->dy) / cols : 0;
    backward_plan plan = {false, shape_count, 0, 0, 0, 0};
    if (rows <= 0) return plan;
    plan.few = is_few(rows, cols, hs_dtype_size(args->h.dtype));
    if (plan.few) return plan;
    const hs_device_properties *device = hs_device_properties_of(ctx->device.index);
    const int n = args->h.dtype == HS_F32 ? pack_of<float> : pack_of<__half>;
    const bool sums = hs_present(&args->dw) || hs_present(&args->db);
    plan.shape = shape_for(cols, n);
    if (plan.shape < shape_count && backward_shared(shapes[plan.shape], n) + shared_reserve > device->shared_per_block)
        plan.shape = shape_count;
    if (plan.shape < shape_count) {
        const shape s = shapes[plan.shape];
        plan.blocks =
            at_most(ceil_div(rows, backward_rows_of(s)), int64_t(device->multiprocessors) * backward_blocks(s));
    } else if (sums) {
        plan.blocks = row_chunks(rows, cols, n, device->multiprocessors);
        plan.stats_bytes = ceil_div(rows * int64_t(sizeof(float4)), 256) * 256;
    }
    plan.sum_bytes = sums ? ceil_div(plan.blocks * cols * int64_t(sizeof(float)), 256) * 256 : 0;
    plan.bytes = plan.stats_bytes + 2 * plan.sum_bytes;
    return plan;
}

template <typename T, typename H, int I>
static void launch_shape(const backward_rows<T, H> &a, const backward_plan &plan, int multiprocessors,
                         cudaStream_t stream) {
    if constexpr (I == shape_count) {
        if (a.dx || a.dresidual || a.stats)
            norm_backward_loop_kernel<T, H>
                <<<at_most(a.rows, int64_t(multiprocessors) * 2), loop_threads, 0, stream>>>(a);
        if (!a.stats) return;
        const int64_t tasks = ceil_div(a.cols, warp_size * pack_of<H>) * plan.blocks;
        norm_backward_columns_kernel<T, H>
            <<<at_most(tasks, int64_t(multiprocessors) * 64), column_warps * warp_size, 0, stream>>>(a, plan.blocks);
    } else {
        if (plan.shape != I) return launch_shape<T, H, I + 1>(a, plan, multiprocessors, stream);
        constexpr int64_t bytes = backward_shared(shapes[I], pack_of<H>);
        allow_shared(norm_backward_kernel<T, H, I>, bytes);
        norm_backward_kernel<T, H, I>
            <<<static_cast<unsigned>(plan.blocks), backward_threads(shapes[I]), bytes, stream>>>(a);
    }
}

template <typename T, typename H> static hs_status launch(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    constexpr int n = pack_of<H>;
    const backward_plan plan = plan_of(ctx, args);
    const hs_tensor *tensors[] = {&args->dy, &args->h, &args->dsum, &args->dx, &args->dresidual};
    bool vector = args->cols % n == 0;
    for (const hs_tensor *t : tensors) vector = vector && is_aligned_for(t, n);
    const auto data = [](const hs_tensor *t) { return hs_present(t) ? t->data : nullptr; };
    char *workspace = static_cast<char *>(ctx->workspace);
    float *partial_dw = reinterpret_cast<float *>(workspace + plan.stats_bytes);
    float *partial_db = reinterpret_cast<float *>(workspace + plan.stats_bytes + plan.sum_bytes);
    const backward_rows<T, H> a = {static_cast<const T *>(args->dy.data),
                                   static_cast<const H *>(args->h.data),
                                   weights_of(&args->w),
                                   static_cast<const H *>(data(&args->dsum)),
                                   static_cast<T *>(data(&args->dx)),
                                   static_cast<H *>(data(&args->dresidual)),
                                   hs_present(&args->dw) ? partial_dw : nullptr,
                                   hs_present(&args->db) ? partial_db : nullptr,
                                   plan.stats_bytes ? reinterpret_cast<float4 *>(workspace) : nullptr,
                                   hs_numel(&args->dy) / args->cols,
                                   args->cols,
                                   static_cast<float>(args->eps),
                                   vector};
    const cudaStream_t stream = stream_of(ctx);
    const int multiprocessors = hs_device_properties_of(ctx->device.index)->multiprocessors;
    const column_output dw = {data(&args->dw), args->dw.dtype}, db = {data(&args->db), args->db.dtype};
    if (plan.few) {
        launch_few(a, dw, db, multiprocessors, stream);
        return launched(op);
    }
    launch_shape<T, H, 0>(a, plan, multiprocessors, stream);
    if (dw.to || db.to) launch_column_sums({{{partial_dw, dw}, {partial_db, db}}, plan.blocks, args->cols}, stream);
    return launched(op);
}

extern "C" int64_t hs_norm_backward_workspace_cuda(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    return plan_of(ctx, args).bytes;
}

extern "C" hs_status hs_norm_backward_cuda(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    if (args->cols == 0) return HS_OK;
    if (hs_numel(&args->dy) == 0) {
        clear(&args->dw, stream_of(ctx));
        clear(&args->db, stream_of(ctx));
        return launched(op);
    }
    const bool wide = args->h.dtype == HS_F32;
    switch (args->dy.dtype) {
    case HS_F32:
        return launch<float, float>(ctx, args);
    case HS_F16:
        return wide ? launch<__half, float>(ctx, args) : launch<__half, __half>(ctx, args);
    default:
        return wide ? launch<__nv_bfloat16, float>(ctx, args) : launch<__nv_bfloat16, __nv_bfloat16>(ctx, args);
    }
}
