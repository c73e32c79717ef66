/* multi_tensor.cuh - one launch over many tensors: their addresses travel as the kernel's parameter, so nothing is
 * allocated or copied and a CUDA graph records the list with the launch.
 *
 * A tensor is cut into chunks; block b of a launch works on chunk b, which it finds by binary search. An empty tensor
 * has no chunk. */
#ifndef HS_CUDA_MULTI_TENSOR_CUH
#define HS_CUDA_MULTI_TENSOR_CUH
#include "common.cuh"

/* Bytes that CUDA 12.1 and later pass to a kernel for compute capability 7.0 and up. */
constexpr int max_parameter_bytes = 32764;

/* Elements of one chunk: a block is busy for long against its start, and the last blocks end close together. A multiple
 * of every pack, so that a chunk is aligned when its tensor is. */
constexpr int chunk_elements = 1 << 14;
constexpr int chunk_threads = 256;

/* POINTERS addresses for each of up to CAPACITY tensors. */
template <int POINTERS, int CAPACITY> struct tensor_batch {
    void *data[POINTERS][CAPACITY];
    int64_t numel[CAPACITY];
    int32_t first_chunk[CAPACITY + 1]; /* first_chunk[count] is the number of blocks */
    int32_t count;
};

/* Part of one tensor: elements [begin, end). */
struct chunk {
    int tensor;
    int64_t begin, end;
};

/* ---- host ---- */
/* Appends a tensor of n elements; the caller fills data[...][the result]. */
template <typename BATCH> static inline int batch_append(BATCH *batch, int64_t n) {
    const int i = batch->count++;
    batch->numel[i] = n;
    if (i == 0) batch->first_chunk[0] = 0;
    batch->first_chunk[i + 1] = batch->first_chunk[i] + int32_t(ceil_div(n, chunk_elements));
    return i;
}

template <typename BATCH> static inline unsigned batch_blocks(const BATCH *batch) {
    return unsigned(batch->first_chunk[batch->count]);
}

/* ---- device ---- */
/* The chunk of block b: the last tensor that starts at or before it, which passes over empty ones. */
template <typename BATCH> __device__ __forceinline__ chunk chunk_of(const BATCH &batch, int b) {
    int low = 0, high = batch.count; /* first_chunk[low] <= b < first_chunk[high] */
    while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (batch.first_chunk[middle] <= b)
            low = middle;
        else
            high = middle;
    }
    chunk c;
    c.tensor = low;
    c.begin = int64_t(b - batch.first_chunk[low]) * chunk_elements;
    c.end = c.begin + chunk_elements < batch.numel[low] ? c.begin + chunk_elements : batch.numel[low];
    return c;
}

/* True when packs of N elements of type T may be loaded from p, and from p + any multiple of N. */
template <typename T, int N> __device__ __forceinline__ bool holds_packs(const void *p) {
    return reinterpret_cast<uintptr_t>(p) % sizeof(pack<T, N>) == 0;
}
#endif
