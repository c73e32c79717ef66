/* matmul_plan.h - a matrix product as cuBLASLt sees it.
 *
 * Matrices are column-major and without gaps: D (m x n) = A (m x k) B (k x n). A row-major tensor (rows, cols) is a
 * column-major matrix of cols x rows. */
#ifndef HS_CUDA_MATMUL_PLAN_H
#define HS_CUDA_MATMUL_PLAN_H
#include <stdbool.h>

#include "../base/cublaslt.h"
#include "../base/tensor.h"

typedef struct {
    const char *op;
    int64_t m, n, k; /* each at least 1 */
    const void *a, *b;
    void *d;
    bool transpose_a, transpose_b; /* A is stored k x m, B is stored n x k */
    bool tf32;                     /* only with float32 operands */
    bool accumulate;               /* D = A B + D instead of D = A B */
    int dtype, d_dtype;            /* hs_dtype of A and B, of D */
    int epilogue;                  /* HS_LT_EPILOGUE_* */
    void *bias;                    /* for the epilogues with one, of d_dtype: m read, or n written by BGRADB */
    void *aux;                     /* for the epilogues with one: m x n, of d_dtype; m is a multiple of 8 */
} hs_matmul;

/* All of a product but the pointers. */
typedef struct {
    hs_lt_desc desc;
    hs_lt_layout a, b, d;
} hs_matmul_plan;

/* With p's pointers set, because the heuristic reads their alignment. On failure the caller frees what was made. */
hs_lt_status hs_matmul_plan_make(const hs_cublaslt *lt, const hs_matmul *p, hs_matmul_plan *plan);
void hs_matmul_plan_free(const hs_cublaslt *lt, hs_matmul_plan *plan);

hs_lt_status hs_matmul_plan_launch(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan,
                                   const hs_matmul *p, const hs_lt_algo *algo, void *workspace, int64_t workspace_bytes,
                                   void *stream);
#endif
