#include "../../kernels/base/philox.h"
#include "../../kernels/base/threads.h"
#include "check.h"

static double f16_value(int bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                        : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                       : ldexp(fraction, -24);
    return bits & 0x8000 ? -size : size;
}

TEST(half_every_value) {
    for (int bits = 0; bits < 65536; bits++) {
        const double want = f16_value(bits), got = hs_f16_to_f32((uint16_t)bits);
        CHECK(isnan(want) ? isnan(got) : got == want && signbit(got) == signbit(want), "%04x: %g", bits, got);
        const int back = hs_f32_to_f16((float)got), as_bf16 = hs_f32_to_bf16(hs_bf16_to_f32((uint16_t)bits));
        CHECK(isnan(want) ? isnan(f16_value(back)) : back == bits, "%04x became %04x", bits, back);
        const bool is_nan = (bits & 0x7fff) > 0x7f80;
        CHECK(as_bf16 == (is_nan ? bits | 0x40 : bits), "bfloat16 %04x became %04x", bits, as_bf16);
    }
}

TEST(half_rounds_to_nearest_even) {
    for (int bits = 0; bits < 0x7c00; bits++) {
        const double low = f16_value(bits), high = bits == 0x7bff ? 65536 : f16_value(bits + 1),
                     middle = (low + high) / 2;
        const int even = bits & 1 ? bits + 1 : bits;
        CHECK(hs_f32_to_f16((float)middle) == even, "%04x: the middle above it", bits);
        CHECK(hs_f32_to_f16(nextafterf((float)middle, 0)) == bits, "%04x: just below the middle", bits);
        CHECK(hs_f32_to_f16(nextafterf((float)middle, INFINITY)) == bits + 1, "%04x: just above the middle", bits);
    }
    CHECK(hs_f32_to_bf16(hs_float_of_bits(0x3f808000)) == 0x3f80, "the middle above an even number");
    CHECK(hs_f32_to_bf16(hs_float_of_bits(0x3f818000)) == 0x3f82, "the middle above an odd number");
    CHECK(hs_f32_to_bf16(hs_float_of_bits(0x7f7fffff)) == 0x7f80, "the largest float32 becomes infinity");
    CHECK(hs_f32_to_bf16(hs_float_of_bits(0x7f800001)) == 0x7fc0, "a NaN with low bits only stays a NaN");
}

/* The answers published with Random123. */
TEST(philox_known_answers) {
    const uint32_t zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    const hs_philox_words a = hs_philox(0, 0, 0), b = hs_philox(UINT64_MAX, UINT64_MAX, UINT64_MAX);
    CHECK(memcmp(a.word, zeros, sizeof zeros) == 0, "%08x", a.word[0]);
    CHECK(memcmp(b.word, ones, sizeof ones) == 0, "%08x", b.word[0]);
}

typedef struct {
    int64_t count;
    unsigned char *visits;
} visited;
static void visit(void *argument, int64_t begin, int64_t end) {
    visited *v = argument;
    for (int64_t i = begin; i < end && i < v->count; i++) v->visits[i]++;
}
static void visit_nested(void *argument, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; i++) {
        visited *v = (visited *)argument + i;
        hs_parallel_for(v->count, 1, visit, v);
    }
}

TEST(threads_cover_every_index_once) {
    const int threads = hs_thread_count();
    const int64_t counts[] = {0, 1, 2, 3, 7, 64, 1000}, grains[] = {-1, 0, 1, 3, 64, 5000};
    for (int t = 1; t <= 5; t += 2) {
        hs_thread_count_set(t);
        for (int i = 0; i < 7; i++)
            for (int j = 0; j < 6; j++) {
                visited v = {counts[i], test_memory(counts[i])};
                memset(v.visits, 0, (size_t)v.count);
                hs_parallel_for(v.count, grains[j], visit, &v);
                for (int64_t k = 0; k < v.count; k++)
                    CHECK(v.visits[k] == 1, "index %lld of %lld, grain %lld", (long long)k, (long long)v.count,
                          (long long)grains[j]);
                const int64_t step = hs_parallel_step(v.count, grains[j]),
                              ranges = hs_parallel_ranges(v.count, grains[j]);
                CHECK(ranges * step >= v.count && (ranges - 1) * step < v.count + (v.count == 0), "%lld ranges of %lld",
                      (long long)ranges, (long long)step);
            }
    }
    visited inner[8];
    for (int i = 0; i < 8; i++) {
        inner[i] = (visited){100, test_memory(100)};
        memset(inner[i].visits, 0, 100);
    }
    hs_parallel_for(8, 1, visit_nested, inner);
    for (int i = 0; i < 8; i++)
        for (int k = 0; k < 100; k++) CHECK(inner[i].visits[k] == 1, "loop %d inside a loop, index %d", i, k);
    hs_thread_count_set(threads);
}

TEST(status_keeps_the_sentence) {
    CHECK(hs_fail(HS_BAD_TYPE, "op: %s is %d", "x", 3) == HS_BAD_TYPE, "the code comes back");
    CHECK(strcmp(hs_error(), "op: x is 3") == 0, "%s", hs_error());
    char long_name[1000];
    memset(long_name, 'n', sizeof long_name);
    long_name[sizeof long_name - 1] = 0;
    hs_fail(HS_FAILURE, "%s", long_name);
    CHECK(strlen(hs_error()) < sizeof long_name && hs_error()[0] == 'n', "a long sentence is cut");
}

TEST(tensor_contiguous) {
    hs_tensor t = test_matrix(HS_F32, 3, 4);
    CHECK(hs_is_contiguous(&t), "rows in a row");
    t.stride[0] = 0;
    CHECK(!hs_is_contiguous(&t), "an expanded row");
    t.shape[0] = 1;
    CHECK(hs_is_contiguous(&t), "one row has any stride");
    t.shape[1] = 0;
    t.stride[1] = 7;
    CHECK(hs_is_contiguous(&t) && hs_numel(&t) == 0, "nothing is contiguous");
}
