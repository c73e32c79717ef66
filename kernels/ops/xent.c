#include "xent.h"

#include <math.h>

#include "check.h"

static const char op[] = "cross_entropy";

static hs_status check_logits(const hs_ctx *ctx, const hs_tensor *logits) {
    HS_TRY(hs_check_float(op, "logits", logits));
    if (logits->ndim != 2)
        return hs_fail(HS_BAD_VALUE, "%s: logits has %d dimensions, expected 2 (rows, classes)", op, logits->ndim);
    if (logits->shape[1] == 0) return hs_fail(HS_BAD_VALUE, "%s: logits has 0 classes, expected 1 or more", op);
    return hs_check_tensor(op, "logits", logits, ctx);
}

static hs_status check_target(const hs_ctx *ctx, const hs_tensor *target, const hs_tensor *logits) {
    HS_TRY(hs_check_tensor(op, "target", target, ctx));
    if (target->dtype == HS_I64) return hs_check_numel(op, "target", target, logits->shape[0], "the number of rows");
    if (hs_is_float(target->dtype)) return hs_check_same_shape(op, "target", target, "logits", logits);
    return hs_fail(HS_BAD_TYPE,
                   "%s: target is %s, expected int64 class indices or float32, float16 or bfloat16 probabilities", op,
                   hs_dtype_name(target->dtype));
}

static hs_status check_weight(const hs_ctx *ctx, const hs_tensor *weight, const hs_tensor *logits) {
    HS_TRY(hs_check_dtype(op, "weight", weight, HS_F32));
    HS_TRY(hs_check_tensor(op, "weight", weight, ctx));
    return hs_check_numel(op, "weight", weight, logits->shape[1], "the number of classes");
}

static hs_status check_f32(const hs_ctx *ctx, const char *name, const hs_tensor *t, int64_t numel, const char *what) {
    if (t->dtype != HS_F32)
        return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected float32", op, name, hs_dtype_name(t->dtype));
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    return hs_check_numel(op, name, t, numel, what);
}

static hs_status check_loss(const hs_ctx *ctx, const char *name, const hs_tensor *t, const hs_tensor *logits,
                            int64_t reduction) {
    if (reduction == HS_XENT_NONE) return check_f32(ctx, name, t, logits->shape[0], "the number of rows");
    return check_f32(ctx, name, t, 1, "the size of a reduced loss");
}

static hs_status check_options(int64_t reduction, double label_smoothing, double z_loss) {
    if (reduction < HS_XENT_NONE || reduction > HS_XENT_SUM)
        return hs_fail(HS_BAD_VALUE, "%s: reduction is %lld, expected 0 (none), 1 (mean) or 2 (sum)", op,
                       (long long)reduction);
    if (!(label_smoothing >= 0 && label_smoothing <= 1))
        return hs_fail(HS_BAD_VALUE, "%s: label_smoothing is %g, expected 0 to 1", op, label_smoothing);
    if (!(z_loss >= 0 && isfinite(z_loss)))
        return hs_fail(HS_BAD_VALUE, "%s: z_loss is %g, expected a finite value of 0 or more", op, z_loss);
    return HS_OK;
}

static hs_status check_forward(const hs_ctx *ctx, const hs_xent_forward_args *a) {
    HS_TRY(check_options(a->reduction, a->label_smoothing, a->z_loss));
    HS_TRY(check_logits(ctx, &a->logits));
    HS_TRY(check_target(ctx, &a->target, &a->logits));
    HS_TRY(check_weight(ctx, &a->weight, &a->logits));
    HS_TRY(check_loss(ctx, "loss", &a->loss, &a->logits, a->reduction));
    HS_TRY(check_f32(ctx, "lse", &a->lse, 2 * a->logits.shape[0], "twice the number of rows"));
    return check_f32(ctx, "denominator", &a->denominator, 2, "the expected number");
}

static hs_status check_backward(const hs_ctx *ctx, const hs_xent_backward_args *a) {
    HS_TRY(check_options(a->reduction, a->label_smoothing, a->z_loss));
    HS_TRY(check_logits(ctx, &a->logits));
    HS_TRY(check_target(ctx, &a->target, &a->logits));
    HS_TRY(check_weight(ctx, &a->weight, &a->logits));
    HS_TRY(check_loss(ctx, "grad", &a->dloss, &a->logits, a->reduction));
    HS_TRY(check_f32(ctx, "lse", &a->lse, 2 * a->logits.shape[0], "twice the number of rows"));
    HS_TRY(check_f32(ctx, "denominator", &a->denominator, 2, "the expected number"));
    HS_TRY(hs_check_tensor(op, "dlogits", &a->dlogits, ctx));
    if (a->dlogits.dtype != a->logits.dtype)
        return hs_fail(HS_BAD_TYPE, "%s: dlogits is %s, logits is %s", op, hs_dtype_name(a->dlogits.dtype),
                       hs_dtype_name(a->logits.dtype));
    return hs_check_same_shape(op, "dlogits", &a->dlogits, "logits", &a->logits);
}

hs_status hs_xent_forward(const hs_ctx *ctx, const hs_xent_forward_args *args) {
    HS_TRY(check_forward(ctx, args));
    return HS_DISPATCH(op, hs_xent_forward, ctx, args);
}

int64_t hs_xent_forward_workspace(const hs_ctx *ctx, const hs_xent_forward_args *args) {
    return HS_DISPATCH_WORKSPACE(hs_xent_forward_workspace, ctx, args);
}

hs_status hs_xent_backward(const hs_ctx *ctx, const hs_xent_backward_args *args) {
    HS_TRY(check_backward(ctx, args));
    return HS_DISPATCH(op, hs_xent_backward, ctx, args);
}
