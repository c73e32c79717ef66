/* norm.h - LayerNorm over the last cols elements, with an optional residual input and output.
 *
 * Math       h = x + residual (or x), rounded to h's dtype
 *            mean, var over a row of h, var by two passes; rstd = 1 / sqrt(var + eps)
 *            y = (h - mean) * rstd * w + b
 *            dh = rstd * (g - mean(g) - xhat * mean(g * xhat)) + dsum, g = dy * w, xhat = (h - mean) * rstd
 *            dw = sum over rows of dy * xhat, db = sum over rows of dy
 *            Ba, Kiros, Hinton, "Layer normalization" (2016). Backward computes mean and rstd again from h.
 * Shapes     x, residual, y, sum, dy, h, dx, dresidual, dsum: contiguous, rows * cols elements, the same shape.
 *            w, b, dw, db: contiguous, cols elements.
 * Traffic    forward reads x (and residual), writes y (and sum); backward reads dy and h (and dsum), writes dx (and
 *            dresidual). Each once.
 * Precision  x, y, dy, dx: T in float32, float16, bfloat16. residual, sum, h, dsum, dresidual: T or float32 with a
 *            16-bit T. w, b, dw, db: float32 or T, w and b alike. Arithmetic and sums in float32; sums over rows in a
 *            fixed order.
 * Empty      no rows: dw and db are zero. No columns: nothing is written. */
#ifndef HS_OPS_NORM_H
#define HS_OPS_NORM_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef struct {
    hs_tensor x;
    hs_tensor residual; /* optional */
    hs_tensor w, b;     /* each optional */
    hs_tensor y;        /* written */
    hs_tensor sum;      /* written: h; present exactly when residual is */
    int64_t cols;
    double eps;
} hs_norm_forward_args;

typedef struct {
    hs_tensor dy;
    hs_tensor h;         /* what was normalised: x, or sum when there was a residual */
    hs_tensor w;         /* optional */
    hs_tensor dsum;      /* optional: the gradient that arrives at sum */
    hs_tensor dx;        /* optional, written */
    hs_tensor dresidual; /* optional, written: dx in h's dtype, for a residual of another dtype than x */
    hs_tensor dw, db;    /* each optional, written */
    int64_t cols;
    double eps;
} hs_norm_backward_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_norm_forward(const hs_ctx *ctx, const hs_norm_forward_args *args);
hs_status hs_norm_backward(const hs_ctx *ctx, const hs_norm_backward_args *args);
int64_t hs_norm_backward_workspace(const hs_ctx *ctx, const hs_norm_backward_args *args);

/* The two implementations; the checks have been made. */
hs_status hs_norm_forward_cpu(const hs_ctx *ctx, const hs_norm_forward_args *args);
hs_status hs_norm_backward_cpu(const hs_ctx *ctx, const hs_norm_backward_args *args);
int64_t hs_norm_backward_workspace_cpu(const hs_ctx *ctx, const hs_norm_backward_args *args);
hs_status hs_norm_forward_cuda(const hs_ctx *ctx, const hs_norm_forward_args *args);
hs_status hs_norm_backward_cuda(const hs_ctx *ctx, const hs_norm_backward_args *args);
int64_t hs_norm_backward_workspace_cuda(const hs_ctx *ctx, const hs_norm_backward_args *args);
#ifdef __cplusplus
}
#endif
#endif
