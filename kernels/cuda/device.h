/* device.h - what a launch asks of the device. The properties are read once per device and cached. */
#ifndef HS_CUDA_DEVICE_H
#define HS_CUDA_DEVICE_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef struct {
    int multiprocessors;
    int shared_per_block; /* bytes that a block can get after opting in */
    int l2_bytes;
    int capability; /* 90 for 9.0 */
} hs_device_properties;

#ifdef __cplusplus
extern "C" {
#endif
/* Never fails for the device of a live tensor. */
const hs_device_properties *hs_device_properties_of(int index);

/* Makes index the current device and stores the one before; hs_device_leave takes it back. */
hs_status hs_device_enter(int index, int *previous);
void hs_device_leave(int index, int previous);

/* True while the stream records a CUDA graph. */
bool hs_device_is_capturing(void *stream);

int hs_device_count(void); /* 0 without a driver or a GPU */
#ifdef __cplusplus
}
#endif
#endif
