/* dlpack.h - the structs of DLPack 1.3 and of its C exchange API that this package reads.
 *
 * Specification: https://dmlc.github.io/dlpack/latest/c_api.html */
#ifndef HS_BIND_DLPACK_H
#define HS_BIND_DLPACK_H
#include <stdint.h>

enum { DL_CPU = 1, DL_CUDA = 2, DL_CUDA_HOST = 3, DL_CUDA_MANAGED = 13 };
enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };

typedef struct {
    uint32_t major, minor;
} dl_version;

typedef struct {
    int32_t type, id;
} dl_device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} dl_dtype;

typedef struct {
    void *data;
    dl_device device;
    int32_t ndim;
    dl_dtype dtype;
    int64_t *shape, *strides; /* strides may be NULL for a dense tensor of an older producer */
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    dl_tensor tensor;
    void *manager;
    void (*deleter)(struct dl_managed *);
} dl_managed;

typedef struct dl_managed_versioned {
    dl_version version;
    void *manager;
    void (*deleter)(struct dl_managed_versioned *);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

typedef struct dl_exchange_header {
    dl_version version;
    struct dl_exchange_header *previous;
} dl_exchange_header;

/* Every function returns 0, or -1 with a Python error set (the allocator: reported through set_error). */
typedef struct {
    dl_exchange_header header;
    int (*allocate)(dl_tensor *prototype, dl_managed_versioned **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*export_owned)(void *object, dl_managed_versioned **out);
    int (*import_owned)(dl_managed_versioned *tensor, void **out);
    int (*borrow)(void *object, dl_tensor *out); /* shape and strides stay the producer's */
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} dl_exchange;
#endif
