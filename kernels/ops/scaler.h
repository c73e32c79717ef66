/* scaler.h - the dynamic loss scale: the check of the gradients, and the scale's own update.
 *
 * Math       check: found_inf = 1 when any gradient element is not finite, otherwise left as it is; with unscale every
 *              gradient becomes grad / scale, and a product that overflows counts as not finite. A scale that is not
 *              finite and above 0 counts so too, and then no gradient is written: nobody can look at it without waiting
 *              for the device.
 *            update: found_inf != 0: scale = max(scale * backoff_factor, min_scale), growth_tracker = 0; NaN becomes
 *                    min_scale, so that neither branch stores one
 *                    else: growth_tracker + 1, and when that reaches growth_interval: scale = min(scale *
 *                    growth_factor, max_scale) if finite, growth_tracker = 0
 *            Micikevicius et al., "Mixed precision training" (ICLR 2018).
 * Shapes     g: a list of contiguous tensors of any size. scale, found_inf: one float32 element. growth_tracker: one
 *            int32 element.
 * Traffic    check reads the gradients once, and writes them once with unscale. Update: three elements.
 * Precision  g: float32, float16, bfloat16. 1 / scale is formed in float64 and rounded to float32.
 * Empty      found_inf stays as it is. */
#ifndef HS_OPS_SCALER_H
#define HS_OPS_SCALER_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef struct {
    hs_tensor_list g;
    hs_tensor scale;     /* optional: present means unscale */
    hs_tensor found_inf; /* written */
} hs_scaler_check_args;

typedef struct {
    hs_tensor scale, growth_tracker; /* written */
    hs_tensor found_inf;
    double growth_factor, backoff_factor;
    int64_t growth_interval;
    double min_scale, max_scale;
} hs_scaler_update_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_scaler_check(const hs_ctx *ctx, const hs_scaler_check_args *args);
hs_status hs_scaler_update(const hs_ctx *ctx, const hs_scaler_update_args *args);

/* The two implementations; the checks have been made. */
hs_status hs_scaler_check_cpu(const hs_ctx *ctx, const hs_scaler_check_args *args);
hs_status hs_scaler_update_cpu(const hs_ctx *ctx, const hs_scaler_update_args *args);
hs_status hs_scaler_check_cuda(const hs_ctx *ctx, const hs_scaler_check_args *args);
hs_status hs_scaler_update_cuda(const hs_ctx *ctx, const hs_scaler_update_args *args);
#ifdef __cplusplus
}
#endif
#endif
