/* A cuBLASLt that multiplies on the CPU and checks what it is told: sizes, leading dimensions, types, pointers. It
 * knows float32 and bfloat16, and refuses what a test tells it to refuse. */
#ifndef FAKE_CUBLASLT_H
#define FAKE_CUBLASLT_H
#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/base/cublaslt.h"
#include "fake_cuda/cuda_runtime_api.h"

struct hs_lt_desc_opaque {
    unsigned compute, epilogue;
    int32_t op_a, op_b, bias_type;
    void *bias, *aux;
    int64_t aux_ld;
};
struct hs_lt_layout_opaque {
    unsigned type;
    uint64_t rows, cols;
    int64_t ld;
};
struct hs_lt_pref_opaque {
    uint64_t workspace;
    uint32_t value[9];
};

enum { FAKE_CANDIDATES = 4 };

static struct {
    unsigned refused[8];        /* epilogues without a candidate */
    unsigned refused_at_launch; /* an epilogue with candidates that do not run */
    int fastest;                /* this candidate takes 1 ms, the others 2 */
    int asked, launched, last_algo;
    unsigned last_epilogue, last_compute;
    uint32_t align_a, align_b, align_d;
    uint64_t workspace;
    int alive; /* descriptions */
} fake_lt;

static double element(const void *data, int64_t i, unsigned type) {
    if (type == HS_LT_R_32F) return ((const float *)data)[i];
    assert(type == HS_LT_R_16BF);
    const uint32_t bits = (uint32_t)((const uint16_t *)data)[i] << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static void set_element(void *data, int64_t i, unsigned type, double v) {
    const float f = (float)v;
    if (type == HS_LT_R_32F) {
        ((float *)data)[i] = f;
        return;
    }
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    ((uint16_t *)data)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static double gelu_tanh(double z) {
    return z / 2 * (1 + tanh(sqrt(2 / acos(-1)) * (z + 0.044715 * z * z * z)));
}

static hs_lt_status fake_create(hs_lt_handle *handle) {
    assert(fake_cuda.mode == cudaStreamCaptureModeRelaxed);
    *handle = (hs_lt_handle)&fake_lt;
    return HS_LT_STATUS_SUCCESS;
}
static const char *fake_status_text(hs_lt_status status) {
    return status == HS_LT_STATUS_NOT_SUPPORTED ? "not supported" : "something else";
}
static hs_lt_status fake_desc_create(hs_lt_desc *desc, hs_lt_compute_type compute, hs_lt_element_type scale) {
    assert(scale == HS_LT_R_32F);
    fake_lt.alive++;
    *desc = calloc(1, sizeof **desc);
    **desc = (struct hs_lt_desc_opaque){.compute = compute, .epilogue = HS_LT_EPILOGUE_DEFAULT, .bias_type = -1};
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_desc_destroy(hs_lt_desc desc) {
    fake_lt.alive--;
    free(desc);
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_desc_set(hs_lt_desc d, hs_lt_desc_attribute attribute, const void *value, size_t bytes) {
    switch (attribute) {
    case HS_LT_DESC_TRANSA:
        assert(bytes == sizeof d->op_a);
        memcpy(&d->op_a, value, bytes);
        break;
    case HS_LT_DESC_TRANSB:
        assert(bytes == sizeof d->op_b);
        memcpy(&d->op_b, value, bytes);
        break;
    case HS_LT_DESC_EPILOGUE:
        assert(bytes == sizeof d->epilogue);
        memcpy(&d->epilogue, value, bytes);
        break;
    case HS_LT_DESC_BIAS_POINTER:
        assert(bytes == sizeof d->bias);
        memcpy(&d->bias, value, bytes);
        break;
    case HS_LT_DESC_EPILOGUE_AUX_POINTER:
        assert(bytes == sizeof d->aux);
        memcpy(&d->aux, value, bytes);
        break;
    case HS_LT_DESC_EPILOGUE_AUX_LD:
        assert(bytes == sizeof d->aux_ld);
        memcpy(&d->aux_ld, value, bytes);
        break;
    case HS_LT_DESC_BIAS_DATA_TYPE:
        assert(bytes == sizeof d->bias_type);
        memcpy(&d->bias_type, value, bytes);
        break;
    default:
        assert(!"an attribute that the fake does not know");
    }
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_layout_create(hs_lt_layout *layout, hs_lt_element_type type, uint64_t rows, uint64_t cols,
                                       int64_t ld) {
    assert(rows > 0 && cols > 0 && (uint64_t)ld == rows);
    fake_lt.alive++;
    *layout = malloc(sizeof **layout);
    **layout = (struct hs_lt_layout_opaque){type, rows, cols, ld};
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_layout_destroy(hs_lt_layout layout) {
    fake_lt.alive--;
    free(layout);
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_pref_create(hs_lt_pref *pref) {
    *pref = calloc(1, sizeof **pref);
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_pref_destroy(hs_lt_pref pref) {
    free(pref);
    return HS_LT_STATUS_SUCCESS;
}
static hs_lt_status fake_pref_set(hs_lt_pref p, hs_lt_pref_attribute attribute, const void *value, size_t bytes) {
    assert(bytes == (attribute == HS_LT_PREF_MAX_WORKSPACE_BYTES ? sizeof(uint64_t) : sizeof(uint32_t)));
    memcpy(attribute == HS_LT_PREF_MAX_WORKSPACE_BYTES ? (void *)&p->workspace : &p->value[attribute], value, bytes);
    return HS_LT_STATUS_SUCCESS;
}

static bool has_pointer(unsigned epilogue) {
    return (epilogue & (HS_LT_EPILOGUE_BIAS | HS_LT_EPILOGUE_BGRADB)) != 0;
}

static hs_lt_status fake_heuristic(hs_lt_handle handle, hs_lt_desc desc, hs_lt_layout a, hs_lt_layout b, hs_lt_layout c,
                                   hs_lt_layout d, hs_lt_pref pref, int wanted, hs_lt_candidate *candidates,
                                   int *count) {
    (void)handle;
    assert(c == d && a && b && pref->value[HS_LT_PREF_REDUCTION_SCHEME_MASK] == HS_LT_REDUCTION_SCHEME_COMPUTE_TYPE);
    if (has_pointer(desc->epilogue)) assert(desc->bias && desc->bias_type == (int32_t)d->type);
    fake_lt.asked++;
    fake_lt.align_a = pref->value[HS_LT_PREF_MIN_ALIGNMENT_A_BYTES];
    fake_lt.align_b = pref->value[HS_LT_PREF_MIN_ALIGNMENT_B_BYTES];
    fake_lt.align_d = pref->value[HS_LT_PREF_MIN_ALIGNMENT_D_BYTES];
    assert(fake_lt.align_d == pref->value[HS_LT_PREF_MIN_ALIGNMENT_C_BYTES]);
    fake_lt.workspace = pref->workspace;
    *count = 0;
    for (int i = 0; i < 8; i++)
        if (fake_lt.refused[i] == desc->epilogue) return HS_LT_STATUS_NOT_SUPPORTED;
    for (int i = 0; i < FAKE_CANDIDATES && i < wanted; i++)
        candidates[(*count)++] = (hs_lt_candidate){.algo = {{(uint64_t)i}}, .state = HS_LT_STATUS_SUCCESS};
    return HS_LT_STATUS_SUCCESS;
}

static hs_lt_status fake_matmul(hs_lt_handle handle, hs_lt_desc s, const void *alpha, const void *a, hs_lt_layout la,
                                const void *b, hs_lt_layout lb, const void *beta, const void *c, hs_lt_layout lc,
                                void *d, hs_lt_layout ld, const hs_lt_algo *algo, void *workspace, size_t bytes,
                                hs_lt_cuda_stream stream) {
    (void)handle, (void)stream;
    const int64_t m = (int64_t)ld->rows, n = (int64_t)ld->cols;
    const int64_t k = (int64_t)(s->op_a == HS_LT_OP_T ? la->rows : la->cols);
    const float kept = *(const float *)beta;
    assert(*(const float *)alpha == 1 && (kept == 0 || kept == 1) && c == d && lc == ld && bytes == fake_lt.workspace);
    assert((int64_t)(s->op_a == HS_LT_OP_T ? la->cols : la->rows) == m && la->type == lb->type);
    assert((int64_t)(s->op_b == HS_LT_OP_T ? lb->cols : lb->rows) == k);
    assert((int64_t)(s->op_b == HS_LT_OP_T ? lb->rows : lb->cols) == n);
    memset(workspace, 0xff, 4096); /* any of it may be written; both ends are enough to notice */
    memset((char *)workspace + bytes - 4096, 0xff, 4096);
    if (s->epilogue == fake_lt.refused_at_launch) return HS_LT_STATUS_NOT_SUPPORTED;
    const bool aux = s->epilogue == HS_LT_EPILOGUE_GELU_AUX || s->epilogue == HS_LT_EPILOGUE_GELU_AUX_BIAS;
    if (aux) assert(s->aux && s->aux_ld == m && m % 8 == 0);
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            double z = kept == 0 ? 0 : element(c, i + j * ld->ld, ld->type); /* what d held may be anything */
            for (int64_t l = 0; l < k; l++)
                z += element(a, s->op_a == HS_LT_OP_T ? l + i * la->ld : i + l * la->ld, la->type) *
                     element(b, s->op_b == HS_LT_OP_T ? j + l * lb->ld : l + j * lb->ld, lb->type);
            if (s->epilogue & HS_LT_EPILOGUE_BIAS) z += element(s->bias, i, ld->type);
            if (aux) set_element(s->aux, i + j * s->aux_ld, ld->type, z);
            if (s->epilogue & HS_LT_EPILOGUE_RELU) z = z < 0 ? 0 : z;
            if (s->epilogue & HS_LT_EPILOGUE_GELU) z = gelu_tanh(z);
            set_element(d, i + j * ld->ld, ld->type, z);
        }
        if (s->epilogue == HS_LT_EPILOGUE_BGRADB) {
            double sum = 0;
            for (int64_t l = 0; l < k; l++) sum += element(b, s->op_b ? j + l * lb->ld : l + j * lb->ld, lb->type);
            set_element(s->bias, j, ld->type, sum);
        }
    }
    fake_lt.launched++;
    fake_lt.last_algo = (int)algo->data[0];
    fake_lt.last_epilogue = s->epilogue;
    fake_lt.last_compute = s->compute;
    fake_cuda.last_ms = fake_lt.last_algo == fake_lt.fastest ? 1 : 2;
    return HS_LT_STATUS_SUCCESS;
}

static const hs_cublaslt fake_table = {
    fake_create,         fake_status_text, fake_desc_create,  fake_desc_destroy, fake_desc_set,  fake_layout_create,
    fake_layout_destroy, fake_pref_create, fake_pref_destroy, fake_pref_set,     fake_heuristic, fake_matmul,
};
#endif
