/* norm_backward_few.cu - LayerNorm, backward, of few rows: everything in one launch and no workspace. For a small
 * problem a second launch and an allocation take longer than the kernels. */
#include "norm_backward.cuh"

constexpr int few_threads = 1024, few_warps = few_threads / warp_size;
/* Packs of a lane, 16 bytes of h each: of a row; and those loaded at once for dx, with dy and dsum, as 64 registers
 * allow. */
constexpr int few_packs = few_row_bytes / (warp_size * 16), few_packs_ahead = 2;
/* Busy warps of a block that writes dx: one for each of the schedulers of a multiprocessor. */
constexpr int few_rows_of_block = 4;

template <typename H>
__device__ __forceinline__ row_stats stats_of_few(const H *row, int64_t cols, bool vector, float eps) {
    const slice<pack_of<H>, warp_size> s(threadIdx.x % warp_size, cols, vector);
    raw<H, pack_of<H>> h[few_packs];
    load_slice(h, row, s);
    return stats_of_slice(h, s, static_cast<float>(cols), eps, nullptr);
}

/* The first tiles blocks write dw and db of 32 * N columns each, for which each computes the statistics of all rows.
 * The other blocks write dx and dresidual, a warp a row, and compute them again: no block waits for another. */
template <typename T, typename H>
__global__ void __launch_bounds__(few_threads)
    norm_backward_few_kernel(const backward_rows<T, H> a, const column_output dw, const column_output db,
                             const int tiles) {
    constexpr int N = pack_of<H>, G = warp_size;
    /* The sums of the warps, or the weights of a row. */
    constexpr int scratch_floats = few_warps * warp_scratch<N>;
    static_assert(few_packs * warp_size * N <= scratch_floats, "the weights of the longest row fit");
    __shared__ float4 scratch_quads[scratch_floats / 4];
    __shared__ float4 stats[few_rows];
    float *scratch = reinterpret_cast<float *>(scratch_quads);
    const int block = static_cast<int>(blockIdx.x), warp = threadIdx.x / warp_size, lane = threadIdx.x % warp_size;
    if (block < tiles) {
        for (int64_t row = warp; row < a.rows; row += few_warps) {
            const row_stats s = stats_of_few(a.h + row * a.cols, a.cols, a.vector, a.eps);
            if (lane == 0) stats[row] = make_float4(s.scale, s.mean, s.rstd, 0.f);
        }
        __syncthreads();
        const int64_t first = int64_t(block) * (G * N);
        const slice<N, G> s(lane, a.cols - first, a.vector);
        float sum_dw[N] = {}, sum_db[N] = {};
        sum_rows<few_warps, 2>(a, stats, 0, a.rows, first, s, sum_dw, sum_db);
        const auto store = [&](const column_output &out, const float (&sum)[N]) {
            sum_of_warps(sum, a.vector, scratch, a.cols - first,
                         [&](int column, float v) { store_column(out, first + column, v); });
        };
        if (dw.to) store(dw, sum_dw);
        if (db.to) store(db, sum_db);
    } else {
        fill_weights<T, N, G, few_packs>(scratch, a.w, 1.f, static_cast<int>(a.cols), a.vector);
        __syncthreads();
        const int blocks = gridDim.x - tiles;
        for (int64_t row = block - tiles + blocks * warp; row < a.rows; row += blocks * few_warps) {
            const row_stats row_stat = stats_of_few(a.h + row * a.cols, a.cols, a.vector, a.eps);
            const auto weights = [&](const slice<N, G> &s, int64_t column, float (&w)[N]) {
                read_weights<N, G>(scratch, s.lane, static_cast<int>(column) / (G * N), w);
            };
            backward_row<G, few_packs_ahead>(a, row, row_stat, weights, nullptr);
        }
    }
}

/* ---- host ---- */
template <typename T, typename H>
void launch_few(const backward_rows<T, H> &a, const column_output &dw, const column_output &db, int multiprocessors,
                cudaStream_t stream) {
    const int64_t tiles = dw.to || db.to ? ceil_div(a.cols, warp_size * pack_of<H>) : 0;
    const int64_t room = multiprocessors > tiles ? multiprocessors - tiles : 1; /* all blocks run at once */
    const int64_t blocks = a.dx || a.dresidual ? at_most(ceil_div(a.rows, few_rows_of_block), room) : 0;
    if (tiles + blocks == 0) return;
    norm_backward_few_kernel<T, H>
        <<<static_cast<unsigned>(tiles + blocks), few_threads, 0, stream>>>(a, dw, db, static_cast<int>(tiles));
}

template void launch_few(const backward_rows<float, float> &, const column_output &, const column_output &, int,
                         cudaStream_t);
template void launch_few(const backward_rows<__half, __half> &, const column_output &, const column_output &, int,
                         cudaStream_t);
template void launch_few(const backward_rows<__half, float> &, const column_output &, const column_output &, int,
                         cudaStream_t);
template void launch_few(const backward_rows<__nv_bfloat16, __nv_bfloat16> &, const column_output &,
                         const column_output &, int, cudaStream_t);
template void launch_few(const backward_rows<__nv_bfloat16, float> &, const column_output &, const column_output &, int,
                         cudaStream_t);
