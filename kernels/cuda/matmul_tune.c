/* Timing of candidate algorithms. Only the private stream is waited for. */
#include <cuda_runtime_api.h>
#include <float.h>

#include "matmul_tune.h"

enum {
    ROUNDS = 4,  /* the first warms up: it loads kernels and fills caches */
    FILL = 0x3c, /* every byte of the operands: 0.011 in float32 and bfloat16, 1.06 in float16 */
    BUFFER_COUNT = 6
};

/* A candidate replaces the heuristic's first only where it saves this share of the time: less is noise. */
static const float margin = 0.02f;

typedef struct {
    cudaStream_t stream;
    cudaEvent_t start[HS_MATMUL_CANDIDATES], stop[HS_MATMUL_CANDIDATES];
    void *buffers[BUFFER_COUNT]; /* a, b, d, bias, aux, workspace */
} bench;

static int64_t max64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static cudaError_t open_bench(bench *t, const hs_matmul *p, int64_t workspace, int count) {
    const int64_t size = hs_dtype_size(p->dtype), d_size = hs_dtype_size(p->d_dtype);
    const int64_t bytes[BUFFER_COUNT] = {
        p->m * p->k * size,
        p->k * p->n * size,
        p->m * p->n * d_size,
        p->bias ? max64(p->m, p->n) * d_size : 0,
        p->aux ? p->m * p->n * d_size : 0,
        workspace,
    };
    cudaError_t e = cudaStreamCreateWithFlags(&t->stream, cudaStreamNonBlocking);
    for (int i = 0; !e && i < count; i++) {
        e = cudaEventCreate(&t->start[i]);
        if (!e) e = cudaEventCreate(&t->stop[i]);
    }
    for (int i = 0; !e && i < BUFFER_COUNT; i++) {
        if (bytes[i] == 0) continue;
        e = cudaMallocAsync(&t->buffers[i], (size_t)bytes[i], t->stream);
        if (!e) e = cudaMemsetAsync(t->buffers[i], FILL, (size_t)bytes[i], t->stream);
    }
    return e;
}

static void close_bench(bench *t, int count) {
    for (int i = 0; i < BUFFER_COUNT; i++)
        if (t->buffers[i]) cudaFreeAsync(t->buffers[i], t->stream);
    for (int i = 0; i < count; i++) {
        if (t->start[i]) cudaEventDestroy(t->start[i]);
        if (t->stop[i]) cudaEventDestroy(t->stop[i]);
    }
    if (t->stream) {
        cudaStreamSynchronize(t->stream); /* the pool gives the memory back here */
        cudaStreamDestroy(t->stream);
    }
}

/* Candidates take turns, so that other work on the GPU does not hit one of them alone; each keeps its best time. */
static int race(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan, const hs_matmul *p,
                const hs_lt_candidate *candidates, int count, const bench *t, int64_t workspace) {
    void *scratch = t->buffers[BUFFER_COUNT - 1];
    float best[HS_MATMUL_CANDIDATES];
    bool failed[HS_MATMUL_CANDIDATES] = {false};
    for (int i = 0; i < count; i++) best[i] = FLT_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < count; i++) {
            if (failed[i]) continue;
            /* Keeps the GPU busy until the run is queued: else the events would time the host. */
            cudaMemsetAsync(scratch, 0, (size_t)workspace, t->stream);
            cudaEventRecord(t->start[i], t->stream);
            failed[i] = hs_matmul_plan_launch(lt, handle, plan, p, &candidates[i].algo, scratch, workspace,
                                              t->stream) != HS_LT_STATUS_SUCCESS;
            cudaEventRecord(t->stop[i], t->stream);
        }
        if (cudaStreamSynchronize(t->stream) != cudaSuccess) return 0;
        for (int i = 0; round > 0 && i < count; i++) {
            float ms = FLT_MAX;
            if (!failed[i] && cudaEventElapsedTime(&ms, t->start[i], t->stop[i]) == cudaSuccess && ms < best[i])
                best[i] = ms;
        }
    }
    int fastest = 0;
    for (int i = 1; i < count; i++)
        if (best[i] < best[fastest] && best[i] < best[0] * (1 - margin)) fastest = i;
    return fastest;
}

int hs_matmul_fastest(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan, const hs_matmul *p,
                      const hs_lt_candidate *candidates, int count, int64_t workspace_bytes) {
    bench t = {0};
    int fastest = 0;
    /* Another thread may be recording a graph; what is done here concerns its stream in no way. */
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (open_bench(&t, p, workspace_bytes, count) == cudaSuccess) {
        hs_matmul copy = *p;
        copy.a = t.buffers[0];
        copy.b = t.buffers[1];
        copy.d = t.buffers[2];
        copy.bias = t.buffers[3];
        copy.aux = t.buffers[4];
        fastest = race(lt, handle, plan, &copy, candidates, count, &t, workspace_bytes);
    }
    close_bench(&t, count);
    cudaThreadExchangeStreamCaptureMode(&mode);
    cudaGetLastError(); /* memory that could not be had is no error of the caller's */
    return fastest;
}
