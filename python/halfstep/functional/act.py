"""Activations, with an optional bias in front of them."""

from halfstep._compat import (
    Function,
    Tensor,
    is_compiling,
    is_grad_enabled,
    require_array,
    same_kind,
)
from halfstep._ops import act
from halfstep.functional._autograd import (
    bind_apply,
    keep_needed,
    refuse_functorch,
    refuse_second_derivative,
)


def bias_act(input, bias=None, activation="gelu"):
    """activation(input + bias), elementwise.

    input: tensor or array (*, n) in float32, float16 or bfloat16.
    bias: optional, (n,), in input's dtype or float32.
    activation: None (the sum alone), "relu", "gelu" (with erf; Hendrycks, Gimpel, 2016),
        "gelu_tanh" (its tanh form) or "silu" (Elfwing, Uchibe, Doya, 2017).

    Returns an array of input's shape and dtype. Backward keeps input.
    Raises ValueError (shape, device, activation), TypeError (dtype, a tensor without plain memory)
    and RuntimeError (second derivative, torch.func).
    """
    return _bias_act(input, bias, act.kind_of(activation))


def gelu(input, approximate="none"):
    """x/2 (1 + erf(x / sqrt 2)), or its tanh form with approximate="tanh". See bias_act."""
    return _bias_act(input, None, _gelu_kind(approximate))


def relu(input, inplace=False):
    """max(x, 0). A NaN stays a NaN. inplace must be False. See bias_act."""
    _refuse_inplace("relu", inplace)
    return _bias_act(input, None, act.KINDS["relu"])


def silu(input, inplace=False):
    """x / (1 + exp(-x)). inplace must be False. See bias_act."""
    _refuse_inplace("silu", inplace)
    return _bias_act(input, None, act.KINDS["silu"])


def bias_act_backward(grad, input, bias=None, activation="gelu"):
    """(dinput, dbias) of bias_act for arrays; dbias is None without a bias."""
    require_array("bias_act", "grad", grad)
    require_array("bias_act", "input", input)
    kind, cols = act.kind_of(activation), _cols(input, bias)
    wanted = (True, bias is not None)
    return same_kind(input, *act.backward(grad, input, bias, cols, kind, *wanted))


def gelu_backward(grad, input, approximate="none"):
    """dinput of gelu for arrays."""
    return _backward(grad, input, _gelu_kind(approximate))


def relu_backward(grad, input):
    """dinput of relu for arrays."""
    return _backward(grad, input, act.KINDS["relu"])


def silu_backward(grad, input):
    """dinput of silu for arrays."""
    return _backward(grad, input, act.KINDS["silu"])


def _backward(grad, input, kind):
    require_array("bias_act", "grad", grad)
    require_array("bias_act", "input", input)
    dx, _ = act.backward(grad, input, None, 1, kind, True, False)
    return same_kind(input, dx)[0]


def _gelu_kind(approximate):
    if approximate not in ("none", "tanh"):
        raise ValueError(f"gelu: approximate is {approximate!r}, expected 'none' or 'tanh'")
    return act.KINDS["gelu" if approximate == "none" else "gelu_tanh"]


def _refuse_inplace(op, inplace):
    if inplace:
        raise ValueError(f"{op}: inplace=True is not supported, backward needs the input")


def _cols(x, b):
    if b is None:
        return 1
    if len(x.shape) == 0 or tuple(b.shape) != tuple(x.shape[-1:]):
        raise ValueError(
            f"bias_act: bias has shape {tuple(b.shape)}, input has shape {tuple(x.shape)}"
        )
    return x.shape[-1]


def _bias_act(input, b, kind):
    if not isinstance(input, Tensor):
        require_array("bias_act", "input", input)
    cols = _cols(input, b)
    if not isinstance(input, Tensor):
        return same_kind(input, *act.forward(input, b, cols, kind))[0]
    if is_compiling():
        return _BiasAct.apply(input, b, cols, kind)
    refuse_functorch("bias_act")
    if is_grad_enabled() and (input.requires_grad or (b is not None and b.requires_grad)):
        return _apply(input, b, cols, kind)
    return act.forward(input, b, cols, kind)[0]


class _BiasAct(Function):
    @staticmethod
    def forward(ctx, x, b, cols, kind):
        ctx.save_for_backward(x, b)
        ctx.cols, ctx.kind = cols, kind
        run = act.traced_forward if is_compiling() else act.forward
        return run(x, b, cols, kind)[0]

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("bias_act")
        x, b = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:2]
        run = act.traced_backward if is_compiling() else act.backward
        gradients = run(dy, x, b, ctx.cols, ctx.kind, *wanted)
        return *keep_needed(gradients, wanted), None, None


_apply = bind_apply(_BiasAct)
