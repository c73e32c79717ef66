/* isa.c - every CPU pass is compiled once per instruction set; here the process picks one and calls it. */
#include "isa.h"

#include <stdlib.h>
#include <string.h>

#include "../ops/act.h"
#include "../ops/adamw.h"
#include "../ops/dropout.h"
#include "../ops/norm.h"
#include "../ops/scaler.h"
#include "../ops/xent.h"

/* What kernels/cpu exports: the result, the name without _cpu, and the argument struct. */
#define HS_CPU_PASSES(PASS)                                                                                            \
    PASS(hs_status, hs_norm_forward, hs_norm_forward_args)                                                             \
    PASS(hs_status, hs_norm_backward, hs_norm_backward_args)                                                           \
    PASS(int64_t, hs_norm_backward_workspace, hs_norm_backward_args)                                                   \
    PASS(hs_status, hs_act_forward, hs_act_forward_args)                                                               \
    PASS(hs_status, hs_act_backward, hs_act_backward_args)                                                             \
    PASS(int64_t, hs_act_backward_workspace, hs_act_backward_args)                                                     \
    PASS(hs_status, hs_dropout, hs_dropout_args)                                                                       \
    PASS(hs_status, hs_xent_forward, hs_xent_forward_args)                                                             \
    PASS(int64_t, hs_xent_forward_workspace, hs_xent_forward_args)                                                     \
    PASS(hs_status, hs_xent_backward, hs_xent_backward_args)                                                           \
    PASS(hs_status, hs_adamw, hs_adamw_args)                                                                           \
    PASS(hs_status, hs_scaler_check, hs_scaler_check_args)                                                             \
    PASS(hs_status, hs_scaler_update, hs_scaler_update_args)

enum { ISA_BASE, ISA_AVX2, ISA_AVX512, ISA_COUNT };
static const char *const isa_names[ISA_COUNT] = {"base", "avx2", "avx512"};
static int isa; /* written before main or at dlopen, read afterwards */

static int isa_of_cpu(void) {
#ifdef __x86_64__
    __builtin_cpu_init();
    const int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const int avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx2 && avx512 ? ISA_AVX512 : avx2 ? ISA_AVX2 : ISA_BASE;
#else
    return ISA_BASE;
#endif
}

__attribute__((constructor)) static void isa_init(void) {
    isa = isa_of_cpu();
    const char *wanted = getenv("HALFSTEP_ISA");
    for (int i = 0; wanted && i < isa; i++)
        if (strcmp(wanted, isa_names[i]) == 0) isa = i;
}

const char *hs_cpu_isa(void) {
    return isa_names[isa];
}

#ifdef __x86_64__
#define HS_CPU_CALL(result, name, arguments)                                                                           \
    result name##_cpu_base(const hs_ctx *, const arguments *);                                                         \
    result name##_cpu_avx2(const hs_ctx *, const arguments *);                                                         \
    result name##_cpu_avx512(const hs_ctx *, const arguments *);                                                       \
    result name##_cpu(const hs_ctx *ctx, const arguments *args) {                                                      \
        switch (isa) {                                                                                                 \
        case ISA_AVX512:                                                                                               \
            return name##_cpu_avx512(ctx, args);                                                                       \
        case ISA_AVX2:                                                                                                 \
            return name##_cpu_avx2(ctx, args);                                                                         \
        default:                                                                                                       \
            return name##_cpu_base(ctx, args);                                                                         \
        }                                                                                                              \
    }
#else
#define HS_CPU_CALL(result, name, arguments)                                                                           \
    result name##_cpu_base(const hs_ctx *, const arguments *);                                                         \
    result name##_cpu(const hs_ctx *ctx, const arguments *args) {                                                      \
        return name##_cpu_base(ctx, args);                                                                             \
    }
#endif
HS_CPU_PASSES(HS_CPU_CALL)
