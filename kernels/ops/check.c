#include "check.h"

#include <inttypes.h>
#include <stdio.h>

static const char *device_name(hs_device d, char *buffer, size_t size) {
    if (d.kind == HS_CPU) return "cpu";
    snprintf(buffer, size, "cuda:%d", d.index);
    return buffer;
}

hs_status hs_check_tensor(const char *op, const char *name, const hs_tensor *t, const hs_ctx *ctx) {
    if (!hs_present(t)) return HS_OK;
    if (t->device.kind != ctx->device.kind || t->device.index != ctx->device.index) {
        char here[16], there[16];
        return hs_fail(HS_BAD_VALUE, "%s: %s is on %s, the other tensors are on %s", op, name,
                       device_name(t->device, here, sizeof here), device_name(ctx->device, there, sizeof there));
    }
    if (!hs_is_contiguous(t)) return hs_fail(HS_BAD_VALUE, "%s: %s is not contiguous", op, name);
    return HS_OK;
}

hs_status hs_check_float(const char *op, const char *name, const hs_tensor *t) {
    if (hs_is_float(t->dtype)) return HS_OK;
    return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected float32, float16 or bfloat16", op, name,
                   hs_dtype_name(t->dtype));
}

hs_status hs_check_dtype(const char *op, const char *name, const hs_tensor *t, int dtype) {
    if (!hs_present(t) || t->dtype == dtype) return HS_OK;
    return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected %s", op, name, hs_dtype_name(t->dtype), hs_dtype_name(dtype));
}

hs_status hs_check_dtype_or_f32(const char *op, const char *name, const hs_tensor *t, int dtype, const char *dtype_of) {
    if (!hs_present(t) || t->dtype == dtype || t->dtype == HS_F32) return HS_OK;
    return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected float32 or %s as %s is", op, name, hs_dtype_name(t->dtype),
                   hs_dtype_name(dtype), dtype_of);
}

hs_status hs_check_same_dtype(const char *op, const char *name, const hs_tensor *t, const char *other_name,
                              const hs_tensor *other) {
    if (!hs_present(t) || t->dtype == other->dtype) return HS_OK;
    return hs_fail(HS_BAD_TYPE, "%s: %s is %s, %s is %s", op, name, hs_dtype_name(t->dtype), other_name,
                   hs_dtype_name(other->dtype));
}

static const char *shape_text(const hs_tensor *t, char *buffer, size_t size) {
    size_t used = (size_t)snprintf(buffer, size, "(");
    for (int i = 0; i < t->ndim && used < size; i++)
        used += (size_t)snprintf(buffer + used, size - used, i ? ", %" PRId64 : "%" PRId64, t->shape[i]);
    if (used < size) snprintf(buffer + used, size - used, t->ndim == 1 ? ",)" : ")");
    return buffer;
}

hs_status hs_check_same_shape(const char *op, const char *name, const hs_tensor *t, const char *other_name,
                              const hs_tensor *other) {
    if (!hs_present(t)) return HS_OK;
    bool same = t->ndim == other->ndim;
    for (int i = 0; same && i < t->ndim; i++) same = t->shape[i] == other->shape[i];
    if (same) return HS_OK;
    char a[128], b[128];
    return hs_fail(HS_BAD_VALUE, "%s: %s has shape %s, %s has shape %s", op, name, shape_text(t, a, sizeof a),
                   other_name, shape_text(other, b, sizeof b));
}

hs_status hs_check_numel(const char *op, const char *name, const hs_tensor *t, int64_t expected, const char *what) {
    if (!hs_present(t) || hs_numel(t) == expected) return HS_OK;
    return hs_fail(HS_BAD_VALUE, "%s: %s has %" PRId64 " elements, %s is %" PRId64, op, name, hs_numel(t), what,
                   expected);
}

hs_status hs_no_cuda(const char *op) {
    return hs_fail(HS_FAILURE, "%s: the tensors are on a GPU and this build of halfstep has no CUDA kernels", op);
}
