#include "../ops/adamw.h"

#include <math.h>

#include "multi_tensor.cuh"

/* found_inf, scale, lr_tensor and the steps are read by the kernels, so the host never waits for the device. */
namespace {
constexpr const char *op = "adamw";
constexpr int pack_elements = 4;        /* 16 bytes of float32 */
constexpr int tensors_per_launch = 480; /* what a kernel's parameter holds, in whole warps */

enum { P, G, M, V, HALF, STEP, POINTERS };

struct step_batch {
    tensor_batch<POINTERS, tensors_per_launch> tensors;
    uint8_t g_dtype[tensors_per_launch], half_dtype[tensors_per_launch];
    const float *lr_tensor, *scale, *found_inf; /* NULL when absent */
    double lr;
    float weight_decay, beta2, beta1_rest, beta2_rest, eps; /* rest: one minus */
    float log_beta1, log_beta2;
    bool maximize, write_grad;
};
static_assert(sizeof(step_batch) <= max_parameter_bytes, "a kernel takes no larger parameter");

/* The tensors of one chunk and the numbers of its step. */
struct run {
    float *p, *m, *v;
    void *g, *half;
    int half_dtype; /* HS_NONE without a 16-bit copy */
    bool unscale, write_grad;
    float scale, sign; /* sign: -1 with maximize */
    float decay;       /* lr weight_decay */
    float beta1_rest, beta2, beta2_rest, eps;
    float step_size, root_correction; /* lr / (1 - beta1^t), sqrt(1 - beta2^t) */
};

__device__ __forceinline__ run run_of(const step_batch &batch, int i) {
    const auto &tensors = batch.tensors;
    const float t = *static_cast<const float *>(tensors.data[STEP][i]) + 1.f;
    const float lr = batch.lr_tensor ? *batch.lr_tensor : float(batch.lr);
    run r;
    r.p = static_cast<float *>(tensors.data[P][i]);
    r.m = static_cast<float *>(tensors.data[M][i]);
    r.v = static_cast<float *>(tensors.data[V][i]);
    r.g = tensors.data[G][i];
    r.half = tensors.data[HALF][i];
    r.half_dtype = batch.half_dtype[i];
    r.unscale = batch.scale != nullptr;
    r.write_grad = batch.write_grad;
    r.scale = r.unscale ? *batch.scale : 1.f;
    r.sign = batch.maximize ? -1.f : 1.f;
    r.decay = lr * batch.weight_decay;
    r.beta1_rest = batch.beta1_rest;
    r.beta2 = batch.beta2;
    r.beta2_rest = batch.beta2_rest;
    r.eps = batch.eps;
    /* 1 - beta^t without the cancellation that costs beta2 = 0.999 four digits in the first step. */
    r.step_size = lr / -expm1f(t * batch.log_beta1);
    r.root_correction = sqrtf(-expm1f(t * batch.log_beta2));
    return r;
}

/* Packs of N elements that lie whole in [begin, end). The loads of p, m and v need no conversion and go first, so that
 * all four are in flight together. */
template <typename T, int N> __device__ __forceinline__ void update_packs(const run &r, int64_t begin, int64_t end) {
    T *all_g = static_cast<T *>(r.g);
    for (int64_t i = begin + int64_t(threadIdx.x) * N; i + N <= end; i += int64_t(chunk_threads) * N) {
        float p[N], m[N], v[N], g[N];
        load_pack(r.p + i, p);
        load_pack(r.m + i, m);
        load_pack(r.v + i, v);
        load_pack(all_g + i, g);
        if (r.unscale) {
#pragma unroll
            for (int j = 0; j < N; j++) g[j] /= r.scale;
            if (r.write_grad) store_pack(all_g + i, g);
        }
#pragma unroll
        for (int j = 0; j < N; j++) {
            g[j] *= r.sign;
            p[j] -= r.decay * p[j];
            m[j] += r.beta1_rest * (g[j] - m[j]);
            v[j] = r.beta2 * v[j] + r.beta2_rest * g[j] * g[j];
            p[j] -= r.step_size * (m[j] / (sqrtf(v[j]) / r.root_correction + r.eps));
        }
        store_pack(r.p + i, p);
        store_pack(r.m + i, m);
        store_pack(r.v + i, v);
        if (r.half_dtype == HS_F16) store_pack(static_cast<__half *>(r.half) + i, p);
        if (r.half_dtype == HS_BF16) store_pack(static_cast<__nv_bfloat16 *>(r.half) + i, p);
    }
}

template <typename T> __device__ void update_chunk(const run &r, const chunk &c) {
    constexpr int N = pack_elements;
    const bool aligned = holds_packs<float, N>(r.p) && holds_packs<float, N>(r.m) && holds_packs<float, N>(r.v) &&
                         holds_packs<T, N>(r.g) && holds_packs<__half, N>(r.half);
    const int64_t packs_end = aligned ? c.end - c.end % N : c.begin;
    update_packs<T, N>(r, c.begin, packs_end);
    update_packs<T, 1>(r, packs_end, c.end);
}

__device__ __forceinline__ bool is_skipped(const step_batch &batch) {
    const float scale = batch.scale ? *batch.scale : 1.f, lr = batch.lr_tensor ? *batch.lr_tensor : 0.f;
    const bool usable = scale > 0.f && isfinite(scale) && lr >= 0.f && isfinite(lr);
    return !usable || (batch.found_inf && *batch.found_inf != 0.f);
}

__global__ void __launch_bounds__(chunk_threads) adamw_update_kernel(const __grid_constant__ step_batch batch) {
    if (is_skipped(batch)) return;
    const chunk c = chunk_of(batch.tensors, blockIdx.x);
    const run r = run_of(batch, c.tensor);
    switch (batch.g_dtype[c.tensor]) {
    case HS_F32:
        update_chunk<float>(r, c);
        break;
    case HS_F16:
        update_chunk<__half>(r, c);
        break;
    default:
        update_chunk<__nv_bfloat16>(r, c);
    }
}

/* After the update, which reads the step in every chunk. One block; a thread takes each tensor. */
__global__ void __launch_bounds__(tensors_per_launch) adamw_step_kernel(const __grid_constant__ step_batch batch) {
    if (is_skipped(batch) || int(threadIdx.x) >= batch.tensors.count) return;
    *static_cast<float *>(batch.tensors.data[STEP][threadIdx.x]) += 1.f;
}

const float *scalar_of(const hs_tensor *t) {
    return hs_present(t) ? static_cast<const float *>(t->data) : nullptr;
}

void append(step_batch *batch, const hs_adamw_args *a, int64_t item) {
    const int i = batch_append(&batch->tensors, hs_numel(&a->p.items[item]));
    const bool half = a->half.count > 0 && hs_present(&a->half.items[item]);
    auto &data = batch->tensors.data;
    data[P][i] = a->p.items[item].data;
    data[G][i] = a->g.items[item].data;
    data[M][i] = a->m.items[item].data;
    data[V][i] = a->v.items[item].data;
    data[STEP][i] = a->step.items[item].data;
    data[HALF][i] = half ? a->half.items[item].data : nullptr;
    batch->g_dtype[i] = uint8_t(a->g.items[item].dtype);
    batch->half_dtype[i] = uint8_t(half ? a->half.items[item].dtype : HS_NONE);
}
} // namespace

extern "C" hs_status hs_adamw_cuda(const hs_ctx *ctx, const hs_adamw_args *args) {
    step_batch batch;
    batch.lr_tensor = scalar_of(&args->lr_tensor);
    batch.scale = scalar_of(&args->scale);
    batch.found_inf = scalar_of(&args->found_inf);
    batch.lr = args->lr;
    batch.weight_decay = float(args->weight_decay);
    batch.beta2 = float(args->beta2);
    batch.beta1_rest = float(1 - args->beta1);
    batch.beta2_rest = float(1 - args->beta2);
    batch.eps = float(args->eps);
    batch.log_beta1 = float(log(args->beta1));
    batch.log_beta2 = float(log(args->beta2));
    batch.maximize = args->maximize != 0;
    batch.write_grad = args->write_grad != 0;
    for (int64_t next = 0; next < args->p.count;) {
        batch.tensors.count = 0;
        for (; next < args->p.count && batch.tensors.count < tensors_per_launch; next++) append(&batch, args, next);
        const unsigned blocks = batch_blocks(&batch.tensors);
        if (blocks > 0) adamw_update_kernel<<<blocks, chunk_threads, 0, stream_of(ctx)>>>(batch);
        adamw_step_kernel<<<1, tensors_per_launch, 0, stream_of(ctx)>>>(batch);
    }
    return launched(op);
}
