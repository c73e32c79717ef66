/* norm.cuh - what the two passes of LayerNorm share: launch shapes, weights, row statistics. */
#ifndef HS_CUDA_NORM_CUH
#define HS_CUDA_NORM_CUH
#include "rows.cuh"

/* ---- launch shapes ---- */
/* A group of threads keeps a row in registers, packs of 16 bytes of h in each thread. The first shape that holds the
 * row is taken; a longer row is read again in a loop, from the L2. */
struct shape {
    int group, packs;
};
constexpr shape shapes[] = {{32, 1}, {32, 2}, {32, 3}, {32, 4}, {256, 1}, {256, 2}, {512, 2}, {512, 4}};
constexpr int shape_count = sizeof(shapes) / sizeof(shapes[0]);
constexpr int loop_threads = 512, loop_packs = 2;

__host__ __device__ constexpr int threads_of(shape s) {
    return s.group > 256 ? s.group : 256;
}
__host__ __device__ constexpr int rows_of(shape s) {
    return threads_of(s) / s.group;
} /* rows that a block has at a time */

/* Floats of shared memory for one array of weights. */
__host__ __device__ constexpr int64_t tile_of(shape s, int n) {
    return int64_t(s.group) * s.packs * n;
}

/* The first shape that holds cols columns in packs of n, or shape_count. */
static inline int shape_for(int64_t cols, int n) {
    int i = 0;
    while (i < shape_count && tile_of(shapes[i], n) < cols) i++;
    return i;
}

/* Static shared memory of the kernels and what the driver keeps for itself, at most. */
constexpr int64_t shared_reserve = 4096;

/* ---- weights ---- */
/* w or b: float32 or T, or absent. */
struct weights {
    const void *data;
    bool f32;
};
static inline weights weights_of(const hs_tensor *t) {
    return {hs_present(t) ? t->data : nullptr, t->dtype == HS_F32};
}

template <typename T> __device__ __forceinline__ float weight_at(const weights &w, int64_t column, float absent) {
    if (!w.data) return absent;
    return w.f32 ? static_cast<const float *>(w.data)[column] : to_float(static_cast<const T *>(w.data)[column]);
}

/* Shared memory holds the weights as float4 in the order of use, [four elements of a slice][thread of the group], so
 * that dtype and alignment are settled once a block. Columns outside the row are zero. */
template <typename T, int N, int G, int NP>
__device__ __forceinline__ void fill_weights(float *to, const weights &w, float absent, int cols, bool vector) {
    static_assert(N % 4 == 0, "a pack is read as float4");
    for (int column = threadIdx.x; column < G * NP * N; column += blockDim.x) {
        const int lane = vector ? column / N % G : column % G;
        const int element = vector ? column / (N * G) * N + column % N : column / G;
        to[(element / 4 * G + lane) * 4 + element % 4] = column < cols ? weight_at<T>(w, column, absent) : 0.f;
    }
}

template <int N, int G>
__device__ __forceinline__ void read_weights(const float *from, int lane, int j, float (&to)[N]) {
#pragma unroll
    for (int quad = 0; quad < N / 4; quad++) {
        const float4 four = reinterpret_cast<const float4 *>(from)[(j * (N / 4) + quad) * G + lane];
        to[4 * quad] = four.x;
        to[4 * quad + 1] = four.y;
        to[4 * quad + 2] = four.z;
        to[4 * quad + 3] = four.w;
    }
}

/* ---- statistics ---- */
/* xhat = (h * scale - mean) * rstd. scale is 1, or 2^-80 for a row whose squares overflow float32: its values come
 * down to 2^48 at most, and what underflows is below the rounding of the row's largest value. eps vanishes beside the
 * variance of such a row. */
struct row_stats {
    float scale, mean, rstd;
};

__device__ __forceinline__ float normalised(float h, const row_stats &s) {
    return (h * s.scale - s.mean) * s.rstd;
}

/* each(f) calls f(element, inside the row) for every element that the thread holds. Elements outside are zero. */
template <int G, typename Each>
__device__ __forceinline__ row_stats stats_of(const Each &each, float cols, float eps, float (*slots)[warp_size]) {
    row_stats s = {1.f, 0.f, 0.f};
    float squares;
    for (;;) {
        float sum = 0.f;
        each([&](float h, bool) { sum += h * s.scale; });
        s.mean = group_sum<G>(sum, slots[0]) / cols;
        squares = 0.f;
        each([&](float h, bool inside) {
            const float d = h * s.scale - s.mean;
            if (inside) squares += d * d;
        });
        squares = group_sum<G>(squares, slots[1]);
        if (isfinite(squares) || s.scale != 1.f) break; /* alike in every thread of the group */
        s.scale = 0x1p-80f;
    }
    s.rstd = rsqrtf(squares / cols + eps * s.scale * s.scale);
    return s;
}

/* Of a row in registers. */
template <typename H, int N, int G, int NP>
__device__ __forceinline__ row_stats stats_of_slice(raw<H, N> (&h)[NP], const slice<N, G> &s, float cols, float eps,
                                                    float (*slots)[warp_size]) {
    const auto each = [&](auto f) {
        keep_packed(h);
#pragma unroll
        for (int j = 0; j < NP; j++) {
            float v[N];
            unpack(h[j], v);
#pragma unroll
            for (int k = 0; k < N; k++) f(v[k], j * N + k < s.count);
        }
    };
    return stats_of<G>(each, cols, eps, slots);
}

/* Of a row in memory, by a block of loop_threads. */
template <typename H, int N>
__device__ __forceinline__ row_stats stats_of_row(const H *row, int64_t cols, bool vector, float eps,
                                                  float (*slots)[warp_size]) {
    constexpr int G = loop_threads, NP = loop_packs;
    const auto each = [&](auto f) {
        for (int64_t first = 0; first < cols; first += G * NP * N) {
            const slice<N, G> s(threadIdx.x, cols - first, vector);
            raw<H, N> h[NP];
            load_slice(h, row + first, s);
#pragma unroll
            for (int j = 0; j < NP; j++) {
                float v[N];
                unpack(h[j], v);
#pragma unroll
                for (int k = 0; k < N; k++) f(v[k], j * N + k < s.count);
            }
        }
    };
    return stats_of<G>(each, static_cast<float>(cols), eps, slots);
}

/* Shared memory above 48 KB must be asked for. */
template <typename Kernel> static inline void allow_shared(Kernel kernel, int64_t bytes) {
    if (bytes > 48 * 1024)
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes));
}

static inline unsigned at_most(int64_t blocks, int64_t most) {
    return static_cast<unsigned>(blocks < most ? blocks : most);
}
#endif
