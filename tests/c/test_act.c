#include "../../kernels/ops/act.h"
#include "check.h"

static double act(int kind, double z) {
    const double u = 0.7978845608028654 * (z + 0.044715 * z * z * z);
    switch (kind) {
    case HS_ACT_RELU:
        return z < 0 ? 0 : z;
    case HS_ACT_GELU:
        return z / 2 * erfc(-z / sqrt(2));
    case HS_ACT_GELU_TANH:
        return z / (1 + exp(-2 * u));
    case HS_ACT_SILU:
        return z / (1 + exp(-z));
    default:
        return z;
    }
}

static double act_derivative(int kind, double z) {
    const double u = 0.7978845608028654 * (z + 0.044715 * z * z * z), du = 0.7978845608028654 * (1 + 0.134145 * z * z);
    const double p = 1 / (1 + exp(-z)), q = 1 / (1 + exp(-2 * u));
    switch (kind) {
    case HS_ACT_RELU:
        return z <= 0 ? 0 : 1;
    case HS_ACT_GELU:
        return erfc(-z / sqrt(2)) / 2 + z * 0.3989422804014327 * exp(-z * z / 2);
    case HS_ACT_GELU_TANH:
        return q + z * q * (1 - q) * 2 * du;
    case HS_ACT_SILU:
        return p + z * p * (1 - p);
    default:
        return 1;
    }
}

static void check_act(int kind, int dtype, int bias_dtype, int64_t rows, int64_t cols, bool in_place) {
    const int64_t n = rows * cols;
    hs_act_forward_args f = {.x = test_matrix(dtype, rows, cols), .cols = cols, .kind = kind};
    hs_act_backward_args g = {.dy = test_matrix(dtype, rows, cols), .cols = cols, .kind = kind};
    test_fill(&f.x, 0.3, 3);
    test_fill(&g.dy, 0, 1);
    if (bias_dtype) {
        f.b = test_vector(bias_dtype, cols);
        test_fill(&f.b, 0, 1);
        g.db = test_vector(bias_dtype, cols);
    }
    double *y = test_memory(n * 8), *dx = test_memory(n * 8), *db = test_memory(cols * 8);
    double magnitude = 0;
    memset(db, 0, (size_t)cols * 8);
    for (int64_t i = 0; i < n; i++) {
        const double z = test_get(&f.x, i) + (bias_dtype ? test_get(&f.b, i % cols) : 0);
        y[i] = act(kind, z);
        dx[i] = test_get(&g.dy, i) * act_derivative(kind, z);
        db[i % cols] += dx[i];
        magnitude = fmax(magnitude, fabs(z));
    }
    g.x = test_matrix(dtype, rows, cols);
    memcpy(g.x.data, f.x.data, (size_t)(n * hs_dtype_size(dtype)));
    g.b = f.b;
    f.y = in_place ? f.x : test_matrix(dtype, rows, cols);
    hs_ctx ctx = test_ctx(0);
    CHECK(hs_act_forward(&ctx, &f) == HS_OK, "%s", hs_error());
    CHECK_CLOSE(&f.y, y, magnitude, 2);

    g.dx = in_place ? g.dy : test_matrix(dtype, rows, cols);
    ctx = test_ctx(hs_act_backward_workspace(&ctx, &g));
    CHECK(hs_act_backward(&ctx, &g) == HS_OK, "%s", hs_error());
    CHECK_CLOSE(&g.dx, dx, fmax(test_largest(dx, n), 1) * 4, 2);
    if (bias_dtype) CHECK_CLOSE(&g.db, db, fmax(test_largest(dx, n), 1) * sqrt((double)rows + 1), 4);
}

TEST(act_all_kinds_dtypes_and_sizes) {
    for (int kind = 0; kind < HS_ACT_COUNT; kind++)
        for (int d = 0; d < 3; d++)
            for (int s = 0; s < test_size_count; s++) {
                const int dtype = test_float_dtypes[d];
                check_act(kind, dtype, HS_NONE, 3, test_sizes[s], s % 2);
                check_act(kind, dtype, HS_F32, 3, test_sizes[s], s % 2);
                check_act(kind, dtype, dtype, s % 3, test_sizes[s], false);
            }
}

TEST(act_many_rows_on_threads) {
    check_act(HS_ACT_GELU, HS_F32, HS_F32, 700, 130, false);
    check_act(HS_ACT_SILU, HS_F16, HS_F32, 30011, 1, true);
    check_act(HS_ACT_GELU_TANH, HS_BF16, HS_BF16, 1000, 65, false);
    check_act(HS_ACT_RELU, HS_BF16, HS_NONE, 1, 70001, false);
}

TEST(act_special_numbers) {
    const double x[] = {NAN, INFINITY, 1e30, -1e30, 1e-42, -0.0};
    for (int kind = 0; kind < HS_ACT_COUNT; kind++) {
        hs_act_forward_args f = {.x = test_vector(HS_F32, 6), .y = test_vector(HS_F32, 6), .kind = kind};
        hs_act_backward_args g = {.dy = test_vector(HS_F32, 6), .x = f.x, .dx = test_vector(HS_F32, 6), .kind = kind};
        for (int i = 0; i < 6; i++) {
            test_put(&f.x, i, x[i]);
            test_put(&g.dy, i, 2);
        }
        const hs_ctx ctx = test_ctx(0);
        CHECK(hs_act_forward(&ctx, &f) == HS_OK && hs_act_backward(&ctx, &g) == HS_OK, "%s", hs_error());
        CHECK(isnan(test_get(&f.y, 0)), "kind %d of NaN is %g", kind, test_get(&f.y, 0));
        CHECK(test_get(&f.y, 1) == INFINITY, "kind %d of infinity is %g", kind, test_get(&f.y, 1));
        CHECK(test_get(&f.y, 2) == test_get(&f.x, 2), "kind %d of 1e30 is %g", kind, test_get(&f.y, 2));
        CHECK(test_get(&f.y, 3) == (kind == HS_ACT_NONE ? test_get(&f.x, 3) : 0), "kind %d of -1e30 is %g", kind,
              test_get(&f.y, 3));
        CHECK(test_get(&g.dx, 2) == 2, "kind %d: gradient at 1e30 is %g", kind, test_get(&g.dx, 2));
        CHECK(test_get(&g.dx, 3) == (kind == HS_ACT_NONE ? 2 : 0), "kind %d: gradient at -1e30 is %g", kind,
              test_get(&g.dx, 3));
    }
}

TEST(act_left_tail_keeps_its_digits) {
    const int kinds[] = {HS_ACT_GELU, HS_ACT_GELU_TANH, HS_ACT_SILU};
    for (int k = 0; k < 3; k++)
        for (int i = 1; i < 10; i++) {
            hs_act_forward_args f = {.x = test_vector(HS_F32, 1), .y = test_vector(HS_F32, 1), .kind = kinds[k]};
            test_put(&f.x, 0, -i);
            const hs_ctx ctx = test_ctx(0);
            CHECK(hs_act_forward(&ctx, &f) == HS_OK, "%s", hs_error());
            const double want = act(kinds[k], -i);
            CHECK(fabs(test_get(&f.y, 0) / want - 1) < 2e-5, "kind %d of %d is %g, expected %g", kinds[k], -i,
                  test_get(&f.y, 0), want);
        }
}

TEST(act_refuses) {
    const hs_ctx ctx = test_ctx(0);
    const hs_act_forward_args good = {.x = test_matrix(HS_F16, 2, 3), .y = test_matrix(HS_F16, 2, 3), .cols = 3};
    hs_act_forward_args a = good;
    a.kind = HS_ACT_COUNT;
    CHECK(hs_act_forward(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "bias_act: activation"), "%s", hs_error());
    a = good;
    a.b = test_vector(HS_F32, 2);
    CHECK(hs_act_forward(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "bias has 2"), "%s", hs_error());
    a.b = test_vector(HS_BF16, 3);
    CHECK(hs_act_forward(&ctx, &a) == HS_BAD_TYPE && strstr(hs_error(), "bfloat16"), "%s", hs_error());
    a.b = test_vector(HS_F32, 4);
    a.cols = 4;
    CHECK(hs_act_forward(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "6 elements"), "%s", hs_error());
    a = good;
    a.y = test_matrix(HS_F32, 2, 3);
    CHECK(hs_act_forward(&ctx, &a) == HS_BAD_TYPE, "%s", hs_error());
    hs_act_backward_args g = {.dy = good.x, .dx = good.y, .cols = 3, .kind = HS_ACT_SILU};
    CHECK(hs_act_backward(&ctx, &g) == HS_BAD_VALUE && strstr(hs_error(), "x is missing"), "%s", hs_error());
    g.kind = HS_ACT_NONE;
    CHECK(hs_act_backward(&ctx, &g) == HS_OK, "%s", hs_error());
}
