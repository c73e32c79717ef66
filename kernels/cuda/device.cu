#include "device.h"

#include <cuda_runtime.h>

namespace {
constexpr int max_devices = 64;
hs_device_properties cache[max_devices]; /* multiprocessors is written last and is 0 until then */
} // namespace

extern "C" const hs_device_properties *hs_device_properties_of(int index) {
    hs_device_properties *p = &cache[index < max_devices ? index : 0];
    if (__atomic_load_n(&p->multiprocessors, __ATOMIC_ACQUIRE) == 0) {
        int major = 0, minor = 0, multiprocessors = 1;
        cudaDeviceGetAttribute(&p->shared_per_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, index);
        cudaDeviceGetAttribute(&p->l2_bytes, cudaDevAttrL2CacheSize, index);
        cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
        cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
        cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, index);
        p->capability = major * 10 + minor;
        __atomic_store_n(&p->multiprocessors, multiprocessors, __ATOMIC_RELEASE);
    }
    return p;
}

extern "C" hs_status hs_device_enter(int index, int *previous) {
    cudaError_t error = cudaGetDevice(previous);
    if (error == cudaSuccess && *previous != index) error = cudaSetDevice(index);
    if (error == cudaSuccess) return HS_OK;
    return hs_fail(HS_FAILURE, "cuda:%d cannot be used: %s", index, cudaGetErrorString(error));
}

extern "C" void hs_device_leave(int index, int previous) {
    if (previous != index) cudaSetDevice(previous);
}

extern "C" bool hs_device_is_capturing(void *stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &status);
    return status != cudaStreamCaptureStatusNone;
}

extern "C" int hs_device_count(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}
