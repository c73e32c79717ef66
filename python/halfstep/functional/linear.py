"""The linear layer with its activation, and the cast that autocast asks for."""

from halfstep._compat import (
    Function,
    Tensor,
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
    keep_needed,
    refuse_functorch,
    refuse_second_derivative,
)


def linear(input, weight, bias=None, activation=None):
    """y = f(input weightT + bias), f one of bias_act's activations.

    input: tensor or array (*, in) in float32, float16 or bfloat16.
    weight: (out, in). bias: optional, (out,). In input's dtype, or float32 with a 16-bit input:
        then the product reads a 16-bit cast of them, and their gradients are float32.

    Returns (*, out) in input's dtype; under autocast input is cast to autocast's dtype first, as
    torch does. float32 products on CUDA follow torch.backends.cuda.matmul.allow_tf32. Backward
    keeps input, the 16-bit weight and input weightT + bias (relu: the output; without an
    activation: neither).

    Raises ValueError (shape, device, activation), TypeError (dtype, a tensor without plain memory)
    and RuntimeError (second derivative, torch.func, cuBLASLt absent on CUDA).
    """
    kind = act.kind_of(activation)
    if not isinstance(input, Tensor):
        require_array("linear", "input", input)
        y, _ = _linear.forward(input, weight, bias, kind, False)
        return same_kind(input, y)[0]
    x, w, b = _cast(input, weight, bias)
    if is_compiling():  # Dynamo refuses one tensor in two places
        w = None if weight.dtype is x.dtype else w
        b = None if bias is None or bias.dtype is x.dtype else b
        return _Linear.apply(x, weight, bias, w, b, kind)
    refuse_functorch("linear")
    if is_grad_enabled() and (
        x.requires_grad or weight.requires_grad or (bias is not None and bias.requires_grad)
    ):
        return _apply(x, weight, bias, w, b, kind)
    return _linear.forward(x, w, b, kind, False)[0]


def linear_backward(grad, input, weight, bias=None, activation=None):
    """(dinput, dweight, dbias) of linear for arrays; dbias is None without a bias."""
    require_array("linear", "grad", grad)
    require_array("linear", "input", input)
    kind = act.kind_of(activation)
    saved = None
    if kind != _linear.NONE:
        y, z = _linear.forward(input, weight, bias, kind, _linear.keeps_z(kind))
        saved = z if _linear.keeps_z(kind) else y
    wanted = (True, True, bias is not None)
    gradients = _linear.backward(grad, input, weight, saved, weight, bias, kind, *wanted)
    return same_kind(input, *gradients)


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
    if weight.dtype is dtype and (bias is None or bias.dtype is dtype):
        return x, weight, bias
    if is_compiling():
        # Not detached: from these the Dynamo of torch 2.4 learns whether the output has a gradient.
        return x, weight.to(dtype), None if bias is None else bias.to(dtype)
    if dtype is not torch.float16 and dtype is not torch.bfloat16:
        name, p = ("weight", weight) if weight.dtype is not dtype else ("bias", bias)
        raise TypeError(f"linear: {name} is {p.dtype}, x is {dtype}")
    return x, half_of(weight, dtype), None if bias is None else half_of(bias, dtype)


class _Linear(Function):
    """w and b are weight and bias in x's dtype (None: these are); gradients go to the latter."""

    @staticmethod
    def forward(ctx, x, weight, bias, w, b, kind):
        w, b = weight if w is None else w, bias if b is None else b
        want_z = _linear.keeps_z(kind)
        run = _linear.traced_forward if is_compiling() else _linear.forward
        y, z = run(x, w, b, kind, want_z)
        saved = z if want_z else y if kind == _linear.RELU else None
        ctx.save_for_backward(x, w, saved, weight, bias)
        ctx.kind = kind
        return y

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("linear")
        x, w, saved, weight, bias = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        run = _linear.traced_backward if is_compiling() else _linear.backward
        gradients = run(dy, x, w, saved, weight, bias, ctx.kind, *wanted)
        return *keep_needed(gradients, wanted), None, None, None


_apply = bind_apply(_Linear)
