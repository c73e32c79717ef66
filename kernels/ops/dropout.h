/* dropout.h - inverted dropout whose mask is drawn again in backward instead of being stored.
 *
 * Math       u_i = word i % 4 of philox(seed, offset, i / 4); kept where u_i >= p * 2^32
 *            y = kept ? x / (1 - p) : 0. The backward is the same function on dy.
 *            Srivastava et al., "Dropout" (JMLR 2014); Philox: base/philox.h.
 * Shapes     x, y: contiguous, the same shape. state: two int64 elements, seed and offset, on the tensors' device.
 *            y may be x.
 * Traffic    reads x, writes y. Each once.
 * Precision  x, y: float32, float16, bfloat16, alike. The scale is applied in float32.
 * Empty      nothing is written. */
#ifndef HS_OPS_DROPOUT_H
#define HS_OPS_DROPOUT_H
#include "../base/status.h"
#include "../base/tensor.h"

typedef struct {
    hs_tensor x;
    hs_tensor y;     /* written */
    hs_tensor state; /* optional: read instead of seed and offset when the kernel runs, as graph replay needs */
    double p;        /* in [0, 1] */
    int64_t seed, offset;
} hs_dropout_args;

#ifdef __cplusplus
extern "C" {
#endif
hs_status hs_dropout(const hs_ctx *ctx, const hs_dropout_args *args);

/* The two implementations; the checks have been made. */
hs_status hs_dropout_cpu(const hs_ctx *ctx, const hs_dropout_args *args);
hs_status hs_dropout_cuda(const hs_ctx *ctx, const hs_dropout_args *args);
#ifdef __cplusplus
}
#endif
#endif
