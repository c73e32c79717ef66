"""LayerNorm: the contract is kernels/ops/norm.h."""

from halfstep import _C
from halfstep._compat import empty_like, tensor_like
from halfstep._ops.library import register


def forward_outputs(x, residual, w, b, cols, eps):
    """y, and x + residual (None without a residual)."""
    return empty_like(x), None if residual is None else empty_like(residual)


def forward(x, residual, w, b, cols, eps):
    """Fills forward_outputs. x and residual are dense."""
    y, total = outputs = forward_outputs(x, residual, w, b, cols, eps)
    _C.norm_forward(x, residual, w, b, y, total, cols, eps)
    return outputs


def tensor_forward(x, w, b, cols, eps):
    """forward of torch tensors without a residual: y."""
    y = tensor_like(x)
    _C.norm_forward(x, None, w, b, y, None, cols, eps)
    return y


def backward_outputs(dy, h, w, b, dsum, cols, eps, want_dx, want_dresidual, want_dw, want_db):
    """dx, dresidual, dw, db; None where not wanted. dresidual is dx in h's dtype."""
    return (
        empty_like(dy) if want_dx else None,
        empty_like(h) if want_dresidual else None,
        empty_like(w) if want_dw else None,
        empty_like(b) if want_db else None,
    )


def backward(dy, h, w, b, dsum, cols, eps, want_dx, want_dresidual, want_dw, want_db):
    """Fills backward_outputs. dy, h and dsum are dense."""
    dx, dresidual, dw, db = outputs = backward_outputs(
        dy, h, w, b, dsum, cols, eps, want_dx, want_dresidual, want_dw, want_db
    )
    _C.norm_backward(dy, h, w, dsum, dx, dresidual, dw, db, cols, eps)
    return outputs


def tensor_backward(dy, x, w, like, cols, eps, want_dx, want_dw, want_db):
    """backward of torch tensors without a residual: dx, dw, db. like: w, or b without a w."""
    dx = tensor_like(dy) if want_dx else None
    dw = tensor_like(like) if want_dw else None
    db = tensor_like(like) if want_db else None
    _C.norm_backward(dy, x, w, None, dx, None, dw, db, cols, eps)
    return dx, dw, db


traced_forward = register(
    "layer_norm",
    "(Tensor x, Tensor? residual, Tensor? w, Tensor? b, int cols, float eps) -> (Tensor, Tensor)",
    forward,
    forward_outputs,
)
traced_backward = register(
    "layer_norm_backward",
    "(Tensor dy, Tensor h, Tensor? w, Tensor? b, Tensor? dsum, int cols, float eps, bool want_dx,"
    " bool want_dresidual, bool want_dw, bool want_db) -> (Tensor, Tensor, Tensor, Tensor)",
    backward,
    backward_outputs,
)
