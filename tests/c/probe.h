/* probe.h - what simd_probe.c exports, with the instruction set that the process uses picked by name. */
#ifndef HS_TESTS_PROBE_H
#define HS_TESTS_PROBE_H
#include <stdint.h>

enum { PROBE_EXP, PROBE_SIGMOID, PROBE_SIGMOID_REST, PROBE_NORMAL_CDF, PROBE_GAUSS, PROBE_COUNT };

#define PROBE_DECLARE(isa)                                                                                             \
    void probe_math_cpu_##isa(int function, const float *x, float *y, int64_t n);                                      \
    void probe_convert_cpu_##isa(int from, const void *x, int to, void *y, int64_t n);                                 \
    float probe_sum_cpu_##isa(const float *x, int64_t n); /* of x + 1 */
PROBE_DECLARE(base)
PROBE_DECLARE(avx2)
PROBE_DECLARE(avx512)
#ifdef __x86_64__
#define PROBE(name)                                                                                                    \
    (hs_cpu_isa()[0] == 'b' ? name##_cpu_base : strcmp(hs_cpu_isa(), "avx2") == 0 ? name##_cpu_avx2 : name##_cpu_avx512)
#else
#define PROBE(name) name##_cpu_base
#endif
#endif
