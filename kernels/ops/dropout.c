#include "dropout.h"

#include "check.h"

static const char op[] = "dropout";

static hs_status check(const hs_ctx *ctx, const hs_dropout_args *a) {
    HS_TRY(hs_check_float(op, "x", &a->x));
    HS_TRY(hs_check_tensor(op, "x", &a->x, ctx));
    HS_TRY(hs_check_tensor(op, "y", &a->y, ctx));
    HS_TRY(hs_check_same_dtype(op, "y", &a->y, "x", &a->x));
    HS_TRY(hs_check_same_shape(op, "y", &a->y, "x", &a->x));
    HS_TRY(hs_check_tensor(op, "state", &a->state, ctx));
    HS_TRY(hs_check_dtype(op, "state", &a->state, HS_I64));
    HS_TRY(hs_check_numel(op, "state", &a->state, 2, "seed and offset"));
    if (!(a->p >= 0 && a->p <= 1)) return hs_fail(HS_BAD_VALUE, "%s: p is %g, expected 0 to 1", op, a->p);
    return HS_OK;
}

hs_status hs_dropout(const hs_ctx *ctx, const hs_dropout_args *args) {
    HS_TRY(check(ctx, args));
    return HS_DISPATCH(op, hs_dropout, ctx, args);
}
