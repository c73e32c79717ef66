/* check.h - all there is to the C tests: TEST, CHECK, and tensors between poisoned margins.
 *
 *     TEST(norm_of_nothing) { ... CHECK(hs_norm_forward(&ctx, &a) == HS_OK, "%s", hs_error()); }
 *
 * Tensors made by a test are checked and freed when it ends. Under AddressSanitizer the margins cannot even be read
 * while the test runs. */
#ifndef HS_TESTS_CHECK_H
#define HS_TESTS_CHECK_H
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../kernels/base/half.h"
#include "../../kernels/base/status.h"
#include "../../kernels/base/tensor.h"

#define TEST(name)                                                                                                     \
    static void name(void);                                                                                            \
    __attribute__((constructor)) static void register_##name(void) {                                                   \
        test_register(__FILE__, #name, name);                                                                          \
    }                                                                                                                  \
    static void name(void)

#define CHECK(condition, ...)                                                                                          \
    do {                                                                                                               \
        if (!(condition)) test_fail(__FILE__, __LINE__, #condition, __VA_ARGS__);                                      \
    } while (0)

void test_register(const char *file, const char *name, void (*function)(void));
__attribute__((format(printf, 4, 5))) void test_fail(const char *file, int line, const char *condition,
                                                     const char *format, ...);

/* The CPU, with a workspace of exactly that size. */
hs_ctx test_ctx(int64_t workspace_bytes);

/* A contiguous tensor full of 0xA5; test_vector has one axis. */
hs_tensor test_matrix(int dtype, int64_t rows, int64_t cols);
hs_tensor test_vector(int dtype, int64_t n);
hs_tensor test_copy(const hs_tensor *t);
double test_get(const hs_tensor *t, int64_t i);
void test_put(const hs_tensor *t, int64_t i, double value);

/* The same numbers on every run: uniform in [-1, 1), and normal. */
void test_seed(uint64_t seed);
double test_uniform(void);
double test_normal(void);
void test_fill(const hs_tensor *t, double mean, double deviation);

/* Element by element |t - expected| <= half a unit in the last place of t's dtype + ulps float32 units of magnitude.
 * A NaN must meet a NaN and an infinity the same infinity. Returns the first element that is off, or -1. */
int64_t test_first_wrong(const hs_tensor *t, const double *expected, double magnitude, double ulps);
#define CHECK_CLOSE(t, expected, magnitude, ulps)                                                                      \
    do {                                                                                                               \
        const int64_t wrong = test_first_wrong(t, expected, magnitude, ulps);                                          \
        CHECK(wrong < 0, "%s element %lld of %lld: %.9g, expected %.9g", hs_dtype_name((t)->dtype), (long long)wrong,  \
              (long long)hs_numel(t), test_get(t, wrong), (expected)[wrong]);                                          \
    } while (0)

/* Sizes at the edges of every vector width that the kernels have. */
extern const int64_t test_sizes[];
extern const int test_size_count;
extern const int test_float_dtypes[3];

/* The largest magnitude in an array. */
double test_largest(const double *values, int64_t n);
/* Memory that lives as long as the test. */
void *test_memory(int64_t bytes);
/* Checks and frees it before the test ends, for tests of thousands of cases. */
void test_release(void);
#endif
