/* dropout.c - dropout on the CPU: one vector of Philox counters at a time, each giving four elements. */
#include "../ops/dropout.h"

#include <math.h>

#include "../base/threads.h"
#include "simd.h"

/* One counter per 64-bit lane; only the low half of a word is significant between the rounds. */
enum { COUNTERS = HS_LANES / 2, STRETCH = 4 * COUNTERS /* elements of one vector of counters */ };
typedef uint64_t counters __attribute__((vector_size(8 * COUNTERS)));

/* The product of the low halves. */
HS_INLINE counters multiply(counters a, uint32_t b) {
#if defined __AVX512F__
    return (counters)_mm512_mul_epu32((__m512i)a, _mm512_set1_epi64(b));
#elif defined __AVX2__
    return (counters)_mm256_mul_epu32((__m256i)a, _mm256_set1_epi64x(b));
#elif defined __x86_64__
    return (counters)_mm_mul_epu32((__m128i)a, _mm_set1_epi64x(b));
#else
    return (a & 0xffffffffu) * (uint64_t)b;
#endif
}

/* hs_philox (base/philox.h) of the counters {offset, first}, {offset, first + 1}, ...: the words of STRETCH elements,
 * in order. */
HS_INLINE void philox_words(uint64_t seed, uint64_t offset, uint64_t first, uint32_t words[STRETCH]) {
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    counters c0, c1, c2, c3;
    for (int i = 0; i < COUNTERS; i++) c0[i] = first + (uint64_t)i;
    c1 = c0 >> 32;
    c2 = (counters){0} + (uint32_t)offset;
    c3 = (counters){0} + (offset >> 32);
    for (int round = 0; round < 10; round++) {
        const counters p0 = multiply(c0, 0xD2511F53u), p1 = multiply(c2, 0xCD9E8D57u);
        c0 = (p1 >> 32) ^ c1 ^ (uint64_t)k0;
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ (uint64_t)k1;
        c3 = p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    const counters low = (c0 & 0xffffffffu) | c1 << 32, high = (c2 & 0xffffffffu) | c3 << 32;
    for (int i = 0; i < COUNTERS; i++) {
        const uint64_t pair[2] = {low[i], high[i]};
        for (int j = 0; j < 2; j++) {
            words[4 * i + 2 * j] = (uint32_t)pair[j];
            words[4 * i + 2 * j + 1] = (uint32_t)(pair[j] >> 32);
        }
    }
}

typedef struct {
    const hs_dropout_args *args;
    uint64_t seed, offset;
    uint64_t threshold; /* in [0, 2^32]: a word below it drops the element */
    int64_t n;
    float scale;
} job;

HS_INLINE void drop_range(const job *j, int64_t begin, int64_t end, int T) {
    const uint32_t last_dropped = (uint32_t)(j->threshold - 1);
    for (int64_t at = begin; at < end; at += STRETCH) {
        uint32_t words[STRETCH];
        philox_words(j->seed, j->offset, (uint64_t)at / 4, words);
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        hs_vu word;                                                                                                    \
        memcpy(&word, words + (i), sizeof word);                                                                       \
        const hs_vi dropped = (hs_vi)(word <= last_dropped);                                                           \
        const hs_vf x = hs_load(T, j->args->x.data, at + (i), count);                                                  \
        hs_store(T, j->args->y.data, at + (i), hs_select(dropped, (hs_vf){0}, x * j->scale), count);                   \
    } while (0)
        HS_EACH(end - at < STRETCH ? end - at : STRETCH, STEP);
#undef STEP
    }
}

static void drop_stretches(void *argument, int64_t begin, int64_t end) {
    const job *j = argument;
    begin *= STRETCH;
    end = end * STRETCH < j->n ? end * STRETCH : j->n;
    switch (j->args->x.dtype) {
    case HS_F32:
        drop_range(j, begin, end, HS_F32);
        break;
    case HS_F16:
        drop_range(j, begin, end, HS_F16);
        break;
    default:
        drop_range(j, begin, end, HS_BF16);
    }
}

static void scale_nothing(void *argument, int64_t begin, int64_t end) {
    const job *j = argument;
    const int64_t size = hs_dtype_size(j->args->x.dtype);
    memmove((char *)j->args->y.data + begin * size, (const char *)j->args->x.data + begin * size,
            (uint64_t)((end - begin) * size));
}

hs_status HS_CPU(hs_dropout)(const hs_ctx *ctx, const hs_dropout_args *args) {
    (void)ctx;
    const int64_t *state = hs_present(&args->state) ? args->state.data : NULL;
    job j = {.args = args, .n = hs_numel(&args->x)};
    j.seed = (uint64_t)(state ? state[0] : args->seed);
    j.offset = (uint64_t)(state ? state[1] : args->offset);
    j.threshold = (uint64_t)ceil(args->p * 0x1p32);
    j.scale = j.threshold < 1ull << 32 ? (float)(1 / (1 - args->p)) : 0;
    if (j.threshold == 0)
        hs_parallel_for(j.n, 1 << 16, scale_nothing, &j);
    else
        hs_parallel_for((j.n + STRETCH - 1) / STRETCH, 4096 / STRETCH, drop_stretches, &j);
    return HS_OK;
}
