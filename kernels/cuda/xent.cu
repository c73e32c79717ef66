#include "xent.cuh"

/* A row belongs to one block, or to one warp when it is short, which keeps a running maximum and a sum relative to it
 * and so reads the row once. A second kernel adds the rows in a fixed order. */
namespace {
constexpr int sum_block = 1024, max_sum_blocks = 256;
constexpr int64_t rows_of_one_block = 16384; /* summing fewer rows with one block is as quick as a second launch */

/* ---- forward ---- */
/* sum = sum_c exp(x_c - origin), dot = sum_c k_c (x_c - origin), mass = sum_c k_c over the elements seen. Relative to
 * the maximum no term of dot cancels another, so the smoothed loss keeps its digits for logits of any offset. */
struct row_state {
    float max, sum, dot, mass;
};

/* The maximum, or 0 while all that was seen is -inf: then exp(-inf - origin) is 0 and not NaN. */
__device__ __forceinline__ float origin_of(float max) {
    return max == -INFINITY ? 0.f : max;
}

/* For v <= 0: results under 2^-126 are flushed, beside a sum of at least one. */
__device__ __forceinline__ float exp_of_negative(float v) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(v * 1.44269504f));
    return result;
}

__device__ __forceinline__ void rescale(row_state &s, float max) {
    if (s.max == max) return;
    if (s.max != -INFINITY) s.sum *= exp_of_negative(s.max - max);
    s.dot += s.mass * (origin_of(s.max) - origin_of(max));
    s.max = max;
}

__device__ __forceinline__ void merge_warp(row_state &s) {
    rescale(s, warp_max(s.max));
    s.sum = warp_sum(s.sum);
    s.dot = warp_sum(s.dot);
    s.mass = warp_sum(s.mass);
}

/* Thread 0 of the block has the result. */
__device__ __forceinline__ void merge_block(row_state &s) {
    __shared__ row_state of_warp[max_block / 32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = blockDim.x >> 5;
    merge_warp(s);
    if (lane == 0) of_warp[warp] = s;
    __syncthreads();
    if (warp > 0) return;
    s = lane < warps ? of_warp[lane] : row_state{-INFINITY, 0.f, 0.f, 0.f};
    merge_warp(s);
}

/* Adds packs of N elements, the first at c = begin. */
template <int N, int U, typename T, typename P>
__device__ __forceinline__ void add_packs(const problem<T, P> &a, const T *x, const P *p, int64_t begin, int64_t packs,
                                          int thread, int threads, row_state &s) {
    const bool with_dot = !is_index<P> || a.spread != 0.f;
    for (int64_t i = thread; i < packs; i += int64_t(threads) * U) {
        float v[U][N];
        load_logits<T, N, U>(x + begin, i, packs, threads, v);
        float max = s.max;
#pragma unroll
        for (int u = 0; u < U; u++)
#pragma unroll
            for (int j = 0; j < N; j++) max = fmaxf(max, v[u][j]);
        rescale(s, max);
        const float origin = origin_of(max);
#pragma unroll
        for (int u = 0; u < U; u++) {
            float sum = 0.f;
#pragma unroll
            for (int j = 0; j < N; j++) {
                v[u][j] -= origin;
                sum += exp_of_negative(v[u][j]);
            }
            s.sum += sum;
        }
        if (!with_dot) continue;
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int64_t at = i + int64_t(u) * threads;
            if (at >= packs) break;
            float k[N];
            load_coefficients(a, p, begin + at * N, k);
#pragma unroll
            for (int j = 0; j < N; j++) {
                s.dot += k[j] * v[u][j];
                s.mass += k[j];
            }
        }
    }
}

/* row_loss receives the cross entropy of the row, plus z_loss lse^2. */
template <typename T, typename P, bool WARP>
__global__ void __launch_bounds__(WARP ? small_block : max_block, WARP ? 4 : 2)
    xent_forward_kernel(const problem<T, P> a, float z_loss, float *lse, float *row_loss) {
    constexpr int N = pack_bytes / sizeof(T);
    const int thread = group_thread<WARP>(), threads = group_threads<WARP>();
    const int64_t row = WARP ? int64_t(blockIdx.x) * (blockDim.x >> 5) + (threadIdx.x >> 5) : blockIdx.x;
    if (WARP && row >= a.rows) return;
    const T *x = a.logits + row * a.classes;
    const P *p = is_index<P> ? nullptr : a.target + row * a.classes;
    const parts r = parts_of(x, a.classes);

    if constexpr (is_index<P>) {
        if (a.target[row] == a.ignore_index) { /* the row is not read */
            if (thread == 0) lse[2 * row] = lse[2 * row + 1] = row_loss[row] = 0.f;
            return;
        }
    }
    row_state s = {-INFINITY, 0.f, 0.f, 0.f};
    add_packs<1, 1>(a, x, p, 0, r.body, thread, threads, s);
    add_packs<N, loads<P, WARP>>(a, x, p, r.body, r.packs, thread, threads, s);
    add_packs<1, 1>(a, x, p, r.tail, a.classes - r.tail, thread, threads, s);
    if (WARP)
        merge_warp(s);
    else
        merge_block(s);
    if (thread != 0) return;

    float origin = origin_of(s.max);
    const float log_sum = logf(s.sum);
    const float smooth = s.mass * log_sum - s.dot; /* sum_c k_c (-logp_c) */
    float loss = smooth;
    if constexpr (is_index<P>) {
        const int64_t t = a.target[row];
        if (t < 0 || t >= a.classes) {
            loss = origin = NAN;
        } else {
            const float w = a.weight ? a.weight[t] : 1.f;
            loss = a.keep * w * (log_sum - (to_float(x[t]) - origin));
            if (a.spread != 0.f) loss += a.spread * smooth;
        }
    }
    if (z_loss != 0.f) loss += z_loss * (origin + log_sum) * (origin + log_sum);
    lse[2 * row] = origin;
    lse[2 * row + 1] = log_sum;
    row_loss[row] = loss;
}

struct row_sums {
    float ce, weight, lse_squared, counted;
};

struct row_reduction {
    const int64_t *target; /* NULL for probabilities */
    const float *weight, *lse;
    const float *ce; /* NULL when only the denominators are wanted */
    int64_t rows, classes, ignore_index, mode;
    float z_loss;
    bool zero_if_all_ignored;
    row_sums *partial; /* one per block */
    float *loss, *denominator;
};

__device__ __forceinline__ row_sums block_sums(row_sums s) {
    return {block_sum(s.ce), block_sum(s.weight), block_sum(s.lse_squared), block_sum(s.counted)};
}

__device__ void write_loss(const row_reduction &a, const row_sums &s) {
    if (threadIdx.x != 0) return;
    a.denominator[0] = s.weight;
    a.denominator[1] = s.counted;
    if (a.mode == HS_XENT_NONE) return;
    const bool mean = a.mode == HS_XENT_MEAN;
    float loss = mean ? s.ce / s.weight : s.ce;
    if (a.z_loss != 0.f) loss += a.z_loss * (mean ? s.lse_squared / s.counted : s.lse_squared);
    if (mean && a.zero_if_all_ignored && s.counted == 0.f) loss = 0.f;
    a.loss[0] = loss;
}

/* A target out of range weighs one, so that it makes the loss NaN and leaves the other rows their gradient. */
__global__ void __launch_bounds__(sum_block) xent_sum_kernel(const row_reduction a) {
    row_sums s = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
    for (int64_t row = int64_t(blockIdx.x) * blockDim.x + threadIdx.x; row < a.rows;
         row += int64_t(gridDim.x) * blockDim.x) {
        const int64_t t = a.target ? a.target[row] : 0;
        if (a.target && t == a.ignore_index) continue;
        s.counted += 1.f;
        s.weight += a.target && a.weight && t >= 0 && t < a.classes ? a.weight[t] : 1.f;
        if (a.ce) s.ce += a.ce[row];
        if (a.z_loss != 0.f) {
            const float lse = a.lse[2 * row] + a.lse[2 * row + 1];
            s.lse_squared += lse * lse;
        }
    }
    s = block_sums(s);
    if (gridDim.x == 1)
        write_loss(a, s);
    else if (threadIdx.x == 0)
        a.partial[blockIdx.x] = s;
}

__global__ void __launch_bounds__(max_sum_blocks) xent_finish_kernel(const row_reduction a, int count) {
    const row_sums none = {0.f, 0.f, 0.f, 0.f};
    write_loss(a, block_sums(int(threadIdx.x) < count ? a.partial[threadIdx.x] : none));
}

/* ---- launches ---- */
template <typename T, typename P>
void launch_forward(const hs_ctx *ctx, const hs_xent_forward_args *a, float z_loss, float *row_loss) {
    const problem<T, P> problem = problem_of<T, P>(a);
    float *lse = static_cast<float *>(a->lse.data);
    const cudaStream_t stream = stream_of(ctx);
    if (problem.classes <= warp_row_classes) {
        const unsigned blocks = unsigned(ceil_div(problem.rows, small_block / 32));
        xent_forward_kernel<T, P, true><<<blocks, small_block, 0, stream>>>(problem, z_loss, lse, row_loss);
    } else {
        const int threads = threads_for_row(problem.classes * int64_t(sizeof(T)) / pack_bytes);
        xent_forward_kernel<T, P, false>
            <<<unsigned(problem.rows), threads, 0, stream>>>(problem, z_loss, lse, row_loss);
    }
}

template <typename T>
void launch_forward(const hs_ctx *ctx, const hs_xent_forward_args *a, float z_loss, float *row_loss) {
    switch (a->target.dtype) {
    case HS_I64:
        return launch_forward<T, int64_t>(ctx, a, z_loss, row_loss);
    case HS_F32:
        return launch_forward<T, float>(ctx, a, z_loss, row_loss);
    case HS_F16:
        return launch_forward<T, __half>(ctx, a, z_loss, row_loss);
    default:
        return launch_forward<T, __nv_bfloat16>(ctx, a, z_loss, row_loss);
    }
}

void launch_reduction(const hs_ctx *ctx, const hs_xent_forward_args *a, const float *ce, row_sums *partial) {
    row_reduction r = {};
    r.target = a->target.dtype == HS_I64 ? static_cast<const int64_t *>(a->target.data) : nullptr;
    r.weight = hs_present(&a->weight) ? static_cast<const float *>(a->weight.data) : nullptr;
    r.lse = static_cast<const float *>(a->lse.data);
    r.ce = ce;
    r.rows = a->logits.shape[0];
    r.classes = a->logits.shape[1];
    r.ignore_index = a->ignore_index;
    r.mode = a->reduction;
    r.z_loss = ce ? float(a->z_loss) : 0.f;
    r.zero_if_all_ignored = a->zero_if_all_ignored != 0;
    r.partial = partial;
    r.loss = static_cast<float *>(a->loss.data);
    r.denominator = static_cast<float *>(a->denominator.data);
    int64_t blocks = 1;
    if (r.rows > rows_of_one_block) blocks = ceil_div(r.rows, 4 * sum_block);
    if (blocks > max_sum_blocks) blocks = max_sum_blocks;
    xent_sum_kernel<<<unsigned(blocks), sum_block, 0, stream_of(ctx)>>>(r);
    if (blocks > 1) xent_finish_kernel<<<1, max_sum_blocks, 0, stream_of(ctx)>>>(r, int(blocks));
}
} // namespace

/* One partial sum per block, then the cross entropy of every row. */
extern "C" int64_t hs_xent_forward_workspace_cuda(const hs_ctx *, const hs_xent_forward_args *args) {
    const int64_t rows = args->logits.ndim == 2 ? args->logits.shape[0] : 0;
    return max_sum_blocks * int64_t(sizeof(row_sums)) + rows * int64_t(sizeof(float));
}

extern "C" hs_status hs_xent_forward_cuda(const hs_ctx *ctx, const hs_xent_forward_args *args) {
    const bool none = args->reduction == HS_XENT_NONE;
    const int64_t rows = args->logits.shape[0];
    if (none && rows == 0) return HS_OK;
    row_sums *partial = static_cast<row_sums *>(ctx->workspace);
    float *ce = none ? nullptr : reinterpret_cast<float *>(partial + max_sum_blocks);
    float *row_loss = none ? static_cast<float *>(args->loss.data) : ce;
    const float z_loss = none ? float(args->z_loss) : 0.f;
    if (rows > 0) {
        switch (args->logits.dtype) {
        case HS_F32:
            launch_forward<float>(ctx, args, z_loss, row_loss);
            break;
        case HS_F16:
            launch_forward<__half>(ctx, args, z_loss, row_loss);
            break;
        default:
            launch_forward<__nv_bfloat16>(ctx, args, z_loss, row_loss);
        }
    }
    launch_reduction(ctx, args, ce, partial);
    return launched(op);
}
