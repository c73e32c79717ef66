/* The activation passes that linear calls, on the CPU, over the types that the fake cuBLASLt knows. */
#ifndef FAKE_ACT_H
#define FAKE_ACT_H
#include "../../kernels/ops/act.h"
#include "fake_cublaslt.h"

static int act_passes;

static double f(int64_t kind, double z) {
    switch (kind) {
    case HS_ACT_RELU:
        return z < 0 ? 0 : z;
    case HS_ACT_GELU:
        return z / 2 * (1 + erf(z / sqrt(2)));
    case HS_ACT_GELU_TANH:
        return gelu_tanh(z);
    case HS_ACT_SILU:
        return z / (1 + exp(-z));
    default:
        return z;
    }
}
static double slope(int64_t kind, double z) {
    if (kind == HS_ACT_RELU) return z > 0;
    return (f(kind, z + 1e-4) - f(kind, z - 1e-4)) / 2e-4;
}
static unsigned type_of(const hs_tensor *t) {
    return t->dtype == HS_BF16 ? HS_LT_R_16BF : HS_LT_R_32F;
}
static double get(const hs_tensor *t, int64_t i) {
    return element(t->data, i, type_of(t));
}

hs_status hs_act_forward_cuda(const hs_ctx *ctx, const hs_act_forward_args *a) {
    (void)ctx;
    act_passes++;
    for (int64_t i = 0; i < hs_numel(&a->x); i++)
        set_element(a->y.data, i, type_of(&a->y),
                    f(a->kind, get(&a->x, i) + (hs_present(&a->b) ? get(&a->b, i % a->cols) : 0)));
    return HS_OK;
}
int64_t hs_act_backward_workspace_cuda(const hs_ctx *ctx, const hs_act_backward_args *a) {
    (void)ctx, (void)a;
    return 1000; /* no multiple of 256 */
}
hs_status hs_act_backward_cuda(const hs_ctx *ctx, const hs_act_backward_args *a) {
    act_passes++;
    memset(ctx->workspace, 0xff, 1000);
    const int64_t rows = hs_numel(&a->dy) / a->cols;
    for (int64_t j = 0; j < a->cols; j++) {
        double sum = 0;
        for (int64_t r = 0; r < rows; r++) {
            const int64_t i = r * a->cols + j;
            const double dz = get(&a->dy, i) * (a->kind ? slope(a->kind, get(&a->x, i)) : 1);
            if (hs_present(&a->dx)) set_element(a->dx.data, i, type_of(&a->dx), dz);
            sum += dz;
        }
        if (hs_present(&a->db)) set_element(a->db.data, j, type_of(&a->db), sum);
    }
    return HS_OK;
}
#endif
