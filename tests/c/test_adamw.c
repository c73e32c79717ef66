/* AdamW against a loop in float64 that follows the sentences of kernels/ops/adamw.h. */
#include <stddef.h>

#include "../../kernels/ops/adamw.h"
#include "check.h"

enum { MAX_TENSORS = 80 };

typedef struct {
    hs_tensor p[MAX_TENSORS], g[MAX_TENSORS], m[MAX_TENSORS], v[MAX_TENSORS], step[MAX_TENSORS], half[MAX_TENSORS];
    int64_t count;
    hs_adamw_args args;
} model;

/* half_dtype HS_NONE: no list of halves. With one, every third tensor has none all the same. */
static void make(model *w, const int64_t *sizes, int64_t count, int g_dtype, int half_dtype, double scale) {
    *w = (model){.count = count};
    for (int64_t i = 0; i < count; i++) {
        const int64_t n = sizes[i];
        w->p[i] = test_vector(HS_F32, n);
        w->g[i] = test_vector(g_dtype, n);
        w->m[i] = test_vector(HS_F32, n);
        w->v[i] = test_vector(HS_F32, n);
        w->step[i] = test_vector(HS_F32, 1);
        if (half_dtype != HS_NONE && i % 3) w->half[i] = test_vector(half_dtype, n);
        for (int64_t k = 0; k < n; k++) {
            test_put(&w->p[i], k, test_uniform());
            test_put(&w->g[i], k, scale * test_uniform());
            test_put(&w->m[i], k, 0.1 * test_uniform());
            test_put(&w->v[i], k, 0.01 * fabs(test_uniform()));
        }
        test_put(&w->step[i], 0, (double)(i % 4) * 7);
    }
    w->args = (hs_adamw_args){.p = {w->p, count},
                              .g = {w->g, count},
                              .m = {w->m, count},
                              .v = {w->v, count},
                              .step = {w->step, count},
                              .half = {w->half, half_dtype == HS_NONE ? 0 : count},
                              .lr = 0.01,
                              .beta1 = 0.9,
                              .beta2 = 0.999,
                              .eps = 1e-8,
                              .weight_decay = 0.1};
}

static hs_tensor one(double value) {
    const hs_tensor t = test_vector(HS_F32, 1);
    test_put(&t, 0, value);
    return t;
}

static void copy(model *to, const model *from) {
    *to = *from;
    for (int64_t i = 0; i < from->count; i++) {
        to->p[i] = test_copy(&from->p[i]);
        to->g[i] = test_copy(&from->g[i]);
        to->m[i] = test_copy(&from->m[i]);
        to->v[i] = test_copy(&from->v[i]);
        to->step[i] = test_copy(&from->step[i]);
        if (hs_present(&from->half[i])) to->half[i] = test_copy(&from->half[i]);
    }
}

static void check_near(const char *name, int64_t i, int64_t k, double got, double want, double allowed) {
    CHECK(fabs(got - want) <= allowed, "%s[%lld][%lld] is %.9g, expected %.9g", name, (long long)i, (long long)k, got,
          want);
}

static double unit_of(int dtype, double value) {
    return ldexp(fabs(value), dtype == HS_F16 ? -11 : -8) + (dtype == HS_F16 ? ldexp(1, -25) : 0);
}

/* now is what the step made of before. */
static void check_tensor(const model *before, const model *now, int64_t i) {
    const hs_adamw_args *a = &before->args;
    const double lr = hs_present(&a->lr_tensor) ? test_get(&a->lr_tensor, 0) : a->lr;
    const double scale = hs_present(&a->scale) ? test_get(&a->scale, 0) : 1, t = test_get(&before->step[i], 0) + 1;
    const int g_dtype = before->g[i].dtype;
    const hs_tensor rounded = test_vector(hs_present(&now->half[i]) ? now->half[i].dtype : HS_F16, 1);
    for (int64_t k = 0; k < hs_numel(&before->p[i]); k++) {
        const double unscaled = test_get(&before->g[i], k) / scale, g = a->maximize ? -unscaled : unscaled;
        double p = test_get(&before->p[i], k), m = test_get(&before->m[i], k), v = test_get(&before->v[i], k);
        p -= lr * a->weight_decay * p;
        m += (1 - a->beta1) * (g - m);
        v = a->beta2 * v + (1 - a->beta2) * g * g;
        const double update = lr / (1 - pow(a->beta1, t)) * m / (sqrt(v) / sqrt(1 - pow(a->beta2, t)) + a->eps);
        p -= update;
        /* m may cancel, so its error is one of its terms'; and that error passes into the update. */
        const double m_error = ldexp(fabs(g) + fabs(test_get(&before->m[i], k)), -23);
        const double relative = fabs(m) > 0 ? m_error / fabs(m) : 0;
        check_near("exp_avg", i, k, test_get(&now->m[i], k), m, m_error);
        check_near("exp_avg_sq", i, k, test_get(&now->v[i], k), v, ldexp(v, -22));
        const double p_error = ldexp(fabs(p) + fabs(update), -23) + fabs(update) * (relative + ldexp(1, -21));
        check_near("param", i, k, test_get(&now->p[i], k), p, p_error);
        const bool written = a->write_grad && hs_present(&a->scale);
        const double grad = written ? unscaled : test_get(&before->g[i], k);
        check_near("grad", i, k, test_get(&now->g[i], k), grad,
                   !written            ? 0
                   : g_dtype == HS_F32 ? ldexp(fabs(grad), -24)
                                       : unit_of(g_dtype, grad));
        if (hs_present(&now->half[i])) {
            test_put(&rounded, 0, test_get(&now->p[i], k));
            check_near("half", i, k, test_get(&now->half[i], k), test_get(&rounded, 0), 0);
        }
    }
    CHECK(test_get(&now->step[i], 0) == t, "step[%lld] is %g, expected %g", (long long)i, test_get(&now->step[i], 0),
          t);
}

static void step_and_check(model *w) {
    model before;
    copy(&before, w);
    const hs_ctx ctx = {0};
    CHECK(hs_adamw(&ctx, &w->args) == HS_OK, "%s", hs_error());
    for (int64_t i = 0; i < w->count; i++) check_tensor(&before, w, i);
    test_release();
}

static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 0, 1000, 0};
enum { SIZES = sizeof sizes / sizeof *sizes };

TEST(adamw_against_loop) {
    const int halves[] = {HS_NONE, HS_F16, HS_BF16};
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++)
        for (int h = 0; h < 3; h++)
            for (int options = 0; options < 16; options++) {
                const double scale = options & 1 ? 1000 : 1;
                model w;
                make(&w, sizes, SIZES, dtype, halves[h], scale);
                if (options & 1) w.args.scale = one(scale);
                if (options & 1) w.args.found_inf = one(0);
                w.args.write_grad = (options & 2) != 0;
                w.args.maximize = (options & 4) != 0;
                if (options & 8) w.args.lr_tensor = one(0.03);
                if (options & 8) w.args.lr = NAN; /* not read */
                step_and_check(&w);
            }
}

TEST(adamw_extreme_settings) {
    model w;
    make(&w, sizes, SIZES, HS_F32, HS_NONE, 1);
    w.args.beta1 = w.args.beta2 = w.args.weight_decay = 0;
    w.args.eps = 1e-3;
    step_and_check(&w);
    make(&w, sizes, SIZES, HS_F32, HS_NONE, 1);
    w.args.lr = 0;
    step_and_check(&w);
    make(&w, sizes, 0, HS_F32, HS_NONE, 1);
    step_and_check(&w);
}

/* Ranges of the threads begin and end inside tensors, large and small. */
TEST(adamw_threads) {
    int64_t many[MAX_TENSORS];
    for (int i = 0; i < MAX_TENSORS; i++) many[i] = i == 40 ? 70001 : i * 37 % 1500;
    model w;
    make(&w, many, MAX_TENSORS, HS_F16, HS_NONE, 1);
    step_and_check(&w);
}

static void check_unchanged(const model *before, const model *now) {
    for (int64_t i = 0; i < now->count; i++) {
        const hs_tensor *a[] = {&before->p[i], &before->g[i],    &before->m[i],
                                &before->v[i], &before->step[i], &before->half[i]};
        const hs_tensor *b[] = {&now->p[i], &now->g[i], &now->m[i], &now->v[i], &now->step[i], &now->half[i]};
        for (int l = 0; l < 6; l++)
            CHECK(!hs_present(b[l]) ||
                      memcmp(a[l]->data, b[l]->data, (size_t)(hs_numel(b[l]) * hs_dtype_size(b[l]->dtype))) == 0,
                  "list %d, tensor %lld was written", l, (long long)i);
    }
}

/* rate: for lr_tensor, or NULL without one. */
static void check_skips(double scale, double found_inf, const double *rate) {
    model w, before;
    make(&w, sizes, SIZES, HS_F16, HS_BF16, 1000);
    w.args.scale = one(scale);
    w.args.found_inf = one(found_inf);
    if (rate) w.args.lr_tensor = one(*rate);
    w.args.write_grad = 1;
    copy(&before, &w);
    const hs_ctx ctx = {0};
    CHECK(hs_adamw(&ctx, &w.args) == HS_OK, "%s", hs_error());
    check_unchanged(&before, &w);
    test_release();
}

TEST(adamw_found_inf_writes_nothing) {
    const double found[] = {1, 2, INFINITY, NAN};
    for (int f = 0; f < 4; f++) check_skips(1000, found[f], NULL);
}

/* What is on the device cannot be refused, so it is skipped like a gradient that is not finite; on the CPU alike. */
TEST(adamw_unusable_scalars_write_nothing) {
    const double scales[] = {0, -2, INFINITY, -INFINITY, NAN}, rates[] = {-1e-3, INFINITY, NAN};
    for (int i = 0; i < 5; i++) check_skips(scales[i], 0, NULL);
    for (int i = 0; i < 3; i++) check_skips(1000, 0, &rates[i]);
}

TEST(adamw_check_alone_writes_nothing) {
    model w, before;
    make(&w, sizes, SIZES, HS_F16, HS_BF16, 1);
    copy(&before, &w);
    const hs_ctx ctx = {0};
    CHECK(hs_adamw_check(&ctx, &w.args) == HS_OK, "%s", hs_error());
    w.args.eps = -1;
    CHECK(hs_adamw_check(&ctx, &w.args) == HS_BAD_VALUE, "a negative eps passed");
    check_unchanged(&before, &w);
    test_release();
}

/* The same elements under another shape. */
static hs_tensor as_matrix(const hs_tensor *t, int64_t rows, int64_t cols) {
    hs_tensor m = *t;
    m.ndim = 2;
    m.shape[0] = rows, m.shape[1] = cols;
    m.stride[0] = cols, m.stride[1] = 1;
    return m;
}

static void check_refused(const model *w, hs_status status, const char *message) {
    model before;
    copy(&before, w);
    const hs_ctx ctx = {0};
    CHECK(hs_adamw(&ctx, &w->args) == status && strcmp(hs_error(), message) == 0, "expected \"%s\", got \"%s\"",
          message, hs_error());
    check_unchanged(&before, w);
}

TEST(adamw_refused_numbers) {
    const struct {
        size_t field;
        const char *name;
        double value;
        const char *expected;
    } cases[] = {
        {offsetof(hs_adamw_args, lr), "lr", NAN, "a finite value of 0 or more"},
        {offsetof(hs_adamw_args, lr), "lr", -0.5, "a finite value of 0 or more"},
        {offsetof(hs_adamw_args, lr), "lr", INFINITY, "a finite value of 0 or more"},
        {offsetof(hs_adamw_args, eps), "eps", NAN, "a finite value of 0 or more"},
        {offsetof(hs_adamw_args, eps), "eps", -1, "a finite value of 0 or more"},
        {offsetof(hs_adamw_args, weight_decay), "weight_decay", -1, "a finite value of 0 or more"},
        {offsetof(hs_adamw_args, beta1), "beta1", 1, "0 or more and less than 1"},
        {offsetof(hs_adamw_args, beta1), "beta1", NAN, "0 or more and less than 1"},
        {offsetof(hs_adamw_args, beta2), "beta2", -0.1, "0 or more and less than 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        model w;
        make(&w, sizes, 4, HS_F32, HS_NONE, 1);
        memcpy((char *)&w.args + cases[i].field, &cases[i].value, sizeof(double));
        char message[128];
        snprintf(message, sizeof message, "adamw: %s is %g, expected %s", cases[i].name, cases[i].value,
                 cases[i].expected);
        check_refused(&w, HS_BAD_VALUE, message);
        test_release();
    }
}

TEST(adamw_refused_tensors) {
    const int64_t five[] = {4, 4, 4, 6, 4};
    model w, bad;
    make(&w, five, 5, HS_F16, HS_BF16, 1);
#define BAD(change, status, message)                                                                                   \
    do {                                                                                                               \
        bad = w;                                                                                                       \
        bad.args.p.items = bad.p, bad.args.g.items = bad.g, bad.args.m.items = bad.m, bad.args.v.items = bad.v;        \
        bad.args.step.items = bad.step, bad.args.half.items = bad.half;                                                \
        change;                                                                                                        \
        check_refused(&bad, status, message);                                                                          \
    } while (0)
    BAD(bad.g[3] = test_vector(HS_F16, 5), HS_BAD_VALUE, "adamw: grad[3] has shape (5,), param[3] has shape (6,)");
    BAD(bad.m[0] = test_vector(HS_F32, 3), HS_BAD_VALUE, "adamw: exp_avg[0] has shape (3,), param[0] has shape (4,)");
    BAD(bad.v[3] = as_matrix(&bad.v[3], 2, 3), HS_BAD_VALUE,
        "adamw: exp_avg_sq[3] has shape (2, 3), param[3] has shape (6,)");
    BAD(bad.half[4] = test_vector(HS_BF16, 3), HS_BAD_VALUE, "adamw: half[4] has shape (3,), param[4] has shape (4,)");
    BAD(bad.half[4] = test_vector(HS_F32, 4), HS_BAD_TYPE, "adamw: half[4] is float32, expected float16 or bfloat16");
    BAD(bad.step[2] = test_vector(HS_F32, 2), HS_BAD_VALUE, "adamw: step[2] has 2 elements, expected 1");
    BAD(bad.p[1].dtype = HS_F16, HS_BAD_TYPE, "adamw: param[1] is float16, expected float32");
    BAD(bad.g[1] = test_vector(HS_I64, 4), HS_BAD_TYPE,
        "adamw: grad[1] is int64, expected float32, float16 or bfloat16");
    BAD(bad.v[2].stride[0] = 2, HS_BAD_VALUE, "adamw: exp_avg_sq[2] is not contiguous");
    BAD(bad.v[2].device.kind = HS_CUDA, HS_BAD_VALUE,
        "adamw: exp_avg_sq[2] is on cuda:0, the other tensors are on cpu");
    BAD(bad.args.g.count = 4, HS_BAD_VALUE, "adamw: grad has 4 tensors, param has 5");
    BAD(bad.args.step.count = 6, HS_BAD_VALUE, "adamw: step has 6 tensors, param has 5");
    BAD(bad.args.scale = test_vector(HS_F16, 1), HS_BAD_TYPE, "adamw: scale is float16, expected float32");
#undef BAD
}
