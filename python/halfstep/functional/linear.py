"""The linear layer with its activation, and the cast that autocast asks for."""

from halfstep._compat import (
    Function,
    Tensor,
    as_array,
    dtype_name,
    is_compiling,
    is_grad_enabled,
    require_array,
    same_kind,
    torch,
)
from halfstep._half import half_of
from halfstep._ops import act
from halfstep._ops import linear as _linear
from halfstep.functional._autograd import (
    bind_apply,
    distinct,
    keep_needed,
    refuse_functorch,
    refuse_second_derivative,
)


def linear(input, weight, bias=None, activation=None):
    """y = f(x weightT + bias) of x = input, f one of bias_act's activations.

    input: tensor or array (*, in) in float32, float16 or bfloat16.
    weight: (out, in), or (in,) for a result of shape (*). bias: optional, (out,), with a weight of
        one axis (). In input's dtype, or float32 with a 16-bit input: then the product reads a
        16-bit cast of them, and their gradients are float32.

    Returns (*, out) in input's dtype; under autocast input is cast to autocast's dtype first, as
    torch does. float32 products on CUDA follow torch.backends.cuda.matmul.allow_tf32. Backward
    keeps what the wanted gradients read: input for weight's, the 16-bit weight for input's, and for
    any of them x weightT + bias (relu: the output; without an activation: neither).

    Raises ValueError (shape, device, activation), TypeError (dtype, a tensor without plain memory)
    and RuntimeError (second derivative, torch.func, cuBLASLt absent on CUDA).
    """
    kind = act.kind_of(activation, "linear")
    if not isinstance(input, Tensor):
        x, weight, bias = _arrays(input, weight, bias)
        if weight.ndim == 1:
            return same_kind(input, _one_output(x, weight, bias, activation))[0]
        y, _ = _linear.forward(x, *_cast_arrays(x, weight, bias), kind, False)
        return same_kind(input, y)[0]
    x, w, b = _cast(input, weight, bias)
    if w.ndim == 1:
        return _one_output(input, weight, bias, activation)
    if is_compiling():
        w = None if weight.dtype is x.dtype else w
        b = None if bias is None or bias.dtype is x.dtype else b
        return _Linear.apply(*distinct(x, weight, bias), w, b, kind)
    refuse_functorch("linear")
    if is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _apply(x, weight, bias, w, b, kind)
    return _linear.forward(x, w, b, kind, False)[0]


def linear_backward(grad, input, weight, bias=None, activation=None):
    """(dinput, dweight, dbias) of linear for arrays; dbias is None without a bias."""
    require_array("linear", "grad", grad)
    kind = act.kind_of(activation, "linear")
    if isinstance(input, Tensor):
        x, w, b = _cast(input, weight, bias)
    else:
        x, weight, bias = _arrays(input, weight, bias)
        w, b = _cast_arrays(x, weight, bias)
        grad = as_array("linear", "grad", grad)
    if w.ndim == 1:
        dx, dw, db = linear_backward(grad[..., None], x, weight[None], _row(bias), activation)
        db = None if bias is None else db.reshape(bias.shape)
        return same_kind(input, dx, dw[0], db)
    _linear.check(x, w, b)
    _linear.check_grad(grad, x, w)
    saved = None
    if kind != _linear.NONE:
        y, z = _linear.forward(x, w, b, kind, _linear.keeps_z(kind))
        saved = z if _linear.keeps_z(kind) else y
    db_dtype = None if bias is None else bias.dtype
    return same_kind(input, *_linear.backward(grad, x, w, saved, weight.dtype, db_dtype, kind))


def _one_output(x, weight, bias, activation):
    y = linear(x, weight[None], _row(bias), activation)
    return y.reshape(y.shape[:-1])


def _row(bias):
    return bias.reshape((1,)) if bias is not None and bias.ndim == 0 else bias


def _cast(x, weight, bias):
    """x, weight and bias as the product reads them; x's cast is part of autograd's graph."""
    device = x.device.type
    if device not in ("cpu", "cuda"):
        raise TypeError(f"linear: x is on {x.device}, expected the CPU or CUDA")
    if torch.is_autocast_enabled(device) and x.is_floating_point():
        dtype = torch.get_autocast_dtype(device)
        if x.dtype is not dtype and x.dtype is not torch.float64:
            x = x.to(dtype)
    dtype = x.dtype
    try:
        if weight.dtype is dtype and (bias is None or bias.dtype is dtype):
            return x, weight, bias
    except AttributeError:
        pass  # the check below says what it is
    _check_castable("weight", weight, dtype)
    if bias is not None:
        _check_castable("bias", bias, dtype)
    if is_compiling():
        # Not detached: from these the Dynamo of torch 2.4 learns whether the output has a gradient.
        return x, weight.to(dtype), None if bias is None else bias.to(dtype)
    return x, half_of(weight, dtype), None if bias is None else half_of(bias, dtype)


def _check_castable(name, p, dtype):
    if not isinstance(p, Tensor):
        raise TypeError(f"linear: {name} is a {type(p).__name__}, expected a tensor as x is")
    _check_dtype(name, p.dtype, dtype)
    if not is_compiling():
        _linear.check_memory(name, p)


def _check_dtype(name, dtype, of_x):
    """A weight or bias has x's dtype, or is float32 with a 16-bit x."""
    halves = ("float16", "bfloat16")
    if dtype != of_x and not (dtype_name(dtype) == "float32" and dtype_name(of_x) in halves):
        raise TypeError(
            f"linear: {name} is {dtype}, x is {of_x}; expected x's dtype, or float32 with a "
            "16-bit x"
        )


def _arrays(x, weight, bias):
    x, weight = as_array("linear", "input", x), as_array("linear", "weight", weight)
    return x, weight, None if bias is None else as_array("linear", "bias", bias)


def _cast_arrays(x, weight, bias):
    """weight and bias in x's dtype."""
    for name, p in (("weight", weight), ("bias", bias)):
        if p is not None:
            _check_dtype(name, p.dtype, x.dtype)
    w = weight.astype(x.dtype, copy=False)
    return w, None if bias is None else bias.astype(x.dtype, copy=False)


class _Linear(Function):
    """w and b are weight and bias in x's dtype (None: these are); gradients go to the latter."""

    @staticmethod
    def forward(ctx, x, weight, bias, w, b, kind):
        w, b = weight if w is None else w, bias if b is None else b
        need_x, need_w, need_b, _, _, _ = ctx.needs_input_grad
        want_z = _linear.keeps_z(kind) and (need_x or need_w or need_b)
        run = _linear.traced_forward if is_compiling() else _linear.forward
        y, z = run(x, w, b, kind, want_z)
        saved = z if want_z else y if kind == _linear.RELU else None
        ctx.save_for_backward(x if need_w else None, w if need_x else None, saved)
        ctx.options = weight.dtype, bias.dtype if need_b else None, kind
        return y

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("linear")
        run = _linear.traced_backward if is_compiling() else _linear.backward
        gradients = run(dy, *ctx.saved_tensors, *ctx.options)
        return *keep_needed(gradients, ctx.needs_input_grad[:3]), None, None, None


_apply = bind_apply(_Linear)
