/* cublaslt.h - what we call of cuBLASLt, in our own words, so that the build needs none of its headers.
 *
 * Names follow the library's: HS_LT_DESC_TRANSA is CUBLASLT_MATMUL_DESC_TRANSA. tests/unit/test_vendor_headers.py
 * compiles this file beside the real header and compares every value, size and function type. Matrices are
 * column-major. */
#ifndef HS_CUBLASLT_H
#define HS_CUBLASLT_H
#include <stddef.h>
#include <stdint.h>

enum { HS_LT_STATUS_SUCCESS = 0, HS_LT_STATUS_ALLOC_FAILED = 3, HS_LT_STATUS_INVALID_VALUE = 7 };
enum { HS_LT_STATUS_NOT_SUPPORTED = 15 };

enum { HS_LT_R_32F = 0, HS_LT_R_16F = 2, HS_LT_R_16BF = 14 }; /* element types */
enum { HS_LT_COMPUTE_32F = 68, HS_LT_COMPUTE_32F_FAST_TF32 = 77 };
enum { HS_LT_OP_N = 0, HS_LT_OP_T = 1 };

enum {
    HS_LT_EPILOGUE_DEFAULT = 1,
    HS_LT_EPILOGUE_RELU = 2,
    HS_LT_EPILOGUE_BIAS = 4,
    HS_LT_EPILOGUE_RELU_BIAS = 6,
    HS_LT_EPILOGUE_GELU = 32, /* the tanh form, here and below */
    HS_LT_EPILOGUE_GELU_BIAS = 36,
    HS_LT_EPILOGUE_GELU_AUX = 160, /* also writes what gelu is given to the auxiliary matrix */
    HS_LT_EPILOGUE_GELU_AUX_BIAS = 164,
    HS_LT_EPILOGUE_BGRADB = 512, /* also writes the sums of B over k, one for each column of D */
};

/* Attributes of a product. */
enum {
    HS_LT_DESC_TRANSA = 3,                /* int32_t */
    HS_LT_DESC_TRANSB = 4,                /* int32_t */
    HS_LT_DESC_EPILOGUE = 7,              /* uint32_t */
    HS_LT_DESC_BIAS_POINTER = 8,          /* void *; read by the biases, written by BGRADB */
    HS_LT_DESC_EPILOGUE_AUX_POINTER = 11, /* void * */
    HS_LT_DESC_EPILOGUE_AUX_LD = 12,      /* int64_t, a multiple of 8 for gelu */
    HS_LT_DESC_BIAS_DATA_TYPE = 26,       /* int32_t */
};

/* Attributes of a preference, which narrows the heuristic's choice. */
enum {
    HS_LT_PREF_MAX_WORKSPACE_BYTES = 1,   /* uint64_t */
    HS_LT_PREF_REDUCTION_SCHEME_MASK = 3, /* uint32_t */
    HS_LT_PREF_MIN_ALIGNMENT_A_BYTES = 5, /* uint32_t, here and below */
    HS_LT_PREF_MIN_ALIGNMENT_B_BYTES = 6,
    HS_LT_PREF_MIN_ALIGNMENT_C_BYTES = 7,
    HS_LT_PREF_MIN_ALIGNMENT_D_BYTES = 8,
};

enum { HS_LT_REDUCTION_SCHEME_COMPUTE_TYPE = 2 };

/* The test puts the library's own types here, so that the function types below can be compared with its functions. */
#ifndef HS_LT_TYPES
#define HS_LT_TYPES
typedef unsigned hs_lt_status;
typedef unsigned hs_lt_compute_type;
typedef unsigned hs_lt_element_type;
typedef unsigned hs_lt_desc_attribute;
typedef unsigned hs_lt_pref_attribute;
typedef struct hs_lt_context *hs_lt_handle;
typedef struct hs_lt_desc_opaque *hs_lt_desc;
typedef struct hs_lt_layout_opaque *hs_lt_layout;
typedef struct hs_lt_pref_opaque *hs_lt_pref;
typedef struct hs_lt_stream *hs_lt_cuda_stream;

typedef struct {
    uint64_t data[8];
} hs_lt_algo;

typedef struct {
    hs_lt_algo algo;
    size_t workspaceSize; /* bytes */
    hs_lt_status state;   /* the other fields say something only where this is HS_LT_STATUS_SUCCESS */
    float wavesCount;
    int reserved[4];
} hs_lt_candidate;
#endif

/* Function pointers and nothing else; library.c fills them in this order. */
typedef struct {
    hs_lt_status (*create)(hs_lt_handle *handle);
    const char *(*status_text)(hs_lt_status status);
    hs_lt_status (*desc_create)(hs_lt_desc *desc, hs_lt_compute_type compute, hs_lt_element_type scale);
    hs_lt_status (*desc_destroy)(hs_lt_desc desc);
    hs_lt_status (*desc_set)(hs_lt_desc desc, hs_lt_desc_attribute attribute, const void *value, size_t bytes);
    hs_lt_status (*layout_create)(hs_lt_layout *layout, hs_lt_element_type type, uint64_t rows, uint64_t cols,
                                  int64_t ld);
    hs_lt_status (*layout_destroy)(hs_lt_layout layout);
    hs_lt_status (*pref_create)(hs_lt_pref *pref);
    hs_lt_status (*pref_destroy)(hs_lt_pref pref);
    hs_lt_status (*pref_set)(hs_lt_pref pref, hs_lt_pref_attribute attribute, const void *value, size_t bytes);
    hs_lt_status (*heuristic)(hs_lt_handle handle, hs_lt_desc desc, hs_lt_layout a, hs_lt_layout b, hs_lt_layout c,
                              hs_lt_layout d, hs_lt_pref pref, int wanted, hs_lt_candidate *candidates, int *count);
    hs_lt_status (*matmul)(hs_lt_handle handle, hs_lt_desc desc, const void *alpha, const void *a,
                           hs_lt_layout a_layout, const void *b, hs_lt_layout b_layout, const void *beta, const void *c,
                           hs_lt_layout c_layout, void *d, hs_lt_layout d_layout, const hs_lt_algo *algo,
                           void *workspace, size_t workspace_bytes, hs_lt_cuda_stream stream);
} hs_cublaslt;

/* The names of the functions above, in the same order. */
#define HS_CUBLASLT_SYMBOLS                                                                                            \
    {"cublasLtCreate",                                                                                                 \
     "cublasLtGetStatusString",                                                                                        \
     "cublasLtMatmulDescCreate",                                                                                       \
     "cublasLtMatmulDescDestroy",                                                                                      \
     "cublasLtMatmulDescSetAttribute",                                                                                 \
     "cublasLtMatrixLayoutCreate",                                                                                     \
     "cublasLtMatrixLayoutDestroy",                                                                                    \
     "cublasLtMatmulPreferenceCreate",                                                                                 \
     "cublasLtMatmulPreferenceDestroy",                                                                                \
     "cublasLtMatmulPreferenceSetAttribute",                                                                           \
     "cublasLtMatmulAlgoGetHeuristic",                                                                                 \
     "cublasLtMatmul"}
#endif
