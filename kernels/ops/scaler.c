#include "scaler.h"

#include <float.h>
#include <math.h>
#include <stdio.h>

#include "check.h"

static const char op[] = "scaler";

static hs_status check_one(const char *name, const hs_tensor *t, int dtype, const hs_ctx *ctx) {
    if (t->dtype != dtype)
        return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected %s", op, name, hs_dtype_name(t->dtype),
                       hs_dtype_name(dtype));
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    return hs_check_numel(op, name, t, 1, "the expected number");
}

static hs_status check_gradient(const char *name, const hs_tensor *g, const hs_ctx *ctx) {
    HS_TRY(hs_check_float(op, name, g));
    return hs_check_tensor(op, name, g, ctx);
}

/* The name with its index is only printed for a gradient that has failed: a model has hundreds of them. */
static hs_status check_gradients(const hs_tensor_list *g, const hs_ctx *ctx) {
    for (int64_t i = 0; i < g->count; i++) {
        if (check_gradient("grad", &g->items[i], ctx) == HS_OK) continue;
        char name[32];
        snprintf(name, sizeof name, "grad[%lld]", (long long)i);
        return check_gradient(name, &g->items[i], ctx);
    }
    return HS_OK;
}

static hs_status check_check(const hs_ctx *ctx, const hs_scaler_check_args *a) {
    HS_TRY(check_gradients(&a->g, ctx));
    if (hs_present(&a->scale)) HS_TRY(check_one("scale", &a->scale, HS_F32, ctx));
    return check_one("found_inf", &a->found_inf, HS_F32, ctx);
}

static hs_status check_update(const hs_ctx *ctx, const hs_scaler_update_args *a) {
    HS_TRY(check_one("scale", &a->scale, HS_F32, ctx));
    HS_TRY(check_one("growth_tracker", &a->growth_tracker, HS_I32, ctx));
    HS_TRY(check_one("found_inf", &a->found_inf, HS_F32, ctx));
    if (!(a->growth_factor > 1 && isfinite(a->growth_factor)))
        return hs_fail(HS_BAD_VALUE, "%s: growth_factor is %g, expected a finite value above 1", op, a->growth_factor);
    if (!(a->backoff_factor > 0 && a->backoff_factor < 1))
        return hs_fail(HS_BAD_VALUE, "%s: backoff_factor is %g, expected a value between 0 and 1", op,
                       a->backoff_factor);
    if (a->growth_interval < 1 || a->growth_interval > INT32_MAX)
        return hs_fail(HS_BAD_VALUE, "%s: growth_interval is %lld, expected 1 to %d", op, (long long)a->growth_interval,
                       INT32_MAX);
    if (!(a->min_scale >= 0 && a->min_scale <= FLT_MAX))
        return hs_fail(HS_BAD_VALUE, "%s: min_scale is %g, expected a finite float32 of 0 or more", op, a->min_scale);
    if (!(a->max_scale >= a->min_scale))
        return hs_fail(HS_BAD_VALUE, "%s: max_scale is %g, expected %g (min_scale) or more", op, a->max_scale,
                       a->min_scale);
    return HS_OK;
}

hs_status hs_scaler_check(const hs_ctx *ctx, const hs_scaler_check_args *args) {
    HS_TRY(check_check(ctx, args));
    return HS_DISPATCH(op, hs_scaler_check, ctx, args);
}

hs_status hs_scaler_update(const hs_ctx *ctx, const hs_scaler_update_args *args) {
    HS_TRY(check_update(ctx, args));
    return HS_DISPATCH(op, hs_scaler_update, ctx, args);
}
