/* act.c - bias and activation on the CPU. Threads split the rows; without a bias or its gradient, the elements. */
#include "../ops/act.h"

#include "rowsum.h"
#include "simd_math.h"

enum { SUMS = 1, SUM_DB = 0 };

/* With u = sqrt(2 / pi) (z + 0.044715 z^3), (1 + tanh u) / 2 is the logistic function of 2 u. */
static const float tanh_first = 1.5957691216057308f, tanh_third = 0.07135481282052748f; /* 2 u = first z + third z^3 */

HS_INLINE hs_vf activation(int kind, hs_vf z) {
    hs_vf unused;
    switch (kind) {
    case HS_ACT_RELU:
        return hs_select(z <= 0.0f, (hs_vf){0}, z);
    case HS_ACT_GELU:
        return z * hs_normal_cdf(z, &unused);
    case HS_ACT_GELU_TANH:
        return z * hs_sigmoid(z * hs_fma(z * z, hs_splat(tanh_third), hs_splat(tanh_first)), &unused);
    case HS_ACT_SILU:
        return z * hs_sigmoid(z, &unused);
    default:
        return z;
    }
}

/* dy times the derivative at z. */
HS_INLINE hs_vf gradient(int kind, hs_vf z, hs_vf dy) {
    hs_vf p, rest, gauss;
    switch (kind) {
    case HS_ACT_RELU:
        return hs_select(z <= 0.0f, (hs_vf){0}, dy);
    case HS_ACT_GELU:
        p = hs_normal_cdf(z, &gauss);
        return dy * hs_fma(z * gauss, hs_splat(0.3989422804014327f), p);
    case HS_ACT_GELU_TANH: {
        z = hs_clamp(z, -20.0f, 20.0f); /* where the derivative is 0 or 1 already and the cube cannot overflow */
        const hs_vf square = z * z;
        p = hs_sigmoid(z * hs_fma(square, hs_splat(tanh_third), hs_splat(tanh_first)), &rest);
        return dy * hs_fma(p * rest, z * hs_fma(square, hs_splat(3 * tanh_third), hs_splat(tanh_first)), p);
    }
    case HS_ACT_SILU:
        p = hs_sigmoid(z, &rest);
        return dy * hs_fma(p * rest, z, p);
    default:
        return dy;
    }
}

/* One compiled loop for each dtype and activation. */
#define SWITCH_KIND(T, kind)                                                                                           \
    switch (kind) {                                                                                                    \
    case HS_ACT_RELU:                                                                                                  \
        CALL(T, HS_ACT_RELU);                                                                                          \
        break;                                                                                                         \
    case HS_ACT_GELU:                                                                                                  \
        CALL(T, HS_ACT_GELU);                                                                                          \
        break;                                                                                                         \
    case HS_ACT_GELU_TANH:                                                                                             \
        CALL(T, HS_ACT_GELU_TANH);                                                                                     \
        break;                                                                                                         \
    case HS_ACT_SILU:                                                                                                  \
        CALL(T, HS_ACT_SILU);                                                                                          \
        break;                                                                                                         \
    default:                                                                                                           \
        CALL(T, HS_ACT_NONE);                                                                                          \
    }
#define SWITCH_DTYPE(dtype, kind)                                                                                      \
    switch (dtype) {                                                                                                   \
    case HS_F32:                                                                                                       \
        SWITCH_KIND(HS_F32, kind) break;                                                                               \
    case HS_F16:                                                                                                       \
        SWITCH_KIND(HS_F16, kind) break;                                                                               \
    default:                                                                                                           \
        SWITCH_KIND(HS_BF16, kind)                                                                                     \
    }

/* ---- forward ---- */
HS_INLINE void forward_row(const void *x, const hs_tensor *b, void *y, int64_t n, int T, int kind) {
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        hs_vf z = hs_load(T, x, i, count);                                                                             \
        if (hs_present(b)) z += hs_load(b->dtype, b->data, i, count);                                                  \
        hs_store(T, y, i, activation(kind, z), count);                                                                 \
    } while (0)
    HS_EACH(n, STEP);
#undef STEP
}

typedef struct {
    const hs_act_forward_args *args;
    int64_t cols; /* 0 where every element stands alone */
} forward_job;

static void forward_range(void *argument, int64_t begin, int64_t end) {
    const forward_job *job = argument;
    const hs_act_forward_args *a = job->args;
    const int64_t length = job->cols ? job->cols : end - begin, first = job->cols ? begin * length : begin;
    const int64_t rows = job->cols ? end - begin : 1;
    for (int64_t row = 0; row < rows; row++) {
        const void *x = hs_row(&a->x, first + row * length, 1);
        void *y = hs_row(&a->y, first + row * length, 1);
#define CALL(T, kind) forward_row(x, &a->b, y, length, T, kind)
        SWITCH_DTYPE(a->x.dtype, a->kind)
#undef CALL
    }
}

/* ---- backward ---- */
HS_INLINE void backward_row(const void *dy, const void *x, const hs_tensor *b, void *dx, float *db, int64_t n, int T,
                            int kind) {
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        hs_vf z = kind == HS_ACT_NONE ? (hs_vf){0} : hs_load(T, x, i, count);                                          \
        if (kind != HS_ACT_NONE && hs_present(b)) z += hs_load(b->dtype, b->data, i, count);                           \
        const hs_vf d = gradient(kind, z, hs_load(T, dy, i, count));                                                   \
        if (dx) hs_store(T, dx, i, d, count);                                                                          \
        if (db) hs_store(HS_F32, db, i, d + hs_load(HS_F32, db, i, count), count);                                     \
    } while (0)
    HS_EACH(n, STEP);
#undef STEP
}

typedef struct {
    const hs_ctx *ctx;
    const hs_act_backward_args *args;
    int64_t cols; /* 0 where every element stands alone */
    int64_t units, parts;
} backward_job;

static void backward_part(const backward_job *job, int64_t part) {
    const hs_act_backward_args *a = job->args;
    const int64_t begin = part * job->units / job->parts, end = (part + 1) * job->units / job->parts;
    const int64_t length = job->cols ? job->cols : end - begin, first = job->cols ? begin * length : begin;
    const int64_t rows = job->cols ? end - begin : 1;
    float *db = hs_present(&a->db) ? hs_rowsum_block(job->ctx, SUMS, part, SUM_DB, length) : NULL;
    if (db) hs_rowsum_clear(db, length);
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = first + row * length;
        const void *dy = hs_row(&a->dy, at, 1), *x = hs_row(&a->x, at, 1);
        void *dx = hs_row(&a->dx, at, 1);
#define CALL(T, kind) backward_row(dy, x, &a->b, dx, db, length, T, kind)
        SWITCH_DTYPE(a->dy.dtype, a->kind)
#undef CALL
        if (db && hs_rowsum_block_is_full(row, rows)) hs_rowsum_flush(db, length);
    }
}

static void backward_parts(void *argument, int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; part++) backward_part(argument, part);
}

/* ---- exported ---- */
hs_status HS_CPU(hs_act_forward)(const hs_ctx *ctx, const hs_act_forward_args *args) {
    (void)ctx;
    const int64_t n = hs_numel(&args->x);
    forward_job job = {args, hs_present(&args->b) ? args->cols : 0};
    const int64_t units = n == 0 || job.cols == 0 ? n : n / job.cols;
    hs_parallel_for(units, HS_ROWSUM_GRAIN / (job.cols + 1) + 1, forward_range, &job);
    return HS_OK;
}

int64_t HS_CPU(hs_act_backward_workspace)(const hs_ctx *ctx, const hs_act_backward_args *args) {
    (void)ctx;
    if (args->cols <= 0 || !hs_present(&args->db)) return 0;
    return hs_rowsum_parts(hs_numel(&args->dy) / args->cols, args->cols) * hs_rowsum_part_bytes(SUMS, args->cols);
}

hs_status HS_CPU(hs_act_backward)(const hs_ctx *ctx, const hs_act_backward_args *args) {
    const int64_t n = hs_numel(&args->dy);
    const bool sums = hs_present(&args->db);
    backward_job job = {.ctx = ctx, .args = args, .cols = sums || hs_present(&args->b) ? args->cols : 0};
    job.units = n == 0 || job.cols == 0 ? n : n / job.cols;
    job.parts = hs_rowsum_parts_within(ctx, sums ? SUMS : 0, job.units, job.cols ? job.cols : 1);
    hs_parallel_for(job.parts, 1, backward_parts, &job);
    if (sums) hs_rowsum_finish(ctx, SUMS, job.parts, SUM_DB, &args->db, args->cols);
    return HS_OK;
}
