/* The check of the gradients and the update of the scale against the sentences of kernels/ops/scaler.h. */
#include <float.h>

#include "../../kernels/ops/scaler.h"
#include "check.h"

static const hs_ctx ctx = {0};

static hs_tensor one(double value) {
    const hs_tensor t = test_vector(HS_F32, 1);
    test_put(&t, 0, value);
    return t;
}

static hs_tensor gradient(int dtype, int64_t n, double size) {
    const hs_tensor t = test_vector(dtype, n);
    for (int64_t i = 0; i < n; i++) test_put(&t, i, size * test_uniform());
    return t;
}

/* What check leaves in found_inf, which held before. */
static double found(hs_tensor *g, int64_t count, const hs_tensor *scale, double before) {
    hs_scaler_check_args args = {.g = {g, count}, .found_inf = one(before)};
    if (scale) args.scale = *scale;
    CHECK(hs_scaler_check(&ctx, &args) == HS_OK, "%s", hs_error());
    return test_get(&args.found_inf, 0);
}

static const int64_t sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000};
enum { SIZES = sizeof sizes / sizeof *sizes };

TEST(scaler_finite) {
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++) {
        hs_tensor g[SIZES], before[SIZES];
        for (int i = 0; i < SIZES; i++) g[i] = gradient(dtype, sizes[i], 60000);
        for (int i = 0; i < SIZES; i++) before[i] = test_copy(&g[i]);
        CHECK(found(g, SIZES, NULL, 0) == 0, "finite %s gradients were refused", hs_dtype_name(dtype));
        CHECK(found(g, SIZES, NULL, 1) == 1, "found_inf was taken back");
        CHECK(found(g, 0, NULL, 0) == 0 && found(g, 1, NULL, 0) == 0, "an empty list holds an infinity");
        for (int i = 0; i < SIZES; i++)
            CHECK(memcmp(g[i].data, before[i].data, (size_t)(sizes[i] * hs_dtype_size(dtype))) == 0,
                  "check without a scale has written");
        test_release();
    }
}

/* Every kind of value that is not finite, at every place of every size. */
TEST(scaler_each_place) {
    const double bad[] = {INFINITY, -INFINITY, NAN};
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++)
        for (int i = 1; i < SIZES; i++) {
            hs_tensor g = gradient(dtype, sizes[i], 1);
            const hs_tensor scale = one(2);
            for (int64_t k = 0; k < sizes[i]; k++) {
                test_put(&g, k, bad[k % 3]);
                CHECK(found(&g, 1, NULL, 0) == 1, "element %lld of %lld", (long long)k, (long long)sizes[i]);
                CHECK(found(&g, 1, &scale, 0) == 1, "element %lld of %lld", (long long)k, (long long)sizes[i]);
                test_put(&g, k, 1);
            }
            test_release();
        }
}

/* The largest finite number of each dtype is finite. */
TEST(scaler_largest) {
    const double largest[] = {FLT_MAX, 65504, 0x1.fep127};
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++) {
        hs_tensor g = gradient(dtype, 3, 1);
        test_put(&g, 1, largest[dtype - HS_F32]);
        CHECK(found(&g, 1, NULL, 0) == 0, "the largest %s was refused", hs_dtype_name(dtype));
        const hs_tensor half = one(0.5);
        CHECK(found(&g, 1, &half, 0) == 1, "a product that overflows %s was not found", hs_dtype_name(dtype));
        test_release();
    }
}

TEST(scaler_unscale) {
    const float scales[] = {65536, 1000, 0x1p-14f, 3};
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++)
        for (int s = 0; s < 4; s++) {
            hs_tensor g[SIZES], before[SIZES];
            for (int i = 0; i < SIZES; i++) g[i] = gradient(dtype, sizes[i], fmin(scales[s], 30000));
            for (int i = 0; i < SIZES; i++) before[i] = test_copy(&g[i]);
            const hs_tensor scale = one(scales[s]), rounded = test_vector(dtype, 1);
            CHECK(found(g, SIZES, &scale, 0) == 0, "scale %g: finite gradients were refused", scales[s]);
            const float inverse = (float)(1.0 / scales[s]);
            for (int i = 0; i < SIZES; i++)
                for (int64_t k = 0; k < sizes[i]; k++) {
                    test_put(&rounded, 0, (float)test_get(&before[i], k) * inverse);
                    CHECK(test_get(&g[i], k) == test_get(&rounded, 0), "%s: %g / %g is %g", hs_dtype_name(dtype),
                          test_get(&before[i], k), scales[s], test_get(&g[i], k));
                }
            test_release();
        }
}

/* It counts as a gradient that is not finite, except beside no gradients at all. */
TEST(scaler_unusable_scale) {
    const double scales[] = {0, -2, INFINITY, -INFINITY, NAN};
    for (int dtype = HS_F32; dtype <= HS_BF16; dtype++)
        for (int s = 0; s < 5; s++) {
            hs_tensor g[2] = {gradient(dtype, 0, 1), gradient(dtype, 65, 1)};
            const hs_tensor before = test_copy(&g[1]), scale = one(scales[s]);
            CHECK(found(g, 2, &scale, 0) == 1, "a scale of %g was used", scales[s]);
            CHECK(memcmp(g[1].data, before.data, (size_t)(65 * hs_dtype_size(dtype))) == 0, "gradients were written");
            CHECK(found(g, 1, &scale, 0) == 0, "an empty gradient holds an infinity");
            test_release();
        }
}

/* Ranges of the threads begin and end inside tensors; the one infinity is in the last range. */
TEST(scaler_threads) {
    hs_tensor g[3] = {gradient(HS_F16, 1000, 1), gradient(HS_BF16, 150001, 1), gradient(HS_F32, 3, 1)};
    CHECK(found(g, 3, NULL, 0) == 0, "finite gradients were refused");
    test_put(&g[1], 150000, INFINITY);
    CHECK(found(g, 3, NULL, 0) == 1, "the infinity was not found");
}

typedef struct {
    double scale, found_inf, min, max;
    int tracker, interval;
    double scale_after;
    int tracker_after;
} update_case;

TEST(scaler_update) {
    const double none = INFINITY;
    const update_case cases[] = {
        {1024, 0, 0, none, 0, 3, 1024, 1},       {1024, 0, 0, none, 1, 3, 1024, 2},
        {1024, 0, 0, none, 2, 3, 2048, 0},       {1024, 0, 0, none, 0, 1, 2048, 0},
        {1024, 0, 0, none, 9, 3, 2048, 0},       {1024, 1, 0, none, 2, 3, 512, 0},
        {1024, 2, 0, none, 0, 3, 512, 0},        {1024, 1, 700, none, 2, 3, 700, 0},
        {1024, 1, 1024, 2048, 2, 3, 1024, 0},    {1024, 0, 0, 1500, 2, 3, 1500, 0},
        {0x1p127, 0, 0, none, 2, 3, 0x1p127, 0}, {0x1p127, 0, 0, 0x1.8p127, 2, 3, 0x1.8p127, 0},
        {NAN, 1, 4, none, 2, 3, 4, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const update_case *c = &cases[i];
        hs_scaler_update_args args = {.scale = one(c->scale),
                                      .growth_tracker = test_vector(HS_I32, 1),
                                      .found_inf = one(c->found_inf),
                                      .growth_factor = 2,
                                      .backoff_factor = 0.5,
                                      .growth_interval = c->interval,
                                      .min_scale = c->min,
                                      .max_scale = c->max};
        test_put(&args.growth_tracker, 0, c->tracker);
        CHECK(hs_scaler_update(&ctx, &args) == HS_OK, "%s", hs_error());
        CHECK(test_get(&args.scale, 0) == c->scale_after, "case %d: scale is %g", (int)i, test_get(&args.scale, 0));
        CHECK(test_get(&args.growth_tracker, 0) == c->tracker_after, "case %d: growth_tracker is %g", (int)i,
              test_get(&args.growth_tracker, 0));
        CHECK(test_get(&args.found_inf, 0) == c->found_inf, "case %d: found_inf was written", (int)i);
        test_release();
    }
}

static void refuse_update(const hs_scaler_update_args *args, hs_status status, const char *message) {
    CHECK(hs_scaler_update(&ctx, args) == status && strcmp(hs_error(), message) == 0, "expected \"%s\", got \"%s\"",
          message, hs_error());
    CHECK(test_get(&args->scale, 0) == 8, "the scale was written");
}

TEST(scaler_refused_update) {
    const hs_scaler_update_args good = {.scale = one(8),
                                        .growth_tracker = test_vector(HS_I32, 1),
                                        .found_inf = one(1),
                                        .growth_factor = 2,
                                        .backoff_factor = 0.5,
                                        .growth_interval = 1,
                                        .max_scale = INFINITY};
    hs_scaler_update_args bad;
#define BAD(field, value, status, message)                                                                             \
    do {                                                                                                               \
        bad = good;                                                                                                    \
        bad.field = value;                                                                                             \
        refuse_update(&bad, status, "scaler: " message);                                                               \
    } while (0)
    BAD(growth_factor, 1, HS_BAD_VALUE, "growth_factor is 1, expected a finite value above 1");
    BAD(growth_factor, NAN, HS_BAD_VALUE, "growth_factor is nan, expected a finite value above 1");
    BAD(growth_factor, INFINITY, HS_BAD_VALUE, "growth_factor is inf, expected a finite value above 1");
    BAD(backoff_factor, 1, HS_BAD_VALUE, "backoff_factor is 1, expected a value between 0 and 1");
    BAD(backoff_factor, -2, HS_BAD_VALUE, "backoff_factor is -2, expected a value between 0 and 1");
    BAD(growth_interval, 0, HS_BAD_VALUE, "growth_interval is 0, expected 1 to 2147483647");
    BAD(growth_interval, INT64_C(1) << 31, HS_BAD_VALUE, "growth_interval is 2147483648, expected 1 to 2147483647");
    BAD(min_scale, -1, HS_BAD_VALUE, "min_scale is -1, expected a finite float32 of 0 or more");
    BAD(min_scale, 0x1p128, HS_BAD_VALUE, "min_scale is 3.40282e+38, expected a finite float32 of 0 or more");
    BAD(max_scale, -1, HS_BAD_VALUE, "max_scale is -1, expected 0 (min_scale) or more");
    BAD(max_scale, NAN, HS_BAD_VALUE, "max_scale is nan, expected 0 (min_scale) or more");
    BAD(growth_tracker.dtype, HS_F32, HS_BAD_TYPE, "growth_tracker is float32, expected int32");
    BAD(found_inf.dtype, HS_NONE, HS_BAD_TYPE, "found_inf is none, expected float32");
    BAD(found_inf, test_vector(HS_F32, 2), HS_BAD_VALUE, "found_inf has 2 elements, the expected number is 1");
#undef BAD
}

TEST(scaler_refused_check) {
    hs_tensor g[3] = {gradient(HS_F16, 4, 1), gradient(HS_F32, 4, 1), gradient(HS_F32, 4, 1)};
    test_put(&g[0], 0, INFINITY);
    g[1].dtype = HS_I32;
    const hs_scaler_check_args args = {.g = {g, 3}, .found_inf = one(0)};
    CHECK(hs_scaler_check(&ctx, &args) == HS_BAD_TYPE &&
              strcmp(hs_error(), "scaler: grad[1] is int32, expected float32, float16 or bfloat16") == 0,
          "%s", hs_error());
    g[1].dtype = HS_F32;
    g[2].stride[0] = 2;
    CHECK(hs_scaler_check(&ctx, &args) == HS_BAD_VALUE && strcmp(hs_error(), "scaler: grad[2] is not contiguous") == 0,
          "%s", hs_error());
    CHECK(test_get(&args.found_inf, 0) == 0, "found_inf was written");
}
