/* rows.cuh - how a group of threads keeps a row in registers, sums over a group, and sums over rows.
 *
 * A group of G threads holds G * NP * N columns: NP packs of N elements in each thread. The packs stay in the dtype of
 * the tensor, so that a 16-bit row costs half the registers, and are unpacked where they are used. */
#ifndef HS_CUDA_ROWS_CUH
#define HS_CUDA_ROWS_CUH
#include "common.cuh"

constexpr int warp_size = 32;

/* Elements of a 16-byte load. */
template <typename T> constexpr int pack_of = 16 / sizeof(T);

/* ---- packs ---- */
template <typename T, int N> struct alignas(sizeof(T) * N) raw {
    uint32_t word[sizeof(T) * N / 4];
};

template <int N> __device__ __forceinline__ void unpack(const raw<float, N> &from, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = __uint_as_float(from.word[i]);
}

template <int N> __device__ __forceinline__ void unpack(const raw<__half, N> &from, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        const float2 pair = __half22float2(*reinterpret_cast<const __half2 *>(&from.word[i]));
        to[2 * i] = pair.x;
        to[2 * i + 1] = pair.y;
    }
}

/* Makes the compiler unpack again what it reads next, instead of keeping unpacked floats from one pass to the next. */
template <typename T, int N, int NP> __device__ __forceinline__ void keep_packed(raw<T, N> (&packs)[NP]) {
    if constexpr (sizeof(T) < 4) {
#pragma unroll
        for (int j = 0; j < NP; j++)
#pragma unroll
            for (int i = 0; i < N * int(sizeof(T)) / 4; i++) asm volatile("" : "+r"(packs[j].word[i]));
    }
}

/* A bfloat16 is the upper half of a float. */
template <int N> __device__ __forceinline__ void unpack(const raw<__nv_bfloat16, N> &from, float (&to)[N]) {
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        to[2 * i] = __uint_as_float(from.word[i] << 16);
        to[2 * i + 1] = __uint_as_float(from.word[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint32_t pair_bits(__half, float low, float high) {
    const __half2 pair = __floats2half2_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}
__device__ __forceinline__ uint32_t pair_bits(__nv_bfloat16, float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t *>(&pair);
}

template <typename T, int N> __device__ __forceinline__ raw<T, N> repack(const float (&from)[N]) {
    raw<T, N> to;
    if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int i = 0; i < N; i++) to.word[i] = __float_as_uint(from[i]);
    } else {
#pragma unroll
        for (int i = 0; i < N / 2; i++) to.word[i] = pair_bits(T(), from[2 * i], from[2 * i + 1]);
    }
    return to;
}

template <typename T, int N> __device__ __forceinline__ raw<T, N> load_raw(const T *from) {
    return *reinterpret_cast<const raw<T, N> *>(from);
}

/* In PTX, because the compiler splits a plain store into words in some of the kernels. */
__device__ __forceinline__ void store_words(void *to, uint32_t a, uint32_t b) {
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)), "r"(a), "r"(b) : "memory");
}
__device__ __forceinline__ void store_words(void *to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)), "r"(a), "r"(b), "r"(c),
                 "r"(d)
                 : "memory");
}

template <typename T, int N> __device__ __forceinline__ void store_raw(T *to, const raw<T, N> &from) {
    const uint32_t *word = from.word;
    if constexpr (sizeof(from) == 8) {
        store_words(to, word[0], word[1]);
    } else {
#pragma unroll
        for (int i = 0; i < int(sizeof(from)) / 16; i++)
            store_words(to + i * (16 / sizeof(T)), word[4 * i], word[4 * i + 1], word[4 * i + 2], word[4 * i + 3]);
    }
}

/* ---- the columns of one thread ---- */
/* Vector: pack j of a thread is N neighbouring columns, one load. Otherwise (odd cols, unaligned pointers) its
 * elements are G columns apart, so that single loads of a warp still touch neighbouring addresses. Element k of pack j
 * lies inside the row exactly when j * N + k < count, in both. */
template <int N, int G> struct slice {
    int lane, count;
    bool vector;

    __device__ __forceinline__ slice(int lane, int64_t cols, bool vector) : lane(lane), vector(vector) {
        const int64_t units = vector ? cols / N : cols, mine = units > lane ? (units - lane + G - 1) / G : 0;
        const int bounded = static_cast<int>(mine < 1024 ? mine : 1024); /* above any NP * N */
        count = vector ? bounded * N : bounded;
    }
    __device__ __forceinline__ int column(int j, int k) const {
        return vector ? (j * G + lane) * N + k : (j * N + k) * G + lane;
    }
};

/* Elements outside the row become zero. All loads are issued before the first use. */
template <typename T, int N, int G, int NP>
__device__ __forceinline__ void load_slice(raw<T, N> (&to)[NP], const T *row, const slice<N, G> &s) {
    if (s.vector) {
#pragma unroll
        for (int j = 0; j < NP; j++) to[j] = j * N < s.count ? load_raw<T, N>(row + s.column(j, 0)) : raw<T, N>{};
    } else if constexpr (sizeof(T) == 4) {
#pragma unroll
        for (int j = 0; j < NP; j++)
#pragma unroll
            for (int k = 0; k < N; k++) to[j].word[k] = j * N + k < s.count ? __float_as_uint(row[s.column(j, k)]) : 0u;
    } else {
        const uint16_t *half = reinterpret_cast<const uint16_t *>(row);
#pragma unroll
        for (int j = 0; j < NP; j++)
#pragma unroll
            for (int k = 0; k < N; k += 2) {
                const uint32_t low = j * N + k < s.count ? half[s.column(j, k)] : 0u;
                const uint32_t high = j * N + k + 1 < s.count ? half[s.column(j, k + 1)] : 0u;
                to[j].word[k / 2] = low | high << 16;
            }
    }
}

template <typename T, int N, int G>
__device__ __forceinline__ void store_slice(T *row, const slice<N, G> &s, int j, const float (&from)[N]) {
    if (s.vector) {
        if (j * N < s.count) store_raw<T, N>(row + s.column(j, 0), repack<T, N>(from));
    } else {
#pragma unroll
        for (int k = 0; k < N; k++)
            if (j * N + k < s.count) row[s.column(j, k)] = from_float<T>(from[k]);
    }
}

/* ---- sums over a group: one warp, or all G threads of the block ---- */
/* slot: 32 values of shared memory. One barrier a sum is enough when two sums in a row use different slots: the second
 * one's barrier comes after the first one's reads. */
template <int G> __device__ __forceinline__ float group_sum(float v, float *slot) {
    v = warp_sum(v);
    if constexpr (G > warp_size) {
        const int lane = threadIdx.x % warp_size;
        if (lane == 0) slot[threadIdx.x / warp_size] = v;
        __syncthreads();
        v = slot[lane % (G / warp_size)];
#pragma unroll
        for (int mask = G / warp_size / 2; mask > 0; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
    }
    return v;
}

template <int G> __device__ __forceinline__ float2 group_sum(float2 v, float2 *slot) {
    v = make_float2(warp_sum(v.x), warp_sum(v.y));
    if constexpr (G > warp_size) {
        const int lane = threadIdx.x % warp_size;
        if (lane == 0) slot[threadIdx.x / warp_size] = v;
        __syncthreads();
        v = slot[lane % (G / warp_size)];
#pragma unroll
        for (int mask = G / warp_size / 2; mask > 0; mask >>= 1) {
            v.x += __shfl_xor_sync(~0u, v.x, mask);
            v.y += __shfl_xor_sync(~0u, v.y, mask);
        }
    }
    return v;
}

/* ---- sums over rows, in two stages and a fixed order ---- */
/* Where the sum of a column goes: float32 or 16 bits, or absent. */
struct column_output {
    void *to;
    int dtype;
};

__device__ __forceinline__ void store_column(const column_output &out, int64_t column, float v) {
    switch (out.dtype) {
    case HS_F32:
        static_cast<float *>(out.to)[column] = v;
        break;
    case HS_F16:
        static_cast<__half *>(out.to)[column] = from_float<__half>(v);
        break;
    default:
        static_cast<__nv_bfloat16 *>(out.to)[column] = from_float<__nv_bfloat16>(v);
    }
}

/* The warps of a block hold the same 32 * N columns of different rows: store(column, sum) gets each column's sum. One
 * float of padding for every 32 keeps the banks apart. */
template <int N> constexpr int warp_scratch = (warp_size + 1) * N; /* floats a warp */

template <int N, typename Store>
__device__ __forceinline__ void sum_of_warps(const float (&v)[N], bool vector, float *scratch, int64_t cols,
                                             const Store &store) {
    const int lane = threadIdx.x % warp_size, warps = blockDim.x / warp_size;
    float *mine = scratch + threadIdx.x / warp_size * warp_scratch<N>;
    __syncthreads();
#pragma unroll
    for (int k = 0; k < N; k++) {
        const int column = vector ? lane * N + k : k * warp_size + lane;
        mine[column + column / warp_size] = v[k];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < warp_size * N && column < cols; column += blockDim.x) {
        float sum = 0.f;
        for (int warp = 0; warp < warps; warp++) sum += scratch[warp * warp_scratch<N> + column + column / warp_size];
        store(column, sum);
    }
}

/* First stage: every block stores one partial sum a column. */
template <int N>
__device__ __forceinline__ void store_sum_of_warps(const float (&v)[N], bool vector, float *scratch, float *to,
                                                   int64_t cols) {
    sum_of_warps(v, vector, scratch, cols, [&](int column, float sum) { to[column] = sum; });
}

/* Second stage: adds the blocks. partial: (blocks, cols). An absent output has no partials. */
struct column_sum {
    const float *partial;
    column_output out;
};
struct column_sums {
    column_sum item[2];
    int64_t blocks, cols;
};

constexpr int column_sum_rows = 16;

static __global__ void __launch_bounds__(warp_size *column_sum_rows) column_sum_kernel(const column_sums sums) {
    __shared__ float part[column_sum_rows][warp_size];
    const column_sum item = blockIdx.y == 0 ? sums.item[0] : sums.item[1];
    if (!item.out.to) return;
    for (int64_t first = int64_t(blockIdx.x) * warp_size; first < sums.cols; first += int64_t(gridDim.x) * warp_size) {
        const int64_t column = first + threadIdx.x;
        float sum = 0.f;
        if (column < sums.cols) {
#pragma unroll 8
            for (int64_t block = threadIdx.y; block < sums.blocks; block += column_sum_rows)
                sum += item.partial[block * sums.cols + column];
        }
        __syncthreads();
        part[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y == 0 && column < sums.cols) {
            for (int row = 1; row < column_sum_rows; row++) sum += part[row][threadIdx.x];
            store_column(item.out, column, sum);
        }
    }
}

static inline void launch_column_sums(const column_sums &sums, cudaStream_t stream) {
    const int64_t tiles = ceil_div(sums.cols, warp_size), most = 1 << 20;
    const dim3 grid(static_cast<unsigned>(tiles < most ? tiles : most), sums.item[1].out.to ? 2 : 1);
    column_sum_kernel<<<grid, dim3(warp_size, column_sum_rows), 0, stream>>>(sums);
}

/* ---- host ---- */
/* True when loads of n elements are aligned. An absent tensor is. */
static inline bool is_aligned_for(const hs_tensor *t, int n) {
    return !hs_present(t) || hs_is_aligned(t, static_cast<uintptr_t>(n * hs_dtype_size(t->dtype)));
}

/* An output that has no rows to sum is zero. */
static inline void clear(const hs_tensor *t, cudaStream_t stream) {
    const int64_t bytes = hs_numel(t) * hs_dtype_size(t->dtype);
    if (hs_present(t) && bytes > 0) cudaMemsetAsync(t->data, 0, static_cast<size_t>(bytes), stream);
}

/* How many blocks share the rows, where a block of 8 warps takes 32 * n columns: enough to fill the device, with four
 * rows or more to a warp. */
static inline int64_t row_chunks(int64_t rows, int64_t cols, int n, int multiprocessors) {
    const int64_t tiles = ceil_div(cols, warp_size * n), wanted = ceil_div(int64_t(multiprocessors) * 8, tiles);
    const int64_t most = ceil_div(rows, 32);
    return wanted < most ? wanted : most;
}
#endif
