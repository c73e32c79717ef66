#include "xent.cuh"

/* A long row is cut into pieces of one block each, so that a few long rows fill the machine too; a short row belongs to
 * one warp. Where sum_c w_c q_c has to be added up first, a block keeps its whole row. */
namespace {
struct gradient_args {
    const float *dloss, *lse, *denominator;
    int64_t mode;
    float z_loss;
    int64_t chunk_packs; /* per block */
    uint32_t chunks;     /* per row */
};

/* dx_c = softmax exp(x_c - max - log_sum) - spread k_c, less hot in column t. */
struct row_gradient {
    float max, log_sum, softmax, spread, hot;
    int64_t t;
};

template <int N, typename T, typename P>
__device__ __forceinline__ float sum_coefficients(const problem<T, P> &a, const P *p, int64_t begin, int64_t packs,
                                                  int thread, int threads) {
    float sum = 0.f;
    for (int64_t i = thread; i < packs; i += threads) {
        float k[N];
        load_coefficients(a, p, begin + i * N, k);
#pragma unroll
        for (int j = 0; j < N; j++) sum += k[j];
    }
    return sum;
}

template <int N, typename T>
__device__ __forceinline__ void store_zeros(T *dx, int64_t first, int64_t end, int thread, int threads) {
    const float zeros[N] = {};
    for (int64_t i = first + thread; i < end; i += threads) store_any(dx + i * N, zeros);
}

/* Writes packs [first, end) of those whose first stands at c = begin. */
template <int N, int U, typename T, typename P>
__device__ __forceinline__ void store_gradient(const problem<T, P> &a, const row_gradient &g, const T *x, const P *p,
                                               T *dx, int64_t begin, int64_t first, int64_t end, int thread,
                                               int threads) {
    const bool with_spread = !is_index<P> || a.spread != 0.f;
    for (int64_t i = first + thread; i < end; i += int64_t(threads) * U) {
        float v[U][N];
        load_logits<T, N, U>(x + begin, i, end, threads, v);
#pragma unroll
        for (int u = 0; u < U; u++) {
            const int64_t at = i + int64_t(u) * threads;
            if (at >= end) break;
            const int64_t c = begin + at * N, hot = g.t - c;
#pragma unroll
            for (int j = 0; j < N; j++) v[u][j] = g.softmax * expf(v[u][j] - g.max - g.log_sum);
            if (with_spread) {
                float k[N];
                load_coefficients(a, p, c, k);
#pragma unroll
                for (int j = 0; j < N; j++) v[u][j] -= g.spread * k[j];
            }
            if (is_index<P> && hot >= 0 && hot < N) {
#pragma unroll
                for (int j = 0; j < N; j++)
                    if (hot == j) v[u][j] -= g.hot;
            }
            store_any(dx + c, v[u]);
        }
    }
}

template <typename T, typename P, bool WARP>
__global__ void __launch_bounds__(WARP ? small_block : max_block, WARP ? 4 : 2)
    xent_backward_kernel(const problem<T, P> a, const gradient_args args, T *dlogits) {
    constexpr int N = pack_bytes / sizeof(T);
    const int thread = group_thread<WARP>(), threads = group_threads<WARP>();
    const int64_t row = WARP ? int64_t(blockIdx.x) * (blockDim.x >> 5) + (threadIdx.x >> 5) : blockIdx.x / args.chunks;
    const int64_t chunk = WARP ? 0 : blockIdx.x % args.chunks;
    if (WARP && row >= a.rows) return;
    const T *x = a.logits + row * a.classes;
    const P *p = is_index<P> ? nullptr : a.target + row * a.classes;
    T *dx = dlogits + row * a.classes;
    const parts r = parts_of(x, a.classes);
    const int64_t first = chunk * args.chunk_packs;
    const int64_t end = first + args.chunk_packs < r.packs ? first + args.chunk_packs : r.packs;
    const int64_t rest = chunk == 0 ? a.classes - r.tail : 0, ahead = chunk == 0 ? r.body : 0;

    row_gradient g = {args.lse[2 * row], args.lse[2 * row + 1], 0.f, 0.f, 0.f, -1};
    if constexpr (is_index<P>) {
        g.t = a.target[row];
        if (g.t == a.ignore_index) {
            store_zeros<1>(dx, 0, ahead, thread, threads);
            store_zeros<N>(dx + r.body, first, end, thread, threads);
            store_zeros<1>(dx + r.tail, 0, rest, thread, threads);
            return;
        }
    }
    float dce = args.dloss[args.mode == HS_XENT_NONE ? row : 0], dz = dce;
    if (args.mode == HS_XENT_MEAN) {
        dce /= args.denominator[0];
        dz /= args.denominator[1];
    }
    float target_mass = 1.f; /* sum_c w_c q_c */
    if (!is_index<P> || (a.weight && a.spread != 0.f)) {
        target_mass = sum_coefficients<1>(a, p, 0, r.body, thread, threads) +
                      sum_coefficients<N>(a, p, r.body, r.packs, thread, threads) +
                      sum_coefficients<1>(a, p, r.tail, a.classes - r.tail, thread, threads);
        target_mass = group_sum<WARP>(target_mass);
    }
    g.spread = dce;
    if constexpr (is_index<P>) {
        const bool in_range = g.t >= 0 && g.t < a.classes;
        const float w = !in_range ? NAN : a.weight ? a.weight[g.t] : 1.f;
        target_mass = a.weight || !in_range ? a.keep * w + a.spread * (a.spread != 0.f ? target_mass : 0.f) : 1.f;
        g.hot = dce * a.keep * w;
        g.spread = dce * a.spread;
    }
    g.softmax = dce * target_mass;
    if (args.z_loss != 0.f) g.softmax += dz * 2.f * args.z_loss * (g.max + g.log_sum);
    store_gradient<1, 1>(a, g, x, p, dx, 0, 0, ahead, thread, threads);
    store_gradient<N, loads<P, WARP>>(a, g, x, p, dx, r.body, first, end, thread, threads);
    store_gradient<1, 1>(a, g, x, p, dx, r.tail, 0, rest, thread, threads);
}

template <typename T, typename P> void launch_backward(const hs_ctx *ctx, const hs_xent_backward_args *a) {
    const problem<T, P> problem = problem_of<T, P>(a);
    const cudaStream_t stream = stream_of(ctx);
    T *dlogits = static_cast<T *>(a->dlogits.data);
    gradient_args args = {};
    args.dloss = static_cast<const float *>(a->dloss.data);
    args.lse = static_cast<const float *>(a->lse.data);
    args.denominator = static_cast<const float *>(a->denominator.data);
    args.mode = a->reduction;
    args.z_loss = float(a->z_loss);
    args.chunk_packs = problem.classes;
    args.chunks = 1;
    if (problem.classes <= warp_row_classes) {
        const unsigned blocks = unsigned(ceil_div(problem.rows, small_block / 32));
        xent_backward_kernel<T, P, true><<<blocks, small_block, 0, stream>>>(problem, args, dlogits);
        return;
    }
    const int64_t packs = problem.classes * int64_t(sizeof(T)) / pack_bytes;
    int threads = small_block;
    if (!is_index<P> || (problem.weight && problem.spread != 0.f)) {
        threads = threads_for_row(packs); /* sum_c w_c q_c needs the whole row first */
    } else {
        args.chunk_packs = int64_t(threads) * loads<P, false>;
        args.chunks = uint32_t(ceil_div(packs, args.chunk_packs));
    }
    xent_backward_kernel<T, P, false>
        <<<unsigned(problem.rows * args.chunks), threads, 0, stream>>>(problem, args, dlogits);
}

template <typename T> void launch_backward(const hs_ctx *ctx, const hs_xent_backward_args *a) {
    switch (a->target.dtype) {
    case HS_I64:
        return launch_backward<T, int64_t>(ctx, a);
    case HS_F32:
        return launch_backward<T, float>(ctx, a);
    case HS_F16:
        return launch_backward<T, __half>(ctx, a);
    default:
        return launch_backward<T, __nv_bfloat16>(ctx, a);
    }
}

} // namespace

extern "C" hs_status hs_xent_backward_cuda(const hs_ctx *ctx, const hs_xent_backward_args *args) {
    if (args->logits.shape[0] == 0) return HS_OK;
    switch (args->logits.dtype) {
    case HS_F32:
        launch_backward<float>(ctx, args);
        break;
    case HS_F16:
        launch_backward<__half>(ctx, args);
        break;
    default:
        launch_backward<__nv_bfloat16>(ctx, args);
    }
    return launched(op);
}
