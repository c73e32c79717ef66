#include "act.h"

#include "check.h"

static const char op[] = "bias_act";

static hs_status check_kind(int64_t kind) {
    if (kind >= 0 && kind < HS_ACT_COUNT) return HS_OK;
    return hs_fail(HS_BAD_VALUE, "%s: activation is number %lld, expected 0 to %d", op, (long long)kind,
                   HS_ACT_COUNT - 1);
}

/* Columns matter only where a bias or its gradient runs along them. */
static hs_status check_cols(const char *name, const hs_tensor *t, int64_t cols, const hs_tensor *row) {
    if (!hs_present(row)) return HS_OK;
    const int64_t n = hs_numel(t);
    if (cols < 0 || (cols == 0 ? n != 0 : n % cols != 0))
        return hs_fail(HS_BAD_VALUE, "%s: %s has %lld elements, not a multiple of the %lld columns", op, name,
                       (long long)n, (long long)cols);
    return HS_OK;
}

static hs_status check_row(const char *name, const hs_tensor *row, const hs_tensor *x, const char *x_name, int64_t cols,
                           const hs_ctx *ctx) {
    HS_TRY(hs_check_tensor(op, name, row, ctx));
    HS_TRY(check_cols(x_name, x, cols, row));
    HS_TRY(hs_check_numel(op, name, row, cols, "the size of a row"));
    return hs_check_dtype_or_f32(op, name, row, x->dtype, x_name);
}

static hs_status check_like(const char *name, const hs_tensor *t, const hs_tensor *x, const char *x_name,
                            const hs_ctx *ctx) {
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    HS_TRY(hs_check_same_dtype(op, name, t, x_name, x));
    return hs_check_same_shape(op, name, t, x_name, x);
}

static hs_status check_forward(const hs_ctx *ctx, const hs_act_forward_args *a) {
    HS_TRY(hs_check_float(op, "x", &a->x));
    HS_TRY(hs_check_tensor(op, "x", &a->x, ctx));
    HS_TRY(check_row("bias", &a->b, &a->x, "x", a->cols, ctx));
    HS_TRY(check_like("y", &a->y, &a->x, "x", ctx));
    return check_kind(a->kind);
}

static hs_status check_backward(const hs_ctx *ctx, const hs_act_backward_args *a) {
    HS_TRY(hs_check_float(op, "grad", &a->dy));
    HS_TRY(hs_check_tensor(op, "grad", &a->dy, ctx));
    HS_TRY(check_kind(a->kind));
    if (a->kind != HS_ACT_NONE && !hs_present(&a->x))
        return hs_fail(HS_BAD_VALUE, "%s: x is missing, the gradient of activation number %lld needs it", op,
                       (long long)a->kind);
    HS_TRY(check_like("x", &a->x, &a->dy, "grad", ctx));
    HS_TRY(check_row("bias", &a->b, &a->dy, "grad", a->cols, ctx));
    HS_TRY(check_like("dx", &a->dx, &a->dy, "grad", ctx));
    return check_row("db", &a->db, &a->dy, "grad", a->cols, ctx);
}

hs_status hs_act_forward(const hs_ctx *ctx, const hs_act_forward_args *args) {
    HS_TRY(check_forward(ctx, args));
    return HS_DISPATCH(op, hs_act_forward, ctx, args);
}

int64_t hs_act_backward_workspace(const hs_ctx *ctx, const hs_act_backward_args *args) {
    return HS_DISPATCH_WORKSPACE(hs_act_backward_workspace, ctx, args);
}

hs_status hs_act_backward(const hs_ctx *ctx, const hs_act_backward_args *args) {
    HS_TRY(check_backward(ctx, args));
    return HS_DISPATCH(op, hs_act_backward, ctx, args);
}
