/* The part of the CUDA runtime that kernels/cuda/{linear,matmul,matmul_plan,matmul_tune}.c call, on the CPU: streams
 * run at once, device memory is host memory, and an event remembers what the fake cuBLASLt launched last. */
#ifndef FAKE_CUDA_RUNTIME_API_H
#define FAKE_CUDA_RUNTIME_API_H
#include <stdlib.h>
#include <string.h>

typedef enum { cudaSuccess = 0, cudaErrorMemoryAllocation = 2 } cudaError_t;
typedef struct fake_stream *cudaStream_t;
typedef struct fake_event {
    float ms;
} *cudaEvent_t;
enum cudaStreamCaptureMode {
    cudaStreamCaptureModeGlobal,
    cudaStreamCaptureModeThreadLocal,
    cudaStreamCaptureModeRelaxed
};
enum { cudaStreamNonBlocking = 1 };

extern struct fake_cuda {
    int streams, events, buffers; /* alive */
    int buffers_made;
    int buffers_allowed; /* -1: any number */
    enum cudaStreamCaptureMode mode;
    float last_ms; /* how long the last product took */
} fake_cuda;

static inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    fake_cuda.streams += flags == cudaStreamNonBlocking;
    *stream = malloc(1);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    fake_cuda.streams--;
    free(stream);
    return cudaSuccess;
}
static inline cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return stream ? cudaSuccess : cudaErrorMemoryAllocation; /* only the private stream may be waited for */
}
static inline cudaError_t cudaEventCreate(cudaEvent_t *event) {
    fake_cuda.events++;
    *event = calloc(1, sizeof **event);
    return cudaSuccess;
}
static inline cudaError_t cudaEventDestroy(cudaEvent_t event) {
    fake_cuda.events--;
    free(event);
    return cudaSuccess;
}
static inline cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)stream;
    event->ms = fake_cuda.last_ms;
    return cudaSuccess;
}
static inline cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t stop) {
    (void)start;
    *ms = stop->ms;
    return cudaSuccess;
}
static inline cudaError_t cudaMallocAsync(void **memory, size_t bytes, cudaStream_t stream) {
    (void)stream;
    if (fake_cuda.buffers_allowed >= 0 && fake_cuda.buffers >= fake_cuda.buffers_allowed)
        return cudaErrorMemoryAllocation;
    fake_cuda.buffers++;
    fake_cuda.buffers_made++;
    *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return cudaSuccess;
}
static inline cudaError_t cudaFreeAsync(void *memory, cudaStream_t stream) {
    (void)stream;
    fake_cuda.buffers--;
    free(memory);
    return cudaSuccess;
}
static inline cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream) {
    (void)stream;
    memset(memory, value, bytes);
    return cudaSuccess;
}
static inline cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) {
    const enum cudaStreamCaptureMode before = fake_cuda.mode;
    fake_cuda.mode = *mode;
    *mode = before;
    return cudaSuccess;
}
static inline cudaError_t cudaGetLastError(void) {
    return cudaSuccess;
}
static inline const char *cudaGetErrorString(cudaError_t error) {
    return error ? "an error" : "no error";
}
#endif
