/* act.cu - the contract is in ops/act.h.
 *
 * Where no column has to be summed the tensor is flat: packs of 16 bytes, and the column of a pack for the bias. With
 * db a thread keeps its columns and goes down the rows, so that dx and the sums come of one pass. */
#include "../ops/act.h"

#include "rows.cuh"

static const char op[] = "bias_act";

constexpr int threads = 256, blocks_per_multiprocessor = 8, packs_ahead = 2, rows_ahead = 4;

/* ---- the functions, in float32 ---- */
/* float32 takes expf and the exact division. For a 16-bit T both are the fast ones, a few ulp of float32 away, 2^-13
 * and less of an ulp of the result. */
template <typename T> __device__ __forceinline__ float exp_for(float v) {
    return sizeof(T) == 4 ? expf(v) : __expf(v);
}
template <typename T> __device__ __forceinline__ float divide_for(float a, float b) {
    return sizeof(T) == 4 ? a / b : __fdividef(a, b);
}

constexpr float sqrt_half = 0.70710678118654752f, inverse_sqrt_2pi = 0.39894228040143268f;
constexpr float tanh_scale = 1.5957691216057308f, tanh_cube = 0.044715f; /* 2 sqrt(2 / pi) */

/* (1 + tanh u) / 2 is 1 / (1 + exp(-2u)), which loses nothing where tanh is near -1. */
template <typename T, int KIND> __device__ __forceinline__ float act_forward(float z) {
    switch (KIND) {
    case HS_ACT_RELU:
        return z <= 0.f ? 0.f : z; /* a NaN stays one */
    case HS_ACT_GELU:
        return 0.5f * z * (1.f + erff(z * sqrt_half));
    case HS_ACT_GELU_TANH:
        return divide_for<T>(z, 1.f + exp_for<T>(-tanh_scale * z * (1.f + tanh_cube * z * z)));
    case HS_ACT_SILU:
        return divide_for<T>(z, 1.f + exp_for<T>(-z));
    default:
        return z;
    }
}

template <typename T, int KIND> __device__ __forceinline__ float act_backward(float dy, float z) {
    switch (KIND) {
    case HS_ACT_RELU:
        return z <= 0.f ? 0.f : dy;
    case HS_ACT_GELU:
        return dy * (0.5f * (1.f + erff(z * sqrt_half)) + z * inverse_sqrt_2pi * exp_for<T>(-0.5f * z * z));
    case HS_ACT_GELU_TANH: {
        const float square = z * z, e = exp_for<T>(-tanh_scale * fabsf(z) * (1.f + tanh_cube * square));
        const float near = divide_for<T>(1.f, 1.f + e), far = e * near; /* far is 1 - near without cancellation */
        const float d = (z > 0.f ? near : far) + z * near * far * tanh_scale * (1.f + 3.f * tanh_cube * square);
        return dy * (fabsf(z) > 16.f ? (z > 0.f ? 1.f : 0.f) : d); /* the limit: z * z overflows further out */
    }
    case HS_ACT_SILU: {
        const float s = divide_for<T>(1.f, 1.f + exp_for<T>(-z));
        return dy * s * (1.f + z * (1.f - s));
    }
    default:
        return dy;
    }
}

template <typename T, int KIND, bool BACKWARD> __device__ __forceinline__ float act(float dy, float z) {
    return BACKWARD ? act_backward<T, KIND>(dy, z) : act_forward<T, KIND>(z);
}

/* ---- bias ---- */
struct bias {
    const void *data; /* NULL: none */
    int64_t cols;
    bool f32, vector; /* vector: a pack lies in one row and its bias is aligned */
};

template <typename T> __device__ __forceinline__ float bias_at(const bias &b, int64_t column) {
    return b.f32 ? static_cast<const float *>(b.data)[column] : to_float(static_cast<const T *>(b.data)[column]);
}

/* v[k] += the bias of the k-th element after one in the given column; a pack may run over the end of its row. */
template <typename T, int N> __device__ __forceinline__ void add_bias(float (&v)[N], const bias &b, int64_t column) {
    float add[N];
    if (b.vector && b.f32) {
        unpack(load_raw<float, N>(static_cast<const float *>(b.data) + column), add);
    } else if (b.vector) {
        unpack(load_raw<T, N>(static_cast<const T *>(b.data) + column), add);
    } else {
#pragma unroll
        for (int k = 0; k < N; k++) {
            add[k] = bias_at<T>(b, column);
            column = column + 1 == b.cols ? 0 : column + 1;
        }
    }
#pragma unroll
    for (int k = 0; k < N; k++) v[k] += add[k];
}

/* ---- flat kernels ---- */
template <typename T> struct flat_pass {
    const T *dy; /* NULL in forward */
    const T *x;
    T *to; /* y or dx, which may be x or dy */
    int64_t count;
    bool vector;
    bias b;
};

/* The column of an element that moves on by the same number of elements again and again, with one division. */
struct moving_column {
    int64_t at, step, cols;

    __device__ __forceinline__ moving_column(int64_t first, int64_t move, const bias &b)
        : at(b.data ? first % b.cols : 0), step(b.data ? move % b.cols : 0), cols(b.cols) {}
    __device__ __forceinline__ void move() {
        at += step;
        if (at >= cols) at -= cols;
    }
};

template <typename T, int KIND, bool BACKWARD>
__global__ void __launch_bounds__(threads) act_flat_kernel(const flat_pass<T> a) {
    constexpr int N = pack_of<T>, ahead = packs_ahead;
    const int64_t thread = int64_t(blockIdx.x) * threads + threadIdx.x, all = int64_t(gridDim.x) * threads;
    const int64_t whole = a.vector ? a.count / N * N : 0; /* the elements that packs cover */
    moving_column column(thread * N, all * N, a.b);
    for (int64_t first = thread * N; first < whole; first += ahead * all * N) {
        raw<T, N> x[ahead] = {}, dy[ahead] = {};
#pragma unroll
        for (int i = 0; i < ahead; i++)
            if (first + i * all * N < whole) {
                x[i] = load_raw<T, N>(a.x + first + i * all * N);
                if (BACKWARD) dy[i] = load_raw<T, N>(a.dy + first + i * all * N);
            }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int64_t at = first + i * all * N;
            if (at >= whole) break;
            float v[N], fdy[N];
            unpack(x[i], v);
            unpack(dy[i], fdy);
            if (a.b.data) add_bias<T>(v, a.b, column.at);
#pragma unroll
            for (int k = 0; k < N; k++) v[k] = act<T, KIND, BACKWARD>(fdy[k], v[k]);
            store_raw(a.to + at, repack<T, N>(v));
            column.move();
        }
    }
    moving_column rest(whole + thread, all, a.b);
    for (int64_t at = whole + thread; at < a.count; at += all) {
        float z = to_float(a.x[at]);
        if (a.b.data) z += bias_at<T>(a.b, rest.at);
        const float dy = BACKWARD ? to_float(a.dy[at]) : 0.f;
        a.to[at] = from_float<T>(act<T, KIND, BACKWARD>(dy, z));
        rest.move();
    }
}

/* ---- dx and the first stage of db ---- */
constexpr int column_warps = threads / warp_size;

template <typename T> struct column_pass {
    const T *dy, *x; /* x is NULL where the function needs none */
    T *dx;           /* NULL: not wanted */
    float *partial;  /* (chunks, cols) */
    int64_t rows, cols, chunks;
    bool vector;
    bias b;
};

/* A block takes 32 * N columns of a share of the rows; a warp takes every column_warps-th row of it. */
template <typename T, int KIND> __global__ void __launch_bounds__(threads) act_columns_kernel(const column_pass<T> a) {
    constexpr int N = pack_of<T>, ahead = rows_ahead;
    __shared__ float scratch[column_warps * warp_scratch<N>];
    const int64_t tiles = (a.cols + warp_size * N - 1) / (warp_size * N);
    for (int64_t task = blockIdx.x; task < tiles * a.chunks; task += gridDim.x) {
        const int64_t chunk = task / tiles, begin_column = task % tiles * (warp_size * N);
        const int64_t begin = a.rows * chunk / a.chunks, end = a.rows * (chunk + 1) / a.chunks;
        const slice<N, warp_size> s(threadIdx.x % warp_size, a.cols - begin_column, a.vector);
        float sum[N] = {}, add[N] = {};
        if (a.b.data)
#pragma unroll
            for (int k = 0; k < N; k++)
                if (k < s.count) add[k] = bias_at<T>(a.b, begin_column + s.column(0, k));
        for (int64_t row = begin + threadIdx.x / warp_size; row < end; row += column_warps * ahead) {
            raw<T, N> dy[ahead][1] = {}, x[ahead][1] = {};
#pragma unroll
            for (int i = 0; i < ahead; i++) {
                const int64_t at = (row + i * column_warps) * a.cols + begin_column;
                if (row + i * column_warps < end) {
                    load_slice(dy[i], a.dy + at, s);
                    if (KIND != HS_ACT_NONE) load_slice(x[i], a.x + at, s);
                }
            }
#pragma unroll
            for (int i = 0; i < ahead; i++)
                if (row + i * column_warps < end) {
                    float d[N], z[N];
                    unpack(dy[i][0], d);
                    unpack(x[i][0], z);
#pragma unroll
                    for (int k = 0; k < N; k++) {
                        d[k] = act_backward<T, KIND>(d[k], z[k] + add[k]);
                        if (k < s.count) sum[k] += d[k];
                    }
                    if (a.dx) store_slice(a.dx + (row + i * column_warps) * a.cols + begin_column, s, 0, d);
                }
        }
        store_sum_of_warps(sum, a.vector, scratch, a.partial + chunk * a.cols + begin_column, a.cols - begin_column);
    }
}

/* ---- host ---- */
static unsigned flat_grid(const hs_ctx *ctx, int64_t count, int n) {
    const int64_t wanted = ceil_div(count, int64_t(threads) * n);
    const int64_t most =
        int64_t(hs_device_properties_of(ctx->device.index)->multiprocessors) * blocks_per_multiprocessor;
    return static_cast<unsigned>(wanted < most ? wanted : most);
}

static bias bias_of(const hs_tensor *b, int64_t cols, int n) {
    return {hs_present(b) ? b->data : nullptr, cols, b->dtype == HS_F32, cols % n == 0 && is_aligned_for(b, n)};
}

template <typename T, bool BACKWARD>
static hs_status launch_flat(const hs_ctx *ctx, int64_t kind, const flat_pass<T> &a) {
    const unsigned grid = flat_grid(ctx, a.count, pack_of<T>);
    const cudaStream_t stream = stream_of(ctx);
    switch (kind) {
    case HS_ACT_RELU:
        act_flat_kernel<T, HS_ACT_RELU, BACKWARD><<<grid, threads, 0, stream>>>(a);
        break;
    case HS_ACT_GELU:
        act_flat_kernel<T, HS_ACT_GELU, BACKWARD><<<grid, threads, 0, stream>>>(a);
        break;
    case HS_ACT_GELU_TANH:
        act_flat_kernel<T, HS_ACT_GELU_TANH, BACKWARD><<<grid, threads, 0, stream>>>(a);
        break;
    case HS_ACT_SILU:
        act_flat_kernel<T, HS_ACT_SILU, BACKWARD><<<grid, threads, 0, stream>>>(a);
        break;
    default:
        act_flat_kernel<T, HS_ACT_NONE, BACKWARD><<<grid, threads, 0, stream>>>(a);
    }
    return launched(op);
}

template <typename T>
static void launch_columns(int64_t kind, unsigned grid, const column_pass<T> &a, cudaStream_t stream) {
    switch (kind) {
    case HS_ACT_RELU:
        act_columns_kernel<T, HS_ACT_RELU><<<grid, threads, 0, stream>>>(a);
        break;
    case HS_ACT_GELU:
        act_columns_kernel<T, HS_ACT_GELU><<<grid, threads, 0, stream>>>(a);
        break;
    case HS_ACT_GELU_TANH:
        act_columns_kernel<T, HS_ACT_GELU_TANH><<<grid, threads, 0, stream>>>(a);
        break;
    case HS_ACT_SILU:
        act_columns_kernel<T, HS_ACT_SILU><<<grid, threads, 0, stream>>>(a);
        break;
    default:
        act_columns_kernel<T, HS_ACT_NONE><<<grid, threads, 0, stream>>>(a);
    }
}

template <typename T> static hs_status launch_forward(const hs_ctx *ctx, const hs_act_forward_args *args) {
    constexpr int n = pack_of<T>;
    return launch_flat<T, false>(ctx, args->kind,
                                 {nullptr, static_cast<const T *>(args->x.data), static_cast<T *>(args->y.data),
                                  hs_numel(&args->x), is_aligned_for(&args->x, n) && is_aligned_for(&args->y, n),
                                  bias_of(&args->b, args->cols, n)});
}

/* The partial sums a column that db takes. Holds for any arguments; of wrong ones the answer is never used. */
static int64_t chunks_of(const hs_ctx *ctx, const hs_act_backward_args *args) {
    const int64_t rows = args->cols > 0 ? hs_numel(&args->dy) / args->cols : 0;
    if (rows <= 0 || !hs_present(&args->db)) return 0;
    const int n = args->dy.dtype == HS_F32 ? pack_of<float> : pack_of<__half>;
    return row_chunks(rows, args->cols, n, hs_device_properties_of(ctx->device.index)->multiprocessors);
}

template <typename T> static hs_status launch_backward(const hs_ctx *ctx, const hs_act_backward_args *args) {
    constexpr int n = pack_of<T>;
    const hs_tensor *dy = &args->dy, *x = &args->x, *dx = &args->dx, *db = &args->db;
    const T *from = static_cast<const T *>(dy->data);
    /* Kind none needs no x; its value is never used. */
    const T *input = hs_present(x) ? static_cast<const T *>(x->data) : from;
    T *to = hs_present(dx) ? static_cast<T *>(dx->data) : nullptr;
    const bool aligned = is_aligned_for(dy, n) && is_aligned_for(x, n) && is_aligned_for(dx, n);
    const bias b = bias_of(&args->b, args->cols, n);
    if (!hs_present(db)) {
        if (!to) return HS_OK;
        return launch_flat<T, true>(ctx, args->kind, {from, input, to, hs_numel(dy), aligned, b});
    }
    const int64_t rows = hs_numel(dy) / args->cols, chunks = chunks_of(ctx, args);
    const int64_t tasks = ceil_div(args->cols, warp_size * n) * chunks, most = 1 << 20;
    float *partial = static_cast<float *>(ctx->workspace);
    launch_columns<T>(args->kind, static_cast<unsigned>(tasks < most ? tasks : most),
                      {from, input, to, partial, rows, args->cols, chunks, aligned && args->cols % n == 0, b},
                      stream_of(ctx));
    launch_column_sums({{{partial, db->data, db->dtype}, {nullptr, nullptr, HS_NONE}}, chunks, args->cols},
                       stream_of(ctx));
    return launched(op);
}

extern "C" hs_status hs_act_forward_cuda(const hs_ctx *ctx, const hs_act_forward_args *args) {
    if (hs_numel(&args->x) == 0) return HS_OK;
    switch (args->x.dtype) {
    case HS_F32:
        return launch_forward<float>(ctx, args);
    case HS_F16:
        return launch_forward<__half>(ctx, args);
    default:
        return launch_forward<__nv_bfloat16>(ctx, args);
    }
}

extern "C" int64_t hs_act_backward_workspace_cuda(const hs_ctx *ctx, const hs_act_backward_args *args) {
    return chunks_of(ctx, args) * args->cols * int64_t(sizeof(float));
}

extern "C" hs_status hs_act_backward_cuda(const hs_ctx *ctx, const hs_act_backward_args *args) {
    if (hs_numel(&args->dy) == 0) {
        clear(&args->db, stream_of(ctx));
        return launched(op);
    }
    switch (args->dy.dtype) {
    case HS_F32:
        return launch_backward<float>(ctx, args);
    case HS_F16:
        return launch_backward<__half>(ctx, args);
    default:
        return launch_backward<__nv_bfloat16>(ctx, args);
    }
}
