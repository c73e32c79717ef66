/* matmul.h - one matrix product with an epilogue, by cuBLASLt, with the algorithm remembered. */
#ifndef HS_CUDA_MATMUL_H
#define HS_CUDA_MATMUL_H
#include "../base/status.h"
#include "matmul_plan.h"

/* Bytes of workspace at the head of ctx->workspace that a product may use. */
int64_t hs_matmul_workspace(int device);

/* ctx's device is the current one. Sets *found to false, and launches nothing, where cuBLASLt has no kernel for this
 * epilogue with these types, sizes and alignments; without an epilogue that is a failure. */
hs_status hs_matmul_run(const hs_ctx *ctx, const hs_matmul *p, bool *found);
#endif
