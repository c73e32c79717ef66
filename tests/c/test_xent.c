/* Cross entropy against loops in float64 that follow the sentences of kernels/ops/xent.h. */

#include "../../kernels/ops/xent.h"
#include "check.h"

enum { MAX_ROWS = 40, IGNORED = -100 };

typedef struct {
    int dtype, target_dtype;
    int64_t rows, classes, reduction;
    bool weighted, ignore_all, zero_if_all_ignored;
    double smoothing, z_loss, dloss;
} setting;

typedef struct {
    hs_tensor logits, target, weight, loss, lse, denominator, dloss, dlogits;
} tensors;

/* The two parts of lse, together. */
static double lse_of(const hs_tensor *lse, int64_t row) {
    return test_get(lse, 2 * row) + test_get(lse, 2 * row + 1);
}

static tensors make(const setting *s) {
    const bool none = s->reduction == HS_XENT_NONE, indices = s->target_dtype == HS_I64;
    tensors t = {0};
    t.logits = test_matrix(s->dtype, s->rows, s->classes);
    t.dlogits = test_matrix(s->dtype, s->rows, s->classes);
    t.target = indices ? test_vector(HS_I64, s->rows) : test_matrix(s->target_dtype, s->rows, s->classes);
    if (s->weighted) t.weight = test_vector(HS_F32, s->classes);
    t.loss = test_vector(HS_F32, none ? s->rows : 1);
    t.dloss = test_vector(HS_F32, none ? s->rows : 1);
    t.lse = test_vector(HS_F32, 2 * s->rows);
    t.denominator = test_vector(HS_F32, 2);
    for (int64_t i = 0; i < s->rows * s->classes; i++) test_put(&t.logits, i, 4 * test_uniform());
    /* Two outlier rows: a large common offset, which must cancel. */
    for (int64_t c = 0; s->rows > 2 && c < s->classes; c++) {
        test_put(&t.logits, s->classes + c, -300 + test_uniform());
        test_put(&t.logits, 2 * s->classes + c, 300 + test_uniform());
    }
    for (int64_t i = 0; indices && i < s->rows; i++)
        ((int64_t *)t.target.data)[i] = s->ignore_all || i % 5 == 4 ? IGNORED : (i * 7 + 3) % s->classes;
    for (int64_t i = 0; !indices && i < s->rows * s->classes; i++)
        test_put(&t.target, i, fabs(test_uniform()) * 2 / (double)s->classes);
    for (int64_t c = 0; s->weighted && c < s->classes; c++) test_put(&t.weight, c, 1.25 + test_uniform());
    for (int64_t i = 0; i < (none ? s->rows : 1); i++) test_put(&t.dloss, i, s->dloss * (1.5 + test_uniform()));
    return t;
}

typedef struct {
    double loss[MAX_ROWS], lse[MAX_ROWS], denominator[2];
    double q_weight[MAX_ROWS]; /* sum over classes of w_c q_c */
} expected;

static double class_weight(const tensors *t, int64_t c) {
    return hs_present(&t->weight) ? test_get(&t->weight, c) : 1;
}

static int64_t class_of(const setting *s, const tensors *t, int64_t row) {
    return s->target_dtype == HS_I64 ? ((const int64_t *)t->target.data)[row] : -1;
}

static double q(const setting *s, const tensors *t, int64_t row, int64_t c) {
    const double p = s->target_dtype == HS_I64 ? class_of(s, t, row) == c : test_get(&t->target, row * s->classes + c);
    return (1 - s->smoothing) * p + s->smoothing / (double)s->classes;
}

static expected expect(const setting *s, const tensors *t) {
    expected e = {0};
    double ce_sum = 0, z_sum = 0;
    for (int64_t row = 0; row < s->rows; row++) {
        if (class_of(s, t, row) == IGNORED) continue;
        double max = -INFINITY, sum = 0, ce = 0;
        for (int64_t c = 0; c < s->classes; c++) max = fmax(max, test_get(&t->logits, row * s->classes + c));
        for (int64_t c = 0; c < s->classes; c++) sum += exp(test_get(&t->logits, row * s->classes + c) - max);
        e.lse[row] = max + log(sum);
        for (int64_t c = 0; c < s->classes; c++) {
            const double wq = class_weight(t, c) * q(s, t, row, c);
            ce += wq * (e.lse[row] - test_get(&t->logits, row * s->classes + c));
            e.q_weight[row] += wq;
        }
        e.loss[row] = ce + s->z_loss * e.lse[row] * e.lse[row];
        ce_sum += ce;
        z_sum += e.lse[row] * e.lse[row];
        e.denominator[0] += s->target_dtype == HS_I64 ? class_weight(t, class_of(s, t, row)) : 1;
        e.denominator[1] += 1;
    }
    if (s->reduction == HS_XENT_SUM) e.loss[0] = ce_sum + s->z_loss * z_sum;
    if (s->reduction == HS_XENT_MEAN)
        e.loss[0] = e.denominator[1] > 0     ? ce_sum / e.denominator[0] + s->z_loss * z_sum / e.denominator[1]
                    : s->zero_if_all_ignored ? 0
                                             : NAN;
    return e;
}

static hs_status forward(const setting *s, const tensors *t) {
    hs_xent_forward_args args = {.logits = t->logits,
                                 .target = t->target,
                                 .weight = t->weight,
                                 .loss = t->loss,
                                 .lse = t->lse,
                                 .denominator = t->denominator,
                                 .ignore_index = IGNORED,
                                 .reduction = s->reduction,
                                 .label_smoothing = s->smoothing,
                                 .z_loss = s->z_loss,
                                 .zero_if_all_ignored = s->zero_if_all_ignored};
    hs_ctx ctx = {0};
    ctx = test_ctx(hs_xent_forward_workspace(&ctx, &args));
    return hs_xent_forward(&ctx, &args);
}

static hs_status backward(const setting *s, const tensors *t) {
    const hs_xent_backward_args args = {.dloss = t->dloss,
                                        .logits = t->logits,
                                        .target = t->target,
                                        .weight = t->weight,
                                        .lse = t->lse,
                                        .denominator = t->denominator,
                                        .dlogits = t->dlogits,
                                        .ignore_index = IGNORED,
                                        .reduction = s->reduction,
                                        .label_smoothing = s->smoothing,
                                        .z_loss = s->z_loss};
    const hs_ctx ctx = {0};
    return hs_xent_backward(&ctx, &args);
}

static void describe(const setting *s, char *text, size_t size) {
    snprintf(text, size, "%s %s rows %lld classes %lld reduction %lld weighted %d smoothing %g z %g dloss %g",
             hs_dtype_name(s->dtype), hs_dtype_name(s->target_dtype), (long long)s->rows, (long long)s->classes,
             (long long)s->reduction, s->weighted, s->smoothing, s->z_loss, s->dloss);
}

/* Half a unit in the last place, relative, and the half of the smallest number: the one rounding at the end. */
static double rounding_of(int dtype, double value) {
    switch (dtype) {
    case HS_F32:
        return ldexp(fabs(value), -24);
    case HS_F16:
        return ldexp(fabs(value), -11) + ldexp(1, -25);
    default:
        return ldexp(fabs(value), -8);
    }
}

static void compare_gradient(const setting *s, const tensors *t, const expected *e, const char *text) {
    for (int64_t row = 0; row < s->rows; row++) {
        const bool ignored = class_of(s, t, row) == IGNORED, mean = s->reduction == HS_XENT_MEAN;
        const double dloss = test_get(&t->dloss, s->reduction == HS_XENT_NONE ? row : 0);
        const double dce = mean ? dloss / e->denominator[0] : dloss, dz = mean ? dloss / e->denominator[1] : dloss;
        for (int64_t c = 0; c < s->classes; c++) {
            const int64_t i = row * s->classes + c;
            const double x = test_get(&t->logits, i), got = test_get(&t->dlogits, i), softmax = exp(x - e->lse[row]);
            const double wanted = dce * class_weight(t, c) * q(s, t, row, c);
            const double through = (dce * e->q_weight[row] + dz * 2 * s->z_loss * e->lse[row]) * softmax;
            const double want = ignored ? 0 : through - wanted;
            /* The exponent is rounded in the differences, whose size a common offset does not change. What remains is a
             * few units of each part of the sum; a column with one part only is thus judged by its own size. */
            const double exponent = ldexp(2 + fabs(x - e->lse[row]) + log((double)s->classes), -23);
            const double allowed = exponent * fabs(through) + ldexp(fabs(wanted) + fabs(through), -21);
            if (ignored)
                CHECK(got == 0, "%s: gradient of an ignored row is %g", text, got);
            else
                CHECK(fabs(got - want) <= allowed + rounding_of(s->dtype, fabs(want) + allowed),
                      "%s: dlogits[%lld, %lld] is %.9g, expected %.9g", text, (long long)row, (long long)c, got, want);
        }
    }
}

static void compare(const setting *s) {
    char text[256];
    describe(s, text, sizeof text);
    tensors t = make(s);
    const hs_tensor before = test_copy(&t.logits);
    CHECK(forward(s, &t) == HS_OK, "%s: %s", text, hs_error());
    const expected e = expect(s, &t);
    for (int64_t row = 0; row < s->rows; row++)
        CHECK(fabs(lse_of(&t.lse, row) - e.lse[row]) <= ldexp(2 + log((double)s->classes), -22),
              "%s: lse[%lld] is %g, not %g", text, (long long)row, lse_of(&t.lse, row), e.lse[row]);
    for (int i = 0; i < 2; i++)
        CHECK(fabs(test_get(&t.denominator, i) - e.denominator[i]) <= ldexp(e.denominator[i], -22),
              "%s: denominator[%d] is %g, not %g", text, i, test_get(&t.denominator, i), e.denominator[i]);
    for (int64_t i = 0; i < hs_numel(&t.loss); i++) {
        const double got = test_get(&t.loss, i), want = e.loss[i];
        CHECK(isnan(want) ? isnan(got) : fabs(got - want) <= ldexp(4 + fabs(want), -21),
              "%s: loss[%lld] is %.9g, not %.9g", text, (long long)i, got, want);
    }
    CHECK(backward(s, &t) == HS_OK, "%s: %s", text, hs_error());
    compare_gradient(s, &t, &e, text);
    CHECK(memcmp(t.logits.data, before.data, (size_t)(hs_numel(&before) * hs_dtype_size(s->dtype))) == 0,
          "%s: the logits were modified", text);
    test_release();
}

TEST(xent_against_loops) {
    const int64_t classes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 63, 64, 65, 1023, 1024, 1025};
    const int64_t rows[] = {0, 1, 3, 11};
    const int dtypes[] = {HS_F32, HS_F16, HS_BF16}, targets[] = {HS_I64, HS_F32, HS_F16, HS_BF16};
    int number = 0;
    for (int d = 0; d < 3; d++)
        for (int p = 0; p < 4; p++)
            for (size_t c = 0; c < sizeof classes / sizeof *classes; c++)
                for (int r = 0; r < 4; r++)
                    for (int options = 0; options < 8; options++) {
                        const setting s = {.dtype = dtypes[d],
                                           .target_dtype = targets[p],
                                           .rows = rows[r],
                                           .classes = classes[c],
                                           .reduction = number++ % 3,
                                           .weighted = options & 1,
                                           .smoothing = options & 2 ? 0.1 : 0,
                                           .z_loss = options & 4 ? 1e-2 : 0,
                                           .dloss = number % 5 ? 1 : 0x1p-14};
                        compare(&s);
                    }
}

/* A loss scale of 2^16 over a mean of 11 rows: 16-bit gradients must neither overflow nor lose their small columns. */
TEST(xent_scaled_loss) {
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++) {
        const setting s = {.dtype = dtype,
                           .target_dtype = HS_I64,
                           .rows = 11,
                           .classes = 129,
                           .reduction = HS_XENT_MEAN,
                           .smoothing = 0.1,
                           .dloss = 0x1p16};
        compare(&s);
    }
}

/* As many classes as a large vocabulary has, where a plain float32 sum drifts; and more rows than one thread takes. */
TEST(xent_large) {
    const setting vocabulary = {
        .dtype = HS_F32, .target_dtype = HS_I64, .rows = 3, .classes = 131073, .smoothing = 0.1, .dloss = 1};
    compare(&vocabulary);
    const setting threads = {
        .dtype = HS_F16, .target_dtype = HS_I64, .rows = 40, .classes = 4097, .reduction = HS_XENT_MEAN, .dloss = 1};
    compare(&threads);
}

TEST(xent_all_ignored) {
    for (int zero = 0; zero < 2; zero++)
        for (int64_t rows = 0; rows < 4; rows++)
            for (int64_t reduction = HS_XENT_NONE; reduction <= HS_XENT_SUM; reduction++) {
                const setting s = {.dtype = HS_F32,
                                   .target_dtype = HS_I64,
                                   .rows = rows,
                                   .classes = 5,
                                   .reduction = reduction,
                                   .ignore_all = true,
                                   .zero_if_all_ignored = zero,
                                   .z_loss = zero ? 0 : 1e-3,
                                   .dloss = 1};
                compare(&s);
            }
}

/* The logits of one row of five classes, its target is class 1; what the loss and the first gradients must be. */
static void check_special(const float *logits, double smoothing, double loss, double d0, double d1) {
    const setting s = {
        .dtype = HS_F32, .target_dtype = HS_I64, .rows = 1, .classes = 5, .smoothing = smoothing, .dloss = 1};
    tensors t = make(&s);
    memcpy(t.logits.data, logits, 5 * sizeof(float));
    ((int64_t *)t.target.data)[0] = 1;
    test_put(&t.dloss, 0, 1);
    CHECK(forward(&s, &t) == HS_OK && backward(&s, &t) == HS_OK, "%s", hs_error());
    const double got[] = {test_get(&t.loss, 0), test_get(&t.dlogits, 0), test_get(&t.dlogits, 1)};
    const double want[] = {loss, d0, d1};
    for (int i = 0; i < 3; i++)
        CHECK(isnan(want[i]) ? isnan(got[i]) : got[i] == want[i] || fabs(got[i] - want[i]) < 1e-6,
              "logits %g %g ...: value %d is %g, not %g", logits[0], logits[1], i, got[i], want[i]);
    test_release();
}

TEST(xent_special_values) {
    const float inf = INFINITY, nan = NAN;
    check_special((float[]){-inf, 0, 0, 0, 0}, 0, log(4), 0, -0.75);        /* a masked class */
    check_special((float[]){0, -inf, 0, 0, 0}, 0, inf, 0.25, -1);           /* the wanted class is masked */
    check_special((float[]){-inf, 0, 0, 0, 0}, 0.5, inf, -0.1, 0.25 - 0.6); /* smoothing wants the masked class too */
    check_special((float[]){-inf, -inf, -inf, -inf, -inf}, 0, nan, nan, nan);
    check_special((float[]){nan, 0, 0, 0, 0}, 0, nan, nan, nan);
    check_special((float[]){inf, 0, 0, 0, 0}, 0, nan, nan, nan);
    check_special((float[]){3e38f, -3e38f, 0, 0, 0}, 0, inf, 1, -1);
    check_special((float[]){-1000, 1000, 0, 0, 0}, 0, 0, 0, 0);
}

/* Nothing but masked classes: the sum of exponentials is 0, and its logarithm is what lse says. */
TEST(xent_lse_of_masked_row) {
    const setting s = {.dtype = HS_F16, .target_dtype = HS_I64, .rows = 1, .classes = 5, .dloss = 1};
    const tensors t = make(&s);
    for (int64_t c = 0; c < 5; c++) test_put(&t.logits, c, -INFINITY);
    CHECK(forward(&s, &t) == HS_OK, "%s", hs_error());
    CHECK(lse_of(&t.lse, 0) == -INFINITY, "lse is %g", lse_of(&t.lse, 0));
    CHECK(isnan(test_get(&t.loss, 0)), "the loss is %g", test_get(&t.loss, 0));
}

TEST(xent_target_out_of_range) {
    const setting s = {.dtype = HS_F32, .target_dtype = HS_I64, .rows = 7, .classes = 10, .dloss = 1};
    const int64_t wrong[] = {12, 10, -1, INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        tensors t = make(&s);
        ((int64_t *)t.target.data)[5] = wrong[i];
        const hs_tensor loss = test_copy(&t.loss), lse = test_copy(&t.lse), dlogits = test_copy(&t.dlogits);
        char message[128];
        snprintf(message, sizeof message, "cross_entropy: target[5] is %lld, expected 0 to 9 or ignore_index -100",
                 (long long)wrong[i]);
        CHECK(forward(&s, &t) == HS_BAD_VALUE, "target %lld was accepted", (long long)wrong[i]);
        CHECK(strcmp(hs_error(), message) == 0, "%s", hs_error());
        CHECK(backward(&s, &t) == HS_BAD_VALUE, "target %lld was accepted", (long long)wrong[i]);
        CHECK(memcmp(loss.data, t.loss.data, 7 * 4) == 0, "the loss was written");
        CHECK(memcmp(lse.data, t.lse.data, 14 * 4) == 0, "lse was written");
        CHECK(memcmp(dlogits.data, t.dlogits.data, 70 * 4) == 0, "dlogits was written");
        test_release();
    }
}

static void check_refused(const setting *s, const tensors *t, hs_status status, const char *message) {
    CHECK(forward(s, t) == status && strcmp(hs_error(), message) == 0, "expected \"%s\", got \"%s\"", message,
          hs_error());
}

TEST(xent_refused) {
    const setting good = {.dtype = HS_F32, .target_dtype = HS_I64, .rows = 4, .classes = 10, .weighted = true};
    const tensors t = make(&good);
    setting s = good;
    s.smoothing = 1.5;
    check_refused(&s, &t, HS_BAD_VALUE, "cross_entropy: label_smoothing is 1.5, expected 0 to 1");
    s.smoothing = NAN;
    CHECK(forward(&s, &t) == HS_BAD_VALUE, "label_smoothing NaN was accepted");
    s = good;
    s.z_loss = -1;
    check_refused(&s, &t, HS_BAD_VALUE, "cross_entropy: z_loss is -1, expected a finite value of 0 or more");
    s = good;
    s.reduction = 3;
    check_refused(&s, &t, HS_BAD_VALUE, "cross_entropy: reduction is 3, expected 0 (none), 1 (mean) or 2 (sum)");
    tensors u = t;
    u.weight = test_vector(HS_F32, 3);
    check_refused(&good, &u, HS_BAD_VALUE, "cross_entropy: weight has 3 elements, the number of classes is 10");
    u = t;
    u.target = test_vector(HS_I64, 5);
    check_refused(&good, &u, HS_BAD_VALUE, "cross_entropy: target has 5 elements, the number of rows is 4");
    u.target = test_matrix(HS_F32, 4, 9);
    check_refused(&good, &u, HS_BAD_VALUE, "cross_entropy: target has shape (4, 9), logits has shape (4, 10)");
    u.target = test_vector(HS_I32, 4);
    check_refused(&good, &u, HS_BAD_TYPE,
                  "cross_entropy: target is int32, expected int64 class indices or float32, float16 or bfloat16 "
                  "probabilities");
    u = t;
    u.logits = test_matrix(HS_F32, 4, 0);
    check_refused(&good, &u, HS_BAD_VALUE, "cross_entropy: logits has 0 classes, expected 1 or more");
    u.logits = test_vector(HS_F32, 40);
    check_refused(&good, &u, HS_BAD_VALUE, "cross_entropy: logits has 1 dimensions, expected 2 (rows, classes)");
    u.logits = (hs_tensor){0};
    check_refused(&good, &u, HS_BAD_TYPE, "cross_entropy: logits is none, expected float32, float16 or bfloat16");
}
