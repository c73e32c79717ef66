"""Bias and activation: the contract is kernels/ops/act.h."""

from halfstep import _C
from halfstep._compat import empty_like
from halfstep._ops.library import register

# The values of hs_act_kind.
KINDS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def kind_of(activation, op="bias_act"):
    try:
        return KINDS[activation]
    except (KeyError, TypeError):
        names = ", ".join(repr(name) for name in KINDS)
        raise ValueError(f"{op}: activation is {activation!r}, expected one of {names}") from None


def forward_outputs(x, b, cols, kind):
    return (empty_like(x),)


def forward(x, b, cols, kind):
    """f(x + b). Without b, cols is free."""
    return (_C.act_forward(x, b, ..., cols, kind),)


def backward_outputs(dy, x, b, cols, kind, want_dx, want_db):
    """dx, db; None where not wanted."""
    return empty_like(dy) if want_dx else None, empty_like(b) if want_db else None


def backward(dy, x, b, cols, kind, want_dx, want_db):
    """Makes and fills backward_outputs. For relu x may be y."""
    return _C.act_backward(dy, x, b, ... if want_dx else None, ... if want_db else None, cols, kind)


traced_forward = register(
    "bias_act", "(Tensor x, Tensor? b, int cols, int kind) -> Tensor[]", forward, forward_outputs
)
traced_backward = register(
    "bias_act_backward",
    "(Tensor dy, Tensor? x, Tensor? b, int cols, int kind, bool want_dx, bool want_db)"
    " -> (Tensor, Tensor)",
    backward,
    backward_outputs,
)
