/* linear.h - y = f(x wT + b) and its gradients, by cuBLASLt. CUDA only: on the CPU the caller's library multiplies.
 *
 * Math       z = x wT + b, y = f(z) with f of act.h
 *            dz = dy * f'(z), dx = dz w, dw = dzT x, db = sum over rows of dz
 * Shapes     x: (rows, in), w: (out, in), b: (out), y, z, dy: (rows, out), dx as x, dw as w, db as b; contiguous. x, y
 *            and what is shaped like them may have more leading axes.
 * Traffic    bias, relu and tanh-gelu run inside the matrix product (cuBLASLt's epilogues); erf-gelu and silu take one
 *            more pass over z. db without an activation comes out of dw's product.
 * Precision  x, w, b, y, z, dy, dx: one dtype of float32, float16, bfloat16. dw, db: that dtype or float32. Products
 *            accumulate in float32; float32 operands use TF32 when tf32 is set.
 * Empty      no rows: dw and db are zero. in = 0: y = f(b), dx and dw are empty. out = 0: dx is zero.
 *
 * The algorithm is chosen once per device, shape, dtype, epilogue and alignment, and kept: outside capture the first
 * candidates of cuBLASLt's heuristic are timed on a private stream and private buffers; when the shape first comes in
 * capture, with ctx->deterministic or with HALFSTEP_TUNE=0 it is the heuristic's first. Partial sums along the
 * reduced axis are kept in float32 and added in a fixed order. */
#ifndef HS_OPS_LINEAR_H
#define HS_OPS_LINEAR_H
#include "act.h"

typedef struct {
    hs_tensor x, w;
    hs_tensor b;  /* optional */
    hs_tensor y;  /* written */
    hs_tensor z;  /* optional, written: what backward needs of gelu, gelu_tanh and silu */
    int64_t kind; /* hs_act_kind */
    int64_t tf32;
} hs_linear_forward_args;

typedef struct {
    hs_tensor dy;
    hs_tensor x;      /* read for dw; optional without it */
    hs_tensor w;      /* read for dx; optional without it */
    hs_tensor saved;  /* z of forward, for relu y; absent for kind none */
    hs_tensor dx;     /* optional, written */
    hs_tensor dw, db; /* each optional, written */
    int64_t kind;
    int64_t tf32;
} hs_linear_backward_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_linear_forward(const hs_ctx *ctx, const hs_linear_forward_args *args);
int64_t hs_linear_forward_workspace(const hs_ctx *ctx, const hs_linear_forward_args *args);
hs_status hs_linear_backward(const hs_ctx *ctx, const hs_linear_backward_args *args);
int64_t hs_linear_backward_workspace(const hs_ctx *ctx, const hs_linear_backward_args *args);

/* The CUDA implementation; the checks have been made. */
hs_status hs_linear_forward_cuda(const hs_ctx *ctx, const hs_linear_forward_args *args);
int64_t hs_linear_forward_workspace_cuda(const hs_ctx *ctx, const hs_linear_forward_args *args);
hs_status hs_linear_backward_cuda(const hs_ctx *ctx, const hs_linear_backward_args *args);
int64_t hs_linear_backward_workspace_cuda(const hs_ctx *ctx, const hs_linear_backward_args *args);
#ifdef __cplusplus
}
#endif
#endif
