"""LayerNorm, with an optional residual connection in front of it."""

from math import prod

from halfstep._compat import (
    Function,
    Tensor,
    functorch_active,
    is_compiling,
    is_grad_enabled,
    require_array,
    same_kind,
)
from halfstep._ops import norm
from halfstep.functional._autograd import (
    bind_apply,
    keep_needed,
    refuse_functorch,
    refuse_second_derivative,
)


def layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5, *, residual=None):
    """y = (h - mean(h)) / sqrt(var(h) + eps) * weight + bias, over the last axes of h.

    h is input, or input + residual rounded to residual's dtype. Ba, Kiros, Hinton, "Layer
    normalization" (2016).

    input: tensor or array (*, *normalized_shape) in float32, float16 or bfloat16.
    normalized_shape: an int or a sequence of ints, the last axes of input.
    weight, bias: optional, of shape normalized_shape, in input's dtype or float32, both alike.
    residual: optional, of input's shape, in input's dtype or float32.

    Returns y in input's shape and dtype; with a residual the pair (y, h). Under autocast nothing is
    cast: 16-bit in, 16-bit out. Backward keeps h and computes the statistics again.

    Raises ValueError (shape, device, eps), TypeError (dtype, a tensor without plain memory) and
    RuntimeError (second derivative, torch.func).
    """
    if weight is not None and type(normalized_shape) is tuple and len(normalized_shape) == 1:
        cols = normalized_shape[0]  # C compares it with the shapes of input and weight
    else:
        cols = _row_size(input, normalized_shape)
    if not isinstance(input, Tensor):
        require_array("layer_norm", "input", input)
        y, h = same_kind(input, *norm.forward(input, residual, weight, bias, cols, eps))
        return y if residual is None else (y, h)
    if residual is not None:
        return _with_residual(input, residual, weight, bias, cols, eps)
    if is_compiling():
        return _LayerNorm.apply(input, weight, bias, cols, eps)
    if is_grad_enabled() and (
        input.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
    ):
        if functorch_active():
            refuse_functorch("layer_norm")
        return _apply(input, weight, bias, cols, eps)
    try:
        return norm.forward(input, None, weight, bias, cols, eps)[0]
    except TypeError:
        refuse_functorch("layer_norm")
        raise


def layer_norm_backward(grad, input, normalized_shape, weight=None, bias=None, eps=1e-5):
    """(dinput, dweight, dbias) of layer_norm for arrays; None for an absent weight or bias."""
    require_array("layer_norm", "grad", grad)
    cols = _row_size(input, normalized_shape)
    wanted = (True, False, weight is not None, bias is not None)
    dx, _, dw, db = norm.backward(grad, input, weight, bias, None, cols, eps, *wanted)
    return same_kind(input, dx, dw, db)


def _row_size(x, normalized_shape):
    require_array("layer_norm", "input", x)
    shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
    if not shape or tuple(x.shape[-len(shape) :]) != shape:
        raise ValueError(
            f"layer_norm: normalized_shape is {shape}, input has shape {tuple(x.shape)}"
        )
    return prod(shape)


def _with_residual(x, residual, weight, bias, cols, eps):
    if is_compiling():
        return _AddLayerNorm.apply(x, residual, weight, bias, cols, eps)
    refuse_functorch("layer_norm")
    if is_grad_enabled() and any(
        t is not None and t.requires_grad for t in (x, residual, weight, bias)
    ):
        return _apply_add(x, residual, weight, bias, cols, eps)
    return norm.forward(x, residual, weight, bias, cols, eps)


class _LayerNorm(Function):
    @staticmethod
    def forward(ctx, x, w, b, cols, eps):
        ctx.save_for_backward(x, b if w is None else w)
        ctx.options = w is not None, cols, eps
        run = norm.traced_forward if is_compiling() else norm.forward
        return run(x, None, w, b, cols, eps)[0]

    @staticmethod
    def backward(ctx, dy):
        if is_grad_enabled():
            refuse_second_derivative("layer_norm")
        x, like = ctx.saved_tensors
        has_weight, cols, eps = ctx.options
        need_x, need_w, need_b, _, _ = ctx.needs_input_grad
        w = like if has_weight else None
        wanted = (need_x, False, need_w, need_b)
        if is_compiling():
            dx, _, dw, db = norm.traced_backward(dy, x, w, like, None, cols, eps, *wanted)
            return *keep_needed((dx, dw, db), (need_x, need_w, need_b)), None, None
        dx, _, dw, db = norm.backward(dy, x, w, like, None, cols, eps, *wanted)
        return dx, dw, db, None, None


class _AddLayerNorm(Function):
    """Two outputs, y and h; h's gradient is added where x and the residual meet."""

    @staticmethod
    def forward(ctx, x, residual, w, b, cols, eps):
        run = norm.traced_forward if is_compiling() else norm.forward
        y, h = run(x, residual, w, b, cols, eps)
        ctx.save_for_backward(h, w, b)
        ctx.cols, ctx.eps, ctx.mixed = cols, eps, x.dtype != residual.dtype
        return y, h

    @staticmethod
    def backward(ctx, dy, dh):
        refuse_second_derivative("layer_norm")
        h, w, b = ctx.saved_tensors
        need_x, need_residual, need_w, need_b, _, _ = ctx.needs_input_grad
        want_dx = need_x or (need_residual and not ctx.mixed)
        want_dresidual = need_residual and ctx.mixed
        run = norm.traced_backward if is_compiling() else norm.backward
        wanted = (want_dx, want_dresidual, need_w, need_b)
        dx, dresidual, dw, db = run(dy, h, w, b, dh, ctx.cols, ctx.eps, *wanted)
        if not ctx.mixed:
            dresidual = dx
        needed = (need_x, need_residual, need_w, need_b)
        return *keep_needed((dx, dresidual, dw, db), needed), None, None


_apply = bind_apply(_LayerNorm)
_apply_add = bind_apply(_AddLayerNorm)
