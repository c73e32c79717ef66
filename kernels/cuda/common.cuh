/* common.cuh - what every CUDA kernel file shares: 16-byte loads, conversions, sums over a warp or a block, and the
 * way a launch reports. */
#ifndef HS_CUDA_COMMON_CUH
#define HS_CUDA_COMMON_CUH
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../base/status.h"
#include "../base/tensor.h"
#include "device.h"

/* ---- conversions ---- */
__device__ __forceinline__ float to_float(float v) {
    return v;
}
__device__ __forceinline__ float to_float(__half v) {
    return __half2float(v);
}
__device__ __forceinline__ float to_float(__nv_bfloat16 v) {
    return __bfloat162float(v);
}

template <typename T> __device__ __forceinline__ T from_float(float v);
template <> __device__ __forceinline__ float from_float<float>(float v) {
    return v;
}
template <> __device__ __forceinline__ __half from_float<__half>(float v) {
    return __float2half_rn(v);
}
template <> __device__ __forceinline__ __nv_bfloat16 from_float<__nv_bfloat16>(float v) {
    return __float2bfloat16_rn(v);
}

/* N elements that one thread loads or stores at once: a pack of 16 bytes is one instruction. */
template <typename T, int N> struct alignas(sizeof(T) * N) pack {
    T value[N];
};

template <typename T, int N> __device__ __forceinline__ void load_pack(const T *from, float (&to)[N]) {
    const pack<T, N> p = *reinterpret_cast<const pack<T, N> *>(from);
#pragma unroll
    for (int i = 0; i < N; i++) to[i] = to_float(p.value[i]);
}

template <typename T, int N> __device__ __forceinline__ void store_pack(T *to, const float (&from)[N]) {
    pack<T, N> p;
#pragma unroll
    for (int i = 0; i < N; i++) p.value[i] = from_float<T>(from[i]);
    *reinterpret_cast<pack<T, N> *>(to) = p;
}

/* ---- sums, the same value in every thread ---- */
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(~0u, v, mask);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) v = fmaxf(v, __shfl_xor_sync(~0u, v, mask));
    return v;
}

/* Sum over a block of a multiple of 32 threads, in a fixed order. May be called repeatedly. */
__device__ __forceinline__ float block_sum(float v) {
    __shared__ float partial[32];
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warps = (blockDim.x + 31) >> 5;
    v = warp_sum(v);
    __syncthreads();
    if (lane == 0) partial[warp] = v;
    __syncthreads();
    return warp_sum(lane < warps ? partial[lane] : 0.f);
}

/* ---- launches ---- */
/* The status of the launches so far; the sentence names the op. */
static inline hs_status launched(const char *op) {
    const cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? HS_OK : hs_fail(HS_FAILURE, "%s: CUDA: %s", op, cudaGetErrorString(error));
}

static inline cudaStream_t stream_of(const hs_ctx *ctx) {
    return static_cast<cudaStream_t>(ctx->stream);
}

static inline int64_t ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}
#endif
