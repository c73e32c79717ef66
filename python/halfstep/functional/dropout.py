"""Dropout whose mask is drawn again in backward."""

from halfstep._compat import (
    Function,
    Tensor,
    is_compiling,
    is_grad_enabled,
    require_array,
    same_kind,
)
from halfstep._ops import dropout as _dropout
from halfstep.functional._autograd import bind_apply, refuse_functorch, refuse_second_derivative


def dropout(input, p=0.5, training=True, inplace=False, *, state=None):
    """input with each element zeroed with probability p, the others scaled by 1 / (1 - p).

    Srivastava et al., "Dropout" (JMLR 2014). No mask is stored: backward draws it again, bit for
    bit, on CPU and CUDA alike.

    input: tensor or array in float32, float16 or bfloat16. p: in [0, 1]. inplace must be False.
    state: (seed, offset), two int64; by default taken from torch's generator of input's device (so
        manual_seed, checkpointing and CUDA graphs behave as with torch), for arrays from NumPy's.

    Returns an array of input's shape and dtype. Backward keeps the state alone.
    Raises ValueError (p, inplace, device), TypeError (dtype, a tensor without plain memory) and
    RuntimeError (torch.func).
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p is {p}, expected a probability in [0, 1]")
    if inplace:
        raise ValueError("dropout: inplace=True is not supported")
    if not training or p == 0:
        return input
    if not isinstance(input, Tensor):
        require_array("dropout", "input", input)
    if state is None:
        state = _dropout.draw_state(input)
    if not isinstance(input, Tensor):
        return same_kind(input, _dropout.forward(input, p, state))[0]
    if is_compiling():
        return _Dropout.apply(input, p, state)
    refuse_functorch("dropout")
    if is_grad_enabled() and input.requires_grad:
        return _apply(input, p, state)
    return _dropout.forward(input, p, state)


def dropout_backward(grad, p, state):
    """dinput of dropout for arrays; state is the one that forward was given."""
    require_array("dropout", "grad", grad)
    return same_kind(grad, _dropout.forward(grad, p, state))[0]


def _run(x, p, state):
    if is_compiling():
        return _dropout.traced_forward(x, p, state)[0]
    return _dropout.forward(x, p, state)


class _Dropout(Function):
    @staticmethod
    def forward(ctx, x, p, state):
        ctx.p, ctx.state = p, state
        if isinstance(state, Tensor):  # autograd then notices a change of it before backward
            ctx.save_for_backward(state)
            ctx.state = None
        return _run(x, p, state)

    @staticmethod
    def backward(ctx, dy):
        refuse_second_derivative("dropout")
        state = ctx.saved_tensors[0] if ctx.state is None else ctx.state
        return _run(dy, ctx.p, state), None, None


_apply = bind_apply(_Dropout)
