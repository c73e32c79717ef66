"""Softmax cross entropy; the gradient is made in backward, where the loss scale has arrived."""

import numpy as np

from halfstep._compat import (
    Function,
    Tensor,
    as_array,
    dtype_name,
    is_compiling,
    is_grad_enabled,
    require_dense,
    same_kind,
    torch,
)
from halfstep._ops import xent
from halfstep.functional._autograd import (
    bind_apply,
    distinct,
    refuse_functorch,
    refuse_second_derivative,
)

_INTEGERS = ("int64", "int32", "int16", "int8", "uint8", "uint16", "uint32")


def cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
    *,
    z_loss=0.0,
    all_ignored="nan",
):
    """-log softmax(input) at the target, as torch.nn.functional.cross_entropy defines it.

    input: logits (classes,), (n, classes) or (n, classes, d1, ...) in float32, float16 or bfloat16;
        with more than two axes the classes are moved last, which copies. Never modified.
    target: class indices, integers of input's shape without the class axis; or probabilities,
        floating-point of input's shape, which may require a gradient.
    weight: optional, (classes,) in float32, float16 or bfloat16. Class weights; with probabilities
        they may require a gradient.
    ignore_index: a target of this value counts for nothing. Indices only.
    reduction: "none", "mean" (weighted, as torch) or "sum". size_average and reduce: torch's
        deprecated spelling of it.
    label_smoothing: in [0, 1].
    z_loss: adds z_loss * logsumexp(input)^2 per counted row (Chowdhery et al., PaLM, 2022); with
        "mean" averaged over the counted rows.
    all_ignored: the mean when every target is ignored: "nan" (torch's) or "zero".

    Returns float32, also for 16-bit logits: a scalar, or target's shape with "none". Backward keeps
    input and one float per row.

    Raises ValueError (shape, option, on the CPU a target out of range), TypeError (dtype, a tensor
    without plain memory) and RuntimeError (second derivative, torch.func, weights of class indices
    that require a gradient). On CUDA a target out of range makes that row's
    loss and gradient NaN; nothing else is touched.
    """
    if size_average is not None or reduce is not None:
        reduction = _legacy_reduction(size_average, reduce)
    options = _options(ignore_index, reduction, label_smoothing, z_loss, all_ignored)
    try:
        logits, target, weight, shape = _as_rows(input, target, weight, ignore_index)
    except (AttributeError, RuntimeError):
        _refuse_others(input, target, weight)
        raise
    if not isinstance(logits, Tensor):
        loss = xent.forward(logits, target, weight, *options)[0]
        return same_kind(input, loss.reshape(shape) if reduction == "none" else loss)[0]
    if weight is not None and weight.requires_grad and is_grad_enabled():
        _refuse_weight_gradient_of_indices(target)
    if is_compiling():
        loss = _CrossEntropy.apply(*distinct(logits, target, weight), *options)
    else:
        refuse_functorch("cross_entropy")
        if is_grad_enabled() and (
            logits.requires_grad
            or target.requires_grad
            or (weight is not None and weight.requires_grad)
        ):
            loss = _apply(logits, target, weight, *options)
        else:
            loss = xent.forward(logits, target, weight, *options)[0]
    return loss.reshape(shape) if reduction == "none" else loss


def cross_entropy_backward(
    grad,
    input,
    target,
    weight=None,
    ignore_index=-100,
    reduction="mean",
    label_smoothing=0.0,
    *,
    z_loss=0.0,
    all_ignored="nan",
):
    """dinput of cross_entropy for arrays; grad is the loss' gradient, of the loss' shape."""
    options = _options(ignore_index, reduction, label_smoothing, z_loss, all_ignored)
    logits, target, weight, shape = _as_rows(input, target, weight, ignore_index)
    if not isinstance(input, Tensor):
        grad = as_array("cross_entropy", "grad", grad)
    expected = shape if reduction == "none" else ()
    if tuple(grad.shape) != expected:
        raise ValueError(
            f"cross_entropy: grad has shape {tuple(grad.shape)}, the loss has shape {expected}"
        )
    _, lse, denominator = xent.forward(logits, target, weight, *options)
    dloss = grad.reshape(-1) if reduction == "none" else grad
    (dlogits,) = xent.backward(dloss, logits, target, weight, lse, denominator, *options)
    if len(input.shape) > 2:
        moved = (input.shape[0], *input.shape[2:], input.shape[1])
        dlogits = np.moveaxis(dlogits.reshape(moved), -1, 1)
    return same_kind(input, dlogits.reshape(input.shape))[0]


def _legacy_reduction(size_average, reduce):
    if reduce is not None and not reduce:
        return "none"
    return "sum" if size_average is not None and not size_average else "mean"


def _options(ignore_index, reduction, label_smoothing, z_loss, all_ignored):
    if not isinstance(reduction, str) or reduction not in xent.REDUCTIONS:
        raise ValueError(
            f"cross_entropy: reduction is {reduction!r}, expected 'none', 'mean' or 'sum'"
        )
    if all_ignored not in ("nan", "zero"):
        raise ValueError(f"cross_entropy: all_ignored is {all_ignored!r}, expected 'nan' or 'zero'")
    zero = all_ignored == "zero"
    return ignore_index, xent.REDUCTIONS[reduction], label_smoothing, z_loss, zero


def _refuse_weight_gradient_of_indices(target):
    if not target.is_floating_point():
        raise RuntimeError(
            "cross_entropy: weight requires a gradient, which is defined for target probabilities "
            "only, as in torch; pass weight.detach()"
        )


def _refuse_others(input, target, weight):
    """A TypeError for what is no dense tensor beside a tensor, in words of ours."""
    for name, t in (("input", input), ("target", target), ("weight", weight)):
        if not isinstance(t, Tensor) and (name != "weight" or t is not None):
            raise TypeError(f"cross_entropy: {name} is a {type(t).__name__}, expected a tensor")
        require_dense("cross_entropy", name, t)


def _as_rows(input, target, weight, ignore_index):
    """logits (rows, classes), target, float32 weight, and the shape of an unreduced loss."""
    if isinstance(input, Tensor):
        probabilities = target.is_floating_point()
    else:
        input = as_array("cross_entropy", "input", input)
        target = as_array("cross_entropy", "target", target)
        weight = None if weight is None else as_array("cross_entropy", "weight", weight)
        probabilities = "float" in str(target.dtype)
    ndim = len(input.shape)
    if ndim == 0:
        raise ValueError("cross_entropy: input has no class axis")
    axis = 0 if ndim == 1 else 1
    shape = tuple(input.shape[:axis]) + tuple(input.shape[axis + 1 :])
    expected = tuple(input.shape) if probabilities else shape
    one_of_one = ndim == 1 and not probabilities and tuple(target.shape) == (1,)
    if tuple(target.shape) != expected and not one_of_one:
        raise ValueError(
            f"cross_entropy: target has shape {tuple(target.shape)}, input has shape "
            f"{tuple(input.shape)}; expected {expected}"
        )
    if probabilities:
        if ignore_index >= 0:
            raise ValueError(
                f"cross_entropy: ignore_index is {ignore_index}, which target probabilities do not "
                "have; expected a negative value"
            )
        target = _rows(target, axis)
        if target.dtype == (torch.float64 if isinstance(target, Tensor) else np.float64):
            target = _as_float32(target)
    else:
        target = _as_int64(target).reshape(-1)
    if weight is not None:
        if tuple(weight.shape) != (input.shape[axis],):
            raise ValueError(
                f"cross_entropy: weight has shape {tuple(weight.shape)}, input has "
                f"{input.shape[axis]} classes; expected ({input.shape[axis]},)"
            )
        if isinstance(weight, Tensor) != isinstance(input, Tensor):
            kind, like = type(weight).__name__, type(input).__name__
            raise TypeError(f"cross_entropy: weight is a {kind}, input is a {like}")
        weight = _as_float32_weight(weight)
    return _rows(input, axis), target, weight, shape


def _as_float32(t):
    return t.float() if isinstance(t, Tensor) else t.astype(np.float32)


def _as_float32_weight(weight):
    if isinstance(weight, Tensor) and weight.dtype is torch.float32:
        return weight
    if dtype_name(weight.dtype) not in ("float32", "float16", "bfloat16"):
        raise TypeError(
            f"cross_entropy: weight is {weight.dtype}, expected float32, float16 or bfloat16"
        )
    return _as_float32(weight)


def _as_int64(target):
    if isinstance(target, Tensor) and target.dtype is torch.int64:
        return target
    if dtype_name(target.dtype) not in _INTEGERS:
        raise TypeError(
            f"cross_entropy: target is {target.dtype}, expected integers that int64 holds, or "
            "probabilities"
        )
    return target.long() if isinstance(target, Tensor) else target.astype(np.int64, copy=False)


def _rows(x, axis):
    if len(x.shape) == 2:
        return x
    classes = x.shape[axis]
    if len(x.shape) > 2:
        x = x.movedim(1, -1) if isinstance(x, Tensor) else np.moveaxis(x, 1, -1)
    rows = 1
    for n in x.shape[:-1]:
        rows *= n
    return x.reshape((rows, classes))


class _CrossEntropy(Function):
    @staticmethod
    def forward(ctx, logits, target, weight, ignore_index, reduction, smoothing, z_loss, zero):
        options = (ignore_index, reduction, smoothing, z_loss, zero)
        run = xent.traced_forward if is_compiling() else xent.forward
        loss, lse, denominator = run(logits, target, weight, *options)
        ctx.save_for_backward(logits, target, weight, lse, denominator)
        ctx.options = options
        return loss

    @staticmethod
    def backward(ctx, dloss):
        refuse_second_derivative("cross_entropy")
        need_logits, need_target, need_weight, *_ = ctx.needs_input_grad
        dlogits = dtarget = dweight = None
        if need_logits:
            run = xent.traced_backward if is_compiling() else xent.backward
            dlogits = run(dloss, *ctx.saved_tensors, *ctx.options)[0]
        if need_target or need_weight:
            dtarget, dweight = _soft_gradients(dloss, *ctx.saved_tensors, ctx.options)
        return (
            dlogits,
            dtarget if need_target else None,
            dweight if need_weight else None,
            None,
            None,
            None,
            None,
            None,
        )


def _soft_gradients(dloss, logits, target, weight, lse, denominator, options):
    """dtarget and dweight of probabilities, by torch's operations in float32.

    ce is linear in both: dtarget_c = dce (1 - smoothing) w_c (-logp_c), and dweight_c sums
    dce q_c (-logp_c) over the rows, in the words of kernels/ops/xent.h.
    """
    _, reduction, smoothing, _, _ = options
    dce = dloss / denominator[0] if reduction == xent.REDUCTIONS["mean"] else dloss
    scaled = dce.reshape(-1, 1) * (lse[:, 1:] - (logits.float() - lse[:, :1]))
    q = target.float() * (1 - smoothing) + smoothing / logits.shape[1]
    dtarget = scaled * (1 - smoothing)
    if weight is None:
        return dtarget.to(target.dtype), None
    return (dtarget * weight).to(target.dtype), (scaled * q).sum(0)


_apply = bind_apply(_CrossEntropy)
