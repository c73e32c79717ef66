/* act.h - an optional bias, then an activation.
 *
 * Math       z = x + b; y = f(z) with f one of
 *              none z, relu max(z, 0), silu z / (1 + exp(-z)),
 *              gelu z/2 (1 + erf(z / sqrt 2)),  gelu_tanh z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))
 *            dx = dy * f'(z), db = sum over rows of dx
 *            GELU: Hendrycks, Gimpel (2016). SiLU: Elfwing, Uchibe, Doya (2017).
 * Shapes     x, y, dy, dx: contiguous, rows * cols elements, the same shape. b, db: contiguous, cols elements.
 *            y may be x and dx may be dy: each element is read before it is written. Without b and db, cols is free.
 * Traffic    forward reads x, writes y; backward reads dy and x, writes dx. Each once.
 * Precision  x, y, dy, dx: T in float32, float16, bfloat16. b, db: float32 or T. Arithmetic and sums in float32; sums
 *            over rows in a fixed order. A NaN stays a NaN, relu's too. relu's backward may be given y for x.
 * Empty      no rows: db is zero. No columns: nothing is written. */
#ifndef HS_OPS_ACT_H
#define HS_OPS_ACT_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef enum { HS_ACT_NONE, HS_ACT_RELU, HS_ACT_GELU, HS_ACT_GELU_TANH, HS_ACT_SILU, HS_ACT_COUNT } hs_act_kind;

typedef struct {
    hs_tensor x;
    hs_tensor b; /* optional */
    hs_tensor y; /* written */
    int64_t cols;
    int64_t kind; /* hs_act_kind */
} hs_act_forward_args;

typedef struct {
    hs_tensor dy;
    hs_tensor x;  /* for kind none: optional */
    hs_tensor b;  /* optional */
    hs_tensor dx; /* optional, written */
    hs_tensor db; /* optional, written */
    int64_t cols;
    int64_t kind;
} hs_act_backward_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_act_forward(const hs_ctx *ctx, const hs_act_forward_args *args);
hs_status hs_act_backward(const hs_ctx *ctx, const hs_act_backward_args *args);
int64_t hs_act_backward_workspace(const hs_ctx *ctx, const hs_act_backward_args *args);

/* The two implementations; the checks have been made. */
hs_status hs_act_forward_cpu(const hs_ctx *ctx, const hs_act_forward_args *args);
hs_status hs_act_backward_cpu(const hs_ctx *ctx, const hs_act_backward_args *args);
int64_t hs_act_backward_workspace_cpu(const hs_ctx *ctx, const hs_act_backward_args *args);
hs_status hs_act_forward_cuda(const hs_ctx *ctx, const hs_act_forward_args *args);
hs_status hs_act_backward_cuda(const hs_ctx *ctx, const hs_act_backward_args *args);
int64_t hs_act_backward_workspace_cuda(const hs_ctx *ctx, const hs_act_backward_args *args);
#ifdef __cplusplus
}
#endif
#endif
