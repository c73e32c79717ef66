#include "../ops/xent.h"

#include <math.h>

#include "../base/threads.h"
#include "simd.h"
#include "simd_math.h"

enum {
    GRAIN = 1 << 14, /* logits: what a thread does in about the time it takes to wake one */
    BLOCK = 1024,    /* classes summed in float32; the blocks of a row are summed in float64 */
};

/* The target distributions of all rows: q_c = one_hot [c is the row's class] + keep p_c + spread. */
typedef struct {
    int64_t rows, classes, ignore_index;
    const hs_tensor *logits, *tensor;
    const int64_t *index; /* NULL with probabilities */
    const float *w;       /* NULL when every class weighs one */
    float keep, spread;   /* keep is 1 - smoothing with probabilities, else 0 */
    double one_hot;       /* 1 - smoothing with class indices, else 0 */
    double spread_weight; /* with class indices: sum over classes of w_c spread, the same for every row */
} targets;

HS_INLINE bool is_ignored(const targets *t, int64_t row) {
    return t->index && t->index[row] == t->ignore_index;
}

/* True when more than one class of a row can be wanted. */
HS_INLINE bool is_dense(const targets *t) {
    return !t->index || t->spread != 0;
}

static double class_weight(const targets *t, int64_t c) {
    return t->w ? t->w[c] : 1;
}

/* w_c q_c without the one-hot part. p is the row's probabilities or NULL. */
HS_INLINE hs_vf dense_weight(const targets *t, const void *p, int64_t i, int64_t count) {
    hs_vf q = hs_splat(t->spread);
    if (p) q = hs_fma(hs_splat(t->keep), hs_load(t->tensor->dtype, p, i, count), q);
    if (t->w) q *= hs_load(HS_F32, t->w, i, count);
    return hs_keep(q, count);
}

static double dense_weight_sum(const targets *t, const void *p) {
    double total = 0;
    for (int64_t block = 0; block < t->classes; block += BLOCK) {
        hs_vf sum[4] = {{0}, {0}, {0}, {0}};
#define ADD(k, i, count) sum[k] += dense_weight(t, p, block + (i), count)
        HS_SWEEP(t->classes - block < BLOCK ? t->classes - block : BLOCK, ADD);
#undef ADD
        total += hs_sum_lanes((sum[0] + sum[1]) + (sum[2] + sum[3]));
    }
    return total;
}

static const void *probabilities(const targets *t, int64_t row) {
    return t->index ? NULL : hs_row(t->tensor, row, t->classes);
}

/* The sum over classes of w_c q_c. */
static double row_weight(const targets *t, int64_t row) {
    if (!t->index) return dense_weight_sum(t, probabilities(t, row));
    return t->one_hot * class_weight(t, t->index[row]) + t->spread_weight;
}

static targets targets_of(const hs_tensor *logits, const hs_tensor *target, const hs_tensor *weight,
                          int64_t ignore_index, double smoothing) {
    targets t = {.rows = logits->shape[0],
                 .classes = logits->shape[1],
                 .ignore_index = ignore_index,
                 .logits = logits,
                 .tensor = target,
                 .w = hs_present(weight) ? weight->data : NULL};
    t.spread = (float)(smoothing / (double)t.classes);
    if (target->dtype == HS_I64) {
        t.index = target->data;
        t.one_hot = 1 - smoothing;
        if (t.spread != 0) t.spread_weight = dense_weight_sum(&t, NULL);
    } else {
        t.keep = (float)(1 - smoothing);
    }
    return t;
}

static hs_status check_indices(const targets *t) {
    for (int64_t row = 0; t->index && row < t->rows; row++) {
        const int64_t c = t->index[row];
        if ((c < 0 || c >= t->classes) && c != t->ignore_index)
            return hs_fail(HS_BAD_VALUE, "cross_entropy: target[%lld] is %lld, expected 0 to %lld or ignore_index %lld",
                           (long long)row, (long long)c, (long long)(t->classes - 1), (long long)t->ignore_index);
    }
    return HS_OK;
}

static float logit(const hs_tensor *logits, const void *x, int64_t c) {
    switch (logits->dtype) {
    case HS_F32:
        return ((const float *)x)[c];
    case HS_F16:
        return hs_f16_to_f32(((const uint16_t *)x)[c]);
    default:
        return hs_bf16_to_f32(((const uint16_t *)x)[c]);
    }
}

static int64_t rows_per_range(const targets *t) {
    return GRAIN / t->classes + 1;
}

/* ---- forward ---- */
typedef struct {
    targets t;
    float *lse;
    double *ce;  /* the workspace, or NULL without a reduction */
    float *loss; /* one per row; NULL with a reduction */
    double z_loss;
} forward;

/* The largest logit, except that a row of -inf alone has 0, so that its exponentials are 0 and not NaN. */
HS_INLINE float row_max(int dtype, const void *x, int64_t classes) {
    const hs_vf lowest = hs_splat(-INFINITY);
    hs_vf max[4] = {lowest, lowest, lowest, lowest};
#define MAX(k, i, count)                                                                                               \
    max[k] = hs_max(hs_select(hs_lane_numbers() < (int32_t)(count), hs_load(dtype, x, i, count), lowest), max[k])
    HS_SWEEP(classes, MAX);
#undef MAX
    const float m = hs_max_lanes(hs_max(hs_max(max[0], max[1]), hs_max(max[2], max[3])));
    return m == -INFINITY ? 0 : m;
}

/* Two passes over the row, the second of which finds it in the cache. Every term is taken relative to the maximum m,
 * so that the sums have terms of one sign and lose nothing to cancellation. */
HS_INLINE void forward_row(int dtype, bool dense, const forward *f, int64_t row) {
    const targets *t = &f->t;
    const void *x = hs_row(t->logits, row, t->classes), *p = probabilities(t, row);
    const float m = row_max(dtype, x, t->classes);
    double exp_sum = 0, dense_sum = 0;
    for (int64_t block = 0; block < t->classes; block += BLOCK) {
        hs_vf exps[4] = {{0}, {0}, {0}, {0}}, products[4] = {{0}, {0}, {0}, {0}};
#define ADD(k, i, count)                                                                                               \
    do {                                                                                                               \
        const hs_vf d = hs_load(dtype, x, block + (i), count) - m;                                                     \
        exps[k] += hs_keep(hs_exp(d), count);                                                                          \
        if (dense) products[k] += hs_keep(dense_weight(t, p, block + (i), count) * d, count);                          \
    } while (0)
        HS_SWEEP(t->classes - block < BLOCK ? t->classes - block : BLOCK, ADD);
#undef ADD
        exp_sum += hs_sum_lanes((exps[0] + exps[1]) + (exps[2] + exps[3]));
        if (dense) dense_sum += hs_sum_lanes((products[0] + products[1]) + (products[2] + products[3]));
    }
    const double log_sum = log(exp_sum), lse = m + log_sum;
    double ce = 0;
    if (t->index) {
        const int64_t c = t->index[row];
        ce = t->one_hot * class_weight(t, c) * (log_sum - ((double)logit(t->logits, x, c) - m));
    }
    if (dense) ce += (t->index ? t->spread_weight : row_weight(t, row)) * log_sum - dense_sum;
    f->lse[2 * row] = (float)m;
    f->lse[2 * row + 1] = (float)log_sum;
    if (f->ce) f->ce[row] = ce;
    if (f->loss) f->loss[row] = (float)(f->z_loss > 0 ? ce + f->z_loss * lse * lse : ce);
}

HS_INLINE void forward_rows(int dtype, bool dense, const forward *f, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++) {
        if (!is_ignored(&f->t, row)) {
            forward_row(dtype, dense, f, row);
            continue;
        }
        f->lse[2 * row] = f->lse[2 * row + 1] = 0;
        if (f->ce) f->ce[row] = 0;
        if (f->loss) f->loss[row] = 0;
    }
}

static void forward_range(void *argument, int64_t begin, int64_t end) {
    const forward *f = argument;
    const bool dense = is_dense(&f->t);
    switch (f->t.logits->dtype) {
    case HS_F32:
        dense ? forward_rows(HS_F32, true, f, begin, end) : forward_rows(HS_F32, false, f, begin, end);
        break;
    case HS_F16:
        dense ? forward_rows(HS_F16, true, f, begin, end) : forward_rows(HS_F16, false, f, begin, end);
        break;
    default:
        dense ? forward_rows(HS_BF16, true, f, begin, end) : forward_rows(HS_BF16, false, f, begin, end);
    }
}

/* Adds the rows in their order, whatever the threads did. */
static void finish(const hs_xent_forward_args *a, const forward *f) {
    const targets *t = &f->t;
    double ce = 0, z = 0, weight = 0, counted = 0;
    for (int64_t row = 0; row < t->rows; row++) {
        if (is_ignored(t, row)) continue;
        counted += 1;
        weight += t->index ? class_weight(t, t->index[row]) : 1;
        if (f->ce) ce += f->ce[row];
        if (f->z_loss > 0) {
            const double lse = (double)f->lse[2 * row] + f->lse[2 * row + 1];
            z += lse * lse;
        }
    }
    float *denominator = a->denominator.data, *loss = a->loss.data;
    denominator[0] = (float)weight;
    denominator[1] = (float)counted;
    if (a->reduction == HS_XENT_NONE) return;
    if (a->reduction == HS_XENT_MEAN) {
        ce = counted > 0 ? ce / weight : a->zero_if_all_ignored ? 0 : NAN;
        z = counted > 0 ? z / counted : 0;
    }
    *loss = (float)(f->z_loss > 0 ? ce + f->z_loss * z : ce);
}

int64_t HS_CPU(hs_xent_forward_workspace)(const hs_ctx *ctx, const hs_xent_forward_args *args) {
    (void)ctx;
    return args->reduction == HS_XENT_NONE ? 0 : args->logits.shape[0] * (int64_t)sizeof(double);
}

hs_status HS_CPU(hs_xent_forward)(const hs_ctx *ctx, const hs_xent_forward_args *args) {
    const bool reduced = args->reduction != HS_XENT_NONE;
    const forward f = {
        .t = targets_of(&args->logits, &args->target, &args->weight, args->ignore_index, args->label_smoothing),
        .lse = args->lse.data,
        .ce = reduced ? ctx->workspace : NULL,
        .loss = reduced ? NULL : args->loss.data,
        .z_loss = args->z_loss,
    };
    const hs_status status = check_indices(&f.t);
    if (status != HS_OK) return status;
    hs_parallel_for(f.t.rows, rows_per_range(&f.t), forward_range, (void *)&f);
    finish(args, &f);
    return HS_OK;
}

/* ---- backward ---- */
typedef struct {
    targets t;
    const hs_xent_backward_args *args;
} backward;

/* dlogits_c = g softmax_c - dce w_c q_c, where g gathers what multiplies the softmax. The row's class is computed
 * apart, because it alone has the one-hot part. */
HS_INLINE void backward_row(int dtype, bool dense, const backward *b, int64_t row) {
    const targets *t = &b->t;
    const hs_xent_backward_args *a = b->args;
    const void *x = hs_row(t->logits, row, t->classes), *p = probabilities(t, row);
    void *dx = hs_row(&a->dlogits, row, t->classes);
    const float *lse = (const float *)a->lse.data + 2 * row, *denominator = a->denominator.data;
    const float m = lse[0], log_sum = lse[1];
    const double dloss = ((const float *)a->dloss.data)[a->reduction == HS_XENT_NONE ? row : 0];
    const bool mean = a->reduction == HS_XENT_MEAN;
    const double dce = mean ? dloss / denominator[0] : dloss, dz = mean ? dloss / denominator[1] : dloss;
    double gathered = dce * row_weight(t, row);
    if (a->z_loss > 0) gathered += dz * 2 * a->z_loss * ((double)m + log_sum);
    const float g = (float)gathered, scale = (float)dce;
#define WRITE(k, i, count)                                                                                             \
    do {                                                                                                               \
        hs_vf v = g * hs_exp(hs_load(dtype, x, i, count) - m - log_sum);                                               \
        if (dense) v = hs_fma(hs_splat(-scale), dense_weight(t, p, i, count), v);                                      \
        hs_store(dtype, dx, i, v, count);                                                                              \
    } while (0)
    HS_SWEEP(t->classes, WRITE);
#undef WRITE
    if (!t->index) return;
    const int64_t c = t->index[row];
    const double wanted = dce * class_weight(t, c) * (t->one_hot + (double)t->spread);
    const double softmax = hs_exp(hs_splat(logit(t->logits, x, c) - m - log_sum))[0];
    hs_store(dtype, dx, c, hs_splat((float)(gathered * softmax - wanted)), 1);
}

HS_INLINE void backward_rows(int dtype, bool dense, const backward *b, int64_t begin, int64_t end) {
    const int64_t classes = b->t.classes;
    for (int64_t row = begin; row < end; row++) {
        if (is_ignored(&b->t, row))
            memset(hs_row(&b->args->dlogits, row, classes), 0, (size_t)(classes * hs_dtype_size(dtype)));
        else
            backward_row(dtype, dense, b, row);
    }
}

static void backward_range(void *argument, int64_t begin, int64_t end) {
    const backward *b = argument;
    const bool dense = is_dense(&b->t);
    switch (b->t.logits->dtype) {
    case HS_F32:
        dense ? backward_rows(HS_F32, true, b, begin, end) : backward_rows(HS_F32, false, b, begin, end);
        break;
    case HS_F16:
        dense ? backward_rows(HS_F16, true, b, begin, end) : backward_rows(HS_F16, false, b, begin, end);
        break;
    default:
        dense ? backward_rows(HS_BF16, true, b, begin, end) : backward_rows(HS_BF16, false, b, begin, end);
    }
}

hs_status HS_CPU(hs_xent_backward)(const hs_ctx *ctx, const hs_xent_backward_args *args) {
    (void)ctx;
    const backward b = {
        .t = targets_of(&args->logits, &args->target, &args->weight, args->ignore_index, args->label_smoothing),
        .args = args,
    };
    const hs_status status = check_indices(&b.t);
    if (status != HS_OK) return status;
    hs_parallel_for(b.t.rows, rows_per_range(&b.t), backward_range, (void *)&b);
    return HS_OK;
}
