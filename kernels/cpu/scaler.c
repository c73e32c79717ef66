#include "../ops/scaler.h"

#include <float.h>
#include <math.h>
#include <stdatomic.h>

#include "../base/threads.h"
#include "list.h"
#include "simd.h"

enum { GRAIN = 1 << 15 }; /* elements: what a thread does in about the time it takes to wake one */

typedef struct {
    const hs_tensor_list *g;
    bool unscale;
    float inverse; /* 1 / scale */
    atomic_bool found_inf;
} job;

/* All ones in the lanes that are infinite or NaN. */
HS_INLINE hs_vi not_finite(hs_vf v) {
    return ~(hs_vi)(hs_abs(v) <= FLT_MAX);
}

/* Judges what is stored, so that a product that overflows only when it is rounded to dtype counts too. */
HS_INLINE hs_vi unscale_vector(int dtype, void *g, int64_t i, int64_t count, float inverse) {
    const hs_vf v = hs_round_to(dtype, hs_load(dtype, g, i, count) * inverse);
    hs_store(dtype, g, i, v, count);
    return not_finite(v);
}

HS_INLINE bool check_run(int dtype, void *g, int64_t n, bool unscale, float inverse) {
    hs_vi bad[4] = {{0}, {0}, {0}, {0}};
#define CHECK(k, i, count) bad[k] |= not_finite(hs_load(dtype, g, i, count))
#define UNSCALE(k, i, count) bad[k] |= unscale_vector(dtype, g, i, count, inverse)
    if (unscale)
        HS_SWEEP(n, UNSCALE);
    else
        HS_SWEEP(n, CHECK);
#undef CHECK
#undef UNSCALE
    const hs_vi any = bad[0] | bad[1] | bad[2] | bad[3];
    int32_t found = 0;
    for (int lane = 0; lane < HS_LANES; lane++) found |= any[lane];
    return found != 0;
}

static void check_range(void *argument, int64_t begin, int64_t end) {
    job *j = argument;
    hs_piece piece = {0};
    bool found = false;
    while (hs_next_piece(j->g, begin, end, &piece)) {
        const hs_tensor *t = &j->g->items[piece.item];
        void *g = hs_element(t, piece.from);
        const int64_t n = piece.to - piece.from;
        switch (t->dtype) {
        case HS_F32:
            found |= check_run(HS_F32, g, n, j->unscale, j->inverse);
            break;
        case HS_F16:
            found |= check_run(HS_F16, g, n, j->unscale, j->inverse);
            break;
        default:
            found |= check_run(HS_BF16, g, n, j->unscale, j->inverse);
        }
    }
    if (found) atomic_store(&j->found_inf, true);
}

hs_status HS_CPU(hs_scaler_check)(const hs_ctx *ctx, const hs_scaler_check_args *args) {
    (void)ctx;
    job j = {.g = &args->g, .unscale = hs_present(&args->scale)};
    const int64_t n = hs_list_numel(&args->g);
    const float scale = j.unscale ? *(const float *)args->scale.data : 1;
    if (!(scale > 0 && isfinite(scale))) {
        if (n > 0) *(float *)args->found_inf.data = 1;
        return HS_OK;
    }
    j.inverse = (float)(1.0 / (double)scale);
    hs_parallel_for(n, GRAIN, check_range, &j);
    if (j.found_inf) *(float *)args->found_inf.data = 1;
    return HS_OK;
}

hs_status HS_CPU(hs_scaler_update)(const hs_ctx *ctx, const hs_scaler_update_args *args) {
    (void)ctx;
    float *scale = args->scale.data;
    int32_t *tracker = args->growth_tracker.data;
    if (*(const float *)args->found_inf.data != 0) {
        const double lower = *scale * args->backoff_factor;
        *scale = (float)(lower >= args->min_scale ? lower : args->min_scale);
        *tracker = 0;
        return HS_OK;
    }
    if ((int64_t)*tracker + 1 < args->growth_interval) {
        *tracker += 1;
        return HS_OK;
    }
    const double higher = *scale * args->growth_factor;
    const float grown = (float)(higher > args->max_scale ? args->max_scale : higher);
    if (isfinite(grown)) *scale = grown;
    *tracker = 0;
    return HS_OK;
}
