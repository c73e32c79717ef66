/* ops.c - the ops as Python sees them: one table per pass, in the order of the positional arguments. */
#include "../../kernels/ops/act.h"
#include "../../kernels/ops/adamw.h"
#include "../../kernels/ops/dropout.h"
#include "../../kernels/ops/linear.h"
#include "../../kernels/ops/norm.h"
#include "../../kernels/ops/scaler.h"
#include "../../kernels/ops/xent.h"
#include "bind.h"

#define FIELD_LIKE(args, member, kind, optional, model)                                                                \
    {#member, (uint16_t)offsetof(args, member), kind, optional, model}
#define FIELD(args, member, kind, optional) FIELD_LIKE(args, member, kind, optional, BIND_NO_MODEL)
#define IN(args, member) FIELD(args, member, BIND_INPUT, false)
#define IN_OPTIONAL(args, member) FIELD(args, member, BIND_INPUT, true)
#define OUT(args, member) FIELD(args, member, BIND_OUTPUT, false)
#define OUT_OPTIONAL(args, member) FIELD(args, member, BIND_OUTPUT, true)
#define OUT_LIKE(args, member, model) FIELD_LIKE(args, member, BIND_OUTPUT, false, offsetof(args, model))
#define OUT_OPTIONAL_LIKE(args, member, model) FIELD_LIKE(args, member, BIND_OUTPUT, true, offsetof(args, model))
#define IN_LIST(args, member) FIELD(args, member, BIND_INPUT_LIST, false)
#define OUT_LIST(args, member) FIELD(args, member, BIND_OUTPUT_LIST, false)
#define INTEGER(args, member) FIELD(args, member, BIND_INTEGER, false)
#define NUMBER(args, member) FIELD(args, member, BIND_NUMBER, false)

static const bind_field norm_forward[] = {
    IN(hs_norm_forward_args, x),          IN_OPTIONAL(hs_norm_forward_args, residual),
    IN_OPTIONAL(hs_norm_forward_args, w), IN_OPTIONAL(hs_norm_forward_args, b),
    OUT_LIKE(hs_norm_forward_args, y, x), OUT_OPTIONAL_LIKE(hs_norm_forward_args, sum, residual),
    INTEGER(hs_norm_forward_args, cols),  NUMBER(hs_norm_forward_args, eps),
};
static const bind_field norm_backward[] = {
    IN(hs_norm_backward_args, dy),
    IN(hs_norm_backward_args, h),
    IN_OPTIONAL(hs_norm_backward_args, w),
    IN_OPTIONAL(hs_norm_backward_args, dsum),
    OUT_OPTIONAL_LIKE(hs_norm_backward_args, dx, dy),
    OUT_OPTIONAL_LIKE(hs_norm_backward_args, dresidual, h),
    OUT_OPTIONAL_LIKE(hs_norm_backward_args, dw, w),
    OUT_OPTIONAL_LIKE(hs_norm_backward_args, db, w),
    INTEGER(hs_norm_backward_args, cols),
    NUMBER(hs_norm_backward_args, eps),
};
static const bind_field act_forward[] = {
    IN(hs_act_forward_args, x),         IN_OPTIONAL(hs_act_forward_args, b), OUT_LIKE(hs_act_forward_args, y, x),
    INTEGER(hs_act_forward_args, cols), INTEGER(hs_act_forward_args, kind),
};
static const bind_field act_backward[] = {
    IN(hs_act_backward_args, dy),
    IN_OPTIONAL(hs_act_backward_args, x),
    IN_OPTIONAL(hs_act_backward_args, b),
    OUT_OPTIONAL_LIKE(hs_act_backward_args, dx, dy),
    OUT_OPTIONAL_LIKE(hs_act_backward_args, db, b),
    INTEGER(hs_act_backward_args, cols),
    INTEGER(hs_act_backward_args, kind),
};
static const bind_field linear_forward[] = {
    IN(hs_linear_forward_args, x),           IN(hs_linear_forward_args, w),
    IN_OPTIONAL(hs_linear_forward_args, b),  OUT(hs_linear_forward_args, y),
    OUT_OPTIONAL(hs_linear_forward_args, z), INTEGER(hs_linear_forward_args, kind),
    INTEGER(hs_linear_forward_args, tf32),
};
static const bind_field linear_backward[] = {
    IN(hs_linear_backward_args, dy),
    IN_OPTIONAL(hs_linear_backward_args, x),
    IN_OPTIONAL(hs_linear_backward_args, w),
    IN_OPTIONAL(hs_linear_backward_args, saved),
    OUT_OPTIONAL_LIKE(hs_linear_backward_args, dx, x),
    OUT_OPTIONAL_LIKE(hs_linear_backward_args, dw, w),
    OUT_OPTIONAL(hs_linear_backward_args, db),
    INTEGER(hs_linear_backward_args, kind),
    INTEGER(hs_linear_backward_args, tf32),
};
static const bind_field xent_forward[] = {
    IN(hs_xent_forward_args, logits),
    IN(hs_xent_forward_args, target),
    IN_OPTIONAL(hs_xent_forward_args, weight),
    OUT(hs_xent_forward_args, loss),
    OUT(hs_xent_forward_args, lse),
    OUT(hs_xent_forward_args, denominator),
    INTEGER(hs_xent_forward_args, ignore_index),
    INTEGER(hs_xent_forward_args, reduction),
    NUMBER(hs_xent_forward_args, label_smoothing),
    NUMBER(hs_xent_forward_args, z_loss),
    INTEGER(hs_xent_forward_args, zero_if_all_ignored),
};
static const bind_field xent_backward[] = {
    IN(hs_xent_backward_args, dloss),
    IN(hs_xent_backward_args, logits),
    IN(hs_xent_backward_args, target),
    IN_OPTIONAL(hs_xent_backward_args, weight),
    IN(hs_xent_backward_args, lse),
    IN(hs_xent_backward_args, denominator),
    OUT_LIKE(hs_xent_backward_args, dlogits, logits),
    INTEGER(hs_xent_backward_args, ignore_index),
    INTEGER(hs_xent_backward_args, reduction),
    NUMBER(hs_xent_backward_args, label_smoothing),
    NUMBER(hs_xent_backward_args, z_loss),
    INTEGER(hs_xent_backward_args, zero_if_all_ignored),
};
static const bind_field dropout[] = {
    IN(hs_dropout_args, x),     OUT_LIKE(hs_dropout_args, y, x), IN_OPTIONAL(hs_dropout_args, state),
    NUMBER(hs_dropout_args, p), INTEGER(hs_dropout_args, seed),  INTEGER(hs_dropout_args, offset),
};
static const bind_field adamw[] = {
    OUT_LIST(hs_adamw_args, p),
    OUT_LIST(hs_adamw_args, g),
    OUT_LIST(hs_adamw_args, m),
    OUT_LIST(hs_adamw_args, v),
    OUT_LIST(hs_adamw_args, step),
    FIELD(hs_adamw_args, half, BIND_OUTPUT_LIST, true),
    IN_OPTIONAL(hs_adamw_args, lr_tensor),
    IN_OPTIONAL(hs_adamw_args, scale),
    IN_OPTIONAL(hs_adamw_args, found_inf),
    NUMBER(hs_adamw_args, lr),
    NUMBER(hs_adamw_args, beta1),
    NUMBER(hs_adamw_args, beta2),
    NUMBER(hs_adamw_args, eps),
    NUMBER(hs_adamw_args, weight_decay),
    INTEGER(hs_adamw_args, maximize),
    INTEGER(hs_adamw_args, write_grad),
};
static const bind_field scaler_check[] = {
    OUT_LIST(hs_scaler_check_args, g),
    IN_OPTIONAL(hs_scaler_check_args, scale),
    OUT(hs_scaler_check_args, found_inf),
};
static const bind_field scaler_update[] = {
    OUT(hs_scaler_update_args, scale),
    OUT(hs_scaler_update_args, growth_tracker),
    IN(hs_scaler_update_args, found_inf),
    NUMBER(hs_scaler_update_args, growth_factor),
    NUMBER(hs_scaler_update_args, backoff_factor),
    INTEGER(hs_scaler_update_args, growth_interval),
    NUMBER(hs_scaler_update_args, min_scale),
    NUMBER(hs_scaler_update_args, max_scale),
};

/* A function of the op's own argument type, called through a pointer to void. */
#define RUN(function)                                                                                                  \
    static hs_status run_##function(const hs_ctx *ctx, const void *args) {                                             \
        return hs_##function(ctx, args);                                                                               \
    }
#define WORKSPACE(function)                                                                                            \
    static int64_t workspace_##function(const hs_ctx *ctx, const void *args) {                                         \
        return hs_##function##_workspace(ctx, args);                                                                   \
    }
RUN(norm_forward)
RUN(norm_backward)
WORKSPACE(norm_backward)
RUN(act_forward)
RUN(act_backward)
WORKSPACE(act_backward)
RUN(linear_forward)
WORKSPACE(linear_forward)
RUN(linear_backward)
WORKSPACE(linear_backward)
RUN(xent_forward)
WORKSPACE(xent_forward)
RUN(xent_backward)
RUN(dropout)
RUN(adamw)
RUN(adamw_check)
RUN(scaler_check)
RUN(scaler_update)

#define OP(function, name, workspace, deterministic)                                                                   \
    {#function,      name,      function,     (int)(sizeof function / sizeof *function), sizeof(hs_##function##_args), \
     run_##function, workspace, deterministic}

const bind_op bind_ops[] = {
    OP(norm_forward, "layer_norm", NULL, false),
    OP(norm_backward, "layer_norm", workspace_norm_backward, false),
    OP(act_forward, "bias_act", NULL, false),
    OP(act_backward, "bias_act", workspace_act_backward, false),
    OP(linear_forward, "linear", workspace_linear_forward, true),
    OP(linear_backward, "linear", workspace_linear_backward, true),
    OP(xent_forward, "cross_entropy", workspace_xent_forward, false),
    OP(xent_backward, "cross_entropy", NULL, false),
    OP(dropout, "dropout", NULL, false),
    OP(adamw, "adamw", NULL, false),
    {"adamw_check", "adamw", adamw, sizeof adamw / sizeof *adamw, sizeof(hs_adamw_args), run_adamw_check, NULL, false},
    OP(scaler_check, "scaler", NULL, false),
    OP(scaler_update, "scaler", NULL, false),
};
const int bind_op_count = sizeof bind_ops / sizeof *bind_ops;

_Static_assert(sizeof(hs_norm_backward_args) <= BIND_MAX_ARGS_SIZE, "the largest argument struct must fit");
