#include "../../kernels/ops/norm.h"
#include "check.h"

typedef struct {
    int dtype, stream_dtype, weight_dtype; /* of x, of the residual or HS_NONE, of w and b or HS_NONE */
    int64_t rows, cols;
    double mean, deviation, eps;
} shape;

static void row_truth(const double *h, int64_t n, double eps, double *mean, double *rstd) {
    double m = 0, v = 0;
    for (int64_t i = 0; i < n; i++) m += h[i];
    m /= (double)n;
    for (int64_t i = 0; i < n; i++) v += (h[i] - m) * (h[i] - m);
    *mean = m;
    *rstd = 1 / sqrt(v / (double)n + eps);
}

static void check_forward(const shape *s, hs_norm_forward_args *a) {
    const int64_t n = s->rows * s->cols, cols = s->cols;
    double *h = test_memory(n * 8), *y = test_memory(n * 8);
    for (int64_t i = 0; i < n; i++) h[i] = test_get(&a->x, i) + (s->stream_dtype ? test_get(&a->residual, i) : 0);
    const hs_ctx ctx = test_ctx(0);
    CHECK(hs_norm_forward(&ctx, a) == HS_OK, "%s", hs_error());
    if (s->stream_dtype) {
        CHECK_CLOSE(&a->sum, h, 0, 0);
        for (int64_t i = 0; i < n; i++) h[i] = test_get(&a->sum, i);
    }
    for (int64_t r = 0; r < s->rows && cols > 0; r++) {
        double mean, rstd;
        row_truth(h + r * cols, cols, s->eps, &mean, &rstd);
        for (int64_t i = 0; i < cols; i++) {
            const double xhat = (h[r * cols + i] - mean) * rstd;
            y[r * cols + i] = s->weight_dtype ? xhat * test_get(&a->w, i) + test_get(&a->b, i) : xhat;
        }
    }
    CHECK_CLOSE(&a->y, y, fmax(1, test_largest(y, n)), 4);
}

static void check_backward(const shape *s, hs_norm_backward_args *a) {
    const int64_t n = s->rows * s->cols, cols = s->cols;
    double *dx = test_memory(n * 8), *dw = test_memory(cols * 8), *db = test_memory(cols * 8), *h = test_memory(n * 8);
    double largest = 0, largest_term = 0;
    memset(dw, 0, (size_t)cols * 8);
    memset(db, 0, (size_t)cols * 8);
    for (int64_t i = 0; i < n; i++) h[i] = test_get(&a->h, i);
    for (int64_t r = 0; r < s->rows && cols > 0; r++) {
        double mean, rstd, sum_g = 0, sum_gx = 0;
        row_truth(h + r * cols, cols, s->eps, &mean, &rstd);
        for (int64_t i = 0; i < cols; i++) {
            const double xhat = (h[r * cols + i] - mean) * rstd, d = test_get(&a->dy, r * cols + i);
            const double g = d * (s->weight_dtype ? test_get(&a->w, i) : 1);
            sum_g += g / (double)cols;
            sum_gx += g * xhat / (double)cols;
            dw[i] += d * xhat;
            db[i] += d;
            largest = fmax(largest, fabs(g * rstd) * (1 + fabs(xhat)));
            largest_term = fmax(largest_term, fabs(d) * fmax(1, fabs(xhat)));
        }
        for (int64_t i = 0; i < cols; i++) {
            const int64_t at = r * cols + i;
            const double g = test_get(&a->dy, at) * (s->weight_dtype ? test_get(&a->w, i) : 1);
            dx[at] = rstd * (g - sum_g - (h[at] - mean) * rstd * sum_gx);
            if (hs_present(&a->dsum)) dx[at] += test_get(&a->dsum, at);
        }
    }
    hs_ctx ctx = test_ctx(0);
    ctx = test_ctx(hs_norm_backward_workspace(&ctx, a));
    CHECK(hs_norm_backward(&ctx, a) == HS_OK, "%s", hs_error());
    const double magnitude = fmax(largest, test_largest(dx, n)), terms = largest_term * sqrt((double)s->rows + 1);
    CHECK_CLOSE(&a->dx, dx, magnitude, 4);
    if (hs_present(&a->dresidual)) CHECK_CLOSE(&a->dresidual, dx, magnitude, 4);
    if (hs_present(&a->dw)) CHECK_CLOSE(&a->dw, dw, terms, 4);
    if (hs_present(&a->db)) CHECK_CLOSE(&a->db, db, terms, 4);
}

static void check_norm(shape s) {
    hs_norm_forward_args f = {.x = test_matrix(s.dtype, s.rows, s.cols), .cols = s.cols, .eps = s.eps};
    f.y = test_matrix(s.dtype, s.rows, s.cols);
    test_fill(&f.x, s.mean, s.deviation);
    hs_norm_backward_args g = {.dy = test_matrix(s.dtype, s.rows, s.cols), .cols = s.cols, .eps = s.eps};
    g.dx = test_matrix(s.dtype, s.rows, s.cols);
    test_fill(&g.dy, 0.1, 1);
    if (s.stream_dtype) {
        f.residual = test_matrix(s.stream_dtype, s.rows, s.cols);
        f.sum = test_matrix(s.stream_dtype, s.rows, s.cols);
        test_fill(&f.residual, 0, s.deviation);
        g.dsum = test_matrix(s.stream_dtype, s.rows, s.cols);
        test_fill(&g.dsum, 0, 1);
        g.dresidual = test_matrix(s.stream_dtype, s.rows, s.cols);
    }
    if (s.weight_dtype) {
        f.w = test_vector(s.weight_dtype, s.cols);
        f.b = test_vector(s.weight_dtype, s.cols);
        test_fill(&f.w, 1, 0.3);
        test_fill(&f.b, 0, 0.3);
        g.w = f.w;
        g.dw = test_vector(s.weight_dtype, s.cols);
        g.db = test_vector(s.weight_dtype, s.cols);
    }
    check_forward(&s, &f);
    g.h = s.stream_dtype ? f.sum : f.x;
    check_backward(&s, &g);
}

TEST(norm_all_dtypes_and_sizes) {
    for (int d = 0; d < 3; d++) {
        const int T = test_float_dtypes[d], streams[] = {HS_NONE, T, HS_F32}, weights[] = {HS_NONE, T, HS_F32};
        for (int s = 0; s < test_size_count; s++)
            for (int r = 0; r < 9; r++)
                check_norm((shape){T, streams[r / 3], weights[r % 3], (s + r) % 4, test_sizes[s], 0.5, 2, 1e-5});
    }
}

TEST(norm_many_rows_and_long_rows) {
    check_norm((shape){HS_F32, HS_NONE, HS_F32, 1000, 96, 0, 1, 1e-5});
    check_norm((shape){HS_F16, HS_F32, HS_F16, 300, 257, 0, 1, 1e-5});
    check_norm((shape){HS_BF16, HS_NONE, HS_F32, 3, 20011, 1, 1, 1e-5});
    check_norm((shape){HS_F32, HS_NONE, HS_F32, 20000, 1, 0, 1, 1e-5});
}

TEST(norm_survives_a_large_mean) {
    check_norm((shape){HS_F32, HS_NONE, HS_NONE, 4, 1000, 1e4, 0.05, 1e-5});
    check_norm((shape){HS_F32, HS_F32, HS_F32, 4, 5003, -3e4, 1, 1e-5});
}

TEST(norm_survives_huge_and_tiny_rows) {
    check_norm((shape){HS_F32, HS_NONE, HS_F32, 4, 1000, 1e30, 1e28, 1e-5});
    check_norm((shape){HS_F32, HS_NONE, HS_F32, 4, 333, 0, 3e37, 1e-5});
    check_norm((shape){HS_F32, HS_NONE, HS_NONE, 4, 333, 0, 1e-25, 0});
    check_norm((shape){HS_BF16, HS_NONE, HS_F32, 4, 333, 1e30, 1e30, 1e-5});
    check_norm((shape){HS_F32, HS_NONE, HS_F32, 4, 65, 1e-30, 1e-30, 1e-5});
}

TEST(norm_of_constant_and_broken_rows) {
    enum { N = 3001 };
    const hs_ctx ctx = test_ctx(0);
    hs_norm_forward_args a = {.x = test_matrix(HS_F32, 4, N), .y = test_matrix(HS_F32, 4, N), .cols = N, .eps = 1e-5};
    test_fill(&a.x, 0, 1);
    for (int i = 0; i < N; i++) test_put(&a.x, i, 12345.678);
    test_put(&a.x, N + 50, INFINITY);
    test_put(&a.x, 2 * N + 50, NAN);
    CHECK(hs_norm_forward(&ctx, &a) == HS_OK, "%s", hs_error());
    for (int i = 0; i < N; i++) {
        CHECK(test_get(&a.y, i) == 0, "a constant row gives %g", test_get(&a.y, i));
        CHECK(isnan(test_get(&a.y, N + i)), "a row with an infinity gives %g", test_get(&a.y, N + i));
        CHECK(isnan(test_get(&a.y, 2 * N + i)), "a row with a NaN gives %g", test_get(&a.y, 2 * N + i));
        CHECK(isfinite(test_get(&a.y, 3 * N + i)), "its neighbour gives %g", test_get(&a.y, 3 * N + i));
    }
}

TEST(norm_backward_is_the_same_every_time) {
    hs_norm_backward_args a = {.dy = test_matrix(HS_F32, 900, 70), .h = test_matrix(HS_F32, 900, 70), .cols = 70};
    test_fill(&a.dy, 0, 1);
    test_fill(&a.h, 0, 1);
    hs_ctx ctx = test_ctx(0);
    hs_tensor first = test_vector(HS_F32, 70);
    for (int i = 0; i < 5; i++) {
        a.dw = i ? test_vector(HS_F32, 70) : first;
        ctx = test_ctx(hs_norm_backward_workspace(&ctx, &a));
        CHECK(hs_norm_backward(&ctx, &a) == HS_OK, "%s", hs_error());
        CHECK(memcmp(a.dw.data, first.data, 70 * 4) == 0, "run %d differs", i);
    }
}

TEST(norm_refuses) {
    const hs_ctx ctx = test_ctx(0);
    const hs_norm_forward_args good = {
        .x = test_matrix(HS_F32, 2, 640), .y = test_matrix(HS_F32, 2, 640), .cols = 640, .eps = 1e-5};
    hs_norm_forward_args a = good;
    a.w = test_vector(HS_F32, 3);
    CHECK(hs_norm_forward(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "layer_norm: weight has 3 elements"), "%s",
          hs_error());
    a.w = test_vector(HS_F16, 640);
    CHECK(hs_norm_forward(&ctx, &a) == HS_BAD_TYPE, "%s", hs_error());
    a = good;
    a.eps = NAN;
    CHECK(hs_norm_forward(&ctx, &a) == HS_BAD_VALUE, "%s", hs_error());
    a = good;
    a.residual = test_matrix(HS_F32, 2, 640);
    CHECK(hs_norm_forward(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "together"), "%s", hs_error());
    a = good;
    a.x.device.kind = HS_CUDA;
    CHECK(hs_norm_forward(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "cuda:0"), "%s", hs_error());
    hs_ctx gpu = ctx;
    gpu.device.kind = HS_CUDA;
    a.y.device.kind = HS_CUDA;
    CHECK(hs_norm_forward(&gpu, &a) == HS_FAILURE && strstr(hs_error(), "no CUDA kernels"), "%s", hs_error());
}
