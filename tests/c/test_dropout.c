#include "../../kernels/base/philox.h"
#include "../../kernels/ops/dropout.h"
#include "check.h"

static void check_mask(int dtype, int64_t n, double p, int64_t seed, int64_t offset, bool from_state) {
    const hs_ctx ctx = test_ctx(0);
    hs_dropout_args a = {.x = test_vector(dtype, n), .y = test_vector(dtype, n), .p = p};
    double *want = test_memory(n * 8);
    test_fill(&a.x, 0, 1);
    if (from_state) {
        a.state = test_vector(HS_I64, 2);
        ((int64_t *)a.state.data)[0] = seed;
        ((int64_t *)a.state.data)[1] = offset;
    } else {
        a.seed = seed;
        a.offset = offset;
    }
    for (int64_t i = 0; i < n; i++) {
        const uint32_t u = hs_philox((uint64_t)seed, (uint64_t)offset, (uint64_t)i / 4).word[i % 4];
        want[i] = u >= p * 4294967296.0 ? test_get(&a.x, i) / (1 - p) : 0;
    }
    CHECK(hs_dropout(&ctx, &a) == HS_OK, "%s", hs_error());
    CHECK_CLOSE(&a.y, want, test_largest(want, n), 1);
    a.y = a.x;
    CHECK(hs_dropout(&ctx, &a) == HS_OK, "%s", hs_error());
    CHECK_CLOSE(&a.y, want, test_largest(want, n), 1);
}

TEST(dropout_masks_are_philox) {
    const double probabilities[] = {0, 0x1p-32, 0.1, 0.5, 1 - 0x1p-32, 1};
    for (int d = 0; d < 3; d++)
        for (int s = 0; s < test_size_count; s++)
            for (int p = 0; p < 6; p++)
                check_mask(test_float_dtypes[d], test_sizes[s], probabilities[p], 1234567890123 + s, 77, s % 2);
    check_mask(HS_F32, 100003, 0.3, -1, INT64_MIN, true);
    check_mask(HS_BF16, 100003, 0.7, INT64_MAX, -3, false);
}

TEST(dropout_drops_a_nan) {
    const hs_ctx ctx = test_ctx(0);
    hs_dropout_args a = {.x = test_vector(HS_F32, 64), .y = test_vector(HS_F32, 64), .p = 1};
    for (int i = 0; i < 64; i++) test_put(&a.x, i, i % 2 ? NAN : INFINITY);
    CHECK(hs_dropout(&ctx, &a) == HS_OK, "%s", hs_error());
    for (int i = 0; i < 64; i++) CHECK(test_get(&a.y, i) == 0, "element %d is %g", i, test_get(&a.y, i));
}

TEST(dropout_refuses) {
    const hs_ctx ctx = test_ctx(0);
    const hs_dropout_args good = {.x = test_vector(HS_F32, 4), .y = test_vector(HS_F32, 4), .p = 0.5};
    hs_dropout_args a = good;
    a.p = NAN;
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "dropout: p is"), "%s", hs_error());
    a.p = 1.5;
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "1.5"), "%s", hs_error());
    a = good;
    a.y = test_vector(HS_F16, 4);
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_TYPE, "%s", hs_error());
    a = good;
    a.y = test_vector(HS_F32, 3);
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_VALUE, "%s", hs_error());
    a = good;
    a.state = test_vector(HS_I64, 3);
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_VALUE && strstr(hs_error(), "state has 3"), "%s", hs_error());
    a.state = test_vector(HS_I32, 2);
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_TYPE, "%s", hs_error());
    a = good;
    a.x = test_vector(HS_I64, 4);
    CHECK(hs_dropout(&ctx, &a) == HS_BAD_TYPE, "%s", hs_error());
}
