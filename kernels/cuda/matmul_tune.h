/* matmul_tune.h - the choice of an algorithm by timing. */
#ifndef HS_CUDA_MATMUL_TUNE_H
#define HS_CUDA_MATMUL_TUNE_H
#include "matmul_plan.h"

enum { HS_MATMUL_CANDIDATES = 8 };

/* The index of the fastest of count candidates, each with that much workspace, timed on a private stream and private
 * buffers; 0, the heuristic's own choice, where timing is not possible. */
int hs_matmul_fastest(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan, const hs_matmul *p,
                      const hs_lt_candidate *candidates, int count, int64_t workspace_bytes);
#endif
