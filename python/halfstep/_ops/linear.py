"""y = f(x wT + b): cuBLASLt on CUDA (kernels/ops/linear.h), torch's or NumPy's product on the CPU.

The CPU multiplies in float32 and rounds once: 16-bit CPU products are slower and less exact.
"""

from contextlib import nullcontext
from math import prod

import numpy as np

from halfstep import _C
from halfstep._compat import Tensor, empty_like, require_array, torch
from halfstep._ops import act
from halfstep._ops.library import register

NONE, RELU = act.KINDS[None], act.KINDS["relu"]


def keeps_z(kind):
    """Whether backward needs z = x wT + b; relu reads y instead."""
    return kind not in (NONE, RELU)


def forward_outputs(x, w, b, kind, want_z):
    """y, z; z is None where not wanted."""
    y = x.new_empty((*x.shape[:-1], w.shape[0]))
    return y, torch.empty_like(y) if want_z else None


def forward(x, w, b, kind, want_z):
    """Fills forward_outputs. x, w and b are of one dtype."""
    if not (isinstance(x, Tensor) and x.is_cuda):
        return _forward_cpu(x, w, b, kind, want_z)
    y, z = outputs = forward_outputs(x, w, b, kind, want_z)
    _C.linear_forward(x, w, b, y, z, kind, _allow_tf32(x))
    return outputs


def backward_outputs(dy, x, w, saved, weight, bias, kind, want_dx, want_dw, want_db):
    """dx, dw as weight, db as bias; None where not wanted. weight and bias give the dtypes."""
    return (
        empty_like(x) if want_dx else None,
        empty_like(weight) if want_dw else None,
        empty_like(bias) if want_db else None,
    )


def backward(dy, x, w, saved, weight, bias, kind, want_dx, want_dw, want_db):
    """Fills backward_outputs. saved: z of forward, y for relu, None without an activation."""
    if not (isinstance(x, Tensor) and x.is_cuda):
        return _backward_cpu(dy, x, w, saved, weight, bias, kind, want_dx, want_dw, want_db)
    dx = ... if want_dx else None
    dw = empty_like(weight) if want_dw else None
    db = empty_like(bias) if want_db else None
    outputs = _C.linear_backward(dy, x, w, saved, dx, dw, db, kind, _allow_tf32(x))
    return outputs or (dx, dw, db)


def _allow_tf32(x):
    return x.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32


def _check_memory(name, t):
    """What the other ops learn from C: here torch multiplies, which would take any tensor."""
    if not isinstance(t, Tensor):
        return
    try:
        plain = type(t) in (Tensor, torch.nn.Parameter) and t.layout is torch.strided
        plain = plain and (t.numel() == 0 or t.data_ptr() != 0)
    except RuntimeError:  # data_ptr of a functional tensor
        plain = False
    if not plain:
        raise TypeError(f"linear: {name} is a {type(t).__name__} that does not own plain memory")


def _check(x, w, b):
    for name, t in (("x", x), ("weight", w), ("bias", b)):
        if t is not None:
            require_array("linear", name, t)
            _check_memory(name, t)
    if str(x.dtype).rpartition(".")[2] not in ("float32", "float16", "bfloat16"):
        raise TypeError(f"linear: x is {x.dtype}, expected float32, float16 or bfloat16")
    if len(w.shape) != 2:
        raise ValueError(f"linear: weight has shape {tuple(w.shape)}, expected (out, in)")
    if len(x.shape) == 0 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"linear: x has shape {tuple(x.shape)}, weight has shape {tuple(w.shape)}")
    if b is not None and tuple(b.shape) != (w.shape[0],):
        raise ValueError(
            f"linear: bias has shape {tuple(b.shape)}, weight has shape {tuple(w.shape)}"
        )
    for name, t in (("weight", w), ("bias", b)):
        if t is not None and isinstance(t, Tensor) != isinstance(x, Tensor):
            raise TypeError(f"linear: x is a {type(x).__name__}, {name} is a {type(t).__name__}")
        if t is not None and t.dtype != x.dtype:
            raise TypeError(f"linear: {name} is {t.dtype}, x is {x.dtype}")
        if isinstance(t, Tensor) and t.device != x.device:
            raise ValueError(f"linear: {name} is on {t.device}, x is on {x.device}")


def _product(a, b):
    """a b in float32, for arrays of either kind."""
    if not isinstance(a, Tensor):
        return np.matmul(a.astype(np.float32), b.astype(np.float32))
    quiet = torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", enabled=False) if quiet else nullcontext():
        return torch.matmul(a.float(), b.float())


def _rounded(t, like):
    return t.to(like.dtype) if isinstance(like, Tensor) else t.astype(like.dtype)


def _forward_cpu(x, w, b, kind, want_z):
    _check(x, w, b)
    z = _product(x, w.T)
    if b is not None:
        z += b
    z = _rounded(z, x)
    if kind == NONE:
        return z, None
    y = empty_like(z) if want_z else z
    _C.act_forward(z, None, y, 1, kind)
    return y, z if want_z else None


def _backward_cpu(dy, x, w, saved, weight, bias, kind, want_dx, want_dw, want_db):
    db = empty_like(bias) if want_db else None
    dz = dy
    if kind != NONE:
        dz = empty_like(dy)
        _C.act_backward(dy, saved, None, dz, db, dy.shape[-1], kind)
    elif want_db:
        _C.act_backward(dy, None, None, None, db, dy.shape[-1], kind)
    dx = _rounded(_product(dz, w), x) if want_dx else None
    dw = None
    if want_dw:
        rows = prod(x.shape[:-1])  # -1 says nothing where an axis is empty
        dz, x = dz.reshape((rows, w.shape[0])), x.reshape((rows, w.shape[1]))
        dw = _rounded(_product(dz.T, x), weight)
    return dx, dw, db


traced_forward = register(
    "linear",
    "(Tensor x, Tensor w, Tensor? b, int kind, bool want_z) -> (Tensor, Tensor)",
    forward,
    forward_outputs,
)
traced_backward = register(
    "linear_backward",
    "(Tensor dy, Tensor x, Tensor w, Tensor? saved, Tensor weight, Tensor? bias, int kind,"
    " bool want_dx, bool want_dw, bool want_db) -> (Tensor, Tensor, Tensor)",
    backward,
    backward_outputs,
)
