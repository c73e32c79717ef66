"""Softmax cross entropy; the gradient is made in backward, where the loss scale has arrived."""

import numpy as np

from halfstep._compat import (
    Function,
    Tensor,
    array_to_int64,
    is_compiling,
    is_grad_enabled,
    require_array,
    same_kind,
    torch,
)
from halfstep._ops import xent
from halfstep.functional._autograd import bind_apply, refuse_functorch, refuse_second_derivative


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
        floating-point of input's shape.
    weight: optional, (classes,). Class weights.
    ignore_index: a target of this value counts for nothing. Indices only.
    reduction: "none", "mean" (weighted, as torch) or "sum". size_average and reduce: torch's
        deprecated spelling of it.
    label_smoothing: in [0, 1].
    z_loss: adds z_loss * logsumexp(input)^2 per counted row (Chowdhery et al., PaLM, 2022); with
        "mean" averaged over the counted rows.
    all_ignored: the mean when every target is ignored: "nan" (torch's) or "zero".

    Returns float32, also for 16-bit logits: a scalar, or target's shape with "none". Backward keeps
    input and one float per row.

    Raises ValueError (shape, option, on the CPU a target out of range), TypeError (dtype) and
    RuntimeError (second derivative, torch.func). On CUDA a target out of range makes that row's
    loss and gradient NaN; nothing else is touched.
    """
    if size_average is not None or reduce is not None:
        reduction = _legacy_reduction(size_average, reduce)
    options = _options(ignore_index, reduction, label_smoothing, z_loss, all_ignored)
    logits, target, weight, shape = _as_rows(input, target, weight)
    if not isinstance(logits, Tensor):
        loss = xent.forward(logits, target, weight, *options)[0]
        return same_kind(input, loss.reshape(shape) if reduction == "none" else loss)[0]
    if is_compiling():
        loss = _CrossEntropy.apply(logits, target, weight, *options)
    else:
        refuse_functorch("cross_entropy")
        if is_grad_enabled() and logits.requires_grad:
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
    require_array("cross_entropy", "grad", grad)
    logits, target, weight, _ = _as_rows(input, target, weight)
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
    if reduction not in xent.REDUCTIONS:
        raise ValueError(
            f"cross_entropy: reduction is {reduction!r}, expected 'none', 'mean' or 'sum'"
        )
    if all_ignored not in ("nan", "zero"):
        raise ValueError(f"cross_entropy: all_ignored is {all_ignored!r}, expected 'nan' or 'zero'")
    zero = all_ignored == "zero"
    return ignore_index, xent.REDUCTIONS[reduction], label_smoothing, z_loss, zero


def _is_floating(t):
    if isinstance(t, Tensor):
        return t.is_floating_point()
    return "float" in str(t.dtype)


def _as_rows(input, target, weight):
    """logits (rows, classes), target, float32 weight, and the shape of an unreduced loss."""
    require_array("cross_entropy", "input", input)
    require_array("cross_entropy", "target", target)
    ndim = len(input.shape)
    if ndim == 0:
        raise ValueError("cross_entropy: input has no class axis")
    axis = 0 if ndim == 1 else 1
    shape = tuple(input.shape[:axis]) + tuple(input.shape[axis + 1 :])
    probabilities = _is_floating(target)
    expected = tuple(input.shape) if probabilities else shape
    if tuple(target.shape) != expected:
        raise ValueError(
            f"cross_entropy: target has shape {tuple(target.shape)}, input has shape "
            f"{tuple(input.shape)}; expected {expected}"
        )
    if isinstance(input, Tensor):
        for name, t in (("target", target), ("weight", weight)):
            if t is not None and not isinstance(t, Tensor):
                raise TypeError(f"cross_entropy: {name} is a {type(t).__name__}, expected a tensor")
    logits = _rows(input, axis)
    if probabilities:
        target = _rows(target, axis)
    else:
        if not isinstance(target, Tensor):
            target = array_to_int64(target)
        target = target.reshape(-1)
        if isinstance(target, Tensor) and target.dtype is not torch.int64:
            target = _to_int64(target)
    if weight is not None:
        require_array("cross_entropy", "weight", weight)
        weight = weight.float() if isinstance(weight, Tensor) else weight.astype(np.float32)
    return logits, target, weight, shape


def _to_int64(target):
    if target.dtype is torch.bool or target.is_complex():
        raise TypeError(f"cross_entropy: target is {target.dtype}, expected integers")
    return target.long()


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
        logits, target, weight, lse, denominator = ctx.saved_tensors
        run = xent.traced_backward if is_compiling() else xent.backward
        dlogits = run(dloss, logits, target, weight, lse, denominator, *ctx.options)[0]
        return dlogits, None, None, None, None, None, None, None


_apply = bind_apply(_CrossEntropy)
