/* norm_backward.cuh - what the kernels of LayerNorm's backward share. */
#ifndef HS_CUDA_NORM_BACKWARD_CUH
#define HS_CUDA_NORM_BACKWARD_CUH
#include "norm.cuh"

template <typename T, typename H> struct backward_rows {
    const T *dy;
    const H *h;
    weights w;
    const H *dsum;
    T *dx;
    H *dresidual;
    float *partial_dw, *partial_db; /* (blocks, cols) */
    float4 *stats;                  /* scale, mean and rstd of every row; for long rows only */
    int64_t rows, cols;
    float eps;
    bool vector;
};

/* Writes one pack of dx and dresidual. means: of g and of g * xhat, over the row. g is a product rounded by itself: one
 * that is left to a fused multiply-add would differ from what its mean was made of. */
template <typename T, typename H, int N, int G>
__device__ __forceinline__ void store_dx(const backward_rows<T, H> &a, int64_t at, const slice<N, G> &s, int j,
                                         const float (&h)[N], const float (&g)[N], const row_stats &stats, float2 means,
                                         const raw<H, N> &dsum) {
    float dh[N], more[N];
    unpack(dsum, more);
    const float factor = stats.rstd * stats.scale; /* 1 / sqrt(var + eps) */
#pragma unroll
    for (int k = 0; k < N; k++) dh[k] = factor * (g[k] - means.x - normalised(h[k], stats) * means.y) + more[k];
    if (a.dx) store_slice(a.dx + at, s, j, dh);
    if (a.dresidual) store_slice(a.dresidual + at, s, j, dh);
}

/* dx and dresidual of a row in memory, NP packs of each thread at a time. weights(slice, column of the slice, to) fills
 * to with the weights of a pack. */
template <int G, int NP, typename T, typename H, typename Weights>
__device__ __forceinline__ void backward_row(const backward_rows<T, H> &a, int64_t row, const row_stats &stats,
                                             const Weights &weights, float2 *slots) {
    constexpr int N = pack_of<H>;
    const int lane = threadIdx.x % G;
    const int64_t here = row * a.cols;
    /* f(slice of one pack, its column, h, g, dsum) for every pack of the row; dsum, where given, is read too. */
    const auto each = [&](const H *dsum, auto f) {
        for (int64_t first = 0; first < a.cols; first += G * NP * N) {
            const slice<N, G> all(lane, a.cols - first, a.vector);
            raw<H, N> h[NP], more[NP] = {};
            raw<T, N> dy[NP];
            load_slice(h, a.h + here + first, all);
            load_slice(dy, a.dy + here + first, all);
            if (dsum) load_slice(more, dsum + here + first, all);
#pragma unroll
            for (int j = 0; j < NP; j++) {
                const int64_t column = first + j * G * N;
                const slice<N, G> s(lane, a.cols - column, a.vector);
                float fh[N], g[N], w[N];
                unpack(h[j], fh);
                unpack(dy[j], g);
                weights(s, column, w);
#pragma unroll
                for (int k = 0; k < N; k++) g[k] = __fmul_rn(g[k], w[k]);
                f(s, column, fh, g, more[j]);
            }
        }
    };
    float2 sums = make_float2(0.f, 0.f);
    each(nullptr, [&](const slice<N, G> &, int64_t, const float (&h)[N], const float (&g)[N], const raw<H, N> &) {
#pragma unroll
        for (int k = 0; k < N; k++) {
            sums.x += g[k];
            sums.y += g[k] * normalised(h[k], stats);
        }
    });
    sums = group_sum<G>(sums, slots);
    const float2 means = make_float2(sums.x / a.cols, sums.y / a.cols);
    each(a.dsum, [&](const slice<N, G> &s, int64_t column, const float (&h)[N], const float (&g)[N],
                     const raw<H, N> &dsum) { store_dx(a, here + column, s, 0, h, g, stats, means, dsum); });
}

/* Adds dy * xhat and dy of the rows begin to end, for the columns of s at first. A warp takes every warps-th row and
 * loads several rows ahead of the sums. stats: scale, mean and rstd of every row. */
template <int warps, int ahead, int N, typename T, typename H>
__device__ __forceinline__ void sum_rows(const backward_rows<T, H> &a, const float4 *stats, int64_t begin, int64_t end,
                                         int64_t first, const slice<N, warp_size> &s, float (&sum_dw)[N],
                                         float (&sum_db)[N]) {
    for (int64_t row = begin + threadIdx.x / warp_size; row < end; row += warps * ahead) {
        raw<H, N> h[ahead][1] = {};
        raw<T, N> dy[ahead][1] = {};
        float4 stat[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int64_t r = row + i * warps;
            stat[i] = r < end ? stats[r] : make_float4(0.f, 0.f, 0.f, 0.f);
            if (r < end) {
                load_slice(h[i], a.h + r * a.cols + first, s);
                load_slice(dy[i], a.dy + r * a.cols + first, s);
            }
        }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const row_stats row_stat = {stat[i].x, stat[i].y, stat[i].z};
            float fh[N], fdy[N];
            unpack(h[i][0], fh);
            unpack(dy[i][0], fdy);
#pragma unroll
            for (int k = 0; k < N; k++) {
                sum_dw[k] += fdy[k] * normalised(fh[k], row_stat);
                sum_db[k] += fdy[k];
            }
        }
    }
}

/* ---- few rows ---- */
/* Whether one launch without a workspace takes the call, for rows of h of element_size bytes. Its blocks read all of h
 * from the L2, at most 128 KB. A warp holds a row in registers, and has at most two, one after another: with more or
 * longer rows the GPU takes longer than in two launches (measured on an H200). The choice depends on sizes alone, so
 * that dx has the same bits whichever gradients are wanted beside it. */
constexpr int64_t few_row_bytes = 2 << 10;
constexpr int few_rows = 64;

static inline bool is_few(int64_t rows, int64_t cols, int64_t element_size) {
    return rows <= few_rows && cols * element_size <= few_row_bytes;
}

/* Launches it; dw and db are each optional. */
template <typename T, typename H>
void launch_few(const backward_rows<T, H> &a, const column_output &dw, const column_output &db, int multiprocessors,
                cudaStream_t stream);
#endif
