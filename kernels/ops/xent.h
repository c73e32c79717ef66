/* xent.h - softmax cross entropy.
 *
 * Math       lse = log sum_c exp(logits_c), logp_c = logits_c - lse
 *            class indices, row with target t:
 *              ce = (1 - smoothing) w_t (-logp_t) + smoothing / classes * sum_c w_c (-logp_c), weight = w_t
 *              a row with t = ignore_index has ce = 0, weight = 0 and no z term
 *            class probabilities p: q_c = (1 - smoothing) p_c + smoothing / classes, ce = sum_c w_c q_c (-logp_c),
 *              weight = 1
 *            row loss = ce + z_loss * lse^2                                  (z-loss: Chowdhery et al., PaLM, 2022)
 *            none: the row losses. sum: their sum. mean: sum ce / sum weight + z_loss * sum lse^2 / counted rows.
 *            All rows ignored, mean: NaN, or zero with zero_if_all_ignored.
 *            dlogits_c = dce * (a * softmax_c - w_c * q_c) + dz * 2 z_loss lse softmax_c, a = sum_c w_c q_c, where q is
 *            the (smoothed) target distribution, and dce, dz are dloss with the reduction's factor.
 * Shapes     logits, dlogits: (rows, classes). target: (rows) of int64, or (rows, classes) in float32, float16 or
 *            bfloat16. weight: (classes) float32. loss, dloss: (rows) for none, else one element. lse: (rows, 2), the
 *            row's maximum and what the logarithm adds to it, apart because their sum would lose the digits of
 *            logits with a large common offset; without meaning where the row is ignored. denominator: two elements,
 *            sum weight and counted rows. All contiguous.
 * Traffic    forward reads logits once; backward reads them once more and writes dlogits once. Probabilities likewise.
 * Precision  logits, dlogits: float32, float16, bfloat16. loss, lse, denominator, dloss: float32. Arithmetic and sums
 *            in float32, sums over rows in a fixed order. The logits are never modified.
 * Empty      no rows: none writes nothing, sum is 0, mean is as if all were ignored. classes must not be 0.
 *
 * A class index that is neither in [0, classes) nor ignore_index is HS_BAD_VALUE on the CPU before anything is
 * written. On CUDA, where looking would wait for the device, that row's loss, lse and gradient are NaN and no other
 * memory is touched. */
#ifndef HS_OPS_XENT_H
#define HS_OPS_XENT_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef enum { HS_XENT_NONE, HS_XENT_MEAN, HS_XENT_SUM } hs_xent_reduction;

typedef struct {
    hs_tensor logits, target;
    hs_tensor weight;      /* optional */
    hs_tensor loss;        /* written */
    hs_tensor lse;         /* written */
    hs_tensor denominator; /* written, for every reduction */
    int64_t ignore_index;
    int64_t reduction; /* hs_xent_reduction */
    double label_smoothing, z_loss;
    int64_t zero_if_all_ignored;
} hs_xent_forward_args;

typedef struct {
    hs_tensor dloss, logits, target;
    hs_tensor weight; /* optional */
    hs_tensor lse, denominator;
    hs_tensor dlogits; /* written */
    int64_t ignore_index;
    int64_t reduction;
    double label_smoothing, z_loss;
    int64_t zero_if_all_ignored;
} hs_xent_backward_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_xent_forward(const hs_ctx *ctx, const hs_xent_forward_args *args);
int64_t hs_xent_forward_workspace(const hs_ctx *ctx, const hs_xent_forward_args *args);
hs_status hs_xent_backward(const hs_ctx *ctx, const hs_xent_backward_args *args);

/* The two implementations; the checks have been made. */
hs_status hs_xent_forward_cpu(const hs_ctx *ctx, const hs_xent_forward_args *args);
int64_t hs_xent_forward_workspace_cpu(const hs_ctx *ctx, const hs_xent_forward_args *args);
hs_status hs_xent_backward_cpu(const hs_ctx *ctx, const hs_xent_backward_args *args);
hs_status hs_xent_forward_cuda(const hs_ctx *ctx, const hs_xent_forward_args *args);
int64_t hs_xent_forward_workspace_cuda(const hs_ctx *ctx, const hs_xent_forward_args *args);
hs_status hs_xent_backward_cuda(const hs_ctx *ctx, const hs_xent_backward_args *args);
#ifdef __cplusplus
}
#endif
#endif
