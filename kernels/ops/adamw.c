#include "adamw.h"

#include <math.h>
#include <stdio.h>

#include "check.h"

static const char op[] = "adamw";

static hs_status check_count(const char *name, const hs_tensor_list *list, int64_t expected) {
    if (list->count == expected) return HS_OK;
    return hs_fail(HS_BAD_VALUE, "%s: %s has %lld tensors, param has %lld", op, name, (long long)list->count,
                   (long long)expected);
}

/* What a list may hold. */
typedef enum { FLOAT32, ANY_FLOAT, HALF_OR_ABSENT } kind;

static hs_status check_dtype(const char *name, const hs_tensor *t, kind k) {
    switch (k) {
    case FLOAT32:
        if (t->dtype == HS_F32) return HS_OK;
        return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected float32", op, name, hs_dtype_name(t->dtype));
    case ANY_FLOAT:
        return hs_check_float(op, name, t);
    default:
        if (t->dtype == HS_F16 || t->dtype == HS_BF16 || !hs_present(t)) return HS_OK;
        return hs_fail(HS_BAD_TYPE, "%s: %s is %s, expected float16 or bfloat16", op, name, hs_dtype_name(t->dtype));
    }
}

static hs_status check_named(const char *name, const hs_tensor *t, kind k, const hs_ctx *ctx) {
    HS_TRY(check_dtype(name, t, k));
    return hs_check_tensor(op, name, t, ctx);
}

/* The name with its index is only printed for an item that has failed: a model has hundreds of them. */
static hs_status check_item(const char *list_name, const hs_tensor_list *list, int64_t i, kind k, const hs_ctx *ctx) {
    if (check_named(list_name, &list->items[i], k, ctx) == HS_OK) return HS_OK;
    char name[32];
    snprintf(name, sizeof name, "%s[%lld]", list_name, (long long)i);
    return check_named(name, &list->items[i], k, ctx);
}

static hs_status check_like_param(const char *list_name, const hs_tensor_list *list, const hs_tensor_list *p,
                                  int64_t i) {
    if (hs_check_same_shape(op, list_name, &list->items[i], "param", &p->items[i]) == HS_OK) return HS_OK;
    char name[32], param[32];
    snprintf(name, sizeof name, "%s[%lld]", list_name, (long long)i);
    snprintf(param, sizeof param, "param[%lld]", (long long)i);
    return hs_check_same_shape(op, name, &list->items[i], param, &p->items[i]);
}

static hs_status check_lists(const hs_ctx *ctx, const hs_adamw_args *a) {
    const struct {
        const char *name;
        const hs_tensor_list *list;
        kind k;
    } like_param[] = {{"param", &a->p, FLOAT32},
                      {"grad", &a->g, ANY_FLOAT},
                      {"exp_avg", &a->m, FLOAT32},
                      {"exp_avg_sq", &a->v, FLOAT32},
                      {"half", &a->half, HALF_OR_ABSENT}};
    const int lists = a->half.count ? 5 : 4;
    for (int l = 1; l < lists; l++) HS_TRY(check_count(like_param[l].name, like_param[l].list, a->p.count));
    HS_TRY(check_count("step", &a->step, a->p.count));
    for (int64_t i = 0; i < a->p.count; i++) {
        for (int l = 0; l < lists; l++) {
            HS_TRY(check_item(like_param[l].name, like_param[l].list, i, like_param[l].k, ctx));
            HS_TRY(check_like_param(like_param[l].name, like_param[l].list, &a->p, i));
        }
        HS_TRY(check_item("step", &a->step, i, FLOAT32, ctx));
        if (hs_numel(&a->step.items[i]) != 1)
            return hs_fail(HS_BAD_VALUE, "%s: step[%lld] has %lld elements, expected 1", op, (long long)i,
                           (long long)hs_numel(&a->step.items[i]));
    }
    return HS_OK;
}

static hs_status check_one_f32(const char *name, const hs_tensor *t, const hs_ctx *ctx) {
    HS_TRY(hs_check_dtype(op, name, t, HS_F32));
    HS_TRY(hs_check_tensor(op, name, t, ctx));
    return hs_check_numel(op, name, t, 1, "the expected number");
}

static hs_status check_not_negative(const char *name, double value) {
    if (value >= 0 && isfinite(value)) return HS_OK;
    return hs_fail(HS_BAD_VALUE, "%s: %s is %g, expected a finite value of 0 or more", op, name, value);
}

static hs_status check_beta(const char *name, double value) {
    if (value >= 0 && value < 1) return HS_OK;
    return hs_fail(HS_BAD_VALUE, "%s: %s is %g, expected 0 or more and less than 1", op, name, value);
}

static hs_status check(const hs_ctx *ctx, const hs_adamw_args *a) {
    HS_TRY(check_lists(ctx, a));
    HS_TRY(check_one_f32("lr", &a->lr_tensor, ctx));
    HS_TRY(check_one_f32("scale", &a->scale, ctx));
    HS_TRY(check_one_f32("found_inf", &a->found_inf, ctx));
    if (!hs_present(&a->lr_tensor)) HS_TRY(check_not_negative("lr", a->lr));
    HS_TRY(check_beta("beta1", a->beta1));
    HS_TRY(check_beta("beta2", a->beta2));
    HS_TRY(check_not_negative("eps", a->eps));
    return check_not_negative("weight_decay", a->weight_decay);
}

hs_status hs_adamw_check(const hs_ctx *ctx, const hs_adamw_args *args) {
    return check(ctx, args);
}

hs_status hs_adamw(const hs_ctx *ctx, const hs_adamw_args *args) {
    HS_TRY(check(ctx, args));
    return HS_DISPATCH(op, hs_adamw, ctx, args);
}
