/* A row-major tensor (rows, cols) is, to cuBLASLt, a column-major matrix of cols x rows. So y is out x rows, and each
 * product below is the transpose of the formula in linear.h. */
#include "../ops/linear.h"

#include <cuda_runtime_api.h>

#include "../ops/check.h"
#include "matmul.h"

static const char op[] = "linear";

enum { ALIGNMENT = 256, GELU_AUX_MULTIPLE = 8 };

typedef struct {
    int64_t rows, in, out;
} sizes;

/* Of arguments that have passed the checks. y is y or dy. */
static sizes sizes_of(const hs_tensor *y, int64_t in) {
    const int64_t out = hs_cols(y);
    return (sizes){.rows = out ? hs_numel(y) / out : 0, .in = in, .out = out};
}

static int64_t bytes_of(const hs_tensor *t) {
    return hs_numel(t) * hs_dtype_size(t->dtype);
}

static hs_status zero(const hs_ctx *ctx, const hs_tensor *t) {
    if (!hs_present(t) || bytes_of(t) == 0) return HS_OK;
    const cudaError_t e = cudaMemsetAsync(t->data, 0, (size_t)bytes_of(t), ctx->stream);
    return e == cudaSuccess ? HS_OK : hs_fail(HS_FAILURE, "%s: CUDA: %s", op, cudaGetErrorString(e));
}

/* ---- forward ---- */
/* The epilogue that computes all of f(x wT + b), and z where it is wanted; HS_LT_EPILOGUE_DEFAULT where there is none
 * but the plain product. */
static int whole_epilogue(const hs_linear_forward_args *a, int64_t out) {
    const bool b = hs_present(&a->b), z = hs_present(&a->z);
    switch (a->kind) {
    case HS_ACT_NONE:
        return b ? HS_LT_EPILOGUE_BIAS : HS_LT_EPILOGUE_DEFAULT;
    case HS_ACT_RELU:
        return b ? HS_LT_EPILOGUE_RELU_BIAS : HS_LT_EPILOGUE_RELU;
    case HS_ACT_GELU_TANH:
        if (a->x.dtype == HS_F32) return HS_LT_EPILOGUE_DEFAULT; /* its tanh is exact to 16 bits only */
        if (z && out % GELU_AUX_MULTIPLE) return HS_LT_EPILOGUE_DEFAULT;
        if (z) return b ? HS_LT_EPILOGUE_GELU_AUX_BIAS : HS_LT_EPILOGUE_GELU_AUX;
        return b ? HS_LT_EPILOGUE_GELU_BIAS : HS_LT_EPILOGUE_GELU;
    default:
        return HS_LT_EPILOGUE_DEFAULT;
    }
}

/* Every row of t becomes b, or zero without one. */
static hs_status fill_rows(const hs_ctx *ctx, const hs_tensor *t, const hs_tensor *b, int64_t out) {
    HS_TRY(zero(ctx, t));
    if (!hs_present(b)) return HS_OK;
    const hs_act_forward_args bias = {.x = *t, .b = *b, .y = *t, .cols = out, .kind = HS_ACT_NONE};
    return hs_act_forward_cuda(ctx, &bias);
}

/* y = f(z), where the product left f to a pass of its own. */
static hs_status activate(const hs_ctx *ctx, const hs_linear_forward_args *a, const hs_tensor *z) {
    if (a->kind == HS_ACT_NONE) return HS_OK;
    const hs_act_forward_args act = {.x = *z, .y = a->y, .cols = 1, .kind = a->kind};
    return hs_act_forward_cuda(ctx, &act);
}

hs_status hs_linear_forward_cuda(const hs_ctx *ctx, const hs_linear_forward_args *a) {
    const sizes s = sizes_of(&a->y, hs_cols(&a->x));
    if (s.rows == 0 || s.out == 0) return HS_OK;
    const hs_tensor *z = hs_present(&a->z) ? &a->z : &a->y; /* where x wT + b goes when f is a pass of its own */
    if (s.in == 0) {
        HS_TRY(fill_rows(ctx, z, &a->b, s.out));
        return activate(ctx, a, z);
    }
    hs_matmul p = {.op = op, .m = s.out, .n = s.rows, .k = s.in, .a = a->w.data, .b = a->x.data, .transpose_a = true};
    p.tf32 = a->tf32 && a->x.dtype == HS_F32;
    p.dtype = p.d_dtype = a->x.dtype;
    bool found = false;

    p.epilogue = whole_epilogue(a, s.out);
    if (p.epilogue != HS_LT_EPILOGUE_DEFAULT) {
        p.d = a->y.data;
        p.bias = a->b.data;
        p.aux = a->z.data;
        HS_TRY(hs_matmul_run(ctx, &p, &found));
        if (found) return HS_OK;
    }
    p.d = z->data;
    p.aux = NULL;
    if (hs_present(&a->b)) {
        if (a->kind != HS_ACT_NONE) {
            p.epilogue = HS_LT_EPILOGUE_BIAS;
            p.bias = a->b.data;
            HS_TRY(hs_matmul_run(ctx, &p, &found));
            if (found) return activate(ctx, a, z);
        }
        /* b goes in before the product and not after it, so that x wT + b is rounded once. */
        HS_TRY(fill_rows(ctx, z, &a->b, s.out));
        p.accumulate = true;
        p.bias = NULL;
    }
    p.epilogue = HS_LT_EPILOGUE_DEFAULT;
    HS_TRY(hs_matmul_run(ctx, &p, &found));
    return activate(ctx, a, z);
}

int64_t hs_linear_forward_workspace_cuda(const hs_ctx *ctx, const hs_linear_forward_args *args) {
    (void)args;
    return hs_matmul_workspace(ctx->device.index);
}

/* ---- backward ---- */
/* The pass that makes dz and db of dy. */
static hs_act_backward_args act_args(const hs_linear_backward_args *a, void *dz) {
    hs_act_backward_args act = {.dy = a->dy, .x = a->saved, .db = a->db, .cols = hs_cols(&a->dy), .kind = a->kind};
    if (a->kind != HS_ACT_NONE && (hs_present(&a->dx) || hs_present(&a->dw))) {
        act.dx = a->dy;
        act.dx.data = dz;
    }
    return act;
}

/* The head of the workspace serves that pass and then the products, one after the other; dz lies behind it. */
static int64_t head_bytes(const hs_ctx *ctx, const hs_linear_backward_args *a) {
    const hs_act_backward_args act = act_args(a, NULL);
    const int64_t pass = hs_act_backward_workspace_cuda(ctx, &act), product = hs_matmul_workspace(ctx->device.index);
    return ((pass > product ? pass : product) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* dwT (in x out) = xT dz, and db where *with_db is set; it is cleared when db is still to be made. */
static hs_status weight_gradient(const hs_ctx *ctx, const hs_linear_backward_args *a, const void *dz, sizes s,
                                 bool *with_db) {
    hs_matmul p = {.op = op, .m = s.in, .n = s.out, .k = s.rows, .a = a->x.data, .b = dz, .transpose_b = true};
    p.d = a->dw.data;
    p.tf32 = a->tf32 && a->x.dtype == HS_F32;
    p.dtype = a->x.dtype;
    p.d_dtype = a->dw.dtype;
    bool found = false;
    if (*with_db) {
        p.epilogue = HS_LT_EPILOGUE_BGRADB;
        p.bias = a->db.data;
        HS_TRY(hs_matmul_run(ctx, &p, &found));
        if (found) return HS_OK;
        *with_db = false;
    }
    p.epilogue = HS_LT_EPILOGUE_DEFAULT;
    p.bias = NULL;
    return hs_matmul_run(ctx, &p, &found);
}

/* dxT (in x rows) = wT dzT */
static hs_status input_gradient(const hs_ctx *ctx, const hs_linear_backward_args *a, const void *dz, sizes s) {
    hs_matmul p = {.op = op, .m = s.in, .n = s.rows, .k = s.out, .a = a->w.data, .b = dz, .d = a->dx.data};
    p.tf32 = a->tf32 && a->w.dtype == HS_F32;
    p.dtype = p.d_dtype = a->w.dtype;
    p.epilogue = HS_LT_EPILOGUE_DEFAULT;
    bool found;
    return hs_matmul_run(ctx, &p, &found);
}

hs_status hs_linear_backward_cuda(const hs_ctx *ctx, const hs_linear_backward_args *a) {
    const sizes s = sizes_of(&a->dy, hs_cols(hs_present(&a->x) ? &a->x : &a->w));
    if (s.rows == 0 || s.out == 0) {
        HS_TRY(zero(ctx, &a->dx));
        HS_TRY(zero(ctx, &a->dw));
        return zero(ctx, &a->db);
    }
    const bool dx = hs_present(&a->dx) && s.in, dw = hs_present(&a->dw) && s.in;
    /* The product writes db in dw's dtype. Measured on an H200: with sizes that are no multiples of 8 it writes wrong
     * sums without an error. */
    const bool whole = s.rows % 8 == 0 && s.in % 8 == 0 && s.out % 8 == 0;
    bool db_from_product = dw && whole && a->kind == HS_ACT_NONE && hs_present(&a->db) && a->db.dtype == a->dw.dtype;
    const hs_act_backward_args act = act_args(a, (char *)ctx->workspace + head_bytes(ctx, a));
    const bool pass = hs_present(&act.dx) || (hs_present(&act.db) && !db_from_product);
    const void *dz = hs_present(&act.dx) ? act.dx.data : a->dy.data;

    if (pass) HS_TRY(hs_act_backward_cuda(ctx, &act));
    if (dx) HS_TRY(input_gradient(ctx, a, dz, s));
    if (!dw) return HS_OK;
    const bool wanted = db_from_product;
    HS_TRY(weight_gradient(ctx, a, dz, s, &db_from_product));
    return wanted && !db_from_product ? hs_act_backward_cuda(ctx, &act) : HS_OK;
}

int64_t hs_linear_backward_workspace_cuda(const hs_ctx *ctx, const hs_linear_backward_args *args) {
    const hs_act_backward_args act = act_args(args, NULL);
    return head_bytes(ctx, args) + (hs_present(&act.dx) ? bytes_of(&act.dx) : 0);
}
