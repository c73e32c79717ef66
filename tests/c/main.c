/* main.c - runs every registered test, or those whose name contains the first argument. */
#include <stdarg.h>
#include <stdlib.h>

#include "../../kernels/cpu/isa.h"
#include "check.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) ((void)(address), (void)(size))
#endif

enum { MAX_TESTS = 512, MAX_BLOCKS = 1 << 16, MARGIN = 256, POISON = 0xA5 };

static struct {
    const char *file, *name;
    void (*function)(void);
} tests[MAX_TESTS];
static int test_count;

static struct {
    unsigned char *memory; /* margin, bytes, margin */
    int64_t bytes;
} blocks[MAX_BLOCKS];
static int block_count;

static int failures; /* of the running test */
static uint64_t random_state;

const int64_t test_sizes[] = {0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 100, 129};
const int test_size_count = sizeof test_sizes / sizeof *test_sizes;
const int test_float_dtypes[3] = {HS_F32, HS_F16, HS_BF16};

void test_register(const char *file, const char *name, void (*function)(void)) {
    if (test_count == MAX_TESTS) abort();
    tests[test_count].file = file;
    tests[test_count].name = name;
    tests[test_count++].function = function;
}

void test_fail(const char *file, int line, const char *condition, const char *format, ...) {
    if (++failures > 5) return;
    va_list arguments;
    va_start(arguments, format);
    printf("%s:%d: %s: ", file, line, condition);
    vprintf(format, arguments);
    printf("\n");
    va_end(arguments);
}

void *test_memory(int64_t bytes) {
    if (block_count == MAX_BLOCKS) abort();
    unsigned char *memory = aligned_alloc(256, (size_t)((bytes + 2 * MARGIN + 255) / 256 * 256));
    if (!memory) abort();
    memset(memory, POISON, (size_t)(bytes + 2 * MARGIN));
    ASAN_POISON_MEMORY_REGION(memory, MARGIN);
    ASAN_POISON_MEMORY_REGION(memory + MARGIN + bytes, MARGIN);
    blocks[block_count].memory = memory;
    blocks[block_count++].bytes = bytes;
    return memory + MARGIN;
}

void test_release(void) {
    for (int i = 0; i < block_count; i++) {
        unsigned char *memory = blocks[i].memory;
        const int64_t bytes = blocks[i].bytes;
        ASAN_UNPOISON_MEMORY_REGION(memory, MARGIN);
        ASAN_UNPOISON_MEMORY_REGION(memory + MARGIN + bytes, MARGIN);
        for (int64_t j = 0; j < MARGIN; j++) {
            CHECK(memory[j] == POISON, "byte %lld before a block of %lld was written", (long long)(MARGIN - j),
                  (long long)bytes);
            CHECK(memory[MARGIN + bytes + j] == POISON, "byte %lld past a block of %lld was written", (long long)j,
                  (long long)bytes);
        }
        free(memory);
    }
    block_count = 0;
}

hs_ctx test_ctx(int64_t workspace_bytes) {
    return (hs_ctx){.workspace = test_memory(workspace_bytes), .workspace_bytes = workspace_bytes};
}

hs_tensor test_matrix(int dtype, int64_t rows, int64_t cols) {
    hs_tensor t = {.shape = {rows, cols}, .stride = {cols, 1}, .ndim = 2, .dtype = dtype};
    t.data = test_memory(rows * cols * hs_dtype_size(dtype));
    return t;
}

hs_tensor test_vector(int dtype, int64_t n) {
    hs_tensor t = {.shape = {n}, .stride = {1}, .ndim = 1, .dtype = dtype};
    t.data = test_memory(n * hs_dtype_size(dtype));
    return t;
}

hs_tensor test_copy(const hs_tensor *t) {
    const int64_t bytes = hs_numel(t) * hs_dtype_size(t->dtype);
    hs_tensor copy = *t;
    copy.data = test_memory(bytes);
    memcpy(copy.data, t->data, (size_t)bytes);
    return copy;
}

double test_get(const hs_tensor *t, int64_t i) {
    switch (t->dtype) {
    case HS_F32:
        return ((const float *)t->data)[i];
    case HS_F16:
        return hs_f16_to_f32(((const uint16_t *)t->data)[i]);
    case HS_BF16:
        return hs_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case HS_I64:
        return (double)((const int64_t *)t->data)[i];
    case HS_I32:
        return ((const int32_t *)t->data)[i];
    default:
        abort();
    }
}

void test_put(const hs_tensor *t, int64_t i, double value) {
    switch (t->dtype) {
    case HS_F32:
        ((float *)t->data)[i] = (float)value;
        return;
    case HS_F16:
        ((uint16_t *)t->data)[i] = hs_f32_to_f16((float)value);
        return;
    case HS_BF16:
        ((uint16_t *)t->data)[i] = hs_f32_to_bf16((float)value);
        return;
    case HS_I64:
        ((int64_t *)t->data)[i] = (int64_t)value;
        return;
    case HS_I32:
        ((int32_t *)t->data)[i] = (int32_t)value;
        return;
    default:
        abort();
    }
}

void test_seed(uint64_t seed) {
    random_state = seed;
}
double test_uniform(void) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(random_state >> 11) * 0x1p-52 - 1;
}
double test_normal(void) {
    double sum = 0; /* of twelve uniform variables of variance 1/3, so 1/2 brings it to one */
    for (int i = 0; i < 12; i++) sum += test_uniform();
    return sum / 2;
}
void test_fill(const hs_tensor *t, double mean, double deviation) {
    for (int64_t i = 0; i < hs_numel(t); i++) test_put(t, i, mean + deviation * test_normal());
}

double test_largest(const double *values, int64_t n) {
    double largest = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(values[i]));
    return largest;
}

int64_t test_first_wrong(const hs_tensor *t, const double *expected, double magnitude, double ulps) {
    const double half_ulp = t->dtype == HS_F16 ? 0x1p-11 : t->dtype == HS_BF16 ? 0x1p-8 : 0x1p-24;
    const double half_step = t->dtype == HS_F16 ? 0x1p-25 : 0x1p-134; /* between subnormal numbers */
    const double largest = t->dtype == HS_F16 ? 65520 : t->dtype == HS_BF16 ? 0x1.FFp127 : 0x1.FFFFFFp127;
    for (int64_t i = 0; i < hs_numel(t); i++) {
        const double got = test_get(t, i), want = expected[i];
        if (isnan(want) ? isnan(got) : fabs(want) >= largest ? got == copysign(INFINITY, want) : false) continue;
        if (!(fabs(got - want) <= half_ulp * fabs(want) + half_step + ulps * 0x1p-23 * magnitude)) return i;
    }
    return -1;
}

int main(int argc, char **argv) {
    int passed = 0, failed = 0;
    for (int i = 0; i < test_count; i++) {
        if (argc > 1 && !strstr(tests[i].name, argv[1])) continue;
        failures = 0;
        test_seed(1);
        tests[i].function();
        test_release();
        if (failures) printf("FAILED %s: %s, %d checks\n", tests[i].file, tests[i].name, failures);
        failures ? failed++ : passed++;
    }
    printf("%s: %d passed, %d failed\n", hs_cpu_isa(), passed, failed);
    return failed != 0 || passed == 0;
}
