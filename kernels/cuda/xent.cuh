/* xent.cuh - what the two passes of cross entropy share: how a row is cut into packs and given to threads.
 *
 * Each thread keeps several 16-byte loads in flight. A row's first and last elements, outside whole packs, go one by
 * one, so any number of classes and any alignment take the same path. */
#ifndef HS_CUDA_XENT_CUH
#define HS_CUDA_XENT_CUH
#include "../ops/xent.h"
#include "common.cuh"

namespace {
constexpr const char *op = "cross_entropy";
constexpr int pack_bytes = 16;
constexpr int64_t warp_row_classes = 1024; /* up to here a warp holds a row in a few packs and needs no barrier */
constexpr int small_block = 256, max_block = 512;

/* P is int64_t for class indices, otherwise the type of the probabilities. */
template <typename T, typename P> struct problem {
    const T *logits;
    const P *target;
    const float *weight; /* NULL when absent */
    int64_t rows, classes, ignore_index;
    float keep, spread; /* 1 - label_smoothing, label_smoothing / classes */
};
template <typename P> constexpr bool is_index = sizeof(P) == sizeof(int64_t);

/* Logit packs of one thread in flight: four hide the latency of memory with 1,024 threads on a multiprocessor. A warp's
 * short row has no more than that, and probabilities are a second stream. */
template <typename P, bool WARP> constexpr int loads = 4 / (WARP ? 2 : 1) / (is_index<P> ? 1 : 2);

/* ---- one row ---- */
/* The threads that work on one row together. */
template <bool WARP> __device__ __forceinline__ int group_thread() {
    return WARP ? threadIdx.x & 31 : threadIdx.x;
}
template <bool WARP> __device__ __forceinline__ int group_threads() {
    return WARP ? 32 : blockDim.x;
}
template <bool WARP> __device__ __forceinline__ float group_sum(float v) {
    return WARP ? warp_sum(v) : block_sum(v);
}

/* Elements [0, body) stand before the first 16-byte boundary, packs follow, and [tail, classes) are left over. */
struct parts {
    int64_t body, packs, tail;
};
template <typename T> __device__ __forceinline__ parts parts_of(const T *x, int64_t classes) {
    constexpr int N = pack_bytes / sizeof(T);
    parts r;
    r.body = (0 - reinterpret_cast<uintptr_t>(x)) % pack_bytes / sizeof(T);
    if (r.body > classes) r.body = classes;
    r.packs = (classes - r.body) / N;
    r.tail = r.body + r.packs * N;
    return r;
}

/* Packs i, i + step, ... below end, of x; what lies beyond reads as -inf, which adds nothing to a sum of exp. The loads
 * stand together, ahead of every conversion, so that all of them are in flight at once. */
template <typename T, int N, int U>
__device__ __forceinline__ void load_logits(const T *x, int64_t i, int64_t end, int step, float (&v)[U][N]) {
    pack<T, N> raw[U];
#pragma unroll
    for (int u = 0; u < U; u++) {
        const int64_t at = i + int64_t(u) * step;
        if (at < end) {
            raw[u] = *reinterpret_cast<const pack<T, N> *>(x + at * N);
        } else {
#pragma unroll
            for (int j = 0; j < N; j++) raw[u].value[j] = from_float<T>(-INFINITY);
        }
    }
#pragma unroll
    for (int u = 0; u < U; u++)
#pragma unroll
        for (int j = 0; j < N; j++) v[u][j] = to_float(raw[u].value[j]);
}

template <int N, typename T> __device__ __forceinline__ bool pack_aligned(const T *p) {
    return reinterpret_cast<uintptr_t>(p) % sizeof(pack<T, N>) == 0;
}

/* N elements of a row whose alignment is its own; every thread of a row takes the same branch. */
template <typename T, int N> __device__ __forceinline__ void load_any(const T *from, float (&to)[N]) {
    if (pack_aligned<N>(from)) {
        load_pack(from, to);
    } else {
#pragma unroll
        for (int j = 0; j < N; j++) to[j] = to_float(from[j]);
    }
}
/* The gradient is larger than the L2 where time matters, so its packs are stored to leave the L2 first. The intrinsic
 * also keeps the compiler from merging the two branches into narrow stores. */
template <typename T, int N> __device__ __forceinline__ void store_any(T *to, const float (&from)[N]) {
    if constexpr (sizeof(pack<T, N>) == pack_bytes) {
        if (pack_aligned<N>(to)) {
            pack<T, N> p;
#pragma unroll
            for (int j = 0; j < N; j++) p.value[j] = from_float<T>(from[j]);
            __stcs(reinterpret_cast<uint4 *>(to), *reinterpret_cast<const uint4 *>(&p));
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) to[j] = from_float<T>(from[j]);
}

/* k_c: w_c q_c for probabilities, w_c for class indices, where w_c is one without class weights. */
template <typename T, typename P, int N>
__device__ __forceinline__ void load_coefficients(const problem<T, P> &a, const P *p, int64_t c, float (&k)[N]) {
    if constexpr (is_index<P>) {
#pragma unroll
        for (int j = 0; j < N; j++) k[j] = 1.f;
    } else {
        load_any(p + c, k);
#pragma unroll
        for (int j = 0; j < N; j++) k[j] = a.keep * k[j] + a.spread;
    }
    if (a.weight) {
        float w[N];
        load_any(a.weight + c, w);
#pragma unroll
        for (int j = 0; j < N; j++) k[j] *= w[j];
    }
}

/* ---- launches ---- */
/* A block grows with its row until a thread has about four rounds of four loads. */
int threads_for_row(int64_t packs) {
    int threads = 128;
    while (threads < max_block && packs > int64_t(threads) * 16) threads *= 2;
    return threads;
}

template <typename T, typename P, typename ARGS> problem<T, P> problem_of(const ARGS *a) {
    const int64_t classes = a->logits.shape[1];
    return {static_cast<const T *>(a->logits.data),
            static_cast<const P *>(a->target.data),
            hs_present(&a->weight) ? static_cast<const float *>(a->weight.data) : nullptr,
            a->logits.shape[0],
            classes,
            a->ignore_index,
            float(1 - a->label_smoothing),
            float(a->label_smoothing / double(classes))};
}
} // namespace
#endif
