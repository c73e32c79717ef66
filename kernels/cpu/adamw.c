#include "../ops/adamw.h"

#include <math.h>

#include "../base/threads.h"
#include "list.h"
#include "simd.h"

enum { GRAIN = 1 << 14 }; /* elements: what a thread does in about the time it takes to wake one */

/* A run of elements of one tensor, and the step's numbers for it. */
typedef struct {
    float *p, *m, *v;
    void *g, *half; /* half: NULL when there is none */
    int32_t half_dtype;
    bool unscale, write_grad;
    float scale, sign;                          /* sign: -1 with maximize */
    float decay;                                /* lr weight_decay */
    float beta1_rest, beta2, beta2_rest;        /* rest: one minus */
    float step_size, root_bias_correction, eps; /* lr / (1 - beta1^t), 1 / sqrt(1 - beta2^t) */
} run;

HS_INLINE void update_vector(const run *r, int g_dtype, int64_t i, int64_t count) {
    hs_vf g = hs_load(g_dtype, r->g, i, count);
    if (r->unscale) {
        g = g / r->scale;
        if (r->write_grad) hs_store(g_dtype, r->g, i, g, count);
    }
    g *= r->sign;
    hs_vf p = hs_load(HS_F32, r->p, i, count), m = hs_load(HS_F32, r->m, i, count), v = hs_load(HS_F32, r->v, i, count);
    p = hs_fma(hs_splat(-r->decay), p, p);
    m = hs_fma(hs_splat(r->beta1_rest), g - m, m);
    v = hs_fma(r->beta2_rest * g, g, r->beta2 * v);
    const hs_vf denominator = hs_fma(hs_sqrt(v), hs_splat(r->root_bias_correction), hs_splat(r->eps));
    p = hs_fma(hs_splat(-r->step_size), m / denominator, p);
    hs_store(HS_F32, r->p, i, p, count);
    hs_store(HS_F32, r->m, i, m, count);
    hs_store(HS_F32, r->v, i, v, count);
    if (r->half) hs_store(r->half_dtype, r->half, i, p, count);
}

HS_INLINE void update_run(const run *r, int g_dtype, int64_t n) {
#define UPDATE(k, i, count) update_vector(r, g_dtype, i, count)
    HS_SWEEP(n, UPDATE);
#undef UPDATE
}

static float scalar_or(const hs_tensor *t, double otherwise) {
    return hs_present(t) ? *(const float *)t->data : (float)otherwise;
}

static run run_of(const hs_adamw_args *a, const hs_piece *piece) {
    const int64_t i = piece->item;
    const double lr = hs_present(&a->lr_tensor) ? *(const float *)a->lr_tensor.data : a->lr;
    const double t = *(const float *)a->step.items[i].data + 1.0;
    run r = {
        .p = hs_element(&a->p.items[i], piece->from),
        .m = hs_element(&a->m.items[i], piece->from),
        .v = hs_element(&a->v.items[i], piece->from),
        .g = hs_element(&a->g.items[i], piece->from),
        .unscale = hs_present(&a->scale),
        .write_grad = a->write_grad != 0,
        .scale = scalar_or(&a->scale, 1),
        .sign = a->maximize ? -1.0f : 1.0f,
        .decay = (float)(lr * a->weight_decay),
        .beta1_rest = (float)(1 - a->beta1),
        .beta2 = (float)a->beta2,
        .beta2_rest = (float)(1 - a->beta2),
        .step_size = (float)(lr / (1 - pow(a->beta1, t))),
        .root_bias_correction = (float)(1 / sqrt(1 - pow(a->beta2, t))),
        .eps = (float)a->eps,
    };
    if (a->half.count) {
        r.half = hs_element(&a->half.items[i], piece->from);
        r.half_dtype = a->half.items[i].dtype;
    }
    return r;
}

static void update_range(void *argument, int64_t begin, int64_t end) {
    const hs_adamw_args *a = argument;
    hs_piece piece = {0};
    while (hs_next_piece(&a->p, begin, end, &piece)) {
        const run r = run_of(a, &piece);
        const int64_t n = piece.to - piece.from;
        switch (a->g.items[piece.item].dtype) {
        case HS_F32:
            update_run(&r, HS_F32, n);
            break;
        case HS_F16:
            update_run(&r, HS_F16, n);
            break;
        default:
            update_run(&r, HS_BF16, n);
        }
    }
}

static bool is_skipped(const hs_adamw_args *a) {
    const float scale = scalar_or(&a->scale, 1), lr = scalar_or(&a->lr_tensor, 0);
    const bool usable = scale > 0 && isfinite(scale) && lr >= 0 && isfinite(lr);
    return !usable || scalar_or(&a->found_inf, 0) != 0;
}

hs_status HS_CPU(hs_adamw)(const hs_ctx *ctx, const hs_adamw_args *args) {
    (void)ctx;
    if (is_skipped(args)) return HS_OK;
    hs_parallel_for(hs_list_numel(&args->p), GRAIN, update_range, (void *)args);
    for (int64_t i = 0; i < args->step.count; i++) *(float *)args->step.items[i].data += 1;
    return HS_OK;
}
