/* adamw.h - one AdamW step over many tensors.
 *
 * Math       skip everything when found_inf is present and not 0, when scale is present and not finite and above 0, and
 *            when lr_tensor is present and not finite and 0 or more: nobody can look at a number on the device before
 *            the step without waiting for it. Else, with t = step + 1 and per element:
 *              g = grad / scale, negated with maximize
 *              p = p - lr weight_decay p
 *              m = m + (1 - beta1) (g - m),  v = beta2 v + (1 - beta2) g^2
 *              p = p - lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)
 *            and step = t. Loshchilov, Hutter, "Decoupled weight decay regularization" (ICLR 2019).
 * Shapes     p, g, m, v: lists of one length; item by item of one shape, contiguous. step: one float32 element each.
 *            half: empty, or one item each, absent (dtype none) or shaped as p.
 * Traffic    reads g, p, m, v, writes p, m, v (and half, and g with write_grad). Each once.
 * Precision  p, m, v: float32. g: float32, float16, bfloat16. half: float16 or bfloat16, p rounded once; the 16-bit
 *            copies of weights that matrix products use. Arithmetic in float32; the bias corrections in float64 on the
 *            CPU and in float32 with expm1 and log1p on CUDA.
 * Empty      an empty tensor moves nothing, and its step still advances. */
#ifndef HS_OPS_ADAMW_H
#define HS_OPS_ADAMW_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef struct {
    hs_tensor_list p, g, m, v, step;
    hs_tensor_list half; /* optional: count 0 */
    hs_tensor lr_tensor; /* optional: one float32 element on the device, read instead of lr */
    hs_tensor scale;     /* optional: one float32 element, the loss scale */
    hs_tensor found_inf; /* optional: one float32 element */
    double lr, beta1, beta2, eps, weight_decay;
    int64_t maximize;
    int64_t write_grad; /* with scale: the unscaled gradient is written back */
} hs_adamw_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_adamw(const hs_ctx *ctx, const hs_adamw_args *args);
/* The checks alone: for who steps with several calls and wants all of them or none. */
hs_status hs_adamw_check(const hs_ctx *ctx, const hs_adamw_args *args);

/* The two implementations; the checks have been made. */
hs_status hs_adamw_cpu(const hs_ctx *ctx, const hs_adamw_args *args);
hs_status hs_adamw_cuda(const hs_ctx *ctx, const hs_adamw_args *args);
#ifdef __cplusplus
}
#endif
#endif
