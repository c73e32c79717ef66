/* rowsum.h - sums over the rows of a matrix, one per column, by several threads in a fixed order.
 *
 * The rows are cut into parts. Each part adds its rows into a block of its own, and the block into the part's total
 * every HS_ROWSUM_BLOCK rows: two short sums lose less than one long one. The totals are added part by part.
 * A part has, for each of the op's sums, cols float32 of block and cols float32 of total in the workspace. */
#ifndef HS_CPU_ROWSUM_H
#define HS_CPU_ROWSUM_H
#include "../base/threads.h"
#include "simd.h"

enum { HS_ROWSUM_BLOCK = 64, HS_ROWSUM_GRAIN = 16384 /* elements that are worth a thread */ };

static inline int64_t hs_rowsum_part_bytes(int sums, int64_t cols) {
    return sums * 2 * cols * (int64_t)sizeof(float);
}

/* How many parts to make; with sums, no more than the workspace holds. */
static inline int64_t hs_rowsum_parts(int64_t rows, int64_t cols) {
    return cols > 0 && rows > 0 ? hs_parallel_ranges(rows, HS_ROWSUM_GRAIN / cols + 1) : 0;
}
static inline int64_t hs_rowsum_parts_within(const hs_ctx *ctx, int sums, int64_t rows, int64_t cols) {
    const int64_t wanted = hs_rowsum_parts(rows, cols), bytes = hs_rowsum_part_bytes(sums, cols);
    return wanted == 0 || bytes == 0 || ctx->workspace_bytes >= wanted * bytes ? wanted : ctx->workspace_bytes / bytes;
}

static inline float *hs_rowsum_block(const hs_ctx *ctx, int sums, int64_t part, int sum, int64_t cols) {
    return (float *)ctx->workspace + (part * sums + sum) * 2 * cols;
}

static inline void hs_rowsum_clear(float *block, int64_t cols) {
    memset(block, 0, (uint64_t)cols * 2 * sizeof(float));
}

/* Whether a block ends with this row, counted from the part's first. */
static inline bool hs_rowsum_block_is_full(int64_t row, int64_t rows) {
    return row % HS_ROWSUM_BLOCK == HS_ROWSUM_BLOCK - 1 || row == rows - 1;
}

/* total += block, block = 0. */
static inline void hs_rowsum_flush(float *block, int64_t cols) {
    float *total = block + cols;
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        const hs_vf sum = hs_load(HS_F32, total, i, count) + hs_load(HS_F32, block, i, count);                         \
        hs_store(HS_F32, total, i, sum, count);                                                                        \
        hs_store(HS_F32, block, i, (hs_vf){0}, count);                                                                 \
    } while (0)
    HS_EACH(cols, STEP);
#undef STEP
}

/* Adds the parts' totals in order and writes them to out. */
static inline void hs_rowsum_finish(const hs_ctx *ctx, int sums, int64_t parts, int sum, const hs_tensor *out,
                                    int64_t cols) {
#define STEP(i, count)                                                                                                 \
    do {                                                                                                               \
        hs_vf v = {0};                                                                                                 \
        for (int64_t part = 0; part < parts; part++)                                                                   \
            v += hs_load(HS_F32, hs_rowsum_block(ctx, sums, part, sum, cols) + cols, i, count);                        \
        hs_store(out->dtype, out->data, i, v, count);                                                                  \
    } while (0)
    HS_EACH(cols, STEP);
#undef STEP
}
#endif
