"""LayerNorm: the contract is kernels/ops/norm.h."""

from halfstep import _C
from halfstep._compat import empty_like
from halfstep._ops.library import register


def forward_outputs(x, residual, w, b, cols, eps):
    """y, and x + residual (None without a residual)."""
    return empty_like(x), None if residual is None else empty_like(residual)


def forward(x, residual, w, b, cols, eps):
    """Makes and fills forward_outputs."""
    return _C.norm_forward(x, residual, w, b, ..., None if residual is None else ..., cols, eps)


def backward_outputs(dy, h, w, b, dsum, cols, eps, want_dx, want_dresidual, want_dw, want_db):
    """dx, dresidual, dw, db; None where not wanted. dresidual is dx in h's dtype."""
    return (
        empty_like(dy) if want_dx else None,
        empty_like(h) if want_dresidual else None,
        empty_like(w) if want_dw else None,
        empty_like(b) if want_db else None,
    )


def backward(dy, h, w, b, dsum, cols, eps, want_dx, want_dresidual, want_dw, want_db):
    """Makes and fills backward_outputs."""
    dx = ... if want_dx else None
    dresidual = ... if want_dresidual else None
    dw = ... if want_dw else None
    db = None if not want_db else empty_like(b) if w is None else ...
    return _C.norm_backward(dy, h, w, dsum, dx, dresidual, dw, db, cols, eps)


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
