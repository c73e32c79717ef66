/* norm.c - LayerNorm on the CPU: threads split the rows, and a row stays in the first cache level over its passes. */
#include "../ops/norm.h"

#include <math.h>

#include "rowsum.h"

/* A float32 sum runs over at most this many elements before it goes into a float64. */
enum { BLOCK = 4096 };
enum { SUMS = 2, SUM_DW = 0, SUM_DB = 1 };

/* xhat = (h * scale - center - offset) * inverse. center is the mean rounded to float32 and offset what the rounding
 * left out, so that a mean much larger than the spread costs no digits. scale is 1 except where squares would leave
 * the range of float32; it is a power of two, so it rounds nothing. */
typedef struct {
    float scale, center, offset, inverse, rstd;
} statistics;

typedef struct {
    double offset, variance;
    float center;
} moments;

/* Two passes: the mean, and the distances from it with their squares. */
HS_INLINE moments row_moments(int H, const void *h, int64_t cols, float scale) {
    double mean = 0, sum = 0, squares = 0;
    for (int64_t at = 0; at < cols; at += BLOCK) {
        hs_vf a[4] = {{0}};
#define STEP(k, i, count) a[k] = hs_fma(hs_load(H, h, at + (i), count), hs_splat(scale), a[k])
        HS_SWEEP(cols - at < BLOCK ? cols - at : BLOCK, STEP);
#undef STEP
        mean += hs_sum_lanes((a[0] + a[1]) + (a[2] + a[3]));
    }
    moments m = {.center = (float)(mean / (double)cols)};
    for (int64_t at = 0; at < cols; at += BLOCK) {
        hs_vf a[4] = {{0}}, b[4] = {{0}};
#define STEP(k, i, count)                                                                                              \
    do {                                                                                                               \
        const hs_vf x = hs_load(H, h, at + (i), count);                                                                \
        const hs_vf d = hs_keep(hs_fma(x, hs_splat(scale), hs_splat(-m.center)), count);                               \
        a[k] += d;                                                                                                     \
        b[k] = hs_fma(d, d, b[k]);                                                                                     \
    } while (0)
        HS_SWEEP(cols - at < BLOCK ? cols - at : BLOCK, STEP);
#undef STEP
        sum += hs_sum_lanes((a[0] + a[1]) + (a[2] + a[3]));
        squares += hs_sum_lanes((b[0] + b[1]) + (b[2] + b[3]));
    }
    m.offset = sum / (double)cols;
    m.variance = squares / (double)cols - m.offset * m.offset;
    if (m.variance < 0) m.variance = 0;
    return m;
}

HS_INLINE float row_largest(int H, const void *h, int64_t cols) {
    hs_vf largest[4] = {{0}};
#define STEP(k, i, count) largest[k] = hs_max(hs_abs(hs_load(H, h, i, count)), largest[k])
    HS_SWEEP(cols, STEP);
#undef STEP
    return hs_max_lanes(hs_max(hs_max(largest[0], largest[1]), hs_max(largest[2], largest[3])));
}

HS_INLINE statistics statistics_of(int H, const void *h, int64_t cols, double eps) {
    const double too_small = 1e-28; /* squares below this have lost digits to float32's smallest numbers */
    float scale = 1;
    moments m;
    for (;;) {
        m = row_moments(H, h, cols, scale);
        const bool in_range = m.variance < INFINITY && (m.variance >= too_small || eps >= too_small);
        if (in_range || scale != 1) break;
        const float largest = row_largest(H, h, cols);
        if (!(largest > 0 && largest < INFINITY)) break;
        const int exponent = ilogbf(largest);
        scale = ldexpf(1, exponent < -126 ? 126 : exponent > 126 ? -126 : -exponent);
        if (scale == 1) break;
    }
    const double inverse = 1 / sqrt(m.variance + eps * scale * scale);
    return (statistics){scale, m.center, (float)m.offset, (float)inverse, (float)(inverse * scale)};
}

/* Compiled once per dtype and called once per row. */
static statistics row_statistics(int dtype, const void *h, int64_t cols, double eps) {
    switch (dtype) {
    case HS_F32:
        return statistics_of(HS_F32, h, cols, eps);
    case HS_F16:
        return statistics_of(HS_F16, h, cols, eps);
    default:
        return statistics_of(HS_BF16, h, cols, eps);
    }
}

HS_INLINE hs_vf normalised(const statistics *s, hs_vf h) {
    return (hs_fma(h, hs_splat(s->scale), hs_splat(-s->center)) - s->offset) * s->inverse;
}

/* ---- forward ---- */
HS_INLINE void forward_rows(const hs_norm_forward_args *a, int64_t begin, int64_t end, int T, int H, int W) {
    const int64_t cols = a->cols;
    const void *w = hs_row(&a->w, 0, cols), *b = hs_row(&a->b, 0, cols);
    for (int64_t row = begin; row < end; row++) {
        const void *x = hs_row(&a->x, row, cols), *residual = hs_row(&a->residual, row, cols), *h = x;
        void *y = hs_row(&a->y, row, cols), *sum = hs_row(&a->sum, row, cols);
        if (residual) {
#define STEP(i, count) hs_store(H, sum, i, hs_load(T, x, i, count) + hs_load(H, residual, i, count), count)
            HS_EACH(cols, STEP);
#undef STEP
            h = sum;
        }
        const statistics s = row_statistics(H, h, cols, a->eps);
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        hs_vf v = normalised(&s, hs_load(H, h, i, count));                                                             \
        if (w) v *= hs_load(W, w, i, count);                                                                           \
        if (b) v += hs_load(W, b, i, count);                                                                           \
        hs_store(T, y, i, v, count);                                                                                   \
    } while (0)
        HS_EACH(cols, STEP);
#undef STEP
    }
}

/* One compiled loop for each legal choice of dtypes: of x, of h, of w and b. */
#define SWITCH_DTYPES(rows, x, h, w)                                                                                   \
    switch ((x) << 8 | (h) << 4 | (w)) {                                                                               \
        CASE(rows, HS_F32, HS_F32, HS_F32);                                                                            \
        CASE(rows, HS_F16, HS_F16, HS_F16);                                                                            \
        CASE(rows, HS_F16, HS_F16, HS_F32);                                                                            \
        CASE(rows, HS_F16, HS_F32, HS_F16);                                                                            \
        CASE(rows, HS_F16, HS_F32, HS_F32);                                                                            \
        CASE(rows, HS_BF16, HS_BF16, HS_BF16);                                                                         \
        CASE(rows, HS_BF16, HS_BF16, HS_F32);                                                                          \
        CASE(rows, HS_BF16, HS_F32, HS_BF16);                                                                          \
        CASE(rows, HS_BF16, HS_F32, HS_F32);                                                                           \
    }

static int weight_dtype(const hs_tensor *w, const hs_tensor *b) {
    return hs_present(w) ? w->dtype : hs_present(b) ? b->dtype : HS_F32;
}

static void forward_part(void *argument, int64_t begin, int64_t end) {
    const hs_norm_forward_args *a = argument;
    const int h_dtype = hs_present(&a->residual) ? a->residual.dtype : a->x.dtype;
#define CASE(rows, T, H, W)                                                                                            \
    case T << 8 | H << 4 | W:                                                                                          \
        rows(a, begin, end, T, H, W);                                                                                  \
        break
    SWITCH_DTYPES(forward_rows, a->x.dtype, h_dtype, weight_dtype(&a->w, &a->b))
#undef CASE
}

/* ---- backward ---- */
typedef struct {
    const hs_ctx *ctx;
    const hs_norm_backward_args *args;
    int64_t rows, parts;
} backward_job;

HS_INLINE void backward_rows(const backward_job *job, int64_t part, int T, int H, int W) {
    const hs_norm_backward_args *a = job->args;
    const int64_t cols = a->cols, begin = part * job->rows / job->parts, end = (part + 1) * job->rows / job->parts;
    const void *w = hs_row(&a->w, 0, cols);
    float *dw = hs_present(&a->dw) ? hs_rowsum_block(job->ctx, SUMS, part, SUM_DW, cols) : NULL;
    float *db = hs_present(&a->db) ? hs_rowsum_block(job->ctx, SUMS, part, SUM_DB, cols) : NULL;
    if (dw) hs_rowsum_clear(dw, cols);
    if (db) hs_rowsum_clear(db, cols);
    for (int64_t row = begin; row < end; row++) {
        const void *dy = hs_row(&a->dy, row, cols), *h = hs_row(&a->h, row, cols), *dsum = hs_row(&a->dsum, row, cols);
        void *dx = hs_row(&a->dx, row, cols), *dresidual = hs_row(&a->dresidual, row, cols);
        const statistics s = row_statistics(H, h, cols, a->eps);
        double sum_g = 0, sum_gx = 0;
        for (int64_t at = 0; at < cols; at += BLOCK) {
            hs_vf g_sum = {0}, gx_sum = {0};
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        const int64_t col = at + (i);                                                                                  \
        const hs_vf d = hs_load(T, dy, col, count), xhat = normalised(&s, hs_load(H, h, col, count));                  \
        const hs_vf g = w ? d * hs_load(W, w, col, count) : d;                                                         \
        g_sum += g;                                                                                                    \
        gx_sum += hs_keep(g * xhat, count);                                                                            \
        if (dw) hs_store(HS_F32, dw, col, hs_fma(d, xhat, hs_load(HS_F32, dw, col, count)), count);                    \
        if (db) hs_store(HS_F32, db, col, d + hs_load(HS_F32, db, col, count), count);                                 \
    } while (0)
            HS_EACH(cols - at < BLOCK ? cols - at : BLOCK, STEP);
#undef STEP
            sum_g += hs_sum_lanes(g_sum);
            sum_gx += hs_sum_lanes(gx_sum);
        }
        const float mean_g = (float)(sum_g / (double)cols), mean_gx = (float)(sum_gx / (double)cols);
        if (dx || dresidual) {
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        hs_vf g = hs_load(T, dy, i, count);                                                                            \
        const hs_vf xhat = normalised(&s, hs_load(H, h, i, count));                                                    \
        if (w) g *= hs_load(W, w, i, count);                                                                           \
        hs_vf dh = hs_fma(xhat, hs_splat(-mean_gx), g - mean_g) * s.rstd;                                              \
        if (dsum) dh += hs_load(H, dsum, i, count);                                                                    \
        if (dx) hs_store(T, dx, i, dh, count);                                                                         \
        if (dresidual) hs_store(H, dresidual, i, dh, count);                                                           \
    } while (0)
            HS_EACH(cols, STEP);
#undef STEP
        }
        if (hs_rowsum_block_is_full(row - begin, end - begin)) {
            if (dw) hs_rowsum_flush(dw, cols);
            if (db) hs_rowsum_flush(db, cols);
        }
    }
}

static void backward_parts(void *argument, int64_t begin, int64_t end) {
    const backward_job *job = argument;
    const hs_norm_backward_args *a = job->args;
    for (int64_t part = begin; part < end; part++) {
#define CASE(rows, T, H, W)                                                                                            \
    case T << 8 | H << 4 | W:                                                                                          \
        rows(job, part, T, H, W);                                                                                      \
        break
        SWITCH_DTYPES(backward_rows, a->dy.dtype, a->h.dtype, weight_dtype(&a->w, &a->w))
#undef CASE
    }
}

/* ---- exported ---- */
hs_status HS_CPU(hs_norm_forward)(const hs_ctx *ctx, const hs_norm_forward_args *args) {
    (void)ctx;
    const int64_t rows = args->cols > 0 ? hs_numel(&args->x) / args->cols : 0;
    if (rows > 0) hs_parallel_for(rows, HS_ROWSUM_GRAIN / args->cols + 1, forward_part, (void *)args);
    return HS_OK;
}

int64_t HS_CPU(hs_norm_backward_workspace)(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    (void)ctx;
    if (args->cols <= 0 || (!hs_present(&args->dw) && !hs_present(&args->db))) return 0;
    return hs_rowsum_parts(hs_numel(&args->dy) / args->cols, args->cols) * hs_rowsum_part_bytes(SUMS, args->cols);
}

hs_status HS_CPU(hs_norm_backward)(const hs_ctx *ctx, const hs_norm_backward_args *args) {
    const int64_t cols = args->cols, rows = cols > 0 ? hs_numel(&args->dy) / cols : 0;
    if (cols <= 0) return HS_OK;
    const bool sums = hs_present(&args->dw) || hs_present(&args->db);
    backward_job job = {ctx, args, rows, hs_rowsum_parts_within(ctx, sums ? SUMS : 0, rows, cols)};
    hs_parallel_for(job.parts, 1, backward_parts, &job);
    if (hs_present(&args->dw)) hs_rowsum_finish(ctx, SUMS, job.parts, SUM_DW, &args->dw, cols);
    if (hs_present(&args->db)) hs_rowsum_finish(ctx, SUMS, job.parts, SUM_DB, &args->db, cols);
    return HS_OK;
}
