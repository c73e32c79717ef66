/* tensor.h - a view of somebody else's memory, and where to work on it.
 *
 * An hs_tensor owns nothing and lives for one call. dtype HS_NONE (zero) marks an absent optional argument, so a
 * zeroed argument struct is a valid one without options. Strides count elements; the stride of an axis of size one
 * says nothing. */
#ifndef HS_TENSOR_H
#define HS_TENSOR_H
#include <stdbool.h>
#include <stdint.h>

enum { HS_MAX_DIMS = 8 };

typedef enum { HS_NONE, HS_F32, HS_F16, HS_BF16, HS_F64, HS_I64, HS_I32, HS_U8, HS_BOOL } hs_dtype;
typedef enum { HS_CPU, HS_CUDA } hs_device_kind;

typedef struct {
    int32_t kind; /* hs_device_kind */
    int32_t index;
} hs_device;

typedef struct {
    void *data;
    int64_t shape[HS_MAX_DIMS];
    int64_t stride[HS_MAX_DIMS];
    int32_t ndim;
    int32_t dtype; /* hs_dtype */
    hs_device device;
} hs_tensor;

/* As many tensors as the caller has, for the ops that work on whole models. */
typedef struct {
    const hs_tensor *items;
    int64_t count;
} hs_tensor_list;

typedef struct {
    hs_device device;
    void *stream;    /* cudaStream_t; unused on the CPU */
    void *workspace; /* 256-byte aligned; as large as hs_<op>_<pass>_workspace asked */
    int64_t workspace_bytes;
    bool deterministic; /* every choice fixed, nothing timed */
} hs_ctx;

static inline bool hs_present(const hs_tensor *t) {
    return t->dtype != HS_NONE;
}

/* The size of the last axis; 0 without axes. */
static inline int64_t hs_cols(const hs_tensor *t) {
    return t->ndim ? t->shape[t->ndim - 1] : 0;
}

static inline int64_t hs_numel(const hs_tensor *t) {
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->shape[i];
    return n;
}

/* Row-major without gaps. Without elements the strides say nothing. */
static inline bool hs_is_contiguous(const hs_tensor *t) {
    if (hs_numel(t) == 0) return true;
    int64_t expected = 1;
    for (int i = t->ndim - 1; i >= 0; i--) {
        if (t->shape[i] != 1 && t->stride[i] != expected) return false;
        expected *= t->shape[i];
    }
    return true;
}

static inline bool hs_is_aligned(const hs_tensor *t, uintptr_t bytes) {
    return ((uintptr_t)t->data & (bytes - 1)) == 0;
}

static inline int64_t hs_dtype_size(int dtype) {
    switch (dtype) {
    case HS_F64:
    case HS_I64:
        return 8;
    case HS_F32:
    case HS_I32:
        return 4;
    case HS_F16:
    case HS_BF16:
        return 2;
    case HS_U8:
    case HS_BOOL:
        return 1;
    default:
        return 0;
    }
}

static inline const char *hs_dtype_name(int dtype) {
    static const char *const names[] = {"none",  "float32", "float16", "bfloat16", "float64",
                                        "int64", "int32",   "uint8",   "bool"};
    return dtype >= 0 && dtype <= HS_BOOL ? names[dtype] : "unknown";
}

static inline bool hs_is_float(int dtype) {
    return dtype == HS_F32 || dtype == HS_F16 || dtype == HS_BF16;
}
#endif
