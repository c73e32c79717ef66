/* check.h - the checks that every op makes before anything is launched or written, and the choice of device. */
#ifndef HS_OPS_CHECK_H
#define HS_OPS_CHECK_H
#include "../base/status.h"
#include "../base/tensor.h"

/* Each returns from the calling function on the first failure. */
#define HS_TRY(call)                                                                                                   \
    do {                                                                                                               \
        const hs_status hs_try_status = (call);                                                                        \
        if (hs_try_status != HS_OK) return hs_try_status;                                                              \
    } while (0)

/* "op: name is on cpu, the first argument on cuda:0", "op: name must be contiguous". An absent tensor passes. */
hs_status hs_check_tensor(const char *op, const char *name, const hs_tensor *t, const hs_ctx *ctx);
/* float32, float16 or bfloat16. */
hs_status hs_check_float(const char *op, const char *name, const hs_tensor *t);
hs_status hs_check_dtype(const char *op, const char *name, const hs_tensor *t, int dtype);
/* dtype or float32. An absent tensor passes. */
hs_status hs_check_dtype_or_f32(const char *op, const char *name, const hs_tensor *t, int dtype, const char *dtype_of);
hs_status hs_check_same_dtype(const char *op, const char *name, const hs_tensor *t, const char *other_name,
                              const hs_tensor *other);
hs_status hs_check_same_shape(const char *op, const char *name, const hs_tensor *t, const char *other_name,
                              const hs_tensor *other);
/* "op: name has 3 elements, expected 640 (what)". An absent tensor passes. */
hs_status hs_check_numel(const char *op, const char *name, const hs_tensor *t, int64_t expected, const char *what);

/* Called where a device has no implementation in this build. */
hs_status hs_no_cuda(const char *op);

/* Runs the implementation for ctx's device. A workspace size is asked for before the checks, so it must hold for any
 * argument struct; what it says of a wrong one is never used. */
#ifdef HS_WITH_CUDA
#define HS_DISPATCH(op, function, ctx, args)                                                                           \
    ((ctx)->device.kind == HS_CUDA ? function##_cuda(ctx, args) : function##_cpu(ctx, args))
#define HS_DISPATCH_WORKSPACE(function, ctx, args)                                                                     \
    ((ctx)->device.kind == HS_CUDA ? function##_cuda(ctx, args) : function##_cpu(ctx, args))
#else
#define HS_DISPATCH(op, function, ctx, args)                                                                           \
    ((ctx)->device.kind == HS_CUDA ? hs_no_cuda(op) : function##_cpu(ctx, args))
#define HS_DISPATCH_WORKSPACE(function, ctx, args) ((ctx)->device.kind == HS_CUDA ? 0 : function##_cpu(ctx, args))
#endif
#endif
