"""y = f(x wT + b): cuBLASLt on CUDA (kernels/ops/linear.h), torch's or NumPy's product on the CPU.

The CPU multiplies in float32 and rounds once: 16-bit CPU products are slower and less exact.
"""

from contextlib import nullcontext
from math import prod

import numpy as np

from halfstep import _C
from halfstep._compat import Tensor, dtype_name, empty, empty_like, require_dense, torch
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
    try:
        y, z = outputs = forward_outputs(x, w, b, kind, want_z)
    except (AttributeError, IndexError, RuntimeError):
        check(x, w, b)
        raise
    _C.linear_forward(x, w, b, y, z, kind, _allow_tf32(x))
    return outputs


def backward_outputs(dy, x, w, saved, dw_dtype, db_dtype, kind):
    """dx where w is given, dw where x is, db where it has a dtype; the others are None."""
    out = dy.shape[-1]
    return (
        None if w is None else dy.new_empty((*dy.shape[:-1], w.shape[1])),
        None if x is None else dy.new_empty((out, x.shape[-1]), dtype=dw_dtype),
        None if db_dtype is None else dy.new_empty(out, dtype=db_dtype),
    )


def backward(dy, x, w, saved, dw_dtype, db_dtype, kind):
    """Makes and fills backward_outputs. saved: z of forward, y for relu, None without one."""
    if not (isinstance(dy, Tensor) and dy.is_cuda):
        return _backward_cpu(dy, x, w, saved, dw_dtype, db_dtype, kind)
    if x is None or w is None:
        dx, dw, db = backward_outputs(dy, x, w, saved, dw_dtype, db_dtype, kind)
    else:
        dx = dw = ...
        if dw_dtype is not w.dtype:
            dw = torch.empty_like(w, dtype=dw_dtype, memory_format=torch.contiguous_format)
        db = None if db_dtype is None else dy.new_empty(dy.shape[-1], dtype=db_dtype)
    outputs = _C.linear_backward(dy, x, w, saved, dx, dw, db, kind, _allow_tf32(dy))
    return outputs or (dx, dw, db)


def _allow_tf32(x):
    return x.dtype is torch.float32 and torch.backends.cuda.matmul.allow_tf32


# ---- checks ----
# What C says on CUDA and of every other op: on the CPU torch multiplies, which takes any tensor.
def check_memory(name, t):
    """A TypeError that says what t is, where it is a tensor without plain memory."""
    if not isinstance(t, Tensor) or _is_plain(t):
        return
    if type(t) not in (Tensor, torch.nn.Parameter):
        raise TypeError(
            f"linear: {name} is a {type(t).__name__}, a subclass of torch.Tensor that may not own "
            "plain memory"
        )
    require_dense("linear", name, t)
    if t.device.type not in ("cpu", "cuda"):
        raise TypeError(f"linear: {name} is on {t.device}, expected the CPU or CUDA")
    raise TypeError(f"linear: {name} has no data: a functional tensor or freed storage")


def _is_plain(t):
    if type(t) not in (Tensor, torch.nn.Parameter):
        return False
    try:
        return t.layout is torch.strided and not t.is_nested and (t.data_ptr() or not t.numel())
    except RuntimeError:  # data_ptr of a functional tensor
        return False


def check(x, w, b):
    """Of operands in one dtype."""
    for name, t in (("x", x), ("weight", w), ("bias", b)):
        check_memory(name, t)
    if dtype_name(x.dtype) not in ("float32", "float16", "bfloat16"):
        raise TypeError(f"linear: x is {x.dtype}, expected float32, float16 or bfloat16")
    if len(w.shape) != 2:
        raise ValueError(f"linear: weight has shape {tuple(w.shape)}, expected (out, in)")
    if len(x.shape) == 0 or x.shape[-1] != w.shape[1]:
        raise ValueError(f"linear: x has shape {tuple(x.shape)}, weight has shape {tuple(w.shape)}")
    if b is not None and tuple(b.shape) != (w.shape[0],):
        raise ValueError(
            f"linear: bias has shape {tuple(b.shape)}, weight has shape {tuple(w.shape)}; "
            f"expected ({w.shape[0]},)"
        )
    for name, t in (("weight", w), ("bias", b)):
        if t is not None and t.dtype != x.dtype:
            raise TypeError(f"linear: {name} is {t.dtype}, x is {x.dtype}")
        if isinstance(t, Tensor) and t.device != x.device:
            raise ValueError(f"linear: {name} is on {t.device}, x is on {x.device}")


def check_grad(dy, x, w):
    """dy is like the output of x and w, which have been checked."""
    check_memory("grad", dy)
    expected = (*x.shape[:-1], w.shape[0])
    if tuple(dy.shape) != expected:
        raise ValueError(f"linear: grad has shape {tuple(dy.shape)}, the output has {expected}")
    if dy.dtype != x.dtype:
        raise TypeError(f"linear: grad is {dy.dtype}, x is {x.dtype}")


# ---- on the CPU ----
def _product(a, b):
    """a b in float32, for arrays of either kind."""
    if not isinstance(a, Tensor):
        return np.matmul(a.astype(np.float32), b.astype(np.float32))
    quiet = torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu", enabled=False) if quiet else nullcontext():
        return torch.matmul(a.float(), b.float())


def _rounded(t, dtype):
    return t.to(dtype) if isinstance(t, Tensor) else t.astype(dtype)


def _forward_cpu(x, w, b, kind, want_z):
    check(x, w, b)
    z = _product(x, w.T)
    if b is not None:
        z += b
    z = _rounded(z, x.dtype)
    if kind == NONE:
        return z, None
    y = empty_like(z) if want_z else z
    _C.act_forward(z, None, y, 1, kind)
    return y, z if want_z else None


def _backward_cpu(dy, x, w, saved, dw_dtype, db_dtype, kind):
    out = dy.shape[-1]
    db = None if db_dtype is None else empty((out,), dtype_name(db_dtype), dy)
    dz = dy
    if kind != NONE:
        dz = empty_like(dy)
        _C.act_backward(dy, saved, None, dz, db, out, kind)
    elif db is not None:
        _C.act_backward(dy, None, None, None, db, out, kind)
    dx = None if w is None else _rounded(_product(dz, w), dy.dtype)
    dw = None
    if x is not None:
        rows = prod(x.shape[:-1])  # -1 says nothing where an axis is empty
        dz, x = dz.reshape((rows, out)), x.reshape((rows, x.shape[-1]))
        dw = _rounded(_product(dz.T, x), dw_dtype)
    return dx, dw, db


traced_forward = register(
    "linear",
    "(Tensor x, Tensor w, Tensor? b, int kind, bool want_z) -> (Tensor, Tensor)",
    forward,
    forward_outputs,
)
traced_backward = register(
    "linear_backward",
    "(Tensor dy, Tensor? x, Tensor? w, Tensor? saved, ScalarType? dw_dtype, ScalarType? db_dtype,"
    " int kind) -> (Tensor, Tensor, Tensor)",
    backward,
    backward_outputs,
)
