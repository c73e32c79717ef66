#include "norm.h"

#include "check.h"

static const char op[] = "layer_norm";

/* A row is one or more of the last axes, whole. */
static hs_status check_cols(const hs_tensor *x, int64_t cols, const char *name) {
    int64_t product = 1;
    for (int i = x->ndim - 1; i >= 0; i--) {
        product *= x->shape[i];
        if (product == cols) return HS_OK;
    }
    return hs_fail(HS_BAD_VALUE, "%s: the last axes of %s do not make rows of %lld elements; its last axis has %lld",
                   op, name, (long long)cols, (long long)(x->ndim ? x->shape[x->ndim - 1] : 0));
}

/* A weight has the axes of a row, so that (2, 3) never stands for (3, 2). */
static hs_status check_weight(const hs_ctx *ctx, const char *name, const hs_tensor *w, const hs_tensor *x,
                              int64_t cols) {
    if (!hs_present(w)) return HS_OK;
    HS_TRY(hs_check_tensor(op, name, w, ctx));
    HS_TRY(hs_check_numel(op, name, w, cols, "the size of a row of x"));
    for (int i = 1; i <= w->ndim; i++)
        if (i > x->ndim || w->shape[w->ndim - i] != x->shape[x->ndim - i])
            return hs_fail(HS_BAD_VALUE, "%s: %s has %lld in an axis where x has %lld", op, name,
                           (long long)w->shape[w->ndim - i], (long long)(i > x->ndim ? 1 : x->shape[x->ndim - i]));
    return hs_check_dtype_or_f32(op, name, w, x->dtype, "x");
}

static hs_status check_forward(const hs_ctx *ctx, const hs_norm_forward_args *a) {
    HS_TRY(hs_check_float(op, "x", &a->x));
    HS_TRY(hs_check_tensor(op, "x", &a->x, ctx));
    HS_TRY(check_cols(&a->x, a->cols, "x"));
    HS_TRY(check_weight(ctx, "weight", &a->w, &a->x, a->cols));
    HS_TRY(check_weight(ctx, "bias", &a->b, &a->x, a->cols));
    if (hs_present(&a->w)) HS_TRY(hs_check_same_dtype(op, "bias", &a->b, "weight", &a->w));
    HS_TRY(hs_check_tensor(op, "residual", &a->residual, ctx));
    HS_TRY(hs_check_same_shape(op, "residual", &a->residual, "x", &a->x));
    HS_TRY(hs_check_dtype_or_f32(op, "residual", &a->residual, a->x.dtype, "x"));
    HS_TRY(hs_check_tensor(op, "y", &a->y, ctx));
    HS_TRY(hs_check_same_dtype(op, "y", &a->y, "x", &a->x));
    HS_TRY(hs_check_same_shape(op, "y", &a->y, "x", &a->x));
    if (hs_present(&a->residual) != hs_present(&a->sum))
        return hs_fail(HS_BAD_VALUE, "%s: residual and sum must be given together", op);
    HS_TRY(hs_check_tensor(op, "sum", &a->sum, ctx));
    HS_TRY(hs_check_same_shape(op, "sum", &a->sum, "x", &a->x));
    HS_TRY(hs_check_same_dtype(op, "sum", &a->sum, "residual", &a->residual));
    if (!(a->eps >= 0)) return hs_fail(HS_BAD_VALUE, "%s: eps is %g, expected 0 or more", op, a->eps);
    return HS_OK;
}

static hs_status check_backward(const hs_ctx *ctx, const hs_norm_backward_args *a) {
    HS_TRY(hs_check_float(op, "grad", &a->dy));
    HS_TRY(hs_check_tensor(op, "grad", &a->dy, ctx));
    HS_TRY(check_cols(&a->dy, a->cols, "grad"));
    HS_TRY(hs_check_tensor(op, "h", &a->h, ctx));
    HS_TRY(hs_check_same_shape(op, "grad", &a->dy, "the input", &a->h));
    HS_TRY(hs_check_dtype_or_f32(op, "h", &a->h, a->dy.dtype, "grad"));
    HS_TRY(hs_check_tensor(op, "weight", &a->w, ctx));
    HS_TRY(hs_check_numel(op, "weight", &a->w, a->cols, "the size of a row"));
    HS_TRY(hs_check_dtype_or_f32(op, "weight", &a->w, a->dy.dtype, "grad"));
    HS_TRY(hs_check_tensor(op, "grad of sum", &a->dsum, ctx));
    HS_TRY(hs_check_same_shape(op, "grad of sum", &a->dsum, "grad", &a->dy));
    HS_TRY(hs_check_same_dtype(op, "grad of sum", &a->dsum, "h", &a->h));
    HS_TRY(hs_check_tensor(op, "dx", &a->dx, ctx));
    HS_TRY(hs_check_same_shape(op, "dx", &a->dx, "grad", &a->dy));
    HS_TRY(hs_check_same_dtype(op, "dx", &a->dx, "grad", &a->dy));
    HS_TRY(hs_check_tensor(op, "dresidual", &a->dresidual, ctx));
    HS_TRY(hs_check_same_shape(op, "dresidual", &a->dresidual, "grad", &a->dy));
    HS_TRY(hs_check_same_dtype(op, "dresidual", &a->dresidual, "h", &a->h));
    const hs_tensor *sums[] = {&a->dw, &a->db};
    const char *names[] = {"dw", "db"};
    for (int i = 0; i < 2; i++) {
        HS_TRY(hs_check_tensor(op, names[i], sums[i], ctx));
        HS_TRY(hs_check_numel(op, names[i], sums[i], a->cols, "the size of a row"));
        HS_TRY(hs_check_dtype_or_f32(op, names[i], sums[i], a->dy.dtype, "grad"));
    }
    if (!(a->eps >= 0)) return hs_fail(HS_BAD_VALUE, "%s: eps is %g, expected 0 or more", op, a->eps);
    return HS_OK;
}

hs_status hs_norm_forward(const hs_ctx *ctx, const hs_norm_forward_args *args) {
    HS_TRY(check_forward(ctx, args));
    return HS_DISPATCH(op, hs_norm_forward, ctx, args);
}

int64_t hs_norm_backward_workspace(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    return HS_DISPATCH_WORKSPACE(hs_norm_backward_workspace, ctx, args);
}

hs_status hs_norm_backward(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    HS_TRY(check_backward(ctx, args));
    return HS_DISPATCH(op, hs_norm_backward, ctx, args);
}
