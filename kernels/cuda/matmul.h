/* matmul.h - one matrix product with an epilogue, by cuBLASLt, with the algorithm remembered.
 *
 * Matrices are column-major and without gaps: D (m x n) = A (m x k) B (k x n). A row-major tensor (rows, cols) is a
 * column-major matrix of cols x rows. */
#ifndef HS_CUDA_MATMUL_H
#define HS_CUDA_MATMUL_H
#include <stdbool.h>

#include "../base/cublaslt.h"
#include "../base/status.h"
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

/* Bytes of workspace at the head of ctx->workspace that a product may use. */
int64_t hs_matmul_workspace(int device);

/* ctx's device is the current one. Sets *found to false, and launches nothing, where cuBLASLt has no kernel for this
 * epilogue with these types, sizes and alignments; without an epilogue that is a failure. */
hs_status hs_matmul_run(const hs_ctx *ctx, const hs_matmul *p, bool *found);

/* ---- between matmul.c and matmul_tune.c ---- */
enum { HS_MATMUL_CANDIDATES = 8 };

/* A product as cuBLASLt sees it, but for the pointers. */
typedef struct {
    hs_lt_desc desc;
    hs_lt_layout a, b, d;
} hs_matmul_plan;

hs_lt_status hs_matmul_launch(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan,
                              const hs_matmul *p, const hs_lt_algo *algo, void *workspace, int64_t workspace_bytes,
                              void *stream);

/* The index of the fastest of count candidates, timed on a private stream and private buffers; 0, the heuristic's own
 * choice, where timing is not possible. */
int hs_matmul_fastest(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan, const hs_matmul *p,
                      const hs_lt_candidate *candidates, int count, int device);
#endif
