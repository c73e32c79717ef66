#include "matmul_plan.h"

static hs_lt_element_type element_type(int dtype) {
    switch (dtype) {
    case HS_F16:
        return HS_LT_R_16F;
    case HS_BF16:
        return HS_LT_R_16BF;
    default:
        return HS_LT_R_32F;
    }
}

static bool has_bias(int epilogue) {
    return (epilogue & (HS_LT_EPILOGUE_BIAS | HS_LT_EPILOGUE_BGRADB)) != 0;
}

static bool has_aux(int epilogue) {
    return epilogue == HS_LT_EPILOGUE_GELU_AUX || epilogue == HS_LT_EPILOGUE_GELU_AUX_BIAS;
}

static hs_lt_status set_pointers(const hs_cublaslt *lt, const hs_matmul_plan *plan, const hs_matmul *p) {
    hs_lt_status s = HS_LT_STATUS_SUCCESS;
    if (has_bias(p->epilogue)) s = lt->desc_set(plan->desc, HS_LT_DESC_BIAS_POINTER, &p->bias, sizeof p->bias);
    if (!s && has_aux(p->epilogue))
        s = lt->desc_set(plan->desc, HS_LT_DESC_EPILOGUE_AUX_POINTER, &p->aux, sizeof p->aux);
    return s;
}

hs_lt_status hs_matmul_plan_make(const hs_cublaslt *lt, const hs_matmul *p, hs_matmul_plan *plan) {
    const hs_lt_element_type type = element_type(p->dtype), d_type = element_type(p->d_dtype);
    const int32_t op_a = p->transpose_a ? HS_LT_OP_T : HS_LT_OP_N, op_b = p->transpose_b ? HS_LT_OP_T : HS_LT_OP_N;
    const uint32_t epilogue = (uint32_t)p->epilogue;
    const int32_t bias_type = (int32_t)d_type;
    const uint64_t m = (uint64_t)p->m, n = (uint64_t)p->n, k = (uint64_t)p->k;

    hs_lt_status s =
        lt->desc_create(&plan->desc, p->tf32 ? HS_LT_COMPUTE_32F_FAST_TF32 : HS_LT_COMPUTE_32F, HS_LT_R_32F);
    if (!s) s = lt->desc_set(plan->desc, HS_LT_DESC_TRANSA, &op_a, sizeof op_a);
    if (!s) s = lt->desc_set(plan->desc, HS_LT_DESC_TRANSB, &op_b, sizeof op_b);
    if (!s) s = lt->desc_set(plan->desc, HS_LT_DESC_EPILOGUE, &epilogue, sizeof epilogue);
    if (!s && has_bias(p->epilogue))
        s = lt->desc_set(plan->desc, HS_LT_DESC_BIAS_DATA_TYPE, &bias_type, sizeof bias_type);
    if (!s && has_aux(p->epilogue)) s = lt->desc_set(plan->desc, HS_LT_DESC_EPILOGUE_AUX_LD, &p->m, sizeof p->m);
    if (!s)
        s = lt->layout_create(&plan->a, type, p->transpose_a ? k : m, p->transpose_a ? m : k,
                              p->transpose_a ? p->k : p->m);
    if (!s)
        s = lt->layout_create(&plan->b, type, p->transpose_b ? n : k, p->transpose_b ? k : n,
                              p->transpose_b ? p->n : p->k);
    if (!s) s = lt->layout_create(&plan->d, d_type, m, n, p->m);
    return s ? s : set_pointers(lt, plan, p);
}

void hs_matmul_plan_free(const hs_cublaslt *lt, hs_matmul_plan *plan) {
    if (plan->desc) lt->desc_destroy(plan->desc);
    if (plan->a) lt->layout_destroy(plan->a);
    if (plan->b) lt->layout_destroy(plan->b);
    if (plan->d) lt->layout_destroy(plan->d);
    *plan = (hs_matmul_plan){0};
}

hs_lt_status hs_matmul_plan_launch(const hs_cublaslt *lt, hs_lt_handle handle, const hs_matmul_plan *plan,
                                   const hs_matmul *p, const hs_lt_algo *algo, void *workspace, int64_t workspace_bytes,
                                   void *stream) {
    const float alpha = 1, beta = p->accumulate;
    const hs_lt_status status = set_pointers(lt, plan, p);
    if (status) return status;
    return lt->matmul(handle, plan->desc, &alpha, p->a, plan->a, p->b, plan->b, &beta, p->d, plan->d, p->d, plan->d,
                      algo, workspace, (size_t)workspace_bytes, stream);
}
