#include "linear.h"

#include "check.h"

static const char op[] = "linear";

static hs_status check_present(const char *name, const hs_tensor *t) {
    return hs_present(t) ? HS_OK : hs_fail(HS_BAD_TYPE, "%s: %s is missing", op, name);
}

static hs_status check_kind(int64_t kind) {
    if (kind >= 0 && kind < HS_ACT_COUNT) return HS_OK;
    return hs_fail(HS_BAD_VALUE, "%s: activation is %lld, expected 0 to %d", op, (long long)kind, HS_ACT_COUNT - 1);
}

/* x and w fit each other and the device. */
static hs_status check_operands(const hs_ctx *ctx, const hs_tensor *x, const hs_tensor *w) {
    HS_TRY(hs_check_float(op, "x", x));
    HS_TRY(hs_check_tensor(op, "x", x, ctx));
    HS_TRY(check_present("weight", w));
    HS_TRY(hs_check_tensor(op, "weight", w, ctx));
    HS_TRY(hs_check_same_dtype(op, "weight", w, "x", x));
    if (w->ndim != 2) return hs_fail(HS_BAD_VALUE, "%s: weight has %d axes, expected 2", op, (int)w->ndim);
    if (x->ndim < 1) return hs_fail(HS_BAD_VALUE, "%s: x has 0 axes, expected at least 1", op);
    const int64_t cols = x->shape[x->ndim - 1];
    if (cols != w->shape[1])
        return hs_fail(HS_BAD_VALUE, "%s: weight has %lld columns, x has %lld", op, (long long)w->shape[1],
                       (long long)cols);
    return HS_OK;
}

/* t has x's shape, but for the last axis, which is w's first. */
static hs_status check_result(const hs_ctx *ctx, const char *name, const hs_tensor *t, const hs_tensor *x,
                              const hs_tensor *w) {
    hs_tensor expected = *x;
    expected.shape[x->ndim - 1] = w->shape[0];
    HS_TRY(check_present(name, t));
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    HS_TRY(hs_check_same_dtype(op, name, t, "x", x));
    return hs_check_same_shape(op, name, t, "x wT", &expected);
}

static hs_status check_forward(const hs_ctx *ctx, const hs_linear_forward_args *a) {
    HS_TRY(check_operands(ctx, &a->x, &a->w));
    HS_TRY(check_kind(a->kind));
    HS_TRY(hs_check_tensor(op, "bias", &a->b, ctx));
    HS_TRY(hs_check_same_dtype(op, "bias", &a->b, "x", &a->x));
    HS_TRY(hs_check_numel(op, "bias", &a->b, a->w.shape[0], "the number of rows of weight"));
    HS_TRY(check_result(ctx, "y", &a->y, &a->x, &a->w));
    if (!hs_present(&a->z)) return HS_OK;
    if (a->kind == HS_ACT_NONE || a->kind == HS_ACT_RELU)
        return hs_fail(HS_BAD_VALUE, "%s: z is written for gelu, gelu_tanh and silu only", op);
    return check_result(ctx, "z", &a->z, &a->x, &a->w);
}

/* t is absent, or has dy's dtype and shape, but for the last axis, which is cols. */
static hs_status check_like_grad(const hs_ctx *ctx, const char *name, const hs_tensor *t, const hs_tensor *dy,
                                 int64_t cols) {
    if (!hs_present(t)) return HS_OK;
    hs_tensor expected = *dy;
    expected.shape[dy->ndim - 1] = cols;
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    HS_TRY(hs_check_same_dtype(op, name, t, "grad", dy));
    return hs_check_same_shape(op, name, t, "grad w", &expected);
}

/* t is absent, or (out, in). */
static hs_status check_like_weight(const hs_ctx *ctx, const char *name, const hs_tensor *t, int64_t out, int64_t in) {
    if (!hs_present(t)) return HS_OK;
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    if (t->ndim != 2) return hs_fail(HS_BAD_VALUE, "%s: %s has %d axes, expected 2", op, name, (int)t->ndim);
    if (t->shape[0] != out)
        return hs_fail(HS_BAD_VALUE, "%s: %s has %lld rows, grad has %lld columns", op, name, (long long)t->shape[0],
                       (long long)out);
    if (t->shape[1] != in)
        return hs_fail(HS_BAD_VALUE, "%s: %s has %lld columns, x has %lld", op, name, (long long)t->shape[1],
                       (long long)in);
    return HS_OK;
}

static hs_status check_backward(const hs_ctx *ctx, const hs_linear_backward_args *a) {
    HS_TRY(check_kind(a->kind));
    HS_TRY(check_present("grad", &a->dy));
    HS_TRY(hs_check_float(op, "grad", &a->dy));
    HS_TRY(hs_check_tensor(op, "grad", &a->dy, ctx));
    if (a->dy.ndim < 1) return hs_fail(HS_BAD_VALUE, "%s: grad has 0 axes, expected at least 1", op);
    if (hs_present(&a->dx)) HS_TRY(check_present("weight", &a->w));
    if (hs_present(&a->dw)) HS_TRY(check_present("x", &a->x));
    const int64_t out = hs_cols(&a->dy), in = hs_cols(hs_present(&a->x) ? &a->x : &a->w);
    HS_TRY(check_like_grad(ctx, "x", &a->x, &a->dy, in));
    HS_TRY(hs_check_same_dtype(op, "weight", &a->w, "grad", &a->dy));
    HS_TRY(check_like_weight(ctx, "weight", &a->w, out, in));
    if (hs_present(&a->saved) != (a->kind != HS_ACT_NONE))
        return hs_fail(HS_BAD_VALUE, "%s: saved must be given exactly when there is an activation", op);
    HS_TRY(check_like_grad(ctx, "saved", &a->saved, &a->dy, out));
    HS_TRY(check_like_grad(ctx, "dx", &a->dx, &a->dy, in));
    HS_TRY(hs_check_dtype_or_f32(op, "dw", &a->dw, a->dy.dtype, "grad"));
    HS_TRY(check_like_weight(ctx, "dw", &a->dw, out, in));
    HS_TRY(hs_check_tensor(op, "db", &a->db, ctx));
    HS_TRY(hs_check_dtype_or_f32(op, "db", &a->db, a->dy.dtype, "grad"));
    return hs_check_numel(op, "db", &a->db, out, "the number of columns of grad");
}

/* The CPU has no implementation of its own: the caller's library multiplies there. */
static hs_status fail_on_cpu(void) {
    return hs_fail(HS_FAILURE, "%s: the tensors are on cpu, where torch or NumPy multiplies; this op needs a GPU", op);
}

static hs_status hs_linear_forward_cpu(const hs_ctx *ctx, const hs_linear_forward_args *args) {
    (void)ctx, (void)args;
    return fail_on_cpu();
}

static hs_status hs_linear_backward_cpu(const hs_ctx *ctx, const hs_linear_backward_args *args) {
    (void)ctx, (void)args;
    return fail_on_cpu();
}

static int64_t hs_linear_forward_workspace_cpu(const hs_ctx *ctx, const hs_linear_forward_args *args) {
    (void)ctx, (void)args;
    return 0;
}

static int64_t hs_linear_backward_workspace_cpu(const hs_ctx *ctx, const hs_linear_backward_args *args) {
    (void)ctx, (void)args;
    return 0;
}

int64_t hs_linear_forward_workspace(const hs_ctx *ctx, const hs_linear_forward_args *args) {
    return HS_DISPATCH_WORKSPACE(hs_linear_forward_workspace, ctx, args);
}

hs_status hs_linear_forward(const hs_ctx *ctx, const hs_linear_forward_args *args) {
    HS_TRY(check_forward(ctx, args));
    return HS_DISPATCH(op, hs_linear_forward, ctx, args);
}

int64_t hs_linear_backward_workspace(const hs_ctx *ctx, const hs_linear_backward_args *args) {
    return HS_DISPATCH_WORKSPACE(hs_linear_backward_workspace, ctx, args);
}

hs_status hs_linear_backward(const hs_ctx *ctx, const hs_linear_backward_args *args) {
    HS_TRY(check_backward(ctx, args));
    return HS_DISPATCH(op, hs_linear_backward, ctx, args);
}
